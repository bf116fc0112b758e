//! Describes the generator's machine, because results of different machines are hardly comparable.
//! The description is read once before the run. The host watcher of lab-engine samples the values
//! that change during a run.

use std::net::SocketAddr;
use std::path::Path;

use lab_engine::host::{is_local, own_cpu_limit};
use lab_model::results::Fingerprint;

#[cfg(test)]
mod tests;

/// Reads all values from `/proc` and `/sys`; missing values stay empty. `target` is the address of
/// the target, if it is known.
pub(crate) fn read(target: Option<SocketAddr>) -> Fingerprint {
    let read_text = |path: &str| std::fs::read_to_string(path).ok();
    let read_line = |path: &str| read_text(path).map(|text| text.trim().to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Fingerprint {
        host: read_line("/proc/sys/kernel/hostname").unwrap_or_default(),
        cpu: read_text("/proc/cpuinfo").as_deref().map(cpu_model).unwrap_or_default(),
        cores,
        kernel: read_line("/proc/sys/kernel/osrelease").unwrap_or_default(),
        governor: governor(Path::new("/sys/devices/system/cpu")),
        memory_bytes: read_text("/proc/meminfo").as_deref().map(memory_bytes).unwrap_or_default(),
        cpu_limit: own_cpu_limit(),
        congestion: read_line("/proc/sys/net/ipv4/tcp_congestion_control"),
        target_local: target.is_some_and(is_local),
    }
}

/// Returns the CPU model from the content of `/proc/cpuinfo`. On ARM the file has no name of the
/// model, so implementer and part numbers replace it.
fn cpu_model(cpuinfo: &str) -> String {
    let value = |key: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().unwrap_or("").trim() == key)?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let by_numbers = || {
        let (maker, part) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("implementer {maker} part {part}"))
    };
    value("model name").or_else(by_numbers).unwrap_or_default()
}

/// Returns the size of the memory from the content of `/proc/meminfo`; 0 if it is unknown.
fn memory_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

/// Returns the frequency governor of the cores; all governors as a list if the cores differ. `None`
/// if it is unknown.
fn governor(cpus: &Path) -> Option<String> {
    let mut governors = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(cpus).ok()?.flatten() {
        let file = entry.path().join("cpufreq/scaling_governor");
        if let Ok(text) = std::fs::read_to_string(file) {
            governors.insert(text.trim().to_owned());
        }
    }
    (!governors.is_empty()).then(|| governors.into_iter().collect::<Vec<_>>().join(", "))
}
