//! Samples disks: utilization, latency and queue of each device. Excludes partitions, virtual
//! devices (loop, ram) and optical drives. Includes stacked devices (dm, md), and the devices below
//! them.
//!
//! The formulas are in <https://docs.kernel.org/admin-guide/iostats.html>. Since version 5.0, the
//! kernel measures utilization in clock ticks, so the reported utilization can be too low. A device
//! that serves requests in parallel may take more load even at a utilization of 100 %. Therefore
//! the analysis of bottlenecks also uses the queue length and the pressure.
//!
//! `host.rs` explains `host!`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use procfs::{Current, DiskStat, DiskStats};

use super::values::{Values, float, rate, share};

/// Maximum number of devices in a sample. Hosts with more devices are rare.
const DEVICES_MAX: usize = 32;
/// Size of a sector in `/proc/diskstats`, which is the same for all devices.
const SECTOR_BYTES: f64 = 512.0;

/// Counters of all devices.
#[derive(Debug, Default)]
pub(super) struct Disks {
    /// Time and counters of the last reading.
    previous: Option<(Instant, BTreeMap<String, DiskStat>)>,
    /// For each device name: true if the device is a whole disk, false if it is excluded.
    is_whole: BTreeMap<String, bool>,
}

impl Disks {
    /// Adds the changes since the last call.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        let Ok(DiskStats(stats)) = DiskStats::current() else { return };
        let mut devices = BTreeMap::new();
        for device in stats {
            let is_used = device.reads + device.writes > 0;
            if is_used && devices.len() < DEVICES_MAX && self.is_whole(&device.name) {
                devices.insert(device.name.clone(), device);
            }
        }
        if let Some((last_time, previous)) = &self.previous {
            let elapsed = now.saturating_duration_since(*last_time);
            for (name, device) in &devices {
                if let Some(previous) = previous.get(name) {
                    add_values(device, previous, elapsed, values);
                }
            }
        }
        self.previous = Some((now, devices));
    }

    /// Returns true if the device is a whole disk. Stores the result for the next sample.
    fn is_whole(&mut self, name: &str) -> bool {
        if let Some(is_whole) = self.is_whole.get(name) {
            return *is_whole;
        }
        // In the names of folders, the kernel writes `!` instead of `/`.
        let block = Path::new("/sys/class/block").join(name.replace('/', "!"));
        let is_whole = !["loop", "ram", "zram", "sr"].iter().any(|kind| name.starts_with(kind))
            && !block.join("partition").exists();
        self.is_whole.insert(name.to_owned(), is_whole);
        is_whole
    }
}

/// Adds the changes of a device between two readings.
fn add_values(now: &DiskStat, previous: &DiskStat, elapsed: Duration, values: &mut Values) {
    let name = &now.name;
    let growth = |now: u64, previous: u64| float(counter_growth(now, previous));
    let reads = growth(now.reads, previous.reads);
    let writes = growth(now.writes, previous.writes);
    let request_ms = growth(now.time_reading, previous.time_reading)
        + growth(now.time_writing, previous.time_writing);
    let busy_ms = growth(now.time_in_progress, previous.time_in_progress);
    let queued_ms = growth(now.weighted_time_in_progress, previous.weighted_time_in_progress);
    let read_bytes = growth(now.sectors_read, previous.sectors_read) * SECTOR_BYTES;
    let write_bytes = growth(now.sectors_written, previous.sectors_written) * SECTOR_BYTES;
    let per_second = |growth: f64| rate(growth, 0.0, elapsed);
    values.add_of(host!("disk.*.await_ms"), name, share(request_ms, reads + writes));
    for (metric, value) in [
        (host!("disk.*.util"), (per_second(busy_ms) / 1_000.0).min(1.0)),
        (host!("disk.*.queue"), per_second(queued_ms) / 1_000.0),
        (host!("disk.*.reads"), per_second(reads)),
        (host!("disk.*.writes"), per_second(writes)),
        (host!("disk.*.read_bytes"), per_second(read_bytes)),
        (host!("disk.*.write_bytes"), per_second(write_bytes)),
    ] {
        values.add_of(metric, name, value);
    }
}

/// Returns the growth of a counter. On some kernels the counters have 32 bits and wrap around. The
/// counters of a replaced device start again at 0, which counts as no growth.
pub(super) fn counter_growth(now: u64, previous: u64) -> u64 {
    const WRAP: u64 = 1 << 32;
    match now.checked_sub(previous) {
        Some(growth) => growth,
        // A counter that was close to the wrap has wrapped around.
        None if previous < WRAP && previous > WRAP / 2 => now + WRAP - previous,
        None => 0,
    }
}

#[cfg(test)]
mod tests;
