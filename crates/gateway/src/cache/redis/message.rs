//! The messages that gateways send each other on the invalidation bus (Redis pub/sub), as readable
//! text lines.
//!
//! A message only makes the receiver poll earlier. So the gateway works correctly even if messages
//! are lost, duplicated or forged. The parser never panics.

use std::fmt;

#[cfg(test)]
mod tests;

/// The first word of every message: the name of the protocol with its version.
const MAGIC: &str = "weir1";
/// Maximum bytes of a message. Even a message with the longest chain name is shorter.
const BYTES_MAX: usize = 256;

/// A message of the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// The random number that identifies the sending process.
    pub(super) sender: u64,
    /// The chain's name.
    pub(super) chain: &'a str,
    /// What happened to the chain.
    pub(super) subject: Subject,
}

/// What happened to a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// Blocks above `fork` were dropped from the served chain.
    Reorg {
        /// The highest block that remains.
        fork: u64,
    },
    /// A gateway stored a new generation of the chain, so all earlier entries of the chain are
    /// invalid. A generation is a random number that is part of each entry's Redis key.
    Generation,
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { sender, chain, subject } = self;
        match subject {
            Subject::Reorg { fork } => {
                write!(formatter, "{MAGIC} {sender:016x} {chain} reorg {fork}")
            }
            Subject::Generation => write!(formatter, "{MAGIC} {sender:016x} {chain} generation"),
        }
    }
}

/// Parses a message. Returns `None` for other bytes.
pub(super) fn parse(bytes: &[u8]) -> Option<Message<'_>> {
    if bytes.len() > BYTES_MAX {
        return None;
    }
    let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
    if words.next()? != MAGIC {
        return None;
    }
    let sender = words.next().filter(|word| word.len() == 16)?;
    let sender = u64::from_str_radix(sender, 16).ok()?;
    let chain = words.next().filter(|chain| !chain.is_empty())?;
    let subject = match words.next()? {
        "reorg" => Subject::Reorg { fork: words.next()?.parse().ok()? },
        "generation" => Subject::Generation,
        _ => return None,
    };
    words.next().is_none().then_some(Message { sender, chain, subject })
}
