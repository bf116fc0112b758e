//! Compares the nonces of signed transactions with the senders' next nonces. A target refuses a
//! transaction with a used nonce, and holds one back whose nonce is too high. Such a load measures
//! nothing.

use lab_model::plan::transactions::Sender;

use super::Reason;
use super::chain::number;
use super::client::{Client, Reply};

#[cfg(test)]
mod tests;

/// Maximum number of senders that are compared. The calls are sequential.
const SENDERS_MAX: usize = 1_000;

/// Compares the first nonce of each sender with its next nonce on the target. Returns a warning if
/// the nonces of some senders could not be compared.
///
/// # Errors
/// Fails at the first sender whose next nonce differs from its first nonce in the file.
pub(super) fn check(client: &Client, senders: &[Sender]) -> Result<Option<String>, Reason> {
    for (compared, sender) in senders.iter().enumerate() {
        let not_compared = |reason: String| {
            let rest = senders.len() - compared;
            Ok(Some(format!(
                "the nonces of {rest} senders were not compared with the target's: {reason}"
            )))
        };
        if compared == SENDERS_MAX {
            return not_compared(format!("at most {SENDERS_MAX} are"));
        }
        let next = match next_nonce(client, &sender.address) {
            Ok(next) => next,
            Err(reason) => return not_compared(reason),
        };
        let (sender, first, count) = (sender.address.clone(), sender.first_nonce, sender.count);
        if next < first {
            return Err(Reason::NonceGap { sender, next, first });
        }
        if next > first {
            let used = (next - first).min(count);
            return Err(Reason::UsedNonces { sender, used, count, next, first });
        }
    }
    Ok(None)
}

/// Returns the next nonce of an account, after the transactions in the target's pool.
///
/// # Errors
/// Describes why the target returned no nonce.
fn next_nonce(client: &Client, address: &str) -> Result<u64, String> {
    let method = "eth_getTransactionCount";
    match client.call(method, &format!(r#"["{address}","pending"]"#)) {
        Ok(Reply::Result(result)) => {
            number(&result).ok_or_else(|| format!("{method} returned {result}"))
        }
        Ok(Reply::Error { code, message }) => {
            Err(format!("{method} returned error {code} ({message})"))
        }
        Err(fault) => Err(format!("{method}: {}", fault.reason)),
    }
}
