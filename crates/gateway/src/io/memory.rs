//! The memory budget of all connections: reservations per connection, and the choice of connections
//! to close when the budget is exceeded.
//!
//! Buffers of at most [`FREE_BYTES`] are not counted, so that small calls cost nothing.
//! `policy/memory.rs` divides the budget.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::policy::memory;
use crate::policy::memory::{HeldBytes, Purpose, SlowConnection};

#[cfg(test)]
mod tests;

/// Buffers of at most this many bytes are not counted.
pub(crate) const FREE_BYTES: usize = 4 * 1024;
/// The smallest default budget, for small machines.
const DEFAULT_MAX_MIN: usize = 16 << 20;
/// `Retry-After` of a refusal because the budget is used up.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Minimum time that a connection has waited for its client before it may be closed.
const AGE_MIN: Duration = Duration::from_millis(100);
/// Interval at which connections are closed while the budget is exceeded.
pub(crate) const RELIEF_INTERVAL: Duration = Duration::from_millis(20);

/// The memory budget of the process.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    max: AtomicUsize,
    /// Counted bytes, by purpose.
    held: [AtomicUsize; Purpose::ALL.len()],
    /// Number of refusals, by purpose.
    refused: [AtomicU64; Purpose::ALL.len()],
    /// Number of closed connections.
    closed: AtomicU64,
    /// Notified when connections must be closed.
    exceeded: Notify,
}

/// The memory budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("memory budget is used up")]
pub(crate) struct Full;

impl Budget {
    /// Sets the budget in bytes.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes_held(&self) -> HeldBytes {
        std::array::from_fn(|index| self.held[index].load(Ordering::Relaxed))
    }

    /// Returns the number of refusals since the start because the budget was used up.
    pub(crate) fn refused(&self, purpose: Purpose) -> u64 {
        self.refused[purpose.index()].load(Ordering::Relaxed)
    }

    /// Returns the number of connections closed since the start because the budget was exceeded.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns true if the budget has `bytes` left for this purpose, or if they need not be
    /// counted.
    pub(crate) fn has_room(&self, purpose: Purpose, bytes: usize) -> bool {
        if bytes <= FREE_BYTES {
            return true;
        }
        let mut held = self.bytes_held();
        held[purpose.index()] += bytes;
        memory::is_within(&held, purpose, self.max())
    }

    pub(crate) fn count_refusal(&self, purpose: Purpose) {
        self.refused[purpose.index()].fetch_add(1, Ordering::Relaxed);
        self.exceeded.notify_waiters();
    }

    /// Returns the bytes over the budget.
    pub(crate) fn excess(&self) -> usize {
        memory::excess(&self.bytes_held(), self.max())
    }

    /// Waits until the budget is exceeded.
    pub(crate) async fn wait_until_exceeded(&self) {
        loop {
            let exceeded = self.exceeded.notified();
            if self.excess() > 0 {
                return;
            }
            exceeded.await;
        }
    }

    fn reserve(&self, purpose: Purpose, bytes: usize) -> Result<(), Full> {
        self.held[purpose.index()].fetch_add(bytes, Ordering::Relaxed);
        if !memory::is_within(&self.bytes_held(), purpose, self.max()) {
            self.release(purpose, bytes);
            self.count_refusal(purpose);
            return Err(Full);
        }
        if self.excess() > 0 {
            self.exceeded.notify_waiters();
        }
        Ok(())
    }

    fn release(&self, purpose: Purpose, bytes: usize) {
        self.held[purpose.index()].fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A reservation for one buffer or queue; dropping it releases the bytes.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    purpose: Purpose,
    bytes: usize,
    /// The account of the client connection, and the reservation's entry in it.
    account_entry: Option<(Rc<Account>, Option<usize>)>,
}

impl Reservation {
    /// Creates an empty reservation without a client connection.
    pub(crate) fn new(budget: &Arc<Budget>, purpose: Purpose) -> Reservation {
        Reservation { budget: Arc::clone(budget), purpose, bytes: 0, account_entry: None }
    }

    /// Creates a reservation in a separate, unlimited budget. It is for memory that a constant
    /// limits already.
    pub(crate) fn unlimited() -> Reservation {
        let budget = Arc::<Budget>::default();
        budget.set_max(usize::MAX);
        Reservation::new(&budget, Purpose::Response)
    }

    /// Creates an empty reservation for a client connection. The connection can be closed while the
    /// bytes wait for its client.
    pub(crate) fn for_connection(
        budget: &Arc<Budget>,
        purpose: Purpose,
        account: &Rc<Account>,
    ) -> Reservation {
        let mut reservation = Reservation::new(budget, purpose);
        reservation.account_entry = Some((Rc::clone(account), None));
        reservation
    }

    /// Changes the size of the reservation.
    ///
    /// # Errors
    /// The budget is used up; the reservation is unchanged.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Full> {
        let bytes = if bytes <= FREE_BYTES { 0 } else { bytes };
        if bytes == self.bytes {
            return Ok(());
        }
        if bytes > self.bytes {
            let added = bytes - self.bytes;
            if let Some((account, _)) = &self.account_entry {
                let held = account.bytes();
                // A single buffer may exceed the limit per connection, so that the largest response
                // can be sent.
                let other_bytes = held - self.bytes;
                if other_bytes > 0 && held + added > memory::connection_max(self.budget.max()) {
                    self.budget.count_refusal(self.purpose);
                    return Err(Full);
                }
            }
            self.budget.reserve(self.purpose, added)?;
        } else {
            self.budget.release(self.purpose, self.bytes - bytes);
        }
        self.bytes = bytes;
        if let Some((account, entry)) = &mut self.account_entry {
            account.set(entry, bytes);
        }
        Ok(())
    }

    /// Sets whether these bytes wait for the client. Only such bytes make a connection eligible for
    /// closing.
    pub(crate) fn set_waiting(&self, waiting: bool) {
        if let Some((account, Some(entry))) = &self.account_entry {
            account.set_waiting(*entry, waiting);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Zero bytes fit into any budget.
        let _freed = self.set(0);
    }
}

/// The reservations of one client connection.
#[derive(Debug, Default)]
pub(crate) struct Account {
    entries: RefCell<Vec<Option<Entry>>>,
    /// Ends the connection's task.
    task: RefCell<Option<AbortHandle>>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: usize,
    /// Time at which the bytes began to wait for the client; `None` while they wait for the
    /// gateway.
    waiting: Option<Instant>,
}

impl Account {
    /// Sets the task to abort when the connection must be closed.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        self.task.replace(Some(task));
    }

    fn bytes(&self) -> usize {
        self.entries.borrow().iter().flatten().map(|entry| entry.bytes).sum()
    }

    fn set(&self, entry: &mut Option<usize>, bytes: usize) {
        let mut entries = self.entries.borrow_mut();
        match *entry {
            Some(index) if bytes == 0 => {
                entries[index] = None;
                *entry = None;
                if entries.iter().all(Option::is_none) {
                    *entries = Vec::new();
                }
            }
            Some(index) => {
                if let Some(entry) = &mut entries[index] {
                    entry.bytes = bytes;
                }
            }
            None => {
                let unused = entries.iter().position(Option::is_none);
                let index = unused.unwrap_or_else(|| {
                    entries.push(None);
                    entries.len() - 1
                });
                // New bytes count as waiting for the client; see [`Reservation::set_waiting`].
                entries[index] = Some(Entry { bytes, waiting: Some(Instant::now()) });
                *entry = Some(index);
            }
        }
    }

    fn set_waiting(&self, index: usize, waiting: bool) {
        if let Some(entry) = &mut self.entries.borrow_mut()[index] {
            entry.waiting = waiting.then(|| entry.waiting.unwrap_or_else(Instant::now));
        }
    }

    /// Returns the connection as an input of [`memory::connections_to_close`]; `None` if none of
    /// its bytes wait for the client.
    fn as_slow(&self, index: usize, now: Instant) -> Option<SlowConnection> {
        let entries = self.entries.borrow();
        let oldest = entries.iter().flatten().filter_map(|entry| entry.waiting).min()?;
        let bytes = entries.iter().flatten().map(|entry| entry.bytes).sum();
        Some(SlowConnection { index, age: now - oldest, bytes })
    }
}

/// Closes the slowest of these connections, until `excess` bytes are released.
pub(crate) fn close_slowest(budget: &Budget, accounts: &[Rc<Account>], excess: usize) {
    let now = Instant::now();
    let slow = accounts.iter().enumerate();
    let slow = slow.filter_map(|(index, account)| account.as_slow(index, now)).collect();
    for index in memory::connections_to_close(slow, excess, AGE_MIN) {
        // Dropping the task releases the bytes. The handle is taken so that the connection is
        // counted only once.
        if let Some(task) = accounts[index].task.take() {
            task.abort();
            budget.closed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the default budget in bytes: a quarter of the memory, at least [`DEFAULT_MAX_MIN`].
pub(crate) fn default_max() -> usize {
    usize::try_from(memory_available() / 4).unwrap_or(usize::MAX).max(DEFAULT_MAX_MIN)
}

/// Returns the memory that the machine and the control group allow this process, in bytes.
fn memory_available() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let cgroups = read("/proc/self/cgroup").unwrap_or_default();
    let version_2 = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let limit_files = [
        format!("/sys/fs/cgroup{}/memory.max", version_2.trim_end_matches('/')),
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    let limits = limit_files.iter().filter_map(|path| read(path)?.trim().parse::<u64>().ok());
    machine.into_iter().chain(limits).min().unwrap_or(1 << 30)
}
