//! The node-exporter metrics that are used, and their values under our names.

use std::collections::BTreeMap;
use std::time::Duration;

use lab_model::metrics::host::host;

use crate::host::machine::{Stalls, States, put_stalls};
use crate::host::values::{Values, float, larger, rate, share};

use super::parse::{Line, lines};

/// Maximum number of devices of a kind.
const DEVICES_MAX: usize = 32;

/// Values of one scrape.
#[derive(Clone, Debug, Default)]
pub(in crate::host) struct Counters {
    /// Logical cores of the host.
    pub(in crate::host) cores: f64,
    states: BTreeMap<String, States>,
    plain: BTreeMap<&'static str, f64>,
    disks: BTreeMap<String, BTreeMap<&'static str, f64>>,
    devices: BTreeMap<String, BTreeMap<&'static str, f64>>,
}

/// Metrics without labels.
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

/// Bytes of a swap page, which the exporter does not report.
const PAGE: f64 = 4_096.0;

impl Counters {
    /// Reads a page.
    pub(in crate::host) fn read(page: &str) -> Counters {
        let mut counters = Counters::default();
        for line in lines(page) {
            if line.name == "node_cpu_seconds_total" {
                counters.cpu(&line);
            } else if let Some(name) = known(PLAIN, line.name) {
                counters.plain.insert(name, line.value);
            } else if let Some(name) = known(DISK, line.name) {
                device(&mut counters.disks, &line, name);
            } else if let Some(name) = known(NETWORK, line.name) {
                device(&mut counters.devices, &line, name);
            }
        }
        counters.cores = float(counters.states.len() as u64);
        counters
    }

    fn cpu(&mut self, line: &Line<'_>) {
        let Some((cpu, mode)) = line.label("cpu").zip(line.label("mode")) else { return };
        let states = self.states.entry(cpu.to_owned()).or_default();
        match mode {
            "user" => states.user = line.value,
            "nice" => states.nice = line.value,
            "system" => states.system = line.value,
            "idle" => states.idle = line.value,
            "iowait" => states.iowait = line.value,
            "irq" => states.irq = line.value,
            "softirq" => states.softirq = line.value,
            "steal" => states.steal = line.value,
            _ => {}
        }
    }

    /// Adds the changes since `before`.
    pub(in crate::host) fn put(&self, before: &Counters, time: Duration, values: &mut Values) {
        values.put(host!("cores"), self.cores);
        self.put_cpu(before, values);
        self.put_gauges(values);
        self.put_rates(before, time, values);
        self.put_pressure(before, time, values);
        for (name, disk) in &self.disks {
            if let Some(before) = before.disks.get(name) {
                put_disk(name, disk, before, time, values);
            }
        }
        for (name, device) in &self.devices {
            if let Some(before) = before.devices.get(name) {
                put_device(name, device, before, time, values);
            }
        }
    }

    fn put_cpu(&self, before: &Counters, values: &mut Values) {
        let mut total = States::default();
        let mut busiest = None::<f64>;
        for (cpu, now) in &self.states {
            let grown = now.since(before.states.get(cpu).unwrap_or(now));
            busiest = larger(busiest, grown.busy());
            total.add(&grown);
        }
        total.put(values);
        values.put(host!("cpu_core_max"), busiest);
    }

    fn put_gauges(&self, values: &mut Values) {
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
            values.put(metric, get(name));
        }
        let part = |part, whole| share(get(part)?, get(whole)?);
        let available = part("node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes");
        values.put(host!("memory_available_share"), available);
        values.put(host!("files_share"), part("node_filefd_allocated", "node_filefd_maximum"));
        let swap = get("node_memory_SwapTotal_bytes").zip(get("node_memory_SwapFree_bytes"));
        values.put(host!("swap_used_bytes"), swap.map(|(total, free)| total - free));
    }

    fn put_rates(&self, before: &Counters, time: Duration, values: &mut Values) {
        for (metric, name, unit) in [
            (host!("switches"), "node_context_switches_total", 1.0),
            (host!("major_faults"), "node_vmstat_pgmajfault", 1.0),
            (host!("swap_in_bytes"), "node_vmstat_pswpin", PAGE),
            (host!("swap_out_bytes"), "node_vmstat_pswpout", PAGE),
            (host!("tcp_retransmits"), "node_netstat_Tcp_RetransSegs", 1.0),
            (host!("tcp_segments_sent"), "node_netstat_Tcp_OutSegs", 1.0),
            (host!("listen_overflows"), "node_netstat_TcpExt_ListenOverflows", 1.0),
            (host!("listen_drops"), "node_netstat_TcpExt_ListenDrops", 1.0),
        ] {
            let pair = self.plain.get(name).zip(before.plain.get(name));
            values.put(metric, pair.map(|(now, then)| unit * rate(*now, *then, time)));
        }
    }

    fn put_pressure(&self, before: &Counters, time: Duration, values: &mut Values) {
        const STALLS: [(Stalls, &str, &str); 4] = [
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
        for (metrics, some, full) in STALLS {
            let micros = |counters: &Counters, name: &str| {
                counters.plain.get(name).map(|seconds| seconds * 1e6)
            };
            let read = |counters: &Counters| match (micros(counters, some), micros(counters, full))
            {
                (None, None) => None,
                (some, full) => Some((some.unwrap_or(0.0), full.unwrap_or(0.0))),
            };
            if let Some(pair) = read(self).zip(read(before)) {
                put_stalls(values, metrics, "", pair, time);
            }
        }
    }

    /// Returns true if the exporter reports pressure.
    pub(in crate::host) fn has_pressure(&self) -> bool {
        self.plain.contains_key("node_pressure_cpu_waiting_seconds_total")
    }
}

fn known(names: &[&'static str], name: &str) -> Option<&'static str> {
    names.iter().copied().find(|known| *known == name)
}

fn device(
    devices: &mut BTreeMap<String, BTreeMap<&'static str, f64>>,
    line: &Line<'_>,
    name: &'static str,
) {
    let Some(device) = line.label("device") else { return };
    if devices.len() < DEVICES_MAX || devices.contains_key(device) {
        devices.entry(device.to_owned()).or_default().insert(name, line.value);
    }
}

type One = BTreeMap<&'static str, f64>;

fn put_disk(name: &str, now: &One, before: &One, time: Duration, values: &mut Values) {
    let rate = |metric: &str| Some(rate(*now.get(metric)?, *before.get(metric)?, time));
    let used = [rate("node_disk_reads_completed_total"), rate("node_disk_writes_completed_total")];
    // A device without traffic has no latency.
    if now.get("node_disk_io_time_seconds_total").is_none_or(|time| *time <= 0.0) {
        return;
    }
    let busy = rate("node_disk_io_time_seconds_total").map(|share| share.min(1.0));
    values.put_of(host!("disk.*.util"), name, busy);
    let queue = rate("node_disk_io_time_weighted_seconds_total");
    values.put_of(host!("disk.*.queue"), name, queue);
    let waited = rate("node_disk_read_time_seconds_total")
        .zip(rate("node_disk_write_time_seconds_total"))
        .map(|(read, written)| 1_000.0 * (read + written));
    let operations = used[0].zip(used[1]).map(|(reads, writes)| reads + writes);
    let each = waited.zip(operations).and_then(|(waited, count)| share(waited, count));
    values.put_of(host!("disk.*.await_ms"), name, each);
    values.put_of(host!("disk.*.reads"), name, used[0]);
    values.put_of(host!("disk.*.writes"), name, used[1]);
    values.put_of(host!("disk.*.read_bytes"), name, rate("node_disk_read_bytes_total"));
    values.put_of(host!("disk.*.write_bytes"), name, rate("node_disk_written_bytes_total"));
}

fn put_device(name: &str, now: &One, before: &One, time: Duration, values: &mut Values) {
    let rate = |metric: &str| Some(rate(*now.get(metric)?, *before.get(metric)?, time));
    let (received, sent) =
        (rate("node_network_receive_bytes_total"), rate("node_network_transmit_bytes_total"));
    values.put_of(host!("net.*.rx_bytes"), name, received);
    values.put_of(host!("net.*.tx_bytes"), name, sent);
    let sum = |names: [&str; 2]| names.iter().filter_map(|name| rate(name)).sum::<f64>();
    let drops = sum(["node_network_receive_drop_total", "node_network_transmit_drop_total"]);
    let overruns = sum(["node_network_receive_fifo_total", "node_network_transmit_fifo_total"]);
    values.put_of(host!("net.*.drops"), name, drops + overruns);
    let errors = sum(["node_network_receive_errs_total", "node_network_transmit_errs_total"]);
    values.put_of(host!("net.*.errors"), name, errors);
    let line_rate = now.get("node_network_speed_bytes").copied().filter(|speed| *speed > 0.0);
    let busier = larger(received, sent);
    let used = busier.zip(line_rate).and_then(|(busier, line_rate)| share(busier, line_rate));
    values.put_of(host!("net.*.util"), name, used);
}

#[cfg(test)]
mod tests;
