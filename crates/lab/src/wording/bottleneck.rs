//! Writes the sentences about the first bottleneck. The claim names the bottleneck, the evidence
//! supports the claim, and a doubt is a reason to distrust it.

use lab_model::results::Finding;

use super::number::brief_percent as percent;
use crate::analysis::bottleneck::diagnosis::{
    Bottleneck, Claim, Doubt, Evidence, HostShares, Unknown, Waiting,
};
use crate::analysis::bottleneck::time_series::Rise;

/// Converts a bottleneck for the report. The list of evidence ends with the doubts.
pub(crate) fn finding(bottleneck: &Bottleneck) -> Finding {
    let evidence = bottleneck.evidence.iter().map(evidence_sentence);
    let doubts = bottleneck.doubts.iter().map(|doubt| format!("doubt: {}", doubt_sentence(doubt)));
    Finding {
        cause: bottleneck.claim.cause(),
        confidence: bottleneck.confidence(),
        sentence: claim_sentence(&bottleneck.claim),
        evidence: evidence.chain(doubts).collect(),
        at: bottleneck.at,
    }
}

/// Returns the sentence that names the bottleneck.
fn claim_sentence(claim: &Claim) -> String {
    match claim {
        Claim::Generator => "the generator was the limit, not the target".to_owned(),
        Claim::Connecting(share) => format!(
            "connection setup was the limit: it took {} of the time of all calls",
            percent(*share)
        ),
        Claim::AcceptQueue => {
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
        Claim::Link => {
            "the link between the generator and the target was the limit: packets waited \
                        in a queue on the way"
                .to_owned()
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

/// Returns the reason why the bottleneck is unknown.
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

/// Returns a piece of evidence as a sentence.
fn evidence_sentence(evidence: &Evidence) -> String {
    match evidence {
        Evidence::GeneratorBusy { share } => {
            format!("engine threads were {} busy around the breach", percent(*share))
        }
        Evidence::GeneratorStarved { seconds_per_second } => {
            format!("its threads waited for a core {seconds_per_second:.2} s per second")
        }
        Evidence::LateSends { delay_ms, latency_rise_ms } => format!(
            "sends were late by {delay_ms:.1} ms (p99) while the latency rose by \
             {latency_rise_ms:.1} ms: the late sends explain it"
        ),
        Evidence::GeneratorStopped { gap_ms, latency_rise_ms } => format!(
            "the generator stood still for {gap_ms:.0} ms while the latency rose by \
             {latency_rise_ms:.1} ms"
        ),
        Evidence::RoundTrip { before_ms, ms } => {
            format!("the round-trip time of the connections rose from {before_ms:.1} to {ms:.1} ms")
        }
        Evidence::ResponsesOnTheWay { responses, in_flight } => format!(
            "the target had sent {responses:.0} responses that had not arrived, of {in_flight:.0} \
             calls in flight"
        ),
        Evidence::PortsExhausted { connections } => {
            format!("{connections} connections failed because no local port was free")
        }
        Evidence::SharedCores { target_cores, host_cores } => format!(
            "the target's processes used {target_cores:.1} of the {host_cores} cores that both \
             share: run the generator on another host"
        ),
        Evidence::Connects { count, mean_ms } => {
            format!("{count} connects of {mean_ms:.2} ms (mean)")
        }
        Evidence::Handshakes { resumed, count, mean_ms } => {
            let name = if *resumed { "resumed" } else { "full" };
            format!("{count} {name} TLS handshakes of {mean_ms:.2} ms (mean)")
        }
        Evidence::Unaccepted { queued, connections } => format!(
            "{queued:.0} of {connections:.0} connections waited to be accepted around the breach"
        ),
        Evidence::AcceptQueueMax { connections } => {
            format!("the accept queue holds {connections:.0}")
        }
        Evidence::AcceptQueueOverflows { per_second } => {
            format!("{per_second:.1} connections per second were refused by a full queue")
        }
        Evidence::FailedCalls { connection_share, other_share } => format!(
            "{} of the calls around the breach failed without a connection, {} failed otherwise",
            percent(*connection_share),
            percent(*other_share)
        ),
        Evidence::Connections { opened, failed, closed_by_server } => {
            format!(
                "{opened} connections opened, {failed} failed, {closed_by_server} closed by the \
                 server"
            )
        }
        Evidence::CpuIdle { cores_used, cores_allowed } => {
            format!("the target's processes used only {cores_used:.2} of {cores_allowed:.1} cores")
        }
        Evidence::TooManyRequests { limited_share, failed_share } => format!(
            "{} of the calls around the breach got HTTP 429, {} failed",
            percent(*limited_share),
            percent(*failed_share)
        ),
        Evidence::Successes { per_second } => {
            format!("{per_second:.0} results per second were admitted")
        }
        Evidence::RetryAfter { seconds } => {
            format!("Retry-After asks to wait {seconds:.1} s (median)")
        }
        Evidence::LimitExceeded { error_share, limit_errors, errors, code } => format!(
            "{} of the calls around the breach ended with a JSON-RPC error; {limit_errors} of \
             {errors} errors of the run have the code {code} (limit exceeded, EIP-1474)",
            percent(*error_share)
        ),
        Evidence::WaitedForUpstream { calls_inside, upstream_waits, share } => format!(
            "of {calls_inside:.1} calls inside the target, {upstream_waits:.1} waited for a \
             response of its upstream: {} of its time",
            percent(*share)
        ),
        Evidence::LongestUpstreamWait { ms } => {
            format!("the longest of these waits was {ms:.0} ms (mean of samples)")
        }
        Evidence::UpstreamCpu { name, cores_used, busiest_thread } => {
            let busiest_thread = percent(*busiest_thread);
            format!("{name} used {cores_used:.2} cores, its busiest thread {busiest_thread}")
        }
        Evidence::Rose(waiting, rise) => describe_rise(*waiting, *rise),
        Evidence::QuotaUsed { name, share } => {
            format!("{} of the quota is used by {name}", percent(*share))
        }
        Evidence::MemoryLimitUsed { share } => {
            format!("{} of the cgroup's memory limit is used", percent(*share))
        }
        Evidence::DiskLimitUsed { share } => {
            format!("{} of the cgroup's disk limit is used", percent(*share))
        }
        Evidence::ThreadBusy { share, other_cores } => format!(
            "that thread ran {} of the time, the others used or waited for {other_cores:.2} cores",
            percent(*share)
        ),
        Evidence::BusiestThread { name, share } => {
            format!("the thread is {name} ({})", percent(*share))
        }
        Evidence::UnreadRequests { connections } => {
            format!("{connections:.1} connections had requests that it had not read")
        }
        Evidence::MemoryUsed { share } => format!("{} of the memory is used", percent(*share)),
        Evidence::MajorPageFaults { per_second } => {
            format!("{per_second:.0} page faults per second had to read a disk")
        }
        Evidence::DiskBusy { device, share, queue } => {
            format!("{device} was {} busy with {queue:.1} requests queued", percent(*share))
        }
        Evidence::DiskTime { mean_ms } => format!("a disk request took {mean_ms:.1} ms (mean)"),
        Evidence::LineRate { device, share } => {
            format!("{device} carried {} of its line rate", percent(*share))
        }
        Evidence::CoresBusy { awaited_only, share } => {
            let cores = if *awaited_only { "the cores that they wait for" } else { "the cores" };
            format!("{cores} were {} busy", percent(*share))
        }
        Evidence::CpuUsers { busy, target, generator, others } => format!(
            "of {busy:.1} busy cores the target used {target:.1}, the generator {generator:.1}, others \
             {others:.1}"
        ),
        Evidence::LoadCorrelation { rank } => {
            format!("follows the load: rank correlation {rank:.2}")
        }
        Evidence::CallsInside { calls } => {
            format!("{calls:.1} calls were inside the target around the breach")
        }
        Evidence::TargetCpu { cores_used, cores_allowed, busiest_thread, run_delay } => format!(
            "its processes used {cores_used:.2} of {cores_allowed:.1} cores, the busiest thread \
             {}, and waited for a core {run_delay:.2} s per second",
            percent(*busiest_thread)
        ),
        Evidence::ThreadsSerialized => {
            "several threads use one core together, as if behind one lock".to_owned()
        }
        Evidence::Host(shares) => describe_host(*shares),
        Evidence::BusyBeforeLoad { share } => {
            format!("its CPU was {} busy before the load started", percent(*share))
        }
        Evidence::IowaitWithoutDiskWait => {
            "iowait is high, but no task waits for a disk: no evidence".to_owned()
        }
        Evidence::NotObserved(sentence) => sentence.clone(),
    }
}

/// Describes the shares of time of a host. Shares that were not observed are left out.
fn describe_host(shares: HostShares) -> String {
    let shares_with_names = [
        ("CPU busy", shares.cpu),
        ("waiting for CPU", shares.cpu_wait),
        ("for memory", shares.memory_wait),
        ("for disks", shares.disk_wait),
    ];
    let observed = shares_with_names
        .iter()
        .filter_map(|(name, share)| Some(format!("{name} {}", percent((*share)?))));
    format!("the target's host around the breach: {}", observed.collect::<Vec<_>>().join(", "))
}

/// Describes a rise: `time in which tasks waited for disks: 85 % from 3.0 s on, 0.0 % before`.
fn describe_rise(waiting: Waiting, rise: Rise) -> String {
    let description = match waiting {
        Waiting::Quota => "periods of the quota that were throttled",
        Waiting::Memory => "time in which tasks waited for memory",
        Waiting::Disks => "time in which tasks waited for disks",
        Waiting::Thread => "CPU time that its busiest thread used or waited for",
        Waiting::Network => "TCP retransmissions, or packet drops per second ÷ 1000",
        Waiting::TargetCpu => "time in which the target's threads waited for a core",
        Waiting::HostCpu => "time in which tasks waited for CPU",
    };
    let baseline = rise.before.map(|baseline| format!(", {} before", percent(baseline)));
    let baseline = baseline.unwrap_or_default();
    format!("{description}: {} from {:.1} s on{baseline}", percent(rise.after), rise.at)
}

/// Returns a doubt about the bottleneck as a sentence.
fn doubt_sentence(doubt: &Doubt) -> String {
    match doubt {
        Doubt::LateSends(late) => {
            format!("sends were late by {late:.1} ms (p99) around the breach")
        }
        Doubt::OtherSaturated => {
            "a resource of the target's host was saturated too, which may be why it rejected calls"
                .to_owned()
        }
        Doubt::NoBaseline => "there was no time without load to compare with".to_owned(),
        Doubt::ConstantLoad => {
            "the load did not vary, so its correlation with the load is unknown".to_owned()
        }
        Doubt::TiedResource(other) => format!("within a second of it: {}", claim_sentence(other)),
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
