//! Attempts of one call at several nodes at a time: the first answer wins.
//!
//! A further attempt begins when the call is slow and the budget of hedges allows it
//! (`policy/hedge.rs`), or when every attempt so far waits at a node that has stalled
//! (`policy/stall.rs`): then at once and outside all budgets, for the node that stalled does no work
//! for it. The earlier attempts go on, in case the node answers after all.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;
use wire::method::Repeat;

use crate::call::request::UpstreamRequest;
use crate::policy::hedge;
use crate::upstream::fetch::{Course, better, choose, repeat, weight};
use crate::upstream::overload;
use crate::upstream::overload::{Lent, Place};
use crate::upstream::send::{Attempt, attempt};
use crate::upstream::thread::Upstreams;

/// Attempts of one race, so that a call that stalls wherever it is sent cannot stall a whole group.
const ATTEMPTS_MAX: usize = 4;

/// Shortest time between two looks at a call that waits.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A look that comes so late finds that this thread, and not a node, has stood still.
const LATE: Duration = Duration::from_millis(50);

/// One attempt under way.
struct Racer<'a> {
    node: usize,
    began: Duration,
    hedge: bool,
    future: Pin<Box<dyn Future<Output = Attempt> + 'a>>,
    _place: Option<Place<'a>>,
}

/// Runs an attempt, and further ones beside it once it has taken `delay`. Returns the attempt that
/// counts and the latency to observe ([`hedge::latency`]).
pub(super) async fn race(
    upstreams: &Rc<Upstreams>,
    ask: &UpstreamRequest<'_>,
    node: usize,
    deadline: Instant,
    fresh: bool,
    delay: Duration,
    course: &mut Course,
) -> (Attempt, Duration) {
    let began = upstreams.now();
    let mut first = pin!(attempt(upstreams, node, ask, deadline, fresh));
    let look = upstreams.recent() + delay;
    tokio::select! {
        biased;
        done = &mut first => return (done, upstreams.now().saturating_sub(began)),
        () = tokio::time::sleep_until(look) => {}
    }
    let future: Pin<Box<dyn Future<Output = Attempt> + '_>> = Box::pin(first);
    let racer = Racer { node, began, hedge: false, future, _place: None };
    let race = Race {
        upstreams,
        ask,
        delay,
        patience: upstreams.hedges[ask.group].borrow_mut().patience(weight(ask)),
        racers: SmallVec::from_iter([racer]),
        started: 1,
        wait: delay,
        hedge_at: upstreams.now(),
        lent: None,
    };
    race.run(course, look).await
}

struct Race<'a, 'b> {
    upstreams: &'a Rc<Upstreams>,
    ask: &'a UpstreamRequest<'b>,
    delay: Duration,
    /// How long the call waits at a node that answers nothing.
    patience: Duration,
    racers: SmallVec<[Racer<'a>; 2]>,
    started: usize,
    /// Time to the next hedge, which doubles where the budget is empty, and when it is due.
    wait: Duration,
    hedge_at: Duration,
    /// Its place at the nodes, while all its attempts wait at nodes that have stalled.
    lent: Option<Lent<'a>>,
}

impl Race<'_, '_> {
    async fn run(mut self, course: &mut Course, mut look: Instant) -> (Attempt, Duration) {
        let began = self.upstreams.now().saturating_sub(self.delay);
        let topology = &self.upstreams.topology;
        loop {
            let mut lost = pin!(topology.registry.lost_upstream.notified());
            lost.as_mut().enable();
            let late = self.upstreams.tick().saturating_duration_since(look) > LATE;
            if late {
                // Answers may be there that no task has read yet.
                look = self.upstreams.recent() + LOOK_MIN;
            } else {
                self.look_around(course);
                look = self.upstreams.recent() + self.next_look();
            }
            tokio::select! {
                biased;
                (racer, done) = next_done(&mut self.racers) => {
                    if done.verdict.is_answer() || self.racers.is_empty() {
                        self.upstreams.counters.hedges_won.add(u64::from(racer.hedge));
                        course.cancelled = self.racers.iter().map(|racer| racer.node).collect();
                        let now = self.upstreams.now();
                        let (total, own) = (now.saturating_sub(began), now.saturating_sub(racer.began));
                        return (done, hedge::latency(total, own, self.delay));
                    }
                    // The others are still on their way.
                    course.note(self.upstreams, self.ask, &done);
                    course.beside = Some(better(course.beside.take(), done));
                    look = Instant::now();
                }
                () = tokio::time::sleep_until(look) => {}
                () = lost => look = Instant::now(),
            }
        }
    }

    /// Suspects nodes that answer nothing, and begins another attempt where one is due.
    fn look_around(&mut self, course: &mut Course) {
        let (upstreams, topology, now) =
            (self.upstreams, &self.upstreams.topology, self.upstreams.now());
        let mut stuck = true;
        for racer in &self.racers {
            let silence = upstreams.nodes[racer.node].silence.get();
            if silence.suspect_at(racer.began, self.patience) <= now {
                let random = upstreams.random();
                topology.health(racer.node, |health, now| health.suspect(now, random));
            }
            stuck &= topology.is_lost(racer.node);
        }
        let repeatable = repeat(self.ask) != Repeat::Never;
        if repeatable && self.started < ATTEMPTS_MAX && (stuck || now >= self.hedge_at) {
            self.begin(course, stuck);
        }
        let waits = stuck && self.racers.iter().all(|racer| topology.is_lost(racer.node));
        if !waits {
            self.lent = None;
        } else if self.lent.is_none() {
            self.lent = Some(overload::lend(upstreams, self.ask));
        }
    }

    /// Begins another attempt: one that is moved at once, a hedge if there is a budget for it.
    fn begin(&mut self, course: &mut Course, stuck: bool) {
        let (upstreams, ask, now) = (self.upstreams, self.ask, self.upstreams.now());
        let hedging = upstreams.topology.config.groups[ask.group].hedge.is_some();
        if !stuck && (!hedging || overload::is_saturated(upstreams, ask)) {
            self.wait = (self.wait * 2).max(LOOK_MIN);
            self.hedge_at = now + self.wait;
            return;
        }
        let Ok(node) = choose(upstreams, ask, &course.tried) else {
            self.hedge_at = now + LOOK_MAX;
            return;
        };
        if !stuck && !upstreams.hedges[ask.group].borrow_mut().take() {
            self.wait = (self.wait * 2).max(LOOK_MIN);
            self.hedge_at = now + self.wait;
            return;
        }
        let place = if stuck {
            upstreams.counters.retries.add(1);
            None
        } else {
            upstreams.counters.hedges.add(1);
            Some(overload::beside(upstreams, ask))
        };
        course.tried.push(node);
        let time = upstreams.topology.config.groups[ask.group].attempt_deadline;
        let deadline = ask.deadline.min(upstreams.recent() + time);
        let future = Box::pin(attempt(upstreams, node, ask, deadline, false));
        self.racers.push(Racer { node, began: now, hedge: !stuck, future, _place: place });
        self.started += 1;
        self.wait = self.delay;
        self.hedge_at = now + self.delay;
    }

    /// Time until something may be due.
    fn next_look(&self) -> Duration {
        let (upstreams, now) = (self.upstreams, self.upstreams.now());
        let suspects = self.racers.iter().filter(|racer| !upstreams.topology.is_lost(racer.node));
        let suspects = suspects.map(|racer| {
            let silence = upstreams.nodes[racer.node].silence.get();
            silence.suspect_at(racer.began, self.patience)
        });
        let next = suspects.chain([self.hedge_at]).min().unwrap_or(self.hedge_at);
        next.saturating_sub(now).clamp(LOOK_MIN, LOOK_MAX)
    }
}

/// The next attempt that ends.
async fn next_done<'a>(racers: &mut SmallVec<[Racer<'a>; 2]>) -> (Racer<'a>, Attempt) {
    std::future::poll_fn(|cx| {
        for at in 0..racers.len() {
            if let Poll::Ready(done) = racers[at].future.as_mut().poll(cx) {
                return Poll::Ready((racers.remove(at), done));
            }
        }
        Poll::Pending
    })
    .await
}
