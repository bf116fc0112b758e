//! Goal: each metric is found by its name, and documented once. Method: the list itself, and names
//! that contain dots.

use super::*;

#[test]
fn names_are_found_by_their_pattern() {
    let found = |name: &str| HostMetric::of_sample(name).map(|metric| metric.name);
    assert_eq!(found("cpu_busy"), Some("cpu_busy"));
    assert_eq!(found("disk.nvme0n1.util"), Some("disk.*.util"));
    assert_eq!(found("net.eth0.100.rx_bytes"), Some("net.*.rx_bytes"), "a VLAN");
    assert_eq!(found("process.geth.thread.geth-12.cpu"), Some("process.*.thread.*.cpu"));
    assert_eq!(found("process.geth.cpu"), Some("process.*.cpu"));
    assert_eq!(found("process.geth.thread_max"), Some("process.*.thread_max"));
    assert_eq!(found("process..cpu"), None);
    assert_eq!(found("cpu_busy2"), None);
    assert_eq!(found("disk.sda"), None);
}

#[test]
fn every_metric_is_documented_once() {
    for (index, metric) in METRICS.iter().enumerate() {
        assert!(!metric.meaning.is_empty() && !metric.meaning.ends_with('.'), "{}", metric.name);
        assert!(METRICS[..index].iter().all(|other| other.name != metric.name), "{}", metric.name);
        assert!(!metric.unit.as_str().is_empty());
    }
}
