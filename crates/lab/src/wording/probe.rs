//! Describes the state changes of a probed target.

use settings::value::format_duration;

use super::number::plural;
use crate::analysis::probe::Change;

/// Returns the change as the end of a sentence that begins with the target's name.
pub fn change(change: &Change) -> String {
    match change {
        Change::Up(facts) => {
            let client = facts.client.as_deref().unwrap_or("an unknown client");
            let chain = facts.chain_id.as_deref();
            let chain = chain.map_or_else(String::new, |chain| format!(", chain {chain}"));
            let head = facts.head_start.map_or_else(String::new, |head| format!(", head {head}"));
            format!("is up: {client}{chain}{head}")
        }
        Change::Failed { reason, calls: 0 } => format!("failed: {reason}"),
        Change::Failed { reason, calls } => {
            format!("failed: {reason} ({} in a row failed)", plural(u64::from(*calls), "call"))
        }
        Change::Recovered { after } => {
            // The time is cut to whole seconds, which are precise enough for an outage.
            let seconds = std::time::Duration::from_secs(after.as_secs().max(1));
            format!("recovered after {}", format_duration(seconds))
        }
        Change::Lags { blocks } => format!("lags {} behind", plural(*blocks, "block")),
        Change::CaughtUp => "caught up".to_owned(),
        Change::Warned(text) => format!("is probed with a warning: {text}"),
    }
}
