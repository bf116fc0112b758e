//! The messages of Prometheus remote write 1.0, and the conversion of samples to these messages.
//! `remote.rs` sends them.
//!
//! The specification is at <https://prometheus.io/docs/specs/prw/remote_write_spec/>. The fields of
//! native histograms are in `prompb/types.proto` of Prometheus 2.40 and later.

use prost::Message;

use super::distribution::{BOUNDS, Distribution, Native, Shape, ZERO};
use super::table::{Sample, Value};
use super::{Labels, Names};

#[cfg(test)]
mod tests;

/// Returns the stale marker: a specific NaN with which Prometheus ends a series.
pub(super) fn stale() -> f64 {
    f64::from_bits(0x7ff0_0000_0000_0002)
}

/// The body of a push.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) timeseries: Vec<TimeSeries>,
}

/// One series with its new samples, which are numbers or native histograms.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeSeries {
    /// Sorted by name, without repeated names.
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Point>,
    #[prost(message, repeated, tag = "4")]
    pub(super) histograms: Vec<Histogram>,
}

/// A label of a series. The label `__name__` is the name of its metric.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// A number at a time (`Sample` in the specification).
#[derive(Clone, PartialEq, Message)]
pub(super) struct Point {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub(super) timestamp: i64,
}

/// A native histogram with integer counts.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Histogram {
    /// Number of values; always set.
    #[prost(uint64, optional, tag = "1")]
    pub(super) count_int: Option<u64>,
    /// Sum of the values in seconds.
    #[prost(double, tag = "3")]
    pub(super) sum: f64,
    /// Resolution: each doubling of the value has `2^schema` buckets.
    #[prost(sint32, tag = "4")]
    pub(super) schema: i32,
    /// Upper bound of the zero bucket in seconds.
    #[prost(double, tag = "5")]
    pub(super) zero_threshold: f64,
    /// Number of values in the zero bucket; always set.
    #[prost(uint64, optional, tag = "6")]
    pub(super) zero_count_int: Option<u64>,
    /// The indexes of the buckets with values above the zero bucket.
    #[prost(message, repeated, tag = "11")]
    pub(super) positive_spans: Vec<Span>,
    /// The difference of each bucket's count from the count of the previous bucket.
    #[prost(sint64, repeated, tag = "12")]
    pub(super) positive_deltas: Vec<i64>,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "15")]
    pub(super) timestamp: i64,
}

/// A range of consecutive buckets.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Span {
    /// For the first span, the index of its first bucket. For other spans, the number of empty
    /// buckets since the previous span.
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    /// Number of buckets.
    #[prost(uint32, tag = "2")]
    pub(super) length: u32,
}

/// The labels of a series and the kind of its samples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    labels: Vec<Label>,
    /// True if the samples are native histograms.
    is_native: bool,
}

impl Identity {
    /// Returns the series with a stale marker as its only sample. The marker is of the same kind as
    /// the other samples of the series.
    pub(super) fn into_stale_marker(self, timestamp: i64) -> TimeSeries {
        let mut series = TimeSeries { labels: self.labels, ..TimeSeries::default() };
        if self.is_native {
            let (count_int, zero_count_int) = (Some(0), Some(0));
            let histogram = Histogram {
                count_int,
                zero_count_int,
                sum: stale(),
                timestamp,
                ..Histogram::default()
            };
            series.histograms.push(histogram);
        } else {
            series.samples.push(Point { value: stale(), timestamp });
        }
        series
    }
}

impl TimeSeries {
    /// Returns the labels and the kind of samples, without the samples.
    pub(super) fn identity(&self) -> Identity {
        Identity { labels: self.labels.clone(), is_native: !self.histograms.is_empty() }
    }
}

/// Returns the series of the samples, all with one timestamp in milliseconds since 1970. `labels`
/// are added to every series. A distribution becomes several series, unless it is a native
/// histogram.
pub(super) fn series(
    samples: &[Sample],
    names: Names,
    labels: &Labels,
    timestamp: i64,
) -> Vec<TimeSeries> {
    let mut series_list = Vec::with_capacity(samples.len());
    for sample in samples {
        let number_series = |name: String, value: f64| TimeSeries {
            labels: sorted_labels(name, sample, labels),
            samples: vec![Point { value, timestamp }],
            histograms: Vec::new(),
        };
        let name = sample.metric.name;
        match &sample.value {
            Value::Number(value) => {
                series_list.push(number_series(sample.metric.sample_name(), *value));
            }
            Value::Distribution(Distribution { shape: Shape::Stats(stats), .. }) => {
                series_list.extend(stats.iter().map(|(stat, value)| {
                    number_series(format!("{name}_{}", stat.suffix()), *value)
                }));
            }
            Value::Distribution(Distribution { count, sum, shape: Shape::Classic(counts) }) => {
                let bounds = BOUNDS.iter().map(|bound| format!("{bound:?}"));
                let bounds = bounds.chain(["+Inf".to_owned()]);
                for (bound, bucket_count) in bounds.zip(counts.iter().chain([count])) {
                    let mut bucket = number_series(format!("{name}_bucket"), *bucket_count as f64);
                    bucket.labels.push(Label { name: "le".to_owned(), value: bound });
                    bucket.labels.sort();
                    series_list.push(bucket);
                }
                series_list.push(number_series(format!("{name}_sum"), *sum));
                series_list.push(number_series(format!("{name}_count"), *count as f64));
            }
            Value::Distribution(
                distribution @ Distribution { shape: Shape::Native(native), .. },
            ) => {
                // k6 appends the unit to native histograms only.
                let name = match names {
                    Names::Weir => name.to_owned(),
                    Names::K6 => format!("{name}_{}", sample.metric.unit),
                };
                series_list.push(TimeSeries {
                    labels: sorted_labels(name, sample, labels),
                    samples: Vec::new(),
                    histograms: vec![histogram(distribution, native, timestamp)],
                });
            }
        }
    }
    series_list
}

/// Returns the sorted labels of a series: its name, the labels of its sample and the labels of all
/// series. Labels without a value are left out.
fn sorted_labels(name: String, sample: &Sample, common_labels: &Labels) -> Vec<Label> {
    let label = |name: &str, value: &str| Label { name: name.to_owned(), value: value.to_owned() };
    let mut labels = vec![Label { name: "__name__".to_owned(), value: name }];
    let sample_labels = sample.metric.labels.iter().zip(&sample.labels);
    labels.extend(sample_labels.map(|(name, value)| label(name, value)));
    labels.extend(common_labels.0.iter().map(|(name, value)| label(name, value)));
    labels.retain(|label| !label.value.is_empty());
    labels.sort();
    labels
}

/// Returns the message of a native histogram.
fn histogram(distribution: &Distribution, native: &Native, timestamp: i64) -> Histogram {
    let mut histogram = Histogram {
        count_int: Some(distribution.count),
        sum: distribution.sum,
        schema: native.schema,
        zero_threshold: ZERO,
        zero_count_int: Some(native.zero),
        timestamp,
        ..Histogram::default()
    };
    let mut next_index = 0;
    let mut previous_count = 0_i64;
    for &(index, count) in &native.buckets {
        match histogram.positive_spans.last_mut() {
            Some(span) if index == next_index => span.length += 1,
            _ => histogram.positive_spans.push(Span { offset: index - next_index, length: 1 }),
        }
        next_index = index + 1;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        histogram.positive_deltas.push(count - previous_count);
        previous_count = count;
    }
    histogram
}

/// Encodes the body of a request as protobuf and compresses it as one snappy block.
pub(super) fn body(timeseries: Vec<TimeSeries>) -> Vec<u8> {
    let bytes = WriteRequest { timeseries }.encode_to_vec();
    snap::raw::Encoder::new()
        .compress_vec(&bytes)
        .expect("a push is far below the 4 GB that snappy can hold")
}
