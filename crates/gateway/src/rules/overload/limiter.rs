//! How many calls may be in flight at the nodes of a group: found by experiment, not configured.
//!
//! The limit acts only while calls wait for a place. Then another limit is tried, and the
//! throughput (responses per second) at both is compared. Where nodes have room, throughput rises
//! with the number of calls in flight, however long each call takes; where they have none, it stays
//! the same and only the time of each call grows. So a higher latency alone never lowers the limit,
//! and neither does a mix of fast and slow methods.
//!
//! The limit sought is the one with the highest `rate / limit^0.15`: each further call in flight must
//! earn its keep. That is the "power" of Kleinrock ("Power and Deterministic Rules of Thumb for
//! Probabilistic Problems in Computer Communications", 1979) with more weight on throughput. The
//! search is a pattern search (Hooke and Jeeves, 1961), as the thread pool of .NET climbs hills
//! (Hellerstein and others, "Optimizing Concurrency Levels in the .NET ThreadPool", 2009).
//!
//! While calls wait and no response comes at all, there is nothing to compare: nodes have stalled or
//! have become slow. The limit then doubles until responses come or nobody waits.
//!
//! Two signs need no comparison. Where far fewer responses come than before at the same limit, long
//! calls hold the places, or the nodes have become slower: the limit doubles as well. And where calls
//! pile up while a lower limit is on trial, the trial ends.
//!
//! Algorithms that compare latency with a baseline (Envoy's adaptive concurrency, Netflix'
//! `Gradient2Limit`, TCP Vegas) were not taken: nodes that become slower while they have room look
//! overloaded to them until the baseline has risen.
//!
//! One limiter serves a group on all threads: a changed limit shows in the throughput only if all of
//! it is changed.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// The limit before anything is known, where the configuration allows it.
pub const LIMIT_START: u32 = 64;

/// A limit that is higher by a share must bring this part of the share as throughput.
const ELASTICITY: f64 = 0.15;

/// Factors between the limits that are compared: the first and largest, and the last and smallest.
const STEP_MAX: f64 = 2.0;
const STEP_MIN: f64 = 1.4;

/// Pause between pairs of trials with the smallest step.
const TRIAL_EVERY: Duration = Duration::from_secs(3);

/// Calls that wait for so long without any response raise the limit.
const SILENCE_MIN: Duration = Duration::from_millis(50);

/// Responses by which a throughput is measured: the smaller the step, the more.
const SAMPLES_MIN: u32 = 256;
const SAMPLES_MAX: u32 = 512;

/// A measurement ends after so long even with fewer responses, for nodes that take seconds.
const WINDOW_MAX: Duration = Duration::from_secs(1);

/// Responses without which it does not end.
const SAMPLES_FEW: u32 = 16;

/// What was measured is forgotten when nobody has waited for so long.
const FORGET_AFTER: Duration = Duration::from_secs(10);

/// Share of the throughput below which a trial of a lower limit ends early.
const HOPELESS: f64 = 0.75;

/// A trial of a lower limit also ends when the queue has grown by the calls of so long: calls wait
/// because of the trial then.
const GROWTH_MAX: Duration = Duration::from_millis(50);

/// Share of the throughput below which the places are held by calls that take far longer than others,
/// or the nodes have become slower: both call for a higher limit.
const COLLAPSED: f64 = 0.2;

/// Responses in a row after which nobody waited mean that the queue is over.
const IDLE_AFTER: u32 = 16;

/// Bounds of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Lowest; at least 1.
    pub limit_min: u32,
    /// Highest.
    pub limit_max: u32,
}

/// The limit of one group. Order of calls: [`Limiter::waits`] for each call that has to wait, and
/// [`Limiter::answered`] for each response while [`Limiter::is_limited`] or while calls wait.
#[derive(Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    limit: u32,
    epoch: u32,
    limited: bool,
    saturated: bool,
    unqueued_in_row: u32,
    /// When the limit was changed, or a call was last answered.
    progress: Duration,
    /// The accepted limit, and what it brings.
    held: Option<Level>,
    /// True if the limit now in force is a trial against `held`.
    trying: bool,
    direction: Direction,
    step: f64,
    next_trial: Duration,
    window: Window,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// What the nodes did at one limit.
#[derive(Debug, Clone, Copy)]
struct Level {
    limit: u32,
    /// Responses per second.
    rate: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    set: Duration,
    /// Responses to pass over first: one for each call that the limit allows.
    skip: u32,
    start: Option<Duration>,
    last: Duration,
    /// Responses since the limit was set, those passed over included.
    all: u32,
    answers: u32,
    queued: u32,
    /// Calls that waited at the first response.
    queue_before: Option<u32>,
}

impl Limiter {
    /// Creates a limiter that knows nothing.
    pub fn new(settings: LimiterSettings) -> Limiter {
        Limiter {
            settings,
            limit: LIMIT_START.clamp(settings.limit_min, settings.limit_max),
            epoch: 0,
            limited: false,
            saturated: false,
            unqueued_in_row: 0,
            progress: Duration::ZERO,
            held: None,
            trying: false,
            direction: Direction::Up,
            step: STEP_MAX,
            next_trial: Duration::ZERO,
            window: Window::default(),
        }
    }

    /// Calls that may be in flight.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Counts changes of the limit: a call belongs to the limit under which it was sent.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns true if calls have waited recently, so that every response is wanted.
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Returns true if a higher limit is known to bring no more responses: the nodes are overloaded.
    pub fn is_saturated(&self) -> bool {
        self.saturated
    }

    /// A call has to wait for a place.
    pub fn waits(&mut self, now: Duration) {
        if !self.limited {
            self.limited = true;
            self.unqueued_in_row = 0;
            self.saturated = self.settings.limit_min == self.settings.limit_max;
            self.window = Window { set: now, ..self.window };
            if now.saturating_sub(self.progress) >= FORGET_AFTER {
                self.held = None;
                self.search_up();
                self.window = Window::default();
            }
            self.progress = now;
        }
        if now.saturating_sub(self.progress) >= self.patience() || self.has_collapsed(now) {
            self.give_way(now);
        }
    }

    /// A node has answered a call that was sent in this epoch; so many calls wait now.
    pub fn answered(&mut self, now: Duration, epoch: u32, queue: u32) {
        let queued = queue > 0;
        if queued {
            self.unqueued_in_row = 0;
            if !self.limited {
                self.waits(now);
            }
        } else {
            self.unqueued_in_row = self.unqueued_in_row.saturating_add(1);
            if self.unqueued_in_row >= IDLE_AFTER {
                self.rest(now);
            }
        }
        self.progress = now;
        if !self.limited {
            return;
        }
        self.window.all = self.window.all.saturating_add(1);
        if self.queue_grows(queue) {
            self.reject(now);
        } else if self.has_collapsed(now) {
            self.give_way(now);
        } else if epoch == self.epoch {
            self.window.take_in(now, queued);
            if self.window.is_full(now, self.samples()) || self.is_hopeless() {
                self.judge(now);
            }
        }
    }

    /// How long responses may stay away before that says something.
    fn patience(&self) -> Duration {
        let round = self.held.map_or(0.0, |held| f64::from(self.limit) / held.rate.max(1e-3));
        SILENCE_MIN.max(Duration::from_secs_f64(2.0 * round))
    }

    /// Raises the limit without a trial, because there is nothing to compare.
    fn give_way(&mut self, now: Duration) {
        if self.limit < self.settings.limit_max {
            self.held = None;
            self.saturated = false;
            self.search_up();
            self.set(now, self.moved(Direction::Up));
        }
    }

    fn is_trying(&self, direction: Direction) -> bool {
        self.trying && self.direction == direction
    }

    /// Returns true if calls wait because a lower limit is on trial.
    fn queue_grows(&mut self, queue: u32) -> bool {
        let Some(held) = self.held.filter(|_| self.is_trying(Direction::Down)) else {
            return false;
        };
        let before = *self.window.queue_before.get_or_insert(queue);
        let growth = SAMPLES_FEW.max((held.rate * GROWTH_MAX.as_secs_f64()) as u32);
        queue > (before + before / 2).max(before + growth)
    }

    /// Returns true if far fewer responses come than at this limit before.
    fn has_collapsed(&self, now: Duration) -> bool {
        let Some(held) = self.held.filter(|_| !self.is_trying(Direction::Up)) else {
            return false;
        };
        let elapsed = now.saturating_sub(self.window.set);
        let expected = held.rate * elapsed.as_secs_f64();
        elapsed >= self.patience() && f64::from(self.window.all) < expected * COLLAPSED
    }

    /// Nobody waits any more. A trial of a lower limit is given up; that of a higher one may be the
    /// reason and goes on when calls wait again.
    fn rest(&mut self, now: Duration) {
        if let Some(held) = self.held.filter(|_| self.is_trying(Direction::Down)) {
            self.trying = false;
            self.set(now, held.limit);
        }
        self.window = Window { set: now, skip: self.window.skip, ..Window::default() };
        self.limited = false;
        self.saturated = false;
    }

    fn search_up(&mut self) {
        self.trying = false;
        (self.direction, self.step) = (Direction::Up, STEP_MAX);
        self.next_trial = Duration::ZERO;
    }

    fn samples(&self) -> u32 {
        let samples = (f64::from(SAMPLES_MIN) * (STEP_MAX.ln() / self.step.ln())) as u32;
        samples.clamp(SAMPLES_MIN, SAMPLES_MAX).max(self.limit)
    }

    /// Returns true if a lower limit on trial plainly costs throughput.
    fn is_hopeless(&self) -> bool {
        let down = self.is_trying(Direction::Down);
        let held = self.held.filter(|_| down && self.window.answers >= SAMPLES_FEW * 2);
        held.is_some_and(|held| self.window.rate() < held.rate * HOPELESS)
    }

    fn judge(&mut self, now: Duration) {
        let window = std::mem::replace(&mut self.window, Window { set: now, ..Window::default() });
        if window.queued * 2 < window.answers {
            // The nodes were not asked for all that they can give.
            return;
        }
        let level = Level { limit: self.limit, rate: window.rate() };
        let Some(held) = self.held.filter(|_| self.trying) else {
            // Both measurements of one limit count.
            let before = self.held.filter(|held| held.limit == level.limit);
            let rate = before.map_or(level.rate, |held| (held.rate + level.rate) / 2.0);
            self.held = Some(Level { rate, ..level });
            if now >= self.next_trial {
                self.try_next(now);
            }
            return;
        };
        // Of two limits between which the noise decides, the lower one.
        let noise = 0.5 / f64::from(window.answers).sqrt();
        let margin = if self.direction == Direction::Up { noise } else { 0.0 };
        if level.score() > held.score() + margin {
            self.trying = false;
            if self.direction == Direction::Up {
                self.saturated = false;
            }
            // Measured once more before the next trial: a lucky measurement is one that is accepted.
            self.held = Some(level);
            self.step = (self.step * self.step).min(STEP_MAX);
        } else {
            self.reject(now);
        }
    }

    /// The limit on trial is no better.
    fn reject(&mut self, now: Duration) {
        self.trying = false;
        if let Some(held) = self.held {
            self.set(now, held.limit);
        }
        self.turn(now);
    }

    /// A trial in this direction has failed.
    fn turn(&mut self, now: Duration) {
        if self.direction == Direction::Up {
            self.saturated = true;
            self.direction = Direction::Down;
            return;
        }
        self.direction = Direction::Up;
        if self.step > STEP_MIN {
            self.step = self.step.sqrt().max(STEP_MIN);
        } else {
            self.next_trial = now + TRIAL_EVERY;
        }
    }

    fn try_next(&mut self, now: Duration) {
        let next = self.moved(self.direction);
        if next == self.limit {
            // The limit is as high or as low as it may be.
            self.turn(now);
            return;
        }
        self.trying = true;
        self.set(now, next);
    }

    /// The limit one step away.
    fn moved(&self, direction: Direction) -> u32 {
        let limit = f64::from(self.limit);
        let moved = match direction {
            Direction::Up => (limit * self.step).ceil(),
            Direction::Down => (limit / self.step).floor(),
        };
        (moved as u32).clamp(self.settings.limit_min, self.settings.limit_max)
    }

    fn set(&mut self, now: Duration, limit: u32) {
        self.limit = limit;
        self.epoch = self.epoch.wrapping_add(1);
        self.progress = now;
        self.window = Window { set: now, skip: limit, ..Window::default() };
    }
}

impl Level {
    fn score(&self) -> f64 {
        self.rate.ln() - ELASTICITY * f64::from(self.limit).ln()
    }
}

impl Window {
    fn take_in(&mut self, now: Duration, queued: bool) {
        self.last = now;
        if self.start.is_some() {
            self.answers += 1;
            self.queued += u32::from(queued);
            return;
        }
        self.skip = self.skip.saturating_sub(1);
        if self.skip == 0 || now.saturating_sub(self.set) >= WINDOW_MAX {
            self.start = Some(now);
        }
    }

    fn is_full(&self, now: Duration, samples: u32) -> bool {
        let Some(start) = self.start else { return false };
        let in_time = now.saturating_sub(start) < WINDOW_MAX;
        self.answers >= if in_time { samples } else { SAMPLES_FEW }
    }

    fn rate(&self) -> f64 {
        let start = self.start.unwrap_or(self.last);
        f64::from(self.answers) / self.last.saturating_sub(start).as_secs_f64().max(1e-6)
    }
}
