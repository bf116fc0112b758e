//! Samples network devices and the TCP stack: bytes, drops, retransmits, refused connections and
//! memory. `sockets.rs` samples single sockets.
//!
//! `host.rs` explains `host!`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lab_model::metrics::host::{HostMetric, host};
use procfs::net::DeviceStatus;

use super::text;
use super::values::{Values, float, rate, share};

/// Maximum number of devices in a sample. The devices with the most traffic are sampled. A host
/// with containers has hundreds of devices, most of them idle.
const DEVICES_MAX: usize = 16;

/// The network, with the counters of the previous sample.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Time and counters of the last reading.
    previous: Option<(Instant, Counters)>,
    /// Line rate of each device in bytes per second, by device name. `None` if it is unknown.
    line_rates: BTreeMap<String, Option<f64>>,
}

/// Counters of the network.
#[derive(Debug)]
struct Counters {
    /// Counters of each device, by device name.
    devices: BTreeMap<String, DeviceStatus>,
    /// The value of each counter, in the order of [`TCP`]. `None` if the kernel does not report it.
    tcp: [Option<f64>; 4],
}

/// For each TCP counter: its group and field in `/proc/net/snmp` or `/proc/net/netstat`, and our
/// metric. A group is a pair of lines with the same first word.
const TCP: [(&str, &str, &HostMetric); 4] = [
    ("Tcp", "RetransSegs", host!("tcp_retransmits")),
    ("Tcp", "OutSegs", host!("tcp_segments_sent")),
    ("TcpExt", "ListenOverflows", host!("listen_overflows")),
    ("TcpExt", "ListenDrops", host!("listen_drops")),
];

impl Network {
    /// Adds the rates since the last call, and the current numbers of sockets and open files.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        add_sockets(values);
        add_files(values);
        let counters = Counters { devices: self.read_devices(), tcp: read_tcp() };
        if let Some((last_time, previous)) = &self.previous {
            let elapsed = now.saturating_duration_since(*last_time);
            for (index, (_, _, metric)) in TCP.iter().enumerate() {
                let pair = counters.tcp[index].zip(previous.tcp[index]);
                values.add(metric, pair.map(|(now, previous)| rate(now, previous, elapsed)));
            }
            for (name, device) in &counters.devices {
                if let Some(previous) = previous.devices.get(name) {
                    let line_rate = self.line_rates.get(name).copied().flatten();
                    add_values(device, previous, line_rate, elapsed, values);
                }
            }
        }
        self.previous = Some((now, counters));
    }

    /// Reads the counters of the devices with the most traffic.
    fn read_devices(&mut self) -> BTreeMap<String, DeviceStatus> {
        let devices = procfs::net::dev_status().unwrap_or_default();
        let traffic = |device: &DeviceStatus| device.recv_bytes.saturating_add(device.sent_bytes);
        let used = devices.into_iter().filter(|(_, device)| traffic(device) > 0);
        let mut used: Vec<_> = used.collect();
        used.sort_by_key(|(_, device)| std::cmp::Reverse(traffic(device)));
        used.truncate(DEVICES_MAX);
        for (name, _) in &used {
            self.line_rates.entry(name.clone()).or_insert_with(|| read_line_rate(name));
        }
        used.into_iter().collect()
    }
}

/// Returns the line rate of a physical device in bytes per second. The kernel reports the rate in
/// megabits per second. Returns `None` for a virtual device.
fn read_line_rate(name: &str) -> Option<f64> {
    let text = text::read(Path::new("/sys/class/net").join(name).join("speed"))?;
    let megabits: f64 = text.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

/// Adds the changes of a device between two readings.
fn add_values(
    now: &DeviceStatus,
    previous: &DeviceStatus,
    line_rate: Option<f64>,
    elapsed: Duration,
    values: &mut Values,
) {
    let name = now.name.trim_end_matches(':');
    let rate = |now: u64, previous: u64| rate(float(now), float(previous), elapsed);
    let received = rate(now.recv_bytes, previous.recv_bytes);
    let sent = rate(now.sent_bytes, previous.sent_bytes);
    values.add_of(host!("net.*.rx_bytes"), name, received);
    values.add_of(host!("net.*.tx_bytes"), name, sent);
    let drops = rate(now.recv_drop, previous.recv_drop) + rate(now.sent_drop, previous.sent_drop);
    // Overruns of the device's buffer (fifo) are lost packets too.
    let overruns =
        rate(now.recv_fifo, previous.recv_fifo) + rate(now.sent_fifo, previous.sent_fifo);
    values.add_of(host!("net.*.drops"), name, drops + overruns);
    let errors = rate(now.recv_errs, previous.recv_errs) + rate(now.sent_errs, previous.sent_errs);
    values.add_of(host!("net.*.errors"), name, errors);
    let util = line_rate.and_then(|line_rate| share(received.max(sent), line_rate));
    values.add_of(host!("net.*.util"), name, util);
}

/// Reads the TCP counters in the order of [`TCP`].
fn read_tcp() -> [Option<f64>; 4] {
    let snmp = text::read("/proc/net/snmp").unwrap_or_default();
    let netstat = text::read("/proc/net/netstat").unwrap_or_default();
    TCP.map(|(group, field, _)| {
        let text = if group == "Tcp" { &snmp } else { &netstat };
        text::find_column(text, group, field)
    })
}

/// Adds the numbers of TCP sockets, and the memory of the TCP stack.
fn add_sockets(values: &mut Values) {
    let Some(text) = text::read("/proc/net/sockstat") else { return };
    let text_v6 = text::read("/proc/net/sockstat6").unwrap_or_default();
    let in_use = text::find_pair(&text, "TCP", "inuse");
    let in_use_v6 = text::find_pair(&text_v6, "TCP6", "inuse").unwrap_or(0.0);
    values.add(host!("tcp_sockets"), in_use.map(|count| count + in_use_v6));
    values.add(host!("tcp_orphans"), text::find_pair(&text, "TCP", "orphan"));
    values.add(host!("tcp_time_wait"), text::find_pair(&text, "TCP", "tw"));
    let pages = text::find_pair(&text, "TCP", "mem");
    let page_bytes = float(procfs::page_size());
    values.add(host!("tcp_memory_bytes"), pages.map(|pages| pages * page_bytes));
    // The third number is the maximum, in pages.
    let limits = text::read("/proc/sys/net/ipv4/tcp_mem");
    let limit: Option<f64> = limits.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    let memory_share = pages.zip(limit).and_then(|(pages, limit)| share(pages, limit));
    values.add(host!("tcp_memory_share"), memory_share);
}

/// Adds the number of open files, and its share of the kernel's limit.
fn add_files(values: &mut Values) {
    let Some(text) = text::read("/proc/sys/fs/file-nr") else { return };
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    let open = numbers.next();
    values.add(host!("files_open"), open);
    // The third number is the limit.
    let limit = numbers.nth(1);
    values.add(host!("files_share"), open.zip(limit).and_then(|(open, limit)| share(open, limit)));
}

#[cfg(test)]
mod tests;
