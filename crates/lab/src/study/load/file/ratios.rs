//! The largest ratios of variants to the first variant: the key `ratio_max` of variants and cases.

use lab_model::results::compare::Metric;
use settings::Key;
use settings::value::Number;

use super::LoadStudyFile;
use super::check::Checker;

/// A ratio from 0.001 to 1000. The limits of a `Number` are in thousandths.
type Ratio = Number<1, 1_000_000>;

settings::table! {
    /// Largest ratios of a variant's values to those of the first variant, over all methods. The
    /// study judges the 95 % interval of each ratio: kept, broken, or cannot tell. A broken ratio
    /// ends `weir study load` with exit code 3.
    pub struct RatioMaxTable {
        /// Median latency.
        latency_p50: Ratio = described "no limit";
        /// 95th percentile of the latency.
        latency_p95: Ratio = described "no limit";
        /// 99th percentile of the latency.
        latency_p99: Ratio = described "no limit";
        /// Results per second. This is the ratio of the first variant's value to this one's, so a
        /// smaller ratio is always better.
        goodput: Ratio = described "no limit";
        /// CPU time of the target's processes per HTTP request. Rounds that the load generator
        /// limits count too, because they do not change the CPU time of a request.
        cpu_ms_per_request: Ratio = described "no limit";
    }
}

impl RatioMaxTable {
    /// Returns the limit of each metric.
    fn limits(&self) -> [(Metric, &Key<Option<f64>>); 5] {
        [
            (Metric::LatencyP50, &self.latency_p50),
            (Metric::LatencyP95, &self.latency_p95),
            (Metric::LatencyP99, &self.latency_p99),
            (Metric::Goodput, &self.goodput),
            (Metric::CpuPerRequest, &self.cpu_ms_per_request),
        ]
    }

    /// Returns the limits that the file sets.
    fn set_limits(&self) -> impl Iterator<Item = (Metric, &Key<Option<f64>>)> {
        self.limits().into_iter().filter(|(_, key)| key.is_set())
    }

    /// Returns the limit of a metric, or `None` if the file sets none.
    fn limit(&self, metric: Metric) -> Option<f64> {
        self.limits().into_iter().find(|(key, _)| *key == metric).and_then(|(_, limit)| **limit)
    }
}

/// The largest allowed ratio of a variant to the first variant, in one metric under one plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioLimit {
    /// Index of the plan or case.
    pub plan: usize,
    /// Index of the variant.
    pub variant: usize,
    /// The metric.
    pub metric: Metric,
    /// The largest allowed ratio.
    pub max: f64,
}

impl Checker<'_, '_> {
    /// Returns the limits in the order of plans and variants. A limit of a case replaces that of
    /// the variant. `plans` has the names of the plans or cases.
    pub(super) fn read_ratio_limits(
        &mut self,
        file: &LoadStudyFile,
        plans: &[String],
    ) -> Vec<RatioLimit> {
        for (_, key) in file.variant.iter().take(1).flat_map(|table| table.ratio_max.set_limits()) {
            let message = "the first variant is compared with no other";
            self.report.error(key, message, "a ratio of one of the variants after the first");
        }
        let others = || file.variant.iter().enumerate().skip(1);
        for (metric, key) in file.case.iter().flat_map(|case| case.ratio_max.set_limits()) {
            if others().all(|(_, table)| table.ratio_max.limit(metric).is_none()) {
                let message = "no variant has a ratio_max of this metric";
                self.report.error(key, message, "metrics in the ratio_max of a variant");
            }
        }
        let mut limits = Vec::new();
        for (plan, name) in plans.iter().enumerate() {
            let case = file.case.iter().find(|case| *case.name == *name);
            for (variant, table) in others() {
                for (metric, key) in table.ratio_max.limits() {
                    let Some(max) = **key else { continue };
                    let max = case.and_then(|case| case.ratio_max.limit(metric)).unwrap_or(max);
                    limits.push(RatioLimit { plan, variant, metric, max });
                }
            }
        }
        limits
    }
}
