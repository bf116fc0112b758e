//! Invariants of reading a run from arbitrary bytes, as functions for fuzzers.
//!
//! `fuzz/src/study_log.rs` calls these functions without a time limit, and the tests below for one
//! second. The functions are not part of the crate's interface.

use std::io::BufReader;
use std::path::Path;

use lab_model::results::study::Accesses;

use crate::analysis::sync::{Sample, SyncRun};
use crate::study::StudyFault;
use crate::study::read::{FileFormat, Limits, LogFormat, RunLimits, read};

/// Limits that are small enough for inputs to reach them.
const TIGHT: Limits =
    Limits { line_bytes: 4_000, run: RunLimits { samples: 8, timeouts: 3, announced: 3 } };
/// Limits with the same length of a line. They allow so many samples that no samples are merged.
const ROOMY: Limits = Limits { line_bytes: TIGHT.line_bytes, run: RunLimits::DEFAULT };
/// Largest length of an error or a note, in bytes. People read these texts.
const MESSAGE_BYTES_MAX: usize = 1_000;

/// Reads bytes as a file of each format. The resulting run must be ordered and bounded, and must
/// not depend on the size of the read chunks. Merging samples must not lose accesses. Errors must
/// be short and name their line.
///
/// # Panics
/// Panics if one of these conditions does not hold.
pub(crate) fn study_log(bytes: &[u8]) {
    let line_logs = LogFormat::all().iter().map(FileFormat::LineLog);
    let forms = [FileFormat::PocketcoinLog, FileFormat::Table, FileFormat::Samples]
        .into_iter()
        .chain(line_logs);
    for form in forms {
        let whole = run_of(bytes, form, ROOMY, bytes.len().max(1));
        for chunk_bytes in [1, 7, 64] {
            let cut = run_of(bytes, form, ROOMY, chunk_bytes);
            assert_eq!(
                comparable(&cut),
                comparable(&whole),
                "differs in chunks of {chunk_bytes} bytes"
            );
        }
        let lines = bytes.split(|byte| *byte == b'\n').count();
        let merged = run_of(bytes, form, TIGHT, bytes.len().max(1));
        match (&whole, &merged) {
            (Ok(whole), Ok(merged)) => {
                assert_sound(whole, lines, RunLimits::DEFAULT);
                assert_sound(merged, lines, TIGHT.run);
                assert_merged(whole, merged);
            }
            (Err(whole), Err(merged)) => {
                assert_eq!(whole.to_string(), merged.to_string(), "two different errors");
                assert_message(whole, lines);
            }
            _ => panic!("only one fails: {:?} and {:?}", comparable(&whole), comparable(&merged)),
        }
    }
}

/// Reads bytes in chunks of `chunk_bytes` bytes.
fn run_of(
    bytes: &[u8],
    form: FileFormat,
    limits: Limits,
    chunk_bytes: usize,
) -> Result<SyncRun, StudyFault> {
    read(Path::new("fuzz"), &mut BufReader::with_capacity(chunk_bytes, bytes), form, limits)
}

/// Converts the error of a result to its message. Messages can be compared, but values of
/// [`StudyFault`] cannot.
fn comparable(read: &Result<SyncRun, StudyFault>) -> Result<&SyncRun, String> {
    read.as_ref().map_err(ToString::to_string)
}

/// Asserts that a run is ordered and within its limits.
fn assert_sound(run: &SyncRun, lines: usize, limits: RunLimits) {
    let SyncRun { label: _, origin, samples, announced, timeouts, tip_age: _, notes } = run;
    assert!(!samples.is_empty(), "a run without samples");
    assert!(samples.len() <= limits.samples, "{} samples", samples.len());
    assert!(samples.len() <= lines, "{} samples of {lines} lines", samples.len());
    assert!(samples.iter().all(|sample| sample.at.is_finite()), "a time is no number");
    assert!(samples[0].at == *origin, "it begins before its first sample");
    for pair in samples.windows(2) {
        assert!(pair[0].at < pair[1].at, "times do not rise: {pair:?}");
        assert!(pair[0].height <= pair[1].height, "a height falls: {pair:?}");
    }
    assert!(announced.windows(2).all(|pair| pair[0].height < pair[1].height), "no rise");
    assert!(announced.len() <= limits.announced.min(lines), "{} rises", announced.len());
    assert!(timeouts.len() <= limits.timeouts.min(lines), "{} timeouts", timeouts.len());
    assert!(notes.len() <= 6, "{} notes", notes.len());
    assert!(notes.iter().all(|note| note.len() < MESSAGE_BYTES_MAX), "a note repeats the file");
}

/// Asserts that merging did not change the first and last sample, and lost no accesses.
fn assert_merged(whole: &SyncRun, merged: &SyncRun) {
    assert_eq!(whole.samples.first(), merged.samples.first(), "the first sample changed");
    let last = |run: &SyncRun| {
        run.samples.last().map(|last| Sample { accesses: None, ..*last }).unwrap_or_default()
    };
    assert_eq!(last(whole), last(merged), "the last sample changed");
    let accesses = |run: &SyncRun| {
        run.samples.iter().filter_map(|sample| sample.accesses).reduce(Accesses::plus)
    };
    assert_eq!(accesses(whole), accesses(merged), "accesses were lost or made up");
}

/// Asserts that an error names an existing line and is short.
fn assert_message(fault: &StudyFault, lines: usize) {
    assert!(fault.to_string().len() < MESSAGE_BYTES_MAX, "an error repeats the file: {fault}");
    match fault {
        StudyFault::Line { line, .. } => {
            assert!((1..=lines as u64).contains(line), "line {line} of {lines}");
        }
        StudyFault::Empty { .. } => {}
        other => panic!("bytes cannot cause this error: {other}"),
    }
}

/// Returns valid and invalid files of each format, which the fuzzers mutate.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "2021-12-13T23:20:52Z Statistic for last 60s:\n{\n \"General\": {\n  \"Version\": \"0.20.15\",\n  \"Height\": 0,\n  \"PeersALL\": 8\n },\n \"SQL\": {\n  \"MemoryUsed\": 5620328,\n  \"CacheUsed\": 5261904,\n  \"CacheHit\": 1313668,\n  \"CacheMiss\": 3390,\n  \"CacheSpill\": 2\n }\n}\n2021-12-13T23:20:55Z New outbound peer connected: version: 70015, blocks=1481438, peer=2\n2021-12-13T23:20:57Z Timeout downloading block 4a5e1e from peer=3, disconnecting\n2021-12-13T23:21:52Z Statistic for last 60s:\n{\n \"General\": {\n  \"Height\": 3837\n }\n}\n",
        "2021-12-13T23:20:52Z Statistic for last 60s:\n{\n \"General\": {\n2021-12-13T23:21:52Z Shutdown: done\n\u{1}\u{fffd}\n2021-12-13T23:22:52Z Statistic for last 60s:\n{\"General\":{\"Height\":7},\"SQL\":{\"CacheHit\":1}\n}\n2021-12-13T23:22:52Z Statistic for last 60s:\n",
        "time,Height,CacheUsed,CacheHit,CacheMiss,CacheSpill,MemoryUsed,PeersALL\r\n2021-12-13T23:20:52Z,0,244584,0,0,0,480976,0\r\n2021-12-13T23:21:52Z,3837,5261904,1313668,3390,0,5620328,8\r\n",
        "# start 2021-12-13T23:20:52Z\nseconds,height,hit,miss,spill,cpu,other\n0,0,1,2,3,0.5,x\n60,7,1,2,3,1.5,\n60,8,1,2,3,1.5,\n120.5,7,1,,3,,y\n180,90,18446744073709551615,2,3,1e300,z\n181,91,1,1,1,,\n182,92,1,1,1,,\n183,93,1,1,1,,\n184,94,1,1,1,,\n185,95,1,1,1,,\n186,96,1,1,1,,\n",
        "page_cache_hit,height,time,page_cache_miss,page_cache_spill,disk\n5,1,2026-11-22T15:00:00.123Z,1,0,9\n15,2,2026-11-22T15:00:01.123Z,2,0,9\n3,3,2026-11-22T16:00:02+01:00,0,0,9\n",
        "{\"time\":\"2026-11-22T15:00:00.123Z\",\"height\":null,\"page_cache_hit\":7}\n\n{\"time\":\"2026-11-22T15:00:01Z\",\"height\":5,\"page_cache_used\":100,\"page_cache_hit\":9,\"page_cache_miss\":1,\"page_cache_spill\":0,\"memory\":4096,\"disk\":8192,\"cpu\":0.25,\"done\":false}\n{\"time\":\"2026-11-22T15:00:02Z\",\"height\":6,\"page_cache_hit\":9,\"done\":true}\n{\"time\":\"2026-11",
        "{\"time\":\"-009999-01-03T00:00:00Z\",\"height\":18446744073709551615}\n{\"time\":\"9999-12-30T22:00:00Z\",\"height\":18446744073709551615,\"page_cache_miss\":18446744073709551615}\n",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.map(|text| text.as_bytes().to_vec()).into();
    // Words and lines beyond the limits.
    let long = "x".repeat(TIGHT.line_bytes / 2);
    seeds.push(format!("{{\"time\":\"{long}\",\"height\":\"{long}\"}}\n").into());
    seeds.push(format!("{{\"height\":\"{long}\",\"time\":\"y\"}}\n").into());
    seeds.push(format!("time,height,{long}\n{long},{long},{long}\n").into());
    seeds
}

/// Mutates the seeds while `go_on` returns true; returns the number of inputs.
pub(crate) fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    wire::fuzz::mutate_all(&seeds(), study_log, seed, go_on)
}

#[cfg(test)]
mod tests {
    //! Goal: the invariants hold, and a violation is detected. Method: one second of fuzzing of the
    //! readers and of the analysis, and planted violations.

    use std::panic::catch_unwind;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::analysis::sync::VariantRuns;

    #[test]
    fn seeds_are_read_in_the_expected_formats() {
        let counts: Vec<[usize; 3]> = seeds()
            .iter()
            .map(|seed| {
                study_log(seed);
                [FileFormat::PocketcoinLog, FileFormat::Table, FileFormat::Samples].map(|form| {
                    let read = run_of(seed, form, ROOMY, 64);
                    read.map_or(0, |run| run.samples.len())
                })
            })
            .collect();
        let (log, table, samples) = ([2, 0, 0], [0, 2, 0], [0, 0, 2]);
        let none = [0; 3];
        let expected =
            [log, [1, 0, 0], table, [0, 10, 0], [0, 3, 0], samples, samples, none, none, none];
        assert_eq!(counts, expected);
    }

    #[test]
    fn a_violated_invariant_is_detected() {
        let broken = |what: &str, spoil: fn(&mut SyncRun)| {
            let right = run_of(&seeds()[3], FileFormat::Table, ROOMY, 64).unwrap();
            assert_sound(&right, 20, RunLimits::DEFAULT);
            let mut wrong = right.clone();
            spoil(&mut wrong);
            let judge = || {
                assert_sound(&wrong, 20, RunLimits::DEFAULT);
                assert_merged(&right, &wrong);
            };
            assert!(catch_unwind(judge).is_err(), "{what} is accepted");
        };
        broken("a time that stands", |run| run.samples[2].at = run.samples[1].at);
        broken("a height that falls", |run| run.samples[2].height = 1);
        broken("more samples than lines", |run| {
            run.samples = (0..21)
                .map(|at| Sample { at: run.origin + f64::from(at), ..Sample::default() })
                .collect();
        });
        broken("a lost access", |run| {
            run.samples[0].accesses = Some(Accesses::default());
        });
        let fault =
            |line, bytes| StudyFault::Line { path: "x".into(), line, what: "y".repeat(bytes) };
        assert_message(&fault(3, 100), 3);
        assert!(catch_unwind(|| assert_message(&fault(4, 100), 3)).is_err(), "there is no line 4");
        assert!(catch_unwind(|| assert_message(&fault(3, 2_000), 3)).is_err(), "it is too long");
    }

    #[test]
    fn one_second_of_mutations_holds() {
        let start = Instant::now();
        let tried = mutate(5, &mut |_| start.elapsed() < Duration::from_secs(1));
        assert!(tried > 100, "only {tried} inputs in a second");
    }

    /// Analyses and reports the runs that can be read. `study` checks the result by the schema.
    fn analyse_and_report(bytes: &[u8]) {
        let read = [FileFormat::PocketcoinLog, FileFormat::Table, FileFormat::Samples]
            .map(|form| run_of(bytes, form, ROOMY, 64));
        for run in read.into_iter().flatten() {
            let variant =
                |name: &str| VariantRuns { name: name.into(), runs: vec![run.clone(); 2] };
            let result = crate::study::tests::study(&[variant("a"), variant("b")], &[]);
            let text = crate::study::report(&result).text(crate::report::Colour::Plain);
            assert!(text.len() < 100_000, "{} bytes of text", text.len());
            assert!(crate::study::report(&result).html().len() < 1_000_000);
        }
    }

    #[test]
    fn every_run_that_is_read_can_be_analysed_and_reported() {
        let start = Instant::now();
        let tried = wire::fuzz::mutate_all(&seeds(), analyse_and_report, 7, &mut |tried| {
            tried < 20 || start.elapsed() < Duration::from_secs(1)
        });
        assert!(tried >= 20);
    }
}
