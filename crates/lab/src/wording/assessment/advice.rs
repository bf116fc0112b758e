//! Writes the recommendations, risks and next steps of an assessment.

use std::fmt::{Display, Formatter, Result};

use lab_model::results::Cause;

use crate::analysis::assessment::{Advice, Risk, Step};
use crate::wording::number::rate;

/// The sentence that replaces an empty list of recommendations.
pub(crate) const NO_RECOMMENDATION: &str = "None: no finding supports one.";

impl Display for Advice {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Advice::RepairMethod { method } => write!(
                f,
                "Find out why {method} fails before clients depend on it. Until then, restrict or \
                 reject its calls."
            ),
            Advice::WatchMethod { method } => write!(
                f,
                "Set a threshold and an alert on the failures of {method} alone: \
                 failed{{method:{method}}} rate<0.01."
            ),
            Advice::CorrectResponses { method } => write!(
                f,
                "Send no calls of {method} to this target until its responses equal those of the \
                 reference node."
            ),
            Advice::Relieve(cause) => f.write_str(relief(*cause)),
            Advice::RaiseRateLimit => f.write_str(
                "Raise the rate limit of the target, or keep the load of its clients below it.",
            ),
            Advice::KeepBelow { rate: pass } => write!(
                f,
                "Keep the load of this mix at or below {}, which a long run confirmed.",
                rate(*pass)
            ),
            Advice::LimitAdmission { rate: pass } => write!(
                f,
                "Limit the rate before the target to {}, because the target fails suddenly above it.",
                rate(*pass)
            ),
            Advice::Prefer { variant } => write!(f, "Choose {variant} for a load like this plan."),
        }
    }
}

/// Returns a recommendation against a bottleneck with this cause.
fn relief(cause: Cause) -> &'static str {
    match cause {
        Cause::Connection => {
            "Reuse connections and TLS sessions, or raise the connection limit of the target."
        }
        Cause::RateLimit => "Raise the rate limit of the server, or send less.",
        Cause::Upstream => "Measure the server behind the target, and raise its capacity first.",
        Cause::Cpu => "Give the target more CPU, or reduce its CPU time per request.",
        Cause::CpuQuota => "Raise the CPU quota of the target.",
        Cause::Memory => "Give the target more memory, or reduce its caches and buffers.",
        Cause::Disk => {
            "Use a faster disk, or reduce the reads and writes per request, for example with a larger \
             page cache."
        }
        Cause::Network => "Use a faster network, or make the responses smaller.",
        Cause::Thread => "Profile the busiest thread of the target. More cores do not help.",
        Cause::Software => {
            "Profile the locks, pools and queues of the target. A larger machine does not help."
        }
        Cause::Generator | Cause::Unknown => "Find the cause before a change.",
    }
}

impl Display for Risk {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Risk::HiddenFailure { method } => write!(
                f,
                "Figures over all calls hide the failure of {method}: monitoring by the total error \
                 rate does not notice it."
            ),
            Risk::BreaksSuddenly => f.write_str(
                "A small rise of the load breaks the target without warning, because no latency rises \
                 before.",
            ),
            Risk::StaysDegraded => {
                f.write_str("After a peak the target stays slow until an operator restarts it.")
            }
            Risk::FailsLater => f.write_str(
                "The target may fail after a longer time at this load, because caches, memory and \
                 disks fill slowly.",
            ),
            Risk::NotRepeated => f.write_str(
                "The next run may give other numbers, because the spread between runs is unknown.",
            ),
            Risk::OtherInProduction => f.write_str(
                "The numbers may differ in production, where clients use a network and the generator \
                 uses no CPU of the target.",
            ),
            Risk::UnknownLimit => f.write_str(
                "The limit may be just above the measured load, because the capacity is unknown.",
            ),
            Risk::OtherCause => f.write_str(
                "A difference between the systems may have another cause than the intended one.",
            ),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Step::StrongerGenerator => {
                "Repeat the load with more CPU or more workers for the generator, or from a second \
                 machine."
            }
            Step::RepeatInvalid => "Repeat the runs that are invalid or ended early.",
            Step::RepeatAlternating => {
                "Make at least four runs of each system under the same plan, in alternating order, or \
                 use weir study load."
            }
            Step::SearchCapacity => "Search the highest sustained load with weir capacity.",
            Step::RaiseRateMax => {
                "Repeat the capacity search with a higher --rate-max or a stronger generator."
            }
            Step::Soak => "Confirm the capacity by a long run: weir capacity --soak.",
            Step::RepeatSearch => "Repeat the capacity search at least twice for each system.",
            Step::SeparateGenerator => "Run the generator on another machine than the target.",
            Step::SetThresholds => "Set thresholds, for each important method by itself.",
            Step::ObserveHost => {
                "Observe the host of the target: run weir on it, or set watch.node-exporter in the plan."
            }
            Step::RunLonger => "Run longer, or at a higher rate, for 1,000 or more calls of each method.",
            Step::PlanRate => "Plan the load as a rate, so that a slow target cannot slow it down.",
            Step::OnePlan => "Measure all systems under one plan.",
            Step::ChangeOneProperty => "Change one property of the system at a time.",
            Step::VerifyChange => "Measure again under the same plan after each change.",
        })
    }
}
