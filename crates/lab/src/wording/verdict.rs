//! Writes the sentences about verdicts.
//!
//! A [`Reason`] decides the verdict. A [`Doubt`] explains why the numbers perhaps do not describe
//! the target. A [`Finding`] reports a property of the target that no threshold covers. A
//! [`Remark`] is the note of one threshold. A closed load has workers that wait for each response.

use std::fmt::{Display, Formatter, Result};

use lab_model::metrics::Unit;
use lab_model::results::ThresholdOutcome;
use lab_model::results::run::Difference;
use wire::node_error::{self, ErrorKind, MethodKind, NodeError};

use crate::analysis::failure_period::FailurePeriod;
use crate::analysis::findings::{Finding, Stalls};
use crate::analysis::thresholds::{Remark, ThresholdResult};
use crate::analysis::validity::{CALLS_MIN, Delivered, Doubt, Moved};
use crate::analysis::verdict::Reason;
use crate::wording::number::{count, ms, percent, plural, span};

/// Maximum number of stalled seconds that a sentence lists.
const LISTED_MAX: usize = 5;

/// Returns the outcome of a threshold for the report, with its note.
pub(crate) fn threshold_outcome(threshold_result: &ThresholdResult) -> ThresholdOutcome {
    let note = threshold_result.remark.map(|remark| remark.to_string());
    ThresholdOutcome { note, ..threshold_result.outcome.clone() }
}

/// Returns the server's own words in the first response with this HTTP status, and what they mean if
/// that is known.
pub(crate) fn first_response((status, text): &(u16, String)) -> String {
    let error = NodeError {
        status: *status,
        // The words are kept without their code.
        code: 0,
        message: text,
        has_hex_data: false,
        method: MethodKind::Other,
    };
    let meaning = meaning(node_error::classify(&error));
    let meaning = meaning.map_or_else(String::new, |meaning| format!(" ({meaning})"));
    format!("the first response with status {status} said: {text:?}{meaning}")
}

/// Returns what an error means, if the server's words may hide it.
fn meaning(kind: ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::DayUsedUp => "the calls of the day are used up",
        ErrorKind::MonthUsedUp => "the calls of the month are used up",
        ErrorKind::RangeTooLarge | ErrorKind::TooManyResults | ErrorKind::ResponseTooLarge => {
            "a call asks for more than this server allows"
        }
        ErrorKind::BatchTooLarge => "a batch has more calls than this server allows",
        ErrorKind::TooSlow => "a call takes longer than this server allows",
        ErrorKind::HistoryMissing => "the server lacks that state or history",
        ErrorKind::BlockUnknown => "the server lacks that block",
        ErrorKind::MethodNotServed => "the server does not serve the method",
        ErrorKind::AccessDenied => "the server denies access",
        _ => return None,
    })
}

/// Returns a sentence for each reason, doubt or finding.
pub(crate) fn sentences(items: &[impl Display]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

impl Display for Remark {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Remark::NoData { fails: true } => f.write_str("no data, which counts as broken"),
            Remark::NoData { fails: false } => f.write_str("no data, which the plan allows"),
            Remark::Recovered => {
                f.write_str("within its limit at the end, but not when it aborted the run")
            }
            Remark::BrokenFor { lasted, window } => {
                write!(
                    f,
                    "broken for {lasted:.0} s without a break, judged in windows of {window} s"
                )
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
            Reason::KeptWithPausesOnly(count) => {
                match count {
                    1 => f.write_str("the threshold was kept")?,
                    count => write!(f, "all {count} thresholds were kept")?,
                }
                f.write_str(
                    ", but the plan's own pauses limited the load; set a rate to test whether the \
                     target can sustain it",
                )
            }
            Reason::StoppedByUser { at, of, nothing_broken } => {
                let note =
                    if *nothing_broken { "; no threshold was broken until then" } else { "" };
                write!(f, "the run was stopped by the user at {at:.1} s of {of:.1} s{note}")
            }
            Reason::Aborted { at, of } => {
                write!(f, "the broken threshold aborted the run at {at:.1} s of {of:.1} s")
            }
            Reason::Broken(threshold_result) => write_broken(f, threshold_result),
            Reason::NeverAnswered { method } => write!(
                f,
                "every call of {method} returned a JSON-RPC error: the call is wrong, or the target \
                 does not have the method"
            ),
            Reason::FailurePeriod { method, period, failed_share } => {
                f.write_str(&describe_failure_period(method, period, *failed_share))
            }
            Reason::AllFailed { method, calls, class } => {
                write!(f, "all {calls} calls of {method} failed ({})", class.as_str())
            }
            Reason::ManyFailed { method, share, class } => write!(
                f,
                "{:.1} % of the calls of {method} failed, mostly {}; a threshold about \
                 failed{{method:{method}}} sets how many may fail",
                share * 100.0,
                class.as_str()
            ),
            Reason::KeptByStalls { threshold, stalls } => write!(
                f,
                "{threshold} was kept only because workers wait while the target stalls: {stalls}"
            ),
            Reason::Wrong { method, calls, wrong, reference, first } => {
                write!(
                    f,
                    "{wrong} of {calls} compared responses of {method} differ from those of \
                     {reference}"
                )?;
                let Some(Difference { pointer, target, reference, .. }) = first else {
                    return Ok(());
                };
                write!(f, ", first at {pointer:?}: {target} instead of {reference}")
            }
            Reason::UnjudgedRejections(share) => write!(
                f,
                "{} of the calls were rejected with status 429, which is no failure, and no \
                 threshold over all methods judges that: add the threshold limited rate<0.01",
                percent(*share)
            ),
            Reason::NotCompared { reference, unanswered, skipped } => write!(
                f,
                "no response could be compared with {reference}: it did not respond to {unanswered} \
                 calls, and {skipped} were not sent to it"
            ),
        }
    }
}

/// Formats a share without decimals, such as `20 %`, if it is not small.
fn percent_of(share: f64) -> String {
    if share >= 0.1 { format!("{:.0} %", share * 100.0) } else { percent(share) }
}

/// Writes a broken threshold: `latency p(95)<300 was broken: 412.3 ms, first at 12.0 s`.
fn write_broken(f: &mut Formatter<'_>, threshold_result: &ThresholdResult) -> Result {
    let outcome = threshold_outcome(threshold_result);
    write!(f, "{} was broken", outcome.text)?;
    if let Some(observed) = outcome.observed {
        match outcome.unit {
            Some(Unit::Milliseconds) => write!(f, ": {observed:.1} ms")?,
            Some(Unit::Share) => write!(f, ": {:.2} %", observed * 100.0)?,
            Some(Unit::Count) => write!(f, ": {}", count(observed as u64))?,
            _ => write!(f, ": {observed:.1}")?,
        }
    }
    if let Some(broken_at) = outcome.broken_at {
        write!(f, ", first at {broken_at:.1} s")?;
    }
    outcome.note.map_or(Ok(()), |note| write!(f, " ({note})"))
}

/// Describes the time in which most calls of a method failed.
fn describe_failure_period(method: &str, period: &FailurePeriod, failed_share: f64) -> String {
    let FailurePeriod { from, calls, failed, succeeded_before, class, rate, .. } = period;
    let when = match period.until {
        None => format!("scheduled since {from:.1} s"),
        Some(until) => format!("scheduled from {from:.1} s to {until:.1} s"),
    };
    let share = if failed == calls {
        format!("every call of {method} {when} failed ({failed}")
    } else {
        format!(
            "{:.1} % of the calls of {method} {when} failed ({failed}",
            *failed as f64 / *calls as f64 * 100.0
        )
    };
    let earlier_calls = match succeeded_before {
        0 => "none succeeded before".to_owned(),
        count => format!("{count} succeeded before"),
    };
    format!(
        "{share}, mostly {}); {earlier_calls}; when the failures began, the run started {rate:.1} \
         iterations/s; over the whole run {:.2} % of the calls failed",
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
            Doubt::NoCalls => f.write_str("nothing was measured: no call ended"),
            Doubt::Busy { share, lasted, until } => write!(
                f,
                "the generator's threads were {:.0} % busy for {lasted:.0} s in a row until \
                 {until:.1} s: give them more cores, or reduce the load",
                share * 100.0
            ),
            Doubt::NoPorts(refused) => write!(
                f,
                "{refused} connections failed because no local port was free: reuse connections, or \
                 widen net.ipv4.ip_local_port_range"
            ),
            Doubt::Starved { threads, waited, share, is_closed } => write!(
                f,
                "the generator's {} waited {waited:.1} s, {:.0} % of the time, for a core: other \
                 processes used this machine{}",
                plural(*threads as u64, "thread"),
                share * 100.0,
                if *is_closed {
                    ", perhaps the target itself. Without a rate the load takes all that the target \
                     gives: use -r (rate in a plan) with a rate below the target's limit"
                } else {
                    ""
                }
            ),
            Doubt::Heavy { bytes_per_second, share, method, bytes_each } => write!(
                f,
                "the generator read {:.0} MB/s of responses, {:.0} % of them to {method}, {:.1} MB \
                 each: request less data, such as a shorter range or one address, or give the \
                 generator more cores",
                bytes_per_second / 1e6,
                share * 100.0,
                bytes_each / 1e6
            ),
            Doubt::Delayed { p99_ms, longest_ms, allowed, median_ms } => write!(
                f,
                "the generator sent late by {p99_ms:.2} ms (p99), {longest_ms:.1} ms at most; the \
                 plan allows {} ms, or {:.0} % of the median time of {median_ms:.2} ms; the \
                 latencies include this delay",
                allowed.scheduling_delay_p99_max.as_secs_f64() * 1e3,
                allowed.scheduling_delay_share_max * 100.0
            ),
            Doubt::Stopped { longest_ms, total, share } => write!(
                f,
                "the generator itself stood still for up to {}, {} in all ({} of its threads' time): \
                 its process was stopped, or other processes had its cores",
                ms(*longest_ms),
                span(*total),
                percent_of(*share)
            ),
            Doubt::SubscriptionReadLate { name, gap_ms, p99_ms } => write!(
                f,
                "the generator read notifications of the subscription {name} up to {} late: its p99 \
                 delay of {} may be the generator's",
                ms(*gap_ms),
                ms(*p99_ms)
            ),
            Doubt::Moved { percentiles, allowed } => {
                let named = |moved: &Moved| {
                    let (measured, least) = (ms(moved.measured_ms), ms(moved.least_ms));
                    let of = match moved.method.as_str() {
                        "all" => String::new(),
                        method => format!(" of {method}"),
                    };
                    format!(
                        "{}{of} ({measured}, without its delays at least {least})",
                        moved.percentile
                    )
                };
                let listed: Vec<String> = percentiles.iter().take(LISTED_MAX).map(named).collect();
                let ellipsis = if percentiles.len() > LISTED_MAX { ", …" } else { "" };
                write!(
                    f,
                    "the generator's own delays may be more than {} of these latencies, which are marked \
                     with !: {}{ellipsis}",
                    percent_of(*allowed),
                    listed.join(", ")
                )
            }
            Doubt::Undelivered { scenario, delivery } => write!(
                f,
                "{scenario}: {delivery}; whether the target would have kept up is unknown"
            ),
            Doubt::LimitedByPauses { scenario, allowed, workers, pause_ms, reached } => write!(
                f,
                "{scenario}: the plan's own pacing allows at most {allowed:.0}/s ({workers:.0} \
                 workers, a pause of {pause_ms:.0} ms after each iteration), and it reached \
                 {reached:.0}/s: the target was not the limit"
            ),
            Doubt::FewWorkers { scenario, delivery, workers, allowed, best_ms, peak } => write!(
                f,
                "{scenario}: {delivery}: its {workers} workers can start at most {allowed:.0}/s even at \
                 the target's best time of {best_ms:.1} ms per iteration, but {peak:.0}/s are \
                 planned: add workers"
            ),
            Doubt::Behind { scenario, delivery, workers, mean_ms, best_ms } => write!(
                f,
                "{scenario}: {delivery}: the target did not keep up; all {workers} workers waited for \
                 it; an iteration took {mean_ms:.1} ms on average, and {best_ms:.1} ms at best"
            ),
            Doubt::FewCalls(few) => {
                let methods: Vec<String> =
                    few.iter().map(|(method, calls)| format!("{method} ({calls} calls)")).collect();
                write!(
                    f,
                    "a p99 of fewer than {CALLS_MIN} calls is uncertain; see its confidence interval: {}",
                    methods.join(", ")
                )
            }
        }
    }
}

impl Display for Delivered {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Delivered { share, started, scheduled } = self;
        let percent = share * 100.0;
        write!(f, "{percent:.1} % of the planned iterations started ({started} of {scheduled})")
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
            Finding::WrongType { method, share, results } => write!(
                f,
                "{:.1} % of the results of {method} have another JSON type than the method's, or \
                 are null although it never returns null ({results})",
                share * 100.0
            ),
            Finding::SomeNull { method, share, nulls } => write!(
                f,
                "{:.1} % of the results of {method} were null ({nulls}): the target, or one of \
                 several behind its URL, does not have the data",
                share * 100.0
            ),
            Finding::AllNull { method, nulls } => write!(
                f,
                "every result of {method} was null ({nulls}): the target does not have the data"
            ),
            Finding::Stalled(stalls) => write!(
                f,
                "the target stalled: {stalls}; a closed load sends little during a stall, so \
                 percentiles hardly show it (set a rate with -r or rate to measure the waiting)"
            ),
            Finding::Drift { method, first_ms, last_ms } => {
                let direction = if last_ms > first_ms { "rose" } else { "fell" };
                write!(
                    f,
                    "the median of {method} {direction} from {first_ms:.1} to {last_ms:.1} ms under \
                     a steady load: the target changed during the run"
                )
            }
            Finding::WaitedForWorker { latency_ms, service_ms, timeout_ms } => write!(
                f,
                "of the median latency of {}, the target took {} from the send to the response (service \
                 time, to which the timeout of {} applies); the rest is the wait in the generator for a \
                 free worker, because all of them waited for the target",
                ms(*latency_ms),
                ms(*service_ms),
                ms(*timeout_ms)
            ),
            Finding::OtherClients { connections } => write!(
                f,
                "another client used the target during the run, on {} on average: the figures are \
                 those of both loads together",
                plural(connections.round() as u64, "connection")
            ),
            Finding::DuplicateResponses { responses, requests } => write!(
                f,
                "the target sent {} of calls a second time (of {}); they were ignored",
                plural(*responses, "response"),
                plural(*requests, "request")
            ),
            Finding::Unsubscribed { name, ended, connections, reason } => write!(
                f,
                "{} of {} of the subscription {name} failed or ended ({reason})",
                count(*ended),
                plural(*connections, "connection")
            ),
            Finding::Missing { name, missing, connections } => write!(
                f,
                "{} of the subscription {name} did not receive {}",
                plural(*connections, "connection"),
                plural(*missing, "notification")
            ),
            Finding::Duplicates { name, duplicates, notifications } => write!(
                f,
                "{} of {} of the subscription {name} were duplicates",
                count(*duplicates),
                plural(*notifications, "notification")
            ),
        }
    }
}

/// Writes `10.0 % fewer results than at the run's median rate, with gaps at 5 s, 10 s, where calls
/// took up to 900 ms`.
impl Display for Stalls {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let listed: Vec<String> =
            self.at.iter().take(LISTED_MAX).map(|time| format!("{time:.0} s")).collect();
        let ellipsis = if self.at.len() > LISTED_MAX { ", …" } else { "" };
        write!(
            f,
            "{:.1} % fewer results than at the run's median rate, with gaps at {}{ellipsis}, where calls took \
             up to {:.0} ms",
            self.missing_share * 100.0,
            listed.join(", "),
            self.longest_ms
        )
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the words of a server that hide what it means are explained, others are only quoted.

    use super::first_response;

    #[test]
    fn the_first_response_is_quoted_with_its_meaning() {
        let said = |status, text: &str| first_response(&(status, text.to_owned()));
        assert_eq!(
            said(429, "Monthly capacity limit exceeded."),
            "the first response with status 429 said: \"Monthly capacity limit exceeded.\" (the \
             calls of the month are used up)"
        );
        assert_eq!(
            said(200, "missing trie node 5c0e (path )"),
            "the first response with status 200 said: \"missing trie node 5c0e (path )\" (the \
             server lacks that state or history)"
        );
        let quoted = "the first response with status 429 said: \"slow down\"";
        assert_eq!(said(429, "slow down"), quoted);
    }
}
