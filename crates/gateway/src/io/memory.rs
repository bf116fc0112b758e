//! The memory budget of all connections: counts the buffered bytes, and closes slow connections
//! when the budget is nearly used up.
//!
//! Each buffer has a [`Reservation`] in the process's [`Budget`]. A client connection has an
//! [`Account`] of its reservations. Buffers of at most [`UNCOUNTED_BYTES_MAX`] are not counted, so
//! that small calls cost nothing. `policy/memory.rs` divides the budget.

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
pub(crate) const UNCOUNTED_BYTES_MAX: usize = 4 * 1024;
/// The smallest default budget in bytes, for small machines.
const DEFAULT_MAX_MIN: usize = 16 << 20;
/// Value of `Retry-After` if a request is refused because the budget is used up.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A connection may be closed only after its bytes have waited this long for its client.
const CLOSE_AGE_MIN: Duration = Duration::from_millis(100);
/// Interval at which connections are closed while bytes must be freed.
pub(crate) const RELIEF_INTERVAL: Duration = Duration::from_millis(20);

/// The memory budget of the process.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// The budget in bytes.
    max: AtomicUsize,
    /// Reserved bytes, by [`Purpose::index`].
    held: [AtomicUsize; Purpose::ALL.len()],
    /// Number of refused reservations, by [`Purpose::index`].
    refused: [AtomicU64; Purpose::ALL.len()],
    /// Number of connections that were closed to free bytes.
    closed: AtomicU64,
    /// Notified when bytes must be freed by closing connections.
    excess_found: Notify,
}

/// The memory budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("memory budget is used up")]
pub(crate) struct BudgetExhausted;

impl Budget {
    /// Sets the budget in bytes.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Returns the budget in bytes.
    pub(crate) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns the reserved bytes by purpose.
    pub(crate) fn bytes_held(&self) -> HeldBytes {
        std::array::from_fn(|index| self.held[index].load(Ordering::Relaxed))
    }

    /// Returns the number of reservations for this purpose that were refused since the start.
    pub(crate) fn refused(&self, purpose: Purpose) -> u64 {
        self.refused[purpose.index()].load(Ordering::Relaxed)
    }

    /// Returns the number of connections closed since the start because the budget was exceeded.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns true if the budget has `bytes` left for this purpose. Also returns true if `bytes`
    /// is too small to be counted.
    pub(crate) fn has_room(&self, purpose: Purpose, bytes: usize) -> bool {
        if bytes <= UNCOUNTED_BYTES_MAX {
            return true;
        }
        let mut held = self.bytes_held();
        held[purpose.index()] += bytes;
        memory::is_within(&held, purpose, self.max())
    }

    /// Counts a refused reservation, and asks for connections to be closed if bytes must be freed.
    pub(crate) fn count_refusal(&self, purpose: Purpose) {
        self.refused[purpose.index()].fetch_add(1, Ordering::Relaxed);
        self.excess_found.notify_waiters();
    }

    /// Returns the number of bytes to free by closing connections; 0 if enough of the budget is
    /// left.
    pub(crate) fn bytes_to_free(&self) -> usize {
        memory::bytes_to_free(&self.bytes_held(), self.max())
    }

    /// Waits until bytes must be freed by closing connections.
    pub(crate) async fn wait_until_exceeded(&self) {
        loop {
            let excess_found = self.excess_found.notified();
            if self.bytes_to_free() > 0 {
                return;
            }
            excess_found.await;
        }
    }

    /// Reserves `bytes` more bytes, or fails if the budget would be exceeded.
    fn reserve(&self, purpose: Purpose, bytes: usize) -> Result<(), BudgetExhausted> {
        self.held[purpose.index()].fetch_add(bytes, Ordering::Relaxed);
        if !memory::is_within(&self.bytes_held(), purpose, self.max()) {
            self.release(purpose, bytes);
            self.count_refusal(purpose);
            return Err(BudgetExhausted);
        }
        if self.bytes_to_free() > 0 {
            self.excess_found.notify_waiters();
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
    /// Number of reserved bytes; 0 if the buffer is too small to be counted.
    bytes: usize,
    /// `None` if the reservation belongs to no client connection.
    account_entry: Option<AccountEntry>,
}

/// The entry of a reservation in the account of a client connection.
#[derive(Debug)]
struct AccountEntry {
    account: Rc<Account>,
    /// Index of the entry in the account; `None` while no bytes are reserved.
    index: Option<usize>,
}

impl Reservation {
    /// Creates an empty reservation without a client connection.
    pub(crate) fn new(budget: &Arc<Budget>, purpose: Purpose) -> Reservation {
        Reservation { budget: Arc::clone(budget), purpose, bytes: 0, account_entry: None }
    }

    /// Creates a reservation in a separate, unlimited budget, for memory that a constant already
    /// limits.
    pub(crate) fn unlimited() -> Reservation {
        let budget = Arc::<Budget>::default();
        budget.set_max(usize::MAX);
        Reservation::new(&budget, Purpose::Response)
    }

    /// Creates an empty reservation for a client connection. The connection may be closed to free
    /// the bytes while they wait for the client.
    pub(crate) fn for_connection(
        budget: &Arc<Budget>,
        purpose: Purpose,
        account: &Rc<Account>,
    ) -> Reservation {
        let mut reservation = Reservation::new(budget, purpose);
        reservation.account_entry = Some(AccountEntry { account: Rc::clone(account), index: None });
        reservation
    }

    /// Changes the size of the reservation to `bytes`.
    ///
    /// # Errors
    /// The budget is used up, or the connection would hold more than its part of the budget. The
    /// reservation is then unchanged.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let bytes = if bytes <= UNCOUNTED_BYTES_MAX { 0 } else { bytes };
        if bytes == self.bytes {
            return Ok(());
        }
        if bytes > self.bytes {
            let added = bytes - self.bytes;
            if let Some(AccountEntry { account, .. }) = &self.account_entry {
                let connection_bytes = account.bytes();
                // A connection may hold an eighth of the budget. A single buffer may exceed this
                // limit, so that the largest response can be sent.
                let other_bytes = connection_bytes - self.bytes;
                if other_bytes > 0
                    && connection_bytes + added > memory::connection_max(self.budget.max())
                {
                    self.budget.count_refusal(self.purpose);
                    return Err(BudgetExhausted);
                }
            }
            self.budget.reserve(self.purpose, added)?;
        } else {
            self.budget.release(self.purpose, self.bytes - bytes);
        }
        self.bytes = bytes;
        if let Some(AccountEntry { account, index }) = &mut self.account_entry {
            account.set(index, bytes);
        }
        Ok(())
    }

    /// Sets whether these bytes wait for the client, for example because it has not read a response
    /// yet. Only a connection with waiting bytes may be closed to free memory.
    pub(crate) fn set_waiting(&self, is_waiting: bool) {
        if let Some(AccountEntry { account, index: Some(index) }) = &self.account_entry {
            account.set_waiting(*index, is_waiting);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // This cannot fail, because the reservation becomes smaller.
        let _freed = self.set(0);
    }
}

/// The reservations of one client connection.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// The reservations with bytes; `None` marks a free entry.
    entries: RefCell<Vec<Option<Entry>>>,
    /// Aborts the connection's task; `None` before the task is set and after it was aborted.
    task: RefCell<Option<AbortHandle>>,
}

/// One reservation in an account.
#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: usize,
    /// Time at which the bytes began to wait for the client; `None` while the gateway uses them.
    waiting_since: Option<Instant>,
}

impl Account {
    /// Sets the task to abort when the connection must be closed.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        self.task.replace(Some(task));
    }

    /// Returns the reserved bytes of the connection.
    fn bytes(&self) -> usize {
        self.entries.borrow().iter().flatten().map(|entry| entry.bytes).sum()
    }

    /// Sets the bytes of the entry at `entry_index`. Adds an entry if the index is `None`, and
    /// removes the entry if `bytes` is 0.
    fn set(&self, entry_index: &mut Option<usize>, bytes: usize) {
        let mut entries = self.entries.borrow_mut();
        match *entry_index {
            Some(index) if bytes == 0 => {
                entries[index] = None;
                *entry_index = None;
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
                entries[index] = Some(Entry { bytes, waiting_since: Some(Instant::now()) });
                *entry_index = Some(index);
            }
        }
    }

    fn set_waiting(&self, index: usize, is_waiting: bool) {
        if let Some(entry) = &mut self.entries.borrow_mut()[index] {
            let since = || entry.waiting_since.unwrap_or_else(Instant::now);
            entry.waiting_since = is_waiting.then(since);
        }
    }

    /// Describes the connection for [`memory::select_connections_to_close`]. `index` identifies the
    /// connection in the caller's list. Returns `None` if no bytes of the connection wait for its
    /// client.
    fn as_slow_connection(&self, index: usize, now: Instant) -> Option<SlowConnection> {
        let entries = self.entries.borrow();
        let oldest = entries.iter().flatten().filter_map(|entry| entry.waiting_since).min()?;
        let bytes = entries.iter().flatten().map(|entry| entry.bytes).sum();
        Some(SlowConnection { index, age: now - oldest, bytes })
    }
}

/// Closes the connections whose bytes have waited longest for their client, until `bytes_to_free`
/// bytes are freed.
pub(crate) fn close_slowest(budget: &Budget, accounts: &[Rc<Account>], bytes_to_free: usize) {
    let now = Instant::now();
    let accounts_by_index = accounts.iter().enumerate();
    let slow_connections = accounts_by_index
        .filter_map(|(index, account)| account.as_slow_connection(index, now))
        .collect();
    for index in memory::select_connections_to_close(slow_connections, bytes_to_free, CLOSE_AGE_MIN)
    {
        // An aborted task drops its reservations. The handle is taken, so that the connection is
        // counted only once.
        if let Some(task) = accounts[index].task.take() {
            task.abort();
            budget.closed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the default budget in bytes: a quarter of the available memory, but at least
/// [`DEFAULT_MAX_MIN`].
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
    // The line of control groups version 2 starts with `0::`.
    let version_2_path = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let limit_files = [
        format!("/sys/fs/cgroup{}/memory.max", version_2_path.trim_end_matches('/')),
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    let limits = limit_files.iter().filter_map(|path| read(path)?.trim().parse::<u64>().ok());
    // 1 GiB is assumed if nothing can be read.
    machine.into_iter().chain(limits).min().unwrap_or(1 << 30)
}
