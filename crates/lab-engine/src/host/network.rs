//! Network devices and the TCP stack: bytes, drops, retransmits, refused connections, memory.
//! `sockets.rs` has single sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lab_model::metrics::host::{HostMetric, host};
use procfs::net::DeviceStatus;

use super::text;
use super::values::{Values, float, rate, share};

/// Maximum number of devices in a sample. Container hosts have hundreds, few of which matter.
const DEVICES_MAX: usize = 16;

/// Counters of the network.
#[derive(Debug, Default)]
pub(super) struct Network {
    before: Option<(Instant, Counters)>,
    /// Line rate of a device in bytes per second, if known.
    line_rates: BTreeMap<String, Option<f64>>,
}

#[derive(Debug)]
struct Counters {
    devices: BTreeMap<String, DeviceStatus>,
    tcp: [Option<f64>; 4],
}

/// The four TCP counters with their file, group and metric.
const TCP: [(&str, &str, &HostMetric); 4] = [
    ("Tcp", "RetransSegs", host!("tcp_retransmits")),
    ("Tcp", "OutSegs", host!("tcp_segments_sent")),
    ("TcpExt", "ListenOverflows", host!("listen_overflows")),
    ("TcpExt", "ListenDrops", host!("listen_drops")),
];

impl Network {
    /// Adds the changes since the last call.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        sockets(values);
        let counters = Counters { devices: self.devices(), tcp: tcp() };
        if let Some((then, before)) = &self.before {
            let time = now.saturating_duration_since(*then);
            for (index, (_, _, metric)) in TCP.iter().enumerate() {
                let pair = counters.tcp[index].zip(before.tcp[index]);
                values.put(metric, pair.map(|(now, before)| rate(now, before, time)));
            }
            for (name, device) in &counters.devices {
                if let Some(before) = before.devices.get(name) {
                    let line_rate = self.line_rates.get(name).copied().flatten();
                    put(device, before, line_rate, time, values);
                }
            }
        }
        self.before = Some((now, counters));
    }

    fn devices(&mut self) -> BTreeMap<String, DeviceStatus> {
        let all = procfs::net::dev_status().unwrap_or_default();
        let used = all.into_iter().filter(|(_, device)| device.recv_bytes + device.sent_bytes > 0);
        let mut used: Vec<_> = used.collect();
        used.sort_by_key(|(_, device)| {
            std::cmp::Reverse(device.recv_bytes.saturating_add(device.sent_bytes))
        });
        used.truncate(DEVICES_MAX);
        for (name, _) in &used {
            self.line_rates.entry(name.clone()).or_insert_with(|| line_rate(name));
        }
        used.into_iter().collect()
    }
}

/// Returns the line rate of a physical device. The file has megabits.
fn line_rate(name: &str) -> Option<f64> {
    let text = text::read(Path::new("/sys/class/net").join(name).join("speed"))?;
    let megabits: f64 = text.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits * 1e6 / 8.0)
}

fn put(
    now: &DeviceStatus,
    before: &DeviceStatus,
    line_rate: Option<f64>,
    time: Duration,
    values: &mut Values,
) {
    let name = now.name.trim_end_matches(':');
    let rate = |now: u64, before: u64| rate(float(now), float(before), time);
    let received = rate(now.recv_bytes, before.recv_bytes);
    let sent = rate(now.sent_bytes, before.sent_bytes);
    values.put_of(host!("net.*.rx_bytes"), name, received);
    values.put_of(host!("net.*.tx_bytes"), name, sent);
    let drops = rate(now.recv_drop, before.recv_drop) + rate(now.sent_drop, before.sent_drop);
    // Overruns (fifo) are lost packets too.
    let overruns = rate(now.recv_fifo, before.recv_fifo) + rate(now.sent_fifo, before.sent_fifo);
    values.put_of(host!("net.*.drops"), name, drops + overruns);
    let errors = rate(now.recv_errs, before.recv_errs) + rate(now.sent_errs, before.sent_errs);
    values.put_of(host!("net.*.errors"), name, errors);
    let used = line_rate.and_then(|line_rate| share(received.max(sent), line_rate));
    values.put_of(host!("net.*.util"), name, used);
}

fn tcp() -> [Option<f64>; 4] {
    let snmp = text::read("/proc/net/snmp").unwrap_or_default();
    let netstat = text::read("/proc/net/netstat").unwrap_or_default();
    TCP.map(|(group, field, _)| {
        let text = if group == "Tcp" { &snmp } else { &netstat };
        text::column(text, group, field)
    })
}

fn sockets(values: &mut Values) {
    let Some(text) = text::read("/proc/net/sockstat") else { return };
    let six = text::read("/proc/net/sockstat6").unwrap_or_default();
    let inuse = text::pair(&text, "TCP", "inuse");
    let inuse_six = text::pair(&six, "TCP6", "inuse").unwrap_or(0.0);
    values.put(host!("tcp_sockets"), inuse.map(|count| count + inuse_six));
    values.put(host!("tcp_orphans"), text::pair(&text, "TCP", "orphan"));
    values.put(host!("tcp_time_wait"), text::pair(&text, "TCP", "tw"));
    let pages = text::pair(&text, "TCP", "mem");
    let page = float(procfs::page_size());
    values.put(host!("tcp_memory_bytes"), pages.map(|pages| pages * page));
    let limit = text::read("/proc/sys/net/ipv4/tcp_mem");
    let limit: Option<f64> = limit.and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
    let used = pages.zip(limit).and_then(|(pages, limit)| share(pages, limit));
    values.put(host!("tcp_memory_share"), used);
    files(values);
}

fn files(values: &mut Values) {
    let Some(text) = text::read("/proc/sys/fs/file-nr") else { return };
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    let open = numbers.next();
    values.put(host!("files_open"), open);
    let limit = numbers.nth(1);
    values.put(host!("files_share"), open.zip(limit).and_then(|(open, limit)| share(open, limit)));
}

#[cfg(test)]
mod tests;
