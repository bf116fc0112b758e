//! What becomes of calls for which the upstreams have no room: how many may be under way at the
//! upstreams of a group, who waits, who is served first, and who is told to come back later.
//!
//! How many is `overload/limiter.rs`; how places are divided among clients is `overload/shares.rs`;
//! the queue in front is `overload/queue.rs`; here is the class of a call. A call below the limit
//! meets none of this. Places are given and taken, and callers answered, in `upstream/overload.rs`.

use crate::policy::closed_set::closed_set;

pub mod limiter;
pub mod queue;
pub mod shares;

closed_set! {
    /// Who goes first, best first. A better class is served before a worse one, but for the share
    /// that the worse one keeps; the worse one is shed first.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Class {
        /// Callers of the tiers that the configuration puts first.
        High = "high",
        /// Everybody else, and heavy calls of the former.
        Normal = "normal",
        /// Callers of the tiers that the configuration puts last, and heavy calls of everybody
        /// else.
        Low = "low",
    }
}

impl Class {
    fn one_worse(self) -> Class {
        match self {
            Class::High => Class::Normal,
            Class::Normal | Class::Low => Class::Low,
        }
    }
}

closed_set! {
    /// Why a call was told to come back later.
    pub enum Shed {
        /// It came when as many waited as may, none of them of a worse class.
        Full = "full",
        /// It waited and had to give way to a better or a newer one.
        Displaced = "displaced",
        /// It had waited long enough.
        Late = "late",
    }
}

/// What decides the class of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Tiers of keys whose calls go first.
    pub high_tiers: Vec<Box<str>>,
    /// Tiers of keys whose calls go last.
    pub low_tiers: Vec<Box<str>>,
    /// A call that weighs at least this much is one class worse than its caller's others.
    pub heavy_weight: u32,
}

impl Priorities {
    /// The class of a call of this weight by a caller of this tier.
    pub fn class(&self, tier: Option<&str>, weight: u32) -> Class {
        let is_in =
            |tiers: &[Box<str>]| tier.is_some_and(|tier| tiers.iter().any(|own| **own == *tier));
        let class = if is_in(&self.high_tiers) {
            Class::High
        } else if is_in(&self.low_tiers) {
            Class::Low
        } else {
            Class::Normal
        };
        if weight >= self.heavy_weight { class.one_worse() } else { class }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a call's class follows from its caller's tier and from what it costs an upstream.

    use super::*;

    #[test]
    fn the_tier_gives_the_class_and_weight_takes_one_away() {
        let priorities = Priorities {
            high_tiers: vec!["gold".into()],
            low_tiers: vec!["free".into()],
            heavy_weight: 10,
        };
        let class = |tier, weight| priorities.class(tier, weight);
        assert_eq!(class(Some("gold"), 1), Class::High);
        assert_eq!(class(Some("gold"), 10), Class::Normal);
        assert_eq!(class(Some("silver"), 9), Class::Normal);
        assert_eq!(class(None, 1), Class::Normal);
        assert_eq!(class(None, 50), Class::Low);
        assert_eq!(class(Some("free"), 1), Class::Low);
        assert_eq!(class(Some("free"), 99), Class::Low);
    }
}
