//! Goal: metrics of the exporter get the names and units that the metrics of this host have (the
//! host of the load generator). Method: two pages made by hand, two seconds apart.

use lab_model::metrics::host::HostMetric;

use super::*;

/// Time between the two pages.
const ELAPSED: Duration = Duration::from_secs(2);

const BEFORE: &str = "\
node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 100
node_cpu_seconds_total{cpu=\"0\",mode=\"user\"} 10
node_cpu_seconds_total{cpu=\"1\",mode=\"idle\"} 100
node_cpu_seconds_total{cpu=\"1\",mode=\"user\"} 10
node_pressure_io_waiting_seconds_total 3
node_pressure_io_stalled_seconds_total 1
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 250
node_netstat_TcpExt_ListenOverflows 5
node_disk_io_time_seconds_total{device=\"sda\"} 1
node_disk_io_time_weighted_seconds_total{device=\"sda\"} 1
node_disk_reads_completed_total{device=\"sda\"} 10
node_disk_writes_completed_total{device=\"sda\"} 10
node_disk_read_time_seconds_total{device=\"sda\"} 1
node_disk_write_time_seconds_total{device=\"sda\"} 1
node_disk_io_time_seconds_total{device=\"sdb\"} 0
node_network_receive_bytes_total{device=\"eth0\"} 0
node_network_transmit_bytes_total{device=\"eth0\"} 0
node_network_speed_bytes{device=\"eth0\"} 1000
";

const NOW: &str = "\
node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 100
node_cpu_seconds_total{cpu=\"0\",mode=\"user\"} 12
node_cpu_seconds_total{cpu=\"1\",mode=\"idle\"} 102
node_cpu_seconds_total{cpu=\"1\",mode=\"user\"} 10
node_pressure_io_waiting_seconds_total 4
node_pressure_io_stalled_seconds_total 1.5
node_memory_MemTotal_bytes 1000
node_memory_MemAvailable_bytes 200
node_netstat_TcpExt_ListenOverflows 9
node_disk_io_time_seconds_total{device=\"sda\"} 2.8
node_disk_io_time_weighted_seconds_total{device=\"sda\"} 9
node_disk_reads_completed_total{device=\"sda\"} 20
node_disk_writes_completed_total{device=\"sda\"} 20
node_disk_read_time_seconds_total{device=\"sda\"} 1.1
node_disk_write_time_seconds_total{device=\"sda\"} 1.1
node_disk_io_time_seconds_total{device=\"sdb\"} 0
node_network_receive_bytes_total{device=\"eth0\"} 1800
node_network_transmit_bytes_total{device=\"eth0\"} 200
node_network_speed_bytes{device=\"eth0\"} 1000
";

#[test]
fn metrics_get_the_names_and_units_of_this_host() {
    let (before, now) = (Scrape::parse(BEFORE), Scrape::parse(NOW));
    let mut values = Values::default();
    now.add_values(&before, ELAPSED, &mut values);
    let (at, host) = (0.0, "target");
    let values: BTreeMap<String, f64> = values.sample(at, host).values.into_iter().collect();
    for (name, expected) in [
        ("cores", 2.0),
        ("cpu_user", 0.5),
        ("cpu_busy", 0.5),
        ("cpu_core_max", 1.0),
        ("psi_io_some", 0.5),
        ("psi_io_full", 0.25),
        ("memory_available_share", 0.2),
        ("listen_overflows", 2.0),
        // The disk was busy for 1.8 of 2 s, and 20 requests took 0.2 s.
        ("disk.sda.util", 0.9),
        ("disk.sda.queue", 4.0),
        ("disk.sda.await_ms", 10.0),
        ("net.eth0.rx_bytes", 900.0),
        ("net.eth0.util", 0.9),
    ] {
        let value = values.get(name).unwrap_or_else(|| panic!("{name}: {values:?}"));
        assert!((value - expected).abs() < 1e-9, "{name}: {value}");
    }
    // The disk `sdb` has had no IO since the boot.
    assert!(!values.keys().any(|name| name.contains("sdb")), "it was never used");
    // The page has the pressure of IO, but not of the CPU.
    assert!(!now.has_pressure(), "without that of the CPU it is not whole");
}

#[test]
fn every_metric_is_documented() {
    let (before, now) = (Scrape::parse(BEFORE), Scrape::parse(NOW));
    let mut values = Values::default();
    now.add_values(&before, ELAPSED, &mut values);
    let (at, host) = (0.0, "target");
    for (name, _) in values.sample(at, host).values {
        assert!(HostMetric::of_sample(&name).is_some(), "{name}");
    }
}

#[test]
fn another_page_has_no_cores() {
    assert_eq!(Scrape::parse("<html>hello</html>").cores, 0.0);
}
