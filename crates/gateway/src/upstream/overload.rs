//! Hands out permits for calls to the upstreams of a group. A *permit* allows one call to be in
//! flight. A call without a permit waits in a queue, or is *shed*: rejected because the upstreams
//! are overloaded.
//!
//! `policy/overload.rs` and its folder make the decisions. All threads share one
//! [`ConcurrencyLimit`] per group. Each thread has [`Permits`]: for each group, the number of its
//! permits and the queue of its waiting calls. A thread may hold a share of the limit, in
//! proportion to its held permits and waiting calls. The thread recomputes this share every few
//! milliseconds from the counters of all threads. Therefore a call below the limit writes only
//! memory of its own thread. Each thread may always hold one permit, so that other threads cannot
//! block its queue.
//!
//! A permit covers one call of a client with all its attempts, except hedges. A *hedge* is a
//! further attempt that starts because the call is slow. Each hedge has its own permit. A call
//! lends its permit to others while it does not wait for a response. Polls of heads and health need
//! no permit.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::call::UpstreamRequest;
use crate::call::failure::{Failure, FailureKind};
use crate::config::Config;
use crate::metrics::counters::GroupCounters;
use crate::metrics::thread::Counters;
use crate::policy::overload::limiter::{Limiter, ResponseSample};
use crate::policy::overload::queue::{PushResult, Queue, QueueKey, QueueSettings};
use crate::policy::overload::shares::{Flow, Shares};
use crate::policy::overload::{Class, Shed};
use crate::upstream::resources::ThreadResources;

/// A thread recomputes its share of a limit once the share has this age.
const SHARE_AGE_MAX: Duration = Duration::from_millis(5);

/// Maximum of the random `Retry-After` in seconds; the minimum is 1. Randomness keeps clients from
/// retrying at the same time.
const RETRY_AFTER_SECONDS_MAX: u64 = 3;

/// The limit of one group.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    /// Finds the limit. Locked for each response while calls wait or have recently waited; never
    /// held across an await.
    limiter: Mutex<Limiter>,
    /// Copy of the limiter's limit of calls in flight.
    calls_max: AtomicU32,
    /// Copy of the limiter's epoch: the number of times that the limit has changed.
    epoch: AtomicU32,
    /// Copy of [`Limiter::limited`]: true if calls have recently waited.
    limited: AtomicBool,
    /// Copy of [`Limiter::saturated`]: true if the upstreams are overloaded.
    saturated: AtomicBool,
    /// The counters of each thread. They hold the numbers of the thread's permits and waiting
    /// calls.
    threads: Vec<Arc<GroupCounters>>,
}

impl ConcurrencyLimit {
    /// Returns the limit of the group with this index; `None` if calls are not limited. `counters`
    /// has one element per thread.
    pub(crate) fn new(
        config: &Config,
        group: usize,
        counters: &[Arc<Counters>],
    ) -> Option<Arc<ConcurrencyLimit>> {
        config.overload.as_ref()?;
        let limiter = Limiter::new(config.groups[group].in_flight);
        Some(Arc::new(ConcurrencyLimit {
            calls_max: AtomicU32::new(limiter.limit),
            epoch: AtomicU32::new(limiter.epoch),
            limited: AtomicBool::new(false),
            saturated: AtomicBool::new(false),
            limiter: Mutex::new(limiter),
            threads: counters.iter().map(|thread| Arc::clone(&thread.groups[group])).collect(),
        }))
    }

    /// Returns the limit of calls in flight.
    pub(crate) fn calls_max(&self) -> u32 {
        self.calls_max.load(Ordering::Relaxed)
    }

    /// Changes the limiter, and copies its state to the fields that are read without the lock.
    fn update(&self, change: impl FnOnce(&mut Limiter)) {
        let mut limiter = self.limiter.lock();
        change(&mut limiter);
        self.calls_max.store(limiter.limit, Ordering::Relaxed);
        self.epoch.store(limiter.epoch, Ordering::Relaxed);
        self.limited.store(limiter.limited, Ordering::Relaxed);
        self.saturated.store(limiter.saturated, Ordering::Relaxed);
    }

    /// Returns the number of waiting calls on all threads.
    fn queued_calls(&self) -> u32 {
        let queued: u64 = self.threads.iter().map(|thread| thread.queued.get()).sum();
        u32::try_from(queued).unwrap_or(u32::MAX)
    }

    /// Returns the number of permits that a thread may hold. `thread_counters` are the counters of
    /// the thread. The thread now has `held` permits and `queued` calls in its queue. The demand of
    /// a thread is the sum of its permits and its queued calls. If all demands fit within the
    /// limit, the thread may hold every permit that other threads do not demand. If the demands
    /// exceed the limit, the thread's share of the limit is proportional to its demand.
    fn share(&self, thread_counters: &GroupCounters, held: u64, queued: u64) -> u32 {
        let limit = u64::from(self.calls_max());
        // One client can fill a queue, so a queue counts at most as much as the whole limit.
        let demand_of = |held: u64, queued: u64| held + queued.min(limit);
        let others =
            self.threads.iter().filter(|thread| !std::ptr::eq(&***thread, thread_counters));
        let other_demand: u64 =
            others.map(|thread| demand_of(thread.in_flight.get(), thread.queued.get())).sum();
        let demand = demand_of(held, queued);
        let total_demand = demand + other_demand;
        let share = if total_demand <= limit {
            limit - other_demand
        } else {
            // Half of the divisor is added, so that the division rounds to the nearest number.
            (limit * demand + total_demand / 2) / total_demand
        };
        share.max(1) as u32
    }
}

/// One thread's permits and queue for the group of a [`ConcurrencyLimit`].
#[derive(Debug)]
struct GroupPermits {
    limit: Arc<ConcurrencyLimit>,
    /// This thread's counters of the group.
    counts: Arc<GroupCounters>,
    /// Number of permits that this thread holds.
    held: Cell<u32>,
    /// The permits that each flow (see [`Holder`]) holds, and the permits reserved for the flow.
    flows: RefCell<Shares>,
    /// Number of permits that this thread may hold.
    share: Cell<u32>,
    /// When the share must be computed again, as time since the process started.
    share_until: Cell<Duration>,
    /// The epoch of the limit for which the share was computed.
    share_epoch: Cell<u32>,
    /// The waiting calls of this thread.
    queue: RefCell<Queue<Rc<Waiter>>>,
    /// Longest wait of a call in the queue.
    queue_timeout: Duration,
    /// HTTP status of shed calls.
    status: u16,
}

/// The class and flow of a call that holds a permit or waits for one. The class is the call's
/// priority. A flow is the calls of one client to methods of about the same cost.
#[derive(Debug, Clone, Copy)]
struct Holder {
    class: Class,
    flow: Flow,
}

impl Holder {
    fn of(request: &UpstreamRequest<'_>) -> Holder {
        Holder { class: request.class, flow: request.flow }
    }
}

/// A call that waits for a permit.
#[derive(Debug)]
struct Waiter {
    holder: Holder,
    state: Cell<WaiterState>,
    /// Wakes the call's task; `None` until the task first waits, and after it was woken.
    waker: RefCell<Option<Waker>>,
}

#[derive(Debug, Clone, Copy)]
enum WaiterState {
    Waiting,
    /// The call holds a permit, but its task has not run yet.
    Admitted,
    /// The call was shed, or its task has taken the permit.
    Done,
}

impl Waiter {
    /// Ends the wait: sets the state and wakes the call's task.
    fn resolve(&self, state: WaiterState) {
        self.state.set(state);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl GroupPermits {
    /// Returns this thread's permits of a group; `None` if calls are not limited.
    fn new(
        config: &Config,
        limit: Option<&Arc<ConcurrencyLimit>>,
        counts: &Arc<GroupCounters>,
    ) -> Option<Rc<GroupPermits>> {
        let (limit, overload) = (limit?, config.overload.as_ref()?);
        let settings = QueueSettings {
            calls_max: overload.queue_max.div_ceil(config.server.threads),
            wait_max: overload.queue_timeout,
            share_kept: overload.share_kept,
        };
        Some(Rc::new(GroupPermits {
            limit: Arc::clone(limit),
            counts: Arc::clone(counts),
            held: Cell::new(0),
            flows: RefCell::default(),
            share: Cell::new(0),
            share_until: Cell::new(Duration::ZERO),
            share_epoch: Cell::new(0),
            queue: RefCell::new(Queue::new(settings)),
            queue_timeout: overload.queue_timeout,
            status: overload.status,
        }))
    }

    /// Returns true if these are the permits of `limit`.
    fn belong_to(&self, limit: Option<&Arc<ConcurrencyLimit>>) -> bool {
        limit.is_some_and(|limit| Arc::ptr_eq(limit, &self.limit))
    }

    /// Counts one more permit as held.
    fn hold(&self, holder: Holder) {
        self.held.update(|calls| calls + 1);
        self.flows.borrow_mut().take_permit(holder.class, holder.flow);
        self.counts.in_flight.add(1);
    }

    /// Counts a held permit as released.
    fn release(&self, holder: Holder) {
        self.held.update(|calls| calls - 1);
        self.flows.borrow_mut().return_permit(holder.flow);
        self.counts.in_flight.subtract_one();
    }

    /// Returns the number of further permits that this thread may hold.
    fn available(&self, now: Duration) -> u32 {
        let epoch = self.limit.epoch.load(Ordering::Relaxed);
        if now >= self.share_until.get() || epoch != self.share_epoch.get() {
            // The call that needs a permit now counts as queued.
            let queued = self.queue.borrow().len as u64 + 1;
            let share = self.limit.share(&self.counts, u64::from(self.held.get()), queued);
            self.flows.borrow_mut().divide_permits(now, share);
            self.share.set(share);
            self.share_until.set(now + SHARE_AGE_MAX);
            self.share_epoch.set(epoch);
        }
        self.share.get().saturating_sub(self.held.get())
    }

    /// Returns true if a call of `holder` may take a permit without waiting.
    fn admits(&self, now: Duration, holder: Holder) -> bool {
        let available = self.available(now);
        if available == 0 || self.is_queueing() {
            return false;
        }
        if !self.is_crowded() {
            return true;
        }
        // Permits that are reserved for other flows are not available to this call.
        let flows = self.flows.borrow();
        flows.admits(holder.flow, flows.count_spare(holder.class, available))
    }

    /// Returns true if calls of this thread wait for permits.
    fn is_queueing(&self) -> bool {
        self.queue.borrow().len > 0
    }

    /// Returns true if calls of this thread wait for permits, or calls of any thread have recently
    /// waited.
    fn is_crowded(&self) -> bool {
        self.is_queueing() || self.limit.limited.load(Ordering::Relaxed)
    }

    /// Releases a permit and admits waiting calls.
    fn release_and_serve(&self, now: Duration, holder: Holder) {
        self.release(holder);
        if self.is_queueing() {
            self.admit_waiters(now);
        }
    }

    /// Admits waiting calls while permits are available, and sheds calls that waited too long.
    fn admit_waiters(&self, now: Duration) {
        loop {
            let available = self.available(now);
            if available == 0 {
                return;
            }
            let saturated = self.limit.saturated.load(Ordering::Relaxed);
            let expired = self.queue.borrow_mut().take_expired(now, saturated);
            if let Some((waiter, class)) = expired {
                self.shed(&waiter, class, Shed::Late);
                continue;
            }
            let admitted =
                self.queue.borrow_mut().take(now, saturated, &self.flows.borrow(), available);
            let Some((waiter, class, waited)) = admitted else { return };
            self.counts.queued.subtract_one();
            self.counts.waited[class].observe(waited);
            self.hold(waiter.holder);
            waiter.resolve(WaiterState::Admitted);
        }
    }

    /// Sheds a call that was removed from the queue.
    fn shed(&self, waiter: &Waiter, class: Class, reason: Shed) {
        self.counts.queued.subtract_one();
        self.counts.shed[class][reason].add(1);
        waiter.resolve(WaiterState::Done);
    }
}

/// Permit for a call to a group's upstreams, released when it is dropped.
pub(crate) struct Permit<'a> {
    thread: &'a ThreadResources,
    /// `None` if calls are not limited.
    permits: Option<&'a GroupPermits>,
    holder: Holder,
    /// When the permit was acquired, as time since the process started.
    acquired_at: Duration,
}

impl<'a> Permit<'a> {
    fn new(
        thread: &'a ThreadResources,
        permits: Option<&'a GroupPermits>,
        holder: Holder,
    ) -> Permit<'a> {
        Permit { thread, permits, holder, acquired_at: thread.clock.now() }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.permits {
            let now = self.thread.clock.now();
            let latency = now.saturating_sub(self.acquired_at);
            permits.flows.borrow_mut().record_latency(self.holder.flow, latency);
            permits.release_and_serve(now, self.holder);
        }
    }
}

/// One thread's permits of all groups.
pub(crate) struct Permits {
    thread: Rc<ThreadResources>,
    /// The permits of each group, in the order of the configuration; `None` if calls are not
    /// limited.
    groups: Vec<Option<Rc<GroupPermits>>>,
}

impl Permits {
    /// Returns the permits of a thread. `limits` has the limit and the counters of each group. A
    /// group whose limit survives a reload keeps its permits in `previous`.
    pub(super) fn new<'a>(
        thread: &Rc<ThreadResources>,
        config: &Config,
        limits: impl Iterator<Item = (Option<&'a Arc<ConcurrencyLimit>>, &'a Arc<GroupCounters>)>,
        previous: Option<&Permits>,
    ) -> Permits {
        let groups = limits.map(|(limit, counts)| {
            let mut previous_permits =
                previous.into_iter().flat_map(|previous| &previous.groups).flatten();
            let kept_permits = previous_permits.find(|permits| permits.belong_to(limit)).cloned();
            kept_permits.or_else(|| GroupPermits::new(config, limit, counts))
        });
        Permits { groups: groups.collect(), thread: Rc::clone(thread) }
    }

    /// Returns this thread's permits for the call's group; `None` if calls are not limited.
    fn of(&self, request: &UpstreamRequest<'_>) -> Option<&GroupPermits> {
        self.groups[request.group].as_deref()
    }

    /// Returns a permit if one is available without a wait.
    pub(crate) fn try_acquire(&self, request: &UpstreamRequest<'_>) -> Option<Permit<'_>> {
        let (permits, now) = (self.of(request), self.thread.clock.now());
        let is_admitted = permits.is_none_or(|permits| permits.admits(now, Holder::of(request)));
        is_admitted.then(|| self.acquire_over_limit(request))
    }

    /// Waits in the queue for a permit.
    ///
    /// # Errors
    /// [`FailureKind::Overloaded`] if the call is shed.
    pub(crate) async fn acquire(
        &self,
        request: &UpstreamRequest<'_>,
    ) -> Result<Permit<'_>, Failure> {
        let (thread, holder) = (&*self.thread, Holder::of(request));
        let Some(permits) = self.of(request) else {
            return Ok(Permit::new(thread, None, holder));
        };
        let state = Cell::new(WaiterState::Waiting);
        let waiter = Rc::new(Waiter { holder, state, waker: RefCell::new(None) });
        permits.flows.borrow_mut().record_wait(request.class, request.flow);
        let queue_entry = Rc::clone(&waiter);
        let pushed = permits.queue.borrow_mut().push(
            thread.clock.now(),
            request.class,
            request.flow,
            queue_entry,
        );
        let key = match pushed {
            PushResult::Queued(key) => key,
            // The queue was full, so this call displaced another call.
            PushResult::Replaced(key, (displaced, class)) => {
                permits.shed(&displaced, class, Shed::Displaced);
                key
            }
            // The queue is full, and all calls in it have a higher class.
            PushResult::Full(_) => {
                permits.counts.shed[request.class][Shed::Full].add(1);
                return Err(self.overload_failure(permits));
            }
        };
        permits.counts.queued.add(1);
        let now = thread.clock.now();
        // A permit may be available at once, for this call or for a call that was queued earlier.
        permits.admit_waiters(now);
        if matches!(waiter.state.get(), WaiterState::Waiting) {
            let latency = permits.flows.borrow().typical_latency();
            permits.limit.update(|limiter| limiter.record_wait(now, latency));
            // `record_wait` may have raised the limit.
            permits.admit_waiters(now);
        }
        let mut queued_call = QueuedCall { thread, permits, waiter: &waiter, key };
        let deadline = request.deadline.min(thread.clock.instant() + permits.queue_timeout);
        let resolved = poll_fn(|task| match waiter.state.get() {
            WaiterState::Waiting => {
                *waiter.waker.borrow_mut() = Some(task.waker().clone());
                Poll::Pending
            }
            WaiterState::Admitted | WaiterState::Done => Poll::Ready(()),
        });
        let timed_out = tokio::time::timeout_at(deadline, resolved).await.is_err();
        thread.clock.tick();
        if timed_out && matches!(waiter.state.get(), WaiterState::Waiting) {
            queued_call.give_up();
            permits.counts.shed[request.class][Shed::Late].add(1);
        }
        match waiter.state.get() {
            WaiterState::Admitted => {
                waiter.state.set(WaiterState::Done);
                Ok(Permit::new(thread, Some(permits), holder))
            }
            WaiterState::Waiting | WaiterState::Done => Err(self.overload_failure(permits)),
        }
    }

    /// Lends the permit of a call to other calls. The call takes the permit back even if this
    /// exceeds the limit, because a started call must not wait for a permit again.
    pub(crate) fn lend(&self, request: &UpstreamRequest<'_>) -> LentPermit<'_> {
        let (permits, holder) = (self.of(request), Holder::of(request));
        if let Some(permits) = permits {
            permits.release_and_serve(self.thread.clock.now(), holder);
        }
        LentPermit { permits, holder }
    }

    /// Returns a permit at once, even if the permit exceeds the limit.
    pub(crate) fn acquire_over_limit(&self, request: &UpstreamRequest<'_>) -> Permit<'_> {
        let (permits, holder) = (self.of(request), Holder::of(request));
        if let Some(permits) = permits {
            permits.hold(holder);
        }
        Permit::new(&self.thread, permits, holder)
    }

    /// Returns true if the upstreams of the call's group are overloaded. Hedges and retries would
    /// then add load.
    pub(crate) fn is_saturated(&self, request: &UpstreamRequest<'_>) -> bool {
        let permits = self.of(request);
        permits.is_some_and(|permits| permits.limit.saturated.load(Ordering::Relaxed))
    }

    /// Returns true if calls wait for permits of this group, or have waited recently.
    pub(crate) fn is_crowded(&self, request: &UpstreamRequest<'_>) -> bool {
        self.of(request).is_some_and(GroupPermits::is_crowded)
    }

    /// Returns true if [`Permits::is_crowded`] is true for any group.
    pub(crate) fn is_any_crowded(&self) -> bool {
        self.groups.iter().flatten().any(|permits| permits.is_crowded())
    }

    /// Returns the epoch of the limit; 0 if calls are not limited. An attempt reads the epoch at
    /// its start, so that its latency counts for the limit that applied at the start.
    pub(crate) fn epoch(&self, request: &UpstreamRequest<'_>) -> u32 {
        let permits = self.of(request);
        permits.map_or(0, |permits| permits.limit.epoch.load(Ordering::Relaxed))
    }

    /// Records the latency of a response to a call that was sent in `epoch`. Does nothing if no
    /// calls wait and none have recently waited.
    pub(crate) fn record_response(
        &self,
        request: &UpstreamRequest<'_>,
        epoch: u32,
        latency: Duration,
    ) {
        let permits = self.of(request).filter(|permits| permits.is_crowded());
        let Some(permits) = permits else { return };
        let now = self.thread.clock.now();
        let queue = if permits.is_queueing() { permits.limit.queued_calls() } else { 0 };
        let sample = ResponseSample { epoch, flow: request.flow, latency, queue };
        permits.limit.update(|limiter| limiter.record_response(now, sample));
    }

    /// Returns the failure of a shed call.
    fn overload_failure(&self, permits: &GroupPermits) -> Failure {
        let retry_after =
            Duration::from_secs(1 + self.thread.random.next() % RETRY_AFTER_SECONDS_MAX);
        let kind = FailureKind::Overloaded { status: permits.status };
        Failure { retry_after: Some(retry_after), ..Failure::ours(kind) }
    }
}

/// A call in the queue. If the client disconnects, this value is dropped, and the call leaves the
/// queue.
struct QueuedCall<'a> {
    thread: &'a ThreadResources,
    permits: &'a GroupPermits,
    waiter: &'a Waiter,
    key: QueueKey,
}

impl QueuedCall<'_> {
    /// Removes the call from the queue.
    fn give_up(&mut self) {
        let removed = self.permits.queue.borrow_mut().remove(self.key);
        debug_assert!(
            removed.is_some_and(|removed| std::ptr::eq(&*removed, self.waiter)),
            "a waiter is queued"
        );
        self.permits.counts.queued.subtract_one();
        self.waiter.state.set(WaiterState::Done);
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        match self.waiter.state.get() {
            WaiterState::Waiting => self.give_up(),
            // The call was admitted, but was dropped before its task took the permit.
            WaiterState::Admitted => {
                self.permits.release_and_serve(self.thread.clock.now(), self.waiter.holder)
            }
            WaiterState::Done => {}
        }
    }
}

/// A permit that is lent to other calls. When this guard is dropped, the lender holds it again.
pub(crate) struct LentPermit<'a> {
    /// `None` if calls are not limited.
    permits: Option<&'a GroupPermits>,
    holder: Holder,
}

impl Drop for LentPermit<'_> {
    fn drop(&mut self) {
        if let Some(permits) = self.permits {
            permits.hold(self.holder);
        }
    }
}
