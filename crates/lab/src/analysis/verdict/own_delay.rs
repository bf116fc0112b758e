//! Judges if the generator's own delays distort the latencies of a run: the doubts that make a run
//! without failures invalid, and the warnings. `validity/own_delay.rs` measures the distortion.

use super::{Reason, VerdictInput};
use crate::analysis::validity::{self, Allowed, Delay, Doubt, Moved};

/// The numbers are invalid if the generator's threads waited for a core for at least this share of
/// their time: half of what they had to do was done late.
const STARVED_SHARE: f64 = 0.5;
/// Gaps of the generator's threads are reported above this share of their time. The rates are wrong
/// by about that share.
const STOPPED_SHARE: f64 = 0.01;

/// Returns the percentiles that the generator may have raised, first those over all methods.
pub(super) fn find_moved(input: VerdictInput<'_>) -> Vec<Moved> {
    // The row of the only method is the row over all methods.
    let methods = if input.methods.len() > 1 { input.methods } else { &[] };
    let rows = std::iter::once(input.overall).chain(methods);
    let allowed = Allowed::of_plan(input.plan);
    rows.flat_map(|row| validity::find_moved(row, allowed)).collect()
}

/// Returns the doubts that make the numbers of a run without failures invalid: the generator may
/// have caused a notable share of what most calls took, or its threads had no core most of the time.
pub(super) fn find_distortions(input: VerdictInput<'_>, moved: &[Moved]) -> Vec<Doubt> {
    let most_calls: Vec<Moved> =
        moved.iter().filter(|moved| moved.is_of_most_calls()).cloned().collect();
    let starved = input.doubts.starved.iter().map(|delay| &delay.doubt);
    let mut doubts: Vec<Doubt> = starved
        .filter(|doubt| matches!(doubt, Doubt::Starved { share, .. } if *share >= STARVED_SHARE))
        .cloned()
        .collect();
    if !most_calls.is_empty() {
        let allowed = input.plan.validity.generator_share_max;
        doubts.push(Doubt::Moved { percentiles: most_calls, allowed });
        doubts.extend(input.doubts.stopped.iter().map(|delay| delay.doubt.clone()));
    }
    doubts
}

/// Returns warnings if the generator may have raised percentiles, or if it was stopped for a notable
/// time.
pub(super) fn warn_of_moved(input: VerdictInput<'_>, moved: Vec<Moved>) -> Vec<Reason> {
    let mut warnings = Vec::new();
    let is_notable = |delay: &&Delay| {
        !moved.is_empty()
            || matches!(delay.doubt, Doubt::Stopped { share, .. } if share > STOPPED_SHARE)
    };
    let stopped = input.doubts.stopped.iter().find(is_notable);
    warnings.extend(stopped.map(|delay| Reason::Doubt(delay.doubt.clone())));
    if !moved.is_empty() {
        let allowed = input.plan.validity.generator_share_max;
        warnings.push(Reason::Doubt(Doubt::Moved { percentiles: moved, allowed }));
    }
    warnings
}
