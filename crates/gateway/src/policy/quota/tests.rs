//! Goal: months follow the calendar, usage is never lost before the end of the month, and gateways
//! together stay within a quota. Method: dates computed by hand, all seconds around the ends of
//! months, and random steps in virtual time.

use proptest::prelude::*;

use super::*;

const WHOLE: Allowance = Allowance::Whole;

fn second(text: &str) -> u64 {
    text.parse::<jiff::Timestamp>().unwrap().as_second() as u64
}

#[test]
fn months_begin_and_end_as_in_the_calendar() {
    for (within, shown, end) in [
        ("1970-01-01T00:00:00Z", "1970-01", "1970-02-01T00:00:00Z"),
        ("2024-02-29T23:59:59Z", "2024-02", "2024-03-01T00:00:00Z"),
        ("2026-02-28T23:59:59Z", "2026-02", "2026-03-01T00:00:00Z"),
        ("2026-12-31T23:59:59Z", "2026-12", "2027-01-01T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "2027-01", "2027-02-01T00:00:00Z"),
        ("2100-02-28T12:00:00Z", "2100-02", "2100-03-01T00:00:00Z"),
    ] {
        let month = Month::containing(second(within));
        assert_eq!((month.to_string(), month.end()), (shown.to_owned(), second(end)), "{within}");
        assert_eq!(Month::parse(shown), Some(month));
    }
    for text in ["", "2026", "2026-13", "2026-00", "2026-1", "1969-12", "x-01", "2026-11-01"] {
        assert_eq!(Month::parse(text), None, "{text}");
    }
    // Even the largest time belongs to a month.
    assert_eq!(Month::containing(u64::MAX), Month::containing(Month::containing(u64::MAX).end()));
}

#[test]
fn each_month_ends_where_the_next_begins() {
    let mut month = Month::containing(0);
    for _ in 0..12 * 400 {
        let end = month.end();
        assert_eq!(Month::containing(end - 1), month);
        let next = Month::containing(end);
        assert!(next > month);
        month = next;
    }
}

#[test]
fn a_quota_is_used_up_and_comes_back_with_the_month() {
    let (november, december) = (Month::parse("2026-11").unwrap(), Month::parse("2026-12").unwrap());
    let mut account = Account::default();
    assert!(account.charge(november, 60, 100, WHOLE));
    assert!(!account.charge(november, 41, 100, WHOLE), "a call that does not fit is not charged");
    assert!(account.charge(november, 40, 100, WHOLE));
    assert!(!account.charge(november, 1, 100, WHOLE));
    assert_eq!((account.used(november), account.used(december)), (100, 0));
    assert!(account.charge(december, 1, 100, WHOLE));
    assert!(account.charge(november, 98, 100, WHOLE), "a clock set back");
    assert!(!account.charge(november, 2, 100, WHOLE), "a clock set back gives nothing back");
    assert_eq!((account.build_report().month, account.used(november)), (december, 99));
    assert!(!account.charge(december, 1, 0, WHOLE), "a quota of none");
    assert!(account.charge(december, 1, 1000, WHOLE), "a quota that was raised");
}

#[test]
fn without_contact_a_gateway_uses_its_share_of_the_unused_quota() {
    let month = Month::containing(0);
    let mut account = Account::new(month, 400);
    let alone = Allowance::Share(3);
    let passed = (0..1000).filter(|_| account.charge(month, 1, 1000, alone)).count();
    assert_eq!(passed, 200);
    // The report is confirmed. The other gateways have used their shares too.
    account.confirm_report(account.build_report(), 1000);
    assert!(!account.charge(month, 1, 1000, WHOLE));
}

#[test]
fn usage_during_a_report_is_in_the_next_report() {
    let month = Month::containing(0);
    let mut account = Account::new(month, 10);
    assert!(account.charge(month, 5, 100, WHOLE));
    let report = account.build_report();
    assert_eq!(report, UsageReport { month, unreported: 5, used_min: 15 });
    assert!(account.charge(month, 7, 100, WHOLE));
    account.confirm_report(report, 40);
    assert_eq!(account.build_report(), UsageReport { month, unreported: 7, used_min: 47 });
    // A confirmation by a store that has lost its data changes nothing. A confirmation of a past
    // month's report is ignored.
    account.confirm_report(account.build_report(), 0);
    assert_eq!(account.used(month), 47);
    let next = Month::containing(month.end());
    assert!(account.charge(next, 1, 100, WHOLE));
    account.confirm_report(report, 99);
    assert_eq!(account.used(next), 1);
}

#[test]
fn a_quota_file_never_lowers_known_usage() {
    let (month, next) = (Month::parse("2026-11").unwrap(), Month::parse("2026-12").unwrap());
    let mut account = Account::new(month, 10);
    assert!(account.charge(month, 5, 100, WHOLE));
    account.raise(month, 12);
    assert_eq!(account.used(month), 15);
    account.raise(month, 40);
    assert_eq!(account.build_report(), UsageReport { month, unreported: 5, used_min: 40 });
    account.raise(next, 3);
    account.raise(month, 99);
    assert_eq!((account.used(next), account.build_report().unreported), (3, 0));
}

proptest! {
    /// Gateways that report in turns exceed a quota only by the usage between two reports. While
    /// the gateways cannot report, they do not exceed the quota.
    #[test]
    fn gateways_together_stay_within_the_quota(
        steps in prop::collection::vec((0usize..3, 0u8..8, 1u64..20), 1..600),
        quota in 0u64..2000,
    ) {
        let month = Month::containing(0);
        let mut accounts = [Account::default(); 3];
        let (mut total, mut passed, mut outage_units, mut outage_units_max) = (0u64, 0u64, 0u64, 0u64);
        // If `step` is 0, all gateways report. Otherwise the gateway at `index` charges a call.
        for (index, step, cost) in steps {
            if step == 0 {
                outage_units = 0;
                // Each gateway reports twice: in the second round the first gateways also get the
                // usage of the last ones.
                for index in [0, 1, 2, 0, 1, 2] {
                    let account: &mut Account = &mut accounts[index];
                    let report = account.build_report();
                    total = total.saturating_add(report.unreported).max(report.used_min);
                    account.confirm_report(report, total);
                }
                prop_assert_eq!(total, passed, "units were lost or counted twice");
            } else if accounts[index].charge(month, cost, quota, WHOLE) {
                passed += cost;
                outage_units += cost;
                outage_units_max = outage_units_max.max(outage_units);
            }
            prop_assert!(passed <= quota + outage_units_max);
        }
        // From now on no gateway can reach another. At the start all gateways know the same usage.
        let mut accounts = [Account::new(month, total.min(quota)); 3];
        let total_before = total.min(quota);
        let mut more = 0;
        for account in &mut accounts {
            more += (0..3000).filter(|_| account.charge(month, 1, quota, Allowance::Share(3))).count();
        }
        prop_assert!(total_before + more as u64 <= quota);
    }
}
