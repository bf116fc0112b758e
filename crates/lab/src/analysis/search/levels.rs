//! The probes of a search grouped by rate, and the majority outcome of each rate.

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
    /// One invalid probe; it is repeated.
    Open,
}

/// All probes at one rate.
#[derive(Clone, Debug, Default)]
struct Level {
    rate: f64,
    passes: usize,
    fails: usize,
    limited: usize,
    invalid: usize,
    soak: Option<ProbeOutcome>,
    margins: Vec<(ProbeOutcome, f64)>,
}

impl Level {
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

    fn majority(&self) -> Majority {
        match self.soak {
            Some(ProbeOutcome::Pass) => return Majority::Pass,
            Some(ProbeOutcome::Fail) => return Majority::Fail,
            _ => {}
        }
        match (self.passes, self.fails) {
            (0, 0) if self.limited > 0 => Majority::Limited,
            (0, 0) if self.invalid >= 2 => Majority::Invalid,
            (0, 0) => Majority::Open,
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
    pub(super) fn of(history: &[Probe]) -> Levels {
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

    fn with_majority(&self, majority: Majority) -> impl DoubleEndedIterator<Item = &Level> {
        self.0.iter().filter(move |level| level.majority() == majority)
    }

    pub(super) fn lowest(&self) -> Option<f64> {
        self.0.first().map(|level| level.rate)
    }

    pub(super) fn lowest_fail(&self) -> Option<f64> {
        self.with_majority(Majority::Fail).next().map(|level| level.rate)
    }

    pub(super) fn highest_pass(&self) -> Option<f64> {
        let fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        let passes = self.with_majority(Majority::Pass).rev();
        passes.map(|level| level.rate).find(|rate| *rate < fail)
    }

    /// Returns the lowest rate above the highest pass at which the probes say nothing about the
    /// target.
    pub(super) fn ceiling(&self) -> Option<(f64, Majority)> {
        let pass = self.highest_pass().unwrap_or(0.0);
        let unknown = |level: &&Level| {
            level.rate > pass && matches!(level.majority(), Majority::Limited | Majority::Invalid)
        };
        self.0.iter().find(unknown).map(|level| (level.rate, level.majority()))
    }

    /// Returns the upper end of the search interval: the lowest fail or the ceiling.
    pub(super) fn upper(&self) -> Option<f64> {
        let ceiling = self.ceiling().map(|(rate, _)| rate);
        [self.lowest_fail(), ceiling].into_iter().flatten().min_by(f64::total_cmp)
    }

    /// Returns the lowest rate whose only probe was invalid.
    pub(super) fn rate_once_invalid(&self) -> Option<f64> {
        self.with_majority(Majority::Open).next().map(|level| level.rate)
    }

    /// Returns false if a rate passed above one that failed.
    pub(super) fn is_monotone(&self) -> bool {
        let fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        self.with_majority(Majority::Pass).all(|level| level.rate < fail)
    }

    /// Returns a rate to repeat if a rate fails and a higher rate passes: the one with fewer
    /// probes, until both are decided.
    pub(super) fn contradicted_rate(&self, repeats: usize) -> Option<f64> {
        let fail = self.with_majority(Majority::Fail).next()?;
        let pass = self.with_majority(Majority::Pass).find(|level| level.rate > fail.rate)?;
        let open = [fail, pass].into_iter().filter(|level| !level.is_decided(repeats));
        open.min_by_key(|level| level.passes + level.fails).map(|level| level.rate)
    }

    pub(super) fn is_decided(&self, rate: f64, repeats: usize) -> bool {
        self.at(rate).is_some_and(|level| level.is_decided(repeats))
    }

    /// Returns the mean margin of those probes at a rate that agree with the majority.
    pub(super) fn margin(&self, rate: f64) -> Option<f64> {
        let level = self.at(rate)?;
        let majority = match level.majority() {
            Majority::Pass => ProbeOutcome::Pass,
            _ => ProbeOutcome::Fail,
        };
        let margins = level.margins.iter().filter(|(outcome, _)| *outcome == majority);
        let margins = margins.map(|(_, margin)| *margin);
        crate::analysis::statistics::mean(&margins.collect::<Vec<_>>())
    }

    fn at(&self, rate: f64) -> Option<&Level> {
        self.0.iter().find(|level| level.rate == rate)
    }
}
