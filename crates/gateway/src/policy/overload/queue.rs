//! The calls of one group on one thread that wait for a place: bounded, by class and flow, each for
//! a bounded time.
//!
//! Places go to the best class that waits, but a worse one that waits keeps a share of them, so
//! that it is never shut out for good. Within a class the flow with the fewest calls in flight goes
//! first, unless its places are kept for others (`shares.rs`). Where the queue is full, the flow
//! with the most waiting calls loses one.
//!
//! Within a flow the oldest goes first while its line is a passing
//! one. Once it has stood for [`STANDING`] it is an overload, and then the newest goes first and
//! nobody waits longer than that: in a line that never ends, whoever is served in turn has waited
//! as long as the whole line, and clients have given up by then. That is adaptive LIFO with
//! controlled delay as Facebook runs them (Maurer, "Fail at Scale", ACM Queue 2015) after CoDel
//! (Nichols and Jacobson, "Controlling Queue Delay", ACM Queue 2012; RFC 8289).
//!
//! Neither rule holds while the upstreams may have room for more calls than the limit allows: the
//! queue then only waits for the limit to rise. And while nothing is served at all, because the
//! upstreams stall, nothing is cut short: a line that stands still says nothing about what
//! upstreams can carry.

use std::time::Duration;

use crate::policy::overload::Class;
use crate::policy::overload::shares::{FLOWS, Flow, Shares};

#[cfg(test)]
mod tests;

/// A queue that has not been empty for so long is no passing one, and this is then also the longest
/// that a call waits in it: twice CoDel's interval, because upstreams and machines halt for a tenth
/// of a second now and then without being overloaded.
pub const STANDING: Duration = Duration::from_millis(200);

const CLASSES: usize = Class::ALL.len();

/// No entry.
const NONE: u32 = u32::MAX;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueueSettings {
    /// Calls that may wait.
    pub calls_max: usize,
    /// How long one may wait.
    pub wait_max: Duration,
    /// The share of places that a class which is not the best keeps while it waits.
    pub share_kept: f64,
}

/// Where an entry stands. Valid until it is taken or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

/// Calls that wait. Order of calls: [`Queue::push`]; for each place that becomes free
/// [`Queue::expired`] until it gives none, then [`Queue::take`]; [`Queue::remove`] for who leaves.
#[derive(Debug)]
pub struct Queue<T> {
    settings: QueueSettings,
    entries: Vec<Entry<T>>,
    free: u32,
    /// By class and flow.
    lines: Box<[[Line; FLOWS]; CLASSES]>,
    /// A bit for each flow of a class that waits.
    waiting: [u128; CLASSES],
    /// Places that classes are owed.
    owed: [f64; CLASSES],
    len: usize,
    /// When a place was last given.
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

/// What came of pushing.
#[derive(Debug, PartialEq, Eq)]
pub enum Pushed<T> {
    /// It waits.
    Waits(Key),
    /// It waits in the place of this one, which had waited longest of the worst class.
    Instead(Key, (T, Class)),
    /// All that wait are of a better class.
    Full(T),
}

impl<T> Queue<T> {
    /// An empty one.
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

    /// Calls that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Lets a call wait, at the cost of one of a worse class or a longer line where there is no
    /// room.
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

    /// Takes out one that waits.
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

    /// The call that gets one of the places that are free, with how long it has waited; none if
    /// those are kept for others. `overloaded` is true if more places would not help: only then is
    /// a standing queue served newest first.
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

    /// One that has waited longer than it should; to be called when a place is free, before
    /// [`Queue::take`], so that none is cut short while nothing is served.
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

    /// Places are given again: a line that stood still for want of any starts anew.
    fn note_served(&mut self, now: Duration) {
        if now.saturating_sub(self.taken) > STANDING {
            self.lines.iter_mut().flatten().for_each(|line| line.busy_since = now);
        }
        self.taken = now;
    }

    /// The best class that waits and may take a place, unless a worse one has waited for its share;
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
            // A tenth ten times is a little less than one.
            if *owed >= 1.0 - 1e-6 && next.map(|(class, _)| class) == best {
                *owed -= 1.0;
                next = Some((class, flow));
            }
        }
        next
    }

    /// The flow of a class that goes first: the one with the fewest calls in flight, of equals the
    /// one that has waited longest.
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

/// The places of the bits that are set.
fn flows(mut bits: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (at < u128::BITS).then_some(at as usize)
    })
}
