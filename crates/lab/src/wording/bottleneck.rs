//! Sentences about the first bottleneck.

use lab_model::results::Finding;

use super::number::brief_percent as percent;
use crate::analysis::bottleneck::diagnosis::{
    Bottleneck, Claim, ConnectionEvidence, Doubt, Evidence, GeneratorEvidence, HostShares,
    ResourceEvidence, Unknown, Waiting,
};
use crate::analysis::bottleneck::time_series::Rise;

/// Converts a bottleneck for the report. The doubts follow the evidence.
pub(crate) fn finding(bottleneck: &Bottleneck) -> Finding {
    let evidence = bottleneck.evidence.iter().map(evidence_sentence);
    let doubts = bottleneck.doubts.iter().map(|doubt| format!("doubt: {}", doubt_sentence(doubt)));
    Finding {
        cause: bottleneck.cause,
        confidence: bottleneck.confidence,
        sentence: claim_sentence(&bottleneck.claim),
        evidence: evidence.chain(doubts).collect(),
        at: bottleneck.at,
    }
}

fn claim_sentence(claim: &Claim) -> String {
    match claim {
        Claim::Generator => "the generator was the limit, not the target".to_owned(),
        Claim::Connecting(share) => format!(
            "connection setup was the limit: it took {} of the time of all calls",
            percent(*share)
        ),
        Claim::Unaccepted => {
            "the target accepts no more connections: its connection limit is reached".to_owned()
        }
        Claim::Refused => "the target refuses or closes connections: a connection limit".to_owned(),
        Claim::TooManyRequests => "the target's rate limit was reached (HTTP 429)".to_owned(),
        Claim::LimitExceeded => "the target's rate limit was reached (JSON-RPC error)".to_owned(),
        Claim::Upstream(upstream) => {
            let name = upstream.as_ref().map(|upstream| match &upstream.process {
                Some(process) => format!(" ({}, {process})", upstream.address),
                None => format!(" ({})", upstream.address),
            });
            let name = name.unwrap_or_default();
            format!("an upstream of the target{name} took most of the time")
        }
        Claim::Software => "no resource was saturated while calls waited inside the target: a \
                            lock, a pool or a queue of its software is the limit"
            .to_owned(),
        Claim::CpuQuota(name, cores) => {
            format!("{name}'s CPU quota of {cores:.2} cores is used up")
        }
        Claim::MemoryLimit(name) => format!("{name}'s memory limit is reached"),
        Claim::DiskLimit(name) => format!("{name}'s disk limit (io.max) is used up"),
        Claim::OnlyCore(name) => format!("the single core that {name} may use is used up"),
        Claim::Thread(name) => {
            format!("one thread of {name} is at its limit, the others are not busy")
        }
        Claim::HostMemory => "the memory of the target's host is used up".to_owned(),
        Claim::Disk(device) => format!("the disk {device} of the target's host is the limit"),
        Claim::Network(device) => {
            format!("the network of the target's host ({device}) is the limit")
        }
        Claim::Cores(1.0) => "the core that the target may use is used up".to_owned(),
        Claim::Cores(cores) => {
            format!("the {cores:.0} cores that the target may use are used up")
        }
        Claim::BusiestCore => "the core of the target's busiest thread is used up".to_owned(),
        Claim::HostCpu => "the CPU of the target's host is used up".to_owned(),
        Claim::Unknown(why) => format!("cannot tell: {}", unknown_sentence(*why)),
    }
}

fn unknown_sentence(reason: Unknown) -> &'static str {
    match reason {
        Unknown::InProcess => {
            "the target runs in this process, so its resource use cannot be separated from the \
             generator's"
        }
        Unknown::HostUnseen => {
            "the target's host is not observed: set a node-exporter's URL (watch.node-exporter), \
             or run the lab on the target's host"
        }
        Unknown::Remote => {
            "no resource of the target's host was saturated, and its processes are not observed: \
             a lock, a pool, a limit or an upstream are all possible"
        }
        Unknown::ProcessesUnseen => {
            "no process of the target was found, so its own limits are not observed"
        }
        Unknown::Unclear => "the observations do not agree on one cause",
    }
}

fn evidence_sentence(evidence: &Evidence) -> String {
    match evidence {
        Evidence::Generator(evidence) => of_generator(evidence),
        Evidence::Connection(evidence) => of_connections(evidence),
        Evidence::Resource(evidence) => of_resource(evidence),
        Evidence::Idle { used, cores } => {
            format!("the target's processes used only {used:.2} of {cores:.1} cores")
        }
        Evidence::TooManyRequests { limited, failed } => format!(
            "{} of the calls around the breach got HTTP 429, {} failed",
            percent(*limited),
            percent(*failed)
        ),
        Evidence::Admitted(results) => format!("{results:.0} results per second were admitted"),
        Evidence::RetryAfter(wait) => format!("Retry-After asks to wait {wait:.1} s (median)"),
        Evidence::LimitExceeded { errors, limits, every, code } => format!(
            "{} of the calls around the breach ended with a JSON-RPC error; {limits} of {every} \
             errors of the run have the code {code} (limit exceeded, EIP-1474)",
            percent(*errors)
        ),
        Evidence::Behind { inside, behind, share } => format!(
            "of {inside:.1} calls inside the target, {behind:.1} waited for a response of its \
             upstream: {} of its time",
            percent(*share)
        ),
        Evidence::LongestWait { ms } => {
            format!("the longest of these waits was {ms:.0} ms (mean of samples)")
        }
        Evidence::UpstreamCpu { name, used, busiest } => {
            format!("{name} used {used:.2} cores, its busiest thread {}", percent(*busiest))
        }
        Evidence::Correlation(with) => format!("follows the load: rank correlation {with:.2}"),
        Evidence::Inside(calls) => {
            format!("{calls:.1} calls were inside the target around the breach")
        }
        Evidence::OwnCpu { used, cores, busiest, delay } => format!(
            "its processes used {used:.2} of {cores:.1} cores, the busiest thread {}, and waited \
             for a core {delay:.2} s per second",
            percent(*busiest)
        ),
        Evidence::OneLock => {
            "several threads use one core together, as if behind one lock".to_owned()
        }
        Evidence::Host(shares) => host(*shares),
        Evidence::BusyBefore(busy) => {
            format!("its CPU was {} busy before the load started", percent(*busy))
        }
        Evidence::IowaitAlone => {
            "iowait is high, but no task waits for a disk: no evidence".to_owned()
        }
        Evidence::Missing(missing) => missing.clone(),
    }
}

fn of_generator(evidence: &GeneratorEvidence) -> String {
    match evidence {
        GeneratorEvidence::EngineBusy(share) => {
            format!("engine threads were {} busy around the breach", percent(*share))
        }
        GeneratorEvidence::EngineStarved(waited) => {
            format!("its threads waited for a core {waited:.2} s per second")
        }
        GeneratorEvidence::LateSends { late_ms, rise_ms } => format!(
            "sends were late by {late_ms:.1} ms (p99) while the latency rose by {rise_ms:.1} ms: \
             the late sends explain it"
        ),
        GeneratorEvidence::NoPorts(ports) => {
            format!("{ports} connections failed because no local port was free")
        }
        GeneratorEvidence::SharedCores { used, cores } => format!(
            "the target's processes used {used:.1} of the {cores} cores that both share: run the \
             generator on another host"
        ),
    }
}

fn of_connections(evidence: &ConnectionEvidence) -> String {
    match evidence {
        ConnectionEvidence::Connects { count, mean_ms } => {
            format!("{count} connects of {mean_ms:.2} ms (mean)")
        }
        ConnectionEvidence::Handshakes { resumed, count, mean_ms } => {
            let name = if *resumed { "resumed" } else { "full" };
            format!("{count} {name} TLS handshakes of {mean_ms:.2} ms (mean)")
        }
        ConnectionEvidence::Unaccepted { waiting, connected } => format!(
            "{waiting:.0} of {connected:.0} connections waited to be accepted around the breach"
        ),
        ConnectionEvidence::QueueLength(most) => format!("the accept queue holds {most:.0}"),
        ConnectionEvidence::QueueOverflows(lost) => {
            format!("{lost:.1} connections per second were refused by a full queue")
        }
        ConnectionEvidence::NotConnected { refused, otherwise } => format!(
            "{} of the calls around the breach failed without a connection, {} failed otherwise",
            percent(*refused),
            percent(*otherwise)
        ),
        ConnectionEvidence::Connections { made, failed, closed } => {
            format!("{made} connections opened, {failed} failed, {closed} closed by the server")
        }
    }
}

fn of_resource(evidence: &ResourceEvidence) -> String {
    match evidence {
        ResourceEvidence::Rose(waiting, rise) => rose(*waiting, *rise),
        ResourceEvidence::QuotaUsed { name, share } => {
            format!("{} of the quota is used by {name}", percent(*share))
        }
        ResourceEvidence::MemoryLimitUsed(share) => {
            format!("{} of the cgroup's memory limit is used", percent(*share))
        }
        ResourceEvidence::DiskLimitUsed(share) => {
            format!("{} of the cgroup's disk limit is used", percent(*share))
        }
        ResourceEvidence::ThreadRan { share, others } => format!(
            "that thread ran {} of the time, the others used or waited for {others:.2} cores",
            percent(*share)
        ),
        ResourceEvidence::BusiestThread { name, used } => {
            format!("the thread is {name} ({})", percent(*used))
        }
        ResourceEvidence::Unread(queue) => {
            format!("{queue:.1} connections had requests that it had not read")
        }
        ResourceEvidence::MemoryUsed(share) => format!("{} of the memory is used", percent(*share)),
        ResourceEvidence::PageFaults(faults) => {
            format!("{faults:.0} page faults per second had to read a disk")
        }
        ResourceEvidence::DiskBusy { device, share, queue } => {
            format!("{device} was {} busy with {queue:.1} requests queued", percent(*share))
        }
        ResourceEvidence::DiskTime { ms } => format!("a disk request took {ms:.1} ms (mean)"),
        ResourceEvidence::LineRate { device, share } => {
            format!("{device} carried {} of its line rate", percent(*share))
        }
        ResourceEvidence::CoresBusy { awaited, share } => {
            let cores = if *awaited { "the cores that they wait for" } else { "the cores" };
            format!("{cores} were {} busy", percent(*share))
        }
        ResourceEvidence::CpuUsers { busy, target, generator, others } => format!(
            "of {busy:.1} busy cores the target used {target:.1}, the generator {generator:.1}, others \
             {others:.1}"
        ),
    }
}

fn host(shares: HostShares) -> String {
    let shares_with_names = [
        ("CPU busy", shares.cpu),
        ("waiting for CPU", shares.cpu_wait),
        ("for memory", shares.memory_wait),
        ("for disks", shares.disk_wait),
    ];
    let known = shares_with_names
        .iter()
        .filter_map(|(name, share)| Some(format!("{name} {}", percent((*share)?))));
    format!("the target's host around the breach: {}", known.collect::<Vec<_>>().join(", "))
}

/// `time in which tasks waited for disks: from 3.0 s on 85 %, before 0.0 %`
fn rose(waiting: Waiting, rise: Rise) -> String {
    let description = match waiting {
        Waiting::Quota => "periods of the quota that were throttled",
        Waiting::Memory => "time in which tasks waited for memory",
        Waiting::Disks => "time in which tasks waited for disks",
        Waiting::Thread => "CPU time that its busiest thread used or waited for",
        Waiting::Network => "TCP retransmissions, or packet drops per second ÷ 1000",
        Waiting::TargetCpu => "time in which the target's threads waited for a core",
        Waiting::HostCpu => "time in which tasks waited for CPU",
    };
    let baseline = rise.before.map(|baseline| format!(", before {}", percent(baseline)));
    let baseline = baseline.unwrap_or_default();
    format!("{description}: from {:.1} s on {}{baseline}", rise.at, percent(rise.after))
}

fn doubt_sentence(doubt: &Doubt) -> String {
    match doubt {
        Doubt::LateSends(late) => {
            format!("sends were late by {late:.1} ms (p99) around the breach")
        }
        Doubt::NoBaseline => "there was no time without load to compare with".to_owned(),
        Doubt::ConstantLoad => {
            "the load did not vary, so its correlation with the load is unknown".to_owned()
        }
        Doubt::Another(other) => format!("within a second of it: {}", claim_sentence(other)),
        Doubt::QueueNotFull => {
            "the accept queue is not full: a target that hangs looks the same".to_owned()
        }
        Doubt::ClosedLater => {
            "connections were closed after they were opened: a crash looks the same".to_owned()
        }
        Doubt::ProcessesUnseen => "the target's processes are not observed".to_owned(),
        Doubt::CodeAmbiguous => {
            "some servers use the code for other limits too, such as a block range".to_owned()
        }
        Doubt::HalfUsed => "more than half of the CPU that it may use was used".to_owned(),
        Doubt::NoCore(waited) => {
            format!("it waited for a core {} of the time", percent(*waited))
        }
    }
}
