//! Goal: a receiver can read the messages by the specification. Method: a round trip through snappy
//! and protobuf, and the exact bytes of critical parts.

use super::*;
use crate::export::distribution::Form;
use crate::export::table::{METRICS, collect_samples};
use crate::export::{Trends, k6};
use crate::live::scene::Scene;

/// Returns the series of a made-up run as a receiver decodes them.
fn sent(names: Names, trends: Trends, labels: &[&str]) -> Vec<TimeSeries> {
    let table = match names {
        Names::Weir => METRICS,
        Names::K6 => k6::METRICS,
    };
    let scene = Scene::new();
    let samples = collect_samples(table, &scene.progress(), &Form::Trends(trends));
    let labels = Labels::parse(labels).unwrap();
    let body = body(series(&samples, names, &labels, 1_700_000_000_123));
    let bytes = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
    WriteRequest::decode(&*bytes).unwrap().timeseries
}

fn name(series: &TimeSeries) -> &str {
    let label = series.labels.iter().find(|label| label.name == "__name__");
    &label.expect("every series has a name").value
}

#[test]
fn labels_are_sorted_unique_and_not_empty() {
    for names in [Names::Weir, Names::K6] {
        for trends in [Trends::default(), Trends::Native { schema: 5 }] {
            let all_series = sent(names, trends, &["testid=t1", "Env=lab"]);
            assert!(all_series.len() > 20);
            for series in &all_series {
                let labels = &series.labels;
                assert!(labels.is_sorted_by(|left, right| left.name < right.name), "{labels:?}");
                assert!(labels.iter().all(|label| !label.value.is_empty()), "{labels:?}");
                // Upper-case letters are sorted before the underscores of the metric's name.
                assert_eq!(labels[0].name, "Env");
                assert!(labels.iter().any(|label| label.name == "testid"));
                assert_eq!(series.samples.len() + series.histograms.len(), 1);
            }
            let mut identities: Vec<_> = all_series.iter().map(TimeSeries::identity).collect();
            identities.sort();
            identities.dedup();
            assert_eq!(identities.len(), all_series.len(), "a series is there twice");
        }
    }
}

#[test]
fn names_have_the_suffixes_of_their_kind() {
    let has = |all_series: &[TimeSeries], expected_name: &str| {
        all_series.iter().any(|series| name(series) == expected_name)
    };
    let ours = sent(Names::Weir, Trends::default(), &[]);
    for expected_name in [
        "weir_lab_run_info",
        "weir_lab_calls_total",
        "weir_lab_latency_seconds_p99",
        "weir_lab_calls_in_flight",
        "weir_lab_sent_bytes_total",
    ] {
        assert!(has(&ours, expected_name), "{expected_name}");
    }
    let k6 = sent(Names::K6, Trends::default(), &[]);
    for expected_name in [
        "k6_http_reqs_total",
        "k6_http_req_duration_p99",
        "k6_http_req_duration_avg",
        "k6_http_req_failed_rate",
        "k6_vus",
        "k6_iterations_total",
        "k6_dropped_iterations_total",
        "k6_data_sent_total",
    ] {
        assert!(has(&k6, expected_name), "{expected_name}");
    }
    let native = sent(Names::K6, Trends::Native { schema: 5 }, &[]);
    assert!(has(&native, "k6_http_req_duration_seconds"));
    assert!(!has(&native, "k6_http_req_duration_p99"));
}

#[test]
fn a_native_histogram_gives_its_buckets_back() {
    let all_series = sent(Names::Weir, Trends::Native { schema: 5 }, &[]);
    let expected_values = ["weir_lab_latency_seconds", "climb", "eth_getLogs", "ok"];
    let has = |series: &TimeSeries, value| series.labels.iter().any(|label| label.value == value);
    let series =
        all_series.iter().find(|series| expected_values.iter().all(|value| has(series, *value)));
    let histogram = &series.expect("it is there").histograms[0];
    assert_eq!((histogram.count_int, histogram.zero_count_int), (Some(2_900), Some(0)));
    assert_eq!((histogram.schema, histogram.timestamp), (5, 1_700_000_000_123));
    // A receiver reads spans as bucket indexes and sums the deltas to counts.
    let (mut index, mut count, mut buckets) = (0, 0, Vec::new());
    let mut deltas = histogram.positive_deltas.iter();
    for span in &histogram.positive_spans {
        index += span.offset;
        for _ in 0..span.length {
            count += deltas.next().expect("a delta for each bucket");
            buckets.push((index, count));
            index += 1;
        }
    }
    assert_eq!(deltas.next(), None);
    assert_eq!(buckets.iter().map(|(_, count)| count).sum::<i64>(), 2_900);
    let end = |index: i32| (f64::from(index) / 32.0).exp2();
    assert!(end(buckets[0].0) >= 0.040 && end(buckets[0].0 - 1) < 0.040, "{buckets:?}");
    assert!(end(buckets.last().unwrap().0) >= 0.0439, "{buckets:?}");
}

#[test]
fn a_stale_marker_has_the_exact_bits_and_the_kind_of_its_series() {
    for trends in [Trends::default(), Trends::Native { schema: 8 }] {
        for series in sent(Names::Weir, trends, &[]) {
            let ended = series.identity().into_stale_marker(7);
            assert_eq!(ended.labels, series.labels);
            let bytes = ended.encode_to_vec();
            let back = TimeSeries::decode(&*bytes).unwrap();
            let bits = match (&*back.samples, &*back.histograms) {
                ([point], []) => (point.value.to_bits(), point.timestamp),
                ([], [histogram]) => (histogram.sum.to_bits(), histogram.timestamp),
                other => panic!("{other:?}"),
            };
            assert_eq!(bits, (0x7ff0_0000_0000_0002, 7));
            assert_eq!(back.histograms.len(), series.histograms.len());
        }
    }
}

#[test]
fn the_numbers_of_fields_are_those_of_the_specification() {
    let label = Label { name: "a".to_owned(), value: "b".to_owned() };
    let point = Point { value: 1.0, timestamp: 3 };
    let series = TimeSeries { labels: vec![label], samples: vec![point], histograms: Vec::new() };
    let bytes = WriteRequest { timeseries: vec![series] }.encode_to_vec();
    let expected = [
        &[0x0a, 21][..],  // timeseries = 1
        &[0x0a, 6],       // labels = 1
        &[0x0a, 1, b'a'], // name = 1
        &[0x12, 1, b'b'], // value = 2
        &[0x12, 11],      // samples = 2
        &[0x09],          // value = 1, a double
        &1.0_f64.to_le_bytes(),
        &[0x10, 3], // timestamp = 2, a varint
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn a_classic_histogram_is_pushed_as_the_series_of_a_scrape() {
    let scene = Scene::new();
    let samples = collect_samples(METRICS, &scene.progress(), &Form::Classic);
    let all = series(&samples, Names::Weir, &Labels::default(), 1);
    let value = |wanted: &str, le: Option<&str>| {
        let found = all.iter().find(|series| {
            let label = series.labels.iter().find(|label| label.name == "le");
            name(series) == wanted && label.map(|label| &*label.value) == le
        });
        found.unwrap_or_else(|| panic!("{wanted} {le:?}")).samples[0].value
    };
    assert_eq!(value("weir_lab_iteration_seconds_bucket", Some("0.001")), 0.0);
    assert_eq!(value("weir_lab_iteration_seconds_bucket", Some("0.0025")), 12_000.0);
    assert_eq!(value("weir_lab_iteration_seconds_bucket", Some("60.0")), 12_000.0);
    assert_eq!(value("weir_lab_iteration_seconds_bucket", Some("+Inf")), 12_000.0);
    assert_eq!(value("weir_lab_iteration_seconds_count", None), 12_000.0);
    assert!(value("weir_lab_iteration_seconds_sum", None) > 20.0);
}
