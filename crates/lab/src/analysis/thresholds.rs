//! Evaluates the thresholds of a run, second by second.
//!
//! A threshold is evaluated in one of three ways:
//! - without `window` and `sustained`: over the whole run after the warm-up, as in k6. The value at
//!   the end counts;
//! - with `window`: over a sliding window that moves each second, or in longer steps if the window
//!   is longer than a minute. One window outside the limit breaks the threshold. With `sustained`,
//!   the windows must stay outside for that time;
//! - with `sustained` alone: over windows of one second, which must stay outside for that time.
//!
//! Windows cover only the time of the stages that a threshold selects. They ignore later seconds,
//! because only late calls end in these seconds. The caller leaves out the warm-up.

use std::collections::VecDeque;
use std::time::Duration;

use lab_engine::aggregate;
use lab_model::metrics::{Collected, Counts, Kind, Metric, Selector};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{Plan, Span};
use lab_model::record::Totals;
use lab_model::results::ThresholdOutcome;

pub mod subscriptions;

#[cfg(test)]
mod tests;

/// Maximum number of steps of a window. A step lasts at least a second, and a window moves by one
/// step. Longer windows have longer steps, which limits memory.
const WINDOW_STEPS_MAX: u32 = 60;

/// Evaluates the thresholds of one run.
#[derive(Debug)]
pub struct Judge {
    /// The collected data. Thresholds with the same selector and window share an entry.
    collectors: Vec<Collector>,
    /// The states of the thresholds, in the order of the plan.
    thresholds: Vec<ThresholdState>,
    /// Evaluates the same thresholds with the lower bounds of the latencies, which exclude the
    /// delays that the generator itself caused.
    least: Option<Box<Judge>>,
}

/// The outcome of one threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct ThresholdResult {
    /// The outcome for the report, without its note.
    pub outcome: ThresholdOutcome,
    /// The content of the note; `None` if the outcome needs no note.
    pub remark: Option<Remark>,
    /// True if the server's own error responses broke the threshold, so the generator cannot be the
    /// cause. These responses must be more than half of the counted calls. For a threshold over the
    /// whole run that did not abort the run, the share of these responses among all calls must also
    /// be outside the limit.
    pub is_server_fault: bool,
    /// True if the threshold is about the latency, and would be broken even without the delays that
    /// the generator itself caused.
    pub breaks_without_delays: bool,
    /// Distance from the limit of a broken threshold to the observed value, in the threshold's
    /// unit. With `sustained`, the value stayed at least that far outside of the limit for the
    /// whole breach. Infinite if missing data broke the threshold. `None` if the threshold was
    /// kept, or if the distance is unknown.
    pub excess: Option<f64>,
}

/// Details of a threshold's outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Remark {
    /// There was no data.
    NoData {
        /// True if missing data breaks the threshold.
        fails: bool,
    },
    /// The threshold aborted the run, but its value was within the limit again at the end.
    Recovered,
    /// The value was outside the limit for at least `sustained`.
    BrokenFor {
        /// Duration of the breach, in seconds.
        lasted: f64,
        /// Length of a window, in seconds.
        window: f64,
    },
    /// The reported value comes from the worst window.
    WorstOf {
        /// Number of windows.
        windows: u64,
        /// Length of a window, in seconds.
        window: f64,
    },
}

impl Judge {
    /// Creates the thresholds of a plan, without data.
    pub fn new(plan: &Plan) -> Judge {
        Judge { least: Some(Box::new(Judge::without_least(plan))), ..Judge::without_least(plan) }
    }

    fn without_least(plan: &Plan) -> Judge {
        let mut collectors: Vec<Collector> = Vec::new();
        let mut thresholds = Vec::new();
        for threshold in &plan.thresholds {
            let window = effective_window(threshold);
            let has_same_data = |collector: &Collector| {
                collector.selector == threshold.selector && collector.window == window
            };
            let existing = collectors.iter().position(has_same_data);
            let collector_index = existing.unwrap_or_else(|| {
                collectors.push(Collector::new(plan, threshold.selector.clone(), window));
                collectors.len() - 1
            });
            let method = threshold.selector.method.and_then(|index| plan.methods.get(index));
            let method = method.map(|name| name.to_string());
            thresholds.push(ThresholdState {
                threshold: threshold.clone(),
                method,
                collector_index,
                windows: 0,
                worst: None,
                breach: None,
                broken: None,
                aborting_breach: None,
            });
        }
        Judge { collectors, thresholds, least: None }
    }

    /// Adds the calls that ended between `from` and `to`, since the start of the run. Returns true
    /// if a threshold aborts the run.
    pub fn add_second(&mut self, from: Duration, to: Duration, totals: &Totals) -> bool {
        for collector in &mut self.collectors {
            collector.add(from, to, totals);
        }
        if let Some(least) = &mut self.least {
            let least_totals = totals.with_least_latency();
            least.add_second(from, to, least_totals.as_ref().unwrap_or(totals));
        }
        let mut abort = false;
        for threshold in &mut self.thresholds {
            abort |= threshold.update(&self.collectors[threshold.collector_index], from, to);
        }
        abort
    }

    /// Ends the run. A window that was never full is judged by the data that it has.
    pub fn end(&mut self, at: Duration) {
        if let Some(least) = &mut self.least {
            least.end(at);
        }
        for (index, collector) in self.collectors.iter_mut().enumerate() {
            let mut thresholds = self
                .thresholds
                .iter_mut()
                .filter(|threshold| threshold.collector_index == index)
                .peekable();
            if thresholds.peek().is_some_and(|threshold| threshold.windows == 0) {
                collector.end();
                thresholds.for_each(|threshold| _ = threshold.update(collector, at, at));
            }
        }
    }

    /// Returns the outcomes so far, in the order of the plan.
    pub fn threshold_results(&self) -> Vec<ThresholdResult> {
        let least = self.least.as_ref().map(|least| least.threshold_results());
        let breaks_least = |index: usize| {
            let result = least.as_ref().and_then(|results| results.get(index));
            result.is_some_and(|result| !result.outcome.kept)
        };
        let result_of = |(index, threshold): (usize, &ThresholdState)| {
            let result = threshold.threshold_result(&self.collectors[threshold.collector_index]);
            let is_latency = threshold.threshold.selector.metric == Metric::Latency;
            let has_data = result.outcome.observed.is_some();
            let is_broken = !result.outcome.kept && is_latency && has_data;
            ThresholdResult { breaks_without_delays: is_broken && breaks_least(index), ..result }
        };
        self.thresholds.iter().enumerate().map(result_of).collect()
    }
}

/// Returns the length of the windows in which a threshold is judged; `None` for the whole run.
fn effective_window(threshold: &Threshold) -> Option<Duration> {
    let if_sustained = (!threshold.sustained.is_zero()).then_some(Duration::from_secs(1));
    threshold.window.or(if_sustained)
}

/// Data of all thresholds with the same selector and window. A selector names the metric, and the
/// method and stages to which a threshold applies.
#[derive(Debug)]
struct Collector {
    selector: Selector,
    /// Length of a window; `None` if the data cover the whole run.
    window: Option<Duration>,
    /// Times at which the selected stages run.
    spans: Vec<Span>,
    /// Data of the whole run, or of the current window.
    sum: Sum,
    /// The incomplete step.
    step: Sum,
    /// Length of a step; at least a second.
    step_length: Duration,
    /// The completed steps of the window, oldest first.
    steps: VecDeque<Step>,
    /// True if the window is full and the newest second moved it.
    has_moved: bool,
    /// The end of the last second that was added to the window.
    window_end: Duration,
}

/// A completed step of a window. Its histogram is stored as a list of the non-empty buckets, which
/// takes far less memory.
#[derive(Debug)]
struct Step {
    /// Counts of calls.
    counts: Counts,
    seconds: f64,
    /// Time in nanoseconds and number of calls of each bucket.
    times: Vec<(u64, u64)>,
}

/// Collected data, and the number of seconds under load that they cover.
#[derive(Debug, Default)]
struct Sum {
    /// Times and counts of the calls.
    collected: Collected,
    seconds: f64,
}

impl Sum {
    /// Removes all data.
    fn clear(&mut self) {
        self.collected.times.reset();
        (self.collected.counts, self.seconds) = (Counts::default(), 0.0);
    }
}

impl Collector {
    /// Creates a collector without data.
    fn new(plan: &Plan, selector: Selector, window: Option<Duration>) -> Collector {
        let spans = plan.spans().filter(|(_, stage, _)| selector.selects_stage(stage.index));
        let spans = spans.map(|(_, _, span)| span).collect();
        let step_length = window.unwrap_or_default() / WINDOW_STEPS_MAX;
        Collector {
            selector,
            window,
            spans,
            sum: Sum::default(),
            step: Sum::default(),
            step_length: step_length.max(Duration::from_secs(1)),
            steps: VecDeque::new(),
            has_moved: false,
            window_end: Duration::ZERO,
        }
    }

    /// Adds the calls that ended between `from` and `to`. Moves the window if a step is complete.
    fn add(&mut self, from: Duration, to: Duration, totals: &Totals) {
        let loaded_time = self.loaded_time(from, to);
        let Some(window) = self.window else {
            self.selector.collect(totals, &mut self.sum.collected);
            self.sum.seconds += loaded_time.as_secs_f64();
            return;
        };
        self.has_moved = false;
        // Windows leave out seconds of which less than half was under load.
        if loaded_time * 2 < to.saturating_sub(from) || loaded_time.is_zero() {
            return;
        }
        self.window_end = to;
        self.selector.collect(totals, &mut self.step.collected);
        self.step.seconds += loaded_time.as_secs_f64();
        // The seconds of a run are not exactly one second long, so half a second of slack is
        // allowed.
        let slack = Duration::from_millis(500);
        if seconds(self.step.seconds) + slack < self.step_length {
            return;
        }
        self.close_step();
        let covered: Duration = self.steps.iter().map(|step| seconds(step.seconds)).sum();
        let oldest = self.steps.front().map_or(Duration::ZERO, |step| seconds(step.seconds));
        if covered.saturating_sub(oldest) + slack >= window {
            self.steps.pop_front();
        }
        if covered + slack >= window {
            self.has_moved = true;
            self.sum_steps();
        }
    }

    /// Ends the run. A window that was never full is judged by the data that it has.
    fn end(&mut self) {
        self.has_moved = false;
        if self.window.is_some()
            && (self.step.seconds > 0.0 || self.step.collected.counts != Counts::default())
        {
            self.close_step();
        }
        if self.window.is_some() && !self.steps.is_empty() {
            self.sum_steps();
            self.has_moved = true;
        }
    }

    /// Closes the incomplete step.
    fn close_step(&mut self) {
        let recorded = self.step.collected.times.iter_recorded();
        let times = recorded.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()));
        let times = times.collect();
        self.steps.push_back(Step {
            counts: self.step.collected.counts,
            seconds: self.step.seconds,
            times,
        });
        self.step.clear();
    }

    /// Sets `sum` to the data of all steps of the window.
    fn sum_steps(&mut self) {
        self.sum.clear();
        for step in &self.steps {
            self.sum.collected.counts.add(step.counts);
            self.sum.seconds += step.seconds;
            for &(value, count) in &step.times {
                self.sum.collected.times.saturating_record_n(value, count);
            }
        }
    }

    /// Returns the part of `from..to` in which at least one selected stage ran.
    fn loaded_time(&self, from: Duration, to: Duration) -> Duration {
        // Stages of several scenarios overlap; their common time is counted once.
        let mut spans: Vec<Span> = self.spans.clone();
        spans.sort_by_key(|span| span.from);
        let (mut counted_until, mut loaded_time) = (from, Duration::ZERO);
        for span in spans {
            loaded_time += span.overlap(counted_until, to);
            counted_until = counted_until.max(span.to);
        }
        loaded_time
    }

    /// Returns the aggregated value in the threshold's unit. `None` without data.
    fn value(&self, aggregation: Aggregation) -> Option<f64> {
        let times = &self.sum.collected.times;
        // The metric counts `counted` of `total` calls.
        let Counts { counted, total, .. } = self.sum.collected.counts;
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
            (Kind::Share, _) => (total > 0).then(|| aggregate::share(counted, total)),
            (Kind::Counter, Aggregation::Rate) => {
                (seconds > 0.0).then(|| aggregate::per_second(counted, seconds))
            }
            (Kind::Counter, _) => (seconds > 0.0).then_some(counted as f64),
        }
    }
}

/// Converts seconds to a duration.
fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Returns true if `value` is within the threshold's limit.
fn is_within_limit(threshold: &Threshold, value: f64) -> bool {
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

/// The state of one threshold.
#[derive(Debug)]
struct ThresholdState {
    threshold: Threshold,
    /// Name of the method that the threshold selects; `None` for all methods.
    method: Option<String>,
    /// Index of the threshold's data in `Judge::collectors`.
    collector_index: usize,
    /// Number of judged windows.
    windows: u64,
    /// The worst value of a window, with the counts of that window.
    worst: Option<(f64, Counts)>,
    /// The current breach; `None` while the value is within its limit.
    breach: Option<Breach>,
    /// The first breach that lasted for `sustained`, with its length. From then on the threshold
    /// stays broken. Always `None` without windows.
    broken: Option<(Breach, Duration)>,
    /// Start of the breach that aborted the run. From then on the threshold stays broken.
    aborting_breach: Option<Duration>,
}

/// A time in which the value is outside its limit.
#[derive(Clone, Copy, Debug)]
struct Breach {
    /// Start of the second in which the breach began.
    from: Duration,
    /// Distance from the limit to the value: the smallest distance in all windows of the breach.
    /// Without windows, the latest distance.
    excess: f64,
}

impl ThresholdState {
    /// Evaluates the second from `from` to `to`; returns true if the run must be aborted.
    fn update(&mut self, collector: &Collector, from: Duration, to: Duration) -> bool {
        let in_windows = collector.window.is_some();
        if !in_windows || collector.has_moved {
            // A second without data does not end a breach, because a server that hangs returns no
            // data.
            if let Some(value) = collector.value(self.threshold.aggregation) {
                self.record(value, collector.sum.collected.counts, from, in_windows);
            }
        }
        if let Some(breach) = self.breach.filter(|_| in_windows) {
            // Time without load does not count: no call ends in this time, so no value could end
            // the breach.
            let lasted = to.min(collector.window_end).saturating_sub(breach.from);
            // A second of the run may be slightly shorter than one second.
            let is_long = lasted + Duration::from_millis(100) >= self.threshold.sustained;
            match &mut self.broken {
                None if is_long => self.broken = Some((breach, lasted)),
                Some((broken, length)) if broken.from == breach.from => *length = lasted,
                _ => {}
            }
        }
        let aborts =
            self.threshold.abort && self.is_broken(in_windows) && to >= self.threshold.abort_delay;
        if aborts && self.aborting_breach.is_none() {
            self.aborting_breach =
                self.broken.map(|(breach, _)| breach).or(self.breach).map(|breach| breach.from);
        }
        aborts
    }

    /// Records the value of the second that starts at `from`.
    fn record(&mut self, value: f64, counts: Counts, from: Duration, in_windows: bool) {
        if is_within_limit(&self.threshold, value) {
            self.breach = None;
        } else {
            let excess = (value - self.threshold.limit).abs();
            let breach = self.breach.get_or_insert(Breach { from, excess });
            breach.excess = if in_windows { breach.excess.min(excess) } else { excess };
        }
        if in_windows {
            self.windows += 1;
            if self.worst.is_none_or(|(worst, _)| self.worse_of(worst, value) != worst) {
                self.worst = Some((value, counts));
            }
        }
    }

    /// Returns the value that is worse under the threshold's operator.
    fn worse_of(&self, a: f64, b: f64) -> f64 {
        match self.threshold.operator {
            Operator::Less | Operator::LessOrEqual => a.max(b),
            Operator::Greater | Operator::GreaterOrEqual => a.min(b),
            Operator::Equal | Operator::NotEqual if is_within_limit(&self.threshold, a) => b,
            Operator::Equal | Operator::NotEqual => a,
        }
    }

    /// Returns true if the threshold is broken now, or if an earlier breach counts for the rest of
    /// the run.
    fn is_broken(&self, in_windows: bool) -> bool {
        self.aborting_breach.is_some()
            || if in_windows { self.broken.is_some() } else { self.breach.is_some() }
    }

    /// Returns the outcome so far.
    fn threshold_result(&self, collector: &Collector) -> ThresholdResult {
        let in_windows = collector.window.is_some();
        let observed = match in_windows {
            true => self.worst.map(|(worst, _)| worst),
            false => collector.value(self.threshold.aggregation),
        };
        let broken = self.is_broken(in_windows);
        let kept = match observed {
            Some(_) => !broken,
            None => !self.threshold.no_data_fails,
        };
        let broken_at = match in_windows {
            true => self.broken.map(|(breach, _)| breach.from),
            false => self.aborting_breach.or(self.breach.map(|breach| breach.from)),
        };
        let counts = match in_windows {
            true => self.worst.map(|(_, counts)| counts).unwrap_or_default(),
            false => collector.sum.collected.counts,
        };
        let server_error_share = aggregate::share(counts.by_server, counts.total);
        let server_alone_breaks = in_windows
            || self.aborting_breach.is_some()
            || !is_within_limit(&self.threshold, server_error_share);
        let is_server_fault = !kept && server_alone_breaks && counts.by_server * 2 > counts.counted;
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
        // After an abort the value may be within its limit again. The excess is then unknown.
        let excess = match (in_windows, self.threshold.sustained.is_zero()) {
            (false, _) => self.breach.map(|breach| breach.excess),
            // One window breaks the threshold, so the worst window counts.
            (true, true) => self.worst.map(|(worst, _)| (worst - self.threshold.limit).abs()),
            (true, false) => self.broken.map(|(breach, _)| breach.excess),
        };
        let excess = if observed.is_none() { Some(f64::INFINITY) } else { excess };
        let remark = self.remark(observed);
        ThresholdResult {
            outcome,
            remark,
            is_server_fault,
            breaks_without_delays: false,
            excess: excess.filter(|_| !kept),
        }
    }

    /// Returns details of the outcome. `observed` is the reported value; `None` without data.
    fn remark(&self, observed: Option<f64>) -> Option<Remark> {
        let threshold = &self.threshold;
        if observed.is_none() {
            return Some(Remark::NoData { fails: threshold.no_data_fails });
        }
        let has_recovered = observed.is_some_and(|observed| is_within_limit(threshold, observed));
        if self.aborting_breach.is_some() && has_recovered {
            return Some(Remark::Recovered);
        }
        let window = effective_window(threshold)?.as_secs_f64();
        Some(match self.broken {
            Some((_, lasted)) if !threshold.sustained.is_zero() => {
                Remark::BrokenFor { lasted: lasted.as_secs_f64(), window }
            }
            _ => Remark::WorstOf { windows: self.windows, window },
        })
    }
}
