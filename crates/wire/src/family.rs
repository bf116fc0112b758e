//! Families of chains. All nodes of a family have the same methods.

use std::str::FromStr;

use serde::Deserialize;

/// A family of chains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Ethereum and chains with its methods.
    Ethereum,
    /// Harmony. Its nodes have methods of Ethereum, and methods that begin with `hmy_` and
    /// `hmyv2_`.
    Harmony,
    /// Bitcoin and chains with its methods.
    Bitcoin,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 3] = [Family::Ethereum, Family::Harmony, Family::Bitcoin];

    /// Returns the name in configurations and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Family::Ethereum => "ethereum",
            Family::Harmony => "harmony",
            Family::Bitcoin => "bitcoin",
        }
    }
}

/// The text is not the name of a family.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown chain family {0:?}, it is one of ethereum, harmony, bitcoin")]
pub struct UnknownFamily(String);

impl FromStr for Family {
    type Err = UnknownFamily;

    fn from_str(text: &str) -> Result<Family, UnknownFamily> {
        Family::ALL
            .into_iter()
            .find(|family| family.as_str() == text)
            .ok_or_else(|| UnknownFamily(text.to_owned()))
    }
}
