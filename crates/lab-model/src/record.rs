//! Counters of a run: numbers of calls by class, and histograms of fixed size by stage, method and
//! class. The class of a call says how the call ended. A stage is a part of the planned load. A
//! slot is a combination of stage, method and class. A cell has the times of the calls of one slot.
//!
//! Each thread of the load generator fills one [`Interval`] per second, and passes it to the
//! recorder (`crates/lab-engine/src/recorder.rs`). The recorder merges intervals into [`Totals`]
//! and the time series. Times are in nanoseconds, except in a published [`Row`].

mod cell;
mod row;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use hdrhistogram::Histogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::named::named;

pub use cell::Cell;
pub use row::{ClassRow, Quantiles, Row};

// `named!` gives each variant its name in JSON, and a label for reports if the label differs.
named! {
    /// How a call ended.
    pub enum Class {
        /// The server returned a JSON-RPC result with the right id.
        Ok = "ok",
        /// The server returned a JSON-RPC error, with any HTTP status except 429.
        RpcError = "rpc_error",
        /// The HTTP status is 429: the server limits the client. This does not count as a failure.
        Limited = "limited",
        /// The HTTP status is 400 to 499, except 429, and there is no JSON-RPC error.
        Http4xx = "http4xx" | "http_4xx",
        /// The HTTP status is 500 or higher, and there is no JSON-RPC error.
        Http5xx = "http5xx" | "http_5xx",
        /// There was no complete response within the timeout. The timeout is recorded as the
        /// latency.
        Timeout = "timeout",
        /// The connection failed.
        Connect = "connect",
        /// The TLS handshake failed.
        Tls = "tls",
        /// The server refused to open the WebSocket. With HTTP 429, the class is `Limited` instead.
        Upgrade = "upgrade",
        /// The connection ended before the response was complete.
        Reset = "reset",
        /// The server closed the WebSocket with a close frame before the response was complete.
        Closed = "closed",
        /// The data are not HTTP, not a frame of a WebSocket, or not a JSON-RPC response.
        Malformed = "malformed",
        /// The response has the id of another call.
        WrongId = "wrong_id",
        /// The response differs from the response of the plan's reference node.
        WrongAnswer = "wrong_answer",
    }
}

impl Class {
    /// Returns true if the call counts as failed. A 429 is counted separately.
    pub const fn is_failure(self) -> bool {
        !matches!(self, Class::Ok | Class::Limited)
    }

    /// Returns true if a response of the server shows the failure. Timeouts and broken connections
    /// could be the client's fault.
    pub const fn failed_by_server(self) -> bool {
        use Class::{Closed, Http4xx, Http5xx, Malformed, RpcError, Upgrade, WrongAnswer, WrongId};
        matches!(
            self,
            RpcError | Http4xx | Http5xx | Upgrade | Closed | Malformed | WrongId | WrongAnswer
        )
    }
}

/// The key under which a call is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Index of the stage in which the call's iteration was scheduled, among all stages of the
    /// plan.
    pub stage: u16,
    /// Index into the plan's methods.
    pub method: u16,
    /// How the call ended.
    pub class: Class,
}

/// Shortest time that histograms resolve, in nanoseconds. HdrHistogram rounds it to a power of two.
const TIME_MIN_NS: u64 = 100;
/// Longest time that histograms record, in nanoseconds (10 minutes). A longer time is recorded as
/// this time.
pub const TIME_MAX_NS: u64 = 600_000_000_000;
/// Number of significant decimal digits of a histogram. With three digits, a histogram takes about
/// 200 kB.
const SIGNIFICANT_DIGITS: u8 = 3;

/// Shortest gap of a generator's thread that is recorded, in nanoseconds. A shorter one is what the
/// thread's own work and the wake-up of a sleeping thread take. The same time is the default of
/// `validity.scheduling_delay_p99_max`.
pub const GAP_MIN_NS: u64 = 1_000_000;

/// Times in nanoseconds.
pub type Times = Histogram<u64>;

/// Creates an empty histogram. All histograms have the same bounds.
pub fn empty_times() -> Times {
    Histogram::new_with_bounds(TIME_MIN_NS, TIME_MAX_NS, SIGNIFICANT_DIGITS)
        .expect("the bounds are constants that fit")
}

/// Returns the nanoseconds of a duration, at most [`TIME_MAX_NS`].
pub fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(TIME_MAX_NS)
}

/// Maximum number of distinct pairs of a method and an error code. Further error codes of a method
/// are counted under code 0.
pub const CODES_MAX: usize = 256;

/// Declares a struct of counters, with the methods `add` and `since`.
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)+ }

        impl $name {
            /// Adds other counts.
            pub fn add(&mut self, other: $name) {
                $(self.$field += other.$field;)+
            }

            /// Returns the increase since `earlier`.
            pub fn since(self, earlier: $name) -> $name {
                $name { $($field: self.$field.saturating_sub(earlier.$field),)+ }
            }
        }
    };
}

counters! {
    /// Numbers of iterations of one stage.
    pub struct Iterations {
        /// Scheduled iterations. In the closed model, this equals the number of started iterations.
        pub scheduled: u64,
        /// Started iterations.
        pub started: u64,
        /// Iterations that were queued and started after the scenario's end.
        #[serde(default)]
        pub started_after_end: u64,
        /// Ended iterations.
        pub ended: u64,
        /// Iterations that ended after the scenario's end.
        #[serde(default)]
        pub ended_after_end: u64,
        /// Iterations that were dropped because no worker was free.
        pub dropped: u64,
        /// Iterations that were interrupted at the end of the run.
        pub interrupted: u64,
    }
}

impl Iterations {
    /// Returns the number of iterations that started before the scenario's end.
    pub fn in_time(&self) -> u64 {
        self.started.saturating_sub(self.started_after_end)
    }
}

counters! {
    /// Numbers of requests, connections, TLS handshakes and bytes.
    pub struct Traffic {
        /// HTTP requests, or messages to a WebSocket, that ended, successfully or not.
        pub requests: u64,
        /// Connections that were opened.
        pub connections: u64,
        /// Connections that could not be opened, including failed TLS handshakes and failed
        /// openings of a WebSocket.
        pub connections_failed: u64,
        /// Connections that the server closed.
        pub closed_by_server: u64,
        /// HTTP/2 requests that were sent again, because the server stated that it had not processed
        /// them (GOAWAY or REFUSED_STREAM).
        #[serde(default)]
        pub retried: u64,
        /// Full TLS handshakes.
        pub handshakes_full: u64,
        /// TLS handshakes that resumed a session.
        pub handshakes_resumed: u64,
        /// WebSocket messages that repeat the response to an earlier call.
        #[serde(default)]
        pub duplicates: u64,
        /// Connections that failed because no local port was free, which is a limit of the
        /// generator.
        pub ports_exhausted: u64,
        /// Bytes written to sockets.
        pub bytes_sent: u64,
        /// Bytes read from sockets.
        pub bytes_received: u64,
    }
}

counters! {
    /// Numbers of transactions that were looked for in new blocks of the chain.
    pub struct TransactionCounts {
        /// Sent transactions that got into a block.
        pub included: u64,
        /// Sent transactions that the server did not refuse, and that were in no block at the end
        /// of the run.
        pub pending: u64,
    }
}

/// Declares the struct [`Tally`], which has all counters except the times of calls. Each group of
/// fields has one type: histograms (`times`), counts by a key (`counts`), counts by method
/// (`methods`), and `durations`.
macro_rules! tally {
    (
        times { $($(#[$time_doc:meta])* $time:ident,)+ }
        counts { $($(#[$count_doc:meta])* $count:ident: $key:ty,)+ }
        methods { $($(#[$method_doc:meta])* $method:ident,)+ }
        durations { $($(#[$duration_doc:meta])* $duration:ident,)+ }
    ) => {
        /// All counters except the times of calls, of one interval or of several.
        #[derive(Clone, Debug)]
        pub struct Tally {
            /// Iterations by stage of the plan.
            pub iterations: Vec<Iterations>,
            /// Numbers of requests, connections, TLS handshakes and bytes.
            pub traffic: Traffic,
            /// Numbers of transactions that were included in a block, and of pending ones.
            pub transactions: TransactionCounts,
            /// Number of JSON-RPC errors by method and error code. [`CODES_MAX`] limits the size.
            pub codes: BTreeMap<(u16, i64), u64>,
            $($(#[$time_doc])* pub $time: Times,)+
            $($(#[$count_doc])* pub $count: BTreeMap<$key, u64>,)+
            $($(#[$method_doc])* pub $method: Vec<u64>,)+
            $($(#[$duration_doc])* pub $duration: Duration,)+
        }

        impl Tally {
            fn new(stages: usize, methods: usize) -> Tally {
                Tally {
                    iterations: vec![Iterations::default(); stages],
                    traffic: Traffic::default(),
                    transactions: TransactionCounts::default(),
                    codes: BTreeMap::new(),
                    $($time: empty_times(),)+
                    $($count: BTreeMap::new(),)+
                    $($method: vec![0; methods],)+
                    $($duration: Duration::ZERO,)+
                }
            }

            /// Empties the counters and keeps their memory.
            fn reset(&mut self) {
                self.iterations.fill(Iterations::default());
                self.traffic = Traffic::default();
                self.transactions = TransactionCounts::default();
                self.codes.clear();
                $(if !self.$time.is_empty() { self.$time.reset(); })+
                $(self.$count.clear();)+
                $(self.$method.fill(0);)+
                $(self.$duration = Duration::ZERO;)+
            }

            fn add(&mut self, other: &Tally) {
                let iterations = self.iterations.iter_mut().zip(&other.iterations);
                iterations.for_each(|(total, part)| total.add(*part));
                self.traffic.add(other.traffic);
                self.transactions.add(other.transactions);
                for (&(method, code), &count) in &other.codes {
                    add_code(&mut self.codes, method, code, count);
                }
                $(add_times(&mut self.$time, &other.$time);)+
                $(for (&key, count) in &other.$count {
                    *self.$count.entry(key).or_default() += count;
                })+
                $(
                    self.$method.resize(self.$method.len().max(other.$method.len()), 0);
                    self.$method.iter_mut().zip(&other.$method).for_each(|(total, part)| *total += part);
                )+
                $(self.$duration += other.$duration;)+
            }

            /// Subtracts the counts of an `earlier` state.
            fn subtract(&mut self, earlier: &Tally) {
                let iterations = self.iterations.iter_mut().zip(&earlier.iterations);
                iterations.for_each(|(total, earlier)| *total = total.since(*earlier));
                self.traffic = self.traffic.since(earlier.traffic);
                self.transactions = self.transactions.since(earlier.transactions);
                subtract_counts(&mut self.codes, &earlier.codes);
                $(subtract(&mut self.$time, &earlier.$time);)+
                $(subtract_counts(&mut self.$count, &earlier.$count);)+
                $(self.$method.iter_mut().zip(&earlier.$method).for_each(|(total, part)| *total -= part);)+
                $(self.$duration = self.$duration.saturating_sub(earlier.$duration);)+
            }
        }
    };
}

tally! {
    times {
        /// Scheduling delay: how late the load generator itself sent a call. It is the time from
        /// the earliest possible send to the actual send, without the wait for a free worker.
        scheduling_delay,
        /// Gaps of the load generator's threads: a thread did not run for at least
        /// [`GAP_MIN_NS`] although it should have, because it was stopped or had no core.
        gaps,
        /// Time from an iteration's scheduled start to the end of its last call.
        iteration_time,
        /// Time from a transaction's scheduled send until it was found in a block.
        inclusion_time,
        /// Time of TCP connects.
        connect_time,
        /// Time of full TLS handshakes.
        handshake_full_time,
        /// Time of resumed TLS handshakes.
        handshake_resumed_time,
        /// Time to open WebSockets, after the TCP connect and the TLS handshake.
        upgrade_time,
        /// Values of Retry-After headers.
        retry_after,
    }
    counts {
        /// For each slot: the number of calls that ended after the end of their scenario. Latencies
        /// include these calls, but rates exclude them.
        ended_after_end: Slot,
        /// For each slot: the number of calls that ended after the end of their stage, but before
        /// the end of their scenario. The rates of the stage exclude these calls.
        carried: Slot,
        /// For each HTTP status, from 0 to 999: the number of requests.
        statuses: u16,
        /// For each close code: the number of WebSocket close frames from the server. A frame
        /// without a code counts under 1005.
        close_codes: u16,
    }
    methods {
        /// For each method: the number of results that were null.
        nulls,
        /// For each method: the number of results whose JSON type is not that of the method's
        /// results, or that are null although the method's results never are.
        wrong_types,
        /// For each method: the number of bytes of response bodies.
        response_bytes,
    }
    durations {
        /// CPU time of the load generator's threads.
        cpu,
        /// Time for which these threads were runnable, but no core was free.
        run_delay,
        /// Sum of the gaps of these threads.
        gap_time,
        /// Time for which these threads were idle: asleep, or spinning before a scheduled send.
        idle,
    }
}

/// The counts of one thread of the load generator in one interval. The size depends on the plan and
/// on the number of used slots, not on the number of calls.
#[derive(Debug)]
pub struct Interval {
    /// Index of the thread.
    pub thread: usize,
    /// Start of the interval, since the start of the run.
    pub from: Duration,
    /// End of the interval, since the start of the run.
    pub to: Duration,
    /// Number of methods of the plan.
    methods: usize,
    /// For each possible slot: the position of its cell in `cells`, or [`UNUSED`].
    positions: Vec<u16>,
    /// The used slots. `cells` has the cell of each slot at the same position.
    slots: Vec<Slot>,
    /// The cells of the used slots. After them, there may be empty cells for reuse.
    cells: Vec<Cell>,
    tally: Tally,
    /// Number of calls in flight at the end of the interval.
    pub in_flight: u64,
    /// Number of workers that run an iteration at the end of the interval.
    pub workers_busy: u64,
    /// Number of queued iterations at the end of the interval.
    pub waiting: u64,
    /// Start and end of the longest gap; `None` if there was none.
    pub longest_gap: Option<(Duration, Duration)>,
}

/// Stands for the position of a slot that has no calls and no cell.
const UNUSED: u16 = u16::MAX;

// Code can use the counters of the tally like fields of the interval.
impl Deref for Interval {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.tally
    }
}

impl DerefMut for Interval {
    fn deref_mut(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

impl Interval {
    /// Creates an empty interval for a plan with this many stages and methods.
    pub fn new(thread: usize, stages: usize, methods: usize) -> Interval {
        Interval {
            thread,
            from: Duration::ZERO,
            to: Duration::ZERO,
            methods,
            positions: vec![UNUSED; stages * methods * Class::ALL.len()],
            slots: Vec::new(),
            cells: Vec::new(),
            tally: Tally::new(stages, methods),
            in_flight: 0,
            workers_busy: 0,
            waiting: 0,
            longest_gap: None,
        }
    }

    /// Counts one call. Times are in nanoseconds.
    pub fn record(&mut self, slot: Slot, latency_ns: u64, service_ns: u64) {
        let cell = self.cell_mut(slot);
        cell.latency.saturating_record(latency_ns);
        cell.service.saturating_record(service_ns);
    }

    /// Adds that the load generator itself delayed a recorded call. `least_ns` is the call's
    /// latency without this delay.
    pub fn record_delayed(&mut self, slot: Slot, latency_ns: u64, least_ns: u64) {
        self.cell_mut(slot).record_delayed(latency_ns, least_ns);
    }

    /// Adds a gap: a time in which the thread did not run although it should have.
    pub fn record_gap(&mut self, from: Duration, to: Duration) {
        let length = to.saturating_sub(from);
        self.gaps.saturating_record(to_nanos(length));
        self.gap_time += length;
        if self.longest_gap.is_none_or(|(from, to)| to - from < length) {
            self.longest_gap = Some((from, to));
        }
    }

    /// Returns the cell of a slot. If the slot has no cell yet, gives it an empty one.
    fn cell_mut(&mut self, slot: Slot) -> &mut Cell {
        let method_index = usize::from(slot.stage) * self.methods + usize::from(slot.method);
        let slot_index = method_index * Class::ALL.len() + slot.class as usize;
        let mut position = usize::from(self.positions[slot_index]);
        if position == usize::from(UNUSED) {
            position = self.slots.len();
            self.positions[slot_index] =
                u16::try_from(position).expect("a valid plan has fewer slots than u16::MAX");
            self.slots.push(slot);
            if self.cells.len() < self.slots.len() {
                self.cells.push(Cell::new());
            }
        }
        &mut self.cells[position]
    }

    /// Counts the code of a JSON-RPC error.
    pub fn record_code(&mut self, method: u16, code: i64) {
        add_code(&mut self.codes, method, code, 1);
    }

    /// Counts the bytes of a response body.
    pub fn record_bytes(&mut self, method: u16, count: u64) {
        self.response_bytes[usize::from(method)] += count;
    }

    /// Returns the used slots with their cells.
    pub fn cells(&self) -> impl Iterator<Item = (Slot, &Cell)> {
        self.slots.iter().copied().zip(&self.cells)
    }

    /// Empties the interval for reuse and keeps its memory.
    pub fn reset(&mut self) {
        self.positions.fill(UNUSED);
        self.cells.iter_mut().take(self.slots.len()).for_each(Cell::reset);
        self.slots.clear();
        self.tally.reset();
        (self.in_flight, self.workers_busy, self.waiting) = (0, 0, 0);
        self.longest_gap = None;
    }
}

/// The counts of a run, or of a part of a run.
#[derive(Clone, Debug)]
pub struct Totals {
    /// Times of the calls by slot.
    pub cells: BTreeMap<Slot, Cell>,
    tally: Tally,
}

// Code can use the counters of the tally like fields of the totals.
impl Deref for Totals {
    type Target = Tally;

    fn deref(&self) -> &Tally {
        &self.tally
    }
}

impl DerefMut for Totals {
    fn deref_mut(&mut self) -> &mut Tally {
        &mut self.tally
    }
}

impl Totals {
    /// Creates empty totals for a plan with this many stages.
    pub fn new(stages: usize) -> Totals {
        Totals { cells: BTreeMap::new(), tally: Tally::new(stages, 0) }
    }

    /// Adds the interval of one thread.
    pub fn merge(&mut self, interval: &Interval) {
        for (slot, cell) in interval.cells() {
            self.cells.entry(slot).or_insert_with(Cell::new).add(cell);
        }
        self.tally.add(&interval.tally);
    }

    /// Empties the totals for reuse. Keeps the memory of cells that have calls, and frees the other
    /// cells.
    pub fn reset(&mut self) {
        self.cells.retain(|_, cell| !cell.latency.is_empty());
        self.cells.values_mut().for_each(Cell::reset);
        self.tally.reset();
    }

    /// Adds other totals.
    pub fn add(&mut self, other: &Totals) {
        for (&slot, cell) in other.cells.iter().filter(|(_, cell)| !cell.latency.is_empty()) {
            self.cells.entry(slot).or_insert_with(Cell::new).add(cell);
        }
        self.tally.add(&other.tally);
    }

    /// Returns the increase since `earlier`. `earlier` must be an earlier state of the same totals.
    pub fn since(mut self, earlier: &Totals) -> Totals {
        for (slot, cell) in &earlier.cells {
            if let Some(total) = self.cells.get_mut(slot) {
                total.subtract(cell);
            }
        }
        self.cells.retain(|_, cell| !cell.latency.is_empty());
        self.tally.subtract(&earlier.tally);
        self
    }

    /// Returns the merged times of all calls that `is_selected` selects. `times_of` chooses the
    /// latency or the service time.
    pub fn times(
        &self,
        times_of: fn(&Cell) -> &Times,
        is_selected: impl Fn(Slot) -> bool,
    ) -> Times {
        let mut merged = empty_times();
        for (_, cell) in self.cells.iter().filter(|(slot, _)| is_selected(**slot)) {
            add_times(&mut merged, times_of(cell));
        }
        merged
    }

    /// Returns the merged latency of all calls that `is_selected` selects.
    pub fn latency(&self, is_selected: impl Fn(Slot) -> bool) -> Times {
        self.times(|cell| &cell.latency, is_selected)
    }

    /// Returns the lower bounds of the selected latencies: the latencies without the delays that the
    /// load generator itself caused. `None` if it delayed none of the calls.
    pub fn least_latency(&self, is_selected: impl Fn(Slot) -> bool) -> Option<Times> {
        let selected = || self.cells.iter().filter(|(slot, _)| is_selected(**slot));
        let has_delays = selected().any(|(_, cell)| cell.has_delays());
        has_delays.then(|| {
            let mut merged = empty_times();
            selected().for_each(|(_, cell)| cell.add_least(&mut merged));
            merged
        })
    }

    /// Returns the totals with the lower bounds of all latencies. `None` if the load generator
    /// delayed no call.
    pub fn with_least_latency(&self) -> Option<Totals> {
        self.cells.values().any(Cell::has_delays).then(|| {
            let mut totals = self.clone();
            totals.cells.values_mut().for_each(Cell::use_least);
            totals
        })
    }

    /// Returns the number of selected calls that ended after the end of their scenario.
    pub fn count_after_end(&self, is_selected: impl Fn(Slot) -> bool) -> u64 {
        self.ended_after_end
            .iter()
            .filter(|(slot, _)| is_selected(**slot))
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns the number of selected calls that ended after the end of their stage.
    pub fn count_carried(&self, is_selected: impl Fn(Slot) -> bool) -> u64 {
        let ended_after_stage = self.ended_after_end.iter().chain(&self.carried);
        ended_after_stage.filter(|(slot, _)| is_selected(**slot)).map(|(_, count)| count).sum()
    }

    /// Returns the number of calls that `is_selected` selects.
    pub fn count(&self, is_selected: impl Fn(Slot) -> bool) -> u64 {
        let selected = self.cells.iter().filter(|(slot, _)| is_selected(**slot));
        selected.map(|(_, cell)| cell.latency.len()).sum()
    }
}

/// Adds the histogram `part` to `total`.
pub fn add_times(total: &mut Times, part: &Times) {
    if !part.is_empty() {
        total.add(part).expect("all histograms have the same bounds");
    }
}

/// Subtracts an earlier state of the same histogram.
fn subtract(total: &mut Times, earlier: &Times) {
    if !earlier.is_empty() {
        total.subtract(earlier).expect("a total only grows");
    }
}

/// Adds `count` to the count of a method's error code. If [`CODES_MAX`] is reached, a new code
/// counts under the method's code 0.
fn add_code(codes: &mut BTreeMap<(u16, i64), u64>, method: u16, code: i64, count: u64) {
    let has_room = codes.len() < CODES_MAX || codes.contains_key(&(method, code));
    *codes.entry((method, if has_room { code } else { 0 })).or_default() += count;
}

/// Subtracts earlier counts and removes counts that became 0.
fn subtract_counts<K: Ord>(total: &mut BTreeMap<K, u64>, earlier: &BTreeMap<K, u64>) {
    for (key, count) in earlier {
        if let Some(total) = total.get_mut(key) {
            *total = total.saturating_sub(*count);
        }
    }
    total.retain(|_, count| *count > 0);
}

#[cfg(test)]
mod tests {
    //! Goal: a server's responses cannot make the counters grow without bound.

    use super::*;

    #[test]
    fn the_number_of_error_codes_is_limited() {
        let (mut totals, mut sum) = (Totals::new(1), Totals::new(1));
        for second in 0..10 {
            // One method and one stage. Each interval has `CODES_MAX` new error codes.
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
