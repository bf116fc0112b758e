//! Writes the outcome of a probe: the reasons, and the limit that broke first. A probe is a run of
//! a capacity search at one rate.

use std::fmt::{Display, Formatter, Result};

use lab_model::results::capacity::Binding;

use crate::analysis::search::judge::{BEYOND_MIN, BindingLimit, Limit, Reason};

/// Converts a broken limit for the report. `probe` is the index of the probe that broke it.
pub(crate) fn binding(broken: BindingLimit, rate: f64, probe: usize) -> Binding {
    let BindingLimit { limit, method, observed, allowed } = broken;
    let threshold = match limit {
        Limit::Threshold(text) => text,
        Limit::Delivered => "delivered value".to_owned(),
        Limit::BacklogGrowth => "backlog growth / rate".to_owned(),
        Limit::MethodFails => "no method fails completely".to_owned(),
        Limit::Verdict => "the run's own verdict".to_owned(),
    };
    Binding { threshold, method, observed, limit: allowed, rate, probe }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Reason::RunVerdict(reason) => f.write_str(reason),
            Reason::Delivered { share, started, scheduled } => {
                let percent = share * 100.0;
                write!(
                    f,
                    "{percent:.1} % of the scheduled iterations started: {started} of {scheduled}"
                )
            }
            Reason::BacklogGrew { growth, rate } => write!(
                f,
                "the backlog grew by {growth:.1} iterations/s at {rate} iterations/s: the target \
                 cannot sustain this rate"
            ),
            Reason::GeneratorStopped { share } => write!(
                f,
                "the generator itself stood still for {:.0} % of the time, which may be the cause",
                share * 100.0
            ),
            Reason::FewCalls { threshold, beyond, rate } => write!(
                f,
                "\"{threshold}\" has {beyond:.0} calls beyond the percentile at {rate}/s, but \
                 {BEYOND_MIN} are needed: use a lower percentile or a higher rate"
            ),
        }
    }
}
