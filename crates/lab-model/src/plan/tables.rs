//! The keys of a plan with value types, defaults and documentation. The reader, `docs/plan.md` and
//! `docs/plan.schema.json` are derived from them.
//!
//! `plan/values.rs` has the value types that only plans have, `plan/params.rs` the generators of
//! parameters, and `plan/threshold_table.rs` thresholds. `plan/validate.rs` checks values against
//! each other.

use settings::value::{
    Bool, Bytes, Count, Duration as Period, File, List, Listed, Name, Named, Number, Once,
    Variables, Word,
};
use settings::{At, Key};

use super::params::Params;
use super::threshold_table::Thresholds;
use super::values::{
    Bodies, Cipher, Families, Headers, LateName, MethodName, ModelName, Reused, Url,
};
use super::{HttpVersion, TlsVersion};

const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;
pub(super) const WEEK: u64 = 7 * 24 * HOUR;
/// Longest time that histograms can record, `record::TIME_MAX`.
const TIME_MAX: u64 = 600 * SECOND;
const GIB: u64 = 1 << 30;
/// Most iterations per second of a plan, in thousandths; far more than one machine can send.
const RATE_MAX: i64 = 10_000_000_000;
/// Most workers of a scenario.
pub(super) const WORKERS_MAX: u64 = 1_000_000;
/// Largest weight, in thousandths.
const WEIGHT_MAX: i64 = 1_000_000_000_000_000;

/// A share from 0 to 1.
type Share = Number<0, 1000>;
/// A level of load: iterations per second, or workers.
type Level = Number<0, RATE_MAX>;

settings::table! {
    /// Keys of the file itself.
    pub(super) struct PlanFile {
        /// Shown in reports.
        name: Name = follows "the file's name";
        /// Numbers by name, for formulas. A variable may be a formula of those above it;
        /// `--set NAME=NUMBER` replaces one for a run.
        variables: Variables = empty;
        /// Who is loaded.
        target: Once<TargetTable> = empty;
        /// How connections are made and used.
        connections: Once<ConnectionsTable> = empty;
        /// What holds for the whole run.
        run: Once<RunTable> = empty;
        /// Streams of iterations.
        scenario: Listed<ScenarioTable> = empty;
        /// What iterations do.
        mix: Named<MixTable> = empty;
        /// What the run must keep.
        thresholds: Thresholds = empty;
        /// When the numbers may be believed.
        validity: Once<ValidityTable> = empty;
        /// Whom responses are compared with.
        reference: Once<ReferenceTable> = empty;
        /// What is watched on hosts.
        watch: Once<WatchTable> = empty;
        /// How a search goes.
        capacity: Once<CapacityTable> = empty;
    }
}

settings::table! {
    /// Who is loaded.
    pub(super) struct TargetTable {
        /// Where it is. Keep secrets out of the plan with `${env:NAME}`.
        url: Url = "http://127.0.0.1:8545";
        /// Which methods it understands.
        family: Families = follows "found out by asking";
        /// Sent with each request, such as `{ authorization = "Bearer ${env:TOKEN}" }`.
        headers: Headers = empty;
        /// How long a response may take from the real send.
        timeout: Period<1, TIME_MAX> = "10s";
        /// How long making a connection may take, TLS included.
        connect_timeout: Period<1, TIME_MAX> = "5s";
        /// A longer response is malformed.
        response_bytes_max: Bytes<1024, GIB, usize> = "64MiB";
    }
}

settings::table! {
    /// How connections are made and used.
    pub(super) struct ConnectionsTable {
        /// HTTP version.
        http: HttpVersion = "1.1";
        /// How often a connection is used: until the server closes it, once, or for so many
        /// requests.
        reuse: Reused = "always";
        /// True if TLS sessions are resumed on new connections.
        tls_resume: Bool = "true";
        /// The only TLS version to offer.
        tls_version: TlsVersion = follows "both are offered";
        /// The only cipher suites to offer, by IANA or OpenSSL name; empty for the library's
        /// choice.
        ciphers: List<Cipher> = empty;
        /// True if certificates are not checked.
        tls_insecure: Bool = "false";
        /// PEM file of further trust anchors.
        tls_ca: File = follows "none";
    }
}

settings::table! {
    /// What holds for the whole run.
    pub(super) struct RunTable {
        /// All randomness comes from it: the same plan, seed and chain give the same calls.
        seed: Count<0, { 1 << 53 }> = "1";
        /// Engine threads, each on a core of its own if there are as many.
        threads: Count<1, 256, usize> = "1";
        /// From the start of the run, rounded up to whole seconds: measured and shown, not judged.
        warmup: Period<0, WEEK> = "0s";
    }
}

settings::table! {
    /// A stream of iterations. All scenarios of a plan run at the same time, each from its own
    /// start.
    pub(super) struct ScenarioTable {
        /// Shown in reports; thresholds name it.
        name: Name = follows "`scenario-1` for the first, and so on";
        /// From the start of the run to its first stage.
        start: Period<0, WEEK> = "0s";
        /// `open`: iterations come by the clock, whatever the target does; levels are iterations
        /// per second. `closed`: a worker begins the next when it has ended one; levels are
        /// workers.
        model: ModelName = "open";
        /// The course of its level over time, one after the other.
        stages: Listed<StageTable> = required;
        /// What an iteration does: a mix of this plan, or a shipped one.
        mix: Word = required;
        /// Iterations at the same time, each on a connection of its own.
        workers_max: Count<1, WORKERS_MAX, usize>
            = follows "closed: the most that its stages reach; open: must be set";
        /// What happens when an iteration is due and no worker is free: it waits, and its latency
        /// counts from when it was due; or it is dropped and counted. Open model only.
        late: LateName = "queue";
        /// Iterations that may wait; further ones are dropped and counted.
        queue_max: Count<1, 10_000_000, usize> = "1000000";
        /// Wait of a worker after each iteration. Closed model only.
        pause: Period<0, HOUR> = "0s";
        /// Batches of calls.
        batch: Once<BatchTable> = follows "no batches";
        /// It ends after so many, if that comes first.
        iterations: Count<1, 1_000_000_000_000> = follows "no end but the stages'";
        /// How long after its end iterations may go on that are in flight or waiting.
        grace: Period<0, TIME_MAX> = "30s";
    }
}

settings::table! {
    /// A part of a scenario, in the list `stages`. Its level is given in one way: `rate` or
    /// `workers` (constant), `to` (a ramp), `to` and `steps` (a staircase), `spike` (a constant
    /// after which the level before it holds again), or none of them (the level before holds on).
    pub(super) struct StageTable {
        /// Unique in its scenario.
        name: Name = follows "`stage-1` for the first, and so on";
        /// How long it lasts; zero for a jump.
        duration: Period<0, WEEK> = required;
        /// Constant: iterations per second. Open model.
        rate: Level = follows "see above";
        /// Constant: workers. Closed model.
        workers: Number<0, { WORKERS_MAX as i64 * 1000 }> = follows "see above";
        /// Where a ramp begins.
        from: Level = follows "the level before; 0 for the first";
        /// Where a ramp ends.
        to: Level = follows "see above";
        /// Flat steps of equal length and height, the last one at `to`. They are stages of their
        /// own, NAME-1 and so on; a threshold's tag NAME means all of them.
        steps: Count<2, 1000, usize> = follows "a ramp without steps";
        /// Constant, and then back to the level before.
        spike: Level = follows "see above";
    }
}

impl Copy for Batch {}

settings::table! {
    /// Calls sent together in one request.
    pub(super) struct BatchTable => pub Batch {
        /// That a call becomes a batch.
        probability: Share = "1";
        /// Calls in a batch, all drawn from the same step.
        size: Count<1, 1000, usize> = required;
    }
}

/// The keys of one request, in a step or in a mix of one step.
pub(super) struct Request<'a> {
    pub(super) at: &'a At,
    pub(super) calls: &'a Key<Vec<CallTable>>,
    pub(super) weights_sum: &'a Key<Option<f64>>,
    pub(super) requests: &'a Key<Option<String>>,
    pub(super) bodies: &'a Key<Option<Vec<String>>>,
}

impl Request<'_> {
    /// Returns the positions of its keys.
    pub(super) fn keys(&self) -> [&At; 4] {
        [&self.calls.at, &self.requests.at, &self.bodies.at, &self.weights_sum.at]
    }
}

/// Declares a table with its own keys and those of one request.
macro_rules! request_table {
    ($(#[doc = $doc:literal])+ struct $name:ident { $($own:tt)* }) => {
        settings::table! {
            $(#[doc = $doc])+
            pub(super) struct $name {
                $($own)*
                /// One of these calls is made, chosen by weight.
                calls: Listed<CallTable> = empty;
                /// What the weights are meant to add up to. Weights that do not are an error; they
                /// are never stretched in silence.
                weights_sum: Number<0, WEIGHT_MAX> = follows "not checked";
                /// File of request bodies that are sent in order: one JSON body a line, or vegeta's
                /// JSON targets; `-` for standard input.
                requests: File = follows "see above";
                /// Request bodies that are sent in order, as JSON texts.
                bodies: Bodies = follows "see above";
            }
        }

        impl $name {
            /// The keys of its request.
            pub(super) fn request(&self) -> Request<'_> {
                let $name { at, calls, weights_sum, requests, bodies, .. } = self;
                Request { at, calls, weights_sum, requests, bodies }
            }
        }
    };
}

request_table! {
    /// What an iteration does: one request, or several steps of one request each. A mix of one step
    /// may leave `step` out and set the step's keys itself. Shipped ones are `somnia`, `ethspam`,
    /// `chainbench-eth`, `json-bench`, `ethereum`, `harmony` and `bitcoin`.
    struct MixTable {
        /// What it stands for, where it is from.
        about: Word = follows "nothing";
        /// A file with the keys of a mix, in place of them.
        file: File = follows "none";
        /// Its requests, in order.
        step: Listed<StepTable> = empty;
    }
}

request_table! {
    /// One request of an iteration: one of `calls`, or the next of `requests` or `bodies`.
    struct StepTable {}
}

settings::table! {
    /// A call whose parameters may be drawn anew each time, in the list `calls`.
    pub(super) struct CallTable {
        /// The method's whole name.
        method: MethodName = required;
        /// A list or table whose parts may be generators (see below), or a JSON text of one.
        params: Params = "[]";
        /// Above 0: its share is this by the sum of all weights of its step.
        weight: Number<0, WEIGHT_MAX> = "1";
    }
}

settings::table! {
    /// When the numbers of a run may be believed.
    pub(super) struct ValidityTable => pub Validity {
        /// Least share of due iterations that were begun.
        delivered_share_min: Share = "0.99";
        /// Largest 99th percentile of how late sends were because of the generator.
        lateness_p99_max: Period<0, TIME_MAX> = "1ms";
        /// The same as a share of the median latency. One of the two may be broken, not both.
        lateness_share_max: Number<0, 100_000> = "0.05";
        /// Largest share of their time that the generator's threads may wait for a core: from there
        /// on somebody else's work shows in the numbers.
        waited_share_max: Share = "0.1";
    }
}

impl Copy for Validity {}

settings::table! {
    /// Whom responses are compared with. Without this table they are only checked to be responses.
    pub(super) struct ReferenceTable => pub Reference {
        /// A node that is believed.
        url: Url = required;
        /// Share of calls that are compared.
        share: Share = "0.01";
        /// JSON pointers from the result on that are left out; * is any name or index.
        ignore: List<Word> = empty;
        /// Relative difference up to which two numbers are equal.
        tolerance: Share = "0";
        /// JSON pointers from the result on of arrays whose order has no meaning.
        sets: List<Word> = empty;
    }
}

settings::table! {
    /// What is watched on hosts during the run.
    pub(super) struct WatchTable => pub Watch {
        /// Time between two samples.
        interval: Period<100, SECOND> = "500ms";
        /// Processes by id; the listener of a local target is added by itself.
        pids: List<Count<0, 4_194_304, u32>> = empty;
        /// `http://HOST:9100/metrics` of a prometheus-node-exporter on the target's host.
        node_exporter: Url = follows "none";
    }
}

settings::table! {
    /// How `weir capacity` searches for the highest load that keeps the thresholds.
    pub(super) struct CapacityTable => pub Capacity {
        /// First rate to try, in iterations per second.
        rate_start: Number<100, RATE_MAX> = "100";
        /// Never above this rate.
        rate_max: Number<100, RATE_MAX> = "1000000";
        /// It ends when (lowest fail - highest pass) / highest pass is at most this.
        precision: Number<1, 1000> = "0.02";
        /// Time of one probe.
        probe: Period<SECOND, HOUR> = "10s";
        /// The first part of a probe, rounded up to whole seconds, which is not judged.
        probe_warmup: Period<0, HOUR> = "2s";
        /// Probes at each rate next to the boundary; a majority decides.
        repeats: Count<1, 99, usize> = "3";
        /// Wait between probes.
        drain: Period<0, HOUR> = "2s";
        /// The last run, at the highest pass; zero for none.
        soak: Period<0, WEEK> = "30s";
    }
}
