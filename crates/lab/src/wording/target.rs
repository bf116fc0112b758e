//! Warnings about chain data that a target lacks.

use super::number::plural;

/// Says that the addresses of calls are the node's own accounts.
pub(crate) fn accounts_as_addresses(count: usize) -> String {
    format!(
        "no block that was read has an address: the calls ask about {} of the node itself \
         (eth_accounts)",
        plural(count as u64, "account")
    )
}

/// Says that all calls have the zero address.
pub(crate) fn zero_address() -> String {
    "no block that was read has an address, and the node has no accounts: all calls ask about the \
     zero address, which is cached more easily than real traffic"
        .to_owned()
}

/// Says which methods of a mix are not called, because the chain lacks `missing`.
pub(crate) fn dropped_calls(mix: &str, missing: &str, methods: &[&str]) -> String {
    format!(
        "no block that was read has {missing}: mix {mix:?} runs without {}, and the other calls get \
         their share",
        methods.join(" and ")
    )
}
