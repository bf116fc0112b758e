//! Places at the upstreams of a group: who gets one, who waits, who is told to come back later.
//!
//! The decisions are `policy/overload.rs` and what is below it. One [`Room`] per group is shared by
//! all threads; each thread has a [`Lane`] with the calls that hold a place and the queue of those
//! that want one. What a thread may hold is its share of the limit by what it holds and wants,
//! worked out from the other threads' counters every few milliseconds; so a call below the limit
//! writes nothing that another thread writes, and a thread whose clients ask for more gets more. A
//! thread may always hold one, so that it is never its neighbours' fault if its queue stands still.
//!
//! A place is for a client's call, however many attempts it takes. It is given back while the call
//! waits for something else than an upstream. Polls of heads and health need none.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::call::failure::{Failure, Kind};
use crate::call::request::UpstreamRequest;
use crate::config::Config;
use crate::config::group::Group;
use crate::metrics::counters::GroupCounters;
use crate::metrics::thread::Counters;
use crate::policy::overload::limiter::{Limiter, ResponseSample};
use crate::policy::overload::queue::{Key, PushResult, Queue, QueueSettings};
use crate::policy::overload::shares::{Flow, Shares};
use crate::policy::overload::{Class, Shed};
use crate::upstream::thread::UpstreamContext;

/// How often a thread works out its share of a limit.
const SHARE_AGE_MAX: Duration = Duration::from_millis(5);

/// Clients are asked to come back after one second and up to so many more, so that they do not come
/// at once.
const RETRY_AFTER_SPREAD: u64 = 3;

/// The limit of one group.
#[derive(Debug)]
pub(crate) struct Room {
    /// Locked for each answer while calls wait; never across a wait.
    limiter: Mutex<Limiter>,
    /// What the limiter last said.
    limit: AtomicU32,
    epoch: AtomicU32,
    limited: AtomicBool,
    saturated: AtomicBool,
    /// What each thread holds and wants.
    threads: Vec<Arc<GroupCounters>>,
}

impl Room {
    /// The limit of a group; none where calls are not limited.
    pub(crate) fn new(
        config: &Config,
        group: &Group,
        threads: Vec<Arc<GroupCounters>>,
    ) -> Option<Arc<Room>> {
        config.overload.as_ref()?;
        let limiter = Limiter::new(group.in_flight);
        Some(Arc::new(Room {
            limit: AtomicU32::new(limiter.limit()),
            epoch: AtomicU32::new(limiter.epoch()),
            limited: AtomicBool::new(false),
            saturated: AtomicBool::new(false),
            limiter: Mutex::new(limiter),
            threads,
        }))
    }

    /// The counters of a group on all threads.
    pub(crate) fn threads(counters: &[Arc<Counters>], group: usize) -> Vec<Arc<GroupCounters>> {
        counters.iter().map(|thread| Arc::clone(&thread.groups[group])).collect()
    }

    /// Calls that may be under way.
    pub(crate) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    fn learn(&self, event: impl FnOnce(&mut Limiter)) {
        let mut limiter = self.limiter.lock();
        event(&mut limiter);
        self.limit.store(limiter.limit(), Ordering::Relaxed);
        self.epoch.store(limiter.epoch(), Ordering::Relaxed);
        self.limited.store(limiter.is_limited(), Ordering::Relaxed);
        self.saturated.store(limiter.is_saturated(), Ordering::Relaxed);
    }

    /// Calls that wait on all threads.
    fn queue(&self) -> u32 {
        let queue: u64 = self.threads.iter().map(|thread| thread.queued.get()).sum();
        u32::try_from(queue).unwrap_or(u32::MAX)
    }

    /// What a thread that holds and wants so many may hold.
    fn share(&self, own: &GroupCounters, held: u64, queued: u64) -> u32 {
        let limit = u64::from(self.limit());
        // A long queue, which one client may have filled, weighs no more than all places.
        let wanted = |held: u64, queued: u64| held + queued.min(limit);
        let others = self.threads.iter().filter(|thread| !std::ptr::eq(&***thread, own));
        let others: u64 =
            others.map(|thread| wanted(thread.in_flight.get(), thread.queued.get())).sum();
        let wanted = wanted(held, queued);
        let share = if wanted + others <= limit {
            limit - others
        } else {
            (limit * wanted + (wanted + others) / 2) / (wanted + others)
        };
        share.max(1) as u32
    }
}

/// One thread's side of a [`Room`].
#[derive(Debug)]
pub(crate) struct Lane {
    room: Arc<Room>,
    counts: Arc<GroupCounters>,
    in_flight: Cell<u32>,
    flows: RefCell<Shares>,
    share: Cell<u32>,
    /// When the share is to be worked out again, and the limit of which it is.
    share_until: Cell<Duration>,
    share_epoch: Cell<u32>,
    queue: RefCell<Queue<Rc<Waiter>>>,
    queue_timeout: Duration,
    status: u16,
}

/// Whose call it is that holds a place.
#[derive(Debug, Clone, Copy)]
struct Holder {
    class: Class,
    flow: Flow,
}

impl Holder {
    fn of(ask: &UpstreamRequest<'_>) -> Holder {
        Holder { class: ask.class, flow: ask.flow }
    }
}

/// A call that waits for a place.
#[derive(Debug)]
struct Waiter {
    holder: Holder,
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waiting,
    /// It holds a place.
    Placed,
    /// It was told to come back later, or has taken its place.
    Done,
}

impl Waiter {
    fn turn(&self, state: State) {
        self.state.set(state);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Lane {
    /// This thread's side of a group's room; none where calls are not limited.
    pub(crate) fn new(
        config: &Config,
        room: Option<&Arc<Room>>,
        counts: &Arc<GroupCounters>,
    ) -> Option<Rc<Lane>> {
        let (room, overload) = (room?, config.overload.as_ref()?);
        let settings = QueueSettings {
            calls_max: overload.queue_max.div_ceil(config.server.threads),
            wait_max: overload.queue_timeout,
            share_kept: overload.share_kept,
        };
        Some(Rc::new(Lane {
            room: Arc::clone(room),
            counts: Arc::clone(counts),
            in_flight: Cell::new(0),
            flows: RefCell::default(),
            share: Cell::new(0),
            share_until: Cell::new(Duration::ZERO),
            share_epoch: Cell::new(0),
            queue: RefCell::new(Queue::new(settings)),
            queue_timeout: overload.queue_timeout,
            status: overload.status,
        }))
    }

    /// Whether this is the side of that room.
    pub(crate) fn is_of(&self, room: Option<&Arc<Room>>) -> bool {
        room.is_some_and(|room| Arc::ptr_eq(room, &self.room))
    }

    fn hold(&self, holder: Holder) {
        self.in_flight.update(|calls| calls + 1);
        self.flows.borrow_mut().enter(holder.class, holder.flow);
        self.counts.in_flight.add(1);
    }

    fn release(&self, holder: Holder) {
        self.in_flight.update(|calls| calls - 1);
        self.flows.borrow_mut().leave(holder.flow);
        self.counts.in_flight.subtract_one();
    }

    /// How many more this thread may hold.
    fn free(&self, now: Duration) -> u32 {
        let epoch = self.room.epoch.load(Ordering::Relaxed);
        if now >= self.share_until.get() || epoch != self.share_epoch.get() {
            let queued = self.queue.borrow().len() as u64 + 1;
            let share = self.room.share(&self.counts, u64::from(self.in_flight.get()), queued);
            self.flows.borrow_mut().renew(now, share);
            self.share.set(share);
            self.share_until.set(now + SHARE_AGE_MAX);
            self.share_epoch.set(epoch);
        }
        self.share.get().saturating_sub(self.in_flight.get())
    }

    /// Returns true if a call may go to an upstream without waiting.
    fn admits(&self, now: Duration, holder: Holder) -> bool {
        let free = self.free(now);
        if free == 0 || self.is_queueing() {
            return false;
        }
        let flows = self.flows.borrow();
        !self.is_crowded() || flows.admits(holder.flow, flows.spare(holder.class, free))
    }

    fn is_queueing(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    fn is_crowded(&self) -> bool {
        self.is_queueing() || self.room.limited.load(Ordering::Relaxed)
    }

    /// Gives a place back, and on to who waits.
    fn leave(&self, now: Duration, holder: Holder) {
        self.release(holder);
        if self.is_queueing() {
            self.serve(now);
        }
    }

    fn serve(&self, now: Duration) {
        loop {
            let free = self.free(now);
            if free == 0 {
                return;
            }
            let saturated = self.room.saturated.load(Ordering::Relaxed);
            let late = self.queue.borrow_mut().expired(now, saturated);
            if let Some((waiter, class)) = late {
                self.shed(&waiter, class, Shed::Late);
                continue;
            }
            let taken = self.queue.borrow_mut().take(now, saturated, &self.flows.borrow(), free);
            let Some((waiter, class, waited)) = taken else { return };
            self.counts.queued.subtract_one();
            self.counts.waited[class].observe(waited);
            self.hold(waiter.holder);
            waiter.turn(State::Placed);
        }
    }

    /// Tells one that was taken out of the queue.
    fn shed(&self, waiter: &Waiter, class: Class, why: Shed) {
        self.counts.queued.subtract_one();
        self.counts.shed[class][why].add(1);
        waiter.turn(State::Done);
    }
}

/// The right to be under way at a group's upstreams; giving it back is dropping it.
pub(crate) struct Place<'a> {
    cx: &'a UpstreamContext,
    lane: Option<&'a Lane>,
    holder: Holder,
    since: Duration,
}

impl<'a> Place<'a> {
    fn new(cx: &'a UpstreamContext, lane: Option<&'a Lane>, holder: Holder) -> Place<'a> {
        Place { cx, lane, holder, since: cx.now() }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane {
            let took = self.cx.now().saturating_sub(self.since);
            lane.flows.borrow_mut().took(self.holder.flow, took);
            lane.leave(self.cx.now(), self.holder);
        }
    }
}

/// A place for a call, if there is one at once.
pub(crate) fn place<'a>(cx: &'a UpstreamContext, ask: &UpstreamRequest<'_>) -> Option<Place<'a>> {
    let (lane, holder) = (cx.lanes[ask.group].as_deref(), Holder::of(ask));
    if let Some(lane) = lane {
        if !lane.admits(cx.now(), holder) {
            return None;
        }
        lane.hold(holder);
    }
    Some(Place::new(cx, lane, holder))
}

/// A place for a call, after a wait.
///
/// # Errors
/// Ours, if the call is shed.
pub(crate) async fn wait<'a>(
    cx: &'a UpstreamContext,
    ask: &UpstreamRequest<'_>,
) -> Result<Place<'a>, Failure> {
    let holder = Holder::of(ask);
    let Some(lane) = cx.lanes[ask.group].as_deref() else {
        return Ok(Place::new(cx, None, holder));
    };
    let state = Cell::new(State::Waiting);
    let waiter = Rc::new(Waiter { holder, state, waker: RefCell::new(None) });
    lane.flows.borrow_mut().wait(ask.class, ask.flow);
    let own = Rc::clone(&waiter);
    let pushed = lane.queue.borrow_mut().push(cx.now(), ask.class, ask.flow, own);
    let key = match pushed {
        PushResult::Queued(key) => key,
        PushResult::Replaced(key, (other, class)) => {
            lane.shed(&other, class, Shed::Displaced);
            key
        }
        PushResult::Full(_) => {
            lane.counts.shed[ask.class][Shed::Full].add(1);
            return Err(overloaded(cx, lane));
        }
    };
    lane.counts.queued.add(1);
    let now = cx.now();
    lane.serve(now);
    if matches!(waiter.state.get(), State::Waiting) {
        let usual = lane.flows.borrow().usual();
        lane.room.learn(|limiter| limiter.record_wait(now, usual));
        // The limit may be higher now.
        lane.serve(now);
    }
    let mut queued = Queued { cx, lane, waiter: &waiter, key };
    let deadline = ask.deadline.min(cx.recent() + lane.queue_timeout);
    let turned = poll_fn(|cx| match waiter.state.get() {
        State::Waiting => {
            *waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        }
        State::Placed | State::Done => Poll::Ready(()),
    });
    let late = tokio::time::timeout_at(deadline, turned).await.is_err();
    cx.tick();
    if late && matches!(waiter.state.get(), State::Waiting) {
        queued.give_up();
        lane.counts.shed[ask.class][Shed::Late].add(1);
    }
    match waiter.state.get() {
        State::Placed => {
            waiter.state.set(State::Done);
            Ok(Place::new(cx, Some(lane), holder))
        }
        State::Waiting | State::Done => Err(overloaded(cx, lane)),
    }
}

/// A call in the queue; one that is dropped, because its client has left, leaves it.
struct Queued<'a> {
    cx: &'a UpstreamContext,
    lane: &'a Lane,
    waiter: &'a Waiter,
    key: Key,
}

impl Queued<'_> {
    fn give_up(&mut self) {
        let own = self.lane.queue.borrow_mut().remove(self.key);
        debug_assert!(
            own.is_some_and(|own| std::ptr::eq(&*own, self.waiter)),
            "a waiter is queued"
        );
        self.lane.counts.queued.subtract_one();
        self.waiter.state.set(State::Done);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        match self.waiter.state.get() {
            State::Waiting => self.give_up(),
            // It was given a place that it never took.
            State::Placed => self.lane.leave(self.cx.now(), self.waiter.holder),
            State::Done => {}
        }
    }
}

fn overloaded(cx: &UpstreamContext, lane: &Lane) -> Failure {
    let retry_after = Duration::from_secs(1 + cx.random() % RETRY_AFTER_SPREAD);
    let kind = Kind::Overloaded { status: lane.status };
    Failure { retry_after: Some(retry_after), ..Failure::ours(kind) }
}

/// A place that others may have, until this is dropped: its call waits for something else.
pub(crate) struct Lent<'a>(Option<&'a Lane>, Holder);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.0 {
            lane.hold(self.1);
        }
    }
}

/// Lends the place of a call of this group. It is had back whether there is room then or not: a
/// call that was begun is brought to its end.
pub(crate) fn lend<'a>(cx: &'a UpstreamContext, ask: &UpstreamRequest<'_>) -> Lent<'a> {
    let (lane, holder) = (cx.lanes[ask.group].as_deref(), Holder::of(ask));
    if let Some(lane) = lane {
        lane.leave(cx.now(), holder);
    }
    Lent(lane, holder)
}

/// A second attempt beside the first, which needs a place like any other.
pub(crate) fn beside<'a>(cx: &'a UpstreamContext, ask: &UpstreamRequest<'_>) -> Place<'a> {
    let (lane, holder) = (cx.lanes[ask.group].as_deref(), Holder::of(ask));
    if let Some(lane) = lane {
        lane.hold(holder);
    }
    Place::new(cx, lane, holder)
}

/// Returns true if the upstreams of this group are overloaded: no call is to be sent twice then.
pub(crate) fn is_saturated(cx: &UpstreamContext, ask: &UpstreamRequest<'_>) -> bool {
    let lane = cx.lanes[ask.group].as_deref();
    lane.is_some_and(|lane| lane.room.saturated.load(Ordering::Relaxed))
}

/// Returns true if calls wait for places in this group, or have recently.
pub(crate) fn is_crowded(cx: &UpstreamContext, ask: &UpstreamRequest<'_>) -> bool {
    cx.lanes[ask.group].as_deref().is_some_and(Lane::is_crowded)
}

/// The same of any group.
pub(crate) fn is_any_crowded(cx: &UpstreamContext) -> bool {
    cx.lanes.iter().flatten().any(|lane| lane.is_crowded())
}

/// What is known of an attempt when it begins: which limit it belongs to.
pub(crate) fn epoch(cx: &UpstreamContext, ask: &UpstreamRequest<'_>) -> u32 {
    let lane = cx.lanes[ask.group].as_deref();
    lane.map_or(0, |lane| lane.room.epoch.load(Ordering::Relaxed))
}

/// An upstream has answered a call that was sent in this epoch, after so long.
pub(crate) fn answered(
    cx: &UpstreamContext,
    ask: &UpstreamRequest<'_>,
    epoch: u32,
    took: Duration,
) {
    let Some(lane) = cx.lanes[ask.group].as_deref().filter(|lane| lane.is_crowded()) else {
        return;
    };
    let now = cx.now();
    let queue = if lane.is_queueing() { lane.room.queue() } else { 0 };
    let answer = ResponseSample { epoch, flow: ask.flow, took, queue };
    lane.room.learn(|limiter| limiter.record_response(now, answer));
}
