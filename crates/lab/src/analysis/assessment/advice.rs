//! Recommendations, risks and next steps. Each one follows from a finding or a caveat.

use super::{Advice, Basis, Caveat, Derived, Finding, FindingKind, Risk, Step};

/// Returns the recommendations, without repetitions.
pub(super) fn recommendations(findings: &[Finding]) -> Vec<Derived<Advice>> {
    let derived = findings.iter().enumerate().flat_map(|(index, finding)| {
        let basis = Basis::Finding(index);
        advice_about(&finding.kind).into_iter().map(move |statement| Derived { statement, basis })
    });
    without_repetitions(derived)
}

/// Returns the advice that follows from a finding; empty for most findings.
fn advice_about(kind: &FindingKind) -> Vec<Advice> {
    match kind {
        FindingKind::MethodFails { method, .. } => {
            let repair = Advice::RepairMethod { method: method.clone() };
            let watch = kind.is_hidden().then(|| Advice::WatchMethod { method: method.clone() });
            [Some(repair), watch].into_iter().flatten().collect()
        }
        FindingKind::WrongResponses { method, .. } => {
            vec![Advice::CorrectResponses { method: method.clone() }]
        }
        FindingKind::RateLimited { .. } => vec![Advice::RaiseRateLimit],
        FindingKind::Bottleneck { cause, .. } => vec![Advice::Relieve(*cause)],
        FindingKind::Capacity { pass, soaked: true, .. } => vec![Advice::KeepBelow { rate: *pass }],
        FindingKind::Cliff { pass, .. } => vec![Advice::LimitAdmission { rate: *pass }],
        FindingKind::Differs { baseline, variant, better, worse, by_runs: true } => {
            match (better, worse) {
                (1.., 0) => vec![Advice::Prefer { variant: variant.clone() }],
                (0, 1..) => vec![Advice::Prefer { variant: baseline.clone() }],
                _ => Vec::new(),
            }
        }
        FindingKind::ThresholdBroken { .. }
        | FindingKind::RunFails { .. }
        | FindingKind::NotDelivered { .. }
        | FindingKind::Capacity { .. }
        | FindingKind::CapacityAtLeast { .. }
        | FindingKind::NothingPassed { .. }
        | FindingKind::LimitBroken { .. }
        | FindingKind::SoakBroke { .. }
        | FindingKind::NotRecovered
        | FindingKind::Differs { .. }
        | FindingKind::CapacityDiffers { .. } => Vec::new(),
    }
}

/// Returns the risks, without repetitions.
pub(super) fn risks(findings: &[Finding], caveats: &[Caveat]) -> Vec<Derived<Risk>> {
    let risk_of_finding = |kind: &FindingKind| match kind {
        FindingKind::MethodFails { method, .. } if kind.is_hidden() => {
            Some(Risk::HiddenFailure { method: method.clone() })
        }
        FindingKind::Cliff { .. } => Some(Risk::BreaksSuddenly),
        FindingKind::NotRecovered => Some(Risk::StaysDegraded),
        FindingKind::SoakBroke { .. } => Some(Risk::FailsLater),
        _ => None,
    };
    let risk_of_caveat = |caveat: &Caveat| match caveat {
        Caveat::SingleRun { .. } | Caveat::OneRunEach { .. } | Caveat::OneSearchEach { .. } => {
            Some(Risk::NotRepeated)
        }
        Caveat::NoSoak(_) => Some(Risk::FailsLater),
        Caveat::SharedMachine { .. } => Some(Risk::OtherInProduction),
        Caveat::NoCapacity { .. } | Caveat::LowerBound(_) | Caveat::CapacityUnknown(_) => {
            Some(Risk::UnknownLimit)
        }
        Caveat::UnlikeSystems(_) | Caveat::MachineUnknown { .. } => Some(Risk::OtherCause),
        _ => None,
    };
    let from_findings = findings.iter().enumerate().filter_map(|(index, finding)| {
        Some(Derived { statement: risk_of_finding(&finding.kind)?, basis: Basis::Finding(index) })
    });
    let from_caveats = caveats.iter().enumerate().filter_map(|(index, caveat)| {
        Some(Derived { statement: risk_of_caveat(caveat)?, basis: Basis::Caveat(index) })
    });
    without_repetitions(from_findings.chain(from_caveats))
}

/// Returns the next steps, without repetitions. If a change of the target is recommended, its
/// verification comes first.
pub(super) fn steps(caveats: &[Caveat], recommendations: &[Derived<Advice>]) -> Vec<Derived<Step>> {
    let step = |caveat: &Caveat| match caveat {
        Caveat::Invalid(_) | Caveat::Partial(_) => Step::RepeatInvalid,
        Caveat::ClientLimited(_) => Step::StrongerGenerator,
        Caveat::NoThresholds(_) => Step::SetThresholds,
        Caveat::SingleRun { .. } | Caveat::CannotTell { .. } | Caveat::OneRunEach { .. } => {
            Step::RepeatAlternating
        }
        Caveat::NoCapacity { .. } => Step::SearchCapacity,
        Caveat::LowerBound(_) => Step::RaiseRateMax,
        Caveat::CapacityUnknown(_) | Caveat::NotMonotone(_) => Step::RepeatSearch,
        Caveat::CapacitiesCannotTell { .. } | Caveat::OneSearchEach { .. } => Step::RepeatSearch,
        Caveat::NoSoak(_) => Step::Soak,
        Caveat::SharedMachine { .. } => Step::SeparateGenerator,
        Caveat::CauseUnknown(_) | Caveat::CauseUncertain { .. } | Caveat::MachineUnknown { .. } => {
            Step::ObserveHost
        }
        Caveat::FewCalls { .. } => Step::RunLonger,
        Caveat::ClosedLoad(_) => Step::PlanRate,
        Caveat::UnlikePlans(_) | Caveat::Refused { .. } => Step::OnePlan,
        Caveat::UnlikeSystems(_) => Step::ChangeOneProperty,
    };
    let from_caveats = caveats
        .iter()
        .enumerate()
        .map(|(index, caveat)| Derived { statement: step(caveat), basis: Basis::Caveat(index) });
    let is_change = |advice: &Advice| {
        matches!(
            advice,
            Advice::RepairMethod { .. }
                | Advice::CorrectResponses { .. }
                | Advice::Relieve(_)
                | Advice::RaiseRateLimit
        )
    };
    let change = recommendations.iter().find(|recommended| is_change(&recommended.statement));
    let verification =
        change.map(|change| Derived { statement: Step::VerifyChange, basis: change.basis });
    without_repetitions(verification.into_iter().chain(from_caveats))
}

/// Keeps the first statement of several that differ only in their basis.
fn without_repetitions<T: PartialEq>(all: impl Iterator<Item = Derived<T>>) -> Vec<Derived<T>> {
    let mut unique: Vec<Derived<T>> = Vec::new();
    for derived in all {
        if !unique.iter().any(|other| other.statement == derived.statement) {
            unique.push(derived);
        }
    }
    unique
}
