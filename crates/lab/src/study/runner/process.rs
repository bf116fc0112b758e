//! A process in a group of its own: started, looked at, ended by its id.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};

/// Lines that are kept of what a process says, and characters of one.
const LINES_KEPT: usize = 5;
const LINE_BYTES_MAX: u64 = 400;
/// Time to end in order, until it is ended at once.
const GRACE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(10);
/// Entries of a folder that are looked at, at all depths.
const ENTRIES_MAX: usize = 20_000;

/// What the host says of a process and its folder.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Look {
    /// Bytes of memory of the group's processes.
    pub(super) memory: Option<u64>,
    /// CPU seconds of the group's processes.
    pub(super) cpu: Option<f64>,
    /// Bytes on disk of its folder.
    pub(super) disk: Option<u64>,
}

/// The groups that run, for whoever must end them all at once because the program ends.
#[derive(Clone, Debug, Default)]
pub struct Groups(Arc<Mutex<Vec<u32>>>);

impl Groups {
    /// Kills every process of every group.
    pub fn kill(&self) {
        self.0.lock().iter().for_each(|id| signal(*id, Signal::KILL));
    }
}

/// A process that is ended when this is dropped, with all that it started.
pub(super) struct Process {
    groups: Groups,
    child: Child,
    said: Arc<Mutex<VecDeque<String>>>,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts a command line.
    pub(super) fn start(
        command: &[String],
        env: &BTreeMap<String, String>,
        groups: &Groups,
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
        let said = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            // It ends with the last process that holds the other end; nobody waits for it.
            std::thread::Builder::new()
                .name("study-stderr".to_owned())
                .spawn(move || keep(stderr, &said))
                // Without it the process would wait for a reader; its words are not worth that.
                .ok();
        }
        Ok(Process { groups: groups.clone(), child, said, ended: None })
    }

    /// How it ended; none while it runs.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
            if self.ended.is_some() {
                // What it started must not go on beside the next run; and its last words may still
                // be on their way.
                signal(self.child.id(), Signal::KILL);
                self.groups.0.lock().retain(|id| *id != self.child.id());
                let begun = Instant::now();
                while begun.elapsed() < TICK * 10 && Arc::strong_count(&self.said) > 1 {
                    std::thread::park_timeout(TICK);
                }
            }
        }
        self.ended
    }

    /// The last lines that it wrote to standard error.
    pub(super) fn last_words(&self) -> Vec<String> {
        self.said.lock().iter().cloned().collect()
    }

    /// Asks it to end, and ends it at once if it does not.
    pub(super) fn end(&mut self) {
        if self.ended().is_some() {
            return;
        }
        self.ask_to_end();
        let begun = Instant::now();
        while begun.elapsed() < GRACE && self.ended().is_none() {
            std::thread::park_timeout(TICK);
        }
        if self.ended.is_none() {
            signal(self.child.id(), Signal::KILL);
            self.ended = self.child.wait().ok();
            self.groups.0.lock().retain(|id| *id != self.child.id());
        }
    }

    /// Asks it to end, and does not wait.
    pub(super) fn ask_to_end(&self) {
        if self.ended.is_none() {
            signal(self.child.id(), Signal::TERM);
        }
    }

    /// Looks at its group and its folder.
    pub(super) fn look(&self, folder: &Path) -> Look {
        let (memory, cpu) = group(self.child.id()).unzip();
        Look { memory, cpu, disk: disk(folder) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// To all of a group, which has the id of its first process.
fn signal(id: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // A group without members needs no signal.
        let _ = kill_process_group(pid, signal);
    }
}

/// Keeps the last lines of what a process says.
fn keep(stderr: impl Read, said: &Mutex<VecDeque<String>>) {
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
            let mut said = said.lock();
            if said.len() >= LINES_KEPT {
                said.pop_front();
            }
            said.push_back(text);
        }
    }
}

/// Bytes and CPU seconds of all processes of a group.
fn group(id: u32) -> Option<(u64, f64)> {
    let id = i32::try_from(id).ok()?;
    let (ticks, page) = (procfs::ticks_per_second(), procfs::page_size());
    let stats = procfs::process::all_processes().ok()?.flatten().filter_map(|one| one.stat().ok());
    let own = stats.filter(|stat| stat.pgrp == id);
    let sums = own.fold((0, 0, false), |(memory, cpu, _), stat| {
        (memory + stat.rss * page, cpu + stat.utime + stat.stime, true)
    });
    #[expect(clippy::cast_precision_loss, reason = "ticks of a process are few")]
    sums.2.then(|| (sums.0, sums.1 as f64 / ticks as f64))
}

/// Bytes on disk below a folder; none if it holds too many entries to look at each second.
fn disk(folder: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK: u64 = 512;
    let (mut bytes, mut seen) = (0, 0);
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        // Files come and go while it runs.
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX {
                return None;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            bytes += metadata.blocks() * BLOCK;
            if metadata.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Some(bytes)
}
