//! The probes of a search grouped by rate. A level is a rate with its probes; their majority
//! outcome decides if the rate passes. A baseline is a probe at a low rate, and a soak is a long
//! probe. A margin is a probe's distance to the nearest limit, as a share of that limit.

use lab_model::results::capacity::{Kind, ProbeOutcome};

use super::Probe;

/// The majority outcome of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Majority {
    /// More passes than fails, or a soak that held.
    Pass,
    /// At least as many fails as passes, or a failed soak. A tie counts as a fail.
    Fail,
    /// Only probes in which the generator was the limit.
    Limited,
    /// Only invalid probes, at least two.
    Invalid,
    /// Only one invalid probe; the search repeats it.
    OnceInvalid,
}

/// Counts of all probes at one rate, by outcome. `limited` counts the probes in which the generator
/// was the limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    pub(super) rate: f64,
    passes: usize,
    fails: usize,
    limited: usize,
    invalid: usize,
    /// Outcome of the last soak that passed or failed.
    soak: Option<ProbeOutcome>,
    /// Outcome and margin of each probe that has a margin.
    margins: Vec<(ProbeOutcome, f64)>,
}

impl Level {
    /// Adds a probe at this rate.
    fn add(&mut self, probe: &Probe) {
        match probe.outcome {
            ProbeOutcome::Pass => self.passes += 1,
            ProbeOutcome::Fail => self.fails += 1,
            ProbeOutcome::ClientLimited => self.limited += 1,
            ProbeOutcome::Invalid => self.invalid += 1,
        }
        if super::is_valid(probe) {
            if probe.kind == Kind::Soak {
                self.soak = Some(probe.outcome);
            }
            self.margins.extend(probe.margin.map(|margin| (probe.outcome, margin)));
        }
    }

    /// Returns the majority outcome. A soak that passed or failed overrules all other probes.
    pub(super) fn majority(&self) -> Majority {
        match self.soak {
            Some(ProbeOutcome::Pass) => return Majority::Pass,
            Some(ProbeOutcome::Fail) => return Majority::Fail,
            _ => {}
        }
        match (self.passes, self.fails) {
            (0, 0) if self.limited > 0 => Majority::Limited,
            (0, 0) if self.invalid >= 2 => Majority::Invalid,
            (0, 0) => Majority::OnceInvalid,
            (passes, fails) if passes > fails => Majority::Pass,
            _ => Majority::Fail,
        }
    }

    /// Returns true if further probes, up to `repeats`, cannot change the outcome.
    fn is_decided(&self, repeats: usize) -> bool {
        self.passes > repeats / 2 || self.fails >= repeats.div_ceil(2) || self.soak.is_some()
    }
}

/// All tried rates, in ascending order.
pub(super) struct Levels(Vec<Level>);

impl Levels {
    /// Groups probes by rate. Baselines are left out.
    pub(super) fn group(history: &[Probe]) -> Levels {
        let mut levels: Vec<Level> = Vec::new();
        for probe in history.iter().filter(|probe| probe.kind != Kind::Baseline) {
            match levels.iter_mut().find(|level| level.rate == probe.rate) {
                Some(level) => level.add(probe),
                None => {
                    let mut level = Level { rate: probe.rate, ..Level::default() };
                    level.add(probe);
                    levels.push(level);
                }
            }
        }
        levels.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        Levels(levels)
    }

    /// Returns the levels with this majority, in ascending order of their rates.
    fn with_majority(&self, majority: Majority) -> impl DoubleEndedIterator<Item = &Level> {
        self.0.iter().filter(move |level| level.majority() == majority)
    }

    /// Returns the lowest rate that was tried.
    pub(super) fn lowest(&self) -> Option<f64> {
        self.0.first().map(|level| level.rate)
    }

    /// Returns the lowest rate whose majority is a fail.
    pub(super) fn lowest_fail(&self) -> Option<f64> {
        self.lowest_failed_level().map(|level| level.rate)
    }

    /// Returns the lowest level whose majority is a fail.
    fn lowest_failed_level(&self) -> Option<&Level> {
        self.with_majority(Majority::Fail).next()
    }

    /// Returns the highest rate that passed below the lowest fail.
    pub(super) fn highest_pass(&self) -> Option<f64> {
        let lowest_fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        let passes = self.with_majority(Majority::Pass).rev();
        passes.map(|level| level.rate).find(|rate| *rate < lowest_fail)
    }

    /// Returns the ceiling of the search. Of all levels above the highest pass that have the
    /// majority [`Majority::Limited`] or [`Majority::Invalid`], this is the lowest. Its probes
    /// neither pass nor fail.
    pub(super) fn ceiling(&self) -> Option<&Level> {
        let highest_pass = self.highest_pass().unwrap_or(0.0);
        let is_ceiling = |level: &&Level| {
            let neither = matches!(level.majority(), Majority::Limited | Majority::Invalid);
            level.rate > highest_pass && neither
        };
        self.0.iter().find(is_ceiling)
    }

    /// Returns the upper end of the search interval: the lowest failed level or the ceiling,
    /// whichever is lower.
    pub(super) fn upper(&self) -> Option<&Level> {
        let ends = [self.lowest_failed_level(), self.ceiling()].into_iter().flatten();
        ends.min_by(|a, b| a.rate.total_cmp(&b.rate))
    }

    /// Returns the lowest rate whose only probe was invalid.
    pub(super) fn rate_once_invalid(&self) -> Option<f64> {
        self.with_majority(Majority::OnceInvalid).next().map(|level| level.rate)
    }

    /// Returns true if no rate passed above a rate that failed.
    pub(super) fn is_monotone(&self) -> bool {
        let lowest_fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        self.with_majority(Majority::Pass).all(|level| level.rate < lowest_fail)
    }

    /// Returns a rate to repeat if the lowest fail contradicts a higher rate that passed. Of these
    /// two rates, returns the undecided one with fewer probes. `None` without a contradiction, or
    /// once both rates are decided.
    pub(super) fn contradicted_rate(&self, repeats: usize) -> Option<f64> {
        let fail = self.lowest_failed_level()?;
        let pass = self.with_majority(Majority::Pass).find(|level| level.rate > fail.rate)?;
        let undecided = [fail, pass].into_iter().filter(|level| !level.is_decided(repeats));
        undecided.min_by_key(|level| level.passes + level.fails).map(|level| level.rate)
    }

    /// Returns true if further probes at this rate, up to `repeats`, cannot change its outcome.
    pub(super) fn is_decided(&self, rate: f64, repeats: usize) -> bool {
        self.level(rate).is_some_and(|level| level.is_decided(repeats))
    }

    /// Returns the mean margin of those probes at a rate that have the majority's outcome. `None`
    /// if the rate was not tried, or if these probes have no margin.
    pub(super) fn margin(&self, rate: f64) -> Option<f64> {
        let level = self.level(rate)?;
        let majority = match level.majority() {
            Majority::Pass => ProbeOutcome::Pass,
            _ => ProbeOutcome::Fail,
        };
        let margins = level.margins.iter().filter(|(outcome, _)| *outcome == majority);
        let margins = margins.map(|(_, margin)| *margin);
        crate::analysis::statistics::mean(&margins.collect::<Vec<_>>())
    }

    /// Returns the level of a rate; `None` if the rate was not tried.
    fn level(&self, rate: f64) -> Option<&Level> {
        self.0.iter().find(|level| level.rate == rate)
    }
}
