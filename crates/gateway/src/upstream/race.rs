//! Attempts of one call at several upstreams at a time: the first answer wins.
//!
//! A further attempt begins when the call is slow and the budget of hedges allows it
//! (`policy/hedge.rs`), or when every attempt so far waits at an upstream that has stalled
//! (`policy/stall.rs`): then at once and outside all budgets, for the upstream that stalled does no
//! work for it. The earlier attempts go on, in case the upstream answers after all.

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
use crate::upstream::thread::UpstreamContext;

/// Attempts of one race, so that a call that stalls wherever it is sent cannot stall a whole group.
const ATTEMPTS_MAX: usize = 4;

/// Shortest time between two looks at a call that waits.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A look that comes so late finds that this thread, and not an upstream, has stood still.
const LATE: Duration = Duration::from_millis(50);

/// One attempt under way.
struct Racer<'a> {
    upstream: usize,
    began: Duration,
    hedge: bool,
    future: Pin<Box<dyn Future<Output = Attempt> + 'a>>,
    _place: Option<Place<'a>>,
}

/// Runs an attempt, and further ones beside it once it has taken `delay`. Returns the attempt that
/// counts and the latency to observe ([`hedge::latency`]).
pub(super) async fn race(
    cx: &Rc<UpstreamContext>,
    ask: &UpstreamRequest<'_>,
    upstream: usize,
    deadline: Instant,
    fresh: bool,
    delay: Duration,
    course: &mut Course,
) -> (Attempt, Duration) {
    let began = cx.now();
    let mut first = pin!(attempt(cx, upstream, ask, deadline, fresh));
    let look = cx.recent() + delay;
    tokio::select! {
        biased;
        done = &mut first => return (done, cx.now().saturating_sub(began)),
        () = tokio::time::sleep_until(look) => {}
    }
    let future: Pin<Box<dyn Future<Output = Attempt> + '_>> = Box::pin(first);
    let racer = Racer { upstream, began, hedge: false, future, _place: None };
    let race = Race {
        cx,
        ask,
        delay,
        patience: cx.hedges[ask.group].borrow_mut().patience(weight(ask)),
        racers: SmallVec::from_iter([racer]),
        started: 1,
        wait: delay,
        hedge_at: cx.now(),
        lent: None,
    };
    race.run(course, look).await
}

struct Race<'a, 'b> {
    cx: &'a Rc<UpstreamContext>,
    ask: &'a UpstreamRequest<'b>,
    delay: Duration,
    /// How long the call waits at an upstream that answers nothing.
    patience: Duration,
    racers: SmallVec<[Racer<'a>; 2]>,
    started: usize,
    /// Time to the next hedge, which doubles where the budget is empty, and when it is due.
    wait: Duration,
    hedge_at: Duration,
    /// Its place at the upstreams, while all its attempts wait at upstreams that have stalled.
    lent: Option<Lent<'a>>,
}

impl Race<'_, '_> {
    async fn run(mut self, course: &mut Course, mut look: Instant) -> (Attempt, Duration) {
        let began = self.cx.now().saturating_sub(self.delay);
        let topology = &self.cx.topology;
        loop {
            let mut lost = pin!(topology.registry.lost_upstream.notified());
            lost.as_mut().enable();
            let late = self.cx.tick().saturating_duration_since(look) > LATE;
            if late {
                // Answers may be there that no task has read yet.
                look = self.cx.recent() + LOOK_MIN;
            } else {
                self.look_around(course);
                look = self.cx.recent() + self.next_look();
            }
            tokio::select! {
                biased;
                (racer, done) = next_done(&mut self.racers) => {
                    if done.verdict.is_response() || self.racers.is_empty() {
                        self.cx.counters.hedges_won.add(u64::from(racer.hedge));
                        course.cancelled = self.racers.iter().map(|racer| racer.upstream).collect();
                        let now = self.cx.now();
                        let (total, own) = (now.saturating_sub(began), now.saturating_sub(racer.began));
                        return (done, hedge::latency(total, own, self.delay));
                    }
                    // The others are still on their way.
                    course.note(self.cx, self.ask, &done);
                    course.beside = Some(better(course.beside.take(), done));
                    look = Instant::now();
                }
                () = tokio::time::sleep_until(look) => {}
                () = lost => look = Instant::now(),
            }
        }
    }

    /// Suspects upstreams that answer nothing, and begins another attempt where one is due.
    fn look_around(&mut self, course: &mut Course) {
        let (cx, topology, now) = (self.cx, &self.cx.topology, self.cx.now());
        let mut stuck = true;
        for racer in &self.racers {
            let silence = cx.upstreams[racer.upstream].silence.get();
            if silence.suspect_at(racer.began, self.patience) <= now {
                let random = cx.random();
                topology.health(racer.upstream, |health, now| health.suspect(now, random));
            }
            stuck &= topology.is_lost(racer.upstream);
        }
        let repeatable = repeat(self.ask) != Repeat::Never;
        if repeatable && self.started < ATTEMPTS_MAX && (stuck || now >= self.hedge_at) {
            self.begin(course, stuck);
        }
        let waits = stuck && self.racers.iter().all(|racer| topology.is_lost(racer.upstream));
        if !waits {
            self.lent = None;
        } else if self.lent.is_none() {
            self.lent = Some(overload::lend(cx, self.ask));
        }
    }

    /// Begins another attempt: one that is moved at once, a hedge if there is a budget for it.
    fn begin(&mut self, course: &mut Course, stuck: bool) {
        let (cx, ask, now) = (self.cx, self.ask, self.cx.now());
        let hedging = cx.topology.config.groups[ask.group].hedge.is_some();
        if !stuck && (!hedging || overload::is_saturated(cx, ask)) {
            self.wait = (self.wait * 2).max(LOOK_MIN);
            self.hedge_at = now + self.wait;
            return;
        }
        let Ok(upstream) = choose(cx, ask, &course.tried) else {
            self.hedge_at = now + LOOK_MAX;
            return;
        };
        if !stuck && !cx.hedges[ask.group].borrow_mut().take() {
            self.wait = (self.wait * 2).max(LOOK_MIN);
            self.hedge_at = now + self.wait;
            return;
        }
        let place = if stuck {
            cx.counters.retries.add(1);
            None
        } else {
            cx.counters.hedges.add(1);
            Some(overload::beside(cx, ask))
        };
        course.tried.push(upstream);
        let time = cx.topology.config.groups[ask.group].attempt_deadline;
        let deadline = ask.deadline.min(cx.recent() + time);
        let future = Box::pin(attempt(cx, upstream, ask, deadline, false));
        self.racers.push(Racer { upstream, began: now, hedge: !stuck, future, _place: place });
        self.started += 1;
        self.wait = self.delay;
        self.hedge_at = now + self.delay;
    }

    /// Time until something may be due.
    fn next_look(&self) -> Duration {
        let (cx, now) = (self.cx, self.cx.now());
        let suspects = self.racers.iter().filter(|racer| !cx.topology.is_lost(racer.upstream));
        let suspects = suspects.map(|racer| {
            let silence = cx.upstreams[racer.upstream].silence.get();
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
