//! Disks: utilization, latency and queue of each device. Partitions and virtual devices (loop, ram)
//! are left out. Stacked devices (dm, md) are included besides the devices below them.
//!
//! Formulas: <https://docs.kernel.org/admin-guide/iostats.html>. Since kernel 5.0, utilization is
//! sampled by ticks and can be too low. 100 % is not the limit of a device that works in parallel.
//! The analysis therefore also uses queue and pressure.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use procfs::{Current, DiskStat, DiskStats};

use super::values::{Values, float, rate, share};

/// Maximum number of devices in a sample. Hosts with more are rare.
const DEVICES_MAX: usize = 32;
/// Bytes of a sector in diskstats, for all devices.
const SECTOR: f64 = 512.0;

/// Counters of all devices.
#[derive(Debug, Default)]
pub(super) struct Disks {
    before: Option<(Instant, BTreeMap<String, DiskStat>)>,
    /// True if a name is that of a whole device.
    whole: BTreeMap<String, bool>,
}

impl Disks {
    /// Adds the changes since the last call.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        let Ok(DiskStats(all)) = DiskStats::current() else { return };
        let mut devices = BTreeMap::new();
        for device in all {
            let used = device.reads + device.writes > 0;
            if used && devices.len() < DEVICES_MAX && self.is_whole(&device.name) {
                devices.insert(device.name.clone(), device);
            }
        }
        if let Some((then, before)) = &self.before {
            let time = now.saturating_duration_since(*then);
            for (name, device) in &devices {
                if let Some(before) = before.get(name) {
                    put(device, before, time, values);
                }
            }
        }
        self.before = Some((now, devices));
    }

    fn is_whole(&mut self, name: &str) -> bool {
        if let Some(known) = self.whole.get(name) {
            return *known;
        }
        let block = Path::new("/sys/class/block").join(name.replace('/', "!"));
        let whole = !["loop", "ram", "zram", "sr"].iter().any(|kind| name.starts_with(kind))
            && !block.join("partition").exists();
        self.whole.insert(name.to_owned(), whole);
        whole
    }
}

fn put(now: &DiskStat, before: &DiskStat, time: Duration, values: &mut Values) {
    let name = &now.name;
    let grown = |now: u64, before: u64| float(grown(now, before));
    let reads = grown(now.reads, before.reads);
    let writes = grown(now.writes, before.writes);
    let waited =
        grown(now.time_reading, before.time_reading) + grown(now.time_writing, before.time_writing);
    let seconds = time.as_secs_f64().max(1e-9);
    let busy = grown(now.time_in_progress, before.time_in_progress) / 1_000.0;
    let queue =
        grown(now.weighted_time_in_progress, before.weighted_time_in_progress) / 1_000.0 / seconds;
    values.put_of(host!("disk.*.util"), name, (busy / seconds).min(1.0));
    values.put_of(host!("disk.*.queue"), name, queue);
    values.put_of(host!("disk.*.await_ms"), name, share(waited, reads + writes));
    values.put_of(host!("disk.*.reads"), name, rate(reads, 0.0, time));
    values.put_of(host!("disk.*.writes"), name, rate(writes, 0.0, time));
    let read = grown(now.sectors_read, before.sectors_read) * SECTOR;
    let written = grown(now.sectors_written, before.sectors_written) * SECTOR;
    values.put_of(host!("disk.*.read_bytes"), name, rate(read, 0.0, time));
    values.put_of(host!("disk.*.write_bytes"), name, rate(written, 0.0, time));
}

/// Returns the growth of a counter. Some kernels have 32-bit counters, which wrap around. A device
/// that was replaced starts again at zero, which counts as no growth.
pub(super) fn grown(now: u64, before: u64) -> u64 {
    const WIDTH: u64 = 1 << 32;
    match now.checked_sub(before) {
        Some(grown) => grown,
        None if before < WIDTH && before > WIDTH / 2 => now + WIDTH - before,
        None => 0,
    }
}

#[cfg(test)]
mod tests;
