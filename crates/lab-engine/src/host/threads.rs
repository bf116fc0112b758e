//! Threads of watched processes: the busiest ones, and those that wait for a core or a disk.
//!
//! `/proc/PID/task/*/schedstat` has nanoseconds on a core, nanoseconds runnable without one, and
//! time slices. The second number shows directly that a process lacks CPU
//! (<https://docs.kernel.org/scheduler/sched-stats.html>).

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use lab_model::metrics::host::host;

use super::text;
use super::values::{Values, float, rate};

/// Maximum number of threads per group that get their own series.
const NAMED_MAX: usize = 8;
/// Minimum busy share of one core at which a thread gets its own series.
const NAMED_SHARE: f64 = 0.2;
/// Maximum number of threads per process that are read.
const THREADS_MAX: usize = 1_024;
/// Maximum number of threads whose states and switches are read too, which costs more.
const STATES_MAX: usize = 64;

/// Threads of one group of processes at the last reading.
#[derive(Debug, Default)]
pub(super) struct Threads {
    before: Option<Instant>,
    known: BTreeMap<(u32, u32), Thread>,
    /// Threads with their own series, and the name of the series.
    named: BTreeMap<(u32, u32), String>,
}

#[derive(Debug)]
struct Thread {
    ran: f64,
    waited: f64,
    voluntary: f64,
    involuntary: f64,
}

/// Values of one thread between two readings, per second.
#[derive(Debug, PartialEq)]
struct Use {
    thread: (u32, u32),
    cpu: f64,
    delay: f64,
}

impl Threads {
    /// Discards the last reading, so that the next reading is the first one.
    pub(super) fn begin_anew(&mut self) {
        self.before = None;
        self.known.clear();
    }

    /// Reads all threads of these processes and adds the changes since the last reading.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        name: &str,
        pids: impl Iterator<Item = u32>,
        values: &mut Values,
    ) {
        let (mut found, mut blocked) = (BTreeMap::new(), None);
        for pid in pids {
            read(pid, &mut found, &mut blocked);
        }
        if let Some(then) = self.before {
            let time = now.saturating_duration_since(then);
            let uses = uses(&self.known, &found, time);
            self.put(name, &uses, values);
            put_switches(name, &self.known, &found, time, values);
        }
        values.put_of(host!("process.*.threads_blocked"), name, blocked);
        self.named.retain(|thread, _| found.contains_key(thread));
        (self.before, self.known) = (Some(now), found);
    }

    fn put(&mut self, name: &str, uses: &[Use], values: &mut Values) {
        let delay: f64 = uses.iter().map(|one| one.delay).sum();
        values.put_of(host!("process.*.run_delay"), name, delay);
        let Some(busiest) = uses.iter().max_by(|one, other| one.cpu.total_cmp(&other.cpu)) else {
            return;
        };
        values.put_of(host!("process.*.thread_max"), name, busiest.cpu);
        values.put_of(host!("process.*.thread_max_delay"), name, busiest.delay);
        for one in uses {
            if one.cpu >= NAMED_SHARE && self.named.len() < NAMED_MAX {
                self.named.entry(one.thread).or_insert_with(|| series(one.thread));
            }
            if let Some(thread) = self.named.get(&one.thread) {
                let owner = format!("{name}.thread.{thread}");
                values.put_of(host!("process.*.thread.*.cpu"), &owner, one.cpu);
                values.put_of(host!("process.*.thread.*.delay"), &owner, one.delay);
            }
        }
    }
}

/// Returns the name of a thread's series: its name and id, because many threads share a name.
fn series((pid, tid): (u32, u32)) -> String {
    let name = text::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    format!("{}-{tid}", plain(&name))
}

/// Returns a name as part of a metric's: letters, digits, `-` and `_`.
pub(super) fn plain(name: &str) -> String {
    let kept = |letter: char| {
        if letter.is_ascii_alphanumeric() || letter == '-' { letter } else { '_' }
    };
    name.trim().chars().map(kept).collect()
}

fn read(pid: u32, found: &mut BTreeMap<(u32, u32), Thread>, blocked: &mut Option<f64>) {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let ids: Vec<u32> = ids.take(THREADS_MAX).collect();
    let with_states = ids.len() <= STATES_MAX;
    for tid in ids {
        let Some(text) = text::read(format!("/proc/{pid}/task/{tid}/schedstat")) else { continue };
        let mut words = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        let (Some(ran), Some(waited)) = (words.next(), words.next()) else { continue };
        let mut thread = Thread {
            ran: float(ran) / 1e9,
            waited: float(waited) / 1e9,
            voluntary: 0.0,
            involuntary: 0.0,
        };
        if with_states {
            let Some(status) = text::read(format!("/proc/{pid}/task/{tid}/status")) else {
                continue;
            };
            let read = |name: &str| text::value(&status, name).unwrap_or(0.0);
            thread.voluntary = read("voluntary_ctxt_switches");
            thread.involuntary = read("nonvoluntary_ctxt_switches");
            let waits = f64::from(u8::from(status.contains("\nState:\tD")));
            *blocked = Some(blocked.unwrap_or(0.0) + waits);
        }
        found.insert((pid, tid), thread);
    }
}

fn uses(
    before: &BTreeMap<(u32, u32), Thread>,
    now: &BTreeMap<(u32, u32), Thread>,
    time: Duration,
) -> Vec<Use> {
    let of = |(thread, now): (&(u32, u32), &Thread)| {
        // A new thread did all its work within this time.
        let (ran, waited) = before.get(thread).map_or((0.0, 0.0), |then| (then.ran, then.waited));
        Use {
            thread: *thread,
            cpu: rate(now.ran, ran, time),
            delay: rate(now.waited, waited, time),
        }
    };
    now.iter().map(of).collect()
}

fn put_switches(
    name: &str,
    before: &BTreeMap<(u32, u32), Thread>,
    now: &BTreeMap<(u32, u32), Thread>,
    time: Duration,
    values: &mut Values,
) {
    let (mut voluntary, mut involuntary) = (0.0, 0.0);
    for (thread, now) in now {
        if let Some(then) = before.get(thread) {
            voluntary += rate(now.voluntary, then.voluntary, time);
            involuntary += rate(now.involuntary, then.involuntary, time);
        }
    }
    if voluntary + involuntary > 0.0 {
        values.put_of(host!("process.*.switches_voluntary"), name, voluntary);
        values.put_of(host!("process.*.switches_involuntary"), name, involuntary);
    }
}

#[cfg(test)]
mod tests;
