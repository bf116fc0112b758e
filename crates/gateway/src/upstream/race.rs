//! Attempts of one call at several upstreams at a time. The first response wins.
//!
//! A further attempt starts for one of two reasons:
//!
//! - The call is slow, and the hedge budget allows another attempt (`policy/hedge.rs`). Such an
//!   attempt is a *hedge*.
//! - Every attempt waits at a *lost* upstream, which is ejected, suspected or being probed. The
//!   further attempt starts at once. It is not charged to any budget, because a lost upstream does
//!   no work for the call.
//!
//! Second opinions (`attempts.rs`) about old blocks are also sent at a time. All of them are awaited.
//!
//! An upstream has *stalled* if it has calls in flight but responds to none (`policy/stall.rs`).
//! The race marks a stalled upstream as *suspected*. When a further attempt starts, the earlier
//! attempts continue, because their upstreams may still respond.
//!
//! A *permit* allows one call to be in flight (`overload.rs`). A call lends its permit to other
//! calls while all its attempts wait at lost upstreams. `upstreams.now()` and `upstreams.instant()`
//! return the time of the last `upstreams.tick()`.

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use tokio::time::Instant;
use wire::method::Repeat;

use crate::call::UpstreamRequest;
use crate::policy::hedge;
use crate::upstream::attempts::Attempts;
use crate::upstream::overload::{LentPermit, Permit};
use crate::upstream::rank::pick_better;
use crate::upstream::send::{Attempt, run_attempt};
use crate::upstream::thread::Upstreams;

/// Upper limit of attempts in one race. Without a limit, a call that stalls each upstream it
/// reaches would stall the whole group.
const ATTEMPTS_MAX: usize = 4;

/// Shortest interval between two checks whether a race needs another attempt.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(5);

/// Longest interval between two checks whether a race needs another attempt. At each check, the
/// race uses what other calls have taught meanwhile about latencies and lost upstreams.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(50);

/// Time to the next search for another upstream after none was available.
const NO_UPSTREAM_PAUSE: Duration = Duration::from_secs(1);

/// If a check runs this much later than scheduled, this thread has stalled. Missing responses may
/// then be the fault of the thread, not of an upstream.
const THREAD_STALL_MIN: Duration = Duration::from_millis(50);

/// One attempt in flight.
struct Racer<'a> {
    /// Index of the upstream in the configuration.
    upstream: usize,
    /// When the attempt began.
    started_at: Duration,
    /// True if the attempt is a hedge.
    is_hedge: bool,
    future: Pin<Box<dyn Future<Output = Attempt> + 'a>>,
    /// The permit of a hedge; `None` for other attempts, which use the permit of the call.
    _permit: Option<Permit<'a>>,
}

/// Runs an attempt at `upstream`. If the attempt takes longer than `delay`, further attempts at
/// other upstreams may start. Returns the winning attempt, or the last failed attempt if all fail.
/// Also returns the latency to record ([`hedge::cap_latency`]).
pub(super) async fn race(
    attempts: &mut Attempts<'_>,
    upstream: usize,
    deadline: Instant,
    delay: Duration,
) -> (Attempt, Duration) {
    let (upstreams, request, new_connection) =
        (attempts.upstreams, attempts.request, attempts.reconnected);
    let began = upstreams.now();
    let mut first_attempt =
        pin!(run_attempt(upstreams, upstream, request, deadline, new_connection));
    let check_at = upstreams.instant() + delay.min(CHECK_INTERVAL_MAX);
    tokio::select! {
        biased;
        attempt = &mut first_attempt => return (attempt, upstreams.now().saturating_sub(began)),
        () = tokio::time::sleep_until(check_at) => {}
    }
    let future: Pin<Box<dyn Future<Output = Attempt> + '_>> = Box::pin(first_attempt);
    let racer = Racer { upstream, started_at: began, is_hedge: false, future, _permit: None };
    let race = Race {
        upstreams,
        request,
        delay,
        usual_delay: Duration::ZERO,
        patience: delay,
        racers: SmallVec::from_iter([racer]),
        started_attempts: 1,
        hedge_wait: delay,
        hedge_at: began + delay,
        lent_permit: None,
    };
    race.run(attempts, check_at).await
}

/// The state of a race.
struct Race<'a> {
    upstreams: &'a Upstreams,
    request: &'a UpstreamRequest<'a>,
    /// Time from the start of an attempt to the start of the next hedge.
    delay: Duration,
    /// The same time if it follows from known latencies; zero if too few are known.
    usual_delay: Duration,
    /// The call suspects an upstream that has sent no response to any call for this long.
    patience: Duration,
    /// Attempts in flight.
    racers: SmallVec<[Racer<'a>; 2]>,
    /// Number of attempts that have started.
    started_attempts: usize,
    /// Time to the next hedge; doubles while no hedge is allowed.
    hedge_wait: Duration,
    /// When the next hedge is due.
    hedge_at: Duration,
    /// The permit of the call while it is lent; `Some` only while all attempts wait at lost
    /// upstreams.
    lent_permit: Option<LentPermit<'a>>,
}

impl Race<'_> {
    /// Runs the race until an attempt responds or all attempts have failed.
    async fn run(
        mut self,
        attempts: &mut Attempts<'_>,
        mut check_at: Instant,
    ) -> (Attempt, Duration) {
        let topology = &self.upstreams.topology;
        loop {
            // The notification is enabled before the checks, so that the loss of an upstream during
            // the checks wakes this task.
            let mut upstream_lost = pin!(topology.process.lost_upstream.notified());
            upstream_lost.as_mut().enable();
            if self.upstreams.tick().saturating_duration_since(check_at) > THREAD_STALL_MIN {
                // This thread has stalled. Responses that arrived meanwhile may still be unread, so
                // no upstream is suspected now.
                check_at = self.upstreams.instant() + CHECK_INTERVAL_MIN;
            } else {
                self.start_due_attempts(attempts);
                check_at = self.upstreams.instant() + self.time_to_next_check();
            }
            tokio::select! {
                biased;
                (racer, finished) = next_finished(&mut self.racers) => {
                    if finished.verdict.is_response() || self.racers.is_empty() {
                        self.upstreams.counters.hedges_won.add(u64::from(racer.is_hedge));
                        attempts.cancelled =
                            self.racers.iter().map(|racer| racer.upstream).collect();
                        return (finished, self.measure_latency(&racer));
                    }
                    // Other attempts are still in flight.
                    attempts.record(&finished);
                    attempts.best_failed = Some(pick_better(attempts.best_failed.take(), finished));
                    check_at = Instant::now();
                }
                () = tokio::time::sleep_until(check_at) => {}
                () = upstream_lost => check_at = Instant::now(),
            }
        }
    }

    /// Returns the latency to record for a call that this attempt has won. The wait at lost
    /// upstreams does not count.
    fn measure_latency(&self, winner: &Racer<'_>) -> Duration {
        let others = self.racers.iter();
        let waiting = others.filter(|racer| !self.upstreams.topology.is_lost(racer.upstream));
        let started_at =
            waiting.map(|racer| racer.started_at).fold(winner.started_at, Duration::min);
        let now = self.upstreams.now();
        let attempt_time = now.saturating_sub(winner.started_at);
        hedge::cap_latency(now.saturating_sub(started_at), attempt_time, self.usual_delay)
    }

    /// Reads the patience and the delay of hedges again. Other calls may have taught both since
    /// this call began.
    fn update_delays(&mut self) {
        let (mut hedge, weight) =
            (self.upstreams.hedges[self.request.group].borrow_mut(), self.request.weight());
        self.patience = hedge.patience(weight);
        let usual_delay = hedge.delay(weight);
        self.usual_delay = usual_delay.unwrap_or_default();
        let delay = usual_delay.unwrap_or(self.patience);
        // A hedge that is postponed because of the budget stays so.
        if delay < self.delay && self.hedge_wait == self.delay {
            self.hedge_at = self.hedge_at.saturating_sub(self.delay - delay);
            self.hedge_wait = delay;
        }
        self.delay = delay;
    }

    /// Marks stalled upstreams as suspected, and starts an attempt if one is due.
    fn start_due_attempts(&mut self, attempts: &mut Attempts<'_>) {
        self.update_delays();
        let (upstreams, topology, now) =
            (self.upstreams, &self.upstreams.topology, self.upstreams.now());
        // True if every attempt waits at a lost upstream.
        let mut all_lost = true;
        for racer in &self.racers {
            let silence = upstreams.local[racer.upstream].silence.get();
            if silence.suspect_at(racer.started_at, self.patience) <= now {
                let random = upstreams.random();
                topology.update_health(racer.upstream, |health, now| health.suspect(now, random));
            }
            all_lost &= topology.is_lost(racer.upstream);
        }
        let is_repeatable = self.request.repeat() != Repeat::Never;
        let is_due = all_lost || now >= self.hedge_at;
        if is_repeatable && is_due && self.started_attempts < ATTEMPTS_MAX {
            self.start_attempt(attempts, all_lost);
        }
        // A new attempt may have started at a healthy upstream.
        let all_still_lost =
            all_lost && self.racers.iter().all(|racer| topology.is_lost(racer.upstream));
        if !all_still_lost {
            self.lent_permit = None;
        } else if self.lent_permit.is_none() {
            self.lent_permit = Some(upstreams.permits.lend(self.request));
        }
    }

    /// Starts another attempt if an upstream is available. `all_lost` is true if every attempt in
    /// flight waits at a lost upstream. If `all_lost` is false, the new attempt is a hedge, which
    /// is charged to the hedge budget.
    fn start_attempt(&mut self, attempts: &mut Attempts<'_>, all_lost: bool) {
        let (upstreams, request, now) = (self.upstreams, self.request, self.upstreams.now());
        let is_hedge = !all_lost;
        let hedging_is_on = upstreams.topology.config.groups[request.group].hedge.is_some();
        if is_hedge && (!hedging_is_on || upstreams.permits.is_saturated(request)) {
            return self.postpone_hedge(now);
        }
        let chooser = attempts.chooser();
        let view = upstreams.topology.chains[request.chain].view.load();
        // A hedge at an upstream that is known to refuse the call is in vain.
        let may_help = |upstream: &usize| all_lost || chooser.can_cover(&view, *upstream);
        let Some(upstream) = chooser.choose_now().ok().filter(may_help) else {
            self.hedge_at = now + NO_UPSTREAM_PAUSE;
            return;
        };
        if is_hedge && !upstreams.hedges[request.group].borrow_mut().try_charge() {
            return self.postpone_hedge(now);
        }
        let permit = if is_hedge {
            upstreams.counters.hedges.add(1);
            Some(upstreams.permits.acquire_over_limit(request))
        } else {
            upstreams.counters.retries.add(1);
            None
        };
        attempts.tried.push(upstream);
        let timeout = upstreams.topology.config.groups[request.group].attempt_deadline;
        let deadline = request.deadline.min(upstreams.instant() + timeout);
        let new_connection = false;
        let future = Box::pin(run_attempt(upstreams, upstream, request, deadline, new_connection));
        self.racers.push(Racer { upstream, started_at: now, is_hedge, future, _permit: permit });
        self.started_attempts += 1;
        self.hedge_wait = self.delay;
        self.hedge_at = now + self.delay;
    }

    /// Doubles the time to the next hedge.
    fn postpone_hedge(&mut self, now: Duration) {
        self.hedge_wait = (self.hedge_wait * 2).max(CHECK_INTERVAL_MIN);
        self.hedge_at = now + self.hedge_wait;
    }

    /// Returns the time until an upstream becomes suspect or a hedge is due, but at least
    /// [`CHECK_INTERVAL_MIN`] and at most [`CHECK_INTERVAL_MAX`].
    fn time_to_next_check(&self) -> Duration {
        let (upstreams, now) = (self.upstreams, self.upstreams.now());
        let waiting =
            self.racers.iter().filter(|racer| !upstreams.topology.is_lost(racer.upstream));
        let suspect_times = waiting.map(|racer| {
            let silence = upstreams.local[racer.upstream].silence.get();
            silence.suspect_at(racer.started_at, self.patience)
        });
        let next_at = suspect_times.chain([self.hedge_at]).min().unwrap_or(self.hedge_at);
        next_at.saturating_sub(now).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX)
    }
}

impl Attempts<'_> {
    /// Asks the other healthy upstreams for a second opinion, all at a time, and returns the best
    /// attempt. `best` is the best attempt so far. The first upstream is charged to the budget
    /// already.
    pub(super) async fn ask_at_once(&mut self, mut best: Attempt) -> Attempt {
        let (upstreams, request, began) = (self.upstreams, self.request, self.upstreams.now());
        let timeout = self.second_opinion_timeout.unwrap_or_default();
        let deadline = request.deadline.min(upstreams.instant() + timeout);
        let mut opinions = FuturesUnordered::new();
        while self.attempt_count <= self.group().retries_max {
            let Some(upstream) = self.chooser().choose_second_opinion() else { break };
            if !opinions.is_empty() && !upstreams.second_opinions.borrow_mut().withdraw(began) {
                break;
            }
            self.attempt_count += 1;
            self.tried.push(upstream);
            upstreams.counters.second_opinions.add(1);
            opinions.push(run_attempt(upstreams, upstream, request, deadline, false));
        }
        while let Some(mut attempt) = opinions.next().await {
            self.assess(&mut attempt, upstreams.now().saturating_sub(began));
            self.record(&attempt);
            if attempt.stale_connection {
                opinions.push(run_attempt(upstreams, attempt.upstream, request, deadline, true));
                continue;
            }
            let is_certain = attempt.verdict.is_response();
            best = pick_better(Some(best), attempt);
            if is_certain {
                break;
            }
        }
        best
    }
}

/// Waits until an attempt ends, and removes it from `racers`.
async fn next_finished<'a>(racers: &mut SmallVec<[Racer<'a>; 2]>) -> (Racer<'a>, Attempt) {
    std::future::poll_fn(|task| {
        for index in 0..racers.len() {
            if let Poll::Ready(finished) = racers[index].future.as_mut().poll(task) {
                return Poll::Ready((racers.remove(index), finished));
            }
        }
        Poll::Pending
    })
    .await
}
