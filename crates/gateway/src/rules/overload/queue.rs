//! The calls of one group on one thread that wait for a place: bounded, by class, each for a bounded
//! time.
//!
//! Places go to the best class that waits, but a worse one that waits keeps a share of them, so that
//! it is never shut out for good. Within a class the oldest goes first while the queue is a passing
//! one. Once it has stood for [`STANDING`] it is an overload, and then the newest goes first and
//! nobody waits longer than that: in a line that never ends, whoever is served in turn has waited as
//! long as the whole line, and clients have given up by then. That is adaptive LIFO with controlled
//! delay as Facebook runs them (Maurer, "Fail at Scale", ACM Queue 2015) after CoDel (Nichols and
//! Jacobson, "Controlling Queue Delay", ACM Queue 2012; RFC 8289).
//!
//! Neither rule holds while the nodes may have room for more calls than the limit allows: the queue
//! then only waits for the limit to rise. And while nothing is served at all, because the nodes
//! stall, nothing is cut short: a line that stands still says nothing about what nodes can carry.

use std::time::Duration;

use super::Class;

#[cfg(test)]
mod tests;

/// A queue that has not been empty for so long is no passing one, and this is then also the longest
/// that a call waits in it: twice CoDel's interval, because nodes and machines halt for a tenth of a second
/// now and then without being overloaded.
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
    lines: [Line; CLASSES],
    len: usize,
    /// When a place was last given.
    taken: Duration,
}

#[derive(Debug)]
struct Entry<T> {
    item: Option<T>,
    class: Class,
    since: Duration,
    older: u32,
    newer: u32,
}

/// The entries of one class, linked by age.
#[derive(Debug, Clone, Copy)]
struct Line {
    oldest: u32,
    newest: u32,
    /// Since when it has not been empty, or has been served after a standstill.
    busy_since: Duration,
    /// Places that it is owed.
    owed: f64,
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
        let busy_since = Duration::ZERO;
        let line = Line { oldest: NONE, newest: NONE, busy_since, owed: 0.0 };
        Queue {
            settings,
            entries: Vec::new(),
            free: NONE,
            lines: [line; CLASSES],
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

    /// Lets a call wait, at the cost of a worse or older one where there is no room.
    pub fn push(&mut self, now: Duration, class: Class, item: T) -> Pushed<T> {
        if self.len < self.settings.calls_max {
            return Pushed::Waits(self.insert(now, class, item));
        }
        let worst = Class::ALL.into_iter().rev().find(|own| self.lines[own.index()].oldest != NONE);
        match worst {
            Some(worst) if worst >= class => {
                let oldest = Key(self.lines[worst.index()].oldest);
                let shed = self.remove(oldest).expect("the oldest of a line is an entry");
                Pushed::Instead(self.insert(now, class, item), (shed, worst))
            }
            _ => Pushed::Full(item),
        }
    }

    /// Takes out one that waits.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.0 as usize)?;
        let item = entry.item.take()?;
        let (class, older, newer) = (entry.class, entry.older, entry.newer);
        entry.older = self.free;
        self.free = key.0;
        self.len -= 1;
        let line = &mut self.lines[class.index()];
        match older {
            NONE => line.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => line.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        if line.oldest == NONE {
            line.owed = 0.0;
        }
        Some(item)
    }

    /// The call that gets a place, with how long it has waited. `overloaded` is true if more places
    /// would not help: only then is a standing queue served newest first.
    pub fn take(&mut self, now: Duration, overloaded: bool) -> Option<(T, Class, Duration)> {
        let class = self.next_class()?;
        let standing = overloaded && self.is_standing(class, now);
        let line = &self.lines[class.index()];
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
            let oldest = self.lines[class.index()].oldest;
            if oldest == NONE {
                continue;
            }
            let standing = overloaded && self.is_standing(class, now);
            let wait_max = self.settings.wait_max;
            let wait_max = if standing { wait_max.min(STANDING) } else { wait_max };
            if now.saturating_sub(self.entries[oldest as usize].since) > wait_max {
                return self.remove(Key(oldest)).map(|item| (item, class));
            }
        }
        None
    }

    fn is_standing(&self, class: Class, now: Duration) -> bool {
        now.saturating_sub(self.lines[class.index()].busy_since) > STANDING
    }

    /// Places are given again: a line that stood still for want of any starts anew.
    fn note_served(&mut self, now: Duration) {
        if now.saturating_sub(self.taken) > STANDING {
            self.lines.iter_mut().for_each(|line| line.busy_since = now);
        }
        self.taken = now;
    }

    /// The best class that waits, unless a worse one has waited for its share.
    fn next_class(&mut self) -> Option<Class> {
        let waits = |line: &Line| line.oldest != NONE;
        let best = Class::ALL.into_iter().find(|own| waits(&self.lines[own.index()]))?;
        let mut next = best;
        for class in Class::ALL.into_iter().filter(|own| *own > best) {
            let line = &mut self.lines[class.index()];
            if !waits(line) {
                continue;
            }
            line.owed += self.settings.share_kept;
            // A tenth ten times is a little less than one.
            if line.owed >= 1.0 - 1e-6 && next == best {
                line.owed -= 1.0;
                next = class;
            }
        }
        Some(next)
    }

    fn insert(&mut self, now: Duration, class: Class, item: T) -> Key {
        let at = self.free;
        let line = &mut self.lines[class.index()];
        let entry = Entry { item: Some(item), class, since: now, older: line.newest, newer: NONE };
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
        self.len += 1;
        Key(at)
    }
}
