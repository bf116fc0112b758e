//! Goal: the analysis of a published run of two nodes gives the numbers that were found by hand,
//! and draws the conclusions that they support. One node has a page cache of 5 MB, the other of 500
//! MB. Method: the whole analysis of the tables in `testdata/pocketnet`. Every number is compared.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use expect_test::expect;
use jsonschema::Validator;
use lab_model::results::ComparisonVerdict;
use lab_model::results::study::{Accesses, Align, Source, StudyResult};
use serde_json::Value;

use super::read::{FileFormat, read_run};
use super::{Options, analyse};
use crate::analysis::sync::bins::faster_by_bin;
use crate::analysis::sync::{Announced, Sample, SyncRun, Timeout, VariantRuns};

const HEIGHTS: [u64; 5] = [100_000, 500_000, 1_000_000, 1_250_000, 1_349_351];

fn table(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/pocketnet").join(name)
}

fn variant(name: &str, runs: Vec<SyncRun>) -> VariantRuns {
    VariantRuns { name: name.to_owned(), runs }
}

/// Returns a deterministic source of random numbers.
fn random_numbers() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    }
}

/// Reads the published runs of the two nodes.
pub(crate) fn published() -> Vec<VariantRuns> {
    let read = |name: &str| read_run(&table(name), FileFormat::Table).unwrap();
    vec![
        variant("5MB", vec![read("cache_5mb.csv")]),
        variant("500MB", vec![read("cache_500mb.csv")]),
    ]
}

/// Analyses variants, and checks that the result fits the published schema.
pub(crate) fn study(variants: &[VariantRuns], heights: &[u64]) -> StudyResult {
    let options =
        Options { heights: heights.to_vec(), ..Options::new("page cache", Source::Tables) };
    let result = analyse(variants, &[], &options, &mut random_numbers()).unwrap();
    let faults = faults_of(&serde_json::to_value(&result).unwrap());
    assert!(faults.is_empty(), "{faults:#?}");
    result
}

/// Returns the violations of the published schema.
pub(crate) fn faults_of(output: &Value) -> Vec<String> {
    static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
        let schema =
            serde_json::from_str(&lab_model::results::schema::closed::<StudyResult>()).unwrap();
        jsonschema::validator_for(&schema).unwrap()
    });
    SCHEMA.iter_errors(output).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
}

fn clock(seconds: f64) -> String {
    crate::wording::number::clock(seconds)
}

/// Formats a number with three significant digits.
fn three_digits(value: f64) -> String {
    if value >= 9.995 { format!("{value:.1}") } else { format!("{value:.2}") }
}

#[test]
fn rows_times_cache_and_totals() {
    let result = study(&published(), &HEIGHTS);
    let (small, large) = (&result.variants[0].runs[0], &result.variants[1].runs[0]);
    assert_eq!((small.samples, large.samples), (1286, 1104));
    assert_eq!(small.first, "2021-12-13T23:20:52.000Z");
    assert_eq!(large.first, "2021-12-13T23:20:53.000Z");
    assert_eq!(small.last, "2021-12-14T20:46:49.000Z");
    assert_eq!(large.last, "2021-12-14T17:44:21.000Z");
    assert_eq!((small.height, large.height), (1_349_351, 1_349_351));
    assert_eq!((small.period, large.period), (60.0, 60.0));

    let times = |run: &lab_model::results::study::RunRow| -> Vec<String> {
        run.times.iter().map(|time| clock(time.elapsed.unwrap())).collect()
    };
    assert_eq!(times(small), ["16:00", "3:09:02", "8:34:20", "16:34:37", "21:25:57"]);
    assert_eq!(times(large), ["33:00", "3:40:01", "8:29:09", "14:25:18", "17:59:28"]);

    let cache_full = |run: &lab_model::results::study::RunRow| {
        let moment = run.cache_full.unwrap();
        (clock(moment.elapsed), moment.height, moment.ceiling)
    };
    assert_eq!(cache_full(small), ("2:00".to_owned(), 3_837, 5_261_904));
    assert_eq!(cache_full(large), ("34:00".to_owned(), 105_439, 525_555_816));

    let total = |run: &lab_model::results::study::RunRow| {
        let accesses = run.accesses.unwrap();
        let ratio = format!("{:.4}", run.hit_ratio.unwrap());
        (accesses.hit, accesses.miss, accesses.spill, ratio)
    };
    let small_total = (53_700_127_496, 22_021_578_963, 5_092_804, "0.7092".to_owned());
    assert_eq!(total(small), small_total);
    assert_eq!(total(large), (78_052_187_567, 635_224_055, 0, "0.9919".to_owned()));
}

#[test]
fn leads_and_the_crossing_of_heights() {
    let result = study(&published(), &HEIGHTS);
    assert_eq!(result.align, Align::Clock);
    let pair = &result.against[0].pairs[0];
    let seconds_at = |height: f64| {
        let lead = pair.by_height.iter().find(|lead| lead.height == height).unwrap();
        lead.seconds.round()
    };
    let expected = [
        (100_000.0, -976.0),
        (500_000.0, -1905.0),
        (800_000.0, -2002.0),
        (1_000_000.0, 277.0),
        (1_100_000.0, 2671.0),
        (1_200_000.0, 5337.0),
        (1_300_000.0, 9693.0),
        (1_349_351.0, 12_388.0),
    ];
    for (height, seconds) in expected {
        assert_eq!(seconds_at(height), seconds, "{height}");
    }
    assert_eq!(clock(seconds_at(1_349_351.0)), "3:26:28");

    let (small, large) = (pair.blocks.0.unwrap(), pair.blocks.1.unwrap());
    let instant = |at: f64| crate::analysis::calendar::rfc3339(at);
    assert_eq!(small.blocks.round(), 102_251.0);
    assert_eq!(instant(small.at), "2021-12-14T00:42:52.000Z");
    assert_eq!(large.blocks.round(), -68_024.0);
    assert_eq!(instant(large.at), "2021-12-14T17:15:34.000Z");
    let (small, large) = (pair.seconds.0.unwrap(), pair.seconds.1.unwrap());
    assert_eq!((small.height, small.seconds.round()), (300_000.0, -2518.0));
    assert_eq!((large.height, large.seconds.round()), (1_349_351.0, 12_388.0));

    let [cross] = pair.crosses.as_slice() else { panic!("{:?}", pair.crosses) };
    assert_eq!(instant(cross.at), "2021-12-14T07:37:11.000Z");
    assert_eq!(clock(cross.elapsed), "8:16:19");
    assert_eq!(cross.height / 1_000, 983);
    assert_eq!(format!("{:.0}k", cross.height as f64 / 1e3), "984k");
    assert!(!cross.to_first);
}

#[test]
fn rates_and_hit_ratios_by_height() {
    let result = study(&published(), &HEIGHTS);
    assert_eq!(result.bin, 100_000);
    let bin = |variant: usize, index: usize| {
        let bin = &result.variants[variant].runs[0].bins[index];
        (three_digits(bin.rate.unwrap()), format!("{:.3}", bin.hit_ratio.unwrap()))
    };
    let expected = [
        (0, ("104.2", "0.953"), ("51.9", "1.000")),
        (2, ("47.0", "0.874"), ("39.2", "0.999")),
        (4, ("26.3", "0.657"), ("29.5", "0.997")),
        (6, ("36.5", "0.651"), ("35.5", "0.995")),
        (8, ("21.1", "0.633"), ("25.5", "0.995")),
        (10, ("9.44", "0.734"), ("12.3", "0.992")),
        (12, ("6.39", "0.695"), ("8.87", "0.988")),
        (13, ("5.28", "0.679"), ("6.10", "0.990")),
    ];
    for (index, small, large) in expected {
        let owned = |(rate, ratio): (&str, &str)| (rate.to_owned(), ratio.to_owned());
        assert_eq!((bin(0, index), bin(1, index)), (owned(small), owned(large)), "bin {index}");
    }
    let pages = |variant: usize, index: usize| {
        result.variants[variant].runs[0].bins[index].pages_per_block.unwrap().round()
    };
    assert_eq!((pages(0, 0), pages(1, 0)), (1103.0, 1538.0));
    assert_eq!((pages(0, 13), pages(1, 13)), (196_434.0, 196_216.0));
    // From the second bin on the work per block agrees within a few percent.
    for index in 1..14 {
        let ratio = pages(1, index) / pages(0, index);
        assert!((0.99..1.04).contains(&ratio), "bin {index}: {ratio}");
    }
}

/// Returns the conclusions of a study as sentences.
fn sentences(result: &StudyResult) -> Vec<String> {
    let sentence = |conclusion: &lab_model::results::study::Conclusion| {
        format!("{}: {}", conclusion.about.as_str(), conclusion.text)
    };
    result.conclusions.iter().map(sentence).collect()
}

/// Checks that a conclusion of a study contains a text.
#[track_caller]
fn assert_concludes(result: &StudyResult, part: &str) {
    let output = sentences(result);
    assert!(output.iter().any(|text| text.contains(part)), "{part:?} is not in {output:#?}");
}

#[test]
fn conclusions_are_those_of_a_careful_reading() {
    let result = study(&published(), &HEIGHTS);
    assert_eq!(result.conclusions[0].word, Some(ComparisonVerdict::CannotTell));
    expect![[r#"
        verdict: cannot tell whether 500MB syncs faster than 5MB: one run of each variant gives no effect size, because the spread between equal runs is unknown; in these runs 500MB reached 1,349,351 3 h 26 min earlier (−16.1 %)
        heights: 5MB leads until 8:16:19 (height 983,974), then 500MB leads
        rates: 500MB is faster from height 300,000 on, except from 500,000 to 700,000; it takes the lead 683,974 blocks later
        cause: below height 200,000, 500MB is 2.0 times slower than 5MB, although its hit ratio is highest there (99.989 % or more, later 98.8 % to 99.90 %): cache warm-up is not the cause of its slow start
        work: the work per block is the same: page accesses per block agree within 3.90 % in 13 of 14 bins (the largest difference is 39.5 %, in the bin from 0 to 100,000), so differences in blocks/s are real there
        cause: 500MB reads 34.7 times fewer pages per block than 5MB (471 compared with 16,320); it is faster in 9 of the 14 bins in which it reads fewer; in the bins that begin at 0, 100,000, 200,000, 500,000, 600,000 it reads fewer but is slower, so reading is not the limit there
        tip: no run is seen to reach the tip: 5MB ends at 1,349,351; 500MB ends at 1,349,351
        stalls: 500MB stalled at height 1,349,351 for the last 24 min of its data: it stopped, or was at the tip
    "#]].assert_eq(&(sentences(&result).join("\n") + "\n"));
}

#[test]
fn a_log_adds_the_heights_that_peers_announced() {
    let mut variants = published();
    let at = variants[0].runs[0].samples[0].at;
    variants[0].runs[0].announced = vec![
        Announced { at: at + 10.0, height: 1_481_438 },
        Announced { at: at + 55_000.0, height: 1_482_352 },
    ];
    let result = study(&variants, &HEIGHTS);
    assert_concludes(
        &result,
        "tip: peers announced 1,482,352 at most: 5MB ends at 1,349,351, 133,001 blocks below it; 500MB ends \
         at 1,349,351, 133,001 blocks below it",
    );
    // A height above all announced heights did not exist when a run reached it.
    variants[0].runs[0].announced = vec![Announced { at, height: 1_300_000 }];
    let result = study(&variants, &HEIGHTS);
    assert_concludes(&result, "target above the tip: 1,349,351 did not exist yet");
    assert_concludes(
        &result,
        "verdict: cannot tell whether 500MB syncs faster than 5MB: the target 1,349,351 was above",
    );
}

/// Returns a run with one sample per minute, from 0 s on.
fn run_of(label: &str, heights: &[u64]) -> SyncRun {
    let sample = |(index, height): (usize, &u64)| Sample {
        at: 1e9 + index as f64 * 60.0,
        height: *height,
        ..Sample::default()
    };
    SyncRun {
        label: label.into(),
        origin: 1e9,
        samples: heights.iter().enumerate().map(sample).collect(),
        ..SyncRun::default()
    }
}

/// Returns heights of a sync with `step` blocks per minute to height 30,000, and then with one
/// block per minute for 40 minutes.
fn to_the_tip(step: u64) -> Vec<u64> {
    let climb = (0..30_000 / step).map(|index| index * step);
    climb.chain((0..=40).map(|index| 30_000 + index)).collect()
}

#[test]
fn a_target_above_the_tip_is_flagged_and_times_go_to_the_tip() {
    let variants = [
        variant("quick", vec![run_of("1", &to_the_tip(1_000))]),
        variant("slow", vec![run_of("1", &to_the_tip(500))]),
    ];
    let result = study(&variants, &[20_000, 30_030]);
    let tip = result.variants[0].runs[0].tip.unwrap();
    // From the tip on, there is one block per minute.
    assert_eq!((tip.height, tip.elapsed), (30_000, 1_800.0));
    assert_concludes(&result, "target above the tip: 30,030 did not exist yet");
    assert_concludes(
        &result,
        "cannot tell whether slow syncs faster than quick: the target 30,030 was above the chain tip",
    );
    assert_concludes(&result, "at the tip a run only waits for new blocks");
    // If the analysis chooses the heights, the last height is below the lowest tip.
    let result = study(&variants, &[]);
    assert_eq!(result.heights.last(), Some(&29_500));
    assert!(!result.against[0].times.iter().any(|row| row.above_tip));
}

/// Returns a run with cache accesses. `misses_of` returns the pages that were read for a number of
/// blocks.
fn run_with_accesses(label: &str, heights: &[u64], misses_of: impl Fn(u64) -> u64) -> SyncRun {
    let mut run = run_of(label, heights);
    let mut previous_height = 0;
    for sample in &mut run.samples {
        let blocks = sample.height - previous_height;
        previous_height = sample.height;
        sample.accesses = Some(Accesses { hit: 50 * blocks, miss: misses_of(blocks), spill: 0 });
    }
    run
}

/// Returns six runs of a variant that differ by up to 40 %. Run n makes `before * factor(n)` blocks
/// per minute below height 15,000, and `after * factor(n)` from there on.
fn uneven_runs(before: f64, after: f64, factors: [f64; 6]) -> Vec<SyncRun> {
    let run = |(index, factor): (usize, &f64)| {
        let mut heights = vec![0];
        while let Some(height) = heights.last().copied().filter(|height| *height < 30_000) {
            let step = if height < 15_000 { before } else { after };
            heights.push(height + (step * factor) as u64);
        }
        run_of(&(index + 1).to_string(), &heights)
    };
    factors.iter().enumerate().map(run).collect()
}

#[test]
fn rates_that_differ_no_more_than_equal_runs_do_are_not_called_different() {
    let variants = [
        variant("quiet", uneven_runs(500.0, 500.0, [0.8, 1.1, 0.9, 1.2, 1.0, 0.85])),
        variant("noisy", uneven_runs(500.0, 500.0, [1.2, 0.85, 1.15, 0.95, 1.05, 0.8])),
    ];
    let result = study(&variants, &[]);
    // Compared as single runs, the medians would differ.
    let [quiet, noisy] = [0, 1].map(|index| result.variants[index].rates.as_slice());
    let by_medians = faster_by_bin(quiet, noisy);
    assert!(by_medians.iter().flatten().count() > 5, "{by_medians:?}");
    assert_eq!(result.against[0].faster, vec![None; result.against[0].faster.len()]);
    assert_concludes(&result, "rates: in no bin do the runs show that quiet or noisy is faster");
}

/// Runs that wait at height 0 and then jump to 10,000 have no rate in the bins below it.
#[test]
fn a_bin_in_which_all_runs_stand_still_is_not_compared() {
    let runs = |step: u64| -> Vec<SyncRun> {
        let run = |number: u64| {
            let climb = (0..80).map(|index| 10_000 + index * (step + number));
            run_of(&number.to_string(), &[0; 20].into_iter().chain(climb).collect::<Vec<_>>())
        };
        (1..=3).map(run).collect()
    };
    let result = study(&[variant("a", runs(250)), variant("b", runs(250))], &[]);
    assert_eq!(result.variants[0].rates[0], Some(0.0), "the first bin must show the case");
    assert_eq!(result.against[0].faster[0], None);
}

#[test]
fn a_difference_that_all_runs_show_is_called_faster() {
    let variants = [
        variant("early", uneven_runs(1_000.0, 250.0, [0.8, 1.1, 0.9, 1.2, 1.0, 0.85])),
        variant("late", uneven_runs(500.0, 500.0, [1.2, 0.85, 1.15, 0.95, 1.05, 0.8])),
    ];
    let result = study(&variants, &[]);
    assert_concludes(&result, "rates: late is faster from height 15,000 on");
}

/// The quick node syncs twice as fast and reads a third of the pages per block. Then it waits at
/// the tip for five hours, where both nodes read 1,000 pages per minute. The time at the tip must
/// not affect the conclusions about the sync.
#[test]
fn waiting_at_the_tip_is_not_part_of_a_sync() {
    let to_tip = |step: u64, wait: u64| -> Vec<u64> {
        let climb = (0..31_000 / step).map(|index| index * step);
        climb.chain((0..=wait).map(|index| 31_000 + index)).collect()
    };
    let misses =
        |per_block: u64| move |blocks: u64| if blocks > 1 { per_block * blocks } else { 1_000 };
    let quick = |per_block| run_with_accesses("1", &to_tip(1_000, 300), misses(per_block));
    let slow = |per_block| run_with_accesses("1", &to_tip(500, 40), misses(per_block));
    let variants = [variant("quick", vec![quick(1)]), variant("slow", vec![slow(3)])];
    let result = study(&variants, &[]);
    let output = sentences(&result);
    assert!(result.against[0].rate_crosses.is_empty(), "{output:#?}");
    assert!(result.against[0].faster.iter().flatten().all(|first| *first), "{output:#?}");
    assert!(result.against[0].pairs[0].crosses.is_empty(), "{output:#?}");
    assert_concludes(
        &result,
        "cause: quick reads 2.94 times fewer pages per block than slow (1.03 compared with 3.03)",
    );
    // The conclusions are the same as for runs that end at the tip.
    let cut_run = |run: SyncRun, height: u64| {
        let samples = run.samples.into_iter().filter(|sample| sample.height <= height).collect();
        SyncRun { samples, ..run }
    };
    let cut_variants = [
        variant("quick", vec![cut_run(quick(1), 31_000)]),
        variant("slow", vec![cut_run(slow(3), 31_000)]),
    ];
    let cut_result = study(&cut_variants, &[]);
    let sync_sentences = |result: &StudyResult| -> Vec<String> {
        let sentences = sentences(result).into_iter();
        sentences.filter(|text| !text.starts_with("tip") && !text.starts_with("verdict")).collect()
    };
    assert_eq!(sync_sentences(&result), sync_sentences(&cut_result));
    // The target is below the tip, and the lead to the tip is a number.
    assert_eq!(result.heights.last(), Some(&30_500));
    let lead = result.against[0].tip.unwrap();
    assert_eq!((lead.first, lead.other, lead.seconds), (1_860.0, 3_720.0, 1_860.0));
    assert_concludes(
        &result,
        "tip: quick reached the tip 31 min before slow: after 31:00 and 1:02:00",
    );
}

#[test]
fn stalls_are_reported_with_their_cause_and_can_be_subtracted() {
    let mut heights: Vec<u64> = (0..20).map(|index| index * 1_000).collect();
    heights.extend([19_000; 5]);
    heights.extend((20..40).map(|index| index * 1_000));
    let mut stalled = run_of("1", &heights);
    stalled.timeouts = vec![Timeout { at: 1e9 + 21.0 * 60.0, peer: 4 }];
    let smooth = run_of("1", &(0..45).map(|index| index * 900).collect::<Vec<_>>());
    let variants = [variant("stalled", vec![stalled]), variant("smooth", vec![smooth])];
    let result = study(&variants, &[30_000]);
    let [stall] = result.variants[0].runs[0].stalls.as_slice() else { panic!("one stall") };
    assert_eq!((stall.from, stall.seconds, stall.height), (19.0 * 60.0, 300.0, 19_000));
    assert_eq!((stall.timeouts, stall.open), (1, false));
    assert_concludes(
        &result,
        "stalled had 1 stall, 5 min together, the longest of 5 min at height 19,000; 1 coincide",
    );
    let first_time =
        |result: &StudyResult| result.against[0].times[0].comparison.clone().unwrap().a;
    assert_eq!(first_time(&result), 35.0 * 60.0);
    let options =
        Options { heights: vec![30_000], subtract_stalls: true, ..Options::new("x", Source::Logs) };
    let result = analyse(&variants, &[], &options, &mut random_numbers()).unwrap();
    assert_eq!(first_time(&result), 30.0 * 60.0);
    assert_concludes(&result, "they are subtracted from its times");
}

/// Returns four runs of each of two variants. The second variant is twice as fast.
pub(crate) fn repeated(a: &str, b: &str) -> Vec<VariantRuns> {
    let runs = |steps: [u64; 4]| -> Vec<SyncRun> {
        let run = |step: u64| {
            run_of("x", &(0..=200_000 / step).map(|index| index * step).collect::<Vec<_>>())
        };
        steps.map(run).to_vec()
    };
    vec![variant(a, runs([990, 1000, 1010, 1005])), variant(b, runs([2000, 2020, 1990, 2010]))]
}

#[test]
fn the_spread_of_repeats_is_reported() {
    let runs = |steps: &[u64]| -> Vec<SyncRun> {
        let run = |step: &u64| {
            run_of("x", &(0..=200_000 / step).map(|index| index * step).collect::<Vec<_>>())
        };
        steps.iter().map(run).collect()
    };
    let result = study(&repeated("a", "b"), &[100_000]);
    assert_eq!(result.conclusions[0].word, Some(ComparisonVerdict::Better));
    assert_concludes(
        &result,
        "verdict: b syncs faster than a: it reaches 100,000 50 min earlier (−50.0 %)",
    );
    assert_concludes(
        &result,
        "repeats: at height 100,000, 4 runs of a differ by 2 min and 4 runs of b differ by 1 min",
    );
    // Pairs that do not agree give no verdict.
    let variants =
        [variant("a", runs(&[1000, 2000, 1500])), variant("b", runs(&[2000, 1000, 1500]))];
    let options =
        Options { heights: vec![100_000], paired: true, ..Options::new("x", Source::Runs) };
    let result = analyse(&variants, &[], &options, &mut random_numbers()).unwrap();
    let comparison = result.against[0].times[0].comparison.clone().unwrap();
    assert_eq!((comparison.verdict, comparison.pairs.len()), (ComparisonVerdict::CannotTell, 3));
    assert_concludes(
        &result,
        "cannot tell whether b syncs faster than a: its median time to 100,000 is",
    );
    // A single run of one variant gives no verdict, even if the other variant has several runs.
    let variants = [variant("a", runs(&[990, 1000, 1010, 1005])), variant("b", runs(&[2000]))];
    let result = study(&variants, &[100_000]);
    assert_concludes(
        &result,
        "cannot tell whether b syncs faster than a: a single run of a variant gives no effect size",
    );
}

#[test]
fn a_single_variant_is_described() {
    let only_variant = [variant("a", vec![run_of("1", &[0, 50, 50, 100])])];
    let options = Options::new("x", Source::Tables);
    let result = analyse(&only_variant, &[], &options, &mut random_numbers()).unwrap();
    assert!(result.against.is_empty());
    assert_concludes(
        &result,
        "verdict: a syncs blocks 0 to 100 in 3 min; it is compared with no other variant",
    );
    assert!(crate::study::report(&result).text(crate::report::Colour::Plain).contains("MEASURED"));
}

#[test]
fn incomparable_variants_are_refused() {
    let valid = [variant("a", vec![run_of("1", &[0, 1])])];
    let message = |variants: &[VariantRuns], options: &Options| {
        analyse(variants, &[], options, &mut random_numbers()).unwrap_err().to_string()
    };
    let options = Options::new("x", Source::Tables);
    assert_eq!(message(&[], &options), "a study has at least one variant; there is none");
    let without_run = [valid[0].clone(), variant("b", Vec::new())];
    assert_eq!(message(&without_run, &options), "variant \"b\" has no usable run");
    let high = [valid[0].clone(), variant("b", vec![run_of("1", &[0, 1_000_000_000])])];
    let narrow_bins = Options { bin: Some(1), ..options };
    let text = message(&high, &narrow_bins);
    assert!(text.contains("at most 2000"), "{text}");
}

#[test]
fn variants_of_different_periods_and_with_gaps_are_reported() {
    let mut quick = run_of("1", &(0..50).map(|index| index * 100).collect::<Vec<_>>());
    for (index, sample) in quick.samples.iter_mut().enumerate() {
        sample.at = 1e9 + index as f64;
    }
    quick.samples[49].at += 10.0;
    let variants = [
        variant("slow", vec![run_of("1", &[0, 1_000, 2_000, 5_000])]),
        variant("quick", vec![quick]),
    ];
    let warnings = study(&variants, &[]).warnings;
    assert!(warnings[0].contains("sample periods differ, 1.0 s to 60.0 s"), "{warnings:?}");
    assert!(
        warnings[1].contains("quick, 1: 1 gap between samples, the longest of 11 s"),
        "{warnings:?}"
    );
}
