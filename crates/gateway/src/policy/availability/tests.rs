//! Goal: one report for each change of a service that many clients use.

use super::*;

#[test]
fn each_change_is_reported_once() {
    let mut reported = ReportedAvailability::default();
    let mut record = |finding| reported.record("redis://one", finding);
    assert_eq!(record(Finding::ProbeFailed), Some(false), "down at the start");
    assert_eq!(record(Finding::ProbeFailed), None);
    assert_eq!(record(Finding::Up), Some(true));
    // Another client has probed before the service came back.
    assert_eq!(record(Finding::ProbeFailed), None);
    assert_eq!(record(Finding::Up), None, "clients of a new configuration are no news");
    assert_eq!(record(Finding::Down), Some(false));
    assert_eq!(record(Finding::Down), None);
    assert_eq!(record(Finding::Up), Some(true));
}

#[test]
fn an_outage_that_only_probes_find_is_reported() {
    let mut reported = ReportedAvailability::default();
    let mut record = |finding| reported.record("redis://one", finding);
    assert_eq!(record(Finding::Up), Some(true));
    for _ in 1..FAILED_PROBES_MAX {
        assert_eq!(record(Finding::ProbeFailed), None);
    }
    assert_eq!(record(Finding::ProbeFailed), Some(false));
    assert_eq!(record(Finding::ProbeFailed), None);
    assert_eq!(record(Finding::Up), Some(true));
    assert_eq!(record(Finding::ProbeFailed), None, "the probes in a row are counted anew");
}

#[test]
fn another_address_is_another_service() {
    let mut reported = ReportedAvailability::default();
    assert_eq!(reported.record("redis://one", Finding::Up), Some(true));
    assert_eq!(reported.record("redis://two", Finding::ProbeFailed), Some(false));
    assert_eq!(reported.record("redis://two", Finding::Up), Some(true));
}
