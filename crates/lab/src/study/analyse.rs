//! Turns the runs of a sync study into its result by applying every rule of `analysis/sync.rs`.
//!
//! A run has samples of the height over time. In this file a "sync" is the part of a run until the
//! run reached the tip (the newest block of the chain). A row is the part of the result about one
//! variant, run or height. A bin is a range of heights; all bins have the same width.

use lab_model::results::study::{
    Accesses, Align, Bin, BlockTimeSource, PairRow, RunRow, SCHEMA, Source, Stall, StudyResult,
    TimeRow, TimeTo, Tip, VariantComparison, VariantRow,
};

use super::StudyFault;
use crate::analysis::calendar::rfc3339;
use crate::analysis::statistics::median;
use crate::analysis::sync::judge::{Times, find_faster, judge};
use crate::analysis::sync::pauses::STALLS_MAX;
use crate::analysis::sync::tip::{self, BlockTime};
use crate::analysis::sync::{SyncRun, VariantRuns, bins, lead, pauses};
use crate::wording::conclude;

/// Default number of heights to which times are compared.
const HEIGHTS_DEFAULT: u64 = 8;
/// A step between two default heights is divided into this number of parts. If a run reached the
/// tip, the last default height is the highest multiple of a part below the tip.
const STEP_PARTS: u64 = 10;
/// Maximum number of requested heights.
const HEIGHTS_MAX: usize = 100;
/// Maximum number of points of a curve. A chart has fewer pixels in width.
const POINTS_MAX: usize = 1_500;
/// Number of points per bin in the chart of leads at equal height.
const POINTS_PER_BIN: u64 = 10;
/// A step between samples is a gap if it is longer than this many sample periods.
const GAP_PERIODS: f64 = 3.5;
/// A warning is given if the sample periods of two runs differ by more than this factor.
const PERIOD_RATIO_MAX: f64 = 1.5;

/// Options of the analysis.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the study.
    pub name: String,
    /// The question that the study answers.
    pub question: Option<String>,
    /// Source of its runs.
    pub source: Source,
    /// The order and arrangement of the study's runs, in words.
    pub design: Option<String>,
    /// Heights to which times are compared. If empty, they are chosen from the runs.
    pub heights: Vec<u64>,
    /// Blocks per bin. If `None`, the number is chosen from the runs.
    pub bin: Option<u64>,
    /// Alignment of the runs in time. If `None`, the runs are aligned by clock if all of them began
    /// within one sample period, and otherwise by their starts.
    pub align: Option<Align>,
    /// Block time of the chain, in seconds. If `None`, it is measured at the ends of the runs.
    pub block_time: Option<f64>,
    /// Block time, in seconds, that is assumed if it is not given and no run shows it.
    pub block_time_assumed: f64,
    /// True if stalls (times without progress) are subtracted from times.
    pub subtract_stalls: bool,
    /// True if the runs form pairs: the first runs of two variants, their second runs, and so on.
    pub paired: bool,
    /// True if the study ended before all planned runs were made.
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
            block_time: None,
            block_time_assumed: 60.0,
            subtract_stalls: false,
            paired: false,
            partial: false,
        }
    }
}

/// Analyses the runs of variants. `left_out` has the reasons why runs are unusable, by variant. The
/// randomisation tests take their random numbers from `random`.
///
/// # Errors
/// Fails if there is no variant, a variant has no run, or an option is out of range.
pub fn analyse(
    variants: &[VariantRuns],
    left_out: &[Vec<String>],
    options: &Options,
    random: &mut dyn FnMut() -> u64,
) -> Result<StudyResult, StudyFault> {
    check(variants, options)?;
    let block_time = match options.block_time {
        Some(seconds) => BlockTime { seconds, source: BlockTimeSource::Given },
        None => tip::measure_block_time(variants, options.block_time_assumed),
    };
    let tips = tip::find_tips(variants, block_time);
    let syncs: Vec<VariantRuns> =
        variants.iter().zip(&tips).map(|(variant, tips)| until_tip(variant, tips)).collect();
    let parameters = Parameters::of(variants, &syncs, &tips, options);
    let rows: Vec<VariantRow> = variants
        .iter()
        .zip(&syncs)
        .zip(&tips)
        .enumerate()
        .map(|(index, ((variant, sync), tips))| {
            let reasons = left_out.get(index).cloned().unwrap_or_default();
            parameters.build_variant_row((variant, sync), tips, reasons)
        })
        .collect();
    let mut result = StudyResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        name: options.name.clone(),
        question: options.question.clone(),
        source: options.source,
        design: options.design.clone(),
        align: parameters.align,
        bin: parameters.bin,
        block_time: block_time.seconds,
        block_time_source: block_time.source,
        stalls_subtracted: options.subtract_stalls,
        partial: options.partial,
        heights: parameters.heights.clone(),
        variants: rows,
        against: Vec::new(),
        conclusions: Vec::new(),
        warnings: warnings(&syncs),
    };
    for other_index in 1..variants.len() {
        let against =
            parameters.compare(&syncs[0], &syncs[other_index], &result, other_index, random);
        result.against.push(against);
    }
    result.conclusions = conclude::conclusions(&result);
    Ok(result)
}

/// Returns the runs of a variant without the samples after the tip was reached.
fn until_tip(variant: &VariantRuns, tips: &[Option<Tip>]) -> VariantRuns {
    let runs = variant.runs.iter().zip(tips).map(|(run, tip)| run.until_tip(*tip)).collect();
    VariantRuns { name: variant.name.clone(), runs }
}

/// Checks the variants and the options.
fn check(variants: &[VariantRuns], options: &Options) -> Result<(), StudyFault> {
    if variants.is_empty() {
        let message = "a study has at least one variant; there is none";
        return Err(StudyFault::Option(message.to_owned()));
    }
    let has_no_run = |variant: &&VariantRuns| variant.runs.is_empty();
    if let Some(variant) = variants.iter().find(has_no_run) {
        return Err(StudyFault::Option(format!("variant {:?} has no usable run", variant.name)));
    }
    if options.heights.len() > HEIGHTS_MAX {
        let count = options.heights.len();
        return Err(StudyFault::Option(format!(
            "{count} heights are too many: at most {HEIGHTS_MAX}"
        )));
    }
    let max_height =
        variants.iter().flat_map(|variant| &variant.runs).map(|run| run.last().height).max();
    let (max_height, bins_max) = (max_height.unwrap_or(0), bins::BINS_MAX as u64);
    match options.bin {
        Some(0) => Err(StudyFault::Option("a bin has at least one block".to_owned())),
        Some(bin) if max_height / bin >= bins_max => Err(StudyFault::Option(format!(
            "bins of {bin} blocks are too many for a height of {max_height}: at most {bins_max}"
        ))),
        _ => Ok(()),
    }
}

/// Parameters of the analysis that all runs share.
struct Parameters<'a> {
    options: &'a Options,
    align: Align,
    /// Blocks per bin.
    bin: u64,
    /// Heights to which times are compared, in ascending order.
    heights: Vec<u64>,
    /// The highest height that every run reached.
    common_height: u64,
}

impl Parameters<'_> {
    /// Chooses the parameters. `syncs` has the variants' runs until the tip, and `tips` their tips.
    fn of<'a>(
        variants: &[VariantRuns],
        syncs: &[VariantRuns],
        tips: &[Vec<Option<Tip>>],
        options: &'a Options,
    ) -> Parameters<'a> {
        let runs = || syncs.iter().flat_map(|variant| &variant.runs);
        let lowest_end = |variants: &[VariantRuns]| {
            variants
                .iter()
                .flat_map(|variant| &variant.runs)
                .map(|run| run.last().height)
                .min()
                .unwrap_or(0)
        };
        let (common_height, common_sync_end) = (lowest_end(variants), lowest_end(syncs));
        let highest_start = runs().map(|run| run.first().height).max().unwrap_or(0);
        let fewest_samples = runs().map(|run| run.samples.len()).min().unwrap_or(0);
        let default_bin = || bins::default_width(common_sync_end, fewest_samples);
        let bin = options.bin.unwrap_or_else(default_bin);
        let mut heights = options.heights.clone();
        if heights.is_empty() {
            heights = default_heights(tips, common_sync_end);
            // A run has no time to a height at or below its start.
            heights.retain(|height| *height > highest_start);
        }
        heights.sort_unstable();
        heights.dedup();
        Parameters {
            options,
            align: options.align.unwrap_or_else(|| default_align(variants)),
            bin,
            heights,
            common_height,
        }
    }

    /// Returns the row of a variant. `sync` is the same variant, with its runs until the tip.
    fn build_variant_row(
        &self,
        (variant, sync): (&VariantRuns, &VariantRuns),
        tips: &[Option<Tip>],
        left_out: Vec<String>,
    ) -> VariantRow {
        let runs = variant.runs.iter().zip(&sync.runs).zip(tips);
        let runs: Vec<RunRow> =
            runs.map(|((run, sync), tip)| self.build_run_row(run, sync, *tip)).collect();
        let medians_over_runs = |value_of: fn(&Bin) -> Option<f64>| {
            let count = runs.iter().map(|run| run.bins.len()).max().unwrap_or(0);
            let median_at = |index| {
                let known = runs.iter().filter_map(|run| run.bins.get(index).and_then(value_of));
                median(&known.collect::<Vec<_>>())
            };
            (0..count).map(median_at).collect()
        };
        VariantRow {
            name: variant.name.clone(),
            rates: medians_over_runs(|bin| bin.rate),
            hit_ratios: medians_over_runs(|bin| bin.hit_ratio),
            pages_per_block: medians_over_runs(|bin| bin.pages_per_block),
            misses_per_block: medians_over_runs(|bin| bin.misses_per_block),
            runs,
            left_out,
        }
    }

    /// Returns the row of a run. `sync` is the same run until the tip.
    fn build_run_row(&self, run: &SyncRun, sync: &SyncRun, tip: Option<Tip>) -> RunRow {
        let mut stalls = pauses::find_stalls(run, tip);
        let times = self.heights.iter().map(|height| time_to(run, *height, &stalls, tip));
        let times = times.collect();
        let stalls_more = stalls.len().saturating_sub(STALLS_MAX);
        stalls.truncate(STALLS_MAX);
        let (first, last) = (run.first(), run.last());
        let maximum = |value_of: fn(&crate::analysis::sync::Sample) -> Option<u64>| {
            run.samples.iter().filter_map(value_of).max()
        };
        let accesses = sync.accesses();
        let points = run.samples.iter().map(|sample| (sample.at - run.origin, sample.height));
        RunRow {
            label: run.label.clone(),
            first: rfc3339(first.at),
            last: rfc3339(last.at),
            elapsed: last.at - run.origin,
            samples: run.samples.len(),
            period: sync.period().max(if sync.samples.len() < 2 { run.period() } else { 0.0 }),
            height_first: first.height,
            height: last.height,
            announced: run.announced_max(),
            tip,
            cache_full: sync.cache_full(),
            used_max: maximum(|sample| sample.used),
            accesses,
            hit_ratio: accesses.and_then(Accesses::hit_ratio),
            memory_max: maximum(|sample| sample.memory),
            disk_max: maximum(|sample| sample.disk),
            cpu: last.cpu,
            times,
            stalls,
            stalls_more,
            timeouts: run.timeouts.len(),
            bins: bins::compute_bins(sync, self.bin),
            points: thin_out(&points.collect::<Vec<_>>()),
            notes: run.notes.clone(),
        }
    }

    /// Compares the first variant with another variant, whose index in the result is `other_index`.
    fn compare(
        &self,
        first: &VariantRuns,
        other: &VariantRuns,
        result: &StudyResult,
        other_index: usize,
        random: &mut dyn FnMut() -> u64,
    ) -> VariantComparison {
        let (a, b) = (&result.variants[0], &result.variants[other_index]);
        let pairs = first.runs.iter().zip(&other.runs);
        let pairs = pairs.map(|(x, y)| self.compare_runs(x, y)).collect();
        let starts_of = |variant: &VariantRuns| variant.runs.iter().map(|run| run.origin).collect();
        let starts = (starts_of(first), starts_of(other));
        let times = self.compare_times((a, b), &starts, random);
        let faster = find_faster(a, b, &starts, self.options.paired, random);
        let tips = |variant: &VariantRow| -> Vec<Option<f64>> {
            variant.runs.iter().map(|run| run.tip.map(|tip| tip.elapsed)).collect()
        };
        VariantComparison {
            first: first.name.clone(),
            other: other.name.clone(),
            pairs,
            tip: lead::tip_lead(&tips(a), &tips(b)),
            times,
            rate_crosses: bins::rate_crosses(&faster, self.bin),
            faster,
        }
    }

    /// Returns the leads between two runs, by time and by height.
    fn compare_runs(&self, a: &SyncRun, b: &SyncRun) -> PairRow {
        let leads = lead::block_leads(a, b, self.align);
        let common_height = a.last().height.min(b.last().height);
        let mut heights: Vec<u64> =
            (1..=common_height / self.bin).map(|index| index * self.bin).collect();
        heights.push(common_height);
        let as_floats =
            |heights: &[u64]| heights.iter().map(|height| *height as f64).collect::<Vec<_>>();
        // The largest leads in the result are chosen from the leads at the edges of bins.
        let leads_at_edges = lead::time_leads(a, b, self.align, &as_floats(&heights));
        heights.extend(self.heights.iter().filter(|height| **height <= common_height));
        // The chart also needs heights between the edges of the bins.
        let step = (self.bin / POINTS_PER_BIN).max(common_height / POINTS_MAX as u64).max(1);
        heights.extend((1..=common_height / step).map(|index| index * step));
        heights.sort_unstable();
        heights.dedup();
        let points: Vec<(f64, f64)> =
            leads.iter().map(|lead| (lead.elapsed, lead.blocks)).collect();
        PairRow {
            first: a.label.clone(),
            other: b.label.clone(),
            blocks: lead::largest_block_leads(&leads),
            seconds: lead::largest_time_leads(&leads_at_edges),
            crosses: lead::find_lead_changes(a, &leads),
            by_height: lead::time_leads(a, b, self.align, &as_floats(&heights)),
            by_time: thin_out(&points),
        }
    }

    /// Compares the times of two variants to all heights. [`judge`] requires that its input begins
    /// with the main height.
    fn compare_times(
        &self,
        (a, b): (&VariantRow, &VariantRow),
        starts: &(Vec<f64>, Vec<f64>),
        random: &mut dyn FnMut() -> u64,
    ) -> Vec<TimeRow> {
        let subtract = self.options.subtract_stalls;
        let seconds = |time: &TimeTo| {
            time.elapsed.map(|elapsed| elapsed - if subtract { time.stalled } else { 0.0 })
        };
        let times_of = |variant: &VariantRow, index: usize| -> Vec<Option<f64>> {
            variant.runs.iter().map(|run| run.times.get(index).and_then(seconds)).collect()
        };
        let periods = a.runs.iter().chain(&b.runs).map(|run| run.period);
        let period = periods.fold(0.0, f64::max);
        let main_index = self.main_height_index();
        let mut order: Vec<usize> = (0..self.heights.len()).collect();
        order.sort_by_key(|index| Some(*index) != main_index);
        let times_by_height: Vec<Times> = order
            .iter()
            .map(|index| Times {
                a: times_of(a, *index),
                b: times_of(b, *index),
                starts: starts.clone(),
                paired: self.options.paired,
                period,
            })
            .collect();
        let is_above_tip = |index: usize| {
            let mut runs = a.runs.iter().chain(&b.runs);
            runs.any(|run| run.times.get(index).is_some_and(|time| time.above_tip))
        };
        let mut rows: Vec<TimeRow> = order
            .iter()
            .zip(judge(&times_by_height, random))
            .map(|(index, comparison)| TimeRow {
                height: self.heights[*index],
                above_tip: is_above_tip(*index),
                comparison,
            })
            .collect();
        rows.sort_by_key(|row| row.height);
        rows
    }

    /// Returns the index of the main height, which is the highest height that every run reached.
    fn main_height_index(&self) -> Option<usize> {
        self.heights.iter().rposition(|height| *height <= self.common_height)
    }
}

/// Returns the default heights to which times are compared, in steps up to `end`. If a run reached
/// the tip, the last height is below the tip, because the time to the tip also depends on when new
/// blocks appear.
fn default_heights(tips: &[Vec<Option<Tip>>], end: u64) -> Vec<u64> {
    let step = bins::round_step(end.div_ceil(HEIGHTS_DEFAULT));
    let ends_at_tip = tips.iter().flatten().flatten().any(|tip| tip.height <= end);
    let part = (step / STEP_PARTS).max(1);
    let last_height = if ends_at_tip { end.saturating_sub(1) / part * part } else { end };
    let mut heights: Vec<u64> = (1..=last_height / step).map(|index| index * step).collect();
    heights.push(last_height);
    heights
}

/// Returns the time that a run took to a height. The time is unknown if the run began at or above
/// the height, or did not reach it.
fn time_to(run: &SyncRun, height: u64, stalls: &[Stall], tip: Option<Tip>) -> TimeTo {
    let reached = run.first_sample_at(height).filter(|_| run.first().height < height);
    let elapsed = reached.map(|sample| sample.at - run.origin);
    // The highest height that peers have announced so far approximates the tip.
    let announced = reached.and_then(|sample| run.announced_until(sample.at));
    let is_above_announced = announced.is_some_and(|announced| height > announced);
    TimeTo {
        height,
        elapsed,
        stalled: elapsed.map_or(0.0, |elapsed| pauses::stalled_until(stalls, elapsed)),
        above_tip: tip.is_some_and(|tip| height > tip.height) || is_above_announced,
    }
}

/// Returns alignment by clock if all runs began within one sample period, otherwise by start.
fn default_align(variants: &[VariantRuns]) -> Align {
    let runs = || variants.iter().flat_map(|variant| &variant.runs);
    let starts: Vec<f64> = runs().map(|run| run.first().at).collect();
    let latest_start = starts.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let earliest_start = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let period = runs().map(SyncRun::period).fold(0.0, f64::max);
    if latest_start - earliest_start <= period { Align::Clock } else { Align::Start }
}

/// Returns the warnings about the samples until the tip.
fn warnings(variants: &[VariantRuns]) -> Vec<String> {
    let mut warnings = Vec::new();
    let periods = || variants.iter().flat_map(|variant| &variant.runs).map(SyncRun::period);
    let (shortest, longest) =
        (periods().fold(f64::INFINITY, f64::min), periods().fold(0.0, f64::max));
    if shortest > 0.0 && longest > shortest * PERIOD_RATIO_MAX {
        warnings.push(format!(
            "sample periods differ, {shortest:.1} s to {longest:.1} s: the period of a variant is the resolution of \
             its times, stalls and tip"
        ));
    }
    for variant in variants {
        for run in &variant.runs {
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
                    "{}, {}: {} between samples, the longest of {longest:.0} s: the time of a height that \
                     was reached in a gap is late by up to its length",
                    variant.name,
                    run.label,
                    crate::wording::number::plural(gaps.len() as u64, "gap"),
                ));
            }
            warnings.extend(
                run.notes.iter().map(|note| format!("{}, {}: {note}", variant.name, run.label)),
            );
        }
    }
    warnings
}

/// Reduces a curve to about [`POINTS_MAX`] points. The last point is always included.
fn thin_out<P: Copy>(points: &[P]) -> Vec<P> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let mut thinned_points: Vec<P> = points.iter().copied().step_by(step).collect();
    if points.len() > 1 && !(points.len() - 1).is_multiple_of(step) {
        thinned_points.extend(points.last());
    }
    thinned_points
}
