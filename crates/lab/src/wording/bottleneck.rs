//! The first bottleneck in sentences.

use lab_model::results::Finding;

use super::number::brief_percent as percent;
use crate::analysis::bottleneck::course::Rise;
use crate::analysis::bottleneck::found::{
    Bottleneck, Claim, Doubt, Evidence, HostShares, Unknown, Waiting,
};

/// A bottleneck as it is reported; its doubts end the evidence.
pub(crate) fn finding(found: &Bottleneck) -> Finding {
    let evidence = found.evidence.iter().map(evidence);
    let doubts = found.doubts.iter().map(|one| format!("doubt: {}", doubt(one)));
    Finding {
        cause: found.cause,
        confidence: found.confidence,
        sentence: claim(&found.claim),
        evidence: evidence.chain(doubts).collect(),
        at: found.at,
    }
}

fn claim(claim: &Claim) -> String {
    match claim {
        Claim::Generator => "the generator was the limit, not the target".to_owned(),
        Claim::Connecting(share) => format!(
            "making connections was the limit: it took {} of the time of all calls",
            percent(*share)
        ),
        Claim::Unaccepted => {
            "the target accepts no more connections: its limit of connections is reached".to_owned()
        }
        Claim::Refused => {
            "the target refuses or closes connections: a limit of connections".to_owned()
        }
        Claim::TooManyRequests => "the target's rate limit answered (HTTP 429)".to_owned(),
        Claim::LimitExceeded => "the target's rate limit answered (JSON-RPC error)".to_owned(),
        Claim::Upstream(upstream) => {
            let name = upstream.as_ref().map(|upstream| match &upstream.process {
                Some(process) => format!(" ({}, {process})", upstream.address),
                None => format!(" ({})", upstream.address),
            });
            let name = name.unwrap_or_default();
            format!("a server behind the target{name} took most of the time")
        }
        Claim::Software => "nothing of the machine was saturated while calls waited inside the \
                            target: a lock, a pool or a queue of its software is the limit"
            .to_owned(),
        Claim::CpuQuota(name, cores) => {
            format!("{name}'s CPU quota of {cores:.2} cores is used up")
        }
        Claim::MemoryLimit(name) => format!("{name}'s memory limit is reached"),
        Claim::DiskLimit(name) => format!("{name}'s disk limit (io.max) is used up"),
        Claim::OnlyCore(name) => format!("the one core that {name} may use is used up"),
        Claim::Thread(name) => format!("one thread of {name} is at its limit, others have time"),
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
        Claim::Unknown(why) => format!("cannot tell: {}", unknown(*why)),
    }
}

fn unknown(why: Unknown) -> &'static str {
    match why {
        Unknown::InProcess => {
            "the target is a part of this process: what it uses cannot be told from the generator's"
        }
        Unknown::HostUnseen => {
            "the target's host is not watched: give a node-exporter's URL (watch.node-exporter), or \
             run the lab beside the target"
        }
        Unknown::Remote => {
            "nothing on the target's host saturated, and its processes are not seen: a lock, a pool, \
             a limit or a server behind it are all possible"
        }
        Unknown::ProcessesUnseen => {
            "no process of the target was found, so that its own limits are not seen"
        }
        Unknown::Unclear => "what was seen does not agree on one cause",
    }
}

fn evidence(evidence: &Evidence) -> String {
    match evidence {
        Evidence::EngineBusy(share) => {
            format!("engine threads were {} busy around the break", percent(*share))
        }
        Evidence::EngineStarved(waited) => {
            format!("its threads were ready but had no core for {waited:.2} s of each second")
        }
        Evidence::LateSends { late_ms, rise_ms } => format!(
            "sends were late by {late_ms:.1} ms (p99) while the latency rose by {rise_ms:.1} ms: the \
             lateness explains it"
        ),
        Evidence::NoPorts(ports) => {
            format!("{ports} connections could not be made for want of a local port")
        }
        Evidence::SharedCores { used, cores } => format!(
            "the target's processes used {used:.1} of the {cores} cores that both share: put the \
             generator on a host of its own"
        ),
        Evidence::Connects { count, mean_ms } => {
            format!("{count} connects of {mean_ms:.2} ms (mean)")
        }
        Evidence::Handshakes { resumed, count, mean_ms } => {
            let name = if *resumed { "resumed" } else { "full" };
            format!("{count} {name} TLS handshakes of {mean_ms:.2} ms (mean)")
        }
        Evidence::Unaccepted { waiting, connected } => format!(
            "{waiting:.0} of {connected:.0} connections waited to be accepted around the break"
        ),
        Evidence::QueueLength(most) => format!("the accept queue holds {most:.0}"),
        Evidence::QueueOverflows(lost) => {
            format!("{lost:.1} connections a second were refused by a full queue")
        }
        Evidence::Idle { used, cores } => {
            format!("the target's processes used {used:.2} of {cores:.1} cores meanwhile")
        }
        Evidence::NotConnected { refused, otherwise } => format!(
            "{} of the calls around the break failed for want of a connection, {} failed otherwise",
            percent(*refused),
            percent(*otherwise)
        ),
        Evidence::Connections { made, failed, closed } => {
            format!("{made} connections made, {failed} failed, {closed} closed by the server")
        }
        Evidence::TooManyRequests { limited, failed } => format!(
            "{} of the calls around the break were answered with HTTP 429, {} failed",
            percent(*limited),
            percent(*failed)
        ),
        Evidence::Admitted(results) => format!("{results:.0} results a second were let through"),
        Evidence::RetryAfter(wait) => format!("Retry-After asks to wait {wait:.1} s (median)"),
        Evidence::LimitExceeded { errors, limits, every, code } => format!(
            "{} of the calls around the break ended with a JSON-RPC error; {limits} of {every} \
             errors of the run have the code {code} (limit exceeded, EIP-1474)",
            percent(*errors)
        ),
        Evidence::Behind { inside, behind, share } => format!(
            "of {inside:.1} calls inside the target, {behind:.1} waited for an answer from behind it: \
             {} of its time",
            percent(*share)
        ),
        Evidence::LongestWait { ms } => {
            format!("the longest of these waits was {ms:.0} ms (mean of samples)")
        }
        Evidence::UpstreamCpu { name, used, busiest } => {
            format!("{name} used {used:.2} cores, its busiest thread {}", percent(*busiest))
        }
        Evidence::Rose(waiting, rise) => rose(*waiting, *rise),
        Evidence::QuotaUsed { name, share } => {
            format!("{} of the quota is used by {name}", percent(*share))
        }
        Evidence::MemoryLimitUsed(share) => {
            format!("{} of the cgroup's memory limit is used", percent(*share))
        }
        Evidence::DiskLimitUsed(share) => {
            format!("{} of the cgroup's disk limit is used", percent(*share))
        }
        Evidence::ThreadRan { share, others } => format!(
            "that thread ran {} of the time, the others used or wanted {others:.2} cores",
            percent(*share)
        ),
        Evidence::BusiestThread { name, used } => {
            format!("the thread is {name} ({})", percent(*used))
        }
        Evidence::Unread(queue) => {
            format!("{queue:.1} connections had requests that it had not read")
        }
        Evidence::MemoryUsed(share) => format!("{} of the memory is used", percent(*share)),
        Evidence::PageFaults(faults) => {
            format!("{faults:.0} page faults a second had to read a disk")
        }
        Evidence::DiskBusy { device, share, queue } => {
            format!("{device} was {} busy with {queue:.1} requests queued", percent(*share))
        }
        Evidence::DiskTime { ms } => format!("a request took {ms:.1} ms (mean)"),
        Evidence::LineRate { device, share } => {
            format!("{device} carried {} of its line rate", percent(*share))
        }
        Evidence::CoresBusy { awaited, share } => {
            let whose = if *awaited { "the cores that they wait for" } else { "the cores" };
            format!("{whose} were {} busy", percent(*share))
        }
        Evidence::CpuUsers { busy, target, own, others } => format!(
            "of {busy:.1} busy cores the target used {target:.1}, the generator {own:.1}, others \
             {others:.1}"
        ),
        Evidence::Correlation(with) => format!("goes with the load: rank correlation {with:.2}"),
        Evidence::Inside(calls) => {
            format!("{calls:.1} calls were inside the target around the break")
        }
        Evidence::OwnCpu { used, cores, busiest, delay } => format!(
            "its processes used {used:.2} of {cores:.1} cores, the busiest thread {}, and waited for \
             a core {delay:.2} s of each second",
            percent(*busiest)
        ),
        Evidence::OneLock => {
            "several threads use one core between them: as if by one lock".to_owned()
        }
        Evidence::Host(shares) => host(*shares),
        Evidence::BusyBefore(busy) => {
            format!("its CPU was {} busy before the load began", percent(*busy))
        }
        Evidence::IowaitAlone => {
            "iowait is high without tasks that wait for a disk: no evidence".to_owned()
        }
        Evidence::Missing(missing) => missing.clone(),
    }
}

fn host(shares: HostShares) -> String {
    let named = [
        ("CPU busy", shares.cpu),
        ("waiting for CPU", shares.cpu_wait),
        ("for memory", shares.memory_wait),
        ("for disks", shares.disk_wait),
    ];
    let known =
        named.iter().filter_map(|(name, share)| Some(format!("{name} {}", percent((*share)?))));
    format!("the target's host around the break: {}", known.collect::<Vec<_>>().join(", "))
}

/// "from 3.0 s on 85 %, before 0.0 %"
fn rose(waiting: Waiting, rise: Rise) -> String {
    let what = match waiting {
        Waiting::Quota => "periods of the quota in which it was throttled",
        Waiting::Memory => "time in which tasks waited for memory",
        Waiting::Disks => "time in which tasks waited for disks",
        Waiting::Thread => "CPU that its busiest thread used or waited for",
        Waiting::Network => "segments sent again, or a thousandth of drops a second",
        Waiting::TargetCpu => "time in which the target's threads were ready but had no core",
        Waiting::HostCpu => "time in which tasks waited for CPU",
    };
    let before = rise.before.map(|before| format!(", before {}", percent(before)));
    let before = before.unwrap_or_default();
    format!("{what}: from {:.1} s on {}{before}", rise.at, percent(rise.after))
}

fn doubt(doubt: &Doubt) -> String {
    match doubt {
        Doubt::LateSends(late) => {
            format!("sends were late by {late:.1} ms (p99) around the break")
        }
        Doubt::NoBaseline => "there was no time without load to compare with".to_owned(),
        Doubt::ConstantLoad => {
            "the load did not vary: whether this goes with the load is not known".to_owned()
        }
        Doubt::Another(other) => format!("within a second of it: {}", claim(other)),
        Doubt::QueueNotFull => {
            "the accept queue is not full: a target that hangs does the same".to_owned()
        }
        Doubt::ClosedLater => {
            "connections were closed after they were made: a fault would do the same".to_owned()
        }
        Doubt::ProcessesUnseen => "the target's processes are not seen".to_owned(),
        Doubt::CodeAmbiguous => {
            "some servers use the code for other limits too, such as a range of blocks".to_owned()
        }
        Doubt::HalfUsed => "more than half of the CPU that it may use was used".to_owned(),
        Doubt::NoCore(waited) => {
            format!("it was ready but had no core {} of the time", percent(*waited))
        }
    }
}
