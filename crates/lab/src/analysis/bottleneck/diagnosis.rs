//! The data types of a bottleneck: a claim (the limit that was reached), the evidence for the claim
//! and the doubts about it. `wording/bottleneck.rs` writes the sentences.

use lab_model::results::run::UpstreamFacts;
use lab_model::results::{Cause, Confidence};

use super::time_series::Rise;

/// The first bottleneck of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Bottleneck {
    /// Time at which the limit was reached, in seconds since the start of the run. `None` if
    /// unknown.
    pub at: Option<f64>,
    /// The limit that was reached.
    pub claim: Claim,
    /// Observations that support the claim.
    pub evidence: Vec<Evidence>,
    /// Observations that make the claim less certain.
    pub doubts: Vec<Doubt>,
}

impl Bottleneck {
    /// Returns the confidence: high without doubts, medium with one doubt, low with more. It is
    /// always low for an unknown limit.
    pub fn confidence(&self) -> Confidence {
        match (&self.claim, self.doubts.len()) {
            (Claim::Unknown(_), _) => Confidence::Low,
            (_, 0) => Confidence::High,
            (_, 1) => Confidence::Medium,
            _ => Confidence::Low,
        }
    }
}

/// A limit, with the names and numbers that its sentence quotes.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// The generator.
    Generator,
    /// Connecting took this share of the time of all calls.
    Connecting(f64),
    /// Connections wait in the accept queue.
    AcceptQueue,
    /// Connections are refused or closed.
    Refused,
    /// The target rejects calls with HTTP 429.
    TooManyRequests,
    /// Calls fail with the JSON-RPC error code of "limit exceeded".
    LimitExceeded,
    /// An upstream of the target; `None` if it is unknown.
    Upstream(Option<UpstreamFacts>),
    /// The link between the generator and the target.
    Link,
    /// The target's software.
    Software,
    /// The CPU quota of a process: the name of the process, and the quota in cores.
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
    /// The cores to which the target is pinned. The value is the number of these cores.
    Cores(f64),
    /// The core of the target's busiest thread.
    BusiestCore,
    /// The CPU of the target's host.
    HostCpu,
    /// The limit is unknown.
    Unknown(Unknown),
}

impl Claim {
    /// Returns the kind of limit.
    pub fn cause(&self) -> Cause {
        match self {
            Claim::Generator => Cause::Generator,
            Claim::Connecting(_) | Claim::AcceptQueue | Claim::Refused => Cause::Connection,
            Claim::TooManyRequests | Claim::LimitExceeded => Cause::RateLimit,
            Claim::Upstream(_) => Cause::Upstream,
            Claim::Software => Cause::Software,
            Claim::CpuQuota(..) => Cause::CpuQuota,
            Claim::MemoryLimit(_) | Claim::HostMemory => Cause::Memory,
            Claim::DiskLimit(_) | Claim::Disk(_) => Cause::Disk,
            Claim::Thread(_) => Cause::Thread,
            Claim::Network(_) | Claim::Link => Cause::Network,
            Claim::OnlyCore(_) | Claim::Cores(_) | Claim::BusiestCore | Claim::HostCpu => {
                Cause::Cpu
            }
            Claim::Unknown(_) => Cause::Unknown,
        }
    }
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

/// An observation that supports a claim. The breach is the moment at which the first threshold was
/// broken. A value is the mean over a short window around the breach, unless its name or comment
/// says otherwise. A share is between 0 and 1. CPU use is in cores (CPU seconds per second). "Since
/// the rise" is the time since the resource saturated.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    // The generator.
    /// Share of the time in which the generator's threads were busy.
    GeneratorBusy { share: f64 },
    /// Time for which the generator's threads were runnable but waited for a core.
    GeneratorStarved { seconds_per_second: f64 },
    /// p99 delay of sends, and rise of the p99 latency, in milliseconds. The delay is at least half
    /// of the rise.
    LateSends { delay_ms: f64, latency_rise_ms: f64 },
    /// Longest time in which a thread of the generator did not run although it should have, and rise
    /// of the p99 latency, in milliseconds. The time is at least half of the rise.
    GeneratorStopped { gap_ms: f64, latency_rise_ms: f64 },
    /// Number of connections of the run that failed because no local port was free.
    PortsExhausted { connections: u64 },
    /// Number of cores that the target used, and number of all cores of the host. Target and
    /// generator share this host.
    SharedCores { target_cores: f64, host_cores: f64 },
    // Connections to the target.
    /// Number of TCP connects in the run, and their mean duration in milliseconds.
    Connects { count: u64, mean_ms: f64 },
    /// Number of TLS handshakes in the run, and their mean duration in milliseconds. Counts the
    /// resumed handshakes if `resumed` is true, otherwise the full ones.
    Handshakes { resumed: bool, count: u64, mean_ms: f64 },
    /// Number of connections in the target's accept queue, and number of all connections to the
    /// target.
    Unaccepted { queued: f64, connections: f64 },
    /// Maximum number of connections in the target's accept queue.
    AcceptQueueMax { connections: f64 },
    /// Number of connections per second that were refused because an accept queue was full.
    AcceptQueueOverflows { per_second: f64 },
    /// Share of the calls that failed without a connection, and share of the calls that failed for
    /// another reason.
    FailedCalls { connection_share: f64, other_share: f64 },
    /// Numbers of connections in the run that were opened, that failed to open, and that the server
    /// closed.
    Connections { opened: u64, failed: u64, closed_by_server: u64 },
    // Rate limits.
    /// Share of the calls that the target rejected with HTTP 429, and share of the calls that
    /// failed. A rejected call does not count as failed.
    TooManyRequests { limited_share: f64, failed_share: f64 },
    /// Successful calls per second.
    Successes { per_second: f64 },
    /// Median wait that `Retry-After` headers of the run ask for, in seconds.
    RetryAfter { seconds: f64 },
    /// Share of the calls that ended with a JSON-RPC error. Of all `errors` JSON-RPC errors of the
    /// run, `limit_errors` have the `code` of "limit exceeded".
    LimitExceeded { error_share: f64, limit_errors: u64, errors: u64, code: i64 },
    // Upstreams of the target.
    /// Number of cores that the target used, and number of cores that it may use. The target was
    /// not busy.
    CpuIdle { cores_used: f64, cores_allowed: f64 },
    /// `calls_inside` is the number of calls that the target has received but not yet answered.
    /// `upstream_waits` is the number of connections on which the target waited for a response of
    /// its upstream. `share` is `upstream_waits` ÷ `calls_inside`, at most 1.
    WaitedForUpstream { calls_inside: f64, upstream_waits: f64, share: f64 },
    // The link between generator and target.
    /// Round-trip time of the connections before the breach and in the window, in milliseconds.
    RoundTrip { before_ms: f64, ms: f64 },
    /// Number of responses that the target has sent and the generator has not received, and number
    /// of calls in flight.
    ResponsesOnTheWay { responses: f64, in_flight: f64 },
    /// Each sample has the target's longest wait for an upstream response; `ms` is their mean.
    LongestUpstreamWait { ms: f64 },
    /// CPU use of an upstream's process, and of its busiest thread as a share of a core.
    UpstreamCpu { name: String, cores_used: f64, busiest_thread: f64 },
    // Saturated resources.
    /// The queue or waiting time of a resource rose.
    Rose(Waiting, Rise),
    /// Share of a CPU quota that the process used since the rise.
    QuotaUsed { name: String, share: f64 },
    /// Share of a cgroup's memory limit that was used since the rise.
    MemoryLimitUsed { share: f64 },
    /// Share of a cgroup's disk limit that was used since the rise.
    DiskLimitUsed { share: f64 },
    /// Share of the time since the rise in which a process's busiest thread ran, and number of
    /// cores that the other threads used or waited for.
    ThreadBusy { share: f64, other_cores: f64 },
    /// Name of a process's busiest thread, and the share of a core that it used since the rise.
    BusiestThread { name: String, share: f64 },
    /// Number of accepted connections with bytes that the target had not read.
    UnreadRequests { connections: f64 },
    /// Share of the host's memory that was used since the rise.
    MemoryUsed { share: f64 },
    /// Page faults of the host per second that had to read a disk.
    MajorPageFaults { per_second: f64 },
    /// Share of the time since the rise in which a disk was busy, and number of its queued
    /// requests.
    DiskBusy { device: String, share: f64, queue: f64 },
    /// Mean duration of a disk request in milliseconds.
    DiskTime { mean_ms: f64 },
    /// Used share of a network device's line rate since the rise.
    LineRate { device: String, share: f64 },
    /// Share of the time since the rise in which cores were busy. If `awaited_only` is true, these
    /// are the cores that the target's threads waited for, otherwise all cores that it may use.
    CoresBusy { awaited_only: bool, share: f64 },
    /// Number of busy cores of the host that target and generator share. The other fields are the
    /// numbers of cores that the target, the generator and other processes used.
    CpuUsers { busy: f64, target: f64, generator: f64, others: f64 },
    /// Rank correlation of the resource's waiting time with the load, between -1 and 1.
    LoadCorrelation { rank: f64 },
    // The software of the target, and its host.
    /// Number of calls that the target has received but not yet answered.
    CallsInside { calls: f64 },
    /// Number of cores that the target used, and number of cores that it may use. `busiest_thread`
    /// is the share of a core that its busiest thread used. `run_delay` is the time for which its
    /// threads were runnable but waited for a core, in seconds per second.
    TargetCpu { cores_used: f64, cores_allowed: f64, busiest_thread: f64, run_delay: f64 },
    /// Several threads of the target used about one core together, as if one lock serialized them.
    ThreadsSerialized,
    /// Utilisation and pressure of the target's host.
    Host(HostShares),
    /// CPU utilisation of the target's host before the load started, between 0 and 1.
    BusyBeforeLoad { share: f64 },
    /// Iowait was high although hardly any task waited for a disk, so it is no evidence.
    IowaitWithoutDiskWait,
    /// A sentence about data of the target or its host that could not be observed.
    NotObserved(String),
}

/// Shares of the time around the breach in which resources of the target's host were busy or
/// awaited. `None` if a metric was not observed.
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
    /// The load was never low.
    NoBaseline,
    /// The load did not vary.
    ConstantLoad,
    /// Another resource saturated within a second of this one.
    TiedResource(Claim),
    /// The accept queue is not full.
    QueueNotFull,
    /// Connections were closed only after they had been established.
    ClosedLater,
    /// Another resource of the target's host saturated before the breach.
    OtherSaturated,
    /// The target's processes are not observed.
    ProcessesUnseen,
    /// Some servers use the error code of "limit exceeded" for other limits.
    CodeAmbiguous,
    /// The target used more than half of the cores that it may use.
    HalfUsed,
    /// The thread waited for a core for this share of the time.
    NoCore(f64),
}
