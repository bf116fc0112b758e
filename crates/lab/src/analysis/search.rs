//! The search for the highest rate that keeps the thresholds: chooses the next probe and summarizes
//! all probes.
//!
//! A probe is a short run at one rate. The history of probes is the whole state, so a search can be
//! repeated from its record. The search doubles the rate until a probe fails, and then bisects. It
//! repeats probes on both sides of the boundary between passing and failing rates until a majority
//! decides. It ends with a soak (a long run) at the highest rate that passed.
//!
//! A probe neither passes nor fails if the generator was the limit, or if the probe's numbers are
//! invalid. A baseline is a probe at a low rate. After each probe that did not pass, a baseline
//! checks if the target has recovered. The search ends after two invalid baselines in a row. Before
//! each probe the search pauses for one or more drain times; the plan configures the drain time.
//!
//! A level is a rate with all its probes (`levels.rs`).
//!
//! `judge` decides if a probe passes; `capacity.rs` starts the runs.

mod estimate;
pub mod judge;
mod levels;

use lab_model::results::capacity::{Boundary, EndReason, Kind, ProbeOutcome};

use levels::{Level, Levels, Majority};

pub use estimate::{Estimate, estimate};

/// Settings of a search. Rates are iterations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// First rate; above 0.
    pub rate_start: f64,
    /// Highest rate that is tried; at least `rate_start`.
    pub rate_max: f64,
    /// Rate of baselines; above 0.
    pub rate_baseline: f64,
    /// The search ends once the interval between pass and fail has at most this relative width;
    /// above 0.
    pub precision: f64,
    /// Number of probes on each side of the boundary; their majority decides. At least 1.
    pub repeats: usize,
    /// True if a soak confirms the highest rate that passed.
    pub soak: bool,
}

/// A finished probe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// Purpose of the probe.
    pub kind: Kind,
    /// Planned rate; exactly the value that [`next`] returned.
    pub rate: f64,
    /// Outcome of the probe.
    pub outcome: ProbeOutcome,
    /// Distance to the nearest limit, as a share of that limit. At least 0 for a pass, at most 0
    /// for a fail; `None` if unknown.
    pub margin: Option<f64>,
    /// Health of the target during the probe.
    pub health: Health,
    /// Length of the pause before the probe, as a multiple of the configured drain time.
    pub drains: u32,
}

impl Probe {
    /// Returns true for a baseline whose numbers are valid and in which the generator was not the
    /// limit.
    pub fn is_valid_baseline(&self) -> bool {
        self.kind == Kind::Baseline && is_valid(self)
    }
}

/// Health of a target during a probe. Only the health at baselines is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Health {
    /// Median service time (from the actual send), in milliseconds.
    pub p50_ms: f64,
    /// Failed calls ÷ all calls.
    pub failed_share: f64,
}

impl Health {
    /// Smallest ratio of medians that is not chance.
    const SLOWER_RATIO: f64 = 1.5;
    /// Smallest difference of medians, in milliseconds, that is not jitter of a very fast target.
    const SLOWER_MS: f64 = 0.2;
    /// Smallest difference of failure shares that is not chance.
    const FAILED_SHARE_MORE: f64 = 0.01;

    /// Returns true if this health is clearly worse than `other`.
    fn is_worse_than(&self, other: &Health) -> bool {
        self.p50_ms > other.p50_ms * Self::SLOWER_RATIO + Self::SLOWER_MS
            || self.failed_share > other.failed_share + Self::FAILED_SHARE_MORE
    }
}

/// The next step of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Make a probe.
    Probe {
        /// Purpose of the probe.
        kind: Kind,
        /// Iterations per second.
        rate: f64,
        /// Length of the pause before the probe, as a multiple of the configured drain time.
        drains: u32,
    },
    /// End the search.
    End(EndReason),
}

/// Maximum number of waits for a target to recover: two, four and eight drain times. If the target
/// is still worse after these waits, its new health becomes the reference.
const WAITS_MAX: u32 = 3;
/// The first rate is halved at most this many times while no rate passes: down to 1/64.
const HALVINGS_MAX: i32 = 6;
/// A ceiling is a rate at which the generator was the limit, or the numbers were invalid. If an
/// interval ends at a ceiling, the search narrows it only to this relative width. The width is
/// coarse, because a ceiling is no limit of the target.
const CEILING_PRECISION: f64 = 0.1;
/// The search ends after this many invalid baselines in a row.
const INVALID_BASELINES_MAX: usize = 2;
/// The search ends at once if at least this share of the first baseline's calls failed.
const BROKEN_SHARE: f64 = 0.5;
/// Maximum number of soaks. The search ends after the last one, even if no soak passed.
const SOAKS_MAX: usize = 3;
/// Smallest step down after a failed soak, as a share of the soak's rate.
const SOAK_STEP: f64 = 0.05;

/// Returns the next step. `history` has the probes in the order in which they ran.
pub fn next(settings: &Settings, history: &[Probe]) -> Step {
    if let Some(step) = next_baseline(settings, history) {
        return step;
    }
    if let [first_baseline] = history
        && is_valid(first_baseline)
        && first_baseline.health.failed_share >= BROKEN_SHARE
    {
        return Step::End(EndReason::NothingPassed);
    }
    let levels = Levels::group(history);
    if count_probes(history) >= probes_max(settings) {
        return Step::End(EndReason::ProbesMax);
    }
    if let Some(rate) = levels.contradicted_rate(settings.repeats) {
        return probe_step(Kind::Repeat, rate);
    }
    if let Some(rate) = levels.rate_once_invalid() {
        return probe_step(Kind::Repeat, rate);
    }
    match (levels.highest_pass(), levels.upper()) {
        (None, None) => probe_step(Kind::Climb, round_rate(settings.rate_start)),
        (None, Some(_)) => step_down(settings, &levels),
        (Some(pass), None) if pass < settings.rate_max => {
            probe_step(Kind::Climb, round_rate(2.0 * pass).min(settings.rate_max))
        }
        (Some(pass), upper) => narrow_interval(settings, history, &levels, pass, upper),
    }
}

/// Returns the baseline that must run before any other probe. One baseline runs at the start. After
/// a probe that did not pass, baselines run until the target has recovered. `None` if no baseline
/// is needed.
fn next_baseline(settings: &Settings, history: &[Probe]) -> Option<Step> {
    let baseline =
        |drains| Step::Probe { kind: Kind::Baseline, rate: settings.rate_baseline, drains };
    let Some(last_probe) = history.last() else { return Some(baseline(0)) };
    let recovery = recovery_drains(history);
    if last_probe.kind != Kind::Baseline {
        return (last_probe.outcome != ProbeOutcome::Pass).then(|| baseline(recovery));
    }
    match count_trailing_invalid(history) {
        0 => {}
        INVALID_BASELINES_MAX.. => return Some(Step::End(end_without_baseline(last_probe))),
        _ => return Some(baseline(recovery.max(2))),
    }
    let waits = count_trailing_worse(history);
    (1..=WAITS_MAX).contains(&waits).then(|| baseline(recovery.max(1 << waits)))
}

/// Returns the number of consecutive invalid baselines at the end of the history.
fn count_trailing_invalid(history: &[Probe]) -> usize {
    let invalid = |probe: &&Probe| probe.kind == Kind::Baseline && !is_valid(probe);
    history.iter().rev().take_while(invalid).count()
}

/// Returns why the search ends after invalid baselines. `last_probe` is the last invalid baseline.
fn end_without_baseline(last_probe: &Probe) -> EndReason {
    match last_probe.outcome {
        ProbeOutcome::ClientLimited => EndReason::ClientLimited,
        _ => EndReason::Invalid,
    }
}

/// Returns the number of consecutive baselines at the end of the history that are worse than the
/// reference health.
fn count_trailing_worse(history: &[Probe]) -> u32 {
    let Some(reference) = reference_health(history) else { return 0 };
    let trailing_baselines = history.iter().rev().take_while(|probe| probe.kind == Kind::Baseline);
    let worse = trailing_baselines
        .take_while(|probe| is_valid(probe) && probe.health.is_worse_than(&reference));
    u32::try_from(worse.count()).unwrap_or(u32::MAX)
}

/// Returns true if the numbers of a probe are valid and the generator was not the limit.
fn is_valid(probe: &Probe) -> bool {
    matches!(probe.outcome, ProbeOutcome::Pass | ProbeOutcome::Fail)
}

/// Returns the health with which baselines are compared. This is the health at the first valid
/// baseline. After a lasting change the new health replaces it, so the search waits only once for
/// the same change. `None` without a valid baseline.
fn reference_health(history: &[Probe]) -> Option<Health> {
    let mut reference: Option<Health> = None;
    let mut waits = 0;
    for probe in history {
        let is_compared = probe.is_valid_baseline();
        let is_worse = reference.is_some_and(|health| probe.health.is_worse_than(&health));
        waits = if is_compared && is_worse { waits + 1 } else { 0 };
        if is_compared && (reference.is_none() || waits > WAITS_MAX) {
            reference = Some(probe.health);
        }
    }
    reference
}

/// Returns the largest number of drain times that the target has needed to recover so far; at least
/// 1.
fn recovery_drains(history: &[Probe]) -> u32 {
    let reference = reference_health(history).unwrap_or_default();
    let has_recovered =
        |probe: &&Probe| probe.is_valid_baseline() && !probe.health.is_worse_than(&reference);
    history.iter().filter(has_recovered).map(|probe| probe.drains).max().unwrap_or(1).max(1)
}

/// Returns a probe at half the lowest rate so far. Ends the search if that rate would be too low.
fn step_down(settings: &Settings, levels: &Levels) -> Step {
    let lowest = levels.lowest().unwrap_or(settings.rate_start);
    // The slack of 1 % allows for rounded rates.
    if lowest > settings.rate_start * f64::powi(0.5, HALVINGS_MAX) * 1.01 {
        return probe_step(Kind::Climb, round_rate(lowest / 2.0));
    }
    match (levels.lowest_fail(), levels.ceiling().map(Level::majority)) {
        (None, Some(Majority::Limited)) => Step::End(EndReason::ClientLimited),
        (None, _) => Step::End(EndReason::Invalid),
        (Some(_), _) => Step::End(EndReason::NothingPassed),
    }
}

/// Returns the next step once a rate has passed. It bisects the interval between `pass` and
/// `upper`, then repeats probes at its ends, and then soaks at `pass`. `upper` is a ceiling, or a
/// level that failed; `None` if `pass` is the highest rate that was tried.
fn narrow_interval(
    settings: &Settings,
    history: &[Probe],
    levels: &Levels,
    pass: f64,
    upper: Option<&Level>,
) -> Step {
    if let Some(step) = step_after_soak(settings, history, upper) {
        return step;
    }
    let failed_upper = upper.filter(|level| level.majority() == Majority::Fail);
    if let Some(upper) = upper {
        let max_width = match failed_upper {
            Some(_) => settings.precision,
            None => settings.precision.max(CEILING_PRECISION),
        };
        let middle = round_rate(f64::midpoint(pass, upper.rate));
        if (upper.rate - pass) / pass > max_width && middle > pass && middle < upper.rate {
            return probe_step(Kind::Bisect, middle);
        }
    }
    // Probes at a ceiling are not repeated, because a ceiling is no limit of the target.
    let mut ends = [Some(pass), failed_upper.map(|level| level.rate)].into_iter().flatten();
    if let Some(rate) = ends.find(|rate| !levels.is_decided(*rate, settings.repeats)) {
        return probe_step(Kind::Repeat, rate);
    }
    if settings.soak {
        return probe_step(Kind::Soak, pass);
    }
    Step::End(reason_of_end(upper))
}

/// Returns the step after a soak. If the last soak failed, this is a soak at a lower rate, up to
/// [`SOAKS_MAX`] soaks. Otherwise it ends the search. `None` before the first soak. `upper` is the
/// upper end of the interval, as in [`reason_of_end`].
fn step_after_soak(settings: &Settings, history: &[Probe], upper: Option<&Level>) -> Option<Step> {
    let soaks: Vec<&Probe> = history.iter().filter(|probe| probe.kind == Kind::Soak).collect();
    let last_soak = soaks.last()?;
    if last_soak.outcome != ProbeOutcome::Fail {
        return Some(Step::End(reason_of_end(upper)));
    }
    if soaks.len() >= SOAKS_MAX {
        // The failed soak is the upper end of the interval.
        return Some(Step::End(EndReason::Converged));
    }
    let step = settings.precision.max(SOAK_STEP);
    Some(probe_step(Kind::Soak, round_rate(last_soak.rate * (1.0 - step))))
}

/// Returns why the search ends. `upper` is the upper end of the interval: a ceiling, or a level
/// that failed. `None` if the highest rate that was tried passed.
fn reason_of_end(upper: Option<&Level>) -> EndReason {
    match upper.map(Level::majority) {
        None => EndReason::RateMax,
        Some(Majority::Limited) => EndReason::ClientLimited,
        Some(Majority::Invalid) => EndReason::Invalid,
        Some(_) => EndReason::Converged,
    }
}

/// Returns the step that makes a probe after a pause of one drain time.
fn probe_step(kind: Kind, rate: f64) -> Step {
    Step::Probe { kind, rate, drains: 1 }
}

/// Rounds a rate to four significant digits. Nearly equal rates then become equal numbers.
pub fn round_rate(rate: f64) -> f64 {
    if rate <= 0.0 || !rate.is_finite() {
        return rate;
    }
    let scale = 10_f64.powf(3.0 - rate.log10().floor());
    (rate * scale).round() / scale
}

/// Returns the number of probes without baselines.
fn count_probes(history: &[Probe]) -> usize {
    history.iter().filter(|probe| probe.kind != Kind::Baseline).count()
}

/// Returns the maximum number of probes, without baselines. It is twice the number for an ideal
/// target, because noise may reverse a majority once on each side of the boundary.
pub fn probes_max(settings: &Settings) -> usize {
    let doublings = (settings.rate_max / settings.rate_start).log2().ceil().max(0.0) as usize + 1;
    let halvings = (1.0 / settings.precision).log2().ceil().clamp(1.0, 14.0) as usize;
    2 * (doublings + halvings) + 4 * settings.repeats + SOAKS_MAX
}

/// Summary of a history of probes.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Highest rate that passed, below every rate that failed.
    pub highest_pass: Option<f64>,
    /// Lowest rate that failed.
    pub lowest_fail: Option<f64>,
    /// History index of the last probe that failed at `lowest_fail`.
    pub failed_index: Option<usize>,
    /// History index of the last probe that passed at `highest_pass`.
    pub passed_index: Option<usize>,
    /// True if no rate passed above a rate that failed.
    pub monotone: bool,
    /// Shape of the boundary between pass and fail.
    pub boundary: Boundary,
    /// True if the last soak passed; `None` if it could not be judged or did not run.
    pub soak_held: Option<bool>,
    /// How the target became worse for good; `None` if it always recovered.
    pub degraded: Option<Degradation>,
    /// Largest number of drain times that the target needed to recover.
    pub recovery_drains: u32,
    /// The contradiction between early and late probes; `None` if they agree.
    pub changed: Option<Change>,
    /// True if the last two probes are invalid baselines, which end the search.
    pub baselines_invalid: bool,
}

/// The health of a target that did not recover from an overload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Degradation {
    /// Health at the first valid baseline.
    pub first: Health,
    /// The lasting health that replaced it.
    pub latest: Health,
}

/// Summarizes the probes of a search. The search may still be running.
pub fn summarize(settings: &Settings, history: &[Probe]) -> Summary {
    let levels = Levels::group(history);
    let lowest_fail = levels.lowest_fail();
    let last_index = |rate: Option<f64>, outcome: ProbeOutcome| {
        let is_at = |probe: &Probe| Some(probe.rate) == rate && probe.outcome == outcome;
        history.iter().rposition(|probe| probe.kind != Kind::Baseline && is_at(probe))
    };
    let last_soak = history.iter().rfind(|probe| probe.kind == Kind::Soak);
    let soak_held = match last_soak.map(|probe| probe.outcome) {
        Some(ProbeOutcome::Pass) => Some(true),
        Some(ProbeOutcome::Fail) => Some(false),
        _ => None,
    };
    // A higher rate may have passed, but only in short probes. So the rate of the soak counts.
    let soaked_rate = last_soak.filter(|_| soak_held == Some(true)).map(|probe| probe.rate);
    let highest_pass = soaked_rate.or(levels.highest_pass());
    let first_baseline = history.iter().find(|probe| probe.is_valid_baseline());
    // The reference health changes only if the target became worse for good.
    let degraded = first_baseline
        .zip(reference_health(history))
        .map(|(first_baseline, latest)| Degradation { first: first_baseline.health, latest })
        .filter(|degradation| degradation.first != degradation.latest);
    Summary {
        highest_pass,
        lowest_fail,
        failed_index: last_index(lowest_fail, ProbeOutcome::Fail),
        passed_index: last_index(highest_pass, ProbeOutcome::Pass),
        monotone: levels.is_monotone(),
        boundary: classify_boundary(settings, &levels),
        soak_held,
        degraded,
        recovery_drains: recovery_drains(history),
        changed: find_change(history),
        baselines_invalid: count_trailing_invalid(history) >= INVALID_BASELINES_MAX,
    }
}

/// A change of the target during a search. Rates are iterations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Highest rate that passed while the target was better.
    pub passed: f64,
    /// Lowest rate that failed while the target was worse.
    pub failed: f64,
    /// True if the target got worse, false if it got better.
    pub worse: bool,
}

/// The target has changed only if at least this many late probes contradict the early probes.
const CONTRADICTIONS_MIN: usize = 2;

/// Searches for an instant at which the outcome of some rates flips. The probes before that instant
/// agree with each other, and so do the probes after it. The late probes contradict the early ones.
/// Soaks are ignored, because a rate may pass a short probe and fail a long one.
fn find_change(history: &[Probe]) -> Option<Change> {
    let short_probes: Vec<&Probe> = history
        .iter()
        .filter(|probe| !matches!(probe.kind, Kind::Baseline | Kind::Soak) && is_valid(probe))
        .collect();
    (1..short_probes.len()).find_map(|split| {
        let (early, late) = short_probes.split_at(split);
        if let Some(Contradiction { passed, failed, fails_below, .. }) =
            find_contradiction(early, late)
            && fails_below >= CONTRADICTIONS_MIN
        {
            return Some(Change { passed, failed, worse: true });
        }
        let Contradiction { passed, failed, passes_above, .. } = find_contradiction(late, early)?;
        (passes_above >= CONTRADICTIONS_MIN).then_some(Change { passed, failed, worse: false })
    })
}

/// A contradiction between two groups of probes: a rate passed in one group, and the same or a
/// lower rate failed in the other group.
struct Contradiction {
    /// Highest rate that passed.
    passed: f64,
    /// Lowest rate that failed.
    failed: f64,
    /// Number of probes that passed at or above `failed`.
    passes_above: usize,
    /// Number of probes that failed at or below `passed`.
    fails_below: usize,
}

/// Returns the contradiction between the rates that passed in `good` and the rates that failed in
/// `bad`. `None` if the lowest fail is above the highest pass, or if one group contradicts itself.
fn find_contradiction(good: &[&Probe], bad: &[&Probe]) -> Option<Contradiction> {
    let rates = |probes: &[&Probe], outcome| -> Vec<f64> {
        probes.iter().filter(|probe| probe.outcome == outcome).map(|probe| probe.rate).collect()
    };
    let good_passes = rates(good, ProbeOutcome::Pass);
    let good_fails = rates(good, ProbeOutcome::Fail);
    let bad_passes = rates(bad, ProbeOutcome::Pass);
    let bad_fails = rates(bad, ProbeOutcome::Fail);
    let passed = good_passes.iter().copied().reduce(f64::max)?;
    let failed = bad_fails.iter().copied().reduce(f64::min)?;
    let is_consistent = !good_fails.iter().any(|rate| *rate <= passed)
        && !bad_passes.iter().any(|rate| *rate >= failed);
    (failed <= passed && is_consistent).then(|| Contradiction {
        passed,
        failed,
        passes_above: good_passes.iter().filter(|rate| **rate >= failed).count(),
        fails_below: bad_fails.iter().filter(|rate| **rate <= passed).count(),
    })
}

/// The boundary is a cliff if the margins of both the highest pass and the lowest fail are larger
/// than this share of the limit.
const CLIFF_MARGIN: f64 = 0.3;

/// Returns the shape of the boundary. `Unknown` if the search has not narrowed the boundary, or if
/// a margin is unknown.
fn classify_boundary(settings: &Settings, levels: &Levels) -> Boundary {
    let ends = levels.highest_pass().zip(levels.lowest_fail());
    let Some((pass, fail)) = ends else { return Boundary::Unknown };
    let margins = levels.margin(pass).zip(levels.margin(fail));
    let Some((pass_margin, fail_margin)) = margins else { return Boundary::Unknown };
    if (fail - pass) / pass > 2.0 * settings.precision {
        Boundary::Unknown
    } else if pass_margin > CLIFF_MARGIN && fail_margin < -CLIFF_MARGIN {
        Boundary::Cliff
    } else {
        Boundary::Gradual
    }
}

#[cfg(test)]
mod tests;
