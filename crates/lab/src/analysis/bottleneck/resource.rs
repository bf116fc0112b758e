//! The resources of the target, which of them saturated, and the software if none did.
//!
//! Each is highly used and waited for; both limits stand in one table below. Where two begin within
//! a second of each other the one nearer to the target goes first (its quota before the host's CPU),
//! since it explains the other.

use lab_model::metrics::host::{HostMetric, host};
use lab_model::record::Class;
use lab_model::results::Cause;

use super::course::{Course, Rise, association, rise};
use super::found::{Bottleneck, Claim, Doubt, Evidence, HostShares, Waiting};
use super::{AFTER, Sight};

/// A resource that saturated.
#[derive(Debug)]
pub(super) struct Saturated {
    pub(super) cause: Cause,
    pub(super) at: f64,
    /// Whether the target's own processes show it, and not only their host.
    pub(super) of_target: bool,
    /// Correlation with the load; none if that cannot be said.
    association: Option<f64>,
    claim: Claim,
    evidence: Vec<Evidence>,
    doubts: Vec<Doubt>,
}

impl Saturated {
    /// Whether it began before the objective broke; the series of seconds are no finer than this.
    pub(super) fn before(&self, sight: &Sight<'_>) -> bool {
        self.at <= sight.broken_at + 1.0
    }
}

/// Least correlation with the load that counts as going with it.
const ASSOCIATED_MIN: f64 = 0.3;
/// Two that begin within this many seconds cannot be told apart by time.
const TIE: f64 = 1.0;
/// Share of its time in which the target must wait for a core, to lack CPU.
const CPU_WAIT_MIN: f64 = 0.2;
/// CPU of one thread, or of all cores, from which they are highly used.
const BUSY_MIN: f64 = 0.85;
/// Use of a quota, a disk, a line from which it is high.
const USED_MIN: f64 = 0.8;
/// Memory in use from which it is short.
const MEMORY_MIN: f64 = 0.9;

/// All resources that saturated, the one nearest to the target first.
pub(super) fn saturated(sight: &Sight<'_>) -> Vec<Saturated> {
    if sight.in_process {
        return Vec::new();
    }
    let of_target = sight.targets.iter().flat_map(|name| {
        [quota(sight, name), memory_limit(sight, name), io_limit(sight, name), thread(sight, name)]
    });
    let of_host = [memory(sight), disk(sight), network(sight), cpu(sight)];
    of_target.chain(of_host).flatten().collect()
}

/// The earliest of them before the objective broke.
pub(super) fn first(sight: &Sight<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    let before = || saturated.iter().filter(|resource| resource.before(sight));
    // A quota that runs out shows as a lack of CPU too, and some lack there is as soon as threads of
    // the target want a core at the same time: then it is the quota whichever was seen first.
    let quota = before().any(|resource| resource.cause == Cause::CpuQuota);
    let candidates = || {
        before().filter(|one| {
            !(quota && explains(Cause::CpuQuota, one.cause)) || one.cause == Cause::CpuQuota
        })
    };
    let goes =
        |resource: &&Saturated| resource.association.is_none_or(|with| with >= ASSOCIATED_MIN);
    let earliest = candidates().filter(goes).map(|resource| resource.at).reduce(f64::min)?;
    let first = candidates().filter(goes).find(|resource| resource.at <= earliest + TIE)?;
    let mut doubts = sight.doubts();
    doubts.extend(first.doubts.iter().cloned());
    if first.association.is_none() {
        doubts.push(Doubt::ConstantLoad);
    }
    let others = candidates()
        .filter(goes)
        .filter(|other| other.at <= earliest + TIE && !explains(first.cause, other.cause));
    doubts.extend(others.map(|other| Doubt::Another(other.claim.clone())));
    let mut evidence = first.evidence.clone();
    evidence.extend(first.association.map(Evidence::Correlation));
    Some(Bottleneck::new(first.cause, Some(first.at), first.claim.clone(), evidence, doubts))
}

/// Whether one cause makes the other show too.
fn explains(cause: Cause, other: Cause) -> bool {
    cause == other
        || matches!(
            (cause, other),
            (Cause::CpuQuota, Cause::Cpu | Cause::Thread)
                | (Cause::Memory, Cause::Disk | Cause::Cpu)
        )
}

/// Nothing saturated, and the target was seen whole with calls to work on.
pub(super) fn software(sight: &Sight<'_>, saturated: &[Saturated]) -> Option<Bottleneck> {
    let watched = sight.input.watched;
    let seen_whole = watched.target_local
        && !sight.targets.is_empty()
        && !sight.in_process
        && watched.missing.is_empty();
    if !seen_whole || !saturated.is_empty() {
        return None;
    }
    let used = sight.target_around(host!("process.*.cpu"))?;
    let cores = watched.target_cores.unwrap_or(sight.cores);
    let busy = sight.host_around(host!("cpu_busy"))?;
    let waited = cpu_wait(sight)?;
    let delay = sight.target_around(host!("process.*.run_delay"))?;
    let short = busy >= BUSY_MIN && waited >= CPU_WAIT_MIN / 2.0 && wanted(sight)? >= 0.5;
    if used >= USED_MIN * cores || short || waits_for_cores(sight) {
        return None;
    }
    let both = |one: &HostMetric, other: &HostMetric| {
        let other = sight.own_around(other).unwrap_or(0.0);
        sight.own_around(one).map(|waiting| waiting + other)
    };
    let under_way = sight.second_around(|second| second.in_flight as f64)?;
    // Where a socket does not say whether a call waits on it, the calls under way do.
    let inside = both(host!("target.waiting_in"), host!("target.unclear_in"))?.min(under_way);
    let behind = both(host!("target.waiting_out"), host!("target.unclear_out")).unwrap_or(0.0);
    // Calls that are not inside the target wait on the way; calls that wait behind it are not its own.
    if inside < 1.0 || inside < 0.5 * under_way || behind >= 0.3 * inside || fails(sight) {
        return None;
    }
    let busiest = sight
        .targets
        .iter()
        .filter_map(|name| sight.own_around(host!("process.*.thread_max").of(name)));
    let busiest = busiest.reduce(f64::max)?;
    if busiest >= BUSY_MIN {
        return None;
    }
    let mut evidence =
        vec![Evidence::Inside(inside), Evidence::OwnCpu { used, cores, busiest, delay }];
    if (0.85..1.15).contains(&used) && busiest < 0.7 {
        evidence.push(Evidence::OneLock);
    }
    evidence.extend(looked_at(sight));
    let mut doubts = sight.doubts();
    if used > 0.5 * cores {
        doubts.push(Doubt::HalfUsed);
    }
    let at = Some(sight.broken_at);
    Some(Bottleneck::new(Cause::Software, at, Claim::Software, evidence, doubts))
}

/// Whether calls break by failing quickly: a fault, a full queue and a limit all look like that.
fn fails(sight: &Sight<'_>) -> bool {
    let (mut failed, mut all) = (0_u64, 0_u64);
    for (class, count) in
        sight.around().flat_map(|second| &second.methods).flat_map(|method| &method.classes)
    {
        all += count;
        failed += if class.failed() && *class != Class::Timeout { *count } else { 0 };
    }
    failed as f64 > 0.05 * all as f64
}

/// What was looked at around the break, whatever it says.
pub(super) fn looked_at(sight: &Sight<'_>) -> Vec<Evidence> {
    let mut evidence = Vec::new();
    let shares = HostShares {
        cpu: sight.host_around(host!("cpu_busy")),
        cpu_wait: sight.host_around(host!("psi_cpu_some")),
        memory_wait: sight.host_around(host!("psi_memory_some")),
        disk_wait: sight.host_around(host!("psi_io_some")),
    };
    if shares != HostShares::default() {
        evidence.push(Evidence::Host(shares));
    }
    let before = sight.host.get(host!("cpu_busy")).mean(f64::MIN, 0.0);
    evidence.extend(before.filter(|busy| *busy >= BUSY_MIN).map(Evidence::BusyBefore));
    let iowait = sight.host_around(host!("cpu_iowait"));
    let waits = shares.disk_wait;
    if iowait.is_some_and(|share| share > 0.2) && waits.is_some_and(|share| share < 0.1) {
        evidence.push(Evidence::IowaitAlone);
    }
    evidence
}

/// Cores that the target used or waited for, around the break.
fn wanted(sight: &Sight<'_>) -> Option<f64> {
    Some(
        sight.target_around(host!("process.*.run_delay"))?
            + sight.target_around(host!("process.*.cpu"))?,
    )
}

/// Whether waiting for a core is a notable part of the target's time, so that neither its software
/// nor a limit of its own need be what its calls wait for.
pub(super) fn waits_for_cores(sight: &Sight<'_>) -> bool {
    let delay = sight.target_around(host!("process.*.run_delay")).unwrap_or(0.0);
    delay >= CPU_WAIT_MIN && cpu_wait(sight).is_some_and(|share| share >= CPU_WAIT_MIN)
}

/// Share of its time in which the target waited for a core, around the break.
fn cpu_wait(sight: &Sight<'_>) -> Option<f64> {
    let waited = sight.target_around(host!("process.*.run_delay"))?;
    let used = sight.target_around(host!("process.*.cpu"))?;
    Some(waited / (waited + used).max(0.01))
}

/// A candidate: `wait` left its baseline for good and `used` is high from then on.
struct Candidate<'a> {
    cause: Cause,
    of_target: bool,
    /// What waits.
    wait: &'a Course,
    /// By how much it must rise.
    step: f64,
    /// How much is used.
    used: &'a Course,
    /// What counts as high.
    high: f64,
}

impl Candidate<'_> {
    /// When it saturated, with the use from then on. What waits before the use is high waits for
    /// something else, and does not count.
    fn judge(&self, sight: &Sight<'_>) -> Option<(Rise, f64, Option<f64>)> {
        let high = self.used.smooth();
        let both = self.wait.with(&high, |wait, used| if used >= self.high { wait } else { 0.0 });
        let rise = rise(&both, &sight.load, self.step, sight.end)?;
        let used = self.used.mean(rise.at, sight.end.max(rise.at + AFTER))?;
        let with = association(&both, &sight.load, sight.end);
        (used >= self.high).then_some((rise, used, with))
    }

    fn saturated(
        &self,
        sight: &Sight<'_>,
        claim: Claim,
        evidence: impl Fn(Rise, f64) -> Vec<Evidence>,
    ) -> Option<Saturated> {
        let (rise, used, association) = self.judge(sight)?;
        let doubts = rise.before.is_none().then_some(Doubt::NoBaseline).into_iter().collect();
        Some(Saturated {
            cause: self.cause,
            at: rise.at,
            of_target: self.of_target,
            association,
            claim,
            evidence: evidence(rise, used),
            doubts,
        })
    }
}

fn quota(sight: &Sight<'_>, name: &str) -> Option<Saturated> {
    let limit = sight.own.get(host!("cgroup.*.cpu_limit").of(name));
    let used = sight.own.get(host!("process.*.cpu").of(name));
    let used = used.with(&limit, |used, limit| used / limit.max(1e-9));
    let cores = limit.mean(f64::MIN, sight.end)?;
    let wait = sight.own.get(host!("cgroup.*.throttled_periods").of(name));
    // Others in the same cgroup use the same quota: half of it by the target itself is high.
    let candidate = Candidate {
        cause: Cause::CpuQuota,
        of_target: true,
        wait: &wait,
        step: 0.1,
        used: &used,
        high: 0.5,
    };
    candidate.saturated(sight, Claim::CpuQuota(name.to_owned(), cores), |rise, share| {
        let used = Evidence::QuotaUsed { name: name.to_owned(), share };
        vec![Evidence::Rose(Waiting::Quota, rise), used]
    })
}

fn memory_limit(sight: &Sight<'_>, name: &str) -> Option<Saturated> {
    let limit = sight.own.get(host!("cgroup.*.memory_limit_bytes").of(name));
    let used = sight.own.get(host!("cgroup.*.memory_bytes").of(name));
    let used = used.with(&limit, |used, limit| used / limit.max(1.0));
    let own = sight.own.get(host!("cgroup.*.psi_memory_some").of(name));
    let wait = own.larger(&sight.own.get(host!("psi_memory_some")));
    let candidate = Candidate {
        cause: Cause::Memory,
        of_target: true,
        wait: &wait,
        step: 0.05,
        used: &used,
        high: MEMORY_MIN,
    };
    candidate.saturated(sight, Claim::MemoryLimit(name.to_owned()), |rise, used| {
        vec![Evidence::Rose(Waiting::Memory, rise), Evidence::MemoryLimitUsed(used)]
    })
}

fn io_limit(sight: &Sight<'_>, name: &str) -> Option<Saturated> {
    let used = sight.own.get(host!("cgroup.*.io_util").of(name));
    let own = sight.own.get(host!("cgroup.*.psi_io_some").of(name));
    let wait = own.larger(&sight.own.get(host!("psi_io_some")));
    let candidate = Candidate {
        cause: Cause::Disk,
        of_target: true,
        wait: &wait,
        step: 0.1,
        used: &used,
        high: USED_MIN,
    };
    candidate.saturated(sight, Claim::DiskLimit(name.to_owned()), |rise, used| {
        vec![Evidence::Rose(Waiting::Disks, rise), Evidence::DiskLimitUsed(used)]
    })
}

/// One thread that wants a whole core; if the process may use one only, that core is the limit.
fn thread(sight: &Sight<'_>, name: &str) -> Option<Saturated> {
    let bound = sight.input.watched.target_cores.is_some_and(|cores| cores < 1.5);
    if bound && has_quota(sight, name) {
        // It is the quota that leaves one core.
        return None;
    }
    let ran = sight.own.get(host!("process.*.thread_max").of(name));
    let waited = sight.own.get(host!("process.*.thread_max_delay").of(name));
    let wanted = ran.with(&waited, |ran, waited| ran + waited);
    // On the way to a whole core it is no limit yet.
    let smooth = wanted.smooth();
    let high = wanted.with(&smooth, |wanted, near| if near >= BUSY_MIN { wanted } else { 0.0 });
    let rise = rise(&high, &sight.load, 0.3, sight.end)?;
    let to = sight.end.max(rise.at + AFTER);
    let (ran, waited) = (ran.mean(rise.at, to)?, waited.mean(rise.at, to)?);
    let around = |metric: &HostMetric| sight.own.get(metric.of(name)).mean(rise.at, to);
    // What the other threads want: if they could use another core, the CPU is the limit.
    let others =
        around(host!("process.*.cpu"))? + around(host!("process.*.run_delay"))? - ran - waited;
    if ran + waited < BUSY_MIN || waited > 0.5 * ran || others > 0.5 {
        return None;
    }
    let mut evidence =
        vec![Evidence::Rose(Waiting::Thread, rise), Evidence::ThreadRan { share: ran, others }];
    evidence.extend(busiest(sight, name, rise.at));
    evidence.extend(sight.own_around(host!("target.unread_in")).map(Evidence::Unread));
    let mut doubts = Vec::new();
    if waited > 0.15 {
        doubts.push(Doubt::NoCore(waited));
    }
    if rise.before.is_none() {
        doubts.push(Doubt::NoBaseline);
    }
    let (cause, claim) = match bound {
        true => (Cause::Cpu, Claim::OnlyCore(name.to_owned())),
        false => (Cause::Thread, Claim::Thread(name.to_owned())),
    };
    Some(Saturated {
        cause,
        at: rise.at,
        of_target: true,
        association: association(&wanted, &sight.load, sight.end),
        claim,
        evidence,
        doubts,
    })
}

/// The name of the thread that used most.
fn busiest(sight: &Sight<'_>, name: &str, from: f64) -> Option<Evidence> {
    let first = format!("{name}.thread.");
    let threads = sight.own.all(host!("process.*.thread.*.cpu"));
    let used = threads.into_iter().filter_map(|(owner, course)| {
        let thread = owner.strip_prefix(&first)?;
        Some((thread.to_owned(), course.mean(from, sight.end)?))
    });
    let (name, used) = used.max_by(|one, other| one.1.total_cmp(&other.1))?;
    Some(Evidence::BusiestThread { name, used })
}

fn memory(sight: &Sight<'_>) -> Option<Saturated> {
    let available = sight.host.get(host!("memory_available_share"));
    let used = available.with(&available, |available, _| 1.0 - available);
    let wait = sight.host.get(host!("psi_memory_some"));
    let candidate = Candidate {
        cause: Cause::Memory,
        of_target: false,
        wait: &wait,
        step: 0.05,
        used: &used,
        high: MEMORY_MIN,
    };
    candidate.saturated(sight, Claim::HostMemory, |rise, used| {
        let rose = [Evidence::Rose(Waiting::Memory, rise), Evidence::MemoryUsed(used)];
        let faults = sight.host_around(host!("major_faults")).map(Evidence::PageFaults);
        rose.into_iter().chain(faults).collect()
    })
}

fn disk(sight: &Sight<'_>) -> Option<Saturated> {
    let wait = sight.host.get(host!("psi_io_some"));
    let devices = sight.host.all(host!("disk.*.util"));
    let saturated = devices.into_iter().filter_map(|(device, used)| {
        let queue = sight.host_around(host!("disk.*.queue").of(device))?;
        let candidate = Candidate {
            cause: Cause::Disk,
            of_target: false,
            wait: &wait,
            step: 0.1,
            used,
            high: USED_MIN,
        };
        // A queue of less than one request is no queue, whatever the utilisation says.
        if queue < 1.0 || !uses_disk(sight) {
            return None;
        }
        candidate.saturated(sight, Claim::Disk(device.to_owned()), |rise, share| {
            let busy = Evidence::DiskBusy { device: device.to_owned(), share, queue };
            let time = sight.host_around(host!("disk.*.await_ms").of(device));
            let time = time.map(|ms| Evidence::DiskTime { ms });
            [Evidence::Rose(Waiting::Disks, rise), busy].into_iter().chain(time).collect()
        })
    });
    saturated.min_by(|one, other| one.at.total_cmp(&other.at))
}

/// Whether the target's processes use disks, as far as they are seen: another's disk traffic does
/// not slow what reads nothing.
fn uses_disk(sight: &Sight<'_>) -> bool {
    if sight.targets.is_empty() {
        return true;
    }
    let sum = |metric| sight.target_around(metric);
    let seen = [
        sum(host!("process.*.read_bytes")),
        sum(host!("process.*.write_bytes")),
        sum(host!("process.*.major_faults")),
    ];
    let blocked = sum(host!("process.*.threads_blocked"));
    let used = seen.iter().flatten().any(|rate| *rate > 0.0);
    blocked.is_some_and(|threads| threads >= 0.2) || (blocked.is_none() && used)
}

fn network(sight: &Sight<'_>) -> Option<Saturated> {
    let lost = sight
        .host
        .get(host!("tcp_retransmits"))
        .with(&sight.host.get(host!("tcp_segments_sent")), |again, sent| again / sent.max(1.0));
    let devices = sight.host.all(host!("net.*.util"));
    let saturated = devices.into_iter().filter_map(|(device, used)| {
        let drops = sight.host.get(host!("net.*.drops").of(device));
        // Ten packets a second are as bad as one segment of a hundred sent again.
        let wait = lost.larger(&drops.with(&drops, |drops, _| drops / 1_000.0));
        let candidate = Candidate {
            cause: Cause::Network,
            of_target: false,
            wait: &wait,
            step: 0.01,
            used,
            high: USED_MIN,
        };
        candidate.saturated(sight, Claim::Network(device.to_owned()), |rise, share| {
            let used = Evidence::LineRate { device: device.to_owned(), share };
            vec![Evidence::Rose(Waiting::Network, rise), used]
        })
    });
    saturated.min_by(|one, other| one.at.total_cmp(&other.at))
}

fn cpu(sight: &Sight<'_>) -> Option<Saturated> {
    let mut used = sight.host.get(host!("cpu_busy"));
    let local = !sight.targets.is_empty();
    let mut wait = sight.host.get(host!("psi_cpu_some"));
    if local {
        // The direct measure of lack of CPU is the target's own.
        let mut delay = Course::default();
        let mut ran = Course::default();
        for name in &sight.targets {
            delay = sum(&delay, &sight.own.get(host!("process.*.run_delay").of(name)));
            ran = sum(&ran, &sight.own.get(host!("process.*.cpu").of(name)));
        }
        wait = delay.with(&ran, |delay, ran| delay / (delay + ran).max(0.05));
        // Of a host with idle cores it may be bound to some; a quota is another thing. A core that
        // its threads wait for is in use, whoever uses it.
        if let Some(cores) = bound_to(sight) {
            used = used.larger(&ran.with(&delay, |ran, delay| ((ran + delay) / cores).min(1.0)));
        }
        for name in sight.targets.iter().filter(|name| !has_quota(sight, name)) {
            used = used.larger(&waiting_thread(sight, name));
        }
        // Waiting is sampled less often than the rest.
        used = used.with(&wait, |used, _| used);
    }
    let candidate = Candidate {
        cause: Cause::Cpu,
        of_target: local,
        wait: &wait,
        step: CPU_WAIT_MIN,
        used: &used,
        high: BUSY_MIN,
    };
    // On a host that is busy with other things a target that hardly computes waits as well, for a
    // small part of a small time: only one of which some thread always wants a core lacks it.
    let lacks = || Some(cpu_wait(sight)? >= CPU_WAIT_MIN && wanted(sight)? >= BUSY_MIN);
    if local && lacks() != Some(true) {
        return None;
    }
    let busy = sight.host_around(host!("cpu_busy"));
    let awaited = local && busy.is_some_and(|busy| busy < BUSY_MIN);
    let claim = match bound_to(sight) {
        Some(cores) => Claim::Cores(cores),
        None if awaited => Claim::BusiestCore,
        None => Claim::HostCpu,
    };
    candidate.saturated(sight, claim, |rise, share| {
        let waiting = if local { Waiting::TargetCpu } else { Waiting::HostCpu };
        let rose = [Evidence::Rose(waiting, rise), Evidence::CoresBusy { awaited, share }];
        rose.into_iter().chain(users(sight)).collect()
    })
}

/// What a process's busiest thread used and waited for, where it waited for at least half as long
/// as it ran: then its core is in use all that time, by others too. Else 0.
fn waiting_thread(sight: &Sight<'_>, name: &str) -> Course {
    let ran = sight.own.get(host!("process.*.thread_max").of(name));
    let waited = sight.own.get(host!("process.*.thread_max_delay").of(name));
    let wanted =
        |ran: f64, waited: f64| if waited > 0.5 * ran { (ran + waited).min(1.0) } else { 0.0 };
    ran.with(&waited, wanted)
}

fn has_quota(sight: &Sight<'_>, name: &str) -> bool {
    !sight.own.get(host!("cgroup.*.cpu_limit").of(name)).is_empty()
}

/// Cores that the target's processes are bound to, if these are not all of the host's.
fn bound_to(sight: &Sight<'_>) -> Option<f64> {
    let limited = |name: &&str| has_quota(sight, name);
    let cores = sight.input.watched.target_cores?;
    (cores >= 1.0 && cores < sight.cores && !sight.targets.iter().any(limited)).then_some(cores)
}

fn sum(one: &Course, other: &Course) -> Course {
    if one.is_empty() { other.clone() } else { one.with(other, |one, other| one + other) }
}

/// Who used the CPU of a host that generator and target share.
fn users(sight: &Sight<'_>) -> Option<Evidence> {
    let target = sight.target_around(host!("process.*.cpu"))?;
    let own = sight.own_around(host!("process.*.cpu").of("generator"))?;
    let busy = sight.host_around(host!("cpu_busy"))? * sight.cores;
    let others = (busy - target - own).max(0.0);
    Some(Evidence::CpuUsers { busy, target, own, others })
}
