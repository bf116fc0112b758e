//! Goal: each file format is read correctly, and errors name the line. Method: small files in a
//! temporary folder.

use std::fmt::Write as _;

use lab_model::results::study::Accesses;

use super::*;

fn read_text(text: &str, form: FileFormat) -> Result<SyncRun, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, text).unwrap();
    let message =
        |fault: StudyFault| fault.to_string().replace(&path.display().to_string(), "FILE");
    read_run(&path, form).map_err(message)
}

/// Returns the lines of a statistic.
fn record(minute: u64, height: u64) -> String {
    format!(
        "2021-12-13T23:{minute:02}:52Z Statistic for last 60s:\n{{\n \"General\": {{\n  \"Version\": \
         \"0.20.15\",\n  \"Height\": {height},\n  \"PeersALL\": 8\n }},\n \"SQL\": {{\n  \"MemoryUsed\": \
         5620328,\n  \"CacheUsed\": 5261904,\n  \"CacheHit\": 1313668,\n  \"CacheMiss\": 3390,\n  \
         \"CacheSpill\": 2\n }}\n}}\n2021-12-13T23:{minute:02}:52Z Clear statistic cache: 1 -> 0 items after.\n"
    )
}

#[test]
fn statistics_are_found_among_the_other_lines_of_a_log() {
    let mut log = String::from(
        "2021-12-13T23:19:50Z \n\n\n2021-12-13T23:19:50Z Pocketnet Core version v0.20.15\n",
    );
    log += &record(20, 0);
    log += "2021-12-13T23:20:55Z New outbound peer connected: version: 70015, blocks=1481438, peer=2\n";
    log +=
        "2021-12-13T23:20:56Z New outbound peer connected: version: 70015, blocks=5000, peer=3\n";
    log += &record(21, 3_837);
    log += "2021-12-13T23:21:57Z Timeout downloading block 4a5e1e from peer=3, disconnecting\n";
    // A statistic that a restart interrupted, and characters that are not printable.
    log += "2021-12-13T23:22:52Z Statistic for last 60s:\n{\n \"General\": {\n";
    log += "2021-12-13T23:22:58Z Shutdown: done\n\u{fffd}\u{1}\n";
    log += &record(23, 10_209);
    let run = read_text(&log, FileFormat::PocketcoinLog).unwrap();
    let heights: Vec<u64> = run.samples.iter().map(|sample| sample.height).collect();
    assert_eq!(heights, [0, 3_837, 10_209]);
    let second = run.samples[1];
    assert_eq!(second.accesses, Some(Accesses { hit: 1_313_668, miss: 3_390, spill: 2 }));
    assert_eq!(
        (second.used, second.memory, second.peers),
        (Some(5_261_904), Some(5_620_328), Some(8))
    );
    assert_eq!(
        run.announced_max(),
        Some(1_481_438),
        "peers that are behind say nothing of the tip"
    );
    assert_eq!(run.timeouts.len(), 1);
    assert_eq!(run.timeouts[0].peer, 3);
    assert_eq!(run.notes, ["1 statistics were incomplete or invalid"]);
    let none = read_text("2021-12-13T23:19:50Z no stat\n", FileFormat::PocketcoinLog).unwrap_err();
    assert_eq!(none, "FILE: it has no statistic: the node must log category stat (debug=stat)");
}

fn line_log(name: &str, log: &str) -> Result<SyncRun, String> {
    read_text(log, FileFormat::log(name).unwrap())
}

fn heights(run: &SyncRun) -> Vec<u64> {
    run.samples.iter().map(|sample| sample.height).collect()
}

#[test]
fn a_log_of_bitcoind_has_heights_and_the_size_of_its_cache() {
    // Lines of Bitcoin Core v28.0 from its documentation, with a thread name in the second one.
    let log = "2024-10-02T08:00:00Z Bitcoin Core version v28.0.0 (release build)\n\
        2024-10-02T08:00:01Z UpdateTip: new best=00000000d1145790 height=1000 version=0x00000001 \
        log2_work=41.966 tx=1001 date='2009-01-19T06:34:03Z' progress=0.000001 cache=0.5MiB(1000txo)\n\
        2024-10-02T08:00:03.250000Z [msghand] UpdateTip: new best=0000000092c69507 height=1001 \
        version=0x00000001 log2_work=41.967 tx=1002 date='2009-01-19T06:35:00Z' progress=0.000001 \
        cache=1.0MiB(1001txo)\n";
    let run = line_log("bitcoind", log).unwrap();
    assert_eq!(heights(&run), [1000, 1001]);
    let [first, second] = run.samples[..] else { panic!("two samples") };
    assert_eq!((first.used, second.used), (Some(524_288), Some(1_048_576)));
    assert_eq!((first.at, second.at - first.at), (1_727_856_001.0, 2.25));
    assert_eq!((first.age, run.tip_age), (Some(495_509_158.0), Some(3_600.0)), "by its own date");
    assert!(run.notes.is_empty(), "{:?}", run.notes);
}

#[test]
fn a_log_of_geth_without_years_may_pass_new_year() {
    let line = |time: &str, height: &str| {
        format!(
            "INFO [{time}] Imported new potential chain segment     number={height} \
             hash=0b0b0b..0b0b0b blocks=1 txs=3 mgas=0.063 elapsed=1.208ms mgasps=52.137\n"
        )
    };
    let log = line("12-31|23:59:59.500", "18,000,000") + &line("01-01|00:00:00.500", "18,000,001");
    let run = line_log("geth", &log).unwrap();
    assert_eq!(heights(&run), [18_000_000, 18_000_001]);
    assert_eq!(run.samples[1].at - run.samples[0].at, 1.0);
    assert_eq!(run.notes, ["the log has no years; its first line is set to the year 2000"]);
    let fault = line_log("geth", &line("13-31|23:59:59.500", "1")).unwrap_err();
    assert_eq!(fault, "FILE:1: \"13-31|23:59:59.500\" is not a time such as 01-31|23:59:59.999");
    let fault = line_log("geth", "INFO [01-01|00:00:00.500] Starting\n").unwrap_err();
    assert_eq!(fault, "FILE: no line announces a new block");
}

/// geth writes a line's `number` as a JSON string, and the age of blocks older than a minute.
#[test]
fn lines_of_geth_in_json_have_numbers_as_strings_and_ages() {
    let line = |second: u64, number: &str, more: &str| {
        format!(
            "{{\"t\":\"2026-11-22T15:00:{second:02}.5Z\",\"lvl\":\"info\",\"msg\":\"Imported new \
             potential chain segment\",\"number\":{number},\"hash\":\"0x0b0b\",\"blocks\":1,\
             \"elapsed\":\"1.2ms\"{more},\"triedirty\":\"0.00 B\"}}\n"
        )
    };
    let log = line(0, "\"22000123\"", ",\"age\":\"1w2d\"")
        + &line(1, "22000124", ",\"age\":\"5m12s\"")
        + &line(2, "\"22000125\"", "");
    let run = line_log("geth", &log).unwrap();
    assert_eq!(heights(&run), [22_000_123, 22_000_124, 22_000_125]);
    let ages: Vec<f64> = run.samples.iter().filter_map(|sample| sample.age).collect();
    assert_eq!((ages, run.tip_age), (vec![9.0 * 86_400.0, 312.0, 0.0], Some(60.0)));
    let run = line_log("geth", &line(2, "\"22000125\"", "")).unwrap();
    assert_eq!(run.tip_age, None, "a log without any age shows none");
}

#[test]
fn logs_of_geth_are_read_in_all_its_formats() {
    let Some(geth) = test_support::programs::require("geth") else { return };
    for format in ["terminal", "logfmt", "json"] {
        let log = test_support::geth::import_log(&geth, format);
        let run = line_log("geth", &log).unwrap_or_else(|fault| panic!("{fault}\n{log}"));
        assert_eq!(run.samples.last().unwrap().height, 54, "{log}");
    }
}

#[test]
fn columns_of_tables_are_found_by_name() {
    let node = "time,Height,CacheUsed,CacheHit,CacheMiss,CacheSpill,MemoryUsed,PeersALL\r\n\
                2021-12-13T23:20:52Z,0,244584,0,0,0,480976,0\r\n\
                2021-12-13T23:21:52Z,3837,5261904,1313668,3390,0,5620328,8\r\n";
    let run = read_text(node, FileFormat::Table).unwrap();
    assert_eq!(run.samples.len(), 2);
    assert_eq!(run.accesses(), Some(Accesses { hit: 1_313_668, miss: 3_390, spill: 0 }));
    // Cumulative counters, as Weir writes them.
    let cumulative = "page_cache_hit,height,time,blocks,page_cache_miss\n\
               5,1,2026-11-22T15:00:00.123Z,1,1\n15,2,2026-11-22T15:00:01.123Z,2,1\n";
    let run = read_text(cumulative, FileFormat::Table).unwrap();
    assert_eq!(run.samples[1].accesses, Some(Accesses { hit: 10, miss: 0, spill: 0 }));
    let seconds = "# start 2021-12-13T23:20:52Z\nseconds,height\n0,0\n60.5,7\n";
    let run = read_text(seconds, FileFormat::Table).unwrap();
    assert_eq!(run.samples[1].at - run.samples[0].at, 60.5);
    assert_eq!(crate::analysis::calendar::rfc3339(run.origin), "2021-12-13T23:20:52.000Z");
}

#[test]
fn faults_of_tables_name_line_and_cell() {
    let check = |text: &str, message: &str| {
        let fault = read_text(text, FileFormat::Table).unwrap_err();
        assert!(fault.starts_with(message), "{fault}");
    };
    check("", "FILE: it has no row after its header");
    check("time,height\n", "FILE: it has no row after its header");
    check("a,b\n", "FILE:1: the header \"a,b\" has no column time; known columns are");
    check("time,b\n", "FILE:1: the header \"time,b\" has no column height");
    check("time,height\n2021,1\n", "FILE:2: \"2021\" is not a time such as 2026-11-22T15:00:00Z");
    check("seconds,height\n0,0\n1,x\n", "FILE:3: height \"x\" is not an integer of 0 or more");
    check("seconds,height\n0,-5\n", "FILE:2: height \"-5\" is not an integer");
    check("seconds,height\n0,\n", "FILE:2: height \"\" is not an integer");
    check("seconds,height\n0,1,2\n", "FILE:2: the row has 3 cells, but the header has 2");
    check("seconds,height\nnan,1\n", "FILE:2: \"nan\" is not a number of seconds of 0 or more");
    check(
        "seconds,height\n60,1\n0,2\n",
        "FILE:3: time goes back from 1970-01-01T00:01:00.000Z to 1970-01-01T00:00:00.000Z",
    );
    check(
        "seconds,height\n0,0\n1,1000\n2,900\n3,10\n",
        "FILE:5: the height falls from 1,000 to 10, which is more than a reorg or a rewind",
    );
}

#[test]
fn a_reorg_is_read_and_reported() {
    let run = read_text("seconds,height\n0,1000\n1,990\n2,1010\n", FileFormat::Table).unwrap();
    let heights: Vec<u64> = run.samples.iter().map(|sample| sample.height).collect();
    assert_eq!(heights, [1_000, 1_000, 1_010]);
    assert_eq!(
        run.notes,
        [
            "its height fell 1 time, by up to 10 blocks (reorgs); the time until it grew again counts"
        ]
    );
}

/// A node that crashed goes on some blocks below its last height. A second sync in the same file
/// begins far below.
#[test]
fn a_rewind_after_a_crash_is_read_and_another_sync_is_refused() {
    let read = |heights: &[u64]| {
        let rows = heights.iter().enumerate().map(|(at, height)| format!("{at},{height}\n"));
        let text = format!("seconds,height\n{}", rows.collect::<String>());
        read_text(&text, FileFormat::Table).map(|run| run.notes.join("; "))
    };
    let crash = "its height fell 1 time, by up to 128 blocks (a crash, or a long reorg); \
                 the time until it grew again counts";
    assert_eq!(read(&[22_000_100, 22_000_123, 21_999_995, 22_000_000, 22_000_200]).unwrap(), crash);
    // geth without a state on disk for an hour.
    let far = read(&[1_000, 90_000, 70_000, 100_000]).unwrap();
    assert!(far.contains("by up to 20,000 blocks"), "{far}");
    for other_sync in [[0, 500, 1], [0, 100_000, 10], [0, 200, 1], [5_000, 90_000, 5_000]] {
        let fault = read(&other_sync).unwrap_err();
        assert!(fault.contains("another sync begins here"), "{fault}");
    }
}

#[test]
fn sample_files_are_read() {
    let lines = "{\"time\":\"2026-11-22T15:00:00.123Z\",\"height\":5,\"blocks\":5,\"logs\":9,\
                 \"page_cache_used\":100,\"page_cache_hit\":7,\"page_cache_miss\":1,\"page_cache_spill\":0,\
                 \"memory\":4096,\"disk\":8192,\"done\":false}\n\n\
                 {\"time\":\"2026-11-22T15:00:01Z\",\"height\":6,\"page_cache_hit\":9,\"done\":true}\n";
    let run = read_text(lines, FileFormat::Samples).unwrap();
    let first = run.samples[0];
    assert_eq!(
        (first.height, first.used, first.memory, first.disk),
        (5, Some(100), Some(4096), Some(8192))
    );
    // The second line lacks a counter, which then counts as zero, so the counters restarted.
    assert_eq!(run.samples[1].accesses, Some(Accesses { hit: 9, miss: 0, spill: 0 }));
    assert_eq!(run.notes, ["its counters restarted 1 times"]);

    // Lines without a height give no sample. Their counters count for the next sample.
    let late = "{\"time\":\"2026-11-22T15:00:00Z\",\"height\":null,\"page_cache_hit\":4}\n\
                {\"time\":\"2026-11-22T15:00:01Z\",\"height\":3,\"page_cache_hit\":9}\n";
    let run = read_text(late, FileFormat::Samples).unwrap();
    assert_eq!(run.samples.len(), 1);
    assert_eq!(run.accesses().map(|accesses| accesses.hit), Some(9));

    let cut = "{\"time\":\"2026-11-22T15:00:00Z\",\"height\":5}\n{\"time\":\"2026-11";
    let run = read_text(cut, FileFormat::Samples).unwrap();
    assert_eq!((run.samples.len(), run.notes.len()), (1, 1));

    let check = |text: &str, message: &str| {
        let fault = read_text(text, FileFormat::Samples).unwrap_err();
        assert!(fault.starts_with(message), "{fault}");
    };
    check("", "FILE: it has no sample with a height");
    check("garbage\n", "FILE:1: not a sample: ");
    check("{\"height\":5}\n", "FILE:1: not a sample: missing field `time`");
    check("{\"time\":\"today\",\"height\":5}\n", "FILE:1: \"today\" is not a time");
    check(
        "{\"time\":\"2026-11-22T15:00:00Z\",\"height\":-1}\n",
        "FILE:1: not a sample: invalid value",
    );
}

#[test]
fn a_file_without_line_breaks_gives_a_short_error() {
    let text = "x".repeat(3 * Limits::DEFAULT.line_bytes);
    let fault = read_text(&text, FileFormat::Table).unwrap_err();
    assert!(fault.starts_with("FILE:1: the header \"xxx") && fault.len() < 500, "{fault}");
}

#[test]
fn an_error_quotes_only_the_start_of_a_long_line() {
    let long = "x".repeat(50_000);
    let line = format!("{{\"time\":\"2026-11-22T15:00:00Z\",\"height\":\"{long}\"}}\n");
    let fault = read_text(&line, FileFormat::Samples).unwrap_err();
    let message = "FILE:1: not a sample: invalid type: string \"xxx";
    assert!(fault.starts_with(message) && fault.len() < 500, "{} bytes: {fault}", fault.len());
}

#[test]
fn very_many_samples_are_merged() {
    let mut text = String::from("seconds,height,hit,miss,spill\n");
    for second in 0..250_000 {
        writeln!(text, "{second},{second},3,1,0").unwrap();
    }
    let run = read_text(&text, FileFormat::Table).unwrap();
    assert!(run.samples.len() <= 100_000 && run.samples.len() >= 50_000);
    assert_eq!((run.first().height, run.last().height), (0, 249_999));
    let accesses = run.accesses().unwrap();
    assert_eq!((accesses.hit, accesses.miss), (750_000, 250_000), "nothing is lost by joining");
    assert!(run.notes[0].contains("samples were merged"), "{:?}", run.notes);
}

#[test]
fn extreme_numbers_can_be_analysed() {
    let most = u64::MAX;
    let text = format!(
        "seconds,height,hit,miss,spill\n0,0,{most},{most},1\n1e300,{most},{most},{most},1\n"
    );
    let variant = |name: &str| crate::analysis::sync::VariantRuns {
        name: name.into(),
        runs: vec![read_text(&text, FileFormat::Table).unwrap(); 2],
    };
    let variants = [variant("a"), variant("b")];
    let result = crate::study::tests::study(&variants, &[]);
    assert_eq!(result.variants[0].runs[0].height, most);
    let page = crate::study::report(&result).html();
    assert!(page.len() < 1_000_000);
}

#[test]
fn missing_data_is_reported() {
    let message = read_run(Path::new("/no/such/file"), FileFormat::Table).unwrap_err().to_string();
    assert!(message.starts_with("cannot read /no/such/file: "), "{message}");
}

proptest::proptest! {
    #[test]
    fn arbitrary_text_gives_an_ordered_run_or_an_error(
        text in "([a-z{}:\",#0-9.\\-\n ]{0,40}|time,height\n|seconds,height,hit\n|\\{\n|\\}\n|2021-12-13T23:20:52Z |                 Statistic for last 60s:\n|[0-9]{1,20},[0-9]{1,20}\n|\\{\"time\":\"2026-11-22T15:00:00Z\",\"height\":[0-9]{1,20}\\}\n){0,20}"
    ) {
        for form in [FileFormat::PocketcoinLog, FileFormat::Table, FileFormat::Samples] {
            if let Ok(run) = read_text(&text, form) {
                assert!(run.samples.windows(2).all(|pair| {
                    pair[0].at <= pair[1].at && pair[0].height <= pair[1].height
                }));
            }
        }
    }
}
