//! Finds stalls: times in which the height of a run does not grow, before the run reaches the chain
//! tip (`sync/tip.rs`).

use lab_model::results::study::{Stall, Tip};

use super::SyncRun;

/// Number of sample periods without a new block that count as a stall: four minutes at one sample
/// per minute.
pub const STALL_PERIODS: f64 = 4.0;
/// Maximum number of listed stalls of one run. Further stalls are counted.
pub const STALLS_MAX: usize = 200;

/// Returns the stalls: four sample periods or more without a new block. Half a period of slack
/// allows for jitter of the samples. The time before the first new block does not count as a stall.
/// Waiting for new blocks at the chain tip does not count either.
pub fn find_stalls(run: &SyncRun, tip: Option<Tip>) -> Vec<Stall> {
    let (period, start) = (run.period(), run.first());
    let min_seconds = (STALL_PERIODS - 0.5) * period;
    let end = tip.map_or(f64::INFINITY, |tip| tip.elapsed);
    let mut stalls = Vec::new();
    let groups = run.samples.chunk_by(|a, b| a.height == b.height);
    for group in groups {
        let (Some(first_sample), Some(last_sample)) = (group.first(), group.last()) else {
            continue;
        };
        let is_starting = first_sample.height == start.height;
        let start_elapsed = first_sample.at - run.origin;
        if is_starting
            || period <= 0.0
            || last_sample.at - first_sample.at < min_seconds
            || start_elapsed >= end
        {
            continue;
        }
        let nearby = (first_sample.at - period)..=(last_sample.at + period);
        stalls.push(Stall {
            from: start_elapsed,
            seconds: last_sample.at - first_sample.at,
            height: first_sample.height,
            timeouts: run.timeouts.iter().filter(|timeout| nearby.contains(&timeout.at)).count(),
            open: last_sample.at >= run.last().at,
        });
    }
    stalls
}

/// Returns the total seconds of stalls before `elapsed`, the seconds since the start of the run.
pub fn stalled_until(stalls: &[Stall], elapsed: f64) -> f64 {
    let stalled_seconds = |stall: &Stall| (elapsed - stall.from).clamp(0.0, stall.seconds);
    stalls.iter().map(stalled_seconds).sum()
}
