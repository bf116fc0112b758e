//! The table of all keys of a plan: the one place where a key, its kind, its bounds, its default and
//! its meaning are stated.
//!
//! The reader (`plan/file.rs`), the check for unknown keys, the defaults and `docs/plan.md`
//! (`plan/reference.rs`) all follow it. Apart from the types at the top this file holds only equal
//! entries, so it may grow past the usual length.

use std::time::Duration;

use super::kind::Kind;

/// A table of a plan.
pub(super) struct Section {
    /// Its name: `target`, `scenario`.
    pub(super) name: &'static str,
    /// How it stands in a file.
    pub(super) form: Form,
    /// What it is for.
    pub(super) doc: &'static str,
    /// Its keys, in the order of the reference.
    pub(super) fields: &'static [Field],
}

/// How a table stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The file itself.
    File,
    /// `[target]`, at most once.
    Once,
    /// `[mix.NAME]`, once per name.
    Named,
    /// `[[scenario]]`, any number of times.
    Listed,
    /// `[variables]`, whose keys are free.
    Free,
    /// A table as the value of a key, or in a list.
    Inline,
}

/// A key of a plan.
pub(super) struct Field {
    /// Its name.
    pub(super) key: &'static str,
    /// Other spellings, for what was copied from elsewhere.
    pub(super) also: &'static [&'static str],
    /// What it may be set to.
    pub(super) kind: Kind,
    /// What holds when it is not set.
    pub(super) default: Default,
    /// What it does.
    pub(super) doc: &'static str,
}

/// What holds when a key is not set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Default {
    /// This value, in the form of the file without quotes.
    Is(&'static str),
    /// An empty list or table.
    Empty,
    /// Something that follows from elsewhere, in words.
    Follows(&'static str),
    /// It must be set.
    Required,
}

impl std::fmt::Debug for Section {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name)
    }
}

impl Section {
    /// The key of this name.
    pub(super) fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key || field.also.contains(&key))
    }

    /// Its heading in a file.
    pub(super) fn heading(&self) -> String {
        match self.form {
            Form::File => "the file itself".to_owned(),
            Form::Once | Form::Free => format!("[{}]", self.name),
            Form::Named => format!("[{}.NAME]", self.name),
            Form::Listed => format!("[[{}]]", self.name),
            Form::Inline => format!("a {}", self.name),
        }
    }

    /// All its keys.
    pub(super) fn keys(&self) -> String {
        let keys: Vec<_> = self.fields.iter().map(|field| field.key).collect();
        keys.join(", ")
    }
}

/// All tables with a heading of their own, in the order of the reference.
pub(super) static SECTIONS: [&Section; 11] = [
    &TARGET,
    &CONNECTIONS,
    &RUN,
    &VARIABLES,
    &SCENARIO,
    &MIX,
    &THRESHOLDS,
    &VALIDITY,
    &REFERENCE,
    &WATCH,
    &CAPACITY,
];

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
const WEEK: Duration = Duration::from_secs(7 * 86400);
/// The longest time that histograms tell apart, `record::TIME_MAX`.
const TIME_MAX: Duration = Duration::from_secs(600);
const MIB: u64 = 1 << 20;

/// Iterations per second that one plan may ask for; far above what one machine can send.
pub(super) const RATE_MAX: f64 = 10_000_000.0;
/// Workers of one scenario.
pub(super) const WORKERS_MAX: u64 = 1_000_000;

const fn field(key: &'static str, kind: Kind, default: Default, doc: &'static str) -> Field {
    Field { key, also: &[], kind, default, doc }
}

pub(super) static PLAN: Section = Section {
    name: "",
    form: Form::File,
    doc: "The plan as a whole.",
    fields: &[field("name", Kind::Name, Default::Follows("the file's name"), "Shown in reports.")],
};

pub(super) static TARGET: Section = Section {
    name: "target",
    form: Form::Once,
    doc: "Who is loaded.",
    fields: &[
        field(
            "url",
            Kind::Url,
            Default::Is("http://127.0.0.1:8545"),
            "Where it is. `${env:NAME}` and `${env:NAME:-default}` stand for a variable of the \
             environment.",
        ),
        field(
            "family",
            Kind::Choice(&["ethereum", "harmony", "bitcoin"]),
            Default::Follows("found out by asking"),
            "Which methods it understands.",
        ),
        field(
            "headers",
            Kind::Headers,
            Default::Empty,
            "Sent with each request. Values may hold `${env:NAME}`.",
        ),
        field(
            "timeout",
            Kind::Duration { min: MS, max: TIME_MAX },
            Default::Is("10s"),
            "How long an answer may take from the real send.",
        ),
        field(
            "connect_timeout",
            Kind::Duration { min: MS, max: TIME_MAX },
            Default::Is("5s"),
            "How long making a connection may take, TLS included.",
        ),
        field(
            "answer_bytes_max",
            Kind::Bytes { min: 1024, max: 1024 * MIB },
            Default::Is("64MiB"),
            "A longer answer is malformed.",
        ),
    ],
};

pub(super) static CONNECTIONS: Section = Section {
    name: "connections",
    form: Form::Once,
    doc: "How connections are made and used.",
    fields: &[
        field("http", Kind::Choice(&["1.1", "2"]), Default::Is("1.1"), "HTTP version."),
        field(
            "reuse",
            Kind::Reuse,
            Default::Is("always"),
            "How often a connection is used: until the server closes it, once, or for so many \
             requests.",
        ),
        field(
            "tls_resume",
            Kind::Switch,
            Default::Is("true"),
            "Whether TLS sessions are resumed on new connections.",
        ),
        field(
            "tls_version",
            Kind::Choice(&["1.2", "1.3"]),
            Default::Follows("both are offered"),
            "The only TLS version to offer.",
        ),
        field(
            "ciphers",
            Kind::Texts,
            Default::Empty,
            "The only cipher suites to offer, by IANA or OpenSSL name; empty for the library's \
             choice.",
        ),
        field(
            "tls_insecure",
            Kind::Switch,
            Default::Is("false"),
            "Whether certificates are not checked.",
        ),
        field("tls_ca", Kind::File, Default::Follows("none"), "PEM file of further trust anchors."),
    ],
};

pub(super) static RUN: Section = Section {
    name: "run",
    form: Form::Once,
    doc: "What holds for the whole run.",
    fields: &[
        field(
            "seed",
            Kind::Count { min: 0, max: 1 << 53 },
            Default::Is("1"),
            "All randomness comes from it: the same plan, seed and chain give the same calls.",
        ),
        field(
            "threads",
            Kind::Count { min: 1, max: 256 },
            Default::Is("1"),
            "Engine threads, each on a core of its own if there are as many.",
        ),
        field(
            "warmup",
            Kind::Duration { min: Duration::ZERO, max: WEEK },
            Default::Is("0s"),
            "From the start of the run, rounded up to whole seconds: measured and shown, not judged.",
        ),
    ],
};

pub(super) static VARIABLES: Section = Section {
    name: "variables",
    form: Form::Free,
    doc: "Numbers by name, for formulas; `--set NAME=NUMBER` replaces one for a run.",
    fields: &[],
};

pub(super) static SCENARIO: Section = Section {
    name: "scenario",
    form: Form::Listed,
    doc: "A stream of iterations. All scenarios of a plan run at the same time, each from its own \
          start.",
    fields: &[
        field(
            "name",
            Kind::Name,
            Default::Follows("`scenario-1` for the first, and so on"),
            "Shown in reports; thresholds name it.",
        ),
        field(
            "start",
            Kind::Duration { min: Duration::ZERO, max: WEEK },
            Default::Is("0s"),
            "From the start of the run to its first stage.",
        ),
        field(
            "model",
            Kind::Choice(&["open", "closed"]),
            Default::Is("open"),
            "`open`: iterations come by the clock, whatever the target does; levels are iterations \
             per second. `closed`: a worker begins the next when it has ended one; levels are \
             workers.",
        ),
        field(
            "stages",
            Kind::Tables(&STAGE),
            Default::Required,
            "The course of its level over time, one after the other.",
        ),
        field(
            "mix",
            Kind::Name,
            Default::Required,
            "What an iteration does: a mix of this plan, or a shipped one.",
        ),
        field(
            "workers_max",
            Kind::Count { min: 1, max: WORKERS_MAX },
            Default::Follows("closed: the most that its stages reach; open: must be set"),
            "Iterations at the same time, each on a connection of its own.",
        ),
        field(
            "late",
            Kind::Choice(&["queue", "drop"]),
            Default::Is("queue"),
            "What happens when an iteration is due and no worker is free: it waits, and its \
             latency counts from when it was due; or it is dropped and counted. Open model only.",
        ),
        field(
            "queue_max",
            Kind::Count { min: 1, max: 10_000_000 },
            Default::Is("1000000"),
            "Iterations that may wait; further ones are dropped and counted.",
        ),
        field(
            "pause",
            Kind::Duration { min: Duration::ZERO, max: HOUR },
            Default::Is("0s"),
            "Wait of a worker after each iteration. Closed model only.",
        ),
        field("batch", Kind::Table(&BATCH), Default::Follows("no batches"), "Batches of calls."),
        field(
            "iterations",
            Kind::Count { min: 1, max: 1_000_000_000_000 },
            Default::Follows("no end but the stages'"),
            "It ends after so many, if that comes first.",
        ),
        field(
            "grace",
            Kind::Duration { min: Duration::ZERO, max: TIME_MAX },
            Default::Is("30s"),
            "How long after its end iterations may go on that are under way or waiting.",
        ),
    ],
};

const LEVEL: Kind = Kind::Number { min: 0.0, max: RATE_MAX };

pub(super) static STAGE: Section = Section {
    name: "stage",
    form: Form::Inline,
    doc: "A part of a scenario. Its level is given in one way: `rate` or `workers` (constant), `to` \
          (a ramp), `to` and `steps` (a staircase), `spike` (a constant after which the level \
          before it holds again), or none of them (the level before holds on).",
    fields: &[
        field(
            "name",
            Kind::Name,
            Default::Follows("`stage-1` for the first, and so on"),
            "Unique in its scenario.",
        ),
        field(
            "duration",
            Kind::Duration { min: Duration::ZERO, max: WEEK },
            Default::Required,
            "How long it lasts; zero for a jump.",
        ),
        field(
            "rate",
            LEVEL,
            Default::Follows("see above"),
            "Constant: iterations per second. Open model.",
        ),
        field(
            "workers",
            Kind::Number { min: 0.0, max: WORKERS_MAX as f64 },
            Default::Follows("see above"),
            "Constant: workers. Closed model.",
        ),
        field(
            "from",
            LEVEL,
            Default::Follows("the level before; 0 for the first"),
            "Where a ramp begins.",
        ),
        field("to", LEVEL, Default::Follows("see above"), "Where a ramp ends."),
        field(
            "steps",
            Kind::Count { min: 2, max: 1000 },
            Default::Follows("a ramp without steps"),
            "Flat steps of equal length and height, the last one at `to`. They are stages of their \
             own, NAME-1 and so on; a threshold's tag NAME means all of them.",
        ),
        field(
            "spike",
            LEVEL,
            Default::Follows("see above"),
            "Constant, and then back to the level before.",
        ),
    ],
};

pub(super) static BATCH: Section = Section {
    name: "batch",
    form: Form::Inline,
    doc: "Calls sent together in one request.",
    fields: &[
        field(
            "probability",
            Kind::Number { min: 0.0, max: 1.0 },
            Default::Is("1"),
            "That a call becomes a batch.",
        ),
        field(
            "size",
            Kind::Count { min: 1, max: 1000 },
            Default::Required,
            "Calls in a batch, all drawn from the same step.",
        ),
    ],
};

const CALLS: Field = field(
    "calls",
    Kind::Tables(&CALL),
    Default::Follows("see above"),
    "One of these calls is made, chosen by weight.",
);
const WEIGHTS_SUM: Field = field(
    "weights_sum",
    Kind::Number { min: 0.0, max: 1e12 },
    Default::Follows("not checked"),
    "What the weights are meant to add up to. Weights that do not are a fault; they are never \
     stretched in silence.",
);
const REQUESTS: Field = field(
    "requests",
    Kind::File,
    Default::Follows("see above"),
    "File of request bodies that are sent in order: one JSON body a line, or vegeta's JSON targets; \
     `-` for standard input.",
);
const BODIES: Field = field(
    "bodies",
    Kind::Texts,
    Default::Follows("see above"),
    "Request bodies that are sent in order, as JSON texts.",
);

pub(super) static MIX: Section = Section {
    name: "mix",
    form: Form::Named,
    doc: "What an iteration does: one request, or several steps of one request each. A mix of one \
          step may leave `step` out and set the step's keys itself. Shipped ones are `somnia`, \
          `ethspam`, `chainbench-eth`, `json-bench`, `ethereum`, `harmony` and `bitcoin`.",
    fields: &[
        field(
            "about",
            Kind::Text,
            Default::Follows("nothing"),
            "What it stands for, where it is from.",
        ),
        field(
            "file",
            Kind::File,
            Default::Follows("none"),
            "A file with the keys of a mix, in place of them.",
        ),
        field(
            "step",
            Kind::Tables(&STEP),
            Default::Follows("see above"),
            "`[[mix.NAME.step]]`: its requests, in order.",
        ),
        CALLS,
        WEIGHTS_SUM,
        REQUESTS,
        BODIES,
    ],
};

pub(super) static STEP: Section = Section {
    name: "step",
    form: Form::Inline,
    doc: "One request of an iteration: one of `calls`, or the next of `requests` or `bodies`.",
    fields: &[CALLS, WEIGHTS_SUM, REQUESTS, BODIES],
};

pub(super) static CALL: Section = Section {
    name: "call",
    form: Form::Inline,
    doc: "A call whose parameters may be drawn anew each time.",
    fields: &[
        field("method", Kind::Method, Default::Required, "The method's whole name."),
        field(
            "params",
            Kind::Tree,
            Default::Is("[]"),
            "A list or table whose parts may be generators, or a JSON text of one.",
        ),
        field(
            "weight",
            Kind::Number { min: 1e-9, max: 1e12 },
            Default::Is("1"),
            "Its share is this by the sum of all weights of its step.",
        ),
    ],
};

pub(super) static THRESHOLDS: Section = Section {
    name: "thresholds",
    form: Form::Free,
    doc: "What the run must keep, in k6's grammar.",
    fields: &[],
};

pub(super) static THRESHOLD: Section = Section {
    name: "threshold",
    form: Form::Inline,
    doc: "A threshold with more to say than its expression.",
    fields: &[
        field(
            "threshold",
            Kind::Text,
            Default::Required,
            "The expression, such as `\"p(99)<700\"`.",
        ),
        Field {
            also: &["abort_on_fail", "abortOnFail"],
            ..field(
                "abort",
                Kind::Switch,
                Default::Is("false"),
                "Whether the run ends when it is broken (k6: `abortOnFail`).",
            )
        },
        Field {
            also: &["delayAbortEval", "delay_abort_eval"],
            ..field(
                "abort_delay",
                Kind::Duration { min: Duration::ZERO, max: WEEK },
                Default::Is("0s"),
                "It ends no run before this (k6: `delayAbortEval`).",
            )
        },
        field(
            "window",
            Kind::Duration { min: SECOND, max: WEEK },
            Default::Follows("the whole run"),
            "Judged over each window of this length.",
        ),
        field(
            "sustained",
            Kind::Duration { min: Duration::ZERO, max: WEEK },
            Default::Is("0s"),
            "A breach counts only if it lasts this long.",
        ),
        field(
            "no_data",
            Kind::Choice(&["fail", "pass"]),
            Default::Is("fail"),
            "What no data at all means (k6: pass).",
        ),
    ],
};

pub(super) static VALIDITY: Section = Section {
    name: "validity",
    form: Form::Once,
    doc: "When the numbers of a run may be believed.",
    fields: &[
        field(
            "delivered_share_min",
            Kind::Number { min: 0.0, max: 1.0 },
            Default::Is("0.99"),
            "Least share of due iterations that were begun.",
        ),
        field(
            "lateness_p99_max",
            Kind::Duration { min: Duration::ZERO, max: TIME_MAX },
            Default::Is("1ms"),
            "Largest 99th percentile of how late sends were because of the generator.",
        ),
        field(
            "lateness_share_max",
            Kind::Number { min: 0.0, max: 100.0 },
            Default::Is("0.05"),
            "The same as a share of the median latency. One of the two may be broken, not both.",
        ),
        field(
            "waited_share_max",
            Kind::Number { min: 0.0, max: 1.0 },
            Default::Is("0.1"),
            "Largest share of their time that the generator's threads may wait for a core.",
        ),
    ],
};

pub(super) static REFERENCE: Section = Section {
    name: "reference",
    form: Form::Once,
    doc: "Whom answers are compared with. Without this table they are only checked to be answers.",
    fields: &[
        field("url", Kind::Url, Default::Required, "A node that is believed."),
        field(
            "share",
            Kind::Number { min: 0.0, max: 1.0 },
            Default::Is("0.01"),
            "Share of calls that are compared.",
        ),
        field(
            "ignore",
            Kind::Texts,
            Default::Empty,
            "JSON pointers from the result on that are left out; * is any name or index.",
        ),
        field(
            "tolerance",
            Kind::Number { min: 0.0, max: 1.0 },
            Default::Is("0"),
            "Relative difference up to which two numbers are equal.",
        ),
        field(
            "sets",
            Kind::Texts,
            Default::Empty,
            "JSON pointers from the result on of arrays whose order has no meaning.",
        ),
    ],
};

pub(super) static WATCH: Section = Section {
    name: "watch",
    form: Form::Once,
    doc: "What is watched on hosts during the run.",
    fields: &[
        field(
            "interval",
            Kind::Duration { min: Duration::from_millis(100), max: SECOND },
            Default::Is("500ms"),
            "Time between two samples.",
        ),
        field(
            "pids",
            Kind::Counts { max: 4_194_304 },
            Default::Empty,
            "Processes by id; the listener of a local target is added by itself.",
        ),
        field(
            "node_exporter",
            Kind::Url,
            Default::Follows("none"),
            "`http://HOST:9100/metrics` of a prometheus-node-exporter on the target's host.",
        ),
    ],
};

pub(super) static CAPACITY: Section = Section {
    name: "capacity",
    form: Form::Once,
    doc: "How `weir capacity` searches for the highest load that keeps the thresholds.",
    fields: &[
        field(
            "rate_start",
            Kind::Number { min: 0.1, max: RATE_MAX },
            Default::Is("100"),
            "First rate to try, in iterations per second.",
        ),
        field(
            "rate_max",
            Kind::Number { min: 0.1, max: RATE_MAX },
            Default::Is("1000000"),
            "Never above this rate.",
        ),
        field(
            "precision",
            Kind::Number { min: 0.001, max: 1.0 },
            Default::Is("0.02"),
            "It ends when (lowest fail - highest pass) / highest pass is at most this.",
        ),
        field(
            "probe",
            Kind::Duration { min: SECOND, max: HOUR },
            Default::Is("10s"),
            "Time of one probe.",
        ),
        field(
            "probe_warmup",
            Kind::Duration { min: Duration::ZERO, max: HOUR },
            Default::Is("2s"),
            "The first part of a probe, rounded up to whole seconds, which is not judged.",
        ),
        field(
            "repeats",
            Kind::Count { min: 1, max: 99 },
            Default::Is("3"),
            "Probes at each rate next to the boundary; a majority decides.",
        ),
        field(
            "drain",
            Kind::Duration { min: Duration::ZERO, max: HOUR },
            Default::Is("2s"),
            "Wait between probes.",
        ),
        field(
            "soak",
            Kind::Duration { min: Duration::ZERO, max: WEEK },
            Default::Is("30s"),
            "The last run, at the highest pass; zero for none.",
        ),
    ],
};

/// What a generator of parameters is called by.
pub(super) const DRAW: &str = "draw";

const BLOCKS_BEHIND_MAX: u64 = 1_000_000_000;
const WHICH: Field = field(DRAW, Kind::Text, Default::Required, "Which generator this is.");
const BEHIND: Field = field(
    "behind",
    Kind::Span { max: BLOCKS_BEHIND_MAX },
    Default::Is("0"),
    "Blocks behind the head; of `[smallest, largest]` each call draws one.",
);

/// The generators of parameters, in the order of the reference.
pub(super) static DRAWS: [&Section; 7] =
    [&BLOCK, &LOGS, &BLOCK_HASH, &TRANSACTION_HASH, &ADDRESS, &BYTES, &ONE_OF];

pub(super) static BLOCK: Section = Section {
    name: "block",
    form: Form::Inline,
    doc: "The number of a block behind the head that the run began with, in the family's form. \
          `{ block = \"latest-100\" }` is short for `{ draw = \"block\", behind = 100 }`.",
    fields: &[WHICH, BEHIND],
};

pub(super) static LOGS: Section = Section {
    name: "logs",
    form: Form::Inline,
    doc: "A log filter over a range of blocks that ends behind the head.",
    fields: &[
        WHICH,
        field(
            "blocks",
            Kind::Count { min: 1, max: BLOCKS_BEHIND_MAX },
            Default::Required,
            "Blocks in the range.",
        ),
        BEHIND,
        field(
            "address",
            Kind::Tree,
            Default::Follows("any"),
            "The filter's `address`: a text, a list or a generator.",
        ),
        field("topics", Kind::Tree, Default::Follows("any"), "The filter's `topics`."),
    ],
};

pub(super) static BLOCK_HASH: Section = Section {
    name: "block-hash",
    form: Form::Inline,
    doc: "The hash of one of the newest blocks when the run began.",
    fields: &[WHICH],
};

pub(super) static TRANSACTION_HASH: Section = Section {
    name: "transaction-hash",
    form: Form::Inline,
    doc: "The hash of a transaction in one of those blocks.",
    fields: &[WHICH],
};

pub(super) static ADDRESS: Section = Section {
    name: "address",
    form: Form::Inline,
    doc: "An address.",
    fields: &[
        WHICH,
        field(
            "of",
            Kind::Texts,
            Default::Empty,
            "One of these; if empty, one seen in the newest blocks.",
        ),
    ],
};

pub(super) static BYTES: Section = Section {
    name: "bytes",
    form: Form::Inline,
    doc: "Random bytes as `\"0x…\"`.",
    fields: &[
        WHICH,
        field("count", Kind::Count { min: 1, max: 65_536 }, Default::Required, "How many."),
    ],
};

pub(super) static ONE_OF: Section = Section {
    name: "one-of",
    form: Form::Inline,
    doc: "One of several values.",
    fields: &[
        WHICH,
        field("values", Kind::Tree, Default::Required, "The list; its parts are no generators."),
    ],
};
