//! Follows the heads and the health of all upstreams, on one thread for the whole gateway.
//!
//! Each upstream has a task that asks it for its head at the chain's poll interval; what it says
//! goes into the chain's tracker (`policy/heads.rs`), and a changed view replaces the shared one.
//! The polls double as probes of upstreams that are out. Calls of clients never pass through here.
//! The connection of each task is `watch/line.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::family::Family;
use wire::quantity;

use crate::config;
use crate::policy::heads::{
    Finality, HeadEvent, HeadPoll, HeadSettings, HeadTracker, HeaderRequest, MISSED_MAX,
    ROLLBACK_MAX, ROLLBACK_POLLS, Step, UpstreamView, WINDOW,
};
use crate::upstream::chain::ChainState;
use crate::upstream::topology::Topology;

mod line;
mod news;
#[cfg(test)]
mod tests;

use line::{Line, Missed, Refused};
use news::News;

/// An upstream that missed a poll, or failed a call, is polled so many times as often until it
/// answers or is taken out: few calls go there meanwhile, so they would take long to tell that it
/// is dead.
const DOUBTED_POLLS: u32 = 4;
/// And an upstream at which a call has just failed, or which answers none, is polled at once, but
/// not more often than this.
const DOUBTED_POLL_MIN: Duration = Duration::from_millis(50);
/// An upstream that tells of a new head is polled at once, but not more often than this: how often
/// it tells is its own will.
const TOLD_POLL_MIN: Duration = Duration::from_millis(5);
/// The finalized height is asked for with each so manieth poll: it moves once in minutes.
const FINALIZED_EVERY: u64 = 8;
/// Headers that one poll may ask for to link an upstream's branch, so that a walk cannot hold it
/// up.
const ASKS_PER_POLL_MAX: usize = 64;

/// What the poller reports of a chain beside its view.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChainEvent {
    /// Blocks above `fork` were dropped.
    Reorg { fork: u64 },
    /// The finalized height fell: what was taken for final may be wrong.
    FinalizedFell,
}

/// Receives the events of a chain, before a view is published that follows from them.
pub(crate) type OnEvent = Rc<dyn Fn(&ChainState, ChainEvent)>;

/// All chains that are followed.
#[derive(Default)]
pub(crate) struct Watch {
    chains: Vec<Rc<Watched>>,
}

impl Watch {
    /// Follows the upstreams of this configuration from here on, and no others. Those that it
    /// shares with the former one are followed on: nothing that is known of them is lost.
    pub(crate) fn follow(&mut self, topology: &Arc<Topology>, on_event: &OnEvent) {
        let mut before = std::mem::take(&mut self.chains);
        for (index, state) in topology.chains.iter().enumerate() {
            let known = before.iter().position(|own| Arc::ptr_eq(&own.state, state));
            let watched = match known {
                Some(at) => before.swap_remove(at),
                None => Watched::new(topology, index, on_event),
            };
            watched.follow(topology, index, on_event);
            self.chains.push(watched);
        }
        before.iter().for_each(|gone| gone.end());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.chains.iter().for_each(|chain| chain.end());
    }
}

/// One chain that is followed.
struct Watched {
    /// The configuration that holds now.
    topology: RefCell<Arc<Topology>>,
    /// The chain's index in it.
    chain: Cell<usize>,
    on_event: RefCell<OnEvent>,
    state: Arc<ChainState>,
    tracker: RefCell<HeadTracker>,
    /// The chain id that all upstreams must have: as configured, else the first one heard.
    id: Cell<Option<u64>>,
    random: Cell<u64>,
    /// The tasks that follow upstreams, by place.
    tasks: RefCell<Vec<Option<(u64, AbortHandle)>>>,
    /// How the upstreams that the last reload removed were seen last, by place: calls that began
    /// with them end with them, unless other upstreams have their places by now.
    gone: RefCell<Vec<(usize, UpstreamView)>>,
}

async fn follow(watched: Rc<Watched>, place: usize) {
    let mut line = Line::to(&watched, place);
    let mut checked = false;
    let mut polls = 0u64;
    let mut rest_until = Duration::ZERO;
    let mut silent: u32 = 0;
    let family = line.topology.config.chains[watched.chain.get()].family;
    let news = News::of(&line, family);
    let mut head = None;
    loop {
        let began = Instant::now();
        line.turn_to(&watched);
        let chain = &line.topology.config.chains[watched.chain.get()];
        let interval = chain.poll_interval;
        if line.topology.now() < rest_until {
            watched.silent(place);
            tokio::time::sleep_until(began + interval).await;
            continue;
        }
        if !checked {
            checked = watched.check_id(&mut line, family).await;
        }
        let with_finalized = polls.is_multiple_of(FINALIZED_EVERY);
        match line.head(family, with_finalized).await {
            Ok(seen) => {
                polls += 1;
                silent = 0;
                if head.replace(seen.hash).is_some_and(|before| before != seen.hash) {
                    news.saw_head();
                }
                watched.seen(&mut line, family, seen).await;
                watched.confirm(place, line.topology.since_start(began));
            }
            Err(Missed::Limited { retry_after }) => {
                rest_until = watched.limited(place, retry_after);
            }
            Err(Missed::Silent) => {
                checked = false;
                silent = silent.saturating_add(1);
                watched.missed(place);
            }
        }
        let quick = began + interval / DOUBTED_POLLS;
        if (1..line.topology.config.health.failures_max).contains(&silent) {
            tokio::time::sleep_until(quick).await;
            continue;
        }
        let suspected = Arc::clone(&line.topology.upstreams[line.upstream].suspected);
        tokio::select! {
            // In order, so that simulations repeat.
            biased;
            () = tokio::time::sleep_until(began + interval) => {}
            // A call has just failed there, or none is answered.
            () = suspected.notified() => {
                tokio::time::sleep_until(began + DOUBTED_POLL_MIN).await;
            }
            () = news.head() => tokio::time::sleep_until(began + TOLD_POLL_MIN).await,
        }
    }
}

impl Watched {
    fn new(topology: &Arc<Topology>, index: usize, on_event: &OnEvent) -> Rc<Watched> {
        let chain = &topology.config.chains[index];
        Rc::new(Watched {
            topology: RefCell::new(Arc::clone(topology)),
            chain: Cell::new(index),
            on_event: RefCell::new(Rc::clone(on_event)),
            state: Arc::clone(&topology.chains[index]),
            tracker: RefCell::new(HeadTracker::new(head_settings(chain), 0)),
            id: Cell::new(chain.id),
            random: Cell::new(index as u64),
            tasks: RefCell::default(),
            gone: RefCell::default(),
        })
    }

    /// Follows the chain's upstreams as this configuration has them.
    fn follow(self: &Rc<Watched>, topology: &Arc<Topology>, index: usize, on_event: &OnEvent) {
        self.on_event.replace(Rc::clone(on_event));
        let before = self.topology.replace(Arc::clone(topology));
        let before = &before.config.chains[self.chain.replace(index)];
        let chain = &topology.config.chains[index];
        // Who sleeps for an hour would else hear of a shorter interval only then.
        let same_interval = before.poll_interval == chain.poll_interval;
        let mut upstreams: Vec<Option<u64>> = Vec::new();
        for upstream in &chain.upstreams {
            let upstream = &topology.upstreams[*upstream];
            upstreams.resize(upstreams.len().max(upstream.place + 1), None);
            upstreams[upstream.place] = Some(upstream.mark);
        }
        let seen = self.state.view.load();
        let mut gone = Vec::new();
        let mut tasks = self.tasks.borrow_mut();
        let count = tasks.len().max(upstreams.len());
        upstreams.resize(count, None);
        tasks.resize_with(count, || None);
        self.tracker.borrow_mut().reconfigure(head_settings(chain), count);
        for (place, (task, upstream)) in tasks.iter_mut().zip(upstreams).enumerate() {
            let is_same = match (&*task, upstream) {
                (Some((mark, _)), Some(upstream)) => *mark == upstream,
                (None, None) => true,
                _ => false,
            };
            if is_same && same_interval {
                continue;
            }
            if let Some((_, former)) = task.take() {
                former.abort();
                if upstream.is_none() {
                    gone.push((place, seen.upstreams.get(place).copied().unwrap_or_default()));
                }
            }
            if !is_same {
                self.tracker.borrow_mut().replace_upstream(place, upstream.unwrap_or_default());
            }
            if let Some(mark) = upstream {
                let started = tokio::task::spawn_local(follow(Rc::clone(self), place));
                *task = Some((mark, started.abort_handle()));
            }
        }
        let changed = !gone.is_empty() || !self.gone.borrow().is_empty();
        self.gone.replace(gone);
        if changed {
            self.publish();
        }
    }

    /// Follows no upstream any more.
    fn end(&self) {
        for (_, task) in self.tasks.borrow().iter().flatten() {
            task.abort();
        }
        self.state.end();
    }

    /// The configuration that holds now.
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.borrow())
    }

    /// The index of the upstream at this place, in the configuration that holds now.
    fn upstream(&self, topology: &Topology, place: usize) -> usize {
        let mut upstreams = topology.config.chains[self.chain.get()].upstreams.iter();
        let found = upstreams.find(|upstream| topology.upstreams[**upstream].place == place);
        *found.expect("an upstream that is gone is not followed any more")
    }

    fn renew_candidates(&self) {
        self.topology().renew_candidates(self.chain.get());
    }

    fn publish(&self) {
        let mut view = self.tracker.borrow().view();
        for (place, seen) in &*self.gone.borrow() {
            view.upstreams[*place] = *seen;
        }
        self.state.publish(view, self.topology().now());
        self.renew_candidates();
    }

    /// Spreads times out over upstreams that failed together: a Weyl sequence (Knuth's 64-bit
    /// constant).
    fn random(&self) -> u64 {
        let next = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(next);
        next
    }

    /// Whether the upstream serves this chain, as far as it says; an upstream of another chain is
    /// put out for good.
    async fn check_id(&self, line: &mut Line, family: Family) -> bool {
        if family == Family::Bitcoin {
            self.state.identify(None);
            return true;
        }
        let id = match line.ask("eth_chainId", b"[]").await {
            Ok(result) => quantity::from_value(&result),
            // An upstream that does not know the method is taken at its word.
            Err(Refused::ByUpstream) => None,
            Err(Refused::Missed(_)) => return false,
        };
        let Some(id) = id else {
            self.state.identify(None);
            return true;
        };
        let expected = self.id.get().unwrap_or(id);
        self.id.set(Some(expected));
        let topology = self.topology();
        self.state.identify(Some(expected));
        let state = &topology.upstreams[self.upstream(&topology, line.place)];
        let foreign = id != expected;
        if state.foreign.swap(foreign, Ordering::Relaxed) != foreign {
            if foreign {
                let name = &*state.config.name;
                tracing::error!(
                    upstream = name,
                    id,
                    expected,
                    "upstream is on another chain; not used"
                );
            }
            self.renew_candidates();
        }
        !foreign
    }

    async fn seen(&self, line: &mut Line, family: Family, seen: HeadPoll) {
        let (topology, place) = (self.topology(), line.place);
        let upstream = self.upstream(&topology, place);
        let now = topology.now();
        let needed = !topology.any_healthy(self.chain.get());
        topology.health(upstream, |health, now| {
            if let Some(cleared) = health.poll_ok() {
                return Some(cleared);
            }
            // A poll does as the probe of an upstream that was out.
            let probed = health.probe_due(now) || (needed && health.probe_early(now));
            if probed { health.probe_ok(now) } else { None }
        });
        // Rests end by themselves, so what may be used is looked at with each poll.
        self.renew_candidates();
        if topology.upstreams[upstream].foreign.load(Ordering::Relaxed) {
            return;
        }
        let step = self.tracker.borrow_mut().observe(place, now, seen);
        let requests = self.apply(step);
        self.link(line, family, requests).await;
        self.tracker.borrow_mut().headers_failed(place);
    }

    /// A poll is over: whatever the upstream answered before it began was from the branch that it
    /// shows, unless a change of branch is marked by now.
    fn confirm(&self, place: usize, began: Duration) {
        let view = self.state.view.load();
        let topology = self.topology();
        let upstream = &topology.upstreams[self.upstream(&topology, place)];
        if upstream.seen(&view).is_some_and(|seen| seen.consistent) {
            upstream.confirm(began);
        }
    }

    /// Fetches the headers that link an upstream's new head to what is known of it.
    async fn link(&self, line: &mut Line, family: Family, mut requests: Vec<HeaderRequest>) {
        let place = line.place;
        let mut asked = 0;
        while let Some(HeaderRequest { number, .. }) = requests.pop() {
            asked += 1;
            if asked > ASKS_PER_POLL_MAX {
                return;
            }
            let Ok((hash, parent)) = line.header(family, number).await else { return };
            let now = self.topology().now();
            let step = self.tracker.borrow_mut().header(place, now, number, hash, parent);
            requests
                .extend(self.apply(step).into_iter().filter(|request| request.upstream == place));
        }
    }

    fn missed(&self, place: usize) {
        let random = self.random();
        let topology = self.topology();
        topology.health(self.upstream(&topology, place), |health, now| {
            if health.probe_due(now) {
                health.probe_failed(now, random)
            } else {
                health.poll_failed(now, random)
            }
        });
        self.silent(place);
    }

    /// An upstream that limits our rate is not ill, and its rest holds for polls as well. Gives the
    /// end of the rest.
    fn limited(&self, place: usize, retry_after: Option<Duration>) -> Duration {
        let topology = self.topology();
        let mut until = Duration::ZERO;
        topology.health(self.upstream(&topology, place), |health, now| {
            let event = health.rate_limited(now, retry_after);
            until = health.paused_until();
            event
        });
        self.silent(place);
        until
    }

    /// An upstream did not tell its head. What it was goes on being believed for a few polls only.
    fn silent(&self, place: usize) {
        let step = self.tracker.borrow_mut().missed(place, self.topology().now());
        self.apply(step);
    }

    /// Publishes what a step changed and gives what it asks for.
    fn apply(&self, step: Step) -> Vec<HeaderRequest> {
        for event in &step.events {
            self.tell(event);
        }
        if step.changed {
            self.publish();
        }
        step.requests
    }

    fn emit(&self, event: ChainEvent) {
        let on_event = Rc::clone(&self.on_event.borrow());
        on_event(&self.state, event);
    }

    fn tell(&self, event: &HeadEvent) {
        let (topology, state) = (self.topology(), &self.state);
        let chain = &*state.name;
        let name = |place: usize| &*topology.upstreams[self.upstream(&topology, place)].config.name;
        match *event {
            HeadEvent::Reorg { fork, depth } => {
                state.reorgs.fetch_add(1, Ordering::Relaxed);
                state.reorg_depth_max.fetch_max(depth, Ordering::Relaxed);
                self.emit(ChainEvent::Reorg { fork });
                tracing::info!(chain, fork, depth, "chain was reorganised");
            }
            HeadEvent::UpstreamReorg { upstream, fork, depth } => {
                tracing::debug!(
                    chain,
                    upstream = name(upstream),
                    fork,
                    depth,
                    "upstream changed its branch"
                );
            }
            HeadEvent::UpstreamLagging { upstream, lag } => {
                tracing::warn!(chain, upstream = name(upstream), lag, "upstream lags behind");
            }
            HeadEvent::FinalizedFell { from, to } => {
                self.emit(ChainEvent::FinalizedFell);
                tracing::error!(chain, from, to, "finalized height fell; the cache was emptied");
            }
            HeadEvent::HeadImplausible { upstream, number } => {
                tracing::warn!(
                    chain,
                    upstream = name(upstream),
                    number,
                    "upstream claims an implausible head"
                );
            }
        }
    }
}

fn head_settings(chain: &config::chain::Chain) -> HeadSettings {
    let depth = chain.finality_depth;
    let finality = match chain.family {
        Family::Ethereum => Finality::FromUpstreamsOr(depth),
        Family::Harmony | Family::Bitcoin => Finality::Depth(depth),
    };
    HeadSettings {
        window: WINDOW.max(chain.finality_depth.try_into().unwrap_or(WINDOW)),
        finality,
        lag_max: chain.lag_max,
        jump_max: chain.jump_max,
        rollback_max: ROLLBACK_MAX,
        rollback_polls: ROLLBACK_POLLS,
        missed_max: MISSED_MAX,
        block_time: chain.block_time,
    }
}
