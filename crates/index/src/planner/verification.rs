//! Decides which text an index records about the verification of its blocks.

use crate::contents::Chain;
use crate::harmony;
use crate::verify::Level;

/// Chains whose blocks have transactions that cannot be verified, by chain id
/// (<https://github.com/ethereum-lists/chains>). No root of the block covers the state syncs of
/// Polygon, which have no signature. The other transactions have types of the chain's own.
const UNVERIFIABLE_TRANSACTIONS: [(&str, &[&str]); 3] = [
    ("state syncs of Polygon", &["137", "80002"]),
    (
        "deposits of the OP Stack (type 0x7e)",
        &[
            "10", "130", "252", "480", "1135", "1868", "8453", "34443", "42220", "57073",
            "7777777", "84532", "11155420",
        ],
    ),
    ("transactions of Arbitrum's own types (0x64 to 0x6a)", &["42161", "42170", "421614"]),
];

/// Returns the name of the transactions of a chain that cannot be verified, or `None` if no such
/// transactions are known.
pub fn unverifiable_transactions(chain: &Chain) -> Option<&'static str> {
    let mut table = UNVERIFIABLE_TRANSACTIONS.iter();
    table.find(|(_, ids)| ids.contains(&chain.id.as_str())).map(|(name, _)| *name)
}

/// Returns the record of a new index: the name of the level with the exceptions of the chain, or
/// the reason why blocks are not verified.
pub fn initial_record(level: Level, hmyv2: bool, chain: &Chain) -> String {
    match level {
        _ if hmyv2 => harmony::UNVERIFIED_REASON.to_owned(),
        Level::Off => "off: no response of a node was verified".to_owned(),
        level => format_record(level, unverifiable_transactions(chain)),
    }
}

fn format_record(level: Level, unverifiable: Option<&str>) -> String {
    match unverifiable.filter(|_| level > Level::Headers) {
        Some(transactions) => format!("{level}; blocks with {transactions}: headers"),
        None => level.to_string(),
    }
}

/// Returns the level that an index records, or `None` if it records a reason for no verification.
pub fn recorded_level(recorded: &str) -> Option<Level> {
    recorded.split(';').next()?.parse().ok()
}

/// Returns the new record if a sync continues at a lower level than recorded, or `None` if the
/// record does not change.
pub fn downgraded_record(recorded: &str, level: Level, chain: &Chain) -> Option<String> {
    (level < recorded_level(recorded)?).then(|| match level {
        Level::Off => "off: some responses of nodes were not verified".to_owned(),
        level => format_record(level, unverifiable_transactions(chain)),
    })
}

#[cfg(test)]
mod tests {
    //! Goal: an index never claims more than was verified of all its blocks.

    use super::*;

    fn chain(id: &str) -> Chain {
        Chain { family: "ethereum".to_owned(), id: id.to_owned(), genesis_hash: [0; 32] }
    }

    #[test]
    fn a_record_only_gets_weaker() {
        let chain = chain("1");
        let downgraded = |recorded: &str, level| downgraded_record(recorded, level, &chain);
        assert_eq!(initial_record(Level::Full, false, &chain), "full");
        assert_eq!(initial_record(Level::Senders, true, &chain), harmony::UNVERIFIED_REASON);
        assert_eq!(downgraded("full", Level::Full), None);
        assert_eq!(downgraded("full", Level::Senders), None);
        assert_eq!(downgraded("full", Level::Headers).as_deref(), Some("headers"));
        let off = downgraded("headers", Level::Off).unwrap();
        assert!(off.starts_with("off: some"), "{off}");
        for recorded in
            [off, initial_record(Level::Off, false, &chain), harmony::UNVERIFIED_REASON.to_owned()]
        {
            assert_eq!(downgraded(&recorded, Level::Off), None, "{recorded}");
        }
    }

    #[test]
    fn a_record_names_the_transactions_of_a_chain_that_cannot_be_verified() {
        let polygon = chain("137");
        let record = initial_record(Level::Senders, false, &polygon);
        assert_eq!(record, "senders; blocks with state syncs of Polygon: headers");
        assert_eq!(recorded_level(&record), Some(Level::Senders));
        let full = downgraded_record(&record, Level::Full, &polygon).unwrap();
        assert_eq!(full, "full; blocks with state syncs of Polygon: headers");
        let headers = downgraded_record(&full, Level::Headers, &polygon);
        assert_eq!(headers.as_deref(), Some("headers"));
        assert_eq!(unverifiable_transactions(&chain("1")), None);
        let mut ids: Vec<_> = UNVERIFIABLE_TRANSACTIONS.iter().flat_map(|(_, ids)| *ids).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "a chain id occurs twice");
    }
}
