//! Finds the resource of the target that saturated first. If none saturated, checks if the target's
//! software is the cause.
//!
//! A resource is saturated if its utilisation is high and something waits for it. If two resources
//! saturate within a second of each other, the resource nearer to the target comes first, because
//! it explains the other. For example, the target's CPU quota comes before the host's CPU.
//!
//! The breach is the moment at which the first threshold was broken. The window is a short time
//! around the breach. `host!("…")` is the host metric with this name; the macro checks the name at
//! compile time. A `*` in a name stands for a process, thread or device; `.of(name)` replaces it.

use lab_model::metrics::host::{HostMetric, host};
use lab_model::record::Class;
use lab_model::results::Cause;

use super::diagnosis::{Bottleneck, Claim, Doubt, Evidence, HostShares, Waiting};
use super::exclude::round_trip_rise;
use super::time_series::{Rise, TimeSeries, find_rise, load_correlation};
use super::{Context, WINDOW_AFTER};

/// A resource that saturated.
#[derive(Debug)]
pub(super) struct Saturated {
    /// Start of the saturation, in seconds since the start of the run.
    at: f64,
    /// Rank correlation of the wait with the load, from -1 to 1; `None` if the load did not vary.
    correlation: Option<f64>,
    /// The saturated resource, as the limit that was reached.
    claim: Claim,
    evidence: Vec<Evidence>,
    doubts: Vec<Doubt>,
}

impl Saturated {
    /// Returns true if the resource saturated before the threshold was broken. One second of slack
    /// allows for the resolution of the time series.
    pub(super) fn precedes_breach(&self, context: &Context<'_>) -> bool {
        self.at <= context.broken_at + 1.0
    }

    /// Returns true if metrics of the target's processes show the saturation, false if only metrics
    /// of their host do.
    pub(super) fn is_of_target(&self, context: &Context<'_>) -> bool {
        let is_of_host =
            matches!(self.claim, Claim::HostMemory | Claim::Disk(_) | Claim::Network(_));
        !is_of_host && !context.target_names.is_empty()
    }
}

/// A resource follows the load if the rank correlation of its waiting time with the load is at
/// least this.
const CORRELATION_MIN: f64 = 0.3;
/// Resources that saturate within this many seconds of each other have no order in time.
const TIE_SECONDS: f64 = 1.0;
/// The target lacks CPU if it waits for a core for at least this share of its runnable time.
const CPU_WAIT_MIN: f64 = 0.2;
/// CPU utilisation from which one thread, or all cores together, count as highly used.
const BUSY_MIN: f64 = 0.85;
/// Utilisation from which a disk, a network device or the target's cores count as highly used.
const USED_MIN: f64 = 0.8;
/// Memory is short if at least this share of it is in use.
const MEMORY_MIN: f64 = 0.9;

/// Returns all saturated resources, the one nearest to the target first.
pub(super) fn saturated_resources(context: &Context<'_>) -> Vec<Saturated> {
    if context.in_process {
        return Vec::new();
    }
    let of_target = context.target_names.iter().flat_map(|name| {
        [
            check_quota(context, name),
            check_memory_limit(context, name),
            check_io_limit(context, name),
            check_thread(context, name),
        ]
    });
    let of_host =
        [check_memory(context), check_disk(context), check_network(context), check_cpu(context)];
    of_target.chain(of_host).flatten().collect()
}

/// Returns the resource that saturated first, among those that follow the load and saturated before
/// the threshold was broken.
pub(super) fn find_first(context: &Context<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    let before_breach = || saturated.iter().filter(|resource| resource.precedes_breach(context));
    // A used-up quota also shows as a lack of CPU. A small lack of CPU appears as soon as several
    // threads of the target are runnable. So it may appear before the quota is used up, but the
    // quota is still the cause.
    let has_quota = before_breach().any(|resource| resource.claim.cause() == Cause::CpuQuota);
    let follows_load = |resource: &&Saturated| {
        resource.correlation.is_none_or(|correlation| correlation >= CORRELATION_MIN)
    };
    let candidates = || {
        let is_explained = move |resource: &&Saturated| {
            let cause = resource.claim.cause();
            has_quota && cause != Cause::CpuQuota && explains(Cause::CpuQuota, cause)
        };
        before_breach().filter(move |resource| !is_explained(resource)).filter(follows_load)
    };
    let earliest = candidates().map(|resource| resource.at).reduce(f64::min)?;
    let first = candidates().find(|resource| resource.at <= earliest + TIE_SECONDS)?;
    let mut doubts = context.doubts();
    doubts.extend(first.doubts.iter().cloned());
    if first.correlation.is_none() {
        doubts.push(Doubt::ConstantLoad);
    }
    let tied = candidates().filter(|other| {
        other.at <= earliest + TIE_SECONDS && !explains(first.claim.cause(), other.claim.cause())
    });
    doubts.extend(tied.map(|other| Doubt::TiedResource(other.claim.clone())));
    let mut evidence = first.evidence.clone();
    evidence.extend(first.correlation.map(|rank| Evidence::LoadCorrelation { rank }));
    Some(Bottleneck { at: Some(first.at), claim: first.claim.clone(), evidence, doubts })
}

/// Returns true if `cause` also produces the symptoms of the cause `other`.
fn explains(cause: Cause, other: Cause) -> bool {
    cause == other
        || matches!(
            (cause, other),
            (Cause::CpuQuota, Cause::Cpu | Cause::Thread)
                | (Cause::Memory, Cause::Disk | Cause::Cpu)
        )
}

/// Returns the target's software as the cause if no resource saturated, the target was fully
/// observed, and it had calls to work on.
pub(super) fn check_software(context: &Context<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    let watched = &context.result.watched;
    let is_fully_observed = watched.target_local
        && !context.target_names.is_empty()
        && !context.in_process
        && watched.missing.is_empty();
    // Packets that wait on the link are no calls inside the target.
    let waits_on_link = round_trip_rise(context).is_some();
    if !is_fully_observed || !saturated.is_empty() || has_failures(context) || waits_on_link {
        return None;
    }
    let cores_used = context.target_mean(host!("process.*.cpu"))?;
    let cores_allowed = watched.target_cores.unwrap_or(context.cores);
    let host_busy = context.host_mean(host!("cpu_busy"))?;
    let wait_share = cpu_wait_share(context)?;
    let run_delay = context.target_mean(host!("process.*.run_delay"))?;
    let is_cpu_contended = host_busy >= BUSY_MIN
        && wait_share >= CPU_WAIT_MIN / 2.0
        && runnable_cores(context)? >= 0.5;
    if cores_used >= USED_MIN * cores_allowed || is_cpu_contended || waits_for_cores(context) {
        return None;
    }
    let calls = calls_inside(context)?;
    let threads = context.target_names.iter().map(|name| host!("process.*.thread_max").of(name));
    let busiest_thread =
        threads.filter_map(|thread| context.generator_mean(thread)).reduce(f64::max)?;
    if busiest_thread >= BUSY_MIN {
        return None;
    }
    let cpu = Evidence::TargetCpu { cores_used, cores_allowed, busiest_thread, run_delay };
    let mut evidence = vec![Evidence::CallsInside { calls }, cpu];
    // Together the threads use about one core, but no thread uses it alone.
    if (0.85..1.15).contains(&cores_used) && busiest_thread < 0.7 {
        evidence.push(Evidence::ThreadsSerialized);
    }
    evidence.extend(host_evidence(context));
    let mut doubts = context.doubts();
    if cores_used > 0.5 * cores_allowed {
        doubts.push(Doubt::HalfUsed);
    }
    Some(Bottleneck { at: Some(context.broken_at), claim: Claim::Software, evidence, doubts })
}

/// Returns the number of calls that are inside the target. `None` if the number is unknown, below
/// 1, or less than half of all calls in flight. `None` also if at least 30 % of the calls inside
/// the target wait for an upstream.
fn calls_inside(context: &Context<'_>) -> Option<f64> {
    // `waiting` counts the sockets that carry a call, and `unclear` those that may carry one.
    let sum_with_unclear = |waiting: &HostMetric, unclear: &HostMetric| {
        let unclear = context.generator_mean(unclear).unwrap_or(0.0);
        context.generator_mean(waiting).map(|waiting| waiting + unclear)
    };
    let in_flight = context.mean_second(|second| second.in_flight as f64)?;
    // The sum also counts unclear sockets, which may carry no call. So it is capped at the number
    // of calls in flight.
    let inside = sum_with_unclear(host!("target.waiting_in"), host!("target.unclear_in"))?;
    // The target has sent these responses.
    let responses = context.generator_mean(host!("target.unacknowledged_in")).unwrap_or(0.0);
    let certain = context.generator_mean(host!("target.waiting_in")).unwrap_or(0.0);
    let inside = (inside - responses).max(certain).min(in_flight);
    let at_upstream = sum_with_unclear(host!("target.waiting_out"), host!("target.unclear_out"));
    let at_upstream = at_upstream.unwrap_or(0.0);
    (inside >= 1.0 && inside >= 0.5 * in_flight && at_upstream < 0.3 * inside).then_some(inside)
}

/// Returns true if more than 5 % of the calls fail for another reason than a timeout. Such failures
/// come from errors, full queues and limits, not from slow software.
fn has_failures(context: &Context<'_>) -> bool {
    let (mut failed_calls, mut total) = (0_u64, 0_u64);
    for (class, count) in
        context.window().flat_map(|second| &second.methods).flat_map(|method| &method.classes)
    {
        total += count;
        failed_calls += if class.is_failure() && *class != Class::Timeout { *count } else { 0 };
    }
    failed_calls as f64 > 0.05 * total as f64
}

/// Returns the utilisation and pressure of the target's host around the breach. A report quotes
/// them if no resource saturated.
pub(super) fn host_evidence(context: &Context<'_>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let shares = HostShares {
        cpu: context.host_mean(host!("cpu_busy")),
        cpu_wait: context.host_mean(host!("psi_cpu_some")),
        memory_wait: context.host_mean(host!("psi_memory_some")),
        disk_wait: context.host_mean(host!("psi_io_some")),
    };
    if shares != HostShares::default() {
        evidence.push(Evidence::Host(shares));
    }
    // Samples before the load have negative times.
    let busy_before_load = context.target_host.get(host!("cpu_busy")).mean(f64::MIN, 0.0);
    let busy_before_load = busy_before_load.filter(|busy| *busy >= BUSY_MIN);
    evidence.extend(busy_before_load.map(|share| Evidence::BusyBeforeLoad { share }));
    let iowait = context.host_mean(host!("cpu_iowait"));
    let waits = shares.disk_wait;
    if iowait.is_some_and(|share| share > 0.2) && waits.is_some_and(|share| share < 0.1) {
        evidence.push(Evidence::IowaitWithoutDiskWait);
    }
    evidence
}

/// Returns the number of cores that the target used or waited for in the window. `None` if the
/// target's processes are not observed.
fn runnable_cores(context: &Context<'_>) -> Option<f64> {
    Some(
        context.target_mean(host!("process.*.run_delay"))?
            + context.target_mean(host!("process.*.cpu"))?,
    )
}

/// Returns true if the target waits for a core for a large share of its time. Its software and its
/// connections may then be slow for lack of CPU.
pub(super) fn waits_for_cores(context: &Context<'_>) -> bool {
    let delay = context.target_mean(host!("process.*.run_delay")).unwrap_or(0.0);
    delay >= CPU_WAIT_MIN && cpu_wait_share(context).is_some_and(|share| share >= CPU_WAIT_MIN)
}

/// Returns the share of the target's runnable time, in the window, in which it waited for a core.
/// `None` if the target's processes are not observed.
fn cpu_wait_share(context: &Context<'_>) -> Option<f64> {
    let waited = context.target_mean(host!("process.*.run_delay"))?;
    let used = context.target_mean(host!("process.*.cpu"))?;
    Some(waited / (waited + used).max(0.01))
}

/// A resource that may be saturated. It is saturated if `wait` rose above its baseline and `used`
/// has been high since then.
struct Candidate<'a> {
    /// Waiting time or queue length.
    wait: &'a TimeSeries,
    /// Smallest rise of `wait` that counts.
    rise_min: f64,
    /// Utilisation.
    used: &'a TimeSeries,
    /// Utilisation from which the resource counts as highly used.
    used_min: f64,
}

impl Candidate<'_> {
    /// Returns the resource if it saturated. `evidence` builds the evidence from the rise of `wait`
    /// and the mean utilisation since then. A wait at low utilisation has another cause, so it is
    /// ignored.
    fn if_saturated(
        &self,
        context: &Context<'_>,
        claim: Claim,
        evidence: impl Fn(Rise, f64) -> Vec<Evidence>,
    ) -> Option<Saturated> {
        let smoothed = self.used.smooth();
        let keep_if_high = |wait, used| if used >= self.used_min { wait } else { 0.0 };
        let wait = self.wait.zip_with(&smoothed, keep_if_high);
        let rise = find_rise(&wait, &context.load, self.rise_min, context.end)?;
        let used = self.used.mean(rise.at, context.end.max(rise.at + WINDOW_AFTER))?;
        let doubts = rise.before.is_none().then_some(Doubt::NoBaseline).into_iter().collect();
        (used >= self.used_min).then(|| Saturated {
            at: rise.at,
            correlation: load_correlation(&wait, &context.load, context.end),
            claim,
            evidence: evidence(rise, used),
            doubts,
        })
    }
}

/// Returns the CPU quota of a process if the process used it up.
fn check_quota(context: &Context<'_>, name: &str) -> Option<Saturated> {
    let limit = context.generator_host.get(host!("cgroup.*.cpu_limit").of(name));
    let used = context.generator_host.get(host!("process.*.cpu").of(name));
    let used = used.zip_with(&limit, |used, limit| used / limit.max(1e-9));
    let cores = limit.mean(f64::MIN, context.end)?;
    let wait = context.generator_host.get(host!("cgroup.*.throttled_periods").of(name));
    // Other processes of the cgroup share the quota. So the process's utilisation of the quota is
    // high from one half on.
    let candidate = Candidate { wait: &wait, rise_min: 0.1, used: &used, used_min: 0.5 };
    candidate.if_saturated(context, Claim::CpuQuota(name.to_owned(), cores), |rise, share| {
        let used = Evidence::QuotaUsed { name: name.to_owned(), share };
        vec![Evidence::Rose(Waiting::Quota, rise), used]
    })
}

/// Returns the memory limit of a process's cgroup if it is reached.
fn check_memory_limit(context: &Context<'_>, name: &str) -> Option<Saturated> {
    let limit = context.generator_host.get(host!("cgroup.*.memory_limit_bytes").of(name));
    let used = context.generator_host.get(host!("cgroup.*.memory_bytes").of(name));
    let used = used.zip_with(&limit, |used, limit| used / limit.max(1.0));
    let cgroup_pressure = context.generator_host.get(host!("cgroup.*.psi_memory_some").of(name));
    let wait = cgroup_pressure.larger(&context.generator_host.get(host!("psi_memory_some")));
    let candidate = Candidate { wait: &wait, rise_min: 0.05, used: &used, used_min: MEMORY_MIN };
    candidate.if_saturated(context, Claim::MemoryLimit(name.to_owned()), |rise, share| {
        vec![Evidence::Rose(Waiting::Memory, rise), Evidence::MemoryLimitUsed { share }]
    })
}

/// Returns the disk limit of a process's cgroup if it is reached.
fn check_io_limit(context: &Context<'_>, name: &str) -> Option<Saturated> {
    let used = context.generator_host.get(host!("cgroup.*.io_util").of(name));
    let cgroup_pressure = context.generator_host.get(host!("cgroup.*.psi_io_some").of(name));
    let wait = cgroup_pressure.larger(&context.generator_host.get(host!("psi_io_some")));
    let candidate = Candidate { wait: &wait, rise_min: 0.1, used: &used, used_min: USED_MIN };
    candidate.if_saturated(context, Claim::DiskLimit(name.to_owned()), |rise, share| {
        vec![Evidence::Rose(Waiting::Disks, rise), Evidence::DiskLimitUsed { share }]
    })
}

/// Returns a thread that needs a whole core. If the process may use only one core, that core is
/// reported as the limit.
fn check_thread(context: &Context<'_>, name: &str) -> Option<Saturated> {
    let one_core = context.result.watched.target_cores.is_some_and(|cores| cores < 1.5);
    if one_core && has_quota(context, name) {
        // The quota is the reason for the single core, and `check_quota` reports it.
        return None;
    }
    let ran = context.generator_host.get(host!("process.*.thread_max").of(name));
    let waited = context.generator_host.get(host!("process.*.thread_max_delay").of(name));
    let runnable = ran.zip_with(&waited, |ran, waited| ran + waited);
    // A thread that needs less than a whole core is not the limit.
    let keep_if_high = |runnable, smoothed| if smoothed >= BUSY_MIN { runnable } else { 0.0 };
    let high = runnable.zip_with(&runnable.smooth(), keep_if_high);
    let smallest_rise = 0.3;
    let rise = find_rise(&high, &context.load, smallest_rise, context.end)?;
    let window_end = context.end.max(rise.at + WINDOW_AFTER);
    let (ran, waited) = (ran.mean(rise.at, window_end)?, waited.mean(rise.at, window_end)?);
    let mean_since_rise =
        |metric: &HostMetric| context.generator_host.get(metric.of(name)).mean(rise.at, window_end);
    // `other_cores` is the CPU time that the other threads used or waited for. If they need more
    // than half a core, or if the busiest thread itself often waits for a core, the CPU is the
    // limit. The process and its threads are sampled one after the other, so the difference may be
    // slightly below zero.
    let process_cores =
        mean_since_rise(host!("process.*.cpu"))? + mean_since_rise(host!("process.*.run_delay"))?;
    let other_cores = (process_cores - ran - waited).max(0.0);
    if ran + waited < BUSY_MIN || waited > 0.5 * ran || other_cores > 0.5 {
        return None;
    }
    let mut evidence = vec![
        Evidence::Rose(Waiting::Thread, rise),
        Evidence::ThreadBusy { share: ran, other_cores },
    ];
    evidence.extend(find_busiest_thread(context, name, rise.at));
    let unread = context.generator_mean(host!("target.unread_in"));
    evidence.extend(unread.map(|connections| Evidence::UnreadRequests { connections }));
    let mut doubts = Vec::new();
    if waited > 0.15 {
        doubts.push(Doubt::NoCore(waited));
    }
    if rise.before.is_none() {
        doubts.push(Doubt::NoBaseline);
    }
    let claim = if one_core { Claim::OnlyCore } else { Claim::Thread };
    Some(Saturated {
        at: rise.at,
        correlation: load_correlation(&runnable, &context.load, context.end),
        claim: claim(name.to_owned()),
        evidence,
        doubts,
    })
}

/// Returns the thread of a process that used the most CPU time since `from`.
fn find_busiest_thread(context: &Context<'_>, name: &str, from: f64) -> Option<Evidence> {
    let prefix = format!("{name}.thread.");
    let threads = context.generator_host.by_owner(host!("process.*.thread.*.cpu"));
    let used = threads.into_iter().filter_map(|(owner, series)| {
        let thread = owner.strip_prefix(&prefix)?;
        Some((thread.to_owned(), series.mean(from, context.end)?))
    });
    let (name, share) = used.max_by(|left, right| left.1.total_cmp(&right.1))?;
    Some(Evidence::BusiestThread { name, share })
}

/// Returns the memory of the target's host if it is short.
fn check_memory(context: &Context<'_>) -> Option<Saturated> {
    let available = context.target_host.get(host!("memory_available_share"));
    // Zipping a series with itself maps its values.
    let used = available.zip_with(&available, |available, _| 1.0 - available);
    let wait = context.target_host.get(host!("psi_memory_some"));
    let candidate = Candidate { wait: &wait, rise_min: 0.05, used: &used, used_min: MEMORY_MIN };
    candidate.if_saturated(context, Claim::HostMemory, |rise, share| {
        let rose = [Evidence::Rose(Waiting::Memory, rise), Evidence::MemoryUsed { share }];
        let faults = context.host_mean(host!("major_faults"));
        let faults = faults.map(|per_second| Evidence::MajorPageFaults { per_second });
        rose.into_iter().chain(faults).collect()
    })
}

/// Returns the disk of the target's host that saturated first.
fn check_disk(context: &Context<'_>) -> Option<Saturated> {
    let wait = context.target_host.get(host!("psi_io_some"));
    let devices = context.target_host.by_owner(host!("disk.*.util"));
    let saturated = devices.into_iter().filter_map(|(device, used)| {
        let queue = context.host_mean(host!("disk.*.queue").of(device))?;
        let candidate = Candidate { wait: &wait, rise_min: 0.1, used, used_min: USED_MIN };
        // A queue of less than one request means no saturation, even if the utilisation is high.
        if queue < 1.0 || !uses_disk(context) {
            return None;
        }
        candidate.if_saturated(context, Claim::Disk(device.to_owned()), |rise, share| {
            let busy = Evidence::DiskBusy { device: device.to_owned(), share, queue };
            let time = context.host_mean(host!("disk.*.await_ms").of(device));
            let time = time.map(|mean_ms| Evidence::DiskTime { mean_ms });
            [Evidence::Rose(Waiting::Disks, rise), busy].into_iter().chain(time).collect()
        })
    });
    saturated.min_by(|left, right| left.at.total_cmp(&right.at))
}

/// Returns true if threads of the target wait for disks. If their waits are not observed, returns
/// true if the target reads or writes a disk. If the target's processes are not observed, returns
/// true. Disk traffic of other processes does not slow a target that uses no disk.
fn uses_disk(context: &Context<'_>) -> bool {
    if context.target_names.is_empty() {
        return true;
    }
    let rates = [
        context.target_mean(host!("process.*.read_bytes")),
        context.target_mean(host!("process.*.write_bytes")),
        context.target_mean(host!("process.*.major_faults")),
    ];
    let has_traffic = rates.iter().flatten().any(|rate| *rate > 0.0);
    let blocked_threads = context.target_mean(host!("process.*.threads_blocked"));
    blocked_threads.map_or(has_traffic, |threads| threads >= 0.2)
}

/// Returns the network device of the target's host that saturated first.
fn check_network(context: &Context<'_>) -> Option<Saturated> {
    let retransmitted =
        context.target_host.get(host!("tcp_retransmits")).zip_with(
            &context.target_host.get(host!("tcp_segments_sent")),
            |retransmits, segments| retransmits / segments.max(1.0),
        );
    let devices = context.target_host.by_owner(host!("net.*.util"));
    let saturated = devices.into_iter().filter_map(|(device, used)| {
        let drops = context.target_host.get(host!("net.*.drops").of(device));
        // Ten dropped packets per second count as much as 1 % of retransmitted segments.
        let wait = retransmitted.larger(&drops.zip_with(&drops, |drops, _| drops / 1_000.0));
        let candidate = Candidate { wait: &wait, rise_min: 0.01, used, used_min: USED_MIN };
        candidate.if_saturated(context, Claim::Network(device.to_owned()), |rise, share| {
            let used = Evidence::LineRate { device: device.to_owned(), share };
            vec![Evidence::Rose(Waiting::Network, rise), used]
        })
    });
    saturated.min_by(|left, right| left.at.total_cmp(&right.at))
}

/// Returns the CPU if the target's threads wait for cores. If the threads are not observed, as for
/// a remote target, all waiting tasks of its host count.
fn check_cpu(context: &Context<'_>) -> Option<Saturated> {
    let mut used = context.target_host.get(host!("cpu_busy"));
    let is_target_observed = !context.target_names.is_empty();
    let mut wait = context.target_host.get(host!("psi_cpu_some"));
    if is_target_observed {
        // The run delay of the target's threads is the time for which they were runnable but waited
        // for a core. It measures a lack of CPU directly.
        let mut delay = TimeSeries::default();
        let mut ran = TimeSeries::default();
        for name in &context.target_names {
            delay = sum(&delay, &context.generator_host.get(host!("process.*.run_delay").of(name)));
            ran = sum(&ran, &context.generator_host.get(host!("process.*.cpu").of(name)));
        }
        wait = delay.zip_with(&ran, |delay, ran| delay / (delay + ran).max(0.05));
        // The target may be pinned to a few cores of a host with idle cores. A core for which its
        // threads wait is busy, whether the target or another process uses it.
        if let Some(cores) = pinned_cores(context) {
            used =
                used.larger(&ran.zip_with(&delay, |ran, delay| ((ran + delay) / cores).min(1.0)));
        }
        for name in context.target_names.iter().filter(|name| !has_quota(context, name)) {
            used = used.larger(&busiest_thread_core_use(context, name));
        }
        // The run delay is sampled less often than the utilisation. Only times that both series
        // have are kept.
        used = used.zip_with(&wait, |used, _| used);
    }
    let candidate =
        Candidate { wait: &wait, rise_min: CPU_WAIT_MIN, used: &used, used_min: BUSY_MIN };
    // On a busy host a nearly idle target also waits for cores during its short runnable time. A
    // target lacks CPU only if at least one of its threads is runnable nearly all the time.
    let lacks_cpu =
        || Some(cpu_wait_share(context)? >= CPU_WAIT_MIN && runnable_cores(context)? >= BUSY_MIN);
    if is_target_observed && lacks_cpu() != Some(true) {
        return None;
    }
    let host_busy = context.host_mean(host!("cpu_busy"));
    // True if the host as a whole is not busy. Only the cores for which the target waits can be
    // busy then.
    let awaited_only = is_target_observed && host_busy.is_some_and(|busy| busy < BUSY_MIN);
    let claim = match pinned_cores(context) {
        Some(cores) => Claim::Cores(cores),
        None if awaited_only => Claim::BusiestCore,
        None => Claim::HostCpu,
    };
    candidate.if_saturated(context, claim, |rise, share| {
        let waiting = if is_target_observed { Waiting::TargetCpu } else { Waiting::HostCpu };
        let rose = [Evidence::Rose(waiting, rise), Evidence::CoresBusy { awaited_only, share }];
        rose.into_iter().chain(cpu_users(context)).collect()
    })
}

/// Returns the utilisation of the core for which a process's busiest thread waits. While the thread
/// waits, other threads use the core. Returns 0 if the thread waited at most half as long as it
/// ran.
fn busiest_thread_core_use(context: &Context<'_>, name: &str) -> TimeSeries {
    let ran = context.generator_host.get(host!("process.*.thread_max").of(name));
    let waited = context.generator_host.get(host!("process.*.thread_max_delay").of(name));
    let core_use =
        |ran: f64, waited: f64| if waited > 0.5 * ran { (ran + waited).min(1.0) } else { 0.0 };
    ran.zip_with(&waited, core_use)
}

/// Returns true if a process has a CPU quota.
fn has_quota(context: &Context<'_>, name: &str) -> bool {
    !context.generator_host.get(host!("cgroup.*.cpu_limit").of(name)).is_empty()
}

/// Returns the number of cores to which the target's processes are pinned. `None` if this number is
/// unknown or below 1, if the processes may use all cores of the host, or if one of them has a CPU
/// quota.
fn pinned_cores(context: &Context<'_>) -> Option<f64> {
    let is_limited = |name: &&str| has_quota(context, name);
    let cores = context.result.watched.target_cores?;
    let is_pinned = cores >= 1.0 && cores < context.cores;
    (is_pinned && !context.target_names.iter().any(is_limited)).then_some(cores)
}

/// Adds two series. An empty `left` counts as 0 at all times.
fn sum(left: &TimeSeries, right: &TimeSeries) -> TimeSeries {
    if left.is_empty() { right.clone() } else { left.zip_with(right, |left, right| left + right) }
}

/// Returns the CPU use of target, generator and other processes. `None` if a value is unknown, as
/// for a target on another host.
fn cpu_users(context: &Context<'_>) -> Option<Evidence> {
    let target = context.target_mean(host!("process.*.cpu"))?;
    let generator = context.generator_mean(host!("process.*.cpu").of("generator"))?;
    let busy = context.host_mean(host!("cpu_busy"))? * context.cores;
    let others = (busy - target - generator).max(0.0);
    Some(Evidence::CpuUsers { busy, target, generator, others })
}
