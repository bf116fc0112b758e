//! Overload control: limits the number of calls of a group that are in flight. A *group* is a set
//! of upstreams that serve the same methods. A call above the limit waits in a queue, or is *shed*:
//! rejected because the upstreams of its group are overloaded.
//!
//! A *permit* allows one call to be in flight. `overload/limiter.rs` finds the limit,
//! `overload/shares.rs` divides permits among clients, and `overload/queue.rs` decides which
//! waiting call goes first. This file defines the *class* of a call, which is its priority.
//! `upstream/overload.rs` hands out permits and rejects calls.

use crate::policy::closed_set::closed_set;

pub mod limiter;
pub mod queue;
pub mod shares;

// `closed_set!` gives each variant the name that metrics use, and an index in arrays.
closed_set! {
    /// Priority of a call, highest first. A higher class is served before a lower one, but each
    /// lower class keeps a minimum share of the permits. Calls of the lowest class are shed first.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Class {
        /// Callers of the tiers that the configuration lists as high.
        High = "high",
        /// All other callers, and heavy calls of `High` callers.
        Normal = "normal",
        /// Callers of the tiers that the configuration lists as low, and heavy calls of `Normal`
        /// callers.
        Low = "low",
    }
}

impl Class {
    /// Returns the next lower class; `Low` for `Low`.
    fn next_lower(self) -> Class {
        match self {
            Class::High => Class::Normal,
            Class::Normal | Class::Low => Class::Low,
        }
    }
}

closed_set! {
    /// Reason for shedding a call.
    pub enum Shed {
        /// The queue was full, and every call in it had a higher class.
        Full = "full",
        /// A newer call of the same class or a higher one displaced the call from the queue.
        Displaced = "displaced",
        /// The call waited longer than allowed.
        Late = "late",
    }
}

/// Rules for the class of a call. The configuration assigns a tier, a label such as `gold`, to keys
/// and tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Priorities {
    /// Tiers with high priority.
    pub high_tiers: Vec<Box<str>>,
    /// Tiers with low priority.
    pub low_tiers: Vec<Box<str>>,
    /// A call of at least this weight is one class lower than other calls of its caller. The weight
    /// is the approximate cost of the method, from the method table.
    pub heavy_weight: u32,
}

impl Priorities {
    /// Returns the class of a call of this weight by a caller of this tier.
    pub fn find_class(&self, tier: Option<&str>, weight: u32) -> Class {
        let is_listed_in = |tiers: &[Box<str>]| {
            tier.is_some_and(|tier| tiers.iter().any(|listed| **listed == *tier))
        };
        let class = if is_listed_in(&self.high_tiers) {
            Class::High
        } else if is_listed_in(&self.low_tiers) {
            Class::Low
        } else {
            Class::Normal
        };
        if weight >= self.heavy_weight { class.next_lower() } else { class }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a call's class follows from its caller's tier and from the weight of its method.

    use super::*;

    #[test]
    fn the_tier_sets_the_class_and_a_heavy_method_lowers_it() {
        let priorities = Priorities {
            high_tiers: vec!["gold".into()],
            low_tiers: vec!["free".into()],
            heavy_weight: 10,
        };
        let class = |tier, weight| priorities.find_class(tier, weight);
        assert_eq!(class(Some("gold"), 1), Class::High);
        assert_eq!(class(Some("gold"), 10), Class::Normal);
        assert_eq!(class(Some("silver"), 9), Class::Normal);
        assert_eq!(class(None, 1), Class::Normal);
        assert_eq!(class(None, 50), Class::Low);
        assert_eq!(class(Some("free"), 1), Class::Low);
        assert_eq!(class(Some("free"), 99), Class::Low);
    }
}
