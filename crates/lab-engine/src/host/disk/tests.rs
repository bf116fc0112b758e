//! Goal: disk metrics are right, also after counters wrap. Method: lines of diskstats made by hand.

use super::*;

/// Returns the values of two lines of diskstats that were read `ms` milliseconds apart. The time
/// and the host of the sample do not matter here.
fn values(before: &str, now: &str, ms: u64) -> Vec<(String, f64)> {
    let (before, now) = (DiskStat::from_line(before).unwrap(), DiskStat::from_line(now).unwrap());
    let mut values = Values::default();
    add_values(&now, &before, Duration::from_millis(ms), &mut values);
    values.sample(0.0, "x").values
}

fn get(values: &[(String, f64)], name: &str) -> Option<f64> {
    values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

#[test]
fn metrics_follow_their_formulas() {
    // The fields after the name: reads, merged reads, sectors read, ms of reads; the same for
    // writes; requests in flight, busy ms, and ms of all requests in the queue.
    let before = "254 0 vda 100 0 1000 50 200 0 4000 70 0 1000 2000 0 0 0 0 0 0";
    let now = "254 0 vda 110 0 1200 90 230 0 4400 150 3 1200 2600 0 0 0 0 0 0";
    let values = values(before, now, 250);
    assert_eq!(get(&values, "disk.vda.util"), Some(0.8));
    assert_eq!(get(&values, "disk.vda.queue"), Some(2.4));
    assert_eq!(get(&values, "disk.vda.await_ms"), Some(3.0));
    assert_eq!(get(&values, "disk.vda.reads"), Some(40.0));
    assert_eq!(get(&values, "disk.vda.read_bytes"), Some(200.0 * 512.0 * 4.0));
    assert_eq!(get(&values, "disk.vda.write_bytes"), Some(400.0 * 512.0 * 4.0));
}

#[test]
fn no_wait_time_without_requests() {
    let line = "254 0 vda 100 0 1000 50 200 0 4000 70 0 1000 2000";
    let values = values(line, line, 100);
    assert_eq!(get(&values, "disk.vda.await_ms"), None, "nothing was done: no time of it");
    assert_eq!(get(&values, "disk.vda.util"), Some(0.0));
}

#[test]
fn counters_wrap_at_32_bits() {
    assert_eq!(counter_growth(100, 4_294_967_290), 106);
    assert_eq!(counter_growth(100, 5_000_000_000), 0, "a 64-bit counter does not wrap");
    assert_eq!(counter_growth(0, 70), 0, "the device is a new one");
    assert_eq!(counter_growth(9, 4), 5);
}

#[test]
fn partitions_and_loops_are_left_out() {
    let mut disks = Disks::default();
    assert!(!disks.is_whole("loop0"));
    let partition = std::fs::read_dir("/sys/class/block")
        .unwrap()
        .flatten()
        .find(|entry| entry.path().join("partition").exists());
    if let Some(partition) = partition {
        assert!(!disks.is_whole(&partition.file_name().to_string_lossy()));
    }
}
