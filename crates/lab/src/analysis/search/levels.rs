//! The probes of a search, gathered by rate, and how each rate stands by majority.

use lab_model::results::capacity::{Judged, Kind};

use super::Probe;

/// How a rate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// More passes than fails, or a soak that held.
    Pass,
    /// At least as many fails as passes, or a soak that did not hold: who doubts is careful.
    Fail,
    /// Nothing but probes in which the generator was the limit.
    Limited,
    /// Nothing but at least two probes that may not be believed.
    Invalid,
    /// One probe that may not be believed; it is made again.
    Open,
}

/// One rate.
#[derive(Clone, Debug)]
struct Level {
    rate: f64,
    passes: usize,
    fails: usize,
    limited: usize,
    invalid: usize,
    soak: Option<Judged>,
    margins: Vec<(Judged, f64)>,
}

impl Level {
    fn standing(&self) -> Standing {
        match self.soak {
            Some(Judged::Pass) => return Standing::Pass,
            Some(Judged::Fail) => return Standing::Fail,
            _ => {}
        }
        match (self.passes, self.fails) {
            (0, 0) if self.limited > 0 => Standing::Limited,
            (0, 0) if self.invalid >= 2 => Standing::Invalid,
            (0, 0) => Standing::Open,
            (passes, fails) if passes > fails => Standing::Pass,
            _ => Standing::Fail,
        }
    }

    /// Whether further probes of `repeats` could not change how it stands.
    fn decided(&self, repeats: usize) -> bool {
        self.passes > repeats / 2 || self.fails >= repeats.div_ceil(2) || self.soak.is_some()
    }
}

/// All rates that were tried, in ascending order.
pub(super) struct Levels(Vec<Level>);

impl Levels {
    pub(super) fn of(history: &[Probe]) -> Levels {
        let mut levels: Vec<Level> = Vec::new();
        for probe in history.iter().filter(|probe| probe.kind != Kind::Baseline) {
            let place = match levels.iter().position(|level| level.rate == probe.rate) {
                Some(place) => place,
                None => {
                    levels.push(Level {
                        rate: probe.rate,
                        passes: 0,
                        fails: 0,
                        limited: 0,
                        invalid: 0,
                        soak: None,
                        margins: Vec::new(),
                    });
                    levels.len() - 1
                }
            };
            levels[place].add(probe);
        }
        levels.sort_by(|a, b| a.rate.total_cmp(&b.rate));
        Levels(levels)
    }

    fn with(&self, standing: Standing) -> impl DoubleEndedIterator<Item = &Level> {
        self.0.iter().filter(move |level| level.standing() == standing)
    }

    pub(super) fn lowest(&self) -> Option<f64> {
        self.0.first().map(|level| level.rate)
    }

    pub(super) fn lowest_fail(&self) -> Option<f64> {
        self.with(Standing::Fail).next().map(|level| level.rate)
    }

    pub(super) fn highest_pass(&self) -> Option<f64> {
        let fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        let passes = self.with(Standing::Pass).rev();
        passes.map(|level| level.rate).find(|rate| *rate < fail)
    }

    /// The lowest rate above the highest pass at which nothing could be learnt of the target.
    pub(super) fn ceiling(&self) -> Option<(f64, Standing)> {
        let pass = self.highest_pass().unwrap_or(0.0);
        let unknown = |level: &&Level| {
            level.rate > pass && matches!(level.standing(), Standing::Limited | Standing::Invalid)
        };
        self.0.iter().find(unknown).map(|level| (level.rate, level.standing()))
    }

    /// What bounds the search from above: the lowest fail or the ceiling.
    pub(super) fn upper(&self) -> Option<f64> {
        let ceiling = self.ceiling().map(|(rate, _)| rate);
        [self.lowest_fail(), ceiling].into_iter().flatten().min_by(f64::total_cmp)
    }

    pub(super) fn once_invalid(&self) -> Option<f64> {
        self.with(Standing::Open).next().map(|level| level.rate)
    }

    pub(super) fn monotone(&self) -> bool {
        let fail = self.lowest_fail().unwrap_or(f64::INFINITY);
        self.with(Standing::Pass).all(|level| level.rate < fail)
    }

    /// Of a fail with a pass above it: the side that was looked at less, until both are decided.
    pub(super) fn contradicted(&self, repeats: usize) -> Option<f64> {
        let fail = self.with(Standing::Fail).next()?;
        let pass = self.with(Standing::Pass).find(|level| level.rate > fail.rate)?;
        let open = [fail, pass].into_iter().filter(|level| !level.decided(repeats));
        open.min_by_key(|level| level.passes + level.fails).map(|level| level.rate)
    }

    pub(super) fn decided(&self, rate: f64, repeats: usize) -> bool {
        self.at(rate).is_some_and(|level| level.decided(repeats))
    }

    /// Mean margin of the probes at a rate that stand as it does.
    pub(super) fn margin(&self, rate: f64) -> Option<f64> {
        let level = self.at(rate)?;
        let standing = match level.standing() {
            Standing::Pass => Judged::Pass,
            _ => Judged::Fail,
        };
        let margins = level.margins.iter().filter(|(judged, _)| *judged == standing);
        let margins = margins.map(|(_, margin)| *margin);
        crate::analysis::statistics::mean(&margins.collect::<Vec<_>>())
    }

    fn at(&self, rate: f64) -> Option<&Level> {
        self.0.iter().find(|level| level.rate == rate)
    }
}

impl Level {
    fn add(&mut self, probe: &Probe) {
        match probe.judged {
            Judged::Pass => self.passes += 1,
            Judged::Fail => self.fails += 1,
            Judged::ClientLimited => self.limited += 1,
            Judged::Invalid => self.invalid += 1,
        }
        if probe.kind == Kind::Soak && matches!(probe.judged, Judged::Pass | Judged::Fail) {
            self.soak = Some(probe.judged);
        }
        if matches!(probe.judged, Judged::Pass | Judged::Fail) {
            self.margins.extend(probe.margin.map(|margin| (probe.judged, margin)));
        }
    }
}
