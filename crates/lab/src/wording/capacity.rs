//! Why a probe of a capacity search passed or failed, and what bound it, in sentences.

use std::fmt::{Display, Formatter, Result};

use lab_model::results::capacity::Binding;

use crate::analysis::search::judge::{BEYOND_MIN, Bound, Limit, Reason};

/// A broken limit as it is reported, of the probe with this place at this rate.
pub(crate) fn binding(bound: Bound, rate: f64, probe: usize) -> Binding {
    let Bound { limit, method, observed, allowed } = bound;
    let objective = match limit {
        Limit::Objective(text) => text,
        Limit::Delivered => "delivered value".to_owned(),
        Limit::BacklogGrowth => "backlog growth / rate".to_owned(),
        Limit::MethodFails => "no method fails altogether".to_owned(),
        Limit::Verdict => "the run's own verdict".to_owned(),
    };
    Binding { objective, method, observed, limit: allowed, rate, probe }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Reason::OfRun(reason) => f.write_str(reason),
            Reason::Delivered { share, begun, due } => {
                let percent = share * 100.0;
                write!(f, "{percent:.1} % of the iterations due began: {begun} of {due}")
            }
            Reason::BacklogGrew { growth, rate } => write!(
                f,
                "what was under way grew by {growth:.1} iterations/s at {rate} iterations/s: a rate \
                 that cannot be held"
            ),
            Reason::FewCalls { objective, beyond, rate } => write!(
                f,
                "\"{objective}\" has {beyond:.0} calls beyond the percentile at {rate}/s, and \
                 {BEYOND_MIN} are needed: judge a lower percentile, or a higher rate"
            ),
        }
    }
}
