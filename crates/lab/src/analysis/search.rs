//! The search for the highest rate that keeps the objectives: which probe comes next, and what all
//! of them together say.
//!
//! Pure: the whole state is the history of probes, so a search can be repeated from its record. It
//! doubles from the first rate until one fails, bisects, repeats both sides of the boundary until a
//! majority decides, and ends with a long run at the highest pass. A probe in which the generator
//! was the limit, or whose numbers may not be believed, counts as neither pass nor fail. After each
//! failed probe a baseline at a low rate shows whether the target came back to itself. Where not even
//! a baseline can be believed, nothing can: twice, and the search ends.
//!
//! What makes a probe pass is in `judge`; runs are started by `capacity.rs`.

mod estimate;
pub mod judge;
mod levels;

use lab_model::results::capacity::{Boundary, End, Judged, Kind};

use levels::{Levels, Standing};

pub use estimate::{Estimate, estimate};

/// What a search is given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// First rate; above 0.
    pub rate_start: f64,
    /// Never above this rate; at least `rate_start`.
    pub rate_max: f64,
    /// Rate of baselines; above 0.
    pub rate_baseline: f64,
    /// Relative width at which the interval is narrow enough; above 0.
    pub precision: f64,
    /// Probes at each side of the boundary, of which a majority decides; at least 1.
    pub repeats: usize,
    /// Whether the highest pass is confirmed by a soak.
    pub soak: bool,
}

/// One probe that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Probe {
    /// What it was for.
    pub kind: Kind,
    /// What was asked for; exactly as [`next`] gave it.
    pub rate: f64,
    /// What became of it.
    pub judged: Judged,
    /// How far within the nearest limit (above 0) or outside, as a share of it.
    pub margin: Option<f64>,
    /// How the target answered; compared among baselines.
    pub health: Health,
    /// How many times the wait of the settings was waited before it.
    pub drains: u32,
}

/// How a target answers at a low rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Health {
    /// Median time from the real send, in milliseconds.
    pub p50_ms: f64,
    /// Failed calls / calls.
    pub failed_share: f64,
}

impl Health {
    /// Half as slow again is beyond what a median moves by chance; a fifth of a millisecond beside
    /// it keeps the jitter of very fast targets out.
    const SLOWER: f64 = 1.5;
    const SLOWER_MS: f64 = 0.2;
    const FAILED_MORE: f64 = 0.01;

    /// Whether it is clearly worse than `other`.
    fn worse_than(&self, other: &Health) -> bool {
        self.p50_ms > other.p50_ms * Self::SLOWER + Self::SLOWER_MS
            || self.failed_share > other.failed_share + Self::FAILED_MORE
    }
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A probe.
    Probe {
        /// What it is for.
        kind: Kind,
        /// Iterations per second.
        rate: f64,
        /// How many times the wait of the settings comes before it.
        drains: u32,
    },
    /// Nothing: it is over.
    End(End),
}

/// Longest wait for a target to come back, as powers of two of the drain: twice, four and eight
/// times, then it counts as changed.
const WAITS_MAX: u32 = 3;
/// How far down the first rate is halved if it fails: to 1/64 of it.
const HALVINGS_MAX: i32 = 6;
/// Where the generator is the limit, the interval need not be narrower than this: what it tells of
/// is the generator.
const LIMITED_PRECISION: f64 = 0.1;
/// Baselines in a row that cannot be believed after which no other probe is worth its time.
const UNBELIEVED_MAX: usize = 2;
/// Failed share of the first baseline from which no lower rate can help.
const BROKEN: f64 = 0.5;
/// Soaks before the search gives up to find one that holds.
const SOAKS_MAX: usize = 3;
/// Least step down after a soak that failed.
const SOAK_STEP: f64 = 0.05;

/// Which probe comes next after these, in the order in which they were made.
pub fn next(settings: &Settings, history: &[Probe]) -> Step {
    if let Some(step) = baseline_first(settings, history) {
        return step;
    }
    if let [only] = history
        && believed(only)
        && only.health.failed_share >= BROKEN
    {
        return Step::End(End::NothingPassed);
    }
    let levels = Levels::of(history);
    if judged_count(history) >= probes_max(settings) {
        return Step::End(End::ProbesMax);
    }
    if let Some(rate) = levels.contradicted(settings.repeats) {
        return probe(Kind::Repeat, rate);
    }
    if let Some(rate) = levels.once_invalid() {
        return probe(Kind::Repeat, rate);
    }
    match (levels.highest_pass(), levels.upper()) {
        (None, None) => probe(Kind::Climb, rounded(settings.rate_start)),
        (None, Some(_)) => down(settings, &levels),
        (Some(pass), None) if pass < settings.rate_max => {
            probe(Kind::Climb, rounded(2.0 * pass).min(settings.rate_max))
        }
        (Some(pass), upper) => narrow(settings, &levels, pass, upper, history),
    }
}

/// The first thing ever, and the thing to do after an overload, until the target is itself again.
fn baseline_first(settings: &Settings, history: &[Probe]) -> Option<Step> {
    let baseline =
        |drains| Step::Probe { kind: Kind::Baseline, rate: settings.rate_baseline, drains };
    let Some(last) = history.last() else { return Some(baseline(0)) };
    let known = patience(history);
    if last.kind != Kind::Baseline {
        return (last.judged != Judged::Pass).then(|| baseline(known));
    }
    match unbelieved(history) {
        0 => {}
        UNBELIEVED_MAX.. => return Some(Step::End(unbelieved_end(last))),
        _ => return Some(baseline(known.max(2))),
    }
    let waits = trailing_worse(history);
    (1..=WAITS_MAX).contains(&waits).then(|| baseline(known.max(1 << waits)))
}

/// How many baselines at the end of the history cannot be believed.
fn unbelieved(history: &[Probe]) -> usize {
    let unknown = |probe: &&Probe| probe.kind == Kind::Baseline && !believed(probe);
    history.iter().rev().take_while(unknown).count()
}

fn unbelieved_end(last: &Probe) -> End {
    match last.judged {
        Judged::ClientLimited => End::ClientLimited,
        _ => End::Invalid,
    }
}

/// How many baselines at the end of the history are worse than the one that they are held against.
fn trailing_worse(history: &[Probe]) -> u32 {
    let Some(normal) = normal(history) else { return 0 };
    let from_end = history.iter().rev().take_while(|probe| probe.kind == Kind::Baseline);
    let worse = from_end.take_while(|probe| believed(probe) && probe.health.worse_than(&normal));
    u32::try_from(worse.count()).unwrap_or(u32::MAX)
}

/// Whether a baseline's figures may be compared.
fn believed(baseline: &Probe) -> bool {
    matches!(baseline.judged, Judged::Pass | Judged::Fail)
}

/// What baselines are held against: the first one, or, once the target was given up on, what it
/// was like then. So a lasting change is waited for only once.
fn normal(history: &[Probe]) -> Option<Health> {
    let mut normal: Option<Health> = None;
    let mut waits = 0;
    for probe in history {
        let compared = probe.kind == Kind::Baseline && believed(probe);
        let worse = normal.is_some_and(|health| probe.health.worse_than(&health));
        waits = if compared && worse { waits + 1 } else { 0 };
        if compared && (normal.is_none() || waits > WAITS_MAX) {
            normal = Some(probe.health);
        }
    }
    normal
}

/// How many drains an overload took so far until the target was itself again; at least one.
fn patience(history: &[Probe]) -> u32 {
    let normal = normal(history).unwrap_or_default();
    let itself = |probe: &&Probe| {
        probe.kind == Kind::Baseline && believed(probe) && !probe.health.worse_than(&normal)
    };
    history.iter().filter(itself).map(|probe| probe.drains).max().unwrap_or(1).max(1)
}

/// Below the lowest rate that was tried, until one passes.
fn down(settings: &Settings, levels: &Levels) -> Step {
    let lowest = levels.lowest().unwrap_or(settings.rate_start);
    if lowest > settings.rate_start * f64::powi(0.5, HALVINGS_MAX) * 1.01 {
        return probe(Kind::Climb, rounded(lowest / 2.0));
    }
    match (levels.lowest_fail(), levels.ceiling()) {
        (None, Some((_, Standing::Limited))) => Step::End(End::ClientLimited),
        (None, _) => Step::End(End::Invalid),
        (Some(_), _) => Step::End(End::NothingPassed),
    }
}

/// Between a pass and what is above it: bisect, repeat, soak.
fn narrow(
    settings: &Settings,
    levels: &Levels,
    pass: f64,
    upper: Option<f64>,
    history: &[Probe],
) -> Step {
    if let Some(step) = soaked(settings, history) {
        return step;
    }
    let fail = levels.lowest_fail();
    let limited = upper.is_some() && upper != fail;
    let width =
        if limited { settings.precision.max(LIMITED_PRECISION) } else { settings.precision };
    if let Some(upper) = upper {
        let middle = rounded(f64::midpoint(pass, upper));
        if (upper - pass) / pass > width && middle > pass && middle < upper {
            return probe(Kind::Bisect, middle);
        }
    }
    let open = [Some(pass), fail.filter(|_| !limited)].into_iter().flatten();
    if let Some(rate) = open.into_iter().find(|rate| !levels.decided(*rate, settings.repeats)) {
        return probe(Kind::Repeat, rate);
    }
    if settings.soak {
        return probe(Kind::Soak, pass);
    }
    Step::End(reason(levels, upper))
}

/// What follows once there was a soak: another one lower if it failed, else the end.
fn soaked(settings: &Settings, history: &[Probe]) -> Option<Step> {
    let soaks: Vec<&Probe> = history.iter().filter(|probe| probe.kind == Kind::Soak).collect();
    let last = soaks.last()?;
    let levels = Levels::of(history);
    if last.judged == Judged::Fail && soaks.len() < SOAKS_MAX {
        let step = settings.precision.max(SOAK_STEP);
        return Some(probe(Kind::Soak, rounded(last.rate * (1.0 - step))));
    }
    let upper = if last.judged == Judged::Fail { Some(last.rate) } else { levels.upper() };
    Some(Step::End(reason(&levels, upper)))
}

fn reason(levels: &Levels, upper: Option<f64>) -> End {
    match (upper, levels.ceiling()) {
        (None, _) => End::RateMax,
        (Some(upper), Some((rate, standing))) if rate == upper => match standing {
            Standing::Limited => End::ClientLimited,
            _ => End::Invalid,
        },
        _ => End::Converged,
    }
}

fn probe(kind: Kind, rate: f64) -> Step {
    Step::Probe { kind, rate, drains: 1 }
}

/// To four digits: finer rates are no finer knowledge, and equal rates must be equal numbers.
pub fn rounded(rate: f64) -> f64 {
    if rate <= 0.0 || !rate.is_finite() {
        return rate;
    }
    let scale = 10_f64.powf(3.0 - rate.log10().floor());
    (rate * scale).round() / scale
}

fn judged_count(history: &[Probe]) -> usize {
    history.iter().filter(|probe| probe.kind != Kind::Baseline).count()
}

/// No search makes more probes than this, baselines apart: twice what one with an ideal target
/// needs, since noise may turn a majority once on each side.
pub fn probes_max(settings: &Settings) -> usize {
    let doublings = (settings.rate_max / settings.rate_start).log2().ceil().max(0.0) as usize + 1;
    let halvings = (1.0 / settings.precision).log2().ceil().clamp(1.0, 14.0) as usize;
    2 * (doublings + halvings) + 4 * settings.repeats + SOAKS_MAX
}

/// What a history of probes says.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Highest rate that passed, below every rate that failed.
    pub highest_pass: Option<f64>,
    /// Lowest rate that failed.
    pub lowest_fail: Option<f64>,
    /// Position of the probe that failed there; the last if there are several.
    pub failed: Option<usize>,
    /// Position of the longest probe that passed at the highest pass; the last of equals.
    pub passed: Option<usize>,
    /// False if a rate passed above one that failed.
    pub monotone: bool,
    /// How it breaks.
    pub boundary: Boundary,
    /// Whether the highest pass held through a soak; none if no soak could be judged.
    pub soak_held: Option<bool>,
    /// First baseline, and the last one that was worse, if the target did not come back.
    pub degraded: Option<(Health, Health)>,
    /// Largest number of drains that the target needed to come back.
    pub patience: u32,
    /// The rate that passed or failed first and the rate that did the opposite later, against it, if
    /// early and late probes contradict each other.
    pub changed: Option<Change>,
    /// Whether it ended because not even baselines could be believed; the last of them is the last
    /// probe.
    pub unbelieved: bool,
}

/// What these probes say, whether or not the search is over.
pub fn found(settings: &Settings, history: &[Probe]) -> Found {
    let levels = Levels::of(history);
    let lowest_fail = levels.lowest_fail();
    let last = |rate: Option<f64>, judged| {
        let at = |probe: &Probe| Some(probe.rate) == rate && probe.judged == judged;
        history.iter().rposition(|probe| probe.kind != Kind::Baseline && at(probe))
    };
    let soaks = || history.iter().filter(|probe| probe.kind == Kind::Soak);
    let last_soak = soaks().next_back();
    let soak_held = match last_soak.map(|probe| probe.judged) {
        Some(Judged::Pass) => Some(true),
        Some(Judged::Fail) => Some(false),
        _ => None,
    };
    // A short probe at a higher rate passes below a soak that failed: only the rate that held counts.
    let held = last_soak.filter(|_| soak_held == Some(true)).map(|probe| probe.rate);
    let highest_pass = held.or(levels.highest_pass());
    let first = history.iter().find(|probe| probe.kind == Kind::Baseline && believed(probe));
    let changed = normal(history).zip(first).filter(|(normal, first)| *normal != first.health);
    Found {
        highest_pass,
        lowest_fail,
        failed: last(lowest_fail, Judged::Fail),
        passed: last(highest_pass, Judged::Pass),
        monotone: levels.monotone(),
        boundary: boundary(settings, &levels),
        soak_held,
        degraded: changed.map(|(normal, first)| (first.health, normal)),
        patience: patience(history),
        changed: change(history),
        unbelieved: unbelieved(history) >= UNBELIEVED_MAX,
    }
}

/// A target that changed in the course of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Highest rate that passed on the better side in time.
    pub passed: f64,
    /// Lowest rate that failed on the worse side.
    pub failed: f64,
    /// True if it got worse.
    pub worse: bool,
}

/// Late probes that need to say the same against early ones.
const CHANGED_MIN: usize = 2;

/// Looks for a time before which all probes say one thing of some rates, and after which all say the
/// opposite. Soaks are left out: a rate may pass a short probe and fail a long one.
fn change(history: &[Probe]) -> Option<Change> {
    let short: Vec<&Probe> = history
        .iter()
        .filter(|probe| !matches!(probe.kind, Kind::Baseline | Kind::Soak) && believed(probe))
        .collect();
    (1..short.len()).find_map(|split| {
        let (early, late) = short.split_at(split);
        let worse = opposed(early, late).filter(|(_, against)| *against >= CHANGED_MIN);
        let better = || {
            let passes = |failed: f64| {
                let passes = late.iter().filter(|one| one.judged == Judged::Pass);
                passes.filter(|one| one.rate >= failed).count()
            };
            opposed(late, early).filter(|((_, failed), _)| passes(*failed) >= CHANGED_MIN)
        };
        let told = |worse| move |((passed, failed), _)| Change { passed, failed, worse };
        worse.map(told(true)).or_else(|| better().map(told(false)))
    })
}

/// The highest pass of `good` and the lowest fail of `bad`, if that is not above it and neither side
/// contradicts itself; and how many of `bad` failed up to that pass.
fn opposed(good: &[&Probe], bad: &[&Probe]) -> Option<((f64, f64), usize)> {
    let rates = |of: &[&Probe], judged| -> Vec<f64> {
        of.iter().filter(|one| one.judged == judged).map(|one| one.rate).collect()
    };
    let passed = rates(good, Judged::Pass).into_iter().reduce(f64::max)?;
    let failed = rates(bad, Judged::Fail).into_iter().reduce(f64::min)?;
    let sure = !rates(good, Judged::Fail).iter().any(|rate| *rate <= passed)
        && !rates(bad, Judged::Pass).iter().any(|rate| *rate >= failed);
    let against = rates(bad, Judged::Fail).iter().filter(|rate| **rate <= passed).count();
    (failed <= passed && sure).then_some(((passed, failed), against))
}

/// A fail farther outside than this beside a pass as far within is a cliff.
const CLIFF_MARGIN: f64 = 0.3;

fn boundary(settings: &Settings, levels: &Levels) -> Boundary {
    let ends = levels.highest_pass().zip(levels.lowest_fail());
    let margins = |(pass, fail)| Some((levels.margin(pass)?, levels.margin(fail)?));
    let Some((pass, fail)) = ends else { return Boundary::Unknown };
    match margins((pass, fail)) {
        Some(_) if (fail - pass) / pass > 2.0 * settings.precision => Boundary::Unknown,
        Some((inside, outside)) if inside > CLIFF_MARGIN && outside < -CLIFF_MARGIN => {
            Boundary::Cliff
        }
        Some(_) => Boundary::Gradual,
        None => Boundary::Unknown,
    }
}

#[cfg(test)]
mod tests;
