//! Goal: the reports of generators are parsed correctly, with their failures. Method: shortened
//! recordings of their output.

use super::*;

#[test]
fn wrk_reports_microseconds_and_lists_errors_separately() {
    let out = "  1 requests in 1s\nSTALL 812000 1002500 60\n";
    let report = parse_wrk(out).unwrap();
    assert_eq!((report.p99_ms, report.max_ms, report.slow), (812.0, 1002.5, Some(60)));
    assert!(report.problems.is_empty());
    let bad = out.to_owned() + "  Socket errors: connect 0, read 3, write 0, timeout 0\n";
    assert_eq!(parse_wrk(&bad).unwrap().problems.len(), 1);
    assert!(parse_wrk("nothing").is_err());
}

#[test]
fn oha_reports_seconds() {
    let text = r#"{"summary":{"successRate":1.0,"slowest":0.5},"latencyPercentiles":{"p99":0.25}}"#;
    let report = parse_oha(text).unwrap();
    assert_eq!((report.p99_ms, report.max_ms, report.slow), (250.0, 500.0, None));
    assert!(report.problems.is_empty());
    assert_eq!(parse_oha(&text.replace("1.0", "0.99")).unwrap().problems.len(), 1);
    assert!(parse_oha("{}").is_err());
}

#[test]
fn a_missing_k6_counter_means_no_slow_requests() {
    let text = r#"{"metrics":{"http_req_duration":{"avg":1,"p(99)":2.5,"max":9},
        "http_req_failed":{"value":0,"passes":0,"fails":7},"slow":{"count":900,"rate":45}}}"#;
    let report = parse_k6(text).unwrap();
    assert_eq!((report.p99_ms, report.max_ms, report.slow), (2.5, 9.0, Some(900)));
    assert!(report.problems.is_empty());
    let none = text.replace("slow", "other").replace("\"value\":0", "\"value\":0.1");
    let report = parse_k6(&none).unwrap();
    assert_eq!((report.slow, report.problems.len()), (Some(0), 1));
}

#[test]
fn values_above_100_ms_in_our_histogram_log_are_counted() {
    use hdrhistogram::serialization::V2DeflateSerializer;
    use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

    let mut times = Histogram::<u64>::new(3).unwrap();
    for ms in [1_u64, 50, 99, 150, 1_000, 60_000] {
        times.record(ms * 1_000_000).unwrap();
    }
    let (mut log, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut writer =
        IntervalLogWriterBuilder::new().begin_log_with(&mut log, &mut serializer).unwrap();
    for start in 0..2 {
        let (start, length) = (Duration::from_secs(start), Duration::from_secs(1));
        writer.write_histogram(&times, start, length, None).unwrap();
    }
    assert_eq!(count_slow(&log).unwrap(), 6);
    assert!(count_slow(b"what is this,1,2,3\n").is_err());
}
