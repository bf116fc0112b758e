//! Division of a group's permits among flows. A flow is the calls of one client and one class of
//! methods.
//!
//! A flow may use every permit that no other flow needs. The permits that a flow has used recently
//! are reserved for it, up to an equal share. So slow calls of another flow cannot take them while
//! the flow has no call in flight. This is max-min fairness of calls in flight. A reservation does
//! not apply against a better class, and a call in flight is never stopped.
//!
//! Flows are hashed to a fixed number of buckets, as in stochastic fairness queueing (McKenney,
//! 1990). Cost and memory do not grow with the number of clients, but two clients may share a
//! bucket.

use std::time::Duration;

use crate::policy::overload::Class;

#[cfg(test)]
mod tests;

/// Buckets of flows.
pub const FLOWS: usize = 128;

/// Used permits stay reserved for their flow for at least this time, and at most twice as long.
const RESERVED_FOR: Duration = Duration::from_secs(1);

/// Weight of the newest call in the average latency of a flow.
const NEWEST: f32 = 0.1;

/// The bucket of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow(u8);

impl Flow {
    /// Returns the flow of a client, by a hash of its key or address, and a method's weight.
    /// Methods of about the same weight are one class.
    pub fn of(client: u64, weight: u32) -> Flow {
        let class = u64::from(weight.max(1).ilog2());
        let mixed = (client ^ class).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Flow((mixed >> 57) as u8)
    }

    /// Returns its index in tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the flow at an index in tables.
    pub const fn at(index: usize) -> Flow {
        Flow((index % FLOWS) as u8)
    }
}

/// The calls in flight of each flow. Call [`Shares::wait`] for a call without a permit. For each
/// call with a permit, call [`Shares::enter`], [`Shares::leave`] and [`Shares::took`]. While calls
/// wait, call [`Shares::renew`], then [`Shares::spare`] and [`Shares::admits`].
#[derive(Debug)]
pub struct Shares {
    flows: [FlowUse; FLOWS],
    period_began: Duration,
    /// Maximum number of permits reserved for each flow.
    equal: u32,
}

/// The calls of one flow.
#[derive(Debug, Clone, Copy)]
struct FlowUse {
    class: Class,
    held: u32,
    /// Maximum number of permits that the flow held or wanted at a time, in this period and in the
    /// one before.
    peak: u32,
    peak_before: u32,
    /// Moving average of the time that its calls held a permit, in seconds; 0 while unknown.
    latency: f32,
}

impl FlowUse {
    fn peak(self) -> u32 {
        self.peak.max(self.peak_before)
    }

    /// Returns the number of unused permits that are reserved for the flow.
    fn unused(self, equal: u32) -> u32 {
        self.peak().min(equal).saturating_sub(self.held)
    }
}

impl Default for Shares {
    fn default() -> Shares {
        let none = FlowUse { class: Class::Low, held: 0, peak: 0, peak_before: 0, latency: 0.0 };
        Shares { flows: [none; FLOWS], period_began: Duration::ZERO, equal: 0 }
    }
}

impl Shares {
    /// Records that a call waits for a permit.
    pub fn wait(&mut self, class: Class, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.class = class;
        own.peak = own.peak.max(own.held + 1);
    }

    /// Records that a call takes a permit.
    pub fn enter(&mut self, class: Class, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.class = class;
        own.held += 1;
        own.peak = own.peak.max(own.held);
    }

    /// Records that a call returns its permit.
    pub fn leave(&mut self, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.held = own.held.saturating_sub(1);
    }

    /// Records how long a call held its permit.
    pub fn took(&mut self, flow: Flow, latency: Duration) {
        let own = &mut self.flows[flow.index()];
        let latency = latency.as_secs_f32();
        own.latency = if own.latency == 0.0 {
            latency
        } else {
            own.latency + (latency - own.latency) * NEWEST
        };
    }

    /// Returns the usual latency of the flows that hold most permits now; `None` if unknown.
    pub fn usual(&self) -> Option<Duration> {
        let most = self.flows.iter().max_by_key(|own| own.held)?;
        (most.latency > 0.0).then(|| Duration::from_secs_f32(most.latency))
    }

    /// Returns the calls of a flow in flight.
    pub fn held(&self, flow: Flow) -> u32 {
        self.flows[flow.index()].held
    }

    /// Divides the permits among the flows that recently used some.
    pub fn renew(&mut self, now: Duration, permits: u32) {
        if now.saturating_sub(self.period_began) >= RESERVED_FOR {
            self.period_began = now;
            for own in &mut self.flows {
                (own.peak, own.peak_before) = (own.held, own.peak);
            }
        }
        let active = self.flows.iter().filter(|own| own.peak() > 0).count() as u32;
        self.equal = permits / active.max(1);
    }

    /// Returns how many of the free permits are spare. A spare permit is not reserved for a flow of
    /// this class or a better one.
    pub fn spare(&self, class: Class, free: u32) -> u32 {
        let reserved = self.flows.iter().filter(|own| own.class <= class);
        let reserved: u32 = reserved.map(|own| own.unused(self.equal)).sum();
        free.saturating_sub(reserved)
    }

    /// Returns true if a flow may take a free permit. `spare` is the result of [`Shares::spare`].
    pub fn admits(&self, flow: Flow, spare: u32) -> bool {
        spare > 0 || self.flows[flow.index()].unused(self.equal) > 0
    }
}
