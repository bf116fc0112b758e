//! Exports counters as OpenMetrics text and as rows of `docs/metrics.md`.
//!
//! A [`MetricSet`] lists the metrics of one type of object, each with a description. Both the text
//! and the rows are generated from the list. A sample is the value of a metric for one set of label
//! values. Label values come from the configuration and from closed sets. Clients cannot add label
//! values, so the number of samples is bounded.

use std::fmt::{self, Write as _};
use std::time::UNIX_EPOCH;

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::instrument::{Counter, Exemplar, Gauge, Histogram, LATENCY_BOUNDS, PerLabel, Sum};
use super::label::Label;

/// Description of one metric.
#[derive(Debug, Clone)]
pub(crate) struct Description {
    /// Name with the unit, but without the suffix of the metric's type, such as `_total`.
    pub(crate) name: &'static str,
    /// Type of the metric.
    pub(crate) kind: MetricType,
    /// Names of the labels.
    pub(crate) labels: Vec<&'static str>,
    /// Help text.
    pub(crate) help: &'static str,
}

impl Description {
    /// Returns the unit, which is the last word of the name; empty for numbers without a unit.
    pub(crate) fn unit(&self) -> &'static str {
        const UNITS: [&str; 4] = ["blocks", "bytes", "seconds", "units"];
        let (_, last_word) = self.name.rsplit_once('_').unwrap_or_default();
        if UNITS.contains(&last_word) { last_word } else { "" }
    }

    /// Returns the name of the metric's samples: the metric's name with the suffix of its type.
    pub(crate) fn sample_name(&self) -> String {
        let suffix = match self.kind {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::Histogram | MetricType::Unknown => "",
        };
        [self.name, suffix].concat()
    }
}

/// Objects of one type that have metrics, such as all upstreams.
pub(crate) trait MetricSet: Sized {
    /// Names of the labels that distinguish the objects, such as `upstream`.
    const LABELS: &'static [&'static str];

    /// Lists the metrics.
    fn list(metrics: &mut Metrics<Self>);
}

/// The exemplars (links to traces) of a text. The list has one entry for each line of a histogram
/// bucket, in the order of the lines. `None` marks a bucket without an exemplar.
pub(crate) type BucketExemplars = Vec<Option<Exemplar>>;

/// The metrics of a [`MetricSet`].
pub(crate) struct Metrics<T>(Vec<Metric<T>>);

/// One metric of an object of type `T`.
pub(crate) struct Metric<T> {
    description: Description,
    /// Writes the samples of one object.
    write: WriteSamples<T>,
}

type WriteSamples<T> = Box<dyn Fn(&T, &mut SampleWriter<'_>) -> fmt::Result>;

impl<T: MetricSet + 'static> Metrics<T> {
    /// Lists the metrics of `T`.
    pub(crate) fn new() -> Metrics<T> {
        let mut metrics = Metrics(Vec::new());
        T::list(&mut metrics);
        metrics
    }

    /// Returns the descriptions in the order of the list.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = &Description> {
        self.0.iter().map(|metric| &metric.description)
    }

    /// Adds a metric whose value the threads count in the instrument `field`.
    pub(crate) fn add_instrument<I: Instrument + 'static>(
        &mut self,
        name: &'static str,
        help: &'static str,
        field: fn(&T) -> &I,
    ) {
        let metric =
            self.add(name, I::KIND, help, move |object, samples| field(object).write(samples));
        I::push_labels(&mut metric.description.labels);
    }

    /// Adds a metric that `read` reads from an object at the time of a scrape.
    pub(crate) fn add_reading<V: Value + 'static>(
        &mut self,
        kind: MetricType,
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> V,
    ) -> &mut Metric<T> {
        self.add(name, kind, help, move |object, samples| read(object).write(samples))
    }

    /// Adds a metric whose samples `write` writes.
    fn add(
        &mut self,
        name: &'static str,
        kind: MetricType,
        help: &'static str,
        write: impl Fn(&T, &mut SampleWriter<'_>) -> fmt::Result + 'static,
    ) -> &mut Metric<T> {
        let description = Description { name, kind, labels: T::LABELS.to_vec(), help: help.trim() };
        self.0.push_mut(Metric { description, write: Box::new(write) })
    }

    /// Writes the samples of these objects. Each object comes with its label values. Appends an
    /// entry to `exemplars` for each bucket line.
    ///
    /// # Errors
    /// The encoder's errors.
    pub(crate) fn encode(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        objects: &[(Vec<&str>, &T)],
        exemplars: &mut BucketExemplars,
    ) -> fmt::Result {
        for Metric { description, write } in &self.0 {
            let unit = description.unit();
            // The encoder appends the unit to the name. So the encoder gets the name without the
            // unit.
            let name = description.name.strip_suffix(unit).unwrap_or(description.name);
            let name = if unit.is_empty() { name } else { name.trim_end_matches('_') };
            let unit = (!unit.is_empty()).then(|| Unit::Other(unit.to_owned()));
            let encoder = encoder.encode_descriptor(
                name,
                description.help,
                unit.as_ref(),
                description.kind,
            )?;
            let label_values = Vec::new();
            let mut samples = SampleWriter { encoder, description, label_values, exemplars };
            for (labels, object) in objects {
                samples.label_values.clone_from(labels);
                write(object, &mut samples)?;
            }
        }
        Ok(())
    }
}

impl<T> Metric<T> {
    /// Adds a label that distinguishes the samples of one object.
    pub(crate) fn add_label(&mut self, label: &'static str) {
        self.description.labels.push(label);
    }
}

/// Writes the samples of one metric.
pub(crate) struct SampleWriter<'a> {
    encoder: MetricEncoder<'a>,
    description: &'a Description,
    /// Values of the labels of the next sample.
    label_values: Vec<&'a str>,
    exemplars: &'a mut BucketExemplars,
}

impl SampleWriter<'_> {
    /// Writes the samples of a value. Their label values end with `label_value`.
    fn write_labelled(&mut self, label_value: &'static str, value: &impl Value) -> fmt::Result {
        self.label_values.push(label_value);
        value.write(self)?;
        self.label_values.pop();
        Ok(())
    }

    fn write_integer(&mut self, number: u64) -> fmt::Result {
        self.write_sample(|encoder, kind| match kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, f64>(&number, None),
            _ => encoder.encode_gauge(&number),
        })
    }

    /// Writes one sample with the current label values.
    fn write_sample(
        &mut self,
        write: impl FnOnce(&mut MetricEncoder<'_>, MetricType) -> fmt::Result,
    ) -> fmt::Result {
        let Description { name, kind, labels, .. } = self.description;
        assert_eq!(labels.len(), self.label_values.len(), "{name} has these labels: {labels:?}");
        let label_values = self.label_values.iter().copied();
        let labels: Vec<_> = labels.iter().copied().zip(label_values).collect();
        match kind {
            MetricType::Info => self.encoder.encode_info(&labels),
            _ if labels.is_empty() => write(&mut self.encoder, *kind),
            _ => write(&mut self.encoder.encode_family(&labels)?, *kind),
        }
    }
}

/// Appends the exemplars to the bucket lines of a text (OpenMetrics 1.0, section "Exemplars"). The
/// encoder itself supports exemplars only for its own histogram type.
pub(crate) fn append_exemplars(text: &str, exemplars: &BucketExemplars) -> String {
    let mut exemplars = exemplars.iter();
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        out.push_str(line);
        let is_bucket = line.split_once('{').is_some_and(|(name, _)| name.ends_with("_bucket"));
        if is_bucket && let Some(Some(Exemplar { trace, micros, time })) = exemplars.next() {
            let value = *micros as f64 / 1e6;
            let time = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let _ = write!(out, " # {{trace_id=\"{trace:?}\"}} {value} {time:.3}");
        }
        out.push('\n');
    }
    out
}

/// A value that can be written as samples.
pub(crate) trait Value {
    /// Writes the samples.
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result;
}

impl Value for u64 {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        samples.write_integer(*self)
    }
}

impl Value for bool {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        samples.write_integer(u64::from(*self))
    }
}

impl Value for f64 {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        samples.write_sample(|encoder, _| encoder.encode_gauge(self))
    }
}

/// A text is the value of the only label of an info metric.
impl Value for &'static str {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        [(*self, true)].write(samples)
    }
}

/// `None` writes no sample.
impl<V: Value> Value for Option<V> {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |value| value.write(samples))
    }
}

/// Writes one sample per label value.
impl<V: Value, const N: usize> Value for [(&'static str, V); N] {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(label, value)| samples.write_labelled(label, value))
    }
}

/// A metric that threads count.
pub(crate) trait Instrument: Value + Sum {
    const KIND: MetricType;

    /// Appends the names of the instrument's labels.
    fn push_labels(_labels: &mut Vec<&'static str>) {}
}

impl Value for Counter {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        self.get().write(samples)
    }
}

impl Instrument for Counter {
    const KIND: MetricType = MetricType::Counter;
}

impl Value for Gauge {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        self.get().write(samples)
    }
}

impl Instrument for Gauge {
    const KIND: MetricType = MetricType::Gauge;
}

impl Value for Histogram {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        let bounds = LATENCY_BOUNDS.into_iter().chain(std::iter::once(f64::INFINITY));
        let counts = self.buckets.iter().map(Counter::get);
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        let sum = self.sum_micros.get() as f64 / 1e6;
        samples.exemplars.extend(self.exemplars());
        samples.write_sample(|encoder, _| {
            encoder.encode_histogram::<NoLabelSet>(sum, self.count(), &buckets, None)
        })
    }
}

impl Instrument for Histogram {
    const KIND: MetricType = MetricType::Histogram;
}

impl<L: Label, I: Instrument> Value for PerLabel<L, I> {
    fn write(&self, samples: &mut SampleWriter<'_>) -> fmt::Result {
        self.iter()
            .try_for_each(|(label, instrument)| samples.write_labelled(label.as_str(), instrument))
    }
}

impl<L: Label, I: Instrument> Instrument for PerLabel<L, I> {
    const KIND: MetricType = I::KIND;

    fn push_labels(labels: &mut Vec<&'static str>) {
        labels.push(L::NAME);
        I::push_labels(labels);
    }
}
