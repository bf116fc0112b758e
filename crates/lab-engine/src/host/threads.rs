//! Samples the threads of watched processes: the busiest threads, and the waits for a core or a
//! disk.
//!
//! `/proc/PID/task/*/schedstat` has three numbers: nanoseconds on a core, nanoseconds for which the
//! thread was runnable but no core was free, and time slices. The second number shows directly that
//! a process lacks CPU (<https://docs.kernel.org/scheduler/sched-stats.html>).
//!
//! `host.rs` explains `host!`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;

use super::text;
use super::values::{Values, float, rate};

/// Maximum number of threads per group that get their own series: the values of one metric over
/// time.
const SERIES_MAX: usize = 8;
/// Minimum share of one core's time that a thread must use to get its own series.
const SERIES_SHARE_MIN: f64 = 0.2;
/// Maximum number of threads per process that are read.
const THREADS_MAX: usize = 1_024;
/// Maximum number of threads of a process for which states and context switches are read. These
/// values are costly to read, so a process with more threads has none of them.
const STATES_MAX: usize = 64;

/// Threads of one group of processes (`process.rs`) at the last reading.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// Time of the last reading.
    last_time: Option<Instant>,
    /// Counters of the last reading, by process id and thread id.
    previous: BTreeMap<ThreadId, Counters>,
    /// The name of each thread's series, for the threads that have their own series.
    series_names: BTreeMap<ThreadId, String>,
}

/// Process id and thread id.
type ThreadId = (u32, u32);

/// Counters of one thread.
#[derive(Debug)]
struct Counters {
    /// Seconds on a core.
    cpu: f64,
    /// Seconds for which the thread was runnable, but no core was free.
    delay: f64,
    /// Number of times that the thread gave up its core to wait for something; 0 if the number was
    /// not read.
    voluntary_switches: f64,
    /// Number of times that the kernel preempted the thread; 0 if the number was not read.
    involuntary_switches: f64,
}

/// CPU time and run delay of one thread between two readings, in seconds per second. See
/// [`Counters`].
#[derive(Debug, PartialEq)]
struct Usage {
    thread: ThreadId,
    cpu: f64,
    delay: f64,
}

impl Threads {
    /// Discards the last reading, so that the next reading has no rates.
    pub(super) fn reset(&mut self) {
        self.last_time = None;
        self.previous.clear();
    }

    /// Reads all threads of these processes and adds the changes since the last reading. `name` is
    /// the name of the group.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        name: &str,
        pids: impl Iterator<Item = u32>,
        values: &mut Values,
    ) {
        let (mut threads, mut blocked) = (BTreeMap::new(), None);
        for pid in pids {
            read_threads(pid, &mut threads, &mut blocked);
        }
        if let Some(last_time) = self.last_time {
            let elapsed = now.saturating_duration_since(last_time);
            self.add_values(name, &compute_usages(&self.previous, &threads, elapsed), values);
            add_switches(name, &self.previous, &threads, elapsed, values);
        }
        values.add_of(host!("process.*.threads_blocked"), name, blocked);
        self.series_names.retain(|thread, _| threads.contains_key(thread));
        (self.last_time, self.previous) = (Some(now), threads);
    }

    /// Adds the sum of all run delays, the values of the busiest thread, and the values of the
    /// threads that have their own series.
    fn add_values(&mut self, name: &str, usages: &[Usage], values: &mut Values) {
        let delay: f64 = usages.iter().map(|usage| usage.delay).sum();
        values.add_of(host!("process.*.run_delay"), name, delay);
        let busiest = usages.iter().max_by(|first, second| first.cpu.total_cmp(&second.cpu));
        let Some(busiest) = busiest else { return };
        values.add_of(host!("process.*.thread_max"), name, busiest.cpu);
        values.add_of(host!("process.*.thread_max_delay"), name, busiest.delay);
        for usage in usages {
            if usage.cpu >= SERIES_SHARE_MIN && self.series_names.len() < SERIES_MAX {
                let series_name = self.series_names.entry(usage.thread);
                series_name.or_insert_with(|| series_name_of(usage.thread));
            }
            if let Some(thread) = self.series_names.get(&usage.thread) {
                let owner = format!("{name}.thread.{thread}");
                values.add_of(host!("process.*.thread.*.cpu"), &owner, usage.cpu);
                values.add_of(host!("process.*.thread.*.delay"), &owner, usage.delay);
            }
        }
    }
}

/// Returns the name of a thread's series: its name and id, because many threads share a name.
fn series_name_of((pid, tid): ThreadId) -> String {
    let name = text::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    format!("{}-{tid}", metric_name_part(&name))
}

/// Returns a process or thread name as part of a metric's name. Characters other than letters,
/// digits, `-` and `_` become `_`.
pub(super) fn metric_name_part(name: &str) -> String {
    let replace = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }
    };
    name.trim().chars().map(replace).collect()
}

/// Reads all threads of a process. Adds the number of threads that wait for a disk to `blocked`. If
/// the process has more than [`STATES_MAX`] threads, `blocked` stays unchanged.
fn read_threads(pid: u32, threads: &mut BTreeMap<ThreadId, Counters>, blocked: &mut Option<f64>) {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ids: Vec<u32> = ids.take(THREADS_MAX).collect();
    let reads_states = ids.len() <= STATES_MAX;
    for tid in ids {
        let Some(text) = text::read(format!("/proc/{pid}/task/{tid}/schedstat")) else { continue };
        let mut words = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (Some(cpu_ns), Some(delay_ns)) = (words.next(), words.next()) else { continue };
        let mut counters = Counters {
            cpu: float(cpu_ns) / 1e9,
            delay: float(delay_ns) / 1e9,
            voluntary_switches: 0.0,
            involuntary_switches: 0.0,
        };
        if reads_states {
            let Some(status) = text::read(format!("/proc/{pid}/task/{tid}/status")) else {
                continue;
            };
            let read = |name: &str| text::find_value(&status, name).unwrap_or(0.0);
            counters.voluntary_switches = read("voluntary_ctxt_switches");
            counters.involuntary_switches = read("nonvoluntary_ctxt_switches");
            // State D is an uninterruptible wait, usually for a disk.
            let is_blocked = f64::from(u8::from(status.contains("\nState:\tD")));
            *blocked = Some(blocked.unwrap_or(0.0) + is_blocked);
        }
        threads.insert((pid, tid), counters);
    }
}

/// Returns the usage of each thread between two readings.
fn compute_usages(
    previous: &BTreeMap<ThreadId, Counters>,
    now: &BTreeMap<ThreadId, Counters>,
    elapsed: Duration,
) -> Vec<Usage> {
    let usage = |(thread, now): (&ThreadId, &Counters)| {
        // A new thread did all its work since the previous reading.
        let (previous_cpu, previous_delay) =
            previous.get(thread).map_or((0.0, 0.0), |previous| (previous.cpu, previous.delay));
        Usage {
            thread: *thread,
            cpu: rate(now.cpu, previous_cpu, elapsed),
            delay: rate(now.delay, previous_delay, elapsed),
        }
    };
    now.iter().map(usage).collect()
}

/// Adds the rates of context switches of all threads together.
fn add_switches(
    name: &str,
    previous: &BTreeMap<ThreadId, Counters>,
    now: &BTreeMap<ThreadId, Counters>,
    elapsed: Duration,
    values: &mut Values,
) {
    let (mut voluntary, mut involuntary) = (0.0, 0.0);
    for (thread, now) in now {
        if let Some(previous) = previous.get(thread) {
            voluntary += rate(now.voluntary_switches, previous.voluntary_switches, elapsed);
            involuntary += rate(now.involuntary_switches, previous.involuntary_switches, elapsed);
        }
    }
    if voluntary + involuntary > 0.0 {
        values.add_of(host!("process.*.switches_voluntary"), name, voluntary);
        values.add_of(host!("process.*.switches_involuntary"), name, involuntary);
    }
}

#[cfg(test)]
mod tests;
