//! Reads figures of processes and the machine: exact CPU time, memory, program versions.
//!
//! CPU time is the first field of each thread's `schedstat`: nanoseconds on a CPU (kernel
//! Documentation/scheduler/sched-stats.rst). `utime` and `stime` only count ticks of 10 ms.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::shell;

/// Bytes of a mebibyte.
pub(crate) const MIB: f64 = (1 << 20) as f64;

/// Lists the process ids of the group that `leader` leads; never empty.
///
/// # Errors
/// Fails if `/proc` cannot be read or the group has no process left.
pub(crate) fn list_group(leader: u32) -> Result<Vec<u32>> {
    let mut members = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let Ok(pid) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
        // A process may end between the listing and this read.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if parse_group(&stat) == Some(leader) {
            members.push(pid);
        }
    }
    ensure!(!members.is_empty(), "process group {leader} is gone");
    Ok(members)
}

/// Parses the process group in a line of `/proc/PID/stat`: the third field after the name. The name
/// is in parentheses and may itself contain spaces and parentheses.
fn parse_group(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

/// Returns the CPU time that all threads of all processes of the group have used. `leader` is the
/// id of the group's first process.
///
/// # Errors
/// Fails if the group is gone or the kernel keeps no `schedstat`.
pub(crate) fn cpu_time(leader: u32) -> Result<Duration> {
    let mut nanos = 0u64;
    for pid in list_group(leader)? {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let path = task.path().join("schedstat");
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let field = text.split_whitespace().next().context("empty schedstat")?;
            nanos += field.parse::<u64>().with_context(|| format!("schedstat has {field:?}"))?;
        }
    }
    ensure!(nanos > 0, "no schedstat for process group {leader}");
    Ok(Duration::from_nanos(nanos))
}

/// Returns the busy time of a core in seconds since the machine started (`/proc/stat`, in ticks of
/// 10 ms; kernel Documentation/filesystems/proc.rst, section 1.7). Steal time of a virtual machine
/// is included, because it distorts measurements as other processes do.
///
/// # Errors
/// Fails if there is no such core.
pub(crate) fn core_busy_seconds(core: &str) -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    busy_ticks(&text, core)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
        .with_context(|| format!("no core {core}"))
}

/// Ticks per second (`USER_HZ`), fixed in the kernel's interface to programs.
const TICKS_PER_SECOND: f64 = 100.0;

/// Sums the columns of a core that count as busy. The fourth and fifth (idle and iowait) do not
/// count. The columns from the ninth on (guest time) do not count either, because user time
/// includes them.
fn busy_ticks(stat: &str, core: &str) -> Option<u64> {
    let name = format!("cpu{core} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let columns = line.split_whitespace().take(8).enumerate();
    let busy = columns.filter(|(column, _)| ![3, 4].contains(column));
    busy.map(|(_, ticks)| ticks.parse::<u64>().ok()).sum()
}

/// Returns the resident memory of all processes of the group, in bytes (`VmRSS`; pages shared by
/// two processes count twice).
///
/// # Errors
/// Fails if the group is gone.
pub(crate) fn resident_bytes(leader: u32) -> Result<u64> {
    let mut kibibytes = 0u64;
    for pid in list_group(leader)? {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        kibibytes += resident_kibibytes(&status).unwrap_or(0);
    }
    Ok(kibibytes * 1024)
}

/// Samples the resident memory of the group every second while `is_running`, in MiB.
///
/// # Errors
/// Fails if the group is gone.
pub(crate) fn sample_memory(leader: u32, is_running: impl Fn() -> bool) -> Result<Vec<f64>> {
    let mut samples = Vec::new();
    let mut next = Instant::now();
    while is_running() {
        if Instant::now() >= next {
            samples.push(resident_bytes(leader)? as f64 / MIB);
            next += Duration::from_secs(1);
        }
        shell::pause(Duration::from_millis(50));
    }
    Ok(samples)
}

fn resident_kibibytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Raises the limit of open files to the hard limit, for this process and its children. Returns the
/// new limit.
///
/// # Errors
/// Fails if `prlimit` (util-linux) is missing or refuses.
pub(crate) fn raise_open_files() -> Result<u64> {
    let pid = std::process::id().to_string();
    let prlimit = |arguments: &[&str]| -> Result<String> {
        let out = Command::new("prlimit").args(["--pid", &pid]).args(arguments).output();
        let out = out.context("cannot run prlimit")?;
        ensure!(out.status.success(), "prlimit: {}", String::from_utf8_lossy(&out.stderr));
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let hard_limit = prlimit(&["--nofile", "--output", "HARD", "--noheadings"])?;
    prlimit(&[&format!("--nofile={hard_limit}:{hard_limit}")])?;
    hard_limit.parse().with_context(|| format!("prlimit printed {hard_limit:?} open files"))
}

/// Returns a line about the machine and the programs, which is printed above every table.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": ?");
    format!(
        "machine: {cores} cores, {}; kernel {}; {}; {}; {}",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim(),
        describe_version("nginx", "-v", "nginx/"),
        describe_version("haproxy", "-v", "version "),
        describe_version("wrk", "-v", "wrk "),
    )
}

/// Returns `program` and its version, which is the word after `marker` in the output for `flag`.
fn describe_version(program: &str, flag: &str, marker: &str) -> String {
    let Ok(out) = Command::new(program).arg(flag).output() else {
        return format!("{program} missing");
    };
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let after_marker = text.split_once(marker).map_or("", |(_, after)| after);
    let version = after_marker.strip_prefix("debian/").unwrap_or(after_marker);
    format!("{program} {}", version.split_whitespace().next().unwrap_or("?"))
}

#[cfg(test)]
mod tests;
