//! Verdicts and what stands beside them in sentences: reasons, doubts, findings, notes of objectives.

use std::fmt::{Display, Formatter, Result};

use lab_model::metrics::{Kind, Metric};
use lab_model::results::ThresholdOutcome;
use lab_model::results::run::Difference;

use crate::analysis::findings::{Finding, Stalls};
use crate::analysis::knee::Knee;
use crate::analysis::thresholds::{Remark, Ruling};
use crate::analysis::validity::{Begun, CALLS_MIN, Doubt};
use crate::analysis::verdict::Reason;

/// Stalled seconds that a sentence lists.
const LISTED_MAX: usize = 5;

/// An objective's outcome as it is reported, with its note.
pub(crate) fn outcome(ruling: &Ruling) -> ThresholdOutcome {
    let note = ruling.remark.map(|remark| remark.to_string());
    ThresholdOutcome { note, ..ruling.outcome.clone() }
}

/// The sentences of some reasons, doubts or findings.
pub(crate) fn sentences(of: &[impl Display]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

impl Display for Remark {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Remark::NoData { fails: true } => f.write_str("no data, which fails"),
            Remark::NoData { fails: false } => f.write_str("no data, which the plan allows"),
            Remark::Mended => f.write_str("out of its limit when it ended the run"),
            Remark::BrokenFor { lasted, window } => {
                write!(f, "broken for {lasted:.0} s in windows of {window} s")
            }
            Remark::WorstOf { windows, window } => {
                write!(f, "worst of {windows} windows of {window} s")
            }
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Reason::Doubt(doubt) => doubt.fmt(f),
            Reason::KeptWhenPaced(count) => {
                match count {
                    1 => f.write_str("the objective was kept at this load")?,
                    count => write!(f, "all {count} objectives were kept at this load")?,
                }
                f.write_str("; to judge a load by objectives, offer it as a rate")
            }
            Reason::EndedByHand { at, of, nothing_broken } => {
                let rest = if *nothing_broken { "; until then nothing was broken" } else { "" };
                write!(f, "the run was ended by hand at {at:.1} s of {of:.1} s{rest}")
            }
            Reason::Aborted { at, of } => {
                write!(f, "the broken objective ended the run at {at:.1} s of {of:.1} s")
            }
            Reason::Broken(ruling, metric) => broken(f, ruling, *metric),
            Reason::NeverAnswered { method } => write!(
                f,
                "every call of {method} was answered with a JSON-RPC error from the first on: the \
                 call is at fault, or the target does not have the method"
            ),
            Reason::Knee { method, knee, failed_share } => {
                f.write_str(&failing_since(method, knee, *failed_share))
            }
            Reason::AllFailed { method, calls, class } => {
                write!(f, "all {calls} calls of {method} failed ({})", class.as_str())
            }
            Reason::ManyFailed { method, share, class } => write!(
                f,
                "{:.1} % of the calls of {method} failed, mostly {}; an objective \
                 failed{{method:{method}}} says how many may",
                share * 100.0,
                class.as_str()
            ),
            Reason::KeptByStalls { objective, stalls } => write!(
                f,
                "{objective} was kept only because workers wait while the target stalls: {stalls}"
            ),
            Reason::Wrong { method, calls, wrong, reference, first } => {
                write!(
                    f,
                    "{wrong} of {calls} compared answers of {method} differ from those of \
                     {reference}"
                )?;
                let Some(Difference { pointer, target, reference, .. }) = first else {
                    return Ok(());
                };
                write!(f, ", first at {pointer:?}: {target} instead of {reference}")
            }
            Reason::NotCompared { reference, unanswered, skipped } => write!(
                f,
                "no answer could be compared with {reference}: {unanswered} calls were not answered \
                 by it, {skipped} not asked"
            ),
        }
    }
}

/// A broken objective: `latency p(95)<300 was broken: 412.3 ms, first at 12.0 s`.
fn broken(f: &mut Formatter<'_>, ruling: &Ruling, metric: Metric) -> Result {
    let outcome = outcome(ruling);
    write!(f, "{} was broken", outcome.text)?;
    if let Some(observed) = outcome.observed {
        match metric.kind() {
            Kind::Times => write!(f, ": {observed:.1} ms")?,
            Kind::Share => write!(f, ": {:.2} %", observed * 100.0)?,
            Kind::Counter => write!(f, ": {observed:.1}")?,
        }
    }
    if let Some(at) = outcome.broken_at {
        write!(f, ", first at {at:.1} s")?;
    }
    outcome.note.map_or(Ok(()), |note| write!(f, " ({note})"))
}

fn failing_since(method: &str, knee: &Knee, failed_share: f64) -> String {
    let Knee { from, calls, failed, answered_before, class, rate, .. } = knee;
    let when = match knee.until {
        None => format!("due since {from:.1} s"),
        Some(until) => format!("due from {from:.1} s to {until:.1} s"),
    };
    let share = if failed == calls {
        format!("every call of {method} {when} failed ({failed}")
    } else {
        format!(
            "{:.1} % of the calls of {method} {when} failed ({failed}",
            *failed as f64 / *calls as f64 * 100.0
        )
    };
    let before = match answered_before {
        0 => "none was answered before".to_owned(),
        1 => "1 was answered before".to_owned(),
        count => format!("{count} were answered before"),
    };
    format!(
        "{share}, mostly {}); {before}; the run then began {rate:.1} iterations/s; of all calls {:.2} % \
         failed",
        class.as_str(),
        failed_share * 100.0
    )
}

impl Display for Doubt {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Doubt::EndedInWarmup { end, warmup } => write!(
                f,
                "nothing was measured: the run ended at {end:.1} s, within the warm-up of {warmup} s"
            ),
            Doubt::NoCalls => f.write_str("nothing was measured: not one call ended"),
            Doubt::Busy { share, lasted, until } => write!(
                f,
                "the generator's threads were {:.0} % busy for {lasted:.0} s in a row until \
                 {until:.1} s: give them more cores, or ask for less",
                share * 100.0
            ),
            Doubt::NoPorts(refused) => write!(
                f,
                "{refused} connections were not made because this host had no local port left: reuse \
                 connections, or widen net.ipv4.ip_local_port_range"
            ),
            Doubt::Starved { threads, waited, share } => write!(
                f,
                "the generator's {threads} threads waited {waited:.1} s, {:.0} % of their time, for a \
                 core: something else used this machine",
                share * 100.0
            ),
            Doubt::Heavy { bytes_per_second, share, method, bytes_each } => write!(
                f,
                "the generator read {:.0} MB/s of answers, {:.0} % of them those of {method}, {:.1} \
                 MB each: ask for smaller ones, such as a shorter range or one address, or give it \
                 more cores",
                bytes_per_second / 1e6,
                share * 100.0,
                bytes_each / 1e6
            ),
            Doubt::Late { p99_ms, longest_ms, allowed, median_ms } => write!(
                f,
                "sends were late by {p99_ms:.2} ms (p99), {longest_ms:.1} ms at most, because of the \
                 generator; allowed are {} ms or {:.0} % of the median time of {median_ms:.2} ms: the \
                 latencies include this",
                allowed.lateness_p99_max.as_secs_f64() * 1e3,
                allowed.lateness_share_max * 100.0
            ),
            Doubt::Paced { scenario, allowed, workers, pause_ms, reached } => write!(
                f,
                "{scenario}: the plan's own pacing allows at most {allowed:.0}/s ({workers:.0} \
                 workers, a pause of {pause_ms:.0} ms after each iteration), and {reached:.0}/s were \
                 reached: the target was not the limit"
            ),
            Doubt::FewWorkers { scenario, begun, workers, allowed, best_ms, peak } => write!(
                f,
                "{scenario}: {begun}: its {workers} workers can begin at most {allowed:.0}/s even at \
                 the target's best time of {best_ms:.1} ms an iteration, and {peak:.0}/s were \
                 planned: give it more workers"
            ),
            Doubt::Behind { scenario, begun, workers, mean_ms, best_ms } => write!(
                f,
                "{scenario}: {begun}: the target did not keep up; all {workers} workers waited for \
                 it, {mean_ms:.1} ms a call in the mean against {best_ms:.1} ms an iteration at its \
                 best"
            ),
            Doubt::FewCalls(few) => {
                let few: Vec<String> =
                    few.iter().map(|(method, calls)| format!("{method} ({calls} calls)")).collect();
                write!(
                    f,
                    "a p99 of fewer than {CALLS_MIN} calls is weak; see its interval: {}",
                    few.join(", ")
                )
            }
        }
    }
}

impl Display for Begun {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Begun { share, begun, due } = self;
        let percent = share * 100.0;
        write!(f, "{percent:.1} % of the planned iterations were begun ({begun} of {due})")
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Finding::Failing { method, share, failed, calls, class } => write!(
                f,
                "{:.1} % of the calls of {method} failed ({failed} of {calls}, mostly {})",
                share * 100.0,
                class.as_str()
            ),
            Finding::Empty { method, nulls } => write!(
                f,
                "every result of {method} was null ({nulls}): the target does not have what is asked \
                 for"
            ),
            Finding::Stalled(stalls) => write!(
                f,
                "the target stalled: {stalls}; a load without a rate sends little meanwhile, so its \
                 percentiles hardly show it (offer a rate with -r or rate to measure the waiting)"
            ),
            Finding::Drift { method, first_ms, last_ms } => {
                let way = if last_ms > first_ms { "rose" } else { "fell" };
                write!(
                    f,
                    "the median of {method} {way} from {first_ms:.1} to {last_ms:.1} ms under a \
                     steady load: the figures are of a target that changed meanwhile"
                )
            }
        }
    }
}

/// `10.0 % of the usual results are missing, at 5 s, 10 s, where calls took up to 900 ms`.
impl Display for Stalls {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let listed: Vec<String> =
            self.at.iter().take(LISTED_MAX).map(|at| format!("{at:.0} s")).collect();
        let more = if self.at.len() > LISTED_MAX { ", …" } else { "" };
        write!(
            f,
            "{:.1} % of the usual results are missing, at {}{more}, where calls took up to {:.0} ms",
            self.missing * 100.0,
            listed.join(", "),
            self.longest_ms
        )
    }
}
