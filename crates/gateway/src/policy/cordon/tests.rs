//! Goal: a cordon ends when it expires, and the last usable upstream of a group is recognised.

use std::time::Duration;

use super::{Cordon, DURATION_MAX, Member, check};
use crate::policy::health::HealthState;

const USABLE: Member =
    Member { health: HealthState::Healthy, serves_other_chain: false, cordoned: false };

#[test]
fn a_cordon_ends_when_it_expires() {
    let cordon = Cordon { reason: None, until: Duration::from_secs(60) };
    assert!(cordon.is_active(Duration::from_millis(59_999)));
    assert!(!cordon.is_active(Duration::from_secs(60)));
}

#[test]
fn only_healthy_and_lagging_upstreams_are_usable() {
    let until = Duration::from_secs(1);
    let unusable = [
        Member { serves_other_chain: true, ..USABLE },
        Member { cordoned: true, ..USABLE },
        Member { health: HealthState::Probing, ..USABLE },
        Member { health: HealthState::Ejected { until }, ..USABLE },
        Member { health: HealthState::Paused { until }, ..USABLE },
    ];
    assert!(!unusable.into_iter().any(Member::is_usable));
    for usable in [USABLE, Member { health: HealthState::Lagging, ..USABLE }] {
        assert!(usable.is_usable(), "{usable:?}");
    }
}

#[test]
fn reasons_and_durations_are_bounded() {
    let hour = Duration::from_secs(3600);
    assert_eq!(check(None, hour), None);
    assert_eq!(check(Some(&"ö".repeat(200)), DURATION_MAX), None);
    for (reason, duration) in [
        ("ö".repeat(201), hour),
        ("two\nlines".to_owned(), hour),
        ("\u{1b}[31mred".to_owned(), hour),
        (String::new(), Duration::ZERO),
        (String::new(), DURATION_MAX + Duration::from_millis(1)),
    ] {
        assert!(check(Some(&reason), duration).is_some(), "{reason} {duration:?}");
    }
}
