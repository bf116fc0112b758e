//! Limits the CPUs of a variant's servers with the quota of a cgroup. If no cgroup can be created,
//! CPU affinity replaces the quota.
//!
//! A server joins the cgroup before its program starts. The program therefore sees the limit when
//! it chooses its number of threads.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files>

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab_engine::host::own_cpu_cgroups;
use lab_model::results::load_study::{CpuLimit, CpuLimitKind};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Period of a quota in microseconds. It is the kernel's default.
const PERIOD_US: f64 = 100_000.0;
/// Longest wait until a cgroup has no processes and can be removed.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between attempts to remove a cgroup.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The shell command that joins a cgroup and then becomes the server. `$0` is the path of the
/// cgroup's `cgroup.procs` file, and `$@` is the command line of the server.
const JOIN_AND_RUN: &str = "echo $$ > \"$0\" && exec \"$@\"";

/// A CPU limit for processes. Dropping it removes its cgroup.
#[derive(Debug)]
pub(super) struct CpuLimiter {
    cpus: f64,
    /// Folder of the cgroup; `None` if CPU affinity is used.
    cgroup: Option<PathBuf>,
}

impl CpuLimiter {
    /// Creates a limit of this number of CPUs. `index` distinguishes the limits of this process.
    pub(super) fn new(cpus: f64, index: usize) -> CpuLimiter {
        let name = format!("weir-study-{}-{index}", std::process::id());
        let cgroup = own_cpu_cgroups().into_iter().find_map(|parent| {
            let folder = parent.join(&name);
            create_cgroup(&folder, cpus).ok()?;
            Some(folder)
        });
        CpuLimiter { cpus, cgroup }
    }

    /// Returns the limit for the result.
    pub(super) fn facts(&self) -> CpuLimit {
        let kind = match self.cgroup {
            Some(_) => CpuLimitKind::Quota,
            None => CpuLimitKind::Affinity,
        };
        CpuLimit { cpus: self.cpus, kind }
    }

    /// Starts a process under the limit. Calls `start` with the command line to run: either
    /// `command` or a shell that joins the cgroup and then runs `command`.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or the affinity cannot be set.
    pub(super) fn start<T: Send>(
        &self,
        command: &[String],
        start: impl FnOnce(&[String]) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        if let Some(cgroup) = &self.cgroup {
            let procs_file = cgroup.join("cgroup.procs").to_string_lossy().into_owned();
            let shell = ["sh", "-c", JOIN_AND_RUN].map(str::to_owned);
            let shell_command: Vec<String> =
                shell.into_iter().chain([procs_file]).chain(command.iter().cloned()).collect();
            return start(&shell_command);
        }
        // A process inherits the affinity of the thread that starts it.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                restrict_this_thread(self.cpus)?;
                start(command)
            });
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the starting thread panicked")))
        })
    }
}

impl Drop for CpuLimiter {
    fn drop(&mut self) {
        let Some(cgroup) = &self.cgroup else { return };
        // Stopped processes leave their cgroup a little later.
        let start = Instant::now();
        while fs::remove_dir(cgroup).is_err() && start.elapsed() < REMOVE_TIMEOUT {
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

/// Creates a cgroup with a quota. If the quota cannot be set, removes the cgroup.
fn create_cgroup(folder: &Path, cpus: f64) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
    let (quota, period) = ((cpus * PERIOD_US) as u64, PERIOD_US as u64);
    let v1_quota_file = folder.join("cpu.cfs_quota_us");
    let v2_quota_file = folder.join("cpu.max");
    let outcome = if v1_quota_file.exists() {
        fs::write(folder.join("cpu.cfs_period_us"), period.to_string())
            .and_then(|()| fs::write(v1_quota_file, quota.to_string()))
    } else if v2_quota_file.exists() {
        fs::write(v2_quota_file, format!("{quota} {period}"))
    } else {
        Err(io::Error::other("the cgroup has no CPU quota"))
    };
    if outcome.is_err() {
        // The cgroup has no processes, so the removal fails only without permission.
        let _ = fs::remove_dir(folder);
    }
    outcome
}

/// Restricts this thread to `cpus` of the cores that it may use now. `cpus` is rounded up.
fn restrict_this_thread(cpus: f64) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut restricted = CpuSet::new();
    // The last cores are used, because the engine of the load generator uses the first cores.
    let cores = (0..CpuSet::MAX_CPU).rev().filter(|core| allowed.is_set(*core));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, above 0")]
    cores.take(cpus.ceil() as usize).for_each(|core| restricted.set(core));
    sched_setaffinity(None, &restricted)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn output(limiter: &CpuLimiter, command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let run = |words: &[String]| {
            Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).output()
        };
        let output = limiter.start(&command, run).unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn affinity_restricts_the_process_and_not_its_starter() {
        let before = sched_getaffinity(None).unwrap().count();
        let limiter = CpuLimiter { cpus: 0.5, cgroup: None };
        assert_eq!(limiter.facts().kind, CpuLimitKind::Affinity);
        let status = output(&limiter, &["sh", "-c", "nproc"]);
        assert_eq!(status.trim(), "1");
        assert_eq!(sched_getaffinity(None).unwrap().count(), before);
    }

    #[test]
    fn a_quota_applies_to_the_process_and_its_cgroup_is_removed() {
        let limiter = CpuLimiter::new(0.25, 0);
        let Some(cgroup) = limiter.cgroup.clone() else {
            test_support::programs::skip("needs a writable cgroup");
            return;
        };
        let name = cgroup.file_name().unwrap().to_string_lossy().into_owned();
        let groups = output(&limiter, &["cat", "/proc/self/cgroup"]);
        assert!(groups.contains(&name), "{groups}");
        let quota = fs::read_to_string(cgroup.join("cpu.cfs_quota_us"))
            .or_else(|_| fs::read_to_string(cgroup.join("cpu.max")))
            .unwrap();
        assert!(quota.starts_with("25000"), "{quota}");
        drop(limiter);
        assert!(!cgroup.exists());
    }
}
