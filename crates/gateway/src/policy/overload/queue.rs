//! The waiting calls of one group on one thread: a bounded queue by class and flow, with a bounded
//! wait.
//!
//! Permits go to the best waiting class, but a worse class keeps a share of them, so that it is
//! never starved. Within a class the flow with the fewest calls in flight goes first, unless its
//! permits are reserved for others (`shares.rs`). If the queue is full, the flow with the most
//! waiting calls loses one.
//!
//! Within a flow the oldest call goes first while the queue is short-lived. After [`STANDING`] the
//! queue is an overload: the newest call goes first, and no call waits longer than that. In a queue
//! that never empties, first-in-first-out makes every call wait as long as the whole queue, and
//! clients have given up by then. This is adaptive LIFO with controlled delay, as at Facebook
//! (Maurer, "Fail at Scale", ACM Queue 2015) after CoDel (Nichols and Jacobson, "Controlling Queue
//! Delay", ACM Queue 2012; RFC 8289).
//!
//! Neither rule applies while the upstreams may have capacity beyond the limit: the queue then only
//! waits for the limit to rise. Nothing expires while upstreams stall and nothing is served: a
//! queue that does not move says nothing about capacity.

use std::time::Duration;

use crate::policy::overload::Class;
use crate::policy::overload::shares::{FLOWS, Flow, Shares};

#[cfg(test)]
mod tests;

/// Time without an empty queue after which it counts as standing, and then also the longest wait in
/// it. Twice CoDel's interval, because upstreams and machines pause for a tenth of a second now and
/// then without being overloaded.
pub const STANDING: Duration = Duration::from_millis(200);

const CLASSES: usize = Class::ALL.len();

/// Index of no entry.
const NONE: u32 = u32::MAX;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueSettings {
    /// Most calls that may wait.
    pub calls_max: usize,
    /// Longest wait.
    pub wait_max: Duration,
    /// Share of permits that a class other than the best keeps while it waits.
    pub share_kept: f64,
}

/// Position of an entry. Valid until the entry is taken or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

/// Waiting calls. Order of calls: [`Queue::push`]; for each free permit [`Queue::expired`] until it
/// returns `None`, then [`Queue::take`]; [`Queue::remove`] for a cancelled call.
#[derive(Debug)]
pub struct Queue<T> {
    settings: QueueSettings,
    entries: Vec<Entry<T>>,
    free: u32,
    /// By class and flow.
    lines: Box<[[Line; FLOWS]; CLASSES]>,
    /// Bit set of the waiting flows of each class.
    waiting: [u128; CLASSES],
    /// Permits owed to each class.
    owed: [f64; CLASSES],
    len: usize,
    /// Time when a permit was last handed out.
    taken: Duration,
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    class: Class,
    flow: Flow,
    since: Duration,
    older: u32,
    newer: u32,
}

/// The entries of one flow of a class, linked by age.
#[derive(Debug, Clone, Copy)]
struct Line {
    oldest: u32,
    newest: u32,
    len: u32,
    /// Since when it has not been empty, or has been served after a standstill.
    busy_since: Duration,
}

/// Result of a push.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// The call waits.
    Waits(Key),
    /// The call waits in place of this one, which had waited longest in the worst class.
    Instead(Key, (T, Class)),
    /// All waiting calls have a better class.
    Full(T),
}

impl<T> Queue<T> {
    /// Creates an empty queue.
    pub fn new(settings: QueueSettings) -> Queue<T> {
        let line = Line { oldest: NONE, newest: NONE, len: 0, busy_since: Duration::ZERO };
        Queue {
            settings,
            entries: Vec::new(),
            free: NONE,
            lines: Box::new([[line; FLOWS]; CLASSES]),
            waiting: [0; CLASSES],
            owed: [0.0; CLASSES],
            len: 0,
            taken: Duration::ZERO,
        }
    }

    /// Returns the number of waiting calls.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no call waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a call. If the queue is full, it displaces one of a worse class or of a flow with more
    /// waiting calls.
    pub fn push(&mut self, now: Duration, class: Class, flow: Flow, item: T) -> Pushed<T> {
        if self.len < self.settings.calls_max {
            return Pushed::Waits(self.insert(now, class, flow, item));
        }
        let worst = Class::ALL.into_iter().rev().find(|own| self.waiting[own.index()] != 0);
        match worst {
            Some(worst) if worst >= class => {
                let lines = &self.lines[worst.index()];
                let longest = flows(self.waiting[worst.index()]).max_by_key(|own| lines[*own].len);
                let longest = longest.expect("a class that waits has a flow that waits");
                let shed = self.remove(Key(lines[longest].oldest));
                let shed = shed.expect("the oldest of a line is an entry");
                Pushed::Instead(self.insert(now, class, flow, item), (shed, worst))
            }
            _ => Pushed::Full(item),
        }
    }

    /// Removes a waiting call.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.0 as usize)?;
        let item = entry.item.take()?;
        let (class, flow) = (entry.class.index(), entry.flow.index());
        let (older, newer) = (entry.older, entry.newer);
        entry.older = self.free;
        self.free = key.0;
        self.len -= 1;
        let line = &mut self.lines[class][flow];
        line.len -= 1;
        match older {
            NONE => line.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => line.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        if line.oldest == NONE {
            self.waiting[class] &= !(1 << flow);
        }
        if self.waiting[class] == 0 {
            self.owed[class] = 0.0;
        }
        Some(item)
    }

    /// Returns the call for one of the `free` permits, and how long it has waited. `None` if the
    /// permits are reserved for others. `overloaded` is true if more permits would not help: only
    /// then is a standing queue served newest first.
    pub fn take(
        &mut self,
        now: Duration,
        overloaded: bool,
        shares: &Shares,
        free: u32,
    ) -> Option<(T, Class, Duration)> {
        let (class, flow) = self.next(shares, free)?;
        let line = &self.lines[class.index()][flow];
        let standing = overloaded && line.is_standing(now);
        let key = Key(if standing { line.newest } else { line.oldest });
        let since = self.entries[key.0 as usize].since;
        let item = self.remove(key).expect("the ends of a line are entries");
        self.note_served(now);
        Some((item, class, now.saturating_sub(since)))
    }

    /// Returns a call that has waited too long. Call it when a permit is free, before
    /// [`Queue::take`], so that nothing expires while nothing is served.
    pub fn expired(&mut self, now: Duration, overloaded: bool) -> Option<(T, Class)> {
        self.note_served(now);
        for class in Class::ALL {
            for flow in flows(self.waiting[class.index()]) {
                let line = &self.lines[class.index()][flow];
                let wait_max = self.settings.wait_max;
                let standing = overloaded && line.is_standing(now);
                let wait_max = if standing { wait_max.min(STANDING) } else { wait_max };
                let oldest = line.oldest;
                if now.saturating_sub(self.entries[oldest as usize].since) > wait_max {
                    return self.remove(Key(oldest)).map(|item| (item, class));
                }
            }
        }
        None
    }

    /// Records that permits are available again: after a standstill the age of every flow queue
    /// starts again.
    fn note_served(&mut self, now: Duration) {
        if now.saturating_sub(self.taken) > STANDING {
            self.lines.iter_mut().flatten().for_each(|line| line.busy_since = now);
        }
        self.taken = now;
    }

    /// Returns the best waiting class that may take a permit, unless a worse one is owed its share,
    /// and the flow of it that goes first.
    fn next(&mut self, shares: &Shares, free: u32) -> Option<(Class, usize)> {
        let (mut best, mut next) = (None, None);
        for class in Class::ALL {
            let Some(flow) = self.first(class, shares, free) else { continue };
            if best.is_none() {
                (best, next) = (Some(class), Some((class, flow)));
                continue;
            }
            let owed = &mut self.owed[class.index()];
            *owed += self.settings.share_kept;
            // A tenth added ten times is a little less than one.
            if *owed >= 1.0 - 1e-6 && next.map(|(class, _)| class) == best {
                *owed -= 1.0;
                next = Some((class, flow));
            }
        }
        next
    }

    /// Returns the flow of a class that goes first: the one with the fewest calls in flight, then
    /// the one that has waited longest.
    fn first(&self, class: Class, shares: &Shares, free: u32) -> Option<usize> {
        if self.waiting[class.index()] == 0 {
            return None;
        }
        let spare = shares.spare(class, free);
        let waiting = flows(self.waiting[class.index()]);
        let admitted = waiting.filter(|flow| shares.admits(Flow::at(*flow), spare));
        admitted.min_by_key(|flow| {
            let oldest = self.lines[class.index()][*flow].oldest;
            (shares.held(Flow::at(*flow)), self.entries[oldest as usize].since)
        })
    }

    fn insert(&mut self, now: Duration, class: Class, flow: Flow, item: T) -> Key {
        let at = self.free;
        self.waiting[class.index()] |= 1 << flow.index();
        let line = &mut self.lines[class.index()][flow.index()];
        let (older, newer) = (line.newest, NONE);
        let entry = Entry { item: Some(item), class, flow, since: now, older, newer };
        let at = if at == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            self.free = self.entries[at as usize].older;
            self.entries[at as usize] = entry;
            at
        };
        match line.newest {
            NONE => {
                line.oldest = at;
                line.busy_since = now;
            }
            newest => self.entries[newest as usize].newer = at,
        }
        line.newest = at;
        line.len += 1;
        self.len += 1;
        Key(at)
    }
}

impl Line {
    fn is_standing(&self, now: Duration) -> bool {
        now.saturating_sub(self.busy_since) > STANDING
    }
}

/// Returns the indices of the set bits.
fn flows(mut bits: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (at < u128::BITS).then_some(at as usize)
    })
}
