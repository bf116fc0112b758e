//! Whether a run kept its objectives: fed with one second after the other, asked at any time.
//!
//! Three ways to judge, by what a threshold says:
//! - neither window nor sustained-for: the number is over everything judged so far, as k6 does it;
//!   what counts is how it stands at the end;
//! - a window: the number is over the last so many seconds, each second anew; one window that broke
//!   it is enough, or, with sustained-for, an unbroken row of them that lasts so long;
//! - sustained-for alone: the same with windows of one second.
//!
//! Windows see only time in which the chosen stages were offered, because after it only stragglers
//! end. The warm-up is left out by whoever feeds it.

use std::collections::VecDeque;
use std::time::Duration;

use lab_engine::aggregate;
use lab_model::metrics::{Collected, Counts, Kind, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{Plan, Span};
use lab_model::record::Totals;
use lab_model::results::ThresholdOutcome;

#[cfg(test)]
mod tests;

/// Steps in which a window moves on; a longer window moves in longer steps, so that its memory has a
/// limit.
const WINDOW_STEPS_MAX: u32 = 60;

/// The objectives of one run.
#[derive(Debug)]
pub struct Judge {
    pools: Vec<Pool>,
    judged: Vec<Judged>,
}

/// What came of one objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Ruling {
    /// As it is reported, without its note.
    pub outcome: ThresholdOutcome,
    /// What its note says.
    pub remark: Option<Remark>,
    /// Whether what the server itself said (error answers, not silence) is enough to break it: then
    /// it is broken whatever state the generator was in.
    pub by_server: bool,
    /// How far a broken objective was outside its limit, in its unit, for as long as it had to be;
    /// none if that is not known.
    pub beyond: Option<f64>,
}

/// How an objective came to its outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remark {
    /// It had no data, and whether that breaks it.
    NoData {
        /// True if no data breaks it.
        fails: bool,
    },
    /// It ended the run, and was within its limit again at the end.
    Mended,
    /// It was broken for so long.
    BrokenFor {
        /// How long, in seconds.
        lasted: f64,
        /// Length of a window in seconds.
        window: f64,
    },
    /// Its number is that of the worst window.
    WorstOf {
        /// How many windows there were.
        windows: u64,
        /// Length of a window in seconds.
        window: f64,
    },
}

impl Judge {
    /// Nothing seen yet.
    pub fn new(plan: &Plan) -> Judge {
        let mut pools: Vec<Pool> = Vec::new();
        let mut judged = Vec::new();
        for threshold in &plan.thresholds {
            let window = window(threshold);
            let same = |pool: &Pool| pool.selector == threshold.selector && pool.window == window;
            let pool = pools.iter().position(same).unwrap_or_else(|| {
                pools.push(Pool::new(plan, threshold.selector.clone(), window));
                pools.len() - 1
            });
            let method = threshold.selector.method.and_then(|index| plan.methods.get(index));
            judged.push(Judged::new(threshold.clone(), method.map(|name| name.to_string()), pool));
        }
        Judge { pools, judged }
    }

    /// Takes what ended between `from` and `to`, and says whether the run has to end because of it.
    pub fn second(&mut self, from: Duration, to: Duration, part: &Totals) -> bool {
        for pool in &mut self.pools {
            pool.take(from, to, part);
        }
        let mut abort = false;
        for judged in &mut self.judged {
            abort |= judged.look(&self.pools[judged.pool], from, to);
        }
        abort
    }

    /// The run is over: judges windows that are longer than it was by what there is.
    pub fn end(&mut self, at: Duration) {
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let mut of_pool =
                self.judged.iter_mut().filter(|judged| judged.pool == index).peekable();
            if of_pool.peek().is_some_and(|judged| judged.windows == 0) {
                pool.end();
                of_pool.for_each(|judged| _ = judged.look(pool, at, at));
            }
        }
    }

    /// How they stand, in the order of the plan.
    pub fn rulings(&self) -> Vec<Ruling> {
        self.judged.iter().map(|judged| judged.ruling(&self.pools[judged.pool])).collect()
    }
}

fn window(threshold: &Threshold) -> Option<Duration> {
    let sustained = (!threshold.sustained.is_zero()).then_some(Duration::from_secs(1));
    threshold.window.or(sustained)
}

/// What is collected for all thresholds that look at the same thing.
#[derive(Debug)]
struct Pool {
    selector: Selector,
    window: Option<Duration>,
    /// When the chosen stages are offered.
    spans: Vec<Span>,
    /// Over everything, or over the window as it stands.
    sum: Sum,
    /// The step that is being filled, and how long one is.
    step: Sum,
    step_length: Duration,
    /// The steps of the window, oldest first.
    steps: VecDeque<Step>,
    /// Whether the window was full when it last moved, and moved at the last second.
    ready: bool,
    /// The end of the last second that moved it.
    moved_to: Duration,
}

/// A finished step of a window; its histogram is kept as what was counted, which is far smaller.
#[derive(Debug)]
struct Step {
    counts: Counts,
    seconds: f64,
    times: Vec<(u64, u64)>,
}

/// What was collected, over which time.
#[derive(Debug, Default)]
struct Sum {
    of: Collected,
    seconds: f64,
}

impl Sum {
    fn clear(&mut self) {
        self.of.times.reset();
        (self.of.counts, self.seconds) = (Counts::default(), 0.0);
    }
}

impl Pool {
    fn new(plan: &Plan, selector: Selector, window: Option<Duration>) -> Pool {
        let spans = plan.spans().filter(|(_, stage, _)| selector.selects_stage(stage.index));
        let spans = spans.map(|(_, _, span)| span).collect();
        let step = window.unwrap_or_default() / WINDOW_STEPS_MAX;
        Pool {
            selector,
            window,
            spans,
            sum: Sum::default(),
            step: Sum::default(),
            step_length: step.max(Duration::from_secs(1)),
            steps: VecDeque::new(),
            ready: false,
            moved_to: Duration::ZERO,
        }
    }

    fn take(&mut self, from: Duration, to: Duration, part: &Totals) {
        let offered = self.offered(from, to);
        let Some(window) = self.window else {
            self.selector.collect(part, &mut self.sum.of);
            self.sum.seconds += offered.as_secs_f64();
            return;
        };
        self.ready = false;
        if offered * 2 < to.saturating_sub(from) || offered.is_zero() {
            return;
        }
        self.moved_to = to;
        self.selector.collect(part, &mut self.step.of);
        self.step.seconds += offered.as_secs_f64();
        // Seconds are a little longer or shorter than one; half of one is enough to tell.
        let slack = Duration::from_millis(500);
        if seconds(self.step.seconds) + slack < self.step_length {
            return;
        }
        self.move_on();
        let covered: Duration = self.steps.iter().map(|step| seconds(step.seconds)).sum();
        let oldest = self.steps.front().map_or(Duration::ZERO, |step| seconds(step.seconds));
        if covered.saturating_sub(oldest) + slack >= window {
            self.steps.pop_front();
        }
        if covered + slack >= window {
            self.ready = true;
            self.add_up();
        }
    }

    /// At the end of the run: a window that never was full is judged as far as it was filled.
    fn end(&mut self) {
        self.ready = false;
        if self.window.is_some()
            && (self.step.seconds > 0.0 || self.step.of.counts != Counts::default())
        {
            self.move_on();
        }
        if self.window.is_some() && !self.steps.is_empty() {
            self.add_up();
            self.ready = true;
        }
    }

    /// Closes the step that is being filled.
    fn move_on(&mut self) {
        let recorded = self.step.of.times.iter_recorded();
        let times = recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()));
        let times = times.collect();
        self.steps.push_back(Step {
            counts: self.step.of.counts,
            seconds: self.step.seconds,
            times,
        });
        self.step.clear();
    }

    fn add_up(&mut self) {
        self.sum.clear();
        for step in &self.steps {
            self.sum.of.counts.add(step.counts);
            self.sum.seconds += step.seconds;
            for &(value, count) in &step.times {
                self.sum.of.times.saturating_record_n(value, count);
            }
        }
    }

    /// How much of `from..to` the chosen stages were offered.
    fn offered(&self, from: Duration, to: Duration) -> Duration {
        // Stages of several scenarios overlap; time is counted once.
        let mut parts: Vec<Span> = self.spans.clone();
        parts.sort_by_key(|span| span.from);
        let (mut reached, mut sum) = (from, Duration::ZERO);
        for span in parts {
            sum += span.overlap(reached, to);
            reached = reached.max(span.to);
        }
        sum
    }

    /// The number, in the threshold's unit; none for no data.
    fn value(&self, aggregation: Aggregation) -> Option<f64> {
        let (times, Counts { part, whole, .. }) = (&self.sum.of.times, self.sum.of.counts);
        let seconds = self.sum.seconds;
        let ms = |nanos: f64| (!times.is_empty()).then_some(nanos / 1e6);
        match (self.selector.metric.kind(), aggregation) {
            (Kind::Times, Aggregation::Min) => ms(times.min() as f64),
            (Kind::Times, Aggregation::Max) => ms(times.max() as f64),
            (Kind::Times, Aggregation::Med) => aggregate::percentile_ms(times, 50.0),
            (Kind::Times, Aggregation::Percentile(percentile)) => {
                aggregate::percentile_ms(times, percentile)
            }
            (Kind::Times, _) => ms(times.mean()),
            (Kind::Share, _) => (whole > 0).then(|| aggregate::share(part, whole)),
            (Kind::Counter, Aggregation::Rate) => {
                (seconds > 0.0).then(|| aggregate::per_second(part, seconds))
            }
            (Kind::Counter, _) => (seconds > 0.0).then_some(part as f64),
        }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Whether `value` keeps to what the threshold asks.
fn keeps(threshold: &Threshold, value: f64) -> bool {
    let limit = threshold.limit;
    match threshold.operator {
        Operator::Less => value < limit,
        Operator::LessOrEqual => value <= limit,
        Operator::Greater => value > limit,
        Operator::GreaterOrEqual => value >= limit,
        Operator::Equal => value == limit,
        Operator::NotEqual => value != limit,
    }
}

/// One threshold as it stands.
#[derive(Debug)]
struct Judged {
    threshold: Threshold,
    /// The name of the method that it is about.
    method: Option<String>,
    pool: usize,
    /// Windows that were judged.
    windows: u64,
    /// The worst value of a window, and what was counted in it.
    worst: Option<(f64, Counts)>,
    /// Start of the second in which the present breach began.
    breach: Option<Duration>,
    /// How far the present breach is outside the limit where it is nearest to it.
    beyond: Option<f64>,
    /// Start of the breach that decided, and how long it lasted; of windows only, where a breach is
    /// never made good.
    broken: Option<(Duration, Duration)>,
    /// How far that breach was outside the limit where it was nearest to it.
    broken_beyond: Option<f64>,
    /// Start of the breach that ended the run: it stays broken, whatever ends after that.
    ended: Option<Duration>,
}

impl Judged {
    fn new(threshold: Threshold, method: Option<String>, pool: usize) -> Judged {
        Judged {
            threshold,
            method,
            pool,
            windows: 0,
            worst: None,
            breach: None,
            beyond: None,
            broken: None,
            broken_beyond: None,
            ended: None,
        }
    }

    /// Looks at the second from `from` to `to`; whether the run has to end.
    fn look(&mut self, pool: &Pool, from: Duration, to: Duration) -> bool {
        let in_windows = pool.window.is_some();
        if !in_windows || pool.ready {
            // A second without data neither breaks nor mends: a server that hangs says nothing.
            if let Some(value) = pool.value(self.threshold.aggregation) {
                self.note(value, pool.sum.of.counts, from, in_windows);
            }
        }
        // While nothing is offered nothing can mend it, so that time does not count.
        let lasted = self.breach.map(|since| to.min(pool.moved_to).saturating_sub(since));
        let long_enough = |lasted: Duration| {
            // A second may be a little shorter than one.
            lasted + Duration::from_millis(100) >= self.threshold.sustained
        };
        if in_windows {
            match (self.broken, self.breach, lasted) {
                (None, Some(since), Some(lasted)) if long_enough(lasted) => {
                    self.broken = Some((since, lasted));
                    self.broken_beyond = self.beyond;
                }
                (Some((since, _)), Some(breach), Some(lasted)) if since == breach => {
                    self.broken = Some((since, lasted));
                }
                _ => {}
            }
        }
        let ends =
            self.threshold.abort && self.is_broken(in_windows) && to >= self.threshold.abort_delay;
        if ends && self.ended.is_none() {
            self.ended = self.broken.map(|(since, _)| since).or(self.breach);
        }
        ends
    }

    fn note(&mut self, value: f64, counts: Counts, from: Duration, in_windows: bool) {
        if keeps(&self.threshold, value) {
            (self.breach, self.beyond) = (None, None);
        } else {
            let beyond = (value - self.threshold.limit).abs();
            let nearest = self.beyond.map_or(beyond, |known| known.min(beyond));
            self.beyond = Some(if in_windows { nearest } else { beyond });
            self.breach.get_or_insert(from);
        }
        if in_windows {
            self.windows += 1;
            if self.worst.is_none_or(|(worst, _)| self.worse(worst, value) != worst) {
                self.worst = Some((value, counts));
            }
        }
    }

    fn worse(&self, a: f64, b: f64) -> f64 {
        match self.threshold.operator {
            Operator::Less | Operator::LessOrEqual => a.max(b),
            Operator::Greater | Operator::GreaterOrEqual => a.min(b),
            Operator::Equal | Operator::NotEqual if keeps(&self.threshold, a) => b,
            Operator::Equal | Operator::NotEqual => a,
        }
    }

    fn is_broken(&self, in_windows: bool) -> bool {
        self.ended.is_some()
            || if in_windows { self.broken.is_some() } else { self.breach.is_some() }
    }

    fn ruling(&self, pool: &Pool) -> Ruling {
        let in_windows = pool.window.is_some();
        let observed = match in_windows {
            true => self.worst.map(|(worst, _)| worst),
            false => pool.value(self.threshold.aggregation),
        };
        let broken = self.is_broken(in_windows);
        let kept = match observed {
            Some(_) => !broken,
            None => !self.threshold.no_data_fails,
        };
        let broken_at = match in_windows {
            true => self.broken.map(|(since, _)| since),
            false => self.ended.or(self.breach),
        };
        let counts = match in_windows {
            true => self.worst.map(|(_, counts)| counts).unwrap_or_default(),
            false => pool.sum.of.counts,
        };
        let server_alone = aggregate::share(counts.by_server, counts.whole);
        let by_server = !kept
            && (in_windows || self.ended.is_some() || !keeps(&self.threshold, server_alone))
            && counts.by_server * 2 > counts.part;
        let outcome = ThresholdOutcome {
            text: self.threshold.text.clone(),
            metric: Some(self.threshold.selector.metric),
            method: self.method.clone(),
            unit: Some(self.threshold.unit()),
            kept,
            observed,
            broken_at: broken_at.map(|at| at.as_secs_f64()),
            note: None,
        };
        let outside = |worst: f64| (worst - self.threshold.limit).abs();
        // What ended the run may have been mended since, and then says nothing of how far it was.
        let beyond = match (in_windows, self.threshold.sustained.is_zero()) {
            (false, _) => self.beyond,
            // One window is enough, so the worst one counts.
            (true, true) => self.worst.map(|(worst, _)| outside(worst)),
            (true, false) => self.broken_beyond,
        };
        let beyond = if observed.is_none() { Some(f64::INFINITY) } else { beyond };
        let remark = self.remark(observed);
        Ruling { outcome, remark, by_server, beyond: beyond.filter(|_| !kept) }
    }

    fn remark(&self, observed: Option<f64>) -> Option<Remark> {
        let threshold = &self.threshold;
        if observed.is_none() {
            return Some(Remark::NoData { fails: threshold.no_data_fails });
        }
        let mended = observed.is_some_and(|observed| keeps(threshold, observed));
        if self.ended.is_some() && mended {
            return Some(Remark::Mended);
        }
        let window = window(threshold)?.as_secs_f64();
        Some(match self.broken {
            Some((_, lasted)) if !threshold.sustained.is_zero() => {
                Remark::BrokenFor { lasted: lasted.as_secs_f64(), window }
            }
            _ => Remark::WorstOf { windows: self.windows, window },
        })
    }
}
