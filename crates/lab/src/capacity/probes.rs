//! The plan of each probe, made from the plan of the search, and what the search will cost.

use std::sync::Arc;
use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::lint::{few_samples, samples};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{Late, Model, Plan, Scenario, Stage};
use lab_model::results::Quantiles;
use lab_model::results::capacity::{Kind, SearchFacts};

use crate::analysis::search::{Settings, estimate};
use crate::capacity::course::CapacityFault;

/// Calls that a baseline should see at least; below, its median says little.
const BASELINE_CALLS: f64 = 20.0;
/// Iterations that may wait for a worker in a probe are those of this time. A rate that is too high
/// shows itself by what is given up as well as by an endless queue, which the target would have to
/// work off after the probe.
const QUEUE: Duration = Duration::from_secs(2);
/// At least so many may wait, so that low rates do not lose iterations by a hiccup.
const QUEUE_MIN: usize = 100;
/// Calls that must lie beyond a percentile for it to be judged.
const BEYOND_MIN: f64 = 10.0;
/// Longest time that a probe is made longer for that.
const NEEDED_MAX: Duration = Duration::from_secs(300);
/// What a run takes beside its load: finding out who the target is, a look at the idle hosts, and
/// calls that are still under way.
const RUN_OVERHEAD: Duration = Duration::from_secs(2);

/// What probes are made from.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    plan: Plan,
    /// Each scenario's part of the whole rate.
    parts: Vec<f64>,
    pub(super) settings: Settings,
    pub(super) warnings: Vec<String>,
}

impl Probes {
    /// # Errors
    /// If the plan has scenarios whose load is no rate.
    pub(super) fn of(plan: &Plan) -> Result<Probes, CapacityFault> {
        let closed = plan.scenarios.iter().find(|scenario| scenario.model == Model::Closed);
        if let Some(scenario) = closed {
            return Err(CapacityFault::Closed { scenario: scenario.name.clone() });
        }
        let levels: Vec<f64> = plan.scenarios.iter().map(level).collect();
        let sum: f64 = levels.iter().sum();
        let equal = 1.0 / levels.len() as f64;
        let parts = levels.iter().map(|level| if sum > 0.0 { level / sum } else { equal });
        let asked = &plan.capacity;
        let judged = baseline_time(plan).saturating_sub(asked.probe_warmup).as_secs_f64();
        let least = BASELINE_CALLS / judged.max(1.0);
        let settings = Settings {
            rate_start: asked.rate_start,
            rate_max: asked.rate_max,
            rate_baseline: (asked.rate_start / 2.0).max(least).min(asked.rate_start),
            precision: asked.precision,
            repeats: asked.repeats.max(1),
            soak: !asked.soak.is_zero(),
        };
        // How many calls judge a percentile is a matter of the probe's rate and not of the plan's.
        let mut few = Vec::new();
        few_samples(plan, &mut few);
        let mut plan = plan.clone();
        plan.warnings.retain(|warning| !few.contains(warning));
        let warnings = plan.warnings.clone();
        let mut own = Probes { parts: parts.collect(), plan, settings, warnings };
        own.without_stages();
        Ok(own)
    }

    /// A probe has one stage, so objectives about a stage are judged over all of it.
    fn without_stages(&mut self) {
        for threshold in &mut self.plan.thresholds {
            if threshold.selector.stages.take().is_some() {
                self.warnings.push(format!(
                    "{}: a probe is one stage, so it is judged over the whole probe",
                    threshold.text
                ));
            }
            // Whoever looks for the boundary wants whole probes on both sides of it.
            threshold.abort = false;
        }
    }

    /// The objectives of every probe.
    pub(super) fn objectives(&self) -> &[Threshold] {
        &self.plan.thresholds
    }

    pub(super) fn methods(&self) -> &[Box<str>] {
        &self.plan.methods
    }

    /// The plan that probes are made from.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Sets objectives for a plan that has none, from what the first baseline showed, and says why
    /// these; none if the plan has its own.
    pub(super) fn set_default_objectives(&mut self, baseline: &Quantiles) -> Option<String> {
        if !self.plan.thresholds.is_empty() {
            return None;
        }
        let limit = (SLOWER * baseline.p99_ms).max(SLOW_MS);
        // Two digits: it is a rule of thumb.
        let scale = 10_f64.powf(1.0 - limit.log10().floor());
        let limit = (limit * scale).ceil() / scale;
        self.plan.thresholds = vec![
            objective(Metric::Failed, Aggregation::Rate, 0.01, "failed rate<0.01".to_owned()),
            objective(Metric::Limited, Aggregation::Rate, 0.01, "limited rate<0.01".to_owned()),
            objective(
                Metric::Latency,
                Aggregation::Percentile(99.0),
                limit,
                format!("latency p(99)<{limit}"),
            ),
        ];
        Some(format!(
            "the plan has no objectives, so these are used: at most 1 % failed, at most 1 % answered \
             429, and a p99 below {limit} ms, which is {SLOWER} times that of the idle target \
             ({:.1} ms), as a queue at 90 % of its capacity has, but at least {SLOW_MS} ms, which \
             people hardly notice",
            baseline.p99_ms
        ))
    }

    /// How long a probe of a kind at a rate loads, its warm-up included: as long as was asked, or as
    /// the percentiles of the objectives need, within a limit.
    pub(super) fn time(&self, kind: Kind, rate: f64) -> Duration {
        let asked = &self.plan.capacity;
        match kind {
            Kind::Baseline => baseline_time(&self.plan),
            Kind::Soak => asked.probe_warmup + asked.soak.max(self.needed(rate)),
            Kind::Climb | Kind::Bisect | Kind::Repeat => {
                asked.probe.max(asked.probe_warmup + self.needed(rate))
            }
        }
    }

    /// Time after the warm-up in which each percentile gets enough calls beyond it.
    fn needed(&self, rate: f64) -> Duration {
        let second = self.staged(rate, Duration::from_secs(1));
        let of = |threshold: &Threshold| {
            let Aggregation::Percentile(percent) = threshold.aggregation else { return None };
            let beyond = samples(&second, threshold)? * (1.0 - percent / 100.0);
            // Objectives by window are judged by each window, however long the probe is.
            (beyond > 0.0 && threshold.window.is_none()).then(|| BEYOND_MIN / beyond)
        };
        let seconds = self.plan.thresholds.iter().filter_map(of).fold(0.0, f64::max);
        Duration::from_secs_f64(seconds.ceil().min(NEEDED_MAX.as_secs_f64()))
    }

    /// The plan of one probe: every scenario at its part of the rate, from the start to the end.
    pub(super) fn probe(&self, kind: Kind, rate: f64) -> Arc<Plan> {
        let mut plan = self.staged(rate, self.time(kind, rate));
        plan.warmup = plan.capacity.probe_warmup;
        let mut few = Vec::new();
        if kind != Kind::Baseline {
            few_samples(&plan, &mut few);
        }
        plan.warnings.extend(few);
        Arc::new(plan)
    }

    /// The plan with every scenario at its part of a rate for so long.
    fn staged(&self, rate: f64, duration: Duration) -> Plan {
        let mut plan = self.plan.clone();
        for (index, (scenario, part)) in plan.scenarios.iter_mut().zip(&self.parts).enumerate() {
            let level = rate * part;
            scenario.start = Duration::ZERO;
            scenario.iterations_max = None;
            if let Model::Open { late: Late::Queue { max } } = &mut scenario.model {
                *max = (*max).min((level * QUEUE.as_secs_f64()).ceil() as usize).max(QUEUE_MIN);
            }
            scenario.stages =
                vec![Stage { index, name: "probe".to_owned(), duration, from: level, to: level }];
        }
        plan
    }

    pub(super) fn facts(&self) -> SearchFacts {
        let asked = &self.plan.capacity;
        SearchFacts {
            rate_start: asked.rate_start,
            rate_max: asked.rate_max,
            precision: asked.precision,
            probe: asked.probe.as_secs_f64(),
            probe_warmup: asked.probe_warmup.as_secs_f64(),
            repeats: asked.repeats,
            drain: asked.drain.as_secs_f64(),
            soak: asked.soak.as_secs_f64(),
            rate_baseline: self.settings.rate_baseline,
        }
    }
}

/// The largest level that a scenario plans, by which its part of a probe's rate goes.
fn level(scenario: &Scenario) -> f64 {
    scenario.stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
}

/// A baseline needs no tail, so half of the judged time is enough.
fn baseline_time(plan: &Plan) -> Duration {
    let asked = &plan.capacity;
    asked.probe_warmup + asked.probe.saturating_sub(asked.probe_warmup) / 2
}

/// In a queue with random arrivals and service every percentile is 1 ÷ (1 − utilisation) times that
/// without waiting (M/M/1; Kleinrock, Queueing Systems, 1975): ten times at 90 %.
const SLOWER: f64 = 10.0;
/// The limit of what feels immediate (Nielsen, Usability Engineering, 1993, 5.5). Below it, ten times
/// the p99 of a fast local target would be the jitter of a scheduler.
const SLOW_MS: f64 = 100.0;

fn objective(metric: Metric, aggregation: Aggregation, limit: f64, text: String) -> Threshold {
    Threshold {
        selector: Selector { metric, method: None, stages: None },
        aggregation,
        operator: Operator::Less,
        limit,
        window: None,
        sustained: Duration::ZERO,
        abort: false,
        abort_delay: Duration::ZERO,
        no_data_fails: true,
        text,
    }
}

/// What a search will cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Probes of the shortest and the longest search, baselines included.
    pub probes: (usize, usize),
    /// Time of both.
    pub time: (Duration, Duration),
}

/// What a search by this plan will cost, for a target that is neither noisy nor slow to come back.
///
/// # Errors
/// If the plan cannot be searched.
pub fn cost(plan: &Plan) -> Result<Cost, CapacityFault> {
    let probes = Probes::of(plan)?;
    let drain = plan.capacity.drain;
    let one = |kind, rate, drains: u32| {
        (probes.time(kind, rate) + RUN_OVERHEAD + drain * drains).as_secs_f64()
    };
    let estimated = estimate(&probes.settings, one);
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    Ok(Cost { probes: estimated.probes, time: (time(estimated.cost.0), time(estimated.cost.1)) })
}
