//! How many calls may be under way at the nodes of a group: found out, not configured.
//!
//! The aim is the fewest calls that keep every node busy; each further one only waits inside a node,
//! where neither its class nor its deadline counts. It acts only while calls wait for a place: below
//! the limit it learns and changes nothing.
//!
//! **By latency, every few dozen answers.** Each method at each node has a yardstick, what a quick
//! quarter of its calls took while nothing was queued; so a mix of fast and slow methods, or a slow
//! node beside fast ones, looks like nothing but itself. If some answers of a window still come about
//! as quickly as their yardsticks, some node has room: the limit grows. If none does, every call
//! waits: it shrinks by about as much as calls are stretched. That a *standing* queue shows in the
//! quickest calls and not in the mean is CoDel's insight; that the share of waiting gives the excess
//! is TCP Vegas' and Netflix' (`concurrency-limits`: `VegasLimit`, `Gradient2Limit`).
//!
//! **By throughput, every [`PROBE_EVERY`].** A yardstick may be wrong: calls may have become costlier,
//! a node slower, the first calls may have met a queue. Lowering the limit by half tells: if the
//! nodes answer as many calls as before, the others had only waited, and half is the limit from which
//! to go on; if they answer fewer, calls did not wait now, and their times are the new yardsticks.
//! The same follows whenever latency alone has brought the limit down by half, so that a false alarm
//! is taken back in a moment. Envoy's adaptive concurrency filter measures its ideal latency in such
//! a pause too, at a low fixed limit; BBR drains its pipe (Cardwell and others, ACM Queue 2016); that
//! yardsticks measured under load drift upwards, and that throughput unmasks it, is the experience of
//! Uber's Cinnamon ("Adaptive Concurrency in the Wild", 2023). AIMD on timeouts alone (Netflix'
//! `AIMDLimit`) was not taken: by the first timeout every client has waited for seconds.
//!
//! One limiter serves a group on all threads: halving a limit shows in throughput only if all of it
//! is halved.

use std::time::Duration;

#[cfg(test)]
mod tests;

/// The limit before anything is known, where the configuration allows it. High enough that hardly a
/// gateway meets it before it has reason to, low enough to be corrected within a few answers.
pub const LIMIT_START: u32 = 64;

/// How often throughput is asked while calls wait.
pub const PROBE_EVERY: Duration = Duration::from_secs(15);

/// And how often where the limit is as low as it may be and still seems too high.
const PROBE_AT_MIN_EVERY: Duration = Duration::from_secs(1);

/// Calls have to have waited for so long before throughput is asked: a burst passes by itself.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// Answers of one window at the least; with a quick quarter among them, hardly ever fewer than two
/// are quick unless all have waited (0.75^32 + 32 * 0.25 * 0.75^31 = 0.1 %).
const WINDOW_MIN: u32 = 32;

/// And at the most, however high the limit.
const WINDOW_MAX: u32 = 256;

/// Answers by which throughputs are compared: their spread is then a tenth.
const COMPARED_MIN: u32 = 96;

/// A window ends after so long even if it is not full, for nodes that take seconds.
const WINDOW_TIME_MAX: Duration = Duration::from_secs(3);

/// No window is shorter, so that what passes by itself, such as slow calls that happen to meet, is not
/// taken for a standing queue: CoDel's interval. Only a limit that is [`FAR_TOO_HIGH`] is corrected
/// sooner.
const WINDOW_TIME_MIN: Duration = Duration::from_millis(100);

/// But not with fewer answers than these.
const WINDOW_FEW: u32 = 8;

/// One answer of so many that is as quick as its yardstick means that there is room.
const QUICK_ONE_OF: u32 = 16;

/// An answer is as quick as its yardstick up to so many times of it,
const QUICK_TIMES: f64 = 1.25;

/// and these seconds: how late timers and event loops are.
const QUICK_SECONDS: f64 = 0.000_5;

/// What the limit is to hold of what keeps the nodes busy.
const ROOM: f64 = 1.25;

/// Where calls take so many times what they need, the limit does not grow, though some be quick: of
/// several nodes one has room by chance, and the others have queues.
const STRETCHED: f64 = 1.4;

/// To which share one window lowers the limit at least,
const SHRINK_LEAST: f64 = 0.9;

/// and at most, because the mean of a window is a rough guess where times vary much.
const SHRINK_MOST: f64 = 0.7;

/// But a limit that is this many times too high is lowered by as much, and at once.
const FAR_TOO_HIGH: f64 = 4.0;

/// Throughput that falls to this share or below of what it was, at half the limit, has followed the
/// limit. Half of it is expected if no call waited, all of it if half of them did.
const FOLLOWS: f64 = 0.75;

/// Answers from which a yardstick is learnt quickly.
const LEARN_FAST: u32 = 16;

/// Afterwards one answer in so much time moves it: a queue that builds up moves it little.
const LEARN_EVERY: Duration = Duration::from_millis(250);

/// By which share a slower answer raises the quarter. A quicker one lowers it by three times as much,
/// so that it settles where a quarter of the answers is quicker. The mean moves by this share of the
/// difference.
const LEARN_STEP: f64 = 0.02;

/// Answers in a row after which nobody waited mean that the queue is over.
const IDLE_AFTER: u32 = 16;

/// Bounds of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Lowest; at least 1.
    pub limit_min: u32,
    /// Highest.
    pub limit_max: u32,
}

/// One answer of a node.
#[derive(Debug, Clone, Copy)]
pub struct Heard {
    /// Which yardstick is its: one for each method at each node.
    pub cell: usize,
    /// How long the node took.
    pub took: Duration,
    /// [`Limiter::epoch`] when it was asked.
    pub epoch: u32,
    /// Whether calls wait for a place now.
    pub queued: bool,
}

/// The limit of one group. [`Limiter::heard`] is told of answers: of all while [`Limiter::is_limited`]
/// or while calls wait, and of some at other times.
#[derive(Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    limit: f64,
    /// Counts changes of the limit: an answer to a call begun before one says nothing about it.
    epoch: u32,
    cells: Vec<Cell>,
    /// Since when calls wait.
    limited_since: Option<Duration>,
    unqueued_in_row: u32,
    window: Window,
    phase: Phase,
    /// The limit before it was lowered, and what the nodes did then.
    before: Option<Level>,
    /// The limit at which last no answer was quick.
    trouble_at: f64,
    /// Whether none was ever too high.
    starting: bool,
    probed: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Steady,
    /// Throughput is measured at the present limit.
    Gauging,
    /// And now at half of it.
    Halved,
    /// Or at twice of it, where it cannot be lower.
    Doubled,
}

/// What the nodes did at one limit.
#[derive(Debug, Clone, Copy)]
struct Level {
    limit: f64,
    /// Answers per second.
    rate: f64,
    /// How many times what they take without a queue answers took; none without yardsticks.
    stretch: Option<f64>,
}

/// What calls of one method take at one node while nothing is queued.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    known: Times,
    moved: Duration,
    /// What it would be by the answers at the lowered limit.
    trial: Times,
}

/// What answers take, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    /// A quarter of them is quicker.
    quarter: f64,
    mean: f64,
    /// Answers that it is made of; none while it is unknown.
    answers: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Window {
    answers: u32,
    queued: u32,
    first: Duration,
    last: Duration,
    /// Answers that have a yardstick.
    judged: u32,
    quick: u32,
    /// Seconds that these took, and that they would have taken without a queue.
    took: f64,
    needed: f64,
}

impl Limiter {
    /// One that knows nothing, for so many yardsticks.
    pub fn new(settings: LimiterSettings, cells: usize) -> Limiter {
        let limit = f64::from(LIMIT_START.clamp(settings.limit_min, settings.limit_max));
        Limiter {
            settings,
            limit,
            epoch: 0,
            cells: vec![Cell::default(); cells],
            limited_since: None,
            unqueued_in_row: 0,
            window: Window::default(),
            phase: Phase::Steady,
            before: None,
            trouble_at: limit,
            starting: true,
            probed: None,
        }
    }

    /// Calls that may be under way.
    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// Counts changes of the limit.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether calls have waited of late, so that every answer is wanted.
    pub fn is_limited(&self) -> bool {
        self.limited_since.is_some()
    }

    /// A node answered.
    pub fn heard(&mut self, now: Duration, heard: Heard) {
        let took = heard.took.as_secs_f64().max(1e-6);
        if heard.queued {
            self.unqueued_in_row = 0;
            if self.limited_since.is_none() {
                self.limited_since = Some(now);
                self.window = Window::default();
            }
        } else {
            self.unqueued_in_row = self.unqueued_in_row.saturating_add(1);
            if self.unqueued_in_row >= IDLE_AFTER {
                self.rest();
            }
        }
        if self.limited_since.is_none() {
            if let Some(cell) = self.cells.get_mut(heard.cell) {
                cell.learn(now, took);
            }
            return;
        }
        if heard.epoch != self.epoch {
            return;
        }
        self.take_in(now, heard, took);
        if self.is_window_full(now) {
            self.judge(now);
        }
    }

    /// Nobody waits any more: what was being tried is given up.
    fn rest(&mut self) {
        if self.limited_since.take().is_none() {
            return;
        }
        if let (Phase::Halved | Phase::Doubled, Some(before)) = (self.phase, self.before) {
            self.set(before.limit);
        }
        self.phase = Phase::Steady;
        self.before = None;
        self.window = Window::default();
    }

    fn take_in(&mut self, now: Duration, heard: Heard, took: f64) {
        let is_tried = self.is_lowered();
        let window = &mut self.window;
        if window.answers == 0 {
            window.first = now;
        }
        window.last = now;
        window.answers += 1;
        window.queued += u32::from(heard.queued);
        let Some(cell) = self.cells.get_mut(heard.cell) else { return };
        if is_tried {
            cell.trial.take_in(took);
        }
        if cell.known.answers == 0 {
            return;
        }
        window.judged += 1;
        if took <= cell.known.quarter * QUICK_TIMES + QUICK_SECONDS {
            window.quick += 1;
        }
        window.took += took;
        window.needed += cell.known.mean;
    }

    fn is_window_full(&self, now: Duration) -> bool {
        let window = &self.window;
        let lasted = now.saturating_sub(window.first);
        if window.answers < WINDOW_MIN {
            return window.answers >= WINDOW_FEW && lasted >= WINDOW_TIME_MAX;
        }
        let compares = self.phase != Phase::Steady || self.is_lowered();
        if !compares && window.quick == 0 && window.is_far_too_high() {
            return true;
        }
        let wanted = (self.limit as u32).clamp(WINDOW_MIN, WINDOW_MAX);
        let wanted = if compares { wanted.max(COMPARED_MIN) } else { wanted };
        (window.answers >= wanted && lasted >= WINDOW_TIME_MIN) || lasted >= WINDOW_TIME_MAX
    }

    /// Whether the limit is down to about half of what it was, so that throughputs tell.
    fn is_lowered(&self) -> bool {
        let down = |before: Level| self.limit <= before.limit * 0.55;
        matches!(self.phase, Phase::Halved | Phase::Doubled) || self.before.is_some_and(down)
    }

    fn judge(&mut self, now: Duration) {
        let window = std::mem::take(&mut self.window);
        if window.queued * 2 < window.answers {
            return;
        }
        let level = self.level(&window);
        match (self.phase, self.before) {
            (Phase::Gauging, _) if self.is_at_min() => {
                self.phase = Phase::Doubled;
                return self.change(level, 2.0);
            }
            (Phase::Gauging, _) => {
                self.phase = Phase::Halved;
                return self.change(level, 0.5);
            }
            (Phase::Doubled, Some(before)) => return self.compare_doubled(now, level, before),
            (_, Some(before)) if self.is_lowered() => {
                return self.compare(now, level, before, &window);
            }
            _ => {}
        }
        if window.judged * 4 < window.answers {
            // Too little is known to go by latency.
            self.phase = Phase::Gauging;
        } else if window.has_quick() {
            self.keep_or_grow(now, &window);
        } else {
            self.shrink(now, level, &window);
        }
    }

    fn is_at_min(&self) -> bool {
        self.limit <= f64::from(self.settings.limit_min)
    }

    fn level(&self, window: &Window) -> Level {
        let spent = window.last.saturating_sub(window.first).as_secs_f64().max(1e-6);
        let stretch = (window.judged > 0).then(|| window.took / window.needed);
        Level { limit: self.limit, rate: f64::from(window.answers - 1) / spent, stretch }
    }

    /// The limit is about half of what it was: whether fewer calls are answered now.
    fn compare(&mut self, now: Duration, level: Level, before: Level, window: &Window) {
        let is_shorter = match (level.stretch, before.stretch) {
            (Some(now), Some(before)) => now < before * FOLLOWS,
            _ => false,
        };
        if level.rate <= before.rate * FOLLOWS && !is_shorter {
            // There was room, so that calls took what they take, and the limit was no trouble.
            self.cells.iter_mut().for_each(Cell::adopt);
            self.trouble_at = f64::MAX;
            return self.settle(now, before.limit);
        }
        // Half of them had only waited.
        self.starting = false;
        self.trouble_at = before.limit;
        if self.phase == Phase::Halved {
            if !self.is_at_min() {
                return self.change(level, 0.5);
            }
            self.cells.iter_mut().filter(|cell| cell.known.answers == 0).for_each(Cell::adopt);
            return self.settle(now, self.limit);
        }
        self.before = None;
        if window.has_quick() {
            self.keep_or_grow(now, window);
        } else {
            self.shrink(now, level, window);
        }
    }

    /// The limit is twice the lowest: whether that is of use.
    fn compare_doubled(&mut self, now: Duration, level: Level, before: Level) {
        if level.rate * FOLLOWS > before.rate {
            self.cells.iter_mut().for_each(Cell::adopt);
            self.trouble_at = f64::MAX;
            self.settle(now, self.limit);
        } else {
            self.settle(now, before.limit);
        }
    }

    /// What throughput had to say is said.
    fn settle(&mut self, now: Duration, limit: f64) {
        self.cells.iter_mut().for_each(Cell::forget_trial);
        (self.phase, self.before, self.probed) = (Phase::Steady, None, Some(now));
        self.set(limit);
    }

    /// Some node has room.
    fn keep_or_grow(&mut self, now: Duration, window: &Window) {
        self.before = None;
        let limited = self.limited_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let due = self.probed.is_none_or(|probed| now.saturating_sub(probed) >= PROBE_EVERY);
        if limited >= PROBE_AFTER && due {
            self.phase = Phase::Gauging;
            return;
        }
        if window.took > window.needed * STRETCHED {
            return;
        }
        let more = if self.starting {
            self.limit
        } else if self.limit < self.trouble_at / 2.0 {
            // Far from where it was too much: whatever that was, it has passed.
            self.limit / 2.0
        } else {
            self.limit / 10.0
        };
        self.set(self.limit + more.max(0.5));
    }

    /// No node has room.
    fn shrink(&mut self, now: Duration, level: Level, window: &Window) {
        self.starting = false;
        let since_probe = self.probed.map_or(PROBE_EVERY, |probed| now.saturating_sub(probed));
        if self.is_at_min() {
            if since_probe >= PROBE_AT_MIN_EVERY {
                self.phase = Phase::Gauging;
            }
            return;
        }
        self.trouble_at = self.limit;
        let level = self.before.unwrap_or(level);
        self.change(level, window.shrink());
    }

    fn change(&mut self, before: Level, times: f64) {
        self.before = Some(before);
        self.cells.iter_mut().for_each(Cell::forget_trial);
        self.set(self.limit * times);
    }

    fn set(&mut self, limit: f64) {
        let (least, most) = (self.settings.limit_min, self.settings.limit_max);
        self.limit = limit.clamp(f64::from(least), f64::from(most));
        self.epoch = self.epoch.wrapping_add(1);
        self.window = Window::default();
    }
}

impl Window {
    /// The place of the answer that decides, counted from the quickest.
    fn rank(&self) -> u32 {
        (self.judged / QUICK_ONE_OF).max(1)
    }

    fn has_quick(&self) -> bool {
        self.quick >= self.rank()
    }

    fn is_far_too_high(&self) -> bool {
        self.took > self.needed * FAR_TOO_HIGH * ROOM
    }

    /// What to multiply the limit by: calls that take twice as long as they need are twice as many
    /// as the nodes work on (Little's law).
    fn shrink(&self) -> f64 {
        if self.is_far_too_high() {
            return 1.0 / FAR_TOO_HIGH;
        }
        (ROOM * self.needed / self.took.max(1e-9)).clamp(SHRINK_MOST, SHRINK_LEAST)
    }
}

impl Cell {
    fn learn(&mut self, now: Duration, took: f64) {
        if self.known.answers >= LEARN_FAST && now.saturating_sub(self.moved) < LEARN_EVERY {
            return;
        }
        self.known.take_in(took);
        self.moved = now;
    }

    fn adopt(&mut self) {
        if self.trial.answers > 0 {
            self.known = self.trial;
        }
        self.forget_trial();
    }

    fn forget_trial(&mut self) {
        self.trial = Times::default();
    }
}

impl Times {
    fn take_in(&mut self, took: f64) {
        self.answers = self.answers.saturating_add(1);
        if self.answers == 1 {
            (self.quarter, self.mean) = (took, took);
            return;
        }
        // Long steps at first, so that the first answer does not count for more than the others.
        let answers = f64::from(self.answers);
        let step = (0.5 / answers).max(LEARN_STEP);
        self.quarter = if took > self.quarter {
            took.min(self.quarter * (1.0 + step))
        } else {
            took.max(self.quarter * (1.0 - (3.0 * step).min(0.5)))
        };
        self.mean += (took - self.mean) * (1.0 / answers).max(LEARN_STEP);
    }
}
