//! Goal: the ledger survives reloads and restarts, a file is read as written or rejected, and a
//! rejection reports the end of the month. Method: configuration texts, files in a temporary
//! folder, explicit times.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::config::quota::file;
use crate::config::quota::file::QuotaUsage;
use crate::io::clock::unix_seconds;
use crate::policy::quota::UsageReport;

/// 2026-11-30T23:59:50Z.
const NEARLY_DECEMBER: u64 = 1_796_083_190;

/// Returns a configuration with the API key `free`, which has no quota, and the key `key` with a
/// quota of 10 units. `more` holds further lines of `[quota]` and further tables.
fn text(key: &str, more: &str) -> String {
    format!(
        "[[upstream]]\nurl = \"http://127.0.0.1:8545\"\n[quota]\nfile = \"quotas.json\"\n{more}\n\
         [[key]]\nname = \"free\"\nsecret = \"another long secret\"\n\
         [[key]]\nname = \"{key}\"\nsecret = \"a long enough secret\"\nquota = 10\n"
    )
}

fn config(folder: &Path, text: &str) -> Config {
    let config = Config::from_text("test", text, folder, &|_| None);
    config.unwrap_or_else(|faults| panic!("{faults}"))
}

fn grant(config: &Config, index: usize) -> &Grant {
    &config.access.keys[index].grant
}

/// Returns a number of gateways.
fn gateways(number: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(number))
}

fn month() -> Month {
    Month::containing(NEARLY_DECEMBER)
}

#[test]
fn a_rejection_reports_the_end_of_the_month() {
    let folder = TempDir::new().unwrap();
    let config = config(folder.path(), &text("paid", "cost = \"call\""));
    let quotas = Quotas::new(None, &config, &gateways(2)).unwrap();
    let charge = |key_index, second| quotas.charge(grant(&config, key_index), None, second);
    for _ in 0..10 {
        assert!(charge(1, NEARLY_DECEMBER).is_ok());
    }
    let refused = charge(1, NEARLY_DECEMBER + 3).unwrap_err();
    assert_eq!(
        (refused.kind, refused.retry_after),
        (FailureKind::OverQuota, Some(Duration::from_secs(7)))
    );
    assert!((0..100).all(|_| charge(0, NEARLY_DECEMBER).is_ok()), "a key without a quota");
    assert!(charge(1, NEARLY_DECEMBER + 10).is_ok(), "a month later");
    assert_eq!(quotas.usage(NEARLY_DECEMBER + 10), [None, Some(KeyUsage { used: 1, units: 10 })]);
    assert_eq!(quotas.ledger.refused.load(Ordering::Relaxed), 1);
}

#[test]
fn calls_count_their_weight() {
    let folder = TempDir::new().unwrap();
    let config = config(folder.path(), &text("paid", ""));
    let quotas = Quotas::new(None, &config, &gateways(2)).unwrap();
    let family = wire::method::methods_of(wire::family::Family::Ethereum);
    let light = family.method("eth_blockNumber").unwrap();
    let heavy = family.methods().find(|method| method.weight > 10).unwrap();
    assert!(quotas.charge(grant(&config, 1), Some(heavy), NEARLY_DECEMBER).is_err());
    assert!(quotas.charge(grant(&config, 1), Some(light), NEARLY_DECEMBER).is_ok());
    let usage = quotas.usage(NEARLY_DECEMBER)[1].unwrap();
    assert_eq!(usage.used, u64::from(light.weight).max(1));
}

#[test]
fn usage_survives_reloads_even_of_a_removed_key() {
    let folder = TempDir::new().unwrap();
    let [paid, other] = ["paid", "other"].map(|key| text(key, "cost = \"call\""));
    let first = config(folder.path(), &paid);
    let quotas = Quotas::new(None, &first, &gateways(2)).unwrap();
    for _ in 0..10 {
        quotas.charge(grant(&first, 1), None, NEARLY_DECEMBER).unwrap();
    }
    let second = config(folder.path(), &other);
    let quotas = Quotas::new(Some(&quotas), &second, &gateways(2)).unwrap();
    assert!(quotas.charge(grant(&second, 1), None, NEARLY_DECEMBER).is_ok());
    let third = config(folder.path(), &paid);
    let quotas = Quotas::new(Some(&quotas), &third, &gateways(2)).unwrap();
    assert!(quotas.charge(grant(&third, 1), None, NEARLY_DECEMBER).is_err());
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("quotas.json");
    assert_eq!(file::read(&path).unwrap(), QuotaUsage::default());
    let keys = BTreeMap::from([("a".into(), 1), ("b:c".into(), u64::MAX)]);
    let usage = QuotaUsage { month: month(), keys };
    file::write(&path, &usage).unwrap();
    assert_eq!(file::read(&path).unwrap(), usage);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        1,
        "a temporary file was left behind"
    );
    for broken in
        ["", "{}", r#"{"month":"2026-13","units":{}}"#, r#"{"month":"2026-11","units":{"a":-1}}"#]
    {
        std::fs::write(&path, broken).unwrap();
        assert!(file::read(&path).is_err(), "{broken}");
        let faults = Config::from_text("test", &text("paid", ""), folder.path(), &|_| None);
        let faults = faults.unwrap_err().to_string();
        assert!(faults.contains("quota.file") && faults.contains("cannot be read"), "{faults}");
    }
}

#[test]
fn a_restart_continues_from_the_file_and_two_writers_lose_nothing() {
    let folder = TempDir::new().unwrap();
    let now = unix_seconds();
    let text = text("paid", "cost = \"call\"");
    let first = config(folder.path(), &text);
    let quotas = Quotas::new(None, &first, &gateways(2)).unwrap();
    for _ in 0..6 {
        quotas.charge(grant(&first, 1), None, now).unwrap();
    }
    let path = folder.path().join("quotas.json");
    assert!(crate::runtime::quota::write_ledger(&quotas.ledger, &path));
    // A second process takes over, and the first one writes its last usage.
    let second = config(folder.path(), &text);
    let second_quotas = Quotas::new(None, &second, &gateways(2)).unwrap();
    quotas.charge(grant(&first, 1), None, now).unwrap();
    assert!(crate::runtime::quota::write_ledger(&quotas.ledger, &path));
    assert!(crate::runtime::quota::write_ledger(&second_quotas.ledger, &path));
    assert_eq!(second_quotas.usage(now)[1].unwrap().used, 7);
    assert!(
        (0..4).filter(|_| second_quotas.charge(grant(&second, 1), None, now).is_ok()).count() == 3
    );
}

#[test]
fn a_file_in_a_missing_folder_and_no_file_are_errors() {
    let folder = TempDir::new().unwrap();
    let config = config(folder.path(), &text("paid", ""));
    let quotas = Quotas::new(None, &config, &gateways(2)).unwrap();
    assert!(!crate::runtime::quota::write_ledger(
        &quotas.ledger,
        &folder.path().join("nowhere/quotas.json")
    ));
    assert_eq!(quotas.ledger.write_failures.load(Ordering::Relaxed), 1);
    let faults = Config::from_text(
        "test",
        &text("paid", "").replace("file = \"quotas.json\"", ""),
        folder.path(),
        &|_| None,
    );
    let faults = faults.unwrap_err().to_string();
    assert!(faults.contains("no file stores its usage"), "{faults}");
}

#[test]
fn a_shared_quota_is_a_share_until_the_first_report() {
    let folder = TempDir::new().unwrap();
    let redis =
        "cost = \"call\"\nshared = true\n[redis]\nurl = \"redis://127.0.0.1\"\ngateways = 2\n";
    let config = config(folder.path(), &text("paid", redis));
    let number = gateways(5);
    let quotas = Quotas::new(None, &config, &number).unwrap();
    let charge = || quotas.charge(grant(&config, 1), None, NEARLY_DECEMBER).is_ok();
    assert_eq!((0..20).filter(|_| charge()).count(), 2);
    // Other gateways have stopped.
    number.store(2, Ordering::Relaxed);
    assert_eq!((0..20).filter(|_| charge()).count(), 3);
    assert!(quotas.is_local_only());
    quotas.ledger.unreachable.store(false, Ordering::Relaxed);
    assert_eq!((0..20).filter(|_| charge()).count(), 5);
    let entry = &quotas.keys[1].as_ref().unwrap().entry;
    let report = entry.account.lock().build_report();
    assert_eq!(report, UsageReport { month: month(), unreported: 10, used_min: 10 });
}
