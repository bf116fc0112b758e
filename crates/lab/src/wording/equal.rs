//! Writes the conclusion and the warnings of a comparison of two servers' responses.

use lab_model::results::equal::{EqualResult, EqualVerdict, SkippedCalls};

use super::number::plural;

/// Returns the conclusion of the comparison.
pub(crate) fn conclusion(result: &EqualResult) -> String {
    let calls = plural(result.calls, "call");
    let methods = plural(result.methods.len() as u64, "method");
    let sum = |count: fn(&lab_model::results::equal::MethodRow) -> u64| -> u64 {
        result.methods.iter().map(count).sum()
    };
    let (different, allowed) = (sum(|row| row.different), sum(|row| row.allowed));
    let unsteady = sum(|row| row.unsteady);
    let of_total = format!("of {calls} of {methods}");
    let allowed_text = match allowed {
        0 => String::new(),
        count => format!(", and {count} differ only by known habits of clients or ignored values"),
    };
    match result.verdict {
        EqualVerdict::Different => {
            let unsteady_text = match unsteady {
                0 => String::new(),
                count => format!(", those to {count} more differ only now and then"),
            };
            format!("the responses to {different} {of_total} differ{unsteady_text}{allowed_text}")
        }
        EqualVerdict::Unsteady => format!(
            "the responses to {unsteady} {of_total} differ only now and then, and the chain's movement \
             does not explain that: a server, or one of several behind its URL, sends wrong \
             responses{allowed_text}"
        ),
        EqualVerdict::Equal if allowed == 0 => {
            format!("the responses to {calls} of {methods} are equal")
        }
        EqualVerdict::Equal => format!(
            "the responses to {calls} of {methods} are equal, apart from known habits of clients or \
             ignored values in {allowed}"
        ),
        EqualVerdict::CannotTell if result.calls == 0 => "no call was compared".to_owned(),
        EqualVerdict::CannotTell => format!(
            "no response differs, but {} {of_total} could not be compared",
            sum(|row| row.unanswered)
        ),
    }
}

/// Returns the warning that a server did not return a block.
pub(crate) fn no_block(height: u64, url: &str) -> String {
    format!("{url} does not return block {height}, so the calls about its transactions are missing")
}

/// Returns the warnings about calls that could not be compared. `unstable` is the number of those
/// `unanswered` calls whose responses depend on the newest block of the chain.
pub(crate) fn warnings(unanswered: u64, unstable: u64, skipped: &[SkippedCalls]) -> Vec<String> {
    let mut warnings = Vec::new();
    let without_response = unanswered - unstable;
    if without_response > 0 {
        warnings.push(format!(
            "neither server responded to {}; a longer --timeout or a lower --concurrency may help",
            plural(without_response, "call")
        ));
    }
    if unstable > 0 {
        warnings.push(format!(
            "the responses to {} depend on the head, and the servers never had the same head for long \
             enough to compare them",
            plural(unstable, "call")
        ));
    }
    for SkippedCalls { method, reason, calls } in skipped {
        let reason = reason.as_str();
        warnings.push(format!("{} of {method} not sent: {reason}", plural(*calls, "call")));
    }
    warnings
}

/// Explains why known habits of clients count as differences. `None` if they are allowed.
pub(crate) fn habits(result: &EqualResult) -> Option<String> {
    if result.strict {
        Some("--strict: known habits of clients count as differences.".to_owned())
    } else if !result.habits_apply {
        Some(
            "Both servers report the same client version, so known habits of clients count as \
             differences."
                .to_owned(),
        )
    } else {
        None
    }
}
