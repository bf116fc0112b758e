//! A process with its own process group. This module starts the process, waits until it accepts
//! connections, samples the resource usage of the group, and stops the group by its id.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead as _, BufReader, Read};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::run::Stop;

/// Maximum number of stored lines of a process's standard error.
const LAST_LINES_MAX: usize = 5;
/// Maximum length of a stored line, in bytes.
const LINE_BYTES_MAX: u64 = 400;
/// Time between SIGTERM and SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a stop checks if the processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Interval between two attempts to connect to a process that starts.
const CONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of an attempt to connect to a process.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of files in a folder and its subfolders. The disk space of a folder with more
/// files is reported as unknown, because it would take too long to add up their sizes.
const ENTRIES_MAX: usize = 20_000;

/// Resource usage of a process group and its folder. `None` stands for an unknown value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::study) struct Usage {
    /// Memory of the group's processes, in bytes.
    pub(in crate::study) memory: Option<u64>,
    /// CPU seconds of the group's processes.
    pub(in crate::study) cpu: Option<f64>,
    /// Disk space of the folder, in bytes.
    pub(in crate::study) disk: Option<u64>,
}

/// The ids of the running process groups. The program kills all groups when it exits.
#[derive(Clone, Debug, Default)]
pub struct ProcessGroups(Arc<Mutex<Vec<u32>>>);

impl ProcessGroups {
    /// Kills every process of every group.
    pub fn kill(&self) {
        self.0.lock().iter().for_each(|id| signal(*id, Signal::KILL));
    }
}

/// A process with its children. Dropping the value stops all of them.
pub(in crate::study) struct Process {
    groups: ProcessGroups,
    child: Child,
    /// The last lines of standard error.
    last_lines: Arc<Mutex<VecDeque<String>>>,
    /// The exit status. `None` while the process runs.
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command line, which must have at least one word. Adds the group to `groups`.
    pub(in crate::study) fn start(
        command: &[String],
        env: &BTreeMap<String, String>,
        groups: &ProcessGroups,
    ) -> io::Result<Process> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(io::Error::other("there is no command"));
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
            // The thread ends when all processes have closed the other end of the pipe.
            std::thread::Builder::new()
                .name("study-stderr".to_owned())
                .spawn(move || store_last_lines(stderr, &last_lines))
                // If the thread cannot start, only the output is lost.
                .ok();
        }
        Ok(Process { groups: groups.clone(), child, last_lines, ended: None })
    }

    /// Returns the exit status, or `None` while the process runs. When the process has ended, kills
    /// the rest of its group.
    pub(in crate::study) fn exit_status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            if self.ended.is_some() {
                // The children of the process must not continue during the next run.
                signal(self.child.id(), Signal::KILL);
                self.groups.0.lock().retain(|id| *id != self.child.id());
                // The last lines of output may still be in the pipe. The thread that reads them
                // drops its reference at the end. The loop waits for that for a short time.
                let wait_start = Instant::now();
                while wait_start.elapsed() < POLL_INTERVAL * 10
                    && Arc::strong_count(&self.last_lines) > 1
                {
                    std::thread::park_timeout(POLL_INTERVAL);
                }
            }
        }
        self.ended
    }

    /// Describes the exit status with the last lines of standard error. `None` while the process
    /// runs.
    pub(in crate::study) fn exit_reason(&mut self) -> Option<String> {
        let status = self.exit_status()?;
        let lines: Vec<String> = self.last_lines.lock().iter().cloned().collect();
        Some(match lines.is_empty() {
            true => format!("it ended with {status} without output"),
            false => format!("it ended with {status}: {}", lines.join(" / ")),
        })
    }

    /// Sends SIGTERM. If the process has not ended after [`STOP_TIMEOUT`], sends SIGKILL.
    pub(in crate::study) fn stop(&mut self) {
        if self.exit_status().is_some() {
            return;
        }
        self.terminate();
        let stop_start = Instant::now();
        while stop_start.elapsed() < STOP_TIMEOUT && self.exit_status().is_none() {
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

    /// Returns the resource usage of the process group and of a folder.
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

/// Describes why a command line could not be started.
pub(in crate::study) fn describe_failed_start(command: &[String], error: &io::Error) -> String {
    let program = command.first().map_or("", String::as_str);
    format!("cannot start {program:?}: {error}")
}

/// The end of a wait for connections.
pub(in crate::study) enum Readiness {
    /// The address accepts connections.
    Ready,
    /// The user stops the study.
    Stopped,
    /// The process has ended, with the reason.
    Ended(String),
    /// No connection succeeded in time.
    TimedOut,
}

/// Waits until an address accepts connections. `process` is the process that listens there, if it
/// is known.
pub(in crate::study) fn await_connection(
    address: &str,
    timeout: Duration,
    stop: &Stop,
    mut process: Option<&mut Process>,
) -> Readiness {
    let start = Instant::now();
    loop {
        if let Some(reason) = process.as_mut().and_then(|process| process.exit_reason()) {
            return Readiness::Ended(reason);
        }
        if stop.is_requested() {
            return Readiness::Stopped;
        }
        if accepts_connections(address) {
            return Readiness::Ready;
        }
        if start.elapsed() >= timeout {
            return Readiness::TimedOut;
        }
        std::thread::park_timeout(CONNECT_INTERVAL);
    }
}

/// Returns true if a program accepts connections at an address.
pub(in crate::study) fn accepts_connections(address: &str) -> bool {
    let mut addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// Sends a signal to a process group. The id of the group is the id of its first process.
pub(in crate::study) fn signal(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // The error of a group that has already ended is ignored.
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
            if last_lines.len() >= LAST_LINES_MAX {
                last_lines.pop_front();
            }
            last_lines.push_back(text);
        }
    }
}

/// Returns the memory in bytes and the CPU seconds of all processes of a group. `None` if the group
/// has no process, or if the processes cannot be listed.
fn group_usage(id: u32) -> Option<(u64, f64)> {
    let id = i32::try_from(id).ok()?;
    let (ticks_per_second, page_bytes) = (procfs::ticks_per_second(), procfs::page_size());
    let stats =
        procfs::process::all_processes().ok()?.flatten().filter_map(|process| process.stat().ok());
    let group_stats = stats.filter(|stat| stat.pgrp == id);
    let (memory_bytes, cpu_ticks, has_process) =
        group_stats.fold((0, 0, false), |(memory, cpu, _), stat| {
            (memory + stat.rss * page_bytes, cpu + stat.utime + stat.stime, true)
        });
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process are few")]
    has_process.then(|| (memory_bytes, cpu_ticks as f64 / ticks_per_second as f64))
}

/// Returns the disk space of a folder in bytes. `None` if it has more than [`ENTRIES_MAX`] entries.
fn disk_usage(folder: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    /// Unit of `st_blocks` in bytes.
    const BLOCK_BYTES: u64 = 512;
    let (mut bytes, mut entries) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // Errors are ignored, because the process may remove files at the same time.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return None;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * BLOCK_BYTES;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Some(bytes)
}
