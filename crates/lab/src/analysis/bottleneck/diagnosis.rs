//! A bottleneck in numbers: its cause, the evidence for it and the doubts about it.
//! `wording/bottleneck.rs` writes the sentences.

use lab_model::results::run::UpstreamFacts;
use lab_model::results::{Cause, Confidence};

use super::time_series::Rise;

/// The first bottleneck of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// The kind of limit.
    pub cause: Cause,
    /// High without a doubt, medium with one doubt, low with more.
    pub confidence: Confidence,
    /// Time at which the limit was reached, in seconds since the start of the run; `None` if
    /// unknown.
    pub at: Option<f64>,
    /// The limit itself.
    pub claim: Claim,
    /// Observations that support the claim.
    pub evidence: Vec<Evidence>,
    /// Observations that make the claim less certain.
    pub doubts: Vec<Doubt>,
}

impl Bottleneck {
    pub(super) fn new(
        cause: Cause,
        at: Option<f64>,
        claim: Claim,
        evidence: Vec<Evidence>,
        doubts: Vec<Doubt>,
    ) -> Bottleneck {
        let confidence = match doubts.len() {
            0 => Confidence::High,
            1 => Confidence::Medium,
            _ => Confidence::Low,
        };
        Bottleneck { cause, confidence, at, claim, evidence, doubts }
    }
}

/// The limit, with the names and numbers that its sentence quotes.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// The generator.
    Generator,
    /// Connecting took this share of the time of all calls.
    Connecting(f64),
    /// Connections wait in the accept queue.
    Unaccepted,
    /// Connections are refused or closed.
    Refused,
    /// HTTP 429.
    TooManyRequests,
    /// The JSON-RPC error code of "limit exceeded".
    LimitExceeded,
    /// An upstream of the target.
    Upstream(Option<UpstreamFacts>),
    /// The target's software.
    Software,
    /// The CPU quota of a process, in cores.
    CpuQuota(String, f64),
    /// The memory limit of a process's cgroup.
    MemoryLimit(String),
    /// The disk limit of a process's cgroup.
    DiskLimit(String),
    /// The single core that a process may use.
    OnlyCore(String),
    /// One thread of a process.
    Thread(String),
    /// The memory of the target's host.
    HostMemory,
    /// A disk of the target's host.
    Disk(String),
    /// A network device of the target's host.
    Network(String),
    /// The cores that the target may use.
    Cores(f64),
    /// The core of the target's busiest thread.
    BusiestCore,
    /// The CPU of the target's host.
    HostCpu,
    /// The limit is unknown.
    Unknown(Unknown),
}

/// Reason why the limit is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The target runs in the generator's own process.
    InProcess,
    /// The target's host is not observed.
    HostUnseen,
    /// The target is on another host, and only totals of that host are known.
    Remote,
    /// No process of the target was found.
    ProcessesUnseen,
    /// The observations contradict each other.
    Unclear,
}

/// An observation that supports a claim. Times are in seconds unless the name says milliseconds;
/// shares are between 0 and 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    Generator(GeneratorEvidence),
    Connection(ConnectionEvidence),
    Resource(ResourceEvidence),
    Idle { used: f64, cores: f64 },
    TooManyRequests { limited: f64, failed: f64 },
    Admitted(f64),
    RetryAfter(f64),
    LimitExceeded { errors: f64, limits: u64, every: u64, code: i64 },
    Behind { inside: f64, behind: f64, share: f64 },
    LongestWait { ms: f64 },
    UpstreamCpu { name: String, used: f64, busiest: f64 },
    Correlation(f64),
    Inside(f64),
    OwnCpu { used: f64, cores: f64, busiest: f64, delay: f64 },
    OneLock,
    Host(HostShares),
    BusyBefore(f64),
    IowaitAlone,
    Missing(String),
}

/// Evidence that the generator was the limit.
#[derive(Clone, Debug, PartialEq)]
pub enum GeneratorEvidence {
    EngineBusy(f64),
    EngineStarved(f64),
    LateSends { late_ms: f64, rise_ms: f64 },
    NoPorts(u64),
    SharedCores { used: f64, cores: f64 },
}

/// Evidence about connections to the target.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectionEvidence {
    Connects { count: u64, mean_ms: f64 },
    Handshakes { resumed: bool, count: u64, mean_ms: f64 },
    Unaccepted { waiting: f64, connected: f64 },
    QueueLength(f64),
    QueueOverflows(f64),
    NotConnected { refused: f64, otherwise: f64 },
    Connections { made: u64, failed: u64, closed: u64 },
}

/// Evidence about a saturated resource.
#[derive(Clone, Debug, PartialEq)]
pub enum ResourceEvidence {
    Rose(Waiting, Rise),
    QuotaUsed { name: String, share: f64 },
    MemoryLimitUsed(f64),
    DiskLimitUsed(f64),
    ThreadRan { share: f64, others: f64 },
    BusiestThread { name: String, used: f64 },
    Unread(f64),
    MemoryUsed(f64),
    PageFaults(f64),
    DiskBusy { device: String, share: f64, queue: f64 },
    DiskTime { ms: f64 },
    LineRate { device: String, share: f64 },
    CoresBusy { awaited: bool, share: f64 },
    CpuUsers { busy: f64, target: f64, generator: f64, others: f64 },
}

/// Shares of time of the target's host around the breach.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostShares {
    /// The CPU was busy.
    pub cpu: Option<f64>,
    /// At least one task waited for CPU (pressure stall information).
    pub cpu_wait: Option<f64>,
    /// At least one task waited for memory.
    pub memory_wait: Option<f64>,
    /// At least one task waited for a disk.
    pub disk_wait: Option<f64>,
}

/// The queue or waiting time that rose at a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Throttled periods of a CPU quota.
    Quota,
    /// Tasks that wait for memory.
    Memory,
    /// Tasks that wait for disks.
    Disks,
    /// CPU time that the busiest thread used or waited for.
    Thread,
    /// TCP retransmissions and dropped packets.
    Network,
    /// Runnable threads of the target that wait for a core.
    TargetCpu,
    /// Tasks that wait for CPU.
    HostCpu,
}

/// An observation that makes a claim less certain.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// p99 delay of sends, in milliseconds.
    LateSends(f64),
    /// There was no time without load.
    NoBaseline,
    /// The load did not vary.
    ConstantLoad,
    /// Another resource saturated within a second.
    Another(Claim),
    /// The accept queue is not full.
    QueueNotFull,
    /// Connections were closed only after they had been established.
    ClosedLater,
    /// The target's processes are not observed.
    ProcessesUnseen,
    /// Some servers use the error code for other limits.
    CodeAmbiguous,
    /// More than half of the target's CPU was used.
    HalfUsed,
    /// The thread waited for a core for this share of the time.
    NoCore(f64),
}
