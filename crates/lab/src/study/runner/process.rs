//! A process with its own process group: starts it, samples its resource usage, and stops it by its
//! id.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// Maximum number of stored lines of a process's standard error.
const LINES_KEPT: usize = 5;
/// Maximum length of a stored line, in bytes.
const LINE_BYTES_MAX: u64 = 400;
/// Time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a stop checks if the processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of entries, at all depths, of a folder for its disk space to be counted.
const ENTRIES_MAX: usize = 20_000;

/// Resource usage of a process group and its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::study) struct Usage {
    /// Memory of the group's processes, in bytes.
    pub(in crate::study) memory: Option<u64>,
    /// CPU seconds of the group's processes.
    pub(in crate::study) cpu: Option<f64>,
    /// Disk space of the folder, in bytes.
    pub(in crate::study) disk: Option<u64>,
}

/// The running process groups. The program kills all of them when it exits.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroups(Arc<Mutex<Vec<u32>>>);

impl ProcessGroups {
    /// Kills every process of every group.
    pub fn kill(&self) {
        self.0.lock().iter().for_each(|id| signal(*id, Signal::KILL));
    }
}

/// A process with its children. Dropping it stops them.
pub(in crate::study) struct Process {
    groups: ProcessGroups,
    child: Child,
    /// The last lines of its standard error.
    last_lines: Arc<Mutex<VecDeque<String>>>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command line.
    pub(in crate::study) fn start(
        command: &[String],
        env: &BTreeMap<String, String>,
        groups: &ProcessGroups,
    ) -> std::io::Result<Process> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(std::io::Error::other("there is no command"));
        };
        let mut child = Command::new(program)
            .args(arguments)
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        groups.0.lock().push(child.id());
        let last_lines = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            let last_lines = Arc::clone(&last_lines);
            // The thread ends with the last process that holds the other end of the pipe.
            std::thread::Builder::new()
                .name("study-stderr".to_owned())
                .spawn(move || store_last_lines(stderr, &last_lines))
                // Without the thread the pipe is closed, and only the output is lost.
                .ok();
        }
        Ok(Process { groups: groups.clone(), child, last_lines, ended: None })
    }

    /// Returns the id of the process, which is also that of its group.
    pub(in crate::study) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status; none while the process runs.
    pub(in crate::study) fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            if self.ended.is_some() {
                // The children of the process must not run beside the next run. The last lines of
                // output may still be in the pipe.
                signal(self.child.id(), Signal::KILL);
                self.groups.0.lock().retain(|id| *id != self.child.id());
                let begun = Instant::now();
                while begun.elapsed() < POLL_INTERVAL * 10
                    && Arc::strong_count(&self.last_lines) > 1
                {
                    std::thread::park_timeout(POLL_INTERVAL);
                }
            }
        }
        self.ended
    }

    /// Returns the exit status with the last lines of standard error; none while the process runs.
    pub(in crate::study) fn exit_reason(&mut self) -> Option<String> {
        let status = self.exit_status()?;
        let lines: Vec<String> = self.last_lines.lock().iter().cloned().collect();
        Some(match lines.is_empty() {
            true => format!("it ended with {status} without output"),
            false => format!("it ended with {status}: {}", lines.join(" / ")),
        })
    }

    /// Sends SIGTERM, waits for the grace period, then sends SIGKILL.
    pub(in crate::study) fn stop(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        self.terminate();
        let begun = Instant::now();
        while begun.elapsed() < STOP_TIMEOUT && self.exit_status().is_none() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        if self.ended.is_none() {
            signal(self.child.id(), Signal::KILL);
            self.ended = self.child.wait().ok();
            self.groups.0.lock().retain(|id| *id != self.child.id());
        }
    }

    /// Sends SIGTERM without waiting.
    pub(in crate::study) fn terminate(&self) {
        if self.ended.is_none() {
            signal(self.child.id(), Signal::TERM);
        }
    }

    /// Returns the resource usage of its group and of a folder.
    pub(in crate::study) fn usage(&self, folder: &Path) -> Usage {
        let (memory, cpu) = group_usage(self.child.id()).unzip();
        Usage { memory, cpu, disk: disk_usage(folder) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Signals a process group, whose id is that of its first process.
pub(in crate::study) fn signal(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // A group without members needs no signal.
        let _ = kill_process_group(pid, signal);
    }
}

/// Reads standard error until its end and stores the last lines.
fn store_last_lines(stderr: impl Read, last_lines: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim().to_owned();
        if !text.is_empty() {
            let mut last_lines = last_lines.lock();
            if last_lines.len() >= LINES_KEPT {
                last_lines.pop_front();
            }
            last_lines.push_back(text);
        }
    }
}

/// Returns the memory in bytes and the CPU seconds of all processes of a group.
fn group_usage(id: u32) -> Option<(u64, f64)> {
    let id = i32::try_from(id).ok()?;
    let (ticks, page) = (procfs::ticks_per_second(), procfs::page_size());
    let stats =
        procfs::process::all_processes().ok()?.flatten().filter_map(|process| process.stat().ok());
    let group_stats = stats.filter(|stat| stat.pgrp == id);
    let sums = group_stats.fold((0, 0, false), |(memory, cpu, _), stat| {
        (memory + stat.rss * page, cpu + stat.utime + stat.stime, true)
    });
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process are few")]
    sums.2.then(|| (sums.0, sums.1 as f64 / ticks as f64))
}

/// Returns the disk space of a folder in bytes; none if it has too many entries to count every
/// second.
fn disk_usage(folder: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK: u64 = 512;
    let (mut bytes, mut entries) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // Files may appear and disappear meanwhile, so errors are ignored.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return None;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * BLOCK;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Some(bytes)
}
