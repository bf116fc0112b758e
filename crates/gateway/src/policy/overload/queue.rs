//! The calls of one group that wait on one thread: a bounded queue by class and flow, with a
//! bounded waiting time. A *class* is the priority of a call. A *flow* is the calls of one client
//! to methods of similar weight (`shares.rs`). A *permit* allows one call to be in flight.
//!
//! Permits go to the highest waiting class. Each lower class that waits keeps a share of the
//! permits, so that it is never starved. Within a class, the flow with the fewest calls in flight
//! goes first, but some permits may be reserved for other flows (`shares.rs`).
//!
//! If the queue is full, a new call displaces a call of the lowest waiting class: the oldest call
//! of the flow with the most waiting calls. If the class of the new call is even lower, the new
//! call is rejected.
//!
//! Within a flow the oldest call goes first while the queue is short-lived. A queue that lasts
//! longer than [`STANDING_AFTER`] shows an overload. The newest call then goes first, and no call
//! waits longer than [`STANDING_AFTER`]. If a queue that never empties were served oldest first,
//! every call would wait for the whole queue, and the client would have given up by then. This is
//! adaptive LIFO with controlled delay, as at Facebook (Maurer, "Fail at Scale", ACM Queue 2015)
//! after CoDel (Nichols and Jacobson, "Controlling Queue Delay", ACM Queue 2012; RFC 8289).
//!
//! Both rules (newest first, and the short wait) apply only to overloaded upstreams. If the
//! upstreams may have capacity beyond the limit, waiting calls only need the limit to rise. Waiting
//! calls do not expire while upstreams stall, because a queue that is not served says nothing about
//! capacity.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::policy::overload::Class;
use crate::policy::overload::shares::{FLOWS, Flow, Shares};

#[cfg(test)]
mod tests;

/// A queue that has not been empty for this time counts as *standing*. This is also the longest
/// wait in a standing queue of overloaded upstreams. It is twice CoDel's interval of 100 ms,
/// because upstreams and machines sometimes pause for a tenth of a second without an overload.
pub const STANDING_AFTER: Duration = Duration::from_millis(200);

const CLASSES: usize = Class::ALL.len();

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueSettings {
    /// Maximum number of waiting calls.
    pub calls_max: usize,
    /// Longest wait of a call in a queue that is not standing.
    pub wait_max: Duration,
    /// Share of permits, from 0 to 1, that a lower class gets while its calls and calls of a higher
    /// class wait.
    pub share_kept: f64,
}

/// Identifies a waiting call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueKey {
    class: Class,
    flow: Flow,
    /// Number of the call, which rises with each pushed call.
    number: u64,
}

/// Waiting calls. Call [`Queue::push`] for a new call and [`Queue::remove`] for a cancelled one.
/// For each free permit, call [`Queue::take_expired`] until it returns `None`, then
/// [`Queue::take`].
#[derive(Debug)]
pub struct Queue<T> {
    settings: QueueSettings,
    /// Queues by class and flow.
    queues: Box<[[FlowQueue<T>; FLOWS]; CLASSES]>,
    /// Bit set of the flows of each class that have waiting calls.
    waiting_flows: [u128; CLASSES],
    /// Number of permits owed to each class. If a class and a higher one wait when a permit is
    /// handed out, the number of the lower class grows by [`QueueSettings::share_kept`].
    owed: [f64; CLASSES],
    /// Number of waiting calls.
    pub len: usize,
    /// [`QueueKey::number`] of the next call.
    next_number: u64,
    /// Time when a permit was last handed out.
    last_served: Duration,
}

/// The waiting calls of one flow of a class.
#[derive(Debug)]
struct FlowQueue<T> {
    /// The calls by [`QueueKey::number`], the oldest first.
    calls: BTreeMap<u64, WaitingCall<T>>,
    /// Time since which the flow's queue has not been empty. After a *standstill*, which is more
    /// than [`STANDING_AFTER`] without a free permit, this time restarts at the present.
    busy_since: Duration,
}

/// A waiting call, and the time when it was queued.
#[derive(Debug)]
struct WaitingCall<T> {
    item: T,
    queued_at: Duration,
}

/// Result of a push.
#[derive(Debug, PartialEq, Eq)]
pub enum PushResult<T> {
    /// The call waits.
    Queued(QueueKey),
    /// The call waits. It displaced the call with this item and class.
    Replaced(QueueKey, (T, Class)),
    /// The queue is full, and all waiting calls have a higher class. Returns the item.
    Full(T),
}

impl<T> Queue<T> {
    /// Creates an empty queue.
    pub fn new(settings: QueueSettings) -> Queue<T> {
        let queue = |_| FlowQueue { calls: BTreeMap::new(), busy_since: Duration::ZERO };
        Queue {
            settings,
            queues: Box::new(std::array::from_fn(|_| std::array::from_fn(queue))),
            waiting_flows: [0; CLASSES],
            owed: [0.0; CLASSES],
            len: 0,
            next_number: 0,
            last_served: Duration::ZERO,
        }
    }

    /// Adds a call. If the queue is full, the new call displaces a call of the lowest waiting
    /// class. If the class of the new call is even lower, the new call is rejected.
    pub fn push(&mut self, now: Duration, class: Class, flow: Flow, item: T) -> PushResult<T> {
        if self.len < self.settings.calls_max {
            return PushResult::Queued(self.insert(now, class, flow, item));
        }
        let lowest =
            Class::ALL.into_iter().rev().find(|waiting| self.waiting_flows[waiting.index()] != 0);
        match lowest {
            // A greater class is a lower priority.
            Some(lowest) if lowest >= class => {
                let queues = &self.queues[lowest.index()];
                let waiting = indices_of_set_bits(self.waiting_flows[lowest.index()]);
                let busiest = waiting.max_by_key(|flow| queues[*flow].calls.len());
                let busiest = busiest.expect("a class that waits has a flow that waits");
                let (number, _) = queues[busiest].oldest().expect("the flow has a waiting call");
                let flow_of_shed = Flow::from_index(busiest);
                let shed = self.remove(QueueKey { class: lowest, flow: flow_of_shed, number });
                let shed = shed.expect("the oldest call waits");
                PushResult::Replaced(self.insert(now, class, flow, item), (shed, lowest))
            }
            _ => PushResult::Full(item),
        }
    }

    /// Removes a waiting call and returns its item; `None` if the call waits no longer.
    pub fn remove(&mut self, key: QueueKey) -> Option<T> {
        let (class, flow) = (key.class.index(), key.flow.index());
        let queue = &mut self.queues[class][flow];
        let call = queue.calls.remove(&key.number)?;
        self.len -= 1;
        if queue.calls.is_empty() {
            self.waiting_flows[class] &= !(1 << flow);
        }
        if self.waiting_flows[class] == 0 {
            self.owed[class] = 0.0;
        }
        Some(call.item)
    }

    /// Removes the call that gets one of the `free_permits`. Returns its item, its class and its
    /// waiting time. Returns `None` if no call waits, or if the permits are reserved for other
    /// flows. `overloaded` is true if more permits would not raise the throughput. Only then is a
    /// standing queue served newest first.
    pub fn take(
        &mut self,
        now: Duration,
        overloaded: bool,
        shares: &Shares,
        free_permits: u32,
    ) -> Option<(T, Class, Duration)> {
        let (class, flow) = self.find_next_flow(shares, free_permits)?;
        let queue = &self.queues[class.index()][flow];
        let is_standing = overloaded && queue.is_standing(now);
        let (number, queued_at) = if is_standing { queue.newest()? } else { queue.oldest()? };
        let item = self.remove(QueueKey { class, flow: Flow::from_index(flow), number })?;
        self.record_served(now);
        Some((item, class, now.saturating_sub(queued_at)))
    }

    /// Removes a call that has waited too long. Returns its item and its class; `None` if there is
    /// no such call. Call this function only when a permit is free, before [`Queue::take`]. So
    /// calls do not expire while no permit is free.
    pub fn take_expired(&mut self, now: Duration, overloaded: bool) -> Option<(T, Class)> {
        self.record_served(now);
        for class in Class::ALL {
            for flow in indices_of_set_bits(self.waiting_flows[class.index()]) {
                let queue = &self.queues[class.index()][flow];
                let wait_max = self.settings.wait_max;
                let is_standing = overloaded && queue.is_standing(now);
                let wait_max = if is_standing { wait_max.min(STANDING_AFTER) } else { wait_max };
                let Some((number, queued_at)) = queue.oldest() else { continue };
                if now.saturating_sub(queued_at) > wait_max {
                    let key = QueueKey { class, flow: Flow::from_index(flow), number };
                    return self.remove(key).map(|item| (item, class));
                }
            }
        }
        None
    }

    /// Records that a permit is available. After a standstill, the age of every flow's queue
    /// restarts.
    fn record_served(&mut self, now: Duration) {
        if now.saturating_sub(self.last_served) > STANDING_AFTER {
            self.queues.iter_mut().flatten().for_each(|queue| queue.busy_since = now);
        }
        self.last_served = now;
    }

    /// Returns the class that gets the next permit, and the index of the flow that goes first. The
    /// highest waiting class gets the permit, except if a lower class is owed a whole permit. Call
    /// this function once per permit, because it updates the numbers of owed permits.
    fn find_next_flow(&mut self, shares: &Shares, free_permits: u32) -> Option<(Class, usize)> {
        let (mut highest, mut next) = (None, None);
        for class in Class::ALL {
            let Some(flow) = self.find_next_flow_of_class(class, shares, free_permits) else {
                continue;
            };
            if highest.is_none() {
                (highest, next) = (Some(class), Some((class, flow)));
                continue;
            }
            let owed = &mut self.owed[class.index()];
            *owed += self.settings.share_kept;
            // At most one lower class gets this permit. The tolerance covers rounding: a tenth
            // added ten times is a little less than one.
            if *owed >= 1.0 - 1e-6 && next.map(|(class, _)| class) == highest {
                *owed -= 1.0;
                next = Some((class, flow));
            }
        }
        next
    }

    /// Returns the index of the flow of a class that goes first. This is the flow with the fewest
    /// calls in flight. Of several such flows, the one whose oldest call has waited longest goes
    /// first. Returns `None` if no flow of the class waits, or if all free permits are reserved for
    /// other flows.
    fn find_next_flow_of_class(
        &self,
        class: Class,
        shares: &Shares,
        free_permits: u32,
    ) -> Option<usize> {
        if self.waiting_flows[class.index()] == 0 {
            return None;
        }
        let spare = shares.count_spare(class, free_permits);
        let waiting = indices_of_set_bits(self.waiting_flows[class.index()]);
        let admitted = waiting.filter(|flow| shares.admits(Flow::from_index(*flow), spare));
        admitted.min_by_key(|flow| {
            let oldest = self.queues[class.index()][*flow].oldest();
            (shares.held(Flow::from_index(*flow)), oldest.map(|(_, queued_at)| queued_at))
        })
    }

    fn insert(&mut self, now: Duration, class: Class, flow: Flow, item: T) -> QueueKey {
        let key = QueueKey { class, flow, number: self.next_number };
        self.next_number += 1;
        self.len += 1;
        self.waiting_flows[class.index()] |= 1 << flow.index();
        let queue = &mut self.queues[class.index()][flow.index()];
        if queue.calls.is_empty() {
            queue.busy_since = now;
        }
        queue.calls.insert(key.number, WaitingCall { item, queued_at: now });
        key
    }
}

impl<T> FlowQueue<T> {
    /// Returns the number of the oldest call, and the time when it was queued.
    fn oldest(&self) -> Option<(u64, Duration)> {
        self.calls.first_key_value().map(|(number, call)| (*number, call.queued_at))
    }

    /// Returns the number of the newest call, and the time when it was queued.
    fn newest(&self) -> Option<(u64, Duration)> {
        self.calls.last_key_value().map(|(number, call)| (*number, call.queued_at))
    }

    /// Returns true if the queue has not been empty for longer than [`STANDING_AFTER`].
    fn is_standing(&self, now: Duration) -> bool {
        now.saturating_sub(self.busy_since) > STANDING_AFTER
    }
}

/// Returns the indices of the set bits.
fn indices_of_set_bits(mut bits: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (bit < u128::BITS).then_some(bit as usize)
    })
}
