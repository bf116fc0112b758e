//! What is counted of a run: outcome classes, and histograms of fixed size by stage, method and
//! class.
//!
//! An engine thread fills one [`Interval`] per second and hands it over; the recorder merges
//! intervals into [`Totals`] and the time series. Nothing here knows plans, sockets or reports.
//! All times are nanoseconds.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

named! {
    /// How a call ended.
    pub enum Class {
        /// A JSON-RPC result with the right id.
        Ok = "ok",
        /// A JSON-RPC error, whatever the HTTP status was unless that is 429.
        RpcError = "rpc_error",
        /// HTTP 429: the server's limit, not its failure.
        Limited = "limited",
        /// Another HTTP status from 400 to 499 without a JSON-RPC error.
        Http4xx = "http4xx" | "http_4xx",
        /// HTTP status from 500 without a JSON-RPC error.
        Http5xx = "http5xx" | "http_5xx",
        /// No whole answer within the timeout; its latency is recorded as the deadline.
        Timeout = "timeout",
        /// The connection could not be made.
        Connect = "connect",
        /// The TLS handshake failed.
        Tls = "tls",
        /// The connection ended before a whole answer.
        Reset = "reset",
        /// Not HTTP, or not a JSON-RPC answer.
        Malformed = "malformed",
        /// An answer to another call.
        WrongId = "wrong_id",
        /// An answer that differs from the reference's.
        WrongAnswer = "wrong_answer",
    }
}

impl Class {
    /// Whether the call counts as failed. A 429 does not: it is counted on its own.
    pub const fn failed(self) -> bool {
        !matches!(self, Class::Ok | Class::Limited)
    }

    /// Whether the server itself told the failure. Silence and broken connections could be ours.
    pub const fn failed_by_server(self) -> bool {
        use Class::{Http4xx, Http5xx, Malformed, RpcError, WrongAnswer, WrongId};
        matches!(self, RpcError | Http4xx | Http5xx | Malformed | WrongId | WrongAnswer)
    }
}

/// Where a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index over all stages of the plan: the stage in which its iteration was due.
    pub stage: u16,
    /// Index into the plan's methods.
    pub method: u16,
    /// How it ended.
    pub class: Class,
}

/// Shortest time that is told apart, in nanoseconds; HdrHistogram rounds it to a power of two.
const TIME_MIN: u64 = 100;
/// Longest time that is told apart, in nanoseconds. Longer ones are counted as this.
pub const TIME_MAX: u64 = 600_000_000_000;
/// Decimal digits kept, which makes a histogram about 200 kB.
const DIGITS: u8 = 3;

/// Times in nanoseconds.
pub type Times = Histogram<u64>;

/// An empty histogram of the one form that all of them share.
pub fn times() -> Times {
    Histogram::new_with_bounds(TIME_MIN, TIME_MAX, DIGITS)
        .expect("the bounds are constants that fit")
}

/// A duration as histograms count it.
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(TIME_MAX)
}

/// Times of the calls in one slot.
#[derive(Clone, Debug)]
pub struct Cell {
    /// From when the call was due.
    pub latency: Times,
    /// From when it was really sent.
    pub service: Times,
}

/// What one engine thread saw between two hand-overs. Its size depends on the plan and on how many
/// slots were used within the interval, not on the number of calls.
#[derive(Debug)]
pub struct Interval {
    /// Which engine thread.
    pub thread: usize,
    /// Start of the interval since the start of the run.
    pub from: Duration,
    /// Its end.
    pub to: Duration,
    methods: usize,
    /// Position in `cells` for each slot, or [`NOWHERE`].
    places: Vec<u16>,
    slots: Vec<Slot>,
    cells: Vec<Cell>,
    /// How late sends were against the plan because of us: from when a call could be sent to when it
    /// was sent. Waiting for a free worker is not in it.
    pub lateness: Times,
    /// By stage: iterations.
    pub iterations: Vec<Iterations>,
    /// From an iteration's due time to the end of its last call.
    pub iteration_time: Times,
    /// Connections and what went through them.
    pub traffic: Traffic,
    /// Time to connect, TCP only.
    pub connect_time: Times,
    /// Time of full TLS handshakes.
    pub handshake_full_time: Times,
    /// Time of resumed TLS handshakes.
    pub handshake_resumed_time: Times,
    /// Values of Retry-After headers, as times.
    pub retry_after: Times,
    /// How many of the calls ended after their scenario's end: their times count, and no rate.
    pub late: BTreeMap<Slot, u64>,
    /// How many of the calls ended after their stage's end and before their scenario's: they count in
    /// no rate of their stage.
    pub carried: BTreeMap<Slot, u64>,
    /// Codes of JSON-RPC errors by method; bounded by [`CODES_MAX`].
    pub codes: BTreeMap<(u16, i64), u64>,
    /// Results that were null, by method.
    pub nulls: Vec<u64>,
    /// Bytes of answers' bodies by method.
    pub answer_bytes: Vec<u64>,
    /// HTTP requests by status; bounded by the 1000 possible ones.
    pub statuses: BTreeMap<u16, u64>,
    /// Calls under way at the end of the interval.
    pub in_flight: u64,
    /// Workers that were in an iteration at the end of the interval.
    pub workers_busy: u64,
    /// Iterations that waited for a worker at the end of the interval.
    pub waiting: u64,
    /// CPU time that the thread used in the interval.
    pub cpu: Duration,
    /// Time that the thread was ready to run but had to wait for a core.
    pub run_delay: Duration,
    /// Time that the thread had nothing to do: it slept, or spun to be punctual.
    pub idle: Duration,
}

const NOWHERE: u16 = u16::MAX;
/// Distinct (method, code) pairs that are counted; further codes are counted as 0.
pub const CODES_MAX: usize = 256;

/// Iterations of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Iterations {
    /// Due by the plan; in the closed model the same as begun.
    pub due: u64,
    /// Begun.
    pub begun: u64,
    /// Of them those that had waited past their scenario's end.
    #[serde(default)]
    pub late: u64,
    /// Ended.
    pub ended: u64,
    /// Of them those that ended after their scenario's end.
    #[serde(default)]
    pub ended_late: u64,
    /// Given up, because no worker was free.
    pub dropped: u64,
    /// Not ended when the run was over.
    pub cut: u64,
}

impl Iterations {
    /// Adds another's counts.
    pub fn add(&mut self, other: Iterations) {
        self.due += other.due;
        self.begun += other.begun;
        self.late += other.late;
        self.ended += other.ended;
        self.ended_late += other.ended_late;
        self.dropped += other.dropped;
        self.cut += other.cut;
    }

    /// Begun while the scenario lasted.
    pub fn in_time(&self) -> u64 {
        self.begun.saturating_sub(self.late)
    }

    /// What came since it stood at `earlier`.
    pub fn since(self, earlier: Iterations) -> Iterations {
        Iterations {
            due: self.due.saturating_sub(earlier.due),
            begun: self.begun.saturating_sub(earlier.begun),
            late: self.late.saturating_sub(earlier.late),
            ended: self.ended.saturating_sub(earlier.ended),
            ended_late: self.ended_late.saturating_sub(earlier.ended_late),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            cut: self.cut.saturating_sub(earlier.cut),
        }
    }
}

/// Connections and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// HTTP requests whose end was seen, however they ended.
    pub requests: u64,
    /// Connections made.
    pub connections: u64,
    /// Connections that could not be made, TLS included.
    pub connections_failed: u64,
    /// Connections that the server closed.
    pub closed_by_server: u64,
    /// Full TLS handshakes.
    pub handshakes_full: u64,
    /// TLS handshakes that resumed a session.
    pub handshakes_resumed: u64,
    /// Connections refused for want of a local port: the generator's limit.
    pub ports_exhausted: u64,
    /// Bytes written to sockets.
    pub bytes_sent: u64,
    /// Bytes read from sockets.
    pub bytes_received: u64,
}

impl Traffic {
    /// Adds another's counts.
    pub fn add(&mut self, other: Traffic) {
        self.requests += other.requests;
        self.connections += other.connections;
        self.connections_failed += other.connections_failed;
        self.closed_by_server += other.closed_by_server;
        self.handshakes_full += other.handshakes_full;
        self.handshakes_resumed += other.handshakes_resumed;
        self.ports_exhausted += other.ports_exhausted;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }

    /// What came since it stood at `earlier`.
    pub fn since(self, earlier: Traffic) -> Traffic {
        let less = u64::saturating_sub;
        Traffic {
            requests: less(self.requests, earlier.requests),
            connections: less(self.connections, earlier.connections),
            connections_failed: less(self.connections_failed, earlier.connections_failed),
            closed_by_server: less(self.closed_by_server, earlier.closed_by_server),
            handshakes_full: less(self.handshakes_full, earlier.handshakes_full),
            handshakes_resumed: less(self.handshakes_resumed, earlier.handshakes_resumed),
            ports_exhausted: less(self.ports_exhausted, earlier.ports_exhausted),
            bytes_sent: less(self.bytes_sent, earlier.bytes_sent),
            bytes_received: less(self.bytes_received, earlier.bytes_received),
        }
    }
}

impl Interval {
    /// An empty interval for a plan with this many stages and methods.
    pub fn new(thread: usize, stages: usize, methods: usize) -> Interval {
        Interval {
            thread,
            from: Duration::ZERO,
            to: Duration::ZERO,
            methods,
            places: vec![NOWHERE; stages * methods * Class::ALL.len()],
            slots: Vec::new(),
            cells: Vec::new(),
            lateness: times(),
            iterations: vec![Iterations::default(); stages],
            iteration_time: times(),
            traffic: Traffic::default(),
            connect_time: times(),
            handshake_full_time: times(),
            handshake_resumed_time: times(),
            retry_after: times(),
            late: BTreeMap::new(),
            carried: BTreeMap::new(),
            codes: BTreeMap::new(),
            nulls: vec![0; methods],
            answer_bytes: vec![0; methods],
            statuses: BTreeMap::new(),
            in_flight: 0,
            workers_busy: 0,
            waiting: 0,
            cpu: Duration::ZERO,
            run_delay: Duration::ZERO,
            idle: Duration::ZERO,
        }
    }

    /// Counts one call; times in nanoseconds.
    pub fn record(&mut self, slot: Slot, latency: u64, service: u64) {
        let cell = self.cell(slot);
        cell.latency.saturating_record(latency);
        cell.service.saturating_record(service);
    }

    fn cell(&mut self, slot: Slot) -> &mut Cell {
        let stage = usize::from(slot.stage) * self.methods + usize::from(slot.method);
        let index = stage * Class::ALL.len() + slot.class as usize;
        let mut place = usize::from(self.places[index]);
        if place == usize::from(NOWHERE) {
            place = self.slots.len();
            self.places[index] =
                u16::try_from(place).expect("the check of a plan bounds its slots");
            self.slots.push(slot);
            if self.cells.len() < self.slots.len() {
                self.cells.push(Cell { latency: times(), service: times() });
            }
        }
        &mut self.cells[place]
    }

    /// Counts the code of a JSON-RPC error.
    pub fn record_code(&mut self, method: u16, code: i64) {
        add_code(&mut self.codes, method, code, 1);
    }

    /// Counts bytes of an answer's body.
    pub fn record_bytes(&mut self, method: u16, count: u64) {
        self.answer_bytes[usize::from(method)] += count;
    }

    /// The slots that were used, with their times.
    pub fn cells(&self) -> impl Iterator<Item = (Slot, &Cell)> {
        self.slots.iter().copied().zip(&self.cells)
    }

    /// Empties it for the next use and keeps its memory.
    pub fn reset(&mut self) {
        self.places.fill(NOWHERE);
        for cell in self.cells.iter_mut().take(self.slots.len()) {
            cell.latency.reset();
            cell.service.reset();
        }
        self.slots.clear();
        self.iterations.fill(Iterations::default());
        for histogram in [
            &mut self.lateness,
            &mut self.iteration_time,
            &mut self.connect_time,
            &mut self.handshake_full_time,
            &mut self.handshake_resumed_time,
            &mut self.retry_after,
        ] {
            if !histogram.is_empty() {
                histogram.reset();
            }
        }
        self.traffic = Traffic::default();
        self.late.clear();
        self.carried.clear();
        self.codes.clear();
        self.nulls.fill(0);
        self.answer_bytes.fill(0);
        self.statuses.clear();
        (self.in_flight, self.workers_busy, self.waiting) = (0, 0, 0);
        (self.cpu, self.run_delay, self.idle) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    }
}

/// Everything counted over a run, or over a part of it.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Times by slot.
    pub cells: BTreeMap<Slot, Cell>,
    /// See [`Interval::lateness`].
    pub lateness: Times,
    /// By stage.
    pub iterations: Vec<Iterations>,
    /// See [`Interval::iteration_time`].
    pub iteration_time: Times,
    /// Connections and bytes.
    pub traffic: Traffic,
    /// See [`Interval::connect_time`].
    pub connect_time: Times,
    /// See [`Interval::handshake_full_time`].
    pub handshake_full_time: Times,
    /// See [`Interval::handshake_resumed_time`].
    pub handshake_resumed_time: Times,
    /// See [`Interval::retry_after`].
    pub retry_after: Times,
    /// See [`Interval::late`].
    pub late: BTreeMap<Slot, u64>,
    /// See [`Interval::carried`].
    pub carried: BTreeMap<Slot, u64>,
    /// Codes of JSON-RPC errors by method; bounded by [`CODES_MAX`].
    pub codes: BTreeMap<(u16, i64), u64>,
    /// Results that were null, by method.
    pub nulls: BTreeMap<u16, u64>,
    /// Bytes of answers' bodies by method.
    pub answer_bytes: BTreeMap<u16, u64>,
    /// HTTP requests by status.
    pub statuses: BTreeMap<u16, u64>,
    /// CPU time of all engine threads.
    pub cpu: Duration,
    /// Run delay of all engine threads.
    pub run_delay: Duration,
    /// Idle time of all engine threads.
    pub idle: Duration,
}

impl Totals {
    /// Nothing yet, for a plan with this many stages.
    pub fn new(stages: usize) -> Totals {
        Totals {
            cells: BTreeMap::new(),
            lateness: times(),
            iterations: vec![Iterations::default(); stages],
            iteration_time: times(),
            traffic: Traffic::default(),
            connect_time: times(),
            handshake_full_time: times(),
            handshake_resumed_time: times(),
            retry_after: times(),
            late: BTreeMap::new(),
            carried: BTreeMap::new(),
            codes: BTreeMap::new(),
            nulls: BTreeMap::new(),
            answer_bytes: BTreeMap::new(),
            statuses: BTreeMap::new(),
            cpu: Duration::ZERO,
            run_delay: Duration::ZERO,
            idle: Duration::ZERO,
        }
    }

    /// Adds what one thread saw in one interval.
    pub fn merge(&mut self, interval: &Interval) {
        for (slot, cell) in interval.cells() {
            let total = self
                .cells
                .entry(slot)
                .or_insert_with(|| Cell { latency: times(), service: times() });
            add(&mut total.latency, &cell.latency);
            add(&mut total.service, &cell.service);
        }
        for (total, part) in self.iterations.iter_mut().zip(&interval.iterations) {
            total.add(*part);
        }
        add(&mut self.lateness, &interval.lateness);
        add(&mut self.iteration_time, &interval.iteration_time);
        add(&mut self.connect_time, &interval.connect_time);
        add(&mut self.handshake_full_time, &interval.handshake_full_time);
        add(&mut self.handshake_resumed_time, &interval.handshake_resumed_time);
        add(&mut self.retry_after, &interval.retry_after);
        self.traffic.add(interval.traffic);
        for (&(method, code), &count) in &interval.codes {
            add_code(&mut self.codes, method, code, count);
        }
        add_counts(&mut self.late, &interval.late);
        add_counts(&mut self.carried, &interval.carried);
        for (total, part) in
            [(&mut self.nulls, &interval.nulls), (&mut self.answer_bytes, &interval.answer_bytes)]
        {
            for (method, count) in (0..).zip(part).filter(|(_, count)| **count > 0) {
                *total.entry(method).or_default() += count;
            }
        }
        for (&status, count) in &interval.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.cpu += interval.cpu;
        self.run_delay += interval.run_delay;
        self.idle += interval.idle;
    }

    /// Empties it for the next use. Cells that were used keep their memory, others give it back.
    pub fn reset(&mut self) {
        self.cells.retain(|_, cell| !cell.latency.is_empty());
        for cell in self.cells.values_mut() {
            cell.latency.reset();
            cell.service.reset();
        }
        for histogram in [
            &mut self.lateness,
            &mut self.iteration_time,
            &mut self.connect_time,
            &mut self.handshake_full_time,
            &mut self.handshake_resumed_time,
            &mut self.retry_after,
        ] {
            if !histogram.is_empty() {
                histogram.reset();
            }
        }
        self.iterations.fill(Iterations::default());
        self.traffic = Traffic::default();
        self.late.clear();
        self.carried.clear();
        self.codes.clear();
        self.nulls.clear();
        self.answer_bytes.clear();
        self.statuses.clear();
        (self.cpu, self.run_delay, self.idle) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Totals) {
        for (&slot, cell) in other.cells.iter().filter(|(_, cell)| !cell.latency.is_empty()) {
            let total = self
                .cells
                .entry(slot)
                .or_insert_with(|| Cell { latency: times(), service: times() });
            add(&mut total.latency, &cell.latency);
            add(&mut total.service, &cell.service);
        }
        for (total, part) in self.iterations.iter_mut().zip(&other.iterations) {
            total.add(*part);
        }
        add(&mut self.lateness, &other.lateness);
        add(&mut self.iteration_time, &other.iteration_time);
        add(&mut self.connect_time, &other.connect_time);
        add(&mut self.handshake_full_time, &other.handshake_full_time);
        add(&mut self.handshake_resumed_time, &other.handshake_resumed_time);
        add(&mut self.retry_after, &other.retry_after);
        self.traffic.add(other.traffic);
        for (&(method, code), &count) in &other.codes {
            add_code(&mut self.codes, method, code, count);
        }
        add_counts(&mut self.late, &other.late);
        add_counts(&mut self.carried, &other.carried);
        add_counts(&mut self.nulls, &other.nulls);
        add_counts(&mut self.answer_bytes, &other.answer_bytes);
        for (&status, count) in &other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.cpu += other.cpu;
        self.run_delay += other.run_delay;
        self.idle += other.idle;
    }

    /// What came since it stood at `earlier`, which must be a former state of it.
    pub fn since(mut self, earlier: &Totals) -> Totals {
        for (slot, cell) in &earlier.cells {
            if let Some(total) = self.cells.get_mut(slot) {
                subtract(&mut total.latency, &cell.latency);
                subtract(&mut total.service, &cell.service);
            }
        }
        self.cells.retain(|_, cell| !cell.latency.is_empty());
        for (total, before) in self.iterations.iter_mut().zip(&earlier.iterations) {
            *total = total.since(*before);
        }
        subtract(&mut self.lateness, &earlier.lateness);
        subtract(&mut self.iteration_time, &earlier.iteration_time);
        subtract(&mut self.connect_time, &earlier.connect_time);
        subtract(&mut self.handshake_full_time, &earlier.handshake_full_time);
        subtract(&mut self.handshake_resumed_time, &earlier.handshake_resumed_time);
        subtract(&mut self.retry_after, &earlier.retry_after);
        self.traffic = self.traffic.since(earlier.traffic);
        less_counts(&mut self.late, &earlier.late);
        less_counts(&mut self.carried, &earlier.carried);
        less_counts(&mut self.codes, &earlier.codes);
        less_counts(&mut self.nulls, &earlier.nulls);
        less_counts(&mut self.answer_bytes, &earlier.answer_bytes);
        less_counts(&mut self.statuses, &earlier.statuses);
        self.cpu = self.cpu.saturating_sub(earlier.cpu);
        self.run_delay = self.run_delay.saturating_sub(earlier.run_delay);
        self.idle = self.idle.saturating_sub(earlier.idle);
        self
    }

    /// Latency of all calls that `wanted` picks, merged.
    pub fn latency(&self, wanted: impl Fn(Slot) -> bool) -> Times {
        let mut merged: Times = times();
        for (_, cell) in self.cells.iter().filter(|(slot, _)| wanted(**slot)) {
            merged.add(&cell.latency).expect("all histograms have one form");
        }
        merged
    }

    /// Number of calls that `wanted` picks and that ended after their scenario's end.
    pub fn count_late(&self, wanted: impl Fn(Slot) -> bool) -> u64 {
        self.late.iter().filter(|(slot, _)| wanted(**slot)).map(|(_, count)| count).sum()
    }

    /// Number of calls that `wanted` picks and that ended after their stage's end.
    pub fn count_carried(&self, wanted: impl Fn(Slot) -> bool) -> u64 {
        let both = self.late.iter().chain(&self.carried);
        both.filter(|(slot, _)| wanted(**slot)).map(|(_, count)| count).sum()
    }

    /// Number of calls that `wanted` picks.
    pub fn count(&self, wanted: impl Fn(Slot) -> bool) -> u64 {
        let picked = self.cells.iter().filter(|(slot, _)| wanted(**slot));
        picked.map(|(_, cell)| cell.latency.len()).sum()
    }
}

/// Adds a histogram to another.
pub fn add(total: &mut Times, part: &Times) {
    if !part.is_empty() {
        total.add(part).expect("all histograms have one form");
    }
}

fn subtract(total: &mut Times, before: &Times) {
    if !before.is_empty() {
        total.subtract(before).expect("it holds all that it held before");
    }
}

fn add_code(codes: &mut BTreeMap<(u16, i64), u64>, method: u16, code: i64, count: u64) {
    let known = codes.len() < CODES_MAX || codes.contains_key(&(method, code));
    *codes.entry((method, if known { code } else { 0 })).or_default() += count;
}

fn add_counts<K: Ord + Copy>(total: &mut BTreeMap<K, u64>, part: &BTreeMap<K, u64>) {
    for (&key, count) in part {
        *total.entry(key).or_default() += count;
    }
}

fn less_counts<K: Ord>(total: &mut BTreeMap<K, u64>, before: &BTreeMap<K, u64>) {
    for (key, count) in before {
        if let Some(total) = total.get_mut(key) {
            *total = total.saturating_sub(*count);
        }
    }
    total.retain(|_, count| *count > 0);
}

#[cfg(test)]
mod tests {
    //! Goal: what a server says cannot make a record grow.

    use super::*;

    #[test]
    fn codes_are_bounded_however_many_intervals_bring_others() {
        let (mut totals, mut sum) = (Totals::new(1), Totals::new(1));
        for second in 0..10 {
            let mut interval = Interval::new(0, 1, 1);
            (0..CODES_MAX as i64)
                .for_each(|code| interval.record_code(0, second * 1000 + code + 1));
            totals.merge(&interval);
            sum.add(&totals);
        }
        assert_eq!(totals.codes.len(), CODES_MAX + 1, "and one for all others");
        assert_eq!(sum.codes.len(), CODES_MAX + 1);
        assert_eq!(totals.codes.values().sum::<u64>(), 10 * CODES_MAX as u64);
    }
}
