//! The levels of verification.

use std::fmt;
use std::str::FromStr;

/// The checks that responses must pass before they are stored. Each level includes the checks of
/// the previous levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Responses must have the members that the index needs.
    Off,
    /// The header must hash to the block's hash.
    Headers,
    /// Transactions, receipts, logs and withdrawals must match the header.
    Full,
    /// Senders must match the signatures, which takes longer than all other checks.
    Senders,
}

impl Level {
    /// The levels in ascending order, each with its name.
    const NAMES: [(Level, &'static str); 4] = [
        (Level::Off, "off"),
        (Level::Headers, "headers"),
        (Level::Full, "full"),
        (Level::Senders, "senders"),
    ];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(level, _)| level == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let entry = Self::NAMES.iter().find(|(_, known)| *known == name);
        entry.map(|(level, _)| *level).ok_or_else(|| {
            format!(
                "{name:?} is no level of verification, allowed are off, headers, full and senders"
            )
        })
    }
}
