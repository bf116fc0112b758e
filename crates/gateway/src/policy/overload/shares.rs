//! Divides a group's permits among flows. A *permit* allows one call to be in flight. A *flow* is
//! the calls of one client to methods of about the same weight (cost).
//!
//! A flow may use every permit that no other flow needs. As many permits as a flow has used
//! recently are reserved for it, up to an equal share of all permits. So slow calls of another flow
//! cannot take these permits while the flow has no call in flight. This is max-min fairness of
//! calls in flight. Calls of a higher class (priority) ignore reservations of a lower class. A call
//! in flight is never stopped.
//!
//! Flows are hashed to a fixed number of buckets, as in stochastic fairness queueing (McKenney,
//! 1990). So time and memory do not grow with the number of clients, but two clients may share a
//! bucket.

use std::time::Duration;

use crate::policy::overload::Class;

#[cfg(test)]
mod tests;

/// Number of buckets of flows.
pub const FLOWS: usize = 128;

/// Permits that a flow has used stay reserved for it for at least this time, and for at most twice
/// this time.
const RESERVED_FOR: Duration = Duration::from_secs(1);

/// Weight of the newest call in the average latency of a flow.
const NEWEST_WEIGHT: f32 = 0.1;

/// The bucket of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow(u8);

impl Flow {
    /// Returns the flow of a client and a method's weight. `client` is a hash of the client's API
    /// key or address. Weights from one power of two to below the next belong to one flow.
    pub fn new(client: u64, weight: u32) -> Flow {
        let weight_class = u64::from(weight.max(1).ilog2());
        // Fibonacci hashing: multiply by 2^64 divided by the golden ratio. The highest 7 bits
        // select one of the 128 buckets.
        let mixed = (client ^ weight_class).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Flow((mixed >> 57) as u8)
    }

    /// Returns the index of the flow in tables.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the flow at an index in tables.
    pub const fn from_index(index: usize) -> Flow {
        Flow((index % FLOWS) as u8)
    }
}

/// The permits of each flow. Call [`Shares::record_wait`] for a call without a permit. For each
/// call with a permit, call [`Shares::take_permit`], [`Shares::return_permit`] and
/// [`Shares::record_latency`]. While calls wait, call [`Shares::divide_permits`], then
/// [`Shares::count_spare`] and [`Shares::admits`].
#[derive(Debug)]
pub struct Shares {
    flows: [FlowUse; FLOWS],
    /// Start of the present period of [`RESERVED_FOR`].
    period_start: Duration,
    /// Number of permits that are divided among the flows.
    permits: u32,
    /// Number of flows that held or needed a permit in this period or the previous one.
    active_flows: u32,
}

/// The permits and the latency of one flow.
#[derive(Debug, Clone, Copy)]
struct FlowUse {
    /// Class of the flow's last call.
    class: Class,
    /// Number of permits that the flow holds now.
    held: u32,
    /// Maximum number of permits that the flow held or needed at a time in this period. A waiting
    /// call needs one permit more than the flow holds.
    peak: u32,
    /// The same maximum in the previous period.
    previous_peak: u32,
    /// Moving average of the time that the flow's calls held a permit; 0 while unknown.
    latency_secs: f32,
}

impl FlowUse {
    /// Returns the larger of the peaks of this period and the previous one.
    fn recent_peak(self) -> u32 {
        self.peak.max(self.previous_peak)
    }

    /// Returns the number of unused permits that are reserved for the flow.
    fn unused_reserved(self, equal_share: u32) -> u32 {
        self.recent_peak().min(equal_share).saturating_sub(self.held)
    }
}

impl Default for Shares {
    fn default() -> Shares {
        let unused_flow =
            FlowUse { class: Class::Low, held: 0, peak: 0, previous_peak: 0, latency_secs: 0.0 };
        Shares {
            flows: [unused_flow; FLOWS],
            period_start: Duration::ZERO,
            permits: 0,
            active_flows: 0,
        }
    }
}

impl Shares {
    /// Records that a call waits for a permit.
    pub fn record_wait(&mut self, class: Class, flow: Flow) {
        self.raise_peak(class, flow, self.held(flow) + 1);
    }

    /// Records that a call takes a permit.
    pub fn take_permit(&mut self, class: Class, flow: Flow) {
        self.flows[flow.index()].held += 1;
        self.raise_peak(class, flow, self.held(flow));
    }

    /// Raises the flow's peak of this period to at least this number of permits.
    fn raise_peak(&mut self, class: Class, flow: Flow, permits: u32) {
        let flow_use = &mut self.flows[flow.index()];
        self.active_flows += u32::from(flow_use.recent_peak() == 0);
        flow_use.class = class;
        flow_use.peak = flow_use.peak.max(permits);
    }

    /// Records that a call returns its permit.
    pub fn return_permit(&mut self, flow: Flow) {
        let flow_use = &mut self.flows[flow.index()];
        flow_use.held = flow_use.held.saturating_sub(1);
    }

    /// Records how long a call held its permit.
    pub fn record_latency(&mut self, flow: Flow, latency: Duration) {
        let flow_use = &mut self.flows[flow.index()];
        let seconds = latency.as_secs_f32();
        flow_use.latency_secs = if flow_use.latency_secs == 0.0 {
            seconds
        } else {
            flow_use.latency_secs + (seconds - flow_use.latency_secs) * NEWEST_WEIGHT
        };
    }

    /// Returns the average latency of the flow that holds most permits now; `None` if unknown.
    pub fn typical_latency(&self) -> Option<Duration> {
        let busiest = self.flows.iter().max_by_key(|flow_use| flow_use.held)?;
        (busiest.latency_secs > 0.0).then(|| Duration::from_secs_f32(busiest.latency_secs))
    }

    /// Returns the number of permits that a flow holds.
    pub fn held(&self, flow: Flow) -> u32 {
        self.flows[flow.index()].held
    }

    /// Sets the number of permits to divide among the flows that recently used some. Starts a new
    /// period if the present one has ended.
    pub fn divide_permits(&mut self, now: Duration, permits: u32) {
        if now.saturating_sub(self.period_start) >= RESERVED_FOR {
            self.period_start = now;
            for flow_use in &mut self.flows {
                (flow_use.peak, flow_use.previous_peak) = (flow_use.held, flow_use.peak);
            }
            let active = self.flows.iter().filter(|flow_use| flow_use.recent_peak() > 0);
            self.active_flows = active.count() as u32;
        }
        self.permits = permits;
    }

    /// Returns the maximum number of permits that are reserved for one flow.
    fn equal_share(&self) -> u32 {
        self.permits / self.active_flows.max(1)
    }

    /// Returns how many of the free permits are spare. A spare permit is not reserved for a flow of
    /// this class or a higher one.
    pub fn count_spare(&self, class: Class, free_permits: u32) -> u32 {
        let equal_share = self.equal_share();
        // A smaller class is a higher priority.
        let reserved = self.flows.iter().filter(|flow_use| flow_use.class <= class);
        let reserved: u32 = reserved.map(|flow_use| flow_use.unused_reserved(equal_share)).sum();
        free_permits.saturating_sub(reserved)
    }

    /// Returns true if a flow may take a free permit. `spare` is the result of
    /// [`Shares::count_spare`].
    pub fn admits(&self, flow: Flow, spare: u32) -> bool {
        spare > 0 || self.flows[flow.index()].unused_reserved(self.equal_share()) > 0
    }
}
