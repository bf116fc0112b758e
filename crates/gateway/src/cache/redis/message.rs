//! What replicas tell each other through Redis: a line of text, so that it can be read by hand.
//!
//! Messages only make a replica look earlier at what it would see by itself; each may be lost,
//! come twice, or be a lie. Reading them never panics.

use std::fmt;

#[cfg(test)]
mod tests;

const MARK: &str = "weir1";
/// Longer than any message that we write: the longest name of a chain, and room.
const BYTES_MAX: usize = 256;

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message<'a> {
    /// Who sent it: a random number of the process.
    pub(super) sender: u64,
    /// The chain that it is about.
    pub(super) chain: &'a str,
    /// What happened to it.
    pub(super) news: News,
}

/// What happened to a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Blocks above `fork` were dropped from the served chain.
    Reorg {
        /// Highest block kept.
        fork: u64,
    },
    /// Everything that was stored for it is void; there is a new generation.
    Generation,
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Message { sender, chain, news } = self;
        match news {
            News::Reorg { fork } => write!(formatter, "{MARK} {sender:016x} {chain} reorg {fork}"),
            News::Generation => write!(formatter, "{MARK} {sender:016x} {chain} generation"),
        }
    }
}

/// Reads a message; none if these bytes are not one.
pub(super) fn read(bytes: &[u8]) -> Option<Message<'_>> {
    if bytes.len() > BYTES_MAX {
        return None;
    }
    let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
    if words.next()? != MARK {
        return None;
    }
    let sender = words.next().filter(|word| word.len() == 16)?;
    let sender = u64::from_str_radix(sender, 16).ok()?;
    let chain = words.next().filter(|chain| !chain.is_empty())?;
    let news = match words.next()? {
        "reorg" => News::Reorg { fork: words.next()?.parse().ok()? },
        "generation" => News::Generation,
        _ => return None,
    };
    words.next().is_none().then_some(Message { sender, chain, news })
}
