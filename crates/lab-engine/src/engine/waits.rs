//! Who waits until when: lines of workers in which everybody waits equally long, so that the first
//! is always the next to be due.
//!
//! Entering and leaving are constant in time, and memory is fixed by the number of workers, whatever
//! the rate and the timeout are. A worker stands in at most one line.

/// No worker.
const NOBODY: u32 = u32::MAX;
/// In no line.
const NOWHERE: u16 = u16::MAX;

#[derive(Clone, Copy, Debug)]
struct Place {
    line: u16,
    before: u32,
    after: u32,
    until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
    wait: u64,
}

/// All lines of a thread. Times are nanoseconds since the start of the run.
#[derive(Debug)]
pub(crate) struct Waits {
    places: Vec<Place>,
    lines: Vec<Line>,
}

impl Waits {
    /// For so many workers, with one line for each of `waits`, the time that is waited in it.
    pub(crate) fn new(workers: usize, waits: &[u64]) -> Waits {
        let nowhere = Place { line: NOWHERE, before: NOBODY, after: NOBODY, until: 0 };
        let line = |&wait: &u64| Line { first: NOBODY, last: NOBODY, wait };
        Waits { places: vec![nowhere; workers], lines: waits.iter().map(line).collect() }
    }

    /// Puts a worker at the end of a line; `now` must not go back from call to call.
    pub(crate) fn enter(&mut self, line: usize, worker: u32, now: u64) {
        self.leave(worker);
        let Line { last, wait, .. } = self.lines[line];
        self.places[worker as usize] = Place {
            line: line as u16,
            before: last,
            after: NOBODY,
            until: now.saturating_add(wait),
        };
        if last == NOBODY {
            self.lines[line].first = worker;
        } else {
            self.places[last as usize].after = worker;
        }
        self.lines[line].last = worker;
    }

    /// Takes a worker out of its line, if it stands in one.
    pub(crate) fn leave(&mut self, worker: u32) {
        let Place { line, before, after, .. } = self.places[worker as usize];
        if line == NOWHERE {
            return;
        }
        let line = &mut self.lines[usize::from(line)];
        if before == NOBODY {
            line.first = after;
        } else {
            self.places[before as usize].after = after;
        }
        if after == NOBODY {
            line.last = before;
        } else {
            self.places[after as usize].before = before;
        }
        self.places[worker as usize].line = NOWHERE;
    }

    /// Takes out the first of a line if its time has come, and tells when that was.
    pub(crate) fn due(&mut self, line: usize, now: u64) -> Option<(u32, u64)> {
        let until = self.until(line)?;
        let first = self.lines[line].first;
        (until <= now).then(|| {
            self.leave(first);
            (first, until)
        })
    }

    /// Whether a worker stands in a line.
    pub(crate) fn waits(&self, worker: u32) -> bool {
        self.places[worker as usize].line != NOWHERE
    }

    /// When the first of a line is due.
    pub(crate) fn until(&self, line: usize) -> Option<u64> {
        let first = self.lines[line].first;
        (first != NOBODY).then(|| self.places[first as usize].until)
    }
}

#[cfg(test)]
mod tests;
