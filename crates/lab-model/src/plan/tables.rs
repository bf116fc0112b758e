//! The keys of a plan's file, with value types, defaults and documentation. The reader of plans
//! uses this declaration. `docs/plan.md` and `docs/plan.schema.json` are generated from it.
//!
//! `settings::table!` declares the keys of one table as `key: Type = default;`. A default
//! `described "…"` is in words, because it is not a constant. `struct Table => pub Values` also
//! declares a struct with only the values. The type `Once<T>` stands for the table `[key]`,
//! `Listed<T>` for tables `[[key]]`, and `Named<T>` for tables `[key.NAME]`. The numbers in types
//! such as `Integer<1, 256>` are the smallest and the largest allowed value.
//!
//! `plan/values.rs` has the value types that only plans have. `plan/params.rs` has the generators
//! of parameters, and `plan/threshold_table.rs` has the thresholds. `plan/validate.rs` checks
//! values against each other.

use settings::value::{
    AnyString, Bool, Bytes, Duration as Period, File, Integer, List, Listed, Name, Named, Number,
    Once, Variables,
};
use settings::{Key, Location};

use super::params::Params;
use super::threshold_table::Thresholds;
use super::values::{
    Address, Bodies, Cipher, Delayed, Families, HOUR, Headers, MINUTE, MethodName, Reused, SECOND,
    SubscriptionKind, TargetUrl, Url, WEEK, WebSocketUrl,
};
use super::{HttpVersion, Model, TlsVersion};

/// Longest time that histograms record, in milliseconds. It equals `record::TIME_MAX_NS`.
const TIME_MAX: u64 = 600 * SECOND;
const GIB: u64 = 1 << 30;
/// Maximum rate in thousandths of an iteration per second: 10 million iterations per second. One
/// machine cannot send nearly as many.
const RATE_MAX: i64 = 10_000_000_000;
/// Maximum number of workers of a scenario.
pub(super) const WORKERS_MAX: u64 = 1_000_000;
/// Largest weight, in thousandths: 10^12.
const WEIGHT_MAX: i64 = 1_000_000_000_000_000;

/// A share from 0 to 1. The limits of a `Number` are in thousandths.
type Share = Number<0, 1000>;
/// A level of load: iterations per second in the open model, workers in the closed model.
type Level = Number<0, RATE_MAX>;

settings::table! {
    /// Keys of the file itself.
    pub(super) struct PlanFile {
        /// Name of the plan in reports.
        name: Name = described "the file's name";
        /// Numbers by name, for use in formulas. The value of a variable may itself be a formula of
        /// the variables above it. `--set NAME=NUMBER` overrides a variable for one run.
        variables: Variables = empty;
        /// The server under load.
        target: Once<TargetTable> = empty;
        /// HTTP version, reuse and TLS of connections.
        connections: Once<ConnectionsTable> = empty;
        /// Settings of the whole run.
        run: Once<RunTable> = empty;
        /// Series of iterations at a planned rate, or with a planned number of workers.
        scenario: Listed<ScenarioTable> = empty;
        /// Connections that subscribe to notifications during the run.
        subscription: Listed<SubscriptionTable> = empty;
        /// Mixes: the requests that an iteration sends. Each mix has a name.
        mix: Named<MixTable> = empty;
        /// Conditions that a run must meet to pass.
        thresholds: Thresholds = empty;
        /// Conditions under which the numbers of a run are valid.
        validity: Once<ValidityTable> = empty;
        /// A second server whose responses are compared with the target's.
        reference: Once<ReferenceTable> = empty;
        /// Hosts and processes to watch during the run.
        watch: Once<WatchTable> = empty;
        /// Measurement of the time until transactions are in a block.
        inclusion: Once<InclusionTable> = empty;
        /// Settings of the search of `weir capacity`.
        capacity: Once<CapacityTable> = empty;
    }
}

settings::table! {
    /// The server under load.
    pub(super) struct TargetTable {
        /// URL of the server. With `ws://` or `wss://`, calls are sent over WebSockets, one at a
        /// time on each connection. `${env:NAME}` keeps secrets out of the plan.
        url: TargetUrl = "http://127.0.0.1:8545";
        /// Family of methods that the server supports.
        family: Families = described "detected by calling the server";
        /// Additional headers of each request, such as `{ authorization = "Bearer ${env:TOKEN}" }`.
        /// A WebSocket sends them once, in the request that opens it.
        headers: Headers = empty;
        /// Maximum time from the actual send of a call to the end of its response.
        timeout: Period<1, TIME_MAX> = "10s";
        /// Maximum time of a connect, including TLS and the opening of a WebSocket.
        connect_timeout: Period<1, TIME_MAX> = "5s";
        /// Maximum size of a response. A larger response counts as malformed.
        response_bytes_max: Bytes<1024, GIB, usize> = "64MiB";
    }
}

settings::table! {
    /// HTTP version, reuse and TLS of connections.
    pub(super) struct ConnectionsTable {
        /// HTTP version. WebSockets need 1.1.
        http: HttpVersion = "1.1";
        /// Reuse of connections. `always`: a connection is used until the server closes it.
        /// `never`: it is used for one request. A number: it is used for this many requests.
        reuse: Reused = "always";
        /// True if new connections resume TLS sessions.
        tls_resume: Bool = "true";
        /// The only TLS version to offer.
        tls_version: TlsVersion = described "both are offered";
        /// The only cipher suites to offer, by IANA or OpenSSL name. If the list is empty, the
        /// defaults of the TLS library are offered.
        ciphers: List<Cipher> = empty;
        /// True if certificates are not verified.
        tls_insecure: Bool = "false";
        /// PEM file of additional trust anchors (CA certificates).
        tls_ca: File = described "none";
    }
}

settings::table! {
    /// Settings of the whole run.
    pub(super) struct RunTable {
        /// Seed of all random choices. The same plan, seed and chain give the same calls.
        seed: Integer<0, { 1 << 53 }> = "1";
        /// Number of threads that generate the load. Each has its own core if the machine has
        /// enough cores.
        threads: Integer<1, 256, usize> = "1";
        /// Length of the warm-up at the start of the run, rounded up to whole seconds. Calls of the
        /// warm-up are recorded, but excluded from the verdict.
        warmup: Period<0, WEEK> = "0s";
    }
}

settings::table! {
    /// A series of iterations. An iteration sends the requests of a mix in order. All scenarios of
    /// a plan run at the same time, each from its own start.
    pub(super) struct ScenarioTable {
        /// Name of the scenario in reports and in the tags of thresholds.
        name: Name = described "`scenario-1` for the first, and so on";
        /// Time from the start of the run to the scenario's first stage.
        start: Period<0, WEEK> = "0s";
        /// When iterations start. `open`: on schedule, however slow the target is. The level of a
        /// stage is the number of iterations per second. `closed`: when a worker has ended its
        /// previous iteration. The level of a stage is the number of workers.
        model: Model = "open";
        /// Stages in order of time. Each stage defines how the level of load changes.
        stages: Listed<StageTable> = required;
        /// Name of the mix, which has the requests of an iteration. It is a mix of this plan, or a
        /// shipped one.
        mix: AnyString = required;
        /// Maximum number of workers. Each runs one iteration at a time on its own connection.
        workers_max: Integer<1, WORKERS_MAX, usize>
            = described "closed: the highest level of the stages; open: must be set";
        /// What happens to a scheduled iteration if no worker is free. `queue`: it waits in the
        /// queue, and its latency counts from its scheduled time. `drop`: it is dropped and
        /// counted. Open model only.
        delayed: Delayed = "queue";
        /// Maximum number of queued iterations. If the queue is full, further iterations are
        /// dropped and counted.
        queue_max: Integer<1, 10_000_000, usize> = "1000000";
        /// Pause of a worker after each iteration. Closed model only.
        pause: Period<0, HOUR> = "0s";
        /// How calls are sent as batches.
        batch: Once<BatchTable> = described "no batches";
        /// Maximum number of iterations. The scenario ends early if it reaches this number.
        iterations: Integer<1, 1_000_000_000_000> = described "no limit";
        /// Maximum time that iterations in flight may continue after the scenario's end. Iterations
        /// that are still queued then are dropped and counted.
        grace: Period<0, TIME_MAX> = "30s";
    }
}

settings::table! {
    /// A part of a scenario, in the list `stages`. These keys define its level: `rate` or `workers`
    /// is a constant level; `to` is a ramp; `to` with `steps` is a staircase; `spike` is a constant
    /// level, after which the level before the spike returns. Without any of these keys, the
    /// previous level continues.
    pub(super) struct StageTable {
        /// Name of the stage, which is unique in its scenario.
        name: Name = described "`stage-1` for the first, and so on";
        /// Duration of the stage. If it is zero, the level jumps.
        duration: Period<0, WEEK> = required;
        /// Constant level in iterations per second. Open model only.
        rate: Level = described "see above";
        /// Constant number of workers. Closed model only.
        workers: Number<0, { WORKERS_MAX as i64 * 1000 }> = described "see above";
        /// Level at the start of a ramp.
        from: Level = described "the previous level; 0 for the first stage";
        /// Level at the end of a ramp.
        to: Level = described "see above";
        /// Number of flat steps, which have equal length and height. The last step is at `to`. Each
        /// step becomes a stage with the name NAME-1, NAME-2 and so on. A threshold's tag NAME
        /// selects all of them.
        steps: Integer<2, 1000, usize> = described "a ramp without steps";
        /// Constant level of this stage only. The next stage continues from the level before the
        /// spike.
        spike: Level = described "see above";
    }
}

impl Copy for Batch {}

settings::table! {
    /// Batches: several calls in one request.
    pub(super) struct BatchTable => pub Batch {
        /// Probability that a request is a batch.
        probability: Share = "1";
        /// Number of calls in a batch. All of them are drawn from the same step.
        size: Integer<1, 1000, usize> = required;
    }
}

settings::table! {
    /// WebSocket connections that subscribe to notifications. They hold the subscription until the
    /// end of the run, while the scenarios run.
    pub(super) struct SubscriptionTable {
        /// Name of the subscription in reports.
        name: Name = described "`subscription-1` for the first, and so on";
        /// URL of the server's WebSocket. Headers and timeouts are those of `target`.
        url: WebSocketUrl = described "the target's URL with `ws` instead of `http`";
        /// `newHeads`: the header of each new block. `logs`: the logs of each new block.
        kind: SubscriptionKind = "newHeads";
        /// Number of connections. Each has one subscription.
        connections: Integer<1, WORKERS_MAX, usize> = "1";
        /// Addresses of the contracts whose logs are requested. An empty list requests all logs.
        /// Only for the kind `logs`.
        addresses: List<Address> = empty;
        /// Threshold: maximum number of connections that fail or end before the end of the run.
        ended_max: Integer<0, WORKERS_MAX> = described "no threshold";
        /// Threshold: maximum number of missing notifications, over all connections.
        missing_max: Integer<0, { 1 << 53 }> = described "no threshold";
        /// Threshold: maximum number of duplicate notifications, over all connections.
        duplicates_max: Integer<0, { 1 << 53 }> = described "no threshold";
        /// Threshold: maximum 99th percentile of the delay of notifications: the time from the
        /// first arrival of a block or log on any connection to its arrival on each connection.
        delay_p99_max: Period<0, TIME_MAX> = described "no threshold";
    }
}

/// The keys of one step of a mix. They are in the step's own table, or in the table of the mix if
/// the mix has a single step.
pub(super) struct StepKeys<'a> {
    pub(super) location: &'a Location,
    pub(super) calls: &'a Key<Vec<CallTable>>,
    pub(super) weights_sum: &'a Key<Option<f64>>,
    pub(super) requests: &'a Key<Option<String>>,
    pub(super) bodies: &'a Key<Option<Vec<String>>>,
    pub(super) transactions: &'a Key<Option<String>>,
}

impl StepKeys<'_> {
    /// Returns the positions of the keys.
    pub(super) fn positions(&self) -> [&Location; 5] {
        [
            &self.calls.location,
            &self.requests.location,
            &self.bodies.location,
            &self.transactions.location,
            &self.weights_sum.location,
        ]
    }
}

/// Declares a table that has the keys in braces, and after them the keys of a step.
macro_rules! step_table {
    ($(#[doc = $doc:literal])+ struct $name:ident { $($own:tt)* }) => {
        settings::table! {
            $(#[doc = $doc])+
            pub(super) struct $name {
                $($own)*
                /// Calls. Each iteration sends one of them, chosen by weight.
                calls: Listed<CallTable> = empty;
                /// Expected sum of the weights of `calls`. A different sum is an error.
                weights_sum: Number<0, WEIGHT_MAX> = described "not checked";
                /// File of request bodies, which are sent in order. It has one JSON body per line,
                /// or vegeta's JSON targets. `-` reads standard input.
                requests: File = described "see above";
                /// Request bodies as JSON texts, which are sent in order.
                bodies: Bodies = described "see above";
                /// File of signed transactions. Each iteration sends one of them, and each is sent
                /// once. The transactions of a sender are sent in the order of their nonces. The
                /// file is hexadecimal with one transaction per line, as polycli's
                /// `--output-raw-tx-only` prints them. `-` reads standard input.
                transactions: File = described "see above";
            }
        }

        impl $name {
            /// Returns the keys of the step.
            pub(super) fn step_keys(&self) -> StepKeys<'_> {
                let $name { location, calls, weights_sum, requests, bodies, transactions, .. } =
                    self;
                StepKeys { location, calls, weights_sum, requests, bodies, transactions }
            }
        }
    };
}

step_table! {
    /// The requests of an iteration: one or several steps, each of which sends one request. A mix
    /// with a single step may omit `step` and have the keys of the step itself. Shipped mixes are
    /// `somnia`, `ethspam`, `chainbench-eth`, `json-bench`, `ethereum`, `harmony` and `bitcoin`.
    struct MixTable {
        /// Description of the mix and the source of its weights.
        about: AnyString = described "nothing";
        /// File that has the keys of the mix. They replace the keys of this table.
        file: File = described "none";
        /// Steps of an iteration, in order.
        step: Listed<StepTable> = empty;
    }
}

step_table! {
    /// One request of an iteration. It is one of `calls`, or the next one of `requests`, `bodies`
    /// or `transactions`.
    struct StepTable {}
}

settings::table! {
    /// A call, in the list `calls`. Its parameters may contain generators, which draw new values
    /// for each call.
    pub(super) struct CallTable {
        /// Full name of the method.
        method: MethodName = required;
        /// Parameters: a list or table, which may contain generators (see below). It may also be
        /// written as a JSON text.
        params: Params = "[]";
        /// Weight of the call, above 0. The call's share of the step is its weight divided by the
        /// sum of the weights of all calls of the step.
        weight: Number<0, WEIGHT_MAX> = "1";
    }
}

settings::table! {
    /// Conditions under which the numbers of a run are valid.
    pub(super) struct ValidityTable => pub Validity {
        /// Minimum share of the scheduled iterations that were started.
        delivered_share_min: Share = "0.99";
        /// Maximum 99th percentile of the scheduling delay, which is how late the load generator
        /// itself sends requests.
        scheduling_delay_p99_max: Period<0, TIME_MAX> = "1ms";
        /// Maximum of the ratio: 99th percentile of the scheduling delay / median latency. Numbers
        /// are invalid only if both this limit and `scheduling_delay_p99_max` are exceeded.
        scheduling_delay_share_max: Number<0, 100_000> = "0.05";
        /// Maximum share of the time in which the load generator's threads were ready to run, but
        /// had no core. Above it, other processes on the machine distort the numbers.
        waited_share_max: Share = "0.1";
        /// Maximum share of a latency percentile that the load generator itself may have caused,
        /// because it was stopped, had no core, or sent late. A percentile is marked if both this
        /// limit and `scheduling_delay_p99_max` are exceeded. The numbers are invalid if that is
        /// the median or the 95th percentile. The default is the smallest difference that a
        /// comparison of single runs reports.
        generator_share_max: Share = "0.1";
    }
}

impl Copy for Validity {}

settings::table! {
    /// A second server. Its responses are compared with the target's. Without this table, only the
    /// form of the target's responses is checked.
    pub(super) struct ReferenceTable => pub Reference {
        /// URL of a node whose responses are known to be right.
        url: Url = required;
        /// Share of the calls that are compared.
        share: Share = "0.01";
        /// JSON pointers of values that are not compared. They are relative to the result, and `*`
        /// stands for any name or index.
        ignore: List<AnyString> = empty;
        /// Numbers count as equal if their relative difference is at most this.
        tolerance: Share = "0";
        /// JSON pointers of arrays in which the order of the elements does not matter. They are
        /// relative to the result.
        sets: List<AnyString> = empty;
    }
}

settings::table! {
    /// Hosts and processes to watch during the run.
    pub(super) struct WatchTable => pub Watch {
        /// Time between two samples.
        interval: Period<100, SECOND> = "500ms";
        /// Ids of processes to watch. The listener of a local target is always watched.
        pids: List<Integer<0, 4_194_304, u32>> = empty;
        /// URL of a prometheus-node-exporter on the target's host, such as
        /// `http://HOST:9100/metrics`.
        node_exporter: Url = described "none";
    }
}

settings::table! {
    /// Measurement of the time until transactions are in a block. The target's newest block is
    /// polled on a separate connection, which does not count as load. Only for plans with a mix of
    /// `transactions`.
    pub(super) struct InclusionTable => pub Inclusion {
        /// Time between two polls of the newest block. It is the resolution of the measured times.
        interval: Period<10, MINUTE> = "100ms";
        /// Maximum time to wait after the last call until the sent transactions are in a block. The
        /// wait ends early once all of them are in a block. With `0s` there is no wait.
        wait: Period<0, HOUR> = "1m";
    }
}

settings::table! {
    /// Settings of `weir capacity`, which searches for the highest load that meets the thresholds.
    pub(super) struct CapacityTable => pub Capacity {
        /// First rate of the search, in iterations per second.
        rate_start: Number<100, RATE_MAX> = "100";
        /// Highest rate of the search, in iterations per second.
        rate_max: Number<100, RATE_MAX> = "1000000";
        /// The search ends when (lowest failing rate - highest passing rate) / highest passing rate
        /// is at most this.
        precision: Number<1, 1000> = "0.02";
        /// Duration of one probe, which is a short run at one rate. It includes the warm-up.
        probe: Period<SECOND, HOUR> = "10s";
        /// Length of the warm-up at the start of each probe, rounded up to whole seconds. Calls of
        /// the warm-up are recorded, but excluded from the verdict.
        probe_warmup: Period<0, HOUR> = "2s";
        /// Number of probes at each of the two rates next to the boundary between passing and
        /// failing rates. The majority decides.
        repeats: Integer<1, 99, usize> = "3";
        /// Pause between probes.
        drain: Period<0, HOUR> = "2s";
        /// Duration of the last run, which is at the highest passing rate. `0s` omits this run.
        soak: Period<0, WEEK> = "30s";
    }
}
