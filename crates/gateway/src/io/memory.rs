//! The budget of memory for all connections together: who holds how many bytes, and the connections
//! that are closed when too many are held.
//!
//! A buffer of at most [`FREE_BYTES`] is not counted, so that small calls cost nothing. How the
//! budget is shared is decided in `policy/memory.rs`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::policy::memory;
use crate::policy::memory::{HeldBytes, Purpose, Slow};

#[cfg(test)]
mod tests;

/// Buffers of at most this size are not counted.
pub(crate) const FREE_BYTES: usize = 4 * 1024;
/// The budget on the smallest machine where none is configured.
const USUAL_MAX_MIN: usize = 16 << 20;
/// When a client that was refused for want of memory may come again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A connection that holds bytes for less than this is not closed.
const AGE_MIN: Duration = Duration::from_millis(100);
/// How often connections are closed while too many bytes are held.
pub(crate) const RELIEF_EVERY: Duration = Duration::from_millis(20);

/// The budget of one process.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    max: AtomicUsize,
    held: [AtomicUsize; Purpose::ALL.len()],
    refused: [AtomicU64; Purpose::ALL.len()],
    closed: AtomicU64,
    /// Notified when closing connections has to begin.
    exceeded: Notify,
}

/// There is no room for more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the budget of memory is used up")]
pub(crate) struct Full;

impl Budget {
    /// Sets the most bytes that may be held from here on.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn held(&self) -> HeldBytes {
        std::array::from_fn(|at| self.held[at].load(Ordering::Relaxed))
    }

    /// Refusals for want of memory since the start.
    pub(crate) fn refused(&self, purpose: Purpose) -> u64 {
        self.refused[purpose.index()].load(Ordering::Relaxed)
    }

    /// Connections that were closed for want of memory since the start.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns true if so many more bytes can be held now.
    pub(crate) fn has_room(&self, purpose: Purpose, bytes: usize) -> bool {
        let mut held = self.held();
        held[purpose.index()] += bytes;
        bytes <= FREE_BYTES || memory::is_within(&held, purpose, self.max())
    }

    pub(crate) fn count_refusal(&self, purpose: Purpose) {
        self.refused[purpose.index()].fetch_add(1, Ordering::Relaxed);
        self.exceeded.notify_waiters();
    }

    /// Bytes to free now.
    pub(crate) fn excess(&self) -> usize {
        memory::excess(&self.held(), self.max())
    }

    /// Waits until bytes have to be freed.
    pub(crate) async fn exceeded(&self) {
        loop {
            let exceeded = self.exceeded.notified();
            if self.excess() > 0 {
                return;
            }
            exceeded.await;
        }
    }

    fn take(&self, purpose: Purpose, bytes: usize) -> Result<(), Full> {
        self.held[purpose.index()].fetch_add(bytes, Ordering::Relaxed);
        if !memory::is_within(&self.held(), purpose, self.max()) {
            self.give(purpose, bytes);
            self.count_refusal(purpose);
            return Err(Full);
        }
        if self.excess() > 0 {
            self.exceeded.notify_waiters();
        }
        Ok(())
    }

    fn give(&self, purpose: Purpose, bytes: usize) {
        self.held[purpose.index()].fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Counted bytes of one buffer or queue; dropped with it.
#[derive(Debug)]
pub(crate) struct Hold {
    budget: Arc<Budget>,
    purpose: Purpose,
    bytes: usize,
    /// The client connection that holds them, and the entry in its list.
    place: Option<(Rc<Account>, Option<usize>)>,
}

impl Hold {
    /// Counts nothing yet, for no client connection.
    pub(crate) fn new(budget: &Arc<Budget>, purpose: Purpose) -> Hold {
        Hold { budget: Arc::clone(budget), purpose, bytes: 0, place: None }
    }

    /// Counts by a budget of its own, for what a constant bounds already.
    pub(crate) fn apart() -> Hold {
        let budget = Arc::<Budget>::default();
        budget.set_max(usize::MAX);
        Hold::new(&budget, Purpose::Response)
    }

    /// Counts nothing yet, for a client connection, which may be closed while it waits for its
    /// client.
    pub(crate) fn of(budget: &Arc<Budget>, purpose: Purpose, account: &Rc<Account>) -> Hold {
        let mut hold = Hold::new(budget, purpose);
        hold.place = Some((Rc::clone(account), None));
        hold
    }

    /// Counts so many bytes in place of those before.
    ///
    /// # Errors
    /// There is no room; what was counted before still is.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Full> {
        let bytes = if bytes <= FREE_BYTES { 0 } else { bytes };
        if bytes == self.bytes {
            return Ok(());
        }
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            if let Some((account, _)) = &self.place {
                let held = account.bytes();
                // One buffer may be larger, so that the largest response can be sent.
                let others = held - self.bytes;
                if others > 0 && held + more > memory::connection_max(self.budget.max()) {
                    self.budget.count_refusal(self.purpose);
                    return Err(Full);
                }
            }
            self.budget.take(self.purpose, more)?;
        } else {
            self.budget.give(self.purpose, self.bytes - bytes);
        }
        self.bytes = bytes;
        if let Some((account, entry)) = &mut self.place {
            account.set(entry, bytes);
        }
        Ok(())
    }

    /// Says whether these bytes wait for the client. The connection is closed only for such bytes.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        if let Some((account, Some(entry))) = &self.place {
            account.set_waiting(*entry, waiting);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Nothing counted is within any budget.
        let _freed = self.set(0);
    }
}

/// What one client connection holds.
#[derive(Debug, Default)]
pub(crate) struct Account {
    entries: RefCell<Vec<Option<Entry>>>,
    /// Ends the connection's task.
    task: RefCell<Option<AbortHandle>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: usize,
    /// Since when the bytes wait for the client; none while they wait for the gateway.
    waiting: Option<Instant>,
}

impl Account {
    /// Names the task that serves the connection.
    pub(crate) fn serve_by(&self, task: AbortHandle) {
        self.task.replace(Some(task));
    }

    fn bytes(&self) -> usize {
        self.entries.borrow().iter().flatten().map(|entry| entry.bytes).sum()
    }

    fn set(&self, place: &mut Option<usize>, bytes: usize) {
        let mut entries = self.entries.borrow_mut();
        match *place {
            Some(at) if bytes == 0 => {
                entries[at] = None;
                *place = None;
                if entries.iter().all(Option::is_none) {
                    *entries = Vec::new();
                }
            }
            Some(at) => {
                if let Some(entry) = &mut entries[at] {
                    entry.bytes = bytes;
                }
            }
            None => {
                let free = entries.iter().position(Option::is_none);
                let at = free.unwrap_or_else(|| {
                    entries.push(None);
                    entries.len() - 1
                });
                entries[at] = Some(Entry { bytes, waiting: Some(Instant::now()) });
                *place = Some(at);
            }
        }
    }

    fn set_waiting(&self, at: usize, waiting: bool) {
        if let Some(entry) = &mut self.entries.borrow_mut()[at] {
            entry.waiting = waiting.then(|| entry.waiting.unwrap_or_else(Instant::now));
        }
    }

    /// The connection as one to close, if any of its bytes wait for its client.
    fn slow(&self, place: usize, now: Instant) -> Option<Slow> {
        let entries = self.entries.borrow();
        let oldest = entries.iter().flatten().filter_map(|entry| entry.waiting).min()?;
        let bytes = entries.iter().flatten().map(|entry| entry.bytes).sum();
        Some(Slow { index: place, age: now - oldest, bytes })
    }
}

/// Closes the slowest of these connections, until `excess` bytes are freed.
pub(crate) fn close_slowest(budget: &Budget, accounts: &[Rc<Account>], excess: usize) {
    let now = Instant::now();
    let slow = accounts.iter().enumerate();
    let slow = slow.filter_map(|(place, account)| account.slow(place, now)).collect();
    for place in memory::to_close(slow, excess, AGE_MIN) {
        // The bytes are freed when the task is dropped; it must not be counted twice meanwhile.
        if let Some(task) = accounts[place].task.take() {
            task.abort();
            budget.closed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The budget where none is configured: a quarter of the memory.
pub(crate) fn usual_max() -> usize {
    usize::try_from(available() / 4).unwrap_or(usize::MAX).max(USUAL_MAX_MIN)
}

/// Bytes of memory that this process may use by the machine and by its control group.
fn available() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let own = read("/proc/self/cgroup").unwrap_or_default();
    let version_2 = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let groups = [
        format!("/sys/fs/cgroup{}/memory.max", version_2.trim_end_matches('/')),
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    let groups = groups.iter().filter_map(|path| read(path)?.trim().parse::<u64>().ok());
    machine.into_iter().chain(groups).min().unwrap_or(1 << 30)
}
