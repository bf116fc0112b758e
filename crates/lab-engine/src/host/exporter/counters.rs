//! Reads metrics from a node-exporter's page, and converts them to values with our metric names.
//!
//! `host.rs` explains `host!`.

use std::collections::BTreeMap;
use std::time::Duration;

use lab_model::metrics::host::host;

use crate::host::machine::{CpuTimes, StallMetrics, WHOLE_MACHINE, add_stalls};
use crate::host::text::StallMicros;
use crate::host::values::{Values, float, larger, rate, share};

use super::parse::{ParsedSample, samples};

/// Maximum number of disks, and also of network devices. Further devices are ignored.
const DEVICES_MAX: usize = 32;

/// The values of one scrape. Other metrics of the page are ignored.
#[derive(Clone, Debug, Default)]
pub(in crate::host) struct Scrape {
    /// Number of logical cores of the host.
    pub(in crate::host) cores: f64,
    /// CPU time of each logical core, by the number of the core.
    cpu_times: BTreeMap<String, CpuTimes>,
    /// Values of the metrics without labels, by the exporter's name.
    plain: BTreeMap<&'static str, f64>,
    /// Values of each disk, by the name of the disk.
    disks: BTreeMap<String, DeviceValues>,
    /// Values of each network device, by the name of the device.
    network_devices: BTreeMap<String, DeviceValues>,
}

/// Values of one device, by the exporter's metric name.
type DeviceValues = BTreeMap<&'static str, f64>;

/// Names of the metrics without labels.
const PLAIN: &[&str] = &[
    "node_context_switches_total",
    "node_filefd_allocated",
    "node_filefd_maximum",
    "node_load1",
    "node_memory_MemAvailable_bytes",
    "node_memory_MemTotal_bytes",
    "node_memory_SwapFree_bytes",
    "node_memory_SwapTotal_bytes",
    "node_netstat_TcpExt_ListenDrops",
    "node_netstat_TcpExt_ListenOverflows",
    "node_netstat_Tcp_OutSegs",
    "node_netstat_Tcp_RetransSegs",
    "node_pressure_cpu_waiting_seconds_total",
    "node_pressure_io_stalled_seconds_total",
    "node_pressure_io_waiting_seconds_total",
    "node_pressure_irq_stalled_seconds_total",
    "node_pressure_memory_stalled_seconds_total",
    "node_pressure_memory_waiting_seconds_total",
    "node_procs_blocked",
    "node_procs_running",
    "node_sockstat_TCP_inuse",
    "node_sockstat_TCP_mem_bytes",
    "node_sockstat_TCP_orphan",
    "node_sockstat_TCP_tw",
    "node_vmstat_pgmajfault",
    "node_vmstat_pswpin",
    "node_vmstat_pswpout",
];

/// Names of the metrics of each disk.
const DISK: &[&str] = &[
    "node_disk_io_time_seconds_total",
    "node_disk_io_time_weighted_seconds_total",
    "node_disk_read_bytes_total",
    "node_disk_read_time_seconds_total",
    "node_disk_reads_completed_total",
    "node_disk_write_time_seconds_total",
    "node_disk_writes_completed_total",
    "node_disk_written_bytes_total",
];

/// Names of the metrics of each network device.
const NETWORK: &[&str] = &[
    "node_network_receive_bytes_total",
    "node_network_receive_drop_total",
    "node_network_receive_errs_total",
    "node_network_receive_fifo_total",
    "node_network_speed_bytes",
    "node_network_transmit_bytes_total",
    "node_network_transmit_drop_total",
    "node_network_transmit_errs_total",
    "node_network_transmit_fifo_total",
];

/// Assumed size of a swapped page. The exporter reports the number of pages, but not their size.
const SWAP_PAGE_BYTES: f64 = 4_096.0;

impl Scrape {
    /// Parses the text of the exporter's `/metrics`.
    pub(in crate::host) fn parse(page: &str) -> Scrape {
        let mut scrape = Scrape::default();
        for sample in samples(page) {
            if sample.name == "node_cpu_seconds_total" {
                scrape.add_cpu_time(&sample);
            } else if let Some(name) = find_name(PLAIN, sample.name) {
                scrape.plain.insert(name, sample.value);
            } else if let Some(name) = find_name(DISK, sample.name) {
                add_device_value(&mut scrape.disks, &sample, name);
            } else if let Some(name) = find_name(NETWORK, sample.name) {
                add_device_value(&mut scrape.network_devices, &sample, name);
            }
        }
        scrape.cores = float(scrape.cpu_times.len() as u64);
        scrape
    }

    /// Stores the CPU time of one core in one state.
    fn add_cpu_time(&mut self, sample: &ParsedSample<'_>) {
        let Some((cpu, mode)) = sample.label("cpu").zip(sample.label("mode")) else { return };
        self.cpu_times.entry(cpu.to_owned()).or_default().set(mode, sample.value);
    }

    /// Adds the values of the time since `previous`, which was scraped `elapsed` earlier.
    pub(in crate::host) fn add_values(
        &self,
        previous: &Scrape,
        elapsed: Duration,
        values: &mut Values,
    ) {
        values.add(host!("cores"), self.cores);
        self.add_cpu(previous, values);
        self.add_gauges(values);
        self.add_rates(previous, elapsed, values);
        self.add_pressure(previous, elapsed, values);
        for (name, now) in &self.disks {
            if let Some(previous) = previous.disks.get(name) {
                add_disk(name, &DeviceRates { now, previous, elapsed }, values);
            }
        }
        for (name, now) in &self.network_devices {
            if let Some(previous) = previous.network_devices.get(name) {
                add_network_device(name, &DeviceRates { now, previous, elapsed }, values);
            }
        }
    }

    /// Adds the shares of CPU time of the host, and the busiest core.
    fn add_cpu(&self, previous: &Scrape, values: &mut Values) {
        let mut total = CpuTimes::default();
        let mut busiest = None::<f64>;
        for (cpu, now) in &self.cpu_times {
            // For a core that the previous scrape lacks, no growth is known yet.
            let growth = now.since(previous.cpu_times.get(cpu).unwrap_or(now));
            busiest = larger(busiest, growth.busy());
            total.add(&growth);
        }
        total.add_values(values);
        values.add(host!("cpu_core_max"), busiest);
    }

    /// Adds the values that are not rates.
    fn add_gauges(&self, values: &mut Values) {
        let get = |name: &str| self.plain.get(name).copied();
        for (metric, name) in [
            (host!("runnable"), "node_procs_running"),
            (host!("blocked"), "node_procs_blocked"),
            (host!("load1"), "node_load1"),
            (host!("memory_bytes"), "node_memory_MemTotal_bytes"),
            (host!("memory_available_bytes"), "node_memory_MemAvailable_bytes"),
            (host!("tcp_sockets"), "node_sockstat_TCP_inuse"),
            (host!("tcp_orphans"), "node_sockstat_TCP_orphan"),
            (host!("tcp_time_wait"), "node_sockstat_TCP_tw"),
            (host!("tcp_memory_bytes"), "node_sockstat_TCP_mem_bytes"),
            (host!("files_open"), "node_filefd_allocated"),
        ] {
            values.add(metric, get(name));
        }
        let ratio = |part, whole| share(get(part)?, get(whole)?);
        let available = ratio("node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes");
        values.add(host!("memory_available_share"), available);
        values.add(host!("files_share"), ratio("node_filefd_allocated", "node_filefd_maximum"));
        let swap = get("node_memory_SwapTotal_bytes").zip(get("node_memory_SwapFree_bytes"));
        values.add(host!("swap_used_bytes"), swap.map(|(total, free)| total - free));
    }

    /// Adds the rates of the counters without labels.
    fn add_rates(&self, previous: &Scrape, elapsed: Duration, values: &mut Values) {
        for (metric, name, factor) in [
            (host!("switches"), "node_context_switches_total", 1.0),
            (host!("major_faults"), "node_vmstat_pgmajfault", 1.0),
            (host!("swap_in_bytes"), "node_vmstat_pswpin", SWAP_PAGE_BYTES),
            (host!("swap_out_bytes"), "node_vmstat_pswpout", SWAP_PAGE_BYTES),
            (host!("tcp_retransmits"), "node_netstat_Tcp_RetransSegs", 1.0),
            (host!("tcp_segments_sent"), "node_netstat_Tcp_OutSegs", 1.0),
            (host!("listen_overflows"), "node_netstat_TcpExt_ListenOverflows", 1.0),
            (host!("listen_drops"), "node_netstat_TcpExt_ListenDrops", 1.0),
        ] {
            let pair = self.plain.get(name).zip(previous.plain.get(name));
            values.add(metric, pair.map(|(now, previous)| factor * rate(*now, *previous, elapsed)));
        }
    }

    /// Adds the shares of time in which tasks waited for each resource.
    fn add_pressure(&self, previous: &Scrape, elapsed: Duration, values: &mut Values) {
        /// For each resource: our two metrics, and two names of the exporter. The first name is the
        /// time in which some tasks waited, and the second the time in which all tasks waited. A
        /// name is empty if the kernel does not report the value.
        const STALLS: [(StallMetrics, &str, &str); 4] = [
            (
                [host!("psi_cpu_some"), host!("psi_cpu_full")],
                "node_pressure_cpu_waiting_seconds_total",
                "",
            ),
            (
                [host!("psi_memory_some"), host!("psi_memory_full")],
                "node_pressure_memory_waiting_seconds_total",
                "node_pressure_memory_stalled_seconds_total",
            ),
            (
                [host!("psi_io_some"), host!("psi_io_full")],
                "node_pressure_io_waiting_seconds_total",
                "node_pressure_io_stalled_seconds_total",
            ),
            (
                [host!("psi_irq_some"), host!("psi_irq_full")],
                "",
                "node_pressure_irq_stalled_seconds_total",
            ),
        ];
        for (metrics, some_name, full_name) in STALLS {
            let micros =
                |scrape: &Scrape, name: &str| scrape.plain.get(name).map(|seconds| seconds * 1e6);
            let stalls =
                |scrape: &Scrape| match (micros(scrape, some_name), micros(scrape, full_name)) {
                    (None, None) => None,
                    (some, full) => {
                        let (some, full) = (some.unwrap_or(0.0), full.unwrap_or(0.0));
                        Some(StallMicros { some, full })
                    }
                };
            if let Some((now, previous)) = stalls(self).zip(stalls(previous)) {
                add_stalls(values, metrics, WHOLE_MACHINE, (now, previous), elapsed);
            }
        }
    }

    /// Returns true if the page has the metric of the CPU's pressure. A page that has only pressure
    /// of memory or IO does not count, because its pressure metrics are incomplete.
    pub(in crate::host) fn has_pressure(&self) -> bool {
        self.plain.contains_key("node_pressure_cpu_waiting_seconds_total")
    }
}

/// Returns the entry of `names` that equals `name`, or `None` if `names` lacks it.
fn find_name(names: &[&'static str], name: &str) -> Option<&'static str> {
    names.iter().copied().find(|listed| *listed == name)
}

/// Stores the value of a sample under the device in its labels.
fn add_device_value(
    devices: &mut BTreeMap<String, DeviceValues>,
    sample: &ParsedSample<'_>,
    name: &'static str,
) {
    let Some(device) = sample.label("device") else { return };
    if devices.len() < DEVICES_MAX || devices.contains_key(device) {
        devices.entry(device.to_owned()).or_default().insert(name, sample.value);
    }
}

/// Values of one device in two scrapes. Rates are computed from both.
struct DeviceRates<'a> {
    now: &'a DeviceValues,
    previous: &'a DeviceValues,
    elapsed: Duration,
}

impl DeviceRates<'_> {
    /// Returns the growth of a counter per second. Returns `None` if one of the two scrapes lacks
    /// the counter.
    fn per_second(&self, metric: &str) -> Option<f64> {
        Some(rate(*self.now.get(metric)?, *self.previous.get(metric)?, self.elapsed))
    }

    /// Returns the growth of two counters together, per second. A counter that a scrape lacks
    /// counts as 0.
    fn sum_per_second(&self, metrics: [&str; 2]) -> f64 {
        metrics.iter().filter_map(|metric| self.per_second(metric)).sum()
    }
}

/// Adds the values of a disk.
fn add_disk(name: &str, disk: &DeviceRates<'_>, values: &mut Values) {
    // A disk without IO since the boot is not in use.
    if disk.now.get("node_disk_io_time_seconds_total").is_none_or(|time| *time <= 0.0) {
        return;
    }
    let reads = disk.per_second("node_disk_reads_completed_total");
    let writes = disk.per_second("node_disk_writes_completed_total");
    let util = disk.per_second("node_disk_io_time_seconds_total").map(|util| util.min(1.0));
    let queue = disk.per_second("node_disk_io_time_weighted_seconds_total");
    let request_ms = disk
        .per_second("node_disk_read_time_seconds_total")
        .zip(disk.per_second("node_disk_write_time_seconds_total"))
        .map(|(read, write)| 1_000.0 * (read + write));
    let operations = reads.zip(writes).map(|(reads, writes)| reads + writes);
    let await_ms = request_ms.zip(operations).and_then(|(total_ms, count)| share(total_ms, count));
    for (metric, value) in [
        (host!("disk.*.util"), util),
        (host!("disk.*.queue"), queue),
        (host!("disk.*.await_ms"), await_ms),
        (host!("disk.*.reads"), reads),
        (host!("disk.*.writes"), writes),
        (host!("disk.*.read_bytes"), disk.per_second("node_disk_read_bytes_total")),
        (host!("disk.*.write_bytes"), disk.per_second("node_disk_written_bytes_total")),
    ] {
        values.add_of(metric, name, value);
    }
}

/// Adds the values of a network device.
fn add_network_device(name: &str, device: &DeviceRates<'_>, values: &mut Values) {
    let received = device.per_second("node_network_receive_bytes_total");
    let sent = device.per_second("node_network_transmit_bytes_total");
    values.add_of(host!("net.*.rx_bytes"), name, received);
    values.add_of(host!("net.*.tx_bytes"), name, sent);
    let drops = device
        .sum_per_second(["node_network_receive_drop_total", "node_network_transmit_drop_total"]);
    let overruns = device
        .sum_per_second(["node_network_receive_fifo_total", "node_network_transmit_fifo_total"]);
    values.add_of(host!("net.*.drops"), name, drops + overruns);
    let errors = device
        .sum_per_second(["node_network_receive_errs_total", "node_network_transmit_errs_total"]);
    values.add_of(host!("net.*.errors"), name, errors);
    let line_rate = device.now.get("node_network_speed_bytes").filter(|speed| **speed > 0.0);
    let busier = larger(received, sent);
    let util = busier.zip(line_rate).and_then(|(busier, line_rate)| share(busier, *line_rate));
    values.add_of(host!("net.*.util"), name, util);
}

#[cfg(test)]
mod tests;
