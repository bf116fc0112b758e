//! How the places of a group are divided among flows. A flow is the calls of one client and one
//! class of methods.
//!
//! A flow may use every place that no other flow needs. But the places that a flow has used
//! recently are kept for it, up to an equal share, so that slow calls of one flow cannot take them
//! while it has no call in flight. That is max-min fairness of calls in flight. Nothing is kept
//! from a better class, and a call in flight is never stopped.
//!
//! Flows are hashed to a fixed number of buckets, as in stochastic fairness queueing (McKenney,
//! 1990): the cost and the memory do not grow with the number of clients, and now and then two
//! clients share a bucket.

use std::time::Duration;

use crate::policy::overload::Class;

#[cfg(test)]
mod tests;

/// Buckets of flows.
pub const FLOWS: usize = 128;

/// The places that a flow used are kept for it for one such time at least, and for two at most.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// The weight of the newest call in what calls of a flow usually take.
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

    /// Its place in tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The flow at a place in tables.
    pub const fn at(index: usize) -> Flow {
        Flow((index % FLOWS) as u8)
    }
}

/// The calls that flows have in flight. Order of calls: [`Shares::wait`] for a call that finds no
/// place; [`Shares::enter`], [`Shares::leave`] and [`Shares::took`] for each call; while calls
/// wait, [`Shares::renew`] and then [`Shares::spare`] and [`Shares::admits`].
#[derive(Debug)]
pub struct Shares {
    flows: [Use; FLOWS],
    turned: Duration,
    /// The most places that are kept for a flow.
    equal: u32,
}

/// The calls of one flow.
#[derive(Debug, Clone, Copy)]
struct Use {
    class: Class,
    held: u32,
    /// The most that it held or could have used since the last turn, and in the time before that.
    peak: u32,
    peak_before: u32,
    /// How long its calls held a place, as a moving average in seconds; 0 while that is unknown.
    took: f32,
}

impl Use {
    fn peak(self) -> u32 {
        self.peak.max(self.peak_before)
    }

    /// Places that are kept for it and that it does not use now.
    fn unused(self, equal: u32) -> u32 {
        self.peak().min(equal).saturating_sub(self.held)
    }
}

impl Default for Shares {
    fn default() -> Shares {
        let none = Use { class: Class::Low, held: 0, peak: 0, peak_before: 0, took: 0.0 };
        Shares { flows: [none; FLOWS], turned: Duration::ZERO, equal: 0 }
    }
}

impl Shares {
    /// A call waits for a place.
    pub fn wait(&mut self, class: Class, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.class = class;
        own.peak = own.peak.max(own.held + 1);
    }

    /// A call begins.
    pub fn enter(&mut self, class: Class, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.class = class;
        own.held += 1;
        own.peak = own.peak.max(own.held);
    }

    /// A call gives its place back.
    pub fn leave(&mut self, flow: Flow) {
        let own = &mut self.flows[flow.index()];
        own.held = own.held.saturating_sub(1);
    }

    /// A call has ended that held a place for so long.
    pub fn took(&mut self, flow: Flow, took: Duration) {
        let own = &mut self.flows[flow.index()];
        let took = took.as_secs_f32();
        own.took = if own.took == 0.0 { took } else { own.took + (took - own.took) * NEWEST };
    }

    /// How long the calls usually take that hold most places now; none if that is unknown.
    pub fn usual(&self) -> Option<Duration> {
        let most = self.flows.iter().max_by_key(|own| own.held)?;
        (most.took > 0.0).then(|| Duration::from_secs_f32(most.took))
    }

    /// Calls of a flow in flight.
    pub fn held(&self, flow: Flow) -> u32 {
        self.flows[flow.index()].held
    }

    /// Divides so many places among the flows that used some recently.
    pub fn renew(&mut self, now: Duration, places: u32) {
        if now.saturating_sub(self.turned) >= KEPT_FOR {
            self.turned = now;
            for own in &mut self.flows {
                (own.peak, own.peak_before) = (own.held, own.peak);
            }
        }
        let active = self.flows.iter().filter(|own| own.peak() > 0).count() as u32;
        self.equal = places / active.max(1);
    }

    /// How many of the free places are kept for nobody of this class or a better one.
    pub fn spare(&self, class: Class, free: u32) -> u32 {
        let kept = self.flows.iter().filter(|own| own.class <= class);
        let kept: u32 = kept.map(|own| own.unused(self.equal)).sum();
        free.saturating_sub(kept)
    }

    /// Returns true if a flow may take a free place where so many are spare.
    pub fn admits(&self, flow: Flow, spare: u32) -> bool {
        spare > 0 || self.flows[flow.index()].unused(self.equal) > 0
    }
}
