//! Samples watched processes: CPU, memory, open files, disk traffic, and totals over the run.
//!
//! Processes with the same name and role form a group, such as nginx and its workers. The role is
//! the reason why a process is watched: it is the load generator, the target, or a server behind
//! the target, or the plan names it. The name of the group is part of the metric names.
//! `threads.rs` reads the threads, and `cgroup.rs` the limits.
//!
//! `host.rs` explains `host!`.

use std::fs;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;
use lab_model::results::run::{ProcessFacts, ProcessRole};
use procfs::process::{Process, Stat};

use super::cgroup::{Cgroup, Mounts};
use super::pace::Pace;
use super::threads::{Threads, metric_name_part};
use super::values::{Values, float, rate};

/// Maximum number of watched processes. Further processes, such as the workers of a large server,
/// are not watched.
pub(super) const PROCESSES_MAX: usize = 256;
/// Shortest interval between two readings of all threads of a group.
const THREADS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Reading the threads of a group uses at most 1/`THREADS_CPU_DIVISOR` of a core. Counting the open
/// files of a group has the same limit.
const THREADS_CPU_DIVISOR: u32 = 250;
/// Shortest interval between two counts of open files. A process may have thousands of files.
const FILES_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// All watched processes.
#[derive(Debug)]
pub(super) struct Processes {
    groups: Vec<Group>,
    mounts: Mounts,
}

/// Processes with the same name and role.
#[derive(Debug)]
struct Group {
    /// Name of the program.
    program: String,
    /// Unique name of the group, which `unique_name` derives from `program`.
    name: String,
    role: ProcessRole,
    /// Running and ended processes of the group.
    members: Vec<Member>,
    threads: Threads,
    /// Decides when the threads are read.
    threads_pace: Pace,
    /// Decides when the open files are counted.
    files_pace: Pace,
    /// The cgroup of the first member.
    cgroup: Cgroup,
    /// Time and counters of the last reading.
    previous: Option<(Instant, Counters)>,
    /// Largest memory of all members together, in bytes.
    memory_max: f64,
    /// True if a member has ended.
    restarted: bool,
}

/// A process of a group.
#[derive(Debug)]
struct Member {
    pid: u32,
    /// Start time in ticks since the host's boot. A process that reuses the id has another start
    /// time.
    started: u64,
    /// CPU seconds that the process had used at the start of the run. For a process that was found
    /// later, the CPU seconds at that time.
    cpu_start: f64,
    /// Counters at the last reading.
    last: Counters,
    /// True once the process has ended.
    ended: bool,
}

/// Counters of a process, or their sums over the members of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    /// CPU seconds.
    cpu: f64,
    /// CPU seconds in user mode.
    user: f64,
    /// Page faults that needed a disk access.
    major_faults: f64,
    /// `None` if the kernel does not let this process read it.
    disk_bytes: Option<DiskBytes>,
}

/// Bytes read from and written to disks.
#[derive(Clone, Copy, Debug)]
struct DiskBytes {
    read: f64,
    written: f64,
}

impl Processes {
    pub(super) fn new() -> Processes {
        Processes { groups: Vec::new(), mounts: Mounts::read() }
    }

    /// Starts to watch a process. Returns false if the process does not exist or is already
    /// watched, or if [`PROCESSES_MAX`] is reached.
    pub(super) fn add(&mut self, pid: u32, role: ProcessRole) -> bool {
        let has_process =
            |group: &Group| group.members.iter().any(|member| member.pid == pid && !member.ended);
        // In tests, the process of the load generator may also be the target. It is watched in both
        // roles.
        let is_watched = |group: &Group| {
            let may_repeat = group.role == ProcessRole::Generator && role == ProcessRole::Target;
            has_process(group) && !may_repeat
        };
        if self.is_full() || self.groups.iter().any(is_watched) {
            return false;
        }
        let Some(stat) = read_stat(pid) else { return false };
        let last = Counters::read(&stat, pid);
        let (started, cpu_start) = (stat.starttime, last.cpu);
        let group = self.find_or_add_group(&stat, role, pid);
        group.members.push(Member { pid, started, cpu_start, last, ended: false });
        // With a new member, the sums over all members cannot be compared with the previous sums.
        group.previous = None;
        group.threads.reset();
        true
    }

    /// Returns true if no further process can be watched.
    pub(super) fn is_full(&self) -> bool {
        let members: usize = self.groups.iter().map(|group| group.members.len()).sum();
        members >= PROCESSES_MAX
    }

    /// Returns the group of a process with this role.
    fn find_or_add_group(&mut self, stat: &Stat, role: ProcessRole, pid: u32) -> &mut Group {
        let program = match role {
            ProcessRole::Generator => "generator".to_owned(),
            _ => metric_name_part(&stat.comm),
        };
        let is_same_group = |group: &Group| group.role == role && group.program == program;
        let index = self.groups.iter().position(is_same_group).unwrap_or_else(|| {
            let name = unique_name(&self.groups, program.clone());
            self.groups.push(Group {
                program,
                name,
                role,
                members: Vec::new(),
                threads: Threads::default(),
                threads_pace: Pace::new(THREADS_INTERVAL_MIN, THREADS_CPU_DIVISOR),
                files_pace: Pace::new(FILES_INTERVAL_MIN, THREADS_CPU_DIVISOR),
                cgroup: Cgroup::of(pid, &self.mounts),
                previous: None,
                memory_max: 0.0,
                restarted: false,
            });
            self.groups.len() - 1
        });
        &mut self.groups[index]
    }

    /// Returns the ids of the running processes with a role.
    pub(super) fn pids(&self, role: ProcessRole) -> impl Iterator<Item = u32> {
        let groups = self.groups.iter().filter(move |group| group.role == role);
        groups.flat_map(Group::alive)
    }

    /// Returns the name of a watched process's group, or `None` if the process is not watched.
    pub(super) fn name(&self, pid: u32) -> Option<&str> {
        let group = self.groups.iter().find(|group| group.alive().any(|member| member == pid))?;
        Some(&group.name)
    }

    /// Adds the changes of all groups since the last call.
    pub(super) fn sample(&mut self, now: Instant, values: &mut Values) {
        for group in &mut self.groups {
            group.sample(now, values);
        }
    }

    /// Marks the start of the run. The totals exclude earlier CPU time.
    pub(super) fn start_run(&mut self) {
        for member in self.groups.iter_mut().flat_map(|group| &mut group.members) {
            member.cpu_start = member.last.cpu;
        }
    }

    /// Returns the number of cores that the target's affinity and CPU quota allow it to use.
    /// Returns `None` if the target's process is unknown, or if its affinity cannot be read.
    pub(super) fn target_cores(&self) -> Option<f64> {
        let groups = self.groups.iter().filter(|group| group.role == ProcessRole::Target);
        let allowed = groups.filter_map(|group| {
            let cores = count_allowed_cores(group.alive().next()?)?;
            Some(group.cgroup.cpu_limit.map_or(cores, |limit| limit.min(cores)))
        });
        allowed.reduce(f64::max)
    }

    /// Returns the totals of all processes.
    pub(super) fn facts(&self) -> Vec<ProcessFacts> {
        let mut facts: Vec<ProcessFacts> = self.groups.iter().map(Group::facts).collect();
        facts.sort_by_key(|process| process.role);
        facts
    }
}

/// Returns `name`, or `name-2`, `name-3` and so on if the name is taken. Target and upstream may
/// run the same program.
fn unique_name(groups: &[Group], name: String) -> String {
    let is_taken = |name: &str| groups.iter().any(|group| group.name == name);
    let mut unique = name.clone();
    let mut number = 2;
    while is_taken(&unique) {
        unique = format!("{name}-{number}");
        number += 1;
    }
    unique
}

impl Group {
    /// Returns the ids of the members that have not ended.
    fn alive(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter(|member| !member.ended).map(|member| member.pid)
    }

    /// Adds the changes of the group since the last call.
    fn sample(&mut self, now: Instant, values: &mut Values) {
        let page_bytes = float(procfs::page_size());
        let name = &self.name;
        let (mut threads, mut memory_bytes) = (0.0, 0.0);
        for member in self.members.iter_mut().filter(|member| !member.ended) {
            let stat = read_stat(member.pid).filter(|stat| stat.starttime == member.started);
            let Some(stat) = stat else {
                member.ended = true;
                self.restarted = true;
                continue;
            };
            member.last = Counters::read(&stat, member.pid);
            threads += float(u64::try_from(stat.num_threads).unwrap_or(0));
            memory_bytes += float(stat.rss) * page_bytes;
        }
        self.memory_max = self.memory_max.max(memory_bytes);
        values.add_of(host!("process.*.threads"), name, threads);
        values.add_of(host!("process.*.memory_bytes"), name, memory_bytes);
        // The sums include ended members, so that they never decrease.
        let counters = self.members.iter().map(|member| member.last);
        let counters = counters.fold(Counters::default(), Counters::plus);
        if let Some((last_time, previous)) = self.previous {
            counters.add_values(previous, now.saturating_duration_since(last_time), name, values);
        }
        self.previous = Some((now, counters));
        self.cgroup.sample(now, name, values);
        self.sample_costly(now, values);
    }

    /// Adds the values that are expensive to read, if their next reading is due.
    fn sample_costly(&mut self, now: Instant, values: &mut Values) {
        let pids: Vec<u32> = self.alive().collect();
        if self.threads_pace.is_due(now) {
            let started = Instant::now();
            self.threads.sample(now, &self.name, pids.iter().copied(), values);
            self.threads_pace.record(started, Instant::now());
        }
        if self.files_pace.is_due(now) {
            let started = Instant::now();
            let open: f64 = pids.iter().filter_map(|pid| count_files(*pid)).sum();
            values.add_of(host!("process.*.files"), &self.name, open);
            let limit = pids.first().and_then(|pid| read_files_limit(*pid));
            values.add_of(host!("process.*.files_limit"), &self.name, limit);
            self.files_pace.record(started, Instant::now());
        }
    }

    /// Returns the totals of the group over the run.
    fn facts(&self) -> ProcessFacts {
        let alive: Vec<u32> = self.alive().collect();
        let all_pids = || self.members.iter().map(|member| member.pid).collect();
        let cpu = self.members.iter().map(|member| member.last.cpu - member.cpu_start);
        ProcessFacts {
            name: self.name.clone(),
            role: self.role,
            pids: if alive.is_empty() { all_pids() } else { alive },
            cpu: cpu.sum(),
            cpu_ms_per_request: None,
            memory_bytes_max: self.memory_max,
            restarted: self.restarted,
        }
    }
}

impl Counters {
    fn read(stat: &Stat, pid: u32) -> Counters {
        let seconds = |ticks: u64| float(ticks) / float(procfs::ticks_per_second());
        Counters {
            cpu: seconds(stat.utime + stat.stime),
            user: seconds(stat.utime),
            major_faults: float(stat.majflt),
            disk_bytes: read_disk_bytes(pid),
        }
    }

    /// Returns the sums of two processes' counters.
    fn plus(self, other: Counters) -> Counters {
        let disk_bytes = match (self.disk_bytes, other.disk_bytes) {
            (Some(own), Some(others)) => Some(DiskBytes {
                read: own.read + others.read,
                written: own.written + others.written,
            }),
            (own, others) => own.or(others),
        };
        Counters {
            cpu: self.cpu + other.cpu,
            user: self.user + other.user,
            major_faults: self.major_faults + other.major_faults,
            disk_bytes,
        }
    }

    /// Adds the changes since `previous`, which was read `elapsed` earlier.
    fn add_values(&self, previous: Counters, elapsed: Duration, name: &str, values: &mut Values) {
        let mut add = |metric, value: f64| values.add_of(metric, name, value);
        let per_second = |now, previous| rate(now, previous, elapsed);
        let cpu = per_second(self.cpu, previous.cpu);
        let user = per_second(self.user, previous.user);
        add(host!("process.*.cpu"), cpu);
        add(host!("process.*.cpu_user"), user);
        add(host!("process.*.cpu_system"), (cpu - user).max(0.0));
        let major_faults = per_second(self.major_faults, previous.major_faults);
        add(host!("process.*.major_faults"), major_faults);
        if let Some((now, previous)) = self.disk_bytes.zip(previous.disk_bytes) {
            add(host!("process.*.read_bytes"), per_second(now.read, previous.read));
            add(host!("process.*.write_bytes"), per_second(now.written, previous.written));
        }
    }
}

fn find_process(pid: u32) -> Option<Process> {
    Process::new(i32::try_from(pid).ok()?).ok()
}

/// Returns the state of a running process. Returns `None` if the process has ended or cannot be
/// read. A zombie counts as ended.
fn read_stat(pid: u32) -> Option<Stat> {
    find_process(pid)?.stat().ok().filter(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Reads the disk traffic of a process. Returns `None` if the kernel forbids it, because only root
/// can read the traffic of other users' processes.
fn read_disk_bytes(pid: u32) -> Option<DiskBytes> {
    let io = find_process(pid)?.io().ok()?;
    Some(DiskBytes { read: float(io.read_bytes), written: float(io.write_bytes) })
}

/// Returns the number of open files of a process. Since Linux 6.2, the size of the folder
/// `/proc/PID/fd` is this number. Older kernels report the size 0, so the entries are counted.
/// Returns `None` if the folder cannot be read.
fn count_files(pid: u32) -> Option<f64> {
    let folder = format!("/proc/{pid}/fd");
    let size = fs::metadata(&folder).ok()?.len();
    let count_entries = || fs::read_dir(&folder).map_or(0, |entries| entries.count() as u64);
    Some(float(if size > 0 { size } else { count_entries() }))
}

/// Returns the maximum number of open files of a process. Returns `None` if the number is unlimited
/// or cannot be read.
fn read_files_limit(pid: u32) -> Option<f64> {
    match find_process(pid)?.limits().ok()?.max_open_files.soft_limit {
        procfs::process::LimitValue::Value(limit) => Some(float(limit)),
        procfs::process::LimitValue::Unlimited => None,
    }
}

/// Returns the number of cores on which a process may run, or `None` if the number cannot be read.
fn count_allowed_cores(pid: u32) -> Option<f64> {
    let list = find_process(pid)?.status().ok()?.cpus_allowed_list?;
    let cores: u32 = list.iter().map(|(first, last)| last.saturating_sub(*first) + 1).sum();
    Some(f64::from(cores).min(super::machine::count_cores()))
}

#[cfg(test)]
mod tests;
