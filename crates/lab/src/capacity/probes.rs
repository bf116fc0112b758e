//! Derives the plan of each probe from the plan of the search, and estimates the cost of a search.
//!
//! A baseline is a short probe at a low rate, which reveals changes of the target. A soak is a long
//! probe at the highest rate that passed.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use lab_model::metrics::{Metric, Selector};
use lab_model::plan::lint::{Warning, check_samples, count_samples};
use lab_model::plan::threshold::{Aggregation, Operator, Threshold};
use lab_model::plan::{Model, Plan, Scenario, Stage};
use lab_model::results::Quantiles;
use lab_model::results::capacity::{Kind, SearchFacts};

use crate::analysis::search::judge::BEYOND_MIN;
use crate::analysis::search::{Settings, estimate};
use crate::capacity::search::CapacityFault;
use crate::run::RUN_OVERHEAD;

/// Smallest number of calls of a baseline for a stable median.
const BASELINE_CALLS_MIN: f64 = 20.0;
/// Time in which the probe's rate would fill the queue of waiting iterations. A long queue is not
/// needed, because dropped iterations also reveal a rate that is too high.
const QUEUE_TIME: Duration = Duration::from_secs(2);
/// Smallest capacity of that queue, in iterations, unless the plan sets a smaller one. At low rates
/// a short pause of the target then drops no iteration.
const QUEUE_MIN: usize = 100;
/// Probes are extended until enough calls lie beyond the percentiles, but at most to this time
/// after the warm-up.
const EXTENDED_TIME_MAX: Duration = Duration::from_secs(300);

/// The plan of a search. The plans of the probes are derived from it.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    /// The plan. If it has no thresholds, it gets default ones after the first baseline.
    pub(super) plan: Plan,
    /// Each scenario's share of the rate, in the order of the plan.
    shares: Vec<f64>,
    /// Settings of the search.
    pub(super) settings: Settings,
    /// Warnings about the plan.
    pub(super) warnings: Vec<String>,
}

impl Probes {
    /// Derives the settings of a search from its plan.
    ///
    /// # Errors
    /// Fails if the plan has a closed scenario, or one that sends signed transactions.
    pub(super) fn of(plan: &Plan) -> Result<Probes, CapacityFault> {
        let closed_scenario =
            plan.scenarios.iter().find(|scenario| scenario.model == Model::Closed);
        if let Some(scenario) = closed_scenario {
            return Err(CapacityFault::Closed { scenario: scenario.name.clone() });
        }
        let with_transactions =
            plan.scenarios.iter().find(|scenario| scenario.transactions.is_some());
        if let Some(scenario) = with_transactions {
            return Err(CapacityFault::Transactions { scenario: scenario.name.clone() });
        }
        let levels: Vec<f64> = plan.scenarios.iter().map(highest_level).collect();
        let sum: f64 = levels.iter().sum();
        let equal_share = 1.0 / levels.len() as f64;
        let shares = levels.iter().map(|level| if sum > 0.0 { level / sum } else { equal_share });
        let capacity = &plan.capacity;
        let measured_seconds =
            baseline_duration(plan).saturating_sub(capacity.probe_warmup).as_secs_f64();
        let min_rate = BASELINE_CALLS_MIN / measured_seconds.max(1.0);
        let settings = Settings {
            rate_start: capacity.rate_start,
            rate_max: capacity.rate_max,
            rate_baseline: (capacity.rate_start / 2.0).max(min_rate).min(capacity.rate_start),
            precision: capacity.precision,
            repeats: capacity.repeats.max(1),
            soak: !capacity.soak.is_zero(),
        };
        // The plan's warnings about too few calls are removed, because the number of calls depends
        // on the rate of a probe.
        let mut plan = plan.clone();
        plan.warnings.retain(|warning| !matches!(warning, Warning::FewSamples(_)));
        let warnings = plan.warnings.iter().map(ToString::to_string).collect();
        let mut probes = Probes { shares: shares.collect(), plan, settings, warnings };
        probes.remove_stages();
        Ok(probes)
    }

    /// Applies thresholds about a stage to the whole probe, because a probe has only one stage.
    /// Thresholds no longer abort a run.
    fn remove_stages(&mut self) {
        for threshold in &mut self.plan.thresholds {
            if threshold.selector.stages.take().is_some() {
                self.warnings.push(format!(
                    "{}: applies to the whole probe, because a probe has only one stage",
                    threshold.text
                ));
            }
            // A search needs complete probes on both sides of the boundary.
            threshold.abort = false;
        }
    }

    /// Sets default thresholds if the plan has none. They depend on the service times of the first
    /// baseline. Returns an explanation; `None` if the plan has its own thresholds.
    pub(super) fn set_default_thresholds(&mut self, baseline: &Quantiles) -> Option<String> {
        if !self.plan.thresholds.is_empty() {
            return None;
        }
        let exact_limit_ms = (P99_FACTOR * baseline.p99_ms).max(LIMIT_MIN_MS);
        // The limit is a rule of thumb, so two digits are enough.
        let scale = 10_f64.powf(1.0 - exact_limit_ms.log10().floor());
        let limit = (exact_limit_ms * scale).ceil() / scale;
        self.plan.thresholds = vec![
            threshold(Metric::Failed, Aggregation::Rate, 0.01, "failed rate<0.01".to_owned()),
            threshold(Metric::Limited, Aggregation::Rate, 0.01, "limited rate<0.01".to_owned()),
            threshold(
                Metric::Latency,
                Aggregation::Percentile(99.0),
                limit,
                format!("latency p(99)<{limit}"),
            ),
        ];
        Some(format!(
            "the plan has no thresholds, so these are used: at most 1 % failed, at most 1 % with HTTP \
             429, and a p99 below {limit} ms. That is {P99_FACTOR} times the p99 of the idle \
             target ({:.1} ms), as in a queue at 90 % utilisation, and at least {LIMIT_MIN_MS} ms, \
             which people hardly notice",
            baseline.p99_ms
        ))
    }

    /// Returns the duration of a probe with its warm-up. It is longer than configured if the
    /// percentiles of the thresholds need more calls.
    pub(super) fn duration(&self, kind: Kind, rate: f64) -> Duration {
        let capacity = &self.plan.capacity;
        match kind {
            Kind::Baseline => baseline_duration(&self.plan),
            Kind::Soak => {
                capacity.probe_warmup + capacity.soak.max(self.time_for_percentiles(rate))
            }
            Kind::Climb | Kind::Bisect | Kind::Repeat => {
                capacity.probe.max(capacity.probe_warmup + self.time_for_percentiles(rate))
            }
        }
    }

    /// Returns the time after the warm-up in which enough calls lie beyond every percentile of the
    /// thresholds.
    fn time_for_percentiles(&self, rate: f64) -> Duration {
        let plan_of_one_second = self.plan_at_rate(rate, Duration::from_secs(1));
        let seconds_needed = |threshold: &Threshold| {
            let Aggregation::Percentile(percent) = threshold.aggregation else { return None };
            let beyond_per_second =
                count_samples(&plan_of_one_second, threshold)? * (1.0 - percent / 100.0);
            // A longer probe does not help thresholds with a window, because each window is judged
            // alone.
            (beyond_per_second > 0.0 && threshold.window.is_none())
                .then(|| BEYOND_MIN / beyond_per_second)
        };
        let seconds = self.plan.thresholds.iter().filter_map(seconds_needed).fold(0.0, f64::max);
        Duration::from_secs_f64(seconds.ceil().min(EXTENDED_TIME_MAX.as_secs_f64()))
    }

    /// Returns the plan of one probe. Every scenario runs at its share of the rate, from the start
    /// to the end.
    pub(super) fn probe(&self, kind: Kind, rate: f64) -> Arc<Plan> {
        let mut plan = self.plan_at_rate(rate, self.duration(kind, rate));
        plan.warmup = plan.capacity.probe_warmup;
        if kind != Kind::Baseline {
            plan.warnings.extend(check_samples(&plan));
        }
        Arc::new(plan)
    }

    /// Returns the plan with one stage per scenario, at the scenario's share of the rate.
    fn plan_at_rate(&self, rate: f64, duration: Duration) -> Plan {
        let mut plan = self.plan.clone();
        for (index, (scenario, share)) in plan.scenarios.iter_mut().zip(&self.shares).enumerate() {
            let level = rate * share;
            scenario.start = Duration::ZERO;
            scenario.iterations_max = None;
            let queue_max = (level * QUEUE_TIME.as_secs_f64()).ceil() as usize;
            scenario.queue_max = scenario.queue_max.min(queue_max.max(QUEUE_MIN));
            scenario.stages =
                vec![Stage { index, name: "probe".to_owned(), duration, from: level, to: level }];
        }
        plan
    }

    /// Returns the settings of the search for its result.
    pub(super) fn facts(&self) -> SearchFacts {
        let capacity = &self.plan.capacity;
        SearchFacts {
            rate_start: capacity.rate_start,
            rate_max: capacity.rate_max,
            precision: capacity.precision,
            probe: capacity.probe.as_secs_f64(),
            probe_warmup: capacity.probe_warmup.as_secs_f64(),
            repeats: capacity.repeats,
            drain: capacity.drain.as_secs_f64(),
            soak: capacity.soak.as_secs_f64(),
            rate_baseline: self.settings.rate_baseline,
        }
    }
}

/// Returns the highest level of a scenario. The scenario's share of the rate is proportional to it.
fn highest_level(scenario: &Scenario) -> f64 {
    scenario.stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
}

/// Returns the duration of a baseline: the warm-up, and half of a probe's time after the warm-up.
/// That is enough, because a baseline needs no tail percentiles.
fn baseline_duration(plan: &Plan) -> Duration {
    let capacity = &plan.capacity;
    capacity.probe_warmup + capacity.probe.saturating_sub(capacity.probe_warmup) / 2
}

/// Default limit of the p99, as a multiple of the idle target's p99. A target at 90 % utilisation
/// is that much slower: every percentile of an M/M/1 queue grows by 1 ÷ (1 − utilisation)
/// (Kleinrock, Queueing Systems, 1975).
const P99_FACTOR: f64 = 10.0;
/// Lower bound of the default limit, in milliseconds. Users feel that a response within this time
/// is immediate (Nielsen, Usability Engineering, 1993, 5.5). For a fast local target, ten times the
/// p99 may be mere scheduler jitter.
const LIMIT_MIN_MS: f64 = 100.0;

/// Returns a threshold over all methods and the whole run: the metric must stay below `limit`.
fn threshold(metric: Metric, aggregation: Aggregation, limit: f64, text: String) -> Threshold {
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

/// Estimated cost of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// Number of probes, baselines included.
    pub probes: RangeInclusive<usize>,
    /// Duration of the search.
    pub time: RangeInclusive<Duration>,
}

/// Estimates the cost of a search for a target that is not noisy and recovers quickly.
///
/// # Errors
/// Fails if the plan cannot be searched.
pub fn estimate_cost(plan: &Plan) -> Result<Cost, CapacityFault> {
    let probes = Probes::of(plan)?;
    let drain = plan.capacity.drain;
    let probe_cost = |kind, rate, drains: u32| {
        (probes.duration(kind, rate) + RUN_OVERHEAD + drain * drains).as_secs_f64()
    };
    let estimated = estimate(&probes.settings, probe_cost);
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let ((probes_min, probes_max), (cost_min, cost_max)) = (estimated.probes, estimated.cost);
    Ok(Cost { probes: probes_min..=probes_max, time: time(cost_min)..=time(cost_max) })
}
