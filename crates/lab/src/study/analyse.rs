//! Turns the runs of a study into its result by applying every rule of `analysis/sync.rs`.

use lab_model::results::study::{
    Accesses, Against, Align, ArmRow, Bin, PairRow, RunRow, SCHEMA, Source, Stall, StudyResult,
    TimeRow, TimeTo, Tip,
};

use super::StudyFault;
use crate::analysis::calendar::rfc3339;
use crate::analysis::statistics::median;
use crate::analysis::sync::bins::bins;
use crate::analysis::sync::judge::{Times, judge};
use crate::analysis::sync::pauses::STALLS_MAX;
use crate::analysis::sync::{ArmRuns, SyncRun, bins, lead, pauses};
use crate::wording::conclude;

/// Default number of heights.
const HEIGHTS_WANTED: u64 = 8;
/// Number of parts into which a step between default heights is divided. The last height is the
/// highest multiple of such a part below the tip.
const TARGET_STEPS: u64 = 10;
/// Maximum number of requested heights.
const HEIGHTS_MAX: usize = 100;
/// Maximum number of points of a curve. A chart has fewer pixels in width.
const POINTS_MAX: usize = 1_500;
/// Number of points per bin of a lead at equal height.
const FINE: u64 = 10;
/// A step between samples is a gap if it is longer than this many sample periods.
const GAP_PERIODS: f64 = 3.5;
/// A warning is given if the sample periods of two runs differ by more than this factor.
const PERIODS_APART: f64 = 1.5;

/// Options of the analysis.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the study.
    pub name: String,
    /// The question that it answers.
    pub question: Option<String>,
    /// Source of its runs.
    pub source: Source,
    /// The order and arrangement of its runs.
    pub design: Option<String>,
    /// Heights to which times are compared; chosen automatically if empty.
    pub heights: Vec<u64>,
    /// Blocks per bin; chosen automatically if `None`.
    pub bin: Option<u64>,
    /// How instants are aligned. If `None`, they are aligned by clock if all runs began within one
    /// sample period, else by start.
    pub align: Option<Align>,
    /// Block time of the chain, in seconds.
    pub block_time: f64,
    /// True if stalls are subtracted from times.
    pub subtract_stalls: bool,
    /// True if run n of one arm belongs to run n of the others.
    pub paired: bool,
    /// True if the study ended before its plan.
    pub partial: bool,
}

impl Options {
    /// Returns the default options for runs of a source.
    pub fn new(name: &str, source: Source) -> Options {
        Options {
            name: name.to_owned(),
            question: None,
            source,
            design: None,
            heights: Vec::new(),
            bin: None,
            align: None,
            block_time: 60.0,
            subtract_stalls: false,
            paired: false,
            partial: false,
        }
    }
}

/// Analyses arms. `left_out` has the unusable runs by arm. `random` is the random source of
/// randomisation tests.
///
/// # Errors
/// If there are fewer than two arms, an arm has no run, or an option is out of range.
pub fn analyse(
    arms: &[ArmRuns],
    left_out: &[Vec<String>],
    options: &Options,
    random: &mut dyn FnMut() -> u64,
) -> Result<StudyResult, StudyFault> {
    check(arms, options)?;
    let syncs: Vec<ArmRuns> = arms.iter().map(|arm| until_tip(arm, options)).collect();
    let frame = Frame::of(arms, &syncs, options);
    let rows: Vec<ArmRow> = arms
        .iter()
        .zip(&syncs)
        .enumerate()
        .map(|(place, arm)| frame.arm(arm, left_out.get(place).cloned().unwrap_or_default()))
        .collect();
    let mut result = StudyResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        name: options.name.clone(),
        question: options.question.clone(),
        source: options.source,
        design: options.design.clone(),
        align: frame.align,
        bin: frame.bin,
        block_time: options.block_time,
        stalls_subtracted: options.subtract_stalls,
        partial: options.partial,
        heights: frame.heights.clone(),
        arms: rows,
        against: Vec::new(),
        conclusions: Vec::new(),
        warnings: warnings(arms),
    };
    for other in 1..arms.len() {
        let against = frame.against((&syncs[0], &syncs[other]), &result, other, random);
        result.against.push(against);
    }
    result.conclusions = conclude::conclusions(&result);
    Ok(result)
}

/// Returns the runs of an arm, each cut at the time when it reached the tip.
fn until_tip(arm: &ArmRuns, options: &Options) -> ArmRuns {
    let until = |run: &SyncRun| run.until(pauses::tip(run, options.block_time));
    ArmRuns { name: arm.name.clone(), runs: arm.runs.iter().map(until).collect() }
}

fn check(arms: &[ArmRuns], options: &Options) -> Result<(), StudyFault> {
    if arms.len() < 2 {
        let found = match arms {
            [only] => format!("there is only {:?}", only.name),
            _ => "there is none".to_owned(),
        };
        return Err(StudyFault::Arms { found });
    }
    let bare = |arm: &&ArmRuns| arm.runs.is_empty();
    if let Some(arm) = arms.iter().find(bare) {
        return Err(StudyFault::Asked(format!("arm {:?} has no usable run", arm.name)));
    }
    if options.heights.len() > HEIGHTS_MAX {
        let asked = options.heights.len();
        return Err(StudyFault::Asked(format!(
            "{asked} heights are too many: at most {HEIGHTS_MAX}"
        )));
    }
    let most = arms.iter().flat_map(|arm| &arm.runs).map(|run| run.last().height).max();
    let (most, least) = (most.unwrap_or(0), bins::BINS_MAX as u64);
    match options.bin {
        Some(0) => Err(StudyFault::Asked("a bin has at least one block".to_owned())),
        Some(bin) if most / bin >= least => Err(StudyFault::Asked(format!(
            "bins of {bin} blocks are too many for a height of {most}: at most {least}"
        ))),
        _ => Ok(()),
    }
}

/// Parameters of the analysis that all runs share.
struct Frame<'a> {
    options: &'a Options,
    align: Align,
    bin: u64,
    heights: Vec<u64>,
    /// The last height that every run reached.
    common: u64,
}

impl Frame<'_> {
    /// Chooses the parameters. `syncs` has the arms' runs until the tip.
    fn of<'a>(arms: &[ArmRuns], syncs: &[ArmRuns], options: &'a Options) -> Frame<'a> {
        let runs = || syncs.iter().flat_map(|arm| &arm.runs);
        let least = |arms: &[ArmRuns]| {
            arms.iter().flat_map(|arm| &arm.runs).map(|run| run.last().height).min().unwrap_or(0)
        };
        let (common, end) = (least(arms), least(syncs));
        let start = runs().map(|run| run.first().height).max().unwrap_or(0);
        let samples = runs().map(|run| run.samples.len()).min().unwrap_or(0);
        let bin = options.bin.unwrap_or_else(|| bins::usual_width(end, samples));
        let mut heights = options.heights.clone();
        if heights.is_empty() {
            let step = bins::round_step(end.div_ceil(HEIGHTS_WANTED));
            // The last height is below the tip, because times to the tip depend on the block time.
            let fine = (step / TARGET_STEPS).max(1);
            let is_tip = |run: &SyncRun| {
                pauses::tip(run, options.block_time).is_some_and(|tip| tip.height <= end)
            };
            let at_tip = arms.iter().flat_map(|arm| &arm.runs).any(is_tip);
            let target = if at_tip { end.saturating_sub(1) / fine * fine } else { end };
            heights = (1..=target / step).map(|place| place * step).collect();
            heights.push(target);
        }
        heights.sort_unstable();
        heights.dedup();
        heights.retain(|height| *height > start || !options.heights.is_empty());
        Frame {
            options,
            align: options.align.unwrap_or_else(|| default_align(arms)),
            bin,
            heights,
            common,
        }
    }

    /// Returns the row of an arm. The second part of the pair is the arm until the tip.
    fn arm(&self, (arm, sync): (&ArmRuns, &ArmRuns), left_out: Vec<String>) -> ArmRow {
        let runs = arm.runs.iter().zip(&sync.runs).map(|(run, sync)| self.run(run, sync));
        let runs: Vec<RunRow> = runs.collect();
        let over = |of: fn(&Bin) -> Option<f64>| {
            let count = runs.iter().map(|run| run.bins.len()).max().unwrap_or(0);
            let at = |place| {
                let known = runs.iter().filter_map(|run| run.bins.get(place).and_then(of));
                median(&known.collect::<Vec<_>>())
            };
            (0..count).map(at).collect()
        };
        ArmRow {
            name: arm.name.clone(),
            rates: over(|bin| bin.rate),
            hit_ratios: over(|bin| bin.hit_ratio),
            pages_per_block: over(|bin| bin.pages_per_block),
            misses_per_block: over(|bin| bin.misses_per_block),
            runs,
            left_out,
        }
    }

    fn run(&self, course: &SyncRun, sync: &SyncRun) -> RunRow {
        let tip = pauses::tip(course, self.options.block_time);
        let mut stalls = pauses::stalls(course, tip);
        let times = self.heights.iter().map(|height| time_to(course, *height, &stalls, tip));
        let times = times.collect();
        let stalls_more = stalls.len().saturating_sub(STALLS_MAX);
        stalls.truncate(STALLS_MAX);
        let (first, last) = (course.first(), course.last());
        let most = |of: fn(&crate::analysis::sync::Sample) -> Option<u64>| {
            course.samples.iter().filter_map(of).max()
        };
        let accesses = sync.accesses();
        let points = course.samples.iter().map(|sample| (sample.at - course.origin, sample.height));
        RunRow {
            label: course.label.clone(),
            first: rfc3339(first.at),
            last: rfc3339(last.at),
            elapsed: last.at - course.origin,
            samples: course.samples.len(),
            period: course.period(),
            height_first: first.height,
            height: last.height,
            announced: course.announced_max(),
            tip,
            cache_full: sync.cache_full(),
            used_max: most(|sample| sample.used),
            accesses,
            hit_ratio: accesses.and_then(Accesses::hit_ratio),
            memory_max: most(|sample| sample.memory),
            disk_max: most(|sample| sample.disk),
            cpu: last.cpu,
            times,
            stalls,
            stalls_more,
            timeouts: course.timeouts.len(),
            bins: bins(sync, self.bin),
            points: thinned(&points.collect::<Vec<_>>()),
            notes: course.notes.clone(),
        }
    }

    fn against(
        &self,
        (first, other): (&ArmRuns, &ArmRuns),
        result: &StudyResult,
        place: usize,
        random: &mut dyn FnMut() -> u64,
    ) -> Against {
        let (a, b) = (&result.arms[0], &result.arms[place]);
        let pairs = first.runs.iter().zip(&other.runs).map(|(x, y)| self.pair(x, y)).collect();
        let faster = bins::faster(&a.rates, &b.rates);
        let tips = |arm: &ArmRow| -> Vec<Option<f64>> {
            arm.runs.iter().map(|run| run.tip.map(|tip| tip.elapsed)).collect()
        };
        Against {
            first: first.name.clone(),
            other: other.name.clone(),
            pairs,
            tip: lead::tip_lead(&tips(a), &tips(b)),
            times: self.times((a, b), random),
            rate_crosses: bins::rate_crosses(&faster, self.bin),
            faster,
        }
    }

    fn pair(&self, a: &SyncRun, b: &SyncRun) -> PairRow {
        let leads = lead::over_time(a, b, self.align);
        let common = a.last().height.min(b.last().height);
        let mut edges: Vec<u64> = (1..=common / self.bin).map(|place| place * self.bin).collect();
        edges.push(common);
        let as_floats = |heights: &[u64]| heights.iter().map(|one| *one as f64).collect::<Vec<_>>();
        let at_edges = lead::over_height(a, b, self.align, &as_floats(&edges));
        edges.extend(self.heights.iter().filter(|height| **height <= common));
        // The chart also has heights between those.
        let fine = (self.bin / FINE).max(common / POINTS_MAX as u64).max(1);
        edges.extend((1..=common / fine).map(|place| place * fine));
        edges.sort_unstable();
        edges.dedup();
        let points: Vec<(f64, f64)> = leads.iter().map(|one| (one.elapsed, one.blocks)).collect();
        PairRow {
            first: a.label.clone(),
            other: b.label.clone(),
            blocks: lead::largest(&leads),
            seconds: lead::largest_times(&at_edges),
            crosses: lead::crosses(a, &leads),
            by_height: lead::over_height(a, b, self.align, &as_floats(&edges)),
            by_time: thinned(&points),
        }
    }

    /// Returns the times to all heights. The main height is judged first, as [`judge`] requires.
    fn times(&self, (a, b): (&ArmRow, &ArmRow), random: &mut dyn FnMut() -> u64) -> Vec<TimeRow> {
        let subtract = self.options.subtract_stalls;
        let seconds = |time: &TimeTo| {
            time.elapsed.map(|elapsed| elapsed - if subtract { time.stalled } else { 0.0 })
        };
        let of = |arm: &ArmRow, place: usize| -> Vec<Option<f64>> {
            arm.runs.iter().map(|run| run.times.get(place).and_then(seconds)).collect()
        };
        let periods = a.runs.iter().chain(&b.runs).map(|run| run.period);
        let period = periods.fold(0.0, f64::max);
        let main = self.main();
        let mut order: Vec<usize> = (0..self.heights.len()).collect();
        order.sort_by_key(|place| Some(*place) != main);
        let asked: Vec<Times> = order
            .iter()
            .map(|place| Times {
                a: of(a, *place),
                b: of(b, *place),
                paired: self.options.paired,
                period,
            })
            .collect();
        let above = |place: usize| {
            let mut runs = a.runs.iter().chain(&b.runs);
            runs.any(|run| run.times.get(place).is_some_and(|time| time.above_tip))
        };
        let mut rows: Vec<TimeRow> = order
            .iter()
            .zip(judge(&asked, random))
            .map(|(place, judged)| TimeRow {
                height: self.heights[*place],
                above_tip: above(*place),
                judged,
            })
            .collect();
        rows.sort_by_key(|row| row.height);
        rows
    }

    /// Returns the index of the main height, which is the highest that every run reached.
    fn main(&self) -> Option<usize> {
        self.heights.iter().rposition(|height| *height <= self.common)
    }
}

fn time_to(course: &SyncRun, height: u64, stalls: &[Stall], tip: Option<Tip>) -> TimeTo {
    let there = course.reached(height).filter(|_| course.first().height < height);
    let elapsed = there.map(|sample| sample.at - course.origin);
    // The highest height that peers have announced so far approximates the tip.
    let known = there.and_then(|sample| course.announced_until(sample.at));
    TimeTo {
        height,
        elapsed,
        stalled: elapsed.map_or(0.0, |elapsed| pauses::stalled_until(stalls, elapsed)),
        above_tip: tip.is_some_and(|tip| height > tip.height)
            || elapsed.is_some() && known.is_some_and(|known| height > known),
    }
}

/// Returns alignment by clock if all runs began within one sample period, else by start.
fn default_align(arms: &[ArmRuns]) -> Align {
    let runs = || arms.iter().flat_map(|arm| &arm.runs);
    let begins: Vec<f64> = runs().map(|run| run.first().at).collect();
    let most = begins.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = begins.iter().copied().fold(f64::INFINITY, f64::min);
    let period = runs().map(SyncRun::period).fold(0.0, f64::max);
    if most - least <= period { Align::Clock } else { Align::Start }
}

/// Returns the warnings about the samples.
fn warnings(arms: &[ArmRuns]) -> Vec<String> {
    let mut warnings = Vec::new();
    let periods = || arms.iter().flat_map(|arm| &arm.runs).map(SyncRun::period);
    let (least, most) = (periods().fold(f64::INFINITY, f64::min), periods().fold(0.0, f64::max));
    if least > 0.0 && most > least * PERIODS_APART {
        warnings.push(format!(
            "sample periods differ, {least:.1} s to {most:.1} s: the period of an arm is the resolution of \
             its times, stalls and tip"
        ));
    }
    for arm in arms {
        for run in &arm.runs {
            let period = run.period();
            let gaps: Vec<f64> = run
                .samples
                .windows(2)
                .map(|pair| pair[1].at - pair[0].at)
                .filter(|step| period > 0.0 && *step > GAP_PERIODS * period)
                .collect();
            if !gaps.is_empty() {
                let longest = gaps.iter().copied().fold(0.0, f64::max);
                warnings.push(format!(
                    "{}, {}: {} between samples, the longest of {longest:.0} s",
                    arm.name,
                    run.label,
                    crate::wording::number::plural(gaps.len() as u64, "gap"),
                ));
            }
            warnings.extend(
                run.notes.iter().map(|note| format!("{}, {}: {note}", arm.name, run.label)),
            );
        }
    }
    warnings
}

/// Reduces a curve to [`POINTS_MAX`] points. The last point is always included.
fn thinned<P: Copy>(points: &[P]) -> Vec<P> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let mut kept: Vec<P> = points.iter().copied().step_by(step).collect();
    if points.len() > 1 && !(points.len() - 1).is_multiple_of(step) {
        kept.extend(points.last());
    }
    kept
}
