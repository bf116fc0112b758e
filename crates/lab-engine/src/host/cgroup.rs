//! Samples limits and pressure of a process's cgroup. The pressure of a resource is the share of
//! time in which tasks waited for it. Version 2 of cgroups is supported in full. Many hosts still
//! have version 1. There, only the CPU quota and the limits of memory and disk are supported.
//!
//! A controller limits one kind of resource. Version 2 has one hierarchy of folders for all
//! controllers, and version 1 has a hierarchy for each controller. A limit can be set at any level
//! of a hierarchy, so all levels from the process's cgroup up to the level below the root are read.
//! The sample reports the lowest CPU quota. For memory and for disk, it reports the limit with the
//! highest utilization (<https://docs.kernel.org/admin-guide/cgroup-v2.html>).
//!
//! `host.rs` explains `host!`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;

use super::machine::{StallMetrics, add_stalls};
use super::text::{self, StallMicros};
use super::values::{Values, larger, rate, share};

/// Maximum number of levels of a hierarchy. Hosts usually have fewer.
const LEVELS_MAX: usize = 16;

/// Key of version 2 in [`Mounts`]. All controllers of version 2 share one hierarchy.
const VERSION_2: &str = "";

/// The mount point of each controller's hierarchy. The key is `cpu`, `memory`, `blkio`, or
/// [`VERSION_2`].
#[derive(Clone, Debug, Default)]
pub(super) struct Mounts(BTreeMap<String, PathBuf>);

impl Mounts {
    /// Reads the mount points of this process.
    pub(super) fn read() -> Mounts {
        Mounts::parse(&text::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Parses the text of a `mountinfo` file.
    fn parse(mountinfo: &str) -> Mounts {
        let mut mounts = BTreeMap::new();
        for line in mountinfo.lines() {
            // The type of the file system follows the separator.
            let Some((mount_fields, type_fields)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = mount_fields.split(' ').nth(4) else { continue };
            let type_fields: Vec<&str> = type_fields.split(' ').collect();
            let controllers = match type_fields[..] {
                ["cgroup2", ..] => VERSION_2,
                ["cgroup", _, controllers, ..] => controllers,
                _ => continue,
            };
            for controller in controllers.split(',') {
                let mount = mounts.entry(controller.to_owned());
                mount.or_insert_with(|| mount_point.into());
            }
        }
        Mounts(mounts)
    }

    /// Returns the mount point of a controller's hierarchy, and the path of a process in it.
    /// `membership` is the text of the process's `/proc/PID/cgroup`. Returns `None` if the
    /// hierarchy is not mounted, or if the process is not in the hierarchy.
    fn find<'a>(&'a self, membership: &'a str, controller: &str) -> Option<(&'a Path, &'a str)> {
        let mount = self.0.get(controller)?;
        Some((mount, find_path(membership, controller)?))
    }
}

/// The cgroup of a process, with its counters at the last reading.
#[derive(Debug)]
pub(super) struct Cgroup {
    /// Folders of version 2, from the process's cgroup up to the level below the root.
    unified: Vec<PathBuf>,
    /// Folders of the `cpu` controller of version 1, in the same order.
    cpu: Vec<PathBuf>,
    /// Folders of the `memory` controller of version 1, in the same order.
    memory: Vec<PathBuf>,
    /// Folders of the `blkio` controller of version 1, in the same order.
    disk: Vec<PathBuf>,
    /// Time and counters of the last reading.
    previous: Option<(Instant, Counters)>,
    /// Lowest CPU quota in cores; `None` without a quota.
    pub(super) cpu_limit: Option<f64>,
}

/// Counters of a cgroup.
#[derive(Debug, Default)]
struct Counters {
    /// Counters of each CPU quota, by the folder of its level.
    quotas: BTreeMap<PathBuf, Throttling>,
    /// CPU seconds used. Only version 2 reports them.
    cpu_used: Option<f64>,
    /// Total stall time of each resource, in the order of [`STALLS`]. Only version 2 reports it.
    stalls: [Option<StallMicros>; 3],
    /// Number of times that a memory limit was reached; `None` if the kernel does not report it.
    memory_hits: Option<f64>,
    /// Numbers of bytes and operations, each under the key of the limit that applies to the number.
    disk: BTreeMap<DiskLimitKey, f64>,
}

/// Counters of a CPU quota.
#[derive(Clone, Copy, Debug)]
struct Throttling {
    /// Number of periods in which the kernel enforced the quota.
    periods: f64,
    /// Number of periods in which the quota was used up.
    throttled_periods: f64,
    /// Time for which tasks had to wait, because the quota was used up.
    throttled_seconds: f64,
}

/// Key of a disk limit: level, device, and the name of the limit in `io.max`. The limits `rbps` and
/// `wbps` are bytes read and written per second. `riops` and `wiops` are the operations per second.
type DiskLimitKey = (PathBuf, String, &'static str);

/// For each resource: its file of stall times in a cgroup, and the metrics of its pressure.
const STALLS: [(&str, StallMetrics); 3] = [
    ("cpu.pressure", [host!("cgroup.*.psi_cpu_some"), host!("cgroup.*.psi_cpu_full")]),
    ("memory.pressure", [host!("cgroup.*.psi_memory_some"), host!("cgroup.*.psi_memory_full")]),
    ("io.pressure", [host!("cgroup.*.psi_io_some"), host!("cgroup.*.psi_io_full")]),
];

impl Cgroup {
    /// Finds the cgroup of a process.
    pub(super) fn of(pid: u32, mounts: &Mounts) -> Cgroup {
        let membership = text::read(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let levels = |controller: &str| {
            let hierarchy = mounts.find(&membership, controller);
            hierarchy.map(|(mount, path)| levels_of(mount, path)).unwrap_or_default()
        };
        Cgroup {
            unified: levels(VERSION_2),
            cpu: levels("cpu"),
            memory: levels("memory"),
            disk: levels("blkio"),
            previous: None,
            cpu_limit: None,
        }
    }

    /// Adds the changes since the last call, as metrics `cgroup.NAME.…`. `name` is the name of the
    /// process's group (`process.rs`).
    pub(super) fn sample(&mut self, now: Instant, name: &str, values: &mut Values) {
        let counters = self.read_counters();
        let limits = self.read_disk_limits();
        values.add_of(host!("cgroup.*.cpu_limit"), name, self.cpu_limit);
        self.add_memory(name, values);
        if let Some((last_time, previous)) = &self.previous {
            let elapsed = now.saturating_duration_since(*last_time);
            counters.add_values(previous, &limits, elapsed, name, values);
        }
        self.previous = Some((now, counters));
    }

    /// Reads all counters, and sets `cpu_limit`.
    fn read_counters(&mut self) -> Counters {
        let mut counters = Counters::default();
        self.cpu_limit = None;
        for level in self.unified.iter().chain(&self.cpu) {
            let Some(limit) = read_quota(level) else { continue };
            self.cpu_limit = Some(self.cpu_limit.map_or(limit, |lowest: f64| lowest.min(limit)));
            let cpu_stat = text::read(level.join("cpu.stat")).unwrap_or_default();
            let read = |name: &str| text::find_value(&cpu_stat, name);
            // Version 2 reports microseconds, and version 1 nanoseconds.
            let seconds_v2 = read("throttled_usec").map(|micros| micros / 1e6);
            let seconds = seconds_v2.or(read("throttled_time").map(|nanos| nanos / 1e9));
            let throttling = Throttling {
                periods: read("nr_periods").unwrap_or(0.0),
                throttled_periods: read("nr_throttled").unwrap_or(0.0),
                throttled_seconds: seconds.unwrap_or(0.0),
            };
            counters.quotas.insert(level.clone(), throttling);
        }
        if let Some(level) = self.unified.first() {
            let usage = text::read(level.join("cpu.stat"));
            let micros = usage.and_then(|text| text::find_value(&text, "usage_usec"));
            counters.cpu_used = micros.map(|micros| micros / 1e6);
            counters.stalls =
                STALLS.map(|(file, _)| text::parse_stalls(&text::read(level.join(file))?));
        }
        let hits_v2 =
            |level: &PathBuf| text::find_value(&text::read(level.join("memory.events"))?, "max");
        let hits_v1 = |level: &PathBuf| parse_number(&text::read(level.join("memory.failcnt"))?);
        let levels_v2 = self.unified.iter().filter_map(hits_v2);
        let hits = levels_v2.chain(self.memory.iter().filter_map(hits_v1));
        counters.memory_hits = hits.reduce(|sum, count| sum + count);
        self.read_disk_counts(&mut counters.disk);
        counters
    }

    /// Reads the numbers of bytes and operations of all levels.
    fn read_disk_counts(&self, counts: &mut BTreeMap<DiskLimitKey, f64>) {
        for level in &self.unified {
            for line in text::read(level.join("io.stat")).unwrap_or_default().lines() {
                let Some((device, settings)) = line.split_once(' ') else { continue };
                for (key, limit) in
                    [("rbytes", "rbps"), ("wbytes", "wbps"), ("rios", "riops"), ("wios", "wiops")]
                {
                    if let Some(count) = find_setting(settings, key) {
                        counts.insert((level.clone(), device.to_owned(), limit), count);
                    }
                }
            }
        }
        for level in &self.disk {
            for (file, read_limit, write_limit) in [
                ("blkio.throttle.io_service_bytes_recursive", "rbps", "wbps"),
                ("blkio.throttle.io_serviced_recursive", "riops", "wiops"),
            ] {
                for line in text::read(level.join(file)).unwrap_or_default().lines() {
                    let mut words = line.split(' ');
                    let (Some(device), Some(kind), Some(count)) =
                        (words.next(), words.next(), words.next().and_then(parse_number))
                    else {
                        continue;
                    };
                    let limit = match kind {
                        "Read" => read_limit,
                        "Write" => write_limit,
                        _ => continue,
                    };
                    counts.insert((level.clone(), device.to_owned(), limit), count);
                }
            }
        }
    }

    /// Reads the disk limits of all levels.
    fn read_disk_limits(&self) -> BTreeMap<DiskLimitKey, f64> {
        let mut limits = BTreeMap::new();
        for level in &self.unified {
            for line in text::read(level.join("io.max")).unwrap_or_default().lines() {
                let Some((device, settings)) = line.split_once(' ') else { continue };
                for key in ["rbps", "wbps", "riops", "wiops"] {
                    if let Some(limit) = find_setting(settings, key) {
                        limits.insert((level.clone(), device.to_owned(), key), limit);
                    }
                }
            }
        }
        for level in &self.disk {
            for (file, key) in [
                ("blkio.throttle.read_bps_device", "rbps"),
                ("blkio.throttle.write_bps_device", "wbps"),
                ("blkio.throttle.read_iops_device", "riops"),
                ("blkio.throttle.write_iops_device", "wiops"),
            ] {
                for line in text::read(level.join(file)).unwrap_or_default().lines() {
                    if let Some((device, limit)) = line.split_once(' ')
                        && let Some(limit) = parse_number(limit)
                    {
                        limits.insert((level.clone(), device.to_owned(), key), limit);
                    }
                }
            }
        }
        limits
    }

    /// Adds the used memory and the memory limit of one level: the level that uses the largest part
    /// of its limit.
    fn add_memory(&self, name: &str, values: &mut Values) {
        let version_2 = self.unified.iter().map(|level| (level, "memory.current", "memory.max"));
        let version_1 = self.memory.iter();
        let version_1 =
            version_1.map(|level| (level, "memory.usage_in_bytes", "memory.limit_in_bytes"));
        let limited = version_2.chain(version_1).filter_map(|(level, used_file, limit_file)| {
            let read = |file: &str| parse_number(&text::read(level.join(file))?);
            let (used, limit) = read(used_file).zip(read(limit_file))?;
            // Without a limit, version 1 reports the largest possible number of pages, in bytes.
            (limit > 0.0 && limit < 9e18).then_some((used, limit))
        });
        let fullest = limited.reduce(|fullest, level| {
            let used_share = |(used, limit): (f64, f64)| used / limit;
            if used_share(level) > used_share(fullest) { level } else { fullest }
        });
        if let Some((used, limit)) = fullest {
            values.add_of(host!("cgroup.*.memory_bytes"), name, used);
            values.add_of(host!("cgroup.*.memory_limit_bytes"), name, limit);
        }
    }
}

impl Counters {
    /// Adds the changes since `previous`, which was read `elapsed` earlier.
    fn add_values(
        &self,
        previous: &Counters,
        limits: &BTreeMap<DiskLimitKey, f64>,
        elapsed: Duration,
        name: &str,
        values: &mut Values,
    ) {
        let (mut period_share, mut time_share) = (None::<f64>, None::<f64>);
        for (level, now) in &self.quotas {
            let Some(previous) = previous.quotas.get(level) else { continue };
            let new_throttled = (now.throttled_periods - previous.throttled_periods).max(0.0);
            let new_periods = (now.periods - previous.periods).max(0.0);
            // If no period ended since the last sample, the share is unknown, which is different
            // from zero.
            period_share = larger(period_share, share(new_throttled, new_periods));
            let level_share = rate(now.throttled_seconds, previous.throttled_seconds, elapsed);
            time_share = larger(time_share, Some(level_share));
        }
        values.add_of(host!("cgroup.*.throttled_periods"), name, period_share);
        values.add_of(host!("cgroup.*.throttled"), name, time_share);
        let per_second = |now: Option<f64>, previous: Option<f64>| {
            now.zip(previous).map(|(now, previous)| rate(now, previous, elapsed))
        };
        let cpu = per_second(self.cpu_used, previous.cpu_used);
        values.add_of(host!("cgroup.*.cpu"), name, cpu);
        for (index, (_, metrics)) in STALLS.iter().enumerate() {
            if let Some((now, previous)) = self.stalls[index].zip(previous.stalls[index]) {
                add_stalls(values, *metrics, name, (now, previous), elapsed);
            }
        }
        let hits = per_second(self.memory_hits, previous.memory_hits);
        values.add_of(host!("cgroup.*.memory_limit_hits"), name, hits);
        let utils = limits.iter().filter_map(|(key, limit)| {
            share(rate(*self.disk.get(key)?, *previous.disk.get(key)?, elapsed), *limit)
        });
        values.add_of(host!("cgroup.*.io_util"), name, utils.reduce(f64::max));
    }
}

/// Returns the path of a process in a controller's hierarchy, or `None` if the process is not in
/// that hierarchy. A line of `membership` is `ID:CONTROLLERS:PATH`. The line of version 2 has no
/// controllers.
fn find_path<'a>(membership: &'a str, controller: &str) -> Option<&'a str> {
    membership.lines().find_map(|line| {
        let (_, after_id) = line.split_once(':')?;
        let (controllers, path) = after_id.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

/// Returns the folders from a cgroup up to the level below the root. The root has no limits.
fn levels_of(mount: &Path, path: &str) -> Vec<PathBuf> {
    let path = path.trim_matches('/');
    // In a container, the path may be outside of the mount point.
    if path.is_empty() || path.split('/').any(|part| part == "..") {
        return Vec::new();
    }
    let leaf = mount.join(path);
    let is_below_mount = |level: &&Path| *level != mount;
    leaf.ancestors().take_while(is_below_mount).take(LEVELS_MAX).map(Path::to_owned).collect()
}

/// Returns the CPU quota of a level in cores. Returns `None` if the level has no quota, or if its
/// files cannot be read.
fn read_quota(level: &Path) -> Option<f64> {
    let (quota, period) = if let Some(text) = text::read(level.join("cpu.max")) {
        let (quota, period) = text.trim().split_once(' ')?;
        (parse_number(quota)?, parse_number(period)?)
    } else {
        let read = |file: &str| parse_number(&text::read(level.join(file))?);
        (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
    };
    // Without a quota, version 1 reports -1. Version 2 reports `max`, which does not parse.
    if quota > 0.0 { share(quota, period) } else { None }
}

/// Returns the number after `key=` in a line of settings. Returns `None` if the key is absent or
/// its value is `max`.
fn find_setting(line: &str, key: &str) -> Option<f64> {
    let mut words = line.split_whitespace();
    words.find_map(|word| parse_number(word.strip_prefix(key)?.strip_prefix('=')?))
}

fn parse_number(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|number| number.is_finite())
}

/// Returns the CPU quota of this process in cores, or `None` without a quota.
pub fn own_cpu_limit() -> Option<f64> {
    let mut cgroup = Cgroup::of(std::process::id(), &Mounts::read());
    // Sets `cpu_limit`.
    cgroup.read_counters();
    cgroup.cpu_limit
}

/// Returns the folders in which a cgroup with a CPU quota may be created: the cgroup of this
/// process, and its parent. The parent is included, because in version 2 a cgroup that has
/// processes may not have children with quotas.
pub fn own_cpu_cgroups() -> Vec<PathBuf> {
    let mounts = Mounts::read();
    let membership = text::read("/proc/self/cgroup").unwrap_or_default();
    let hierarchies = ["cpu", VERSION_2].map(|controller| mounts.find(&membership, controller));
    let folders = |(mount, path): (&Path, &str)| {
        let levels = levels_of(mount, path);
        levels.into_iter().chain([mount.to_owned()]).take(2)
    };
    hierarchies.into_iter().flatten().flat_map(folders).collect()
}

#[cfg(test)]
mod tests;
