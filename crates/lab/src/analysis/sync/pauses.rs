//! Where a course does not move: stalls, and the tip, where there is nothing left to sync.

use lab_model::results::study::{Stall, Tip};

use super::Course;

/// A stall is a height that stands for so many sample periods: 4 min at one sample a minute.
pub const STALL_PERIODS: f64 = 4.0;
/// The tip is judged over so many samples.
pub const TIP_SAMPLES: usize = 30;
/// At the tip a course grows at most so many times as fast as blocks are made: 60 blocks in 30
/// one-minute samples where a block is made each minute.
const TIP_FACTOR: f64 = 2.0;
/// Stalls that are kept of one course; further ones are counted.
pub const STALLS_MAX: usize = 200;

/// Heights that stand for four sample periods or more, once the course has begun to grow: before
/// that it starts. Sample periods vary by a part of themselves, hence half a period of slack. At
/// the tip blocks are waited for, so that stalls end there.
pub fn stalls(course: &Course, tip: Option<Tip>) -> Vec<Stall> {
    let (period, start) = (course.period(), course.first());
    let least = (STALL_PERIODS - 0.5) * period;
    let end = tip.map_or(f64::INFINITY, |tip| tip.elapsed);
    let mut found = Vec::new();
    let groups = course.samples.chunk_by(|a, b| a.height == b.height);
    for group in groups {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let starting = first.height == start.height;
        let from = first.at - course.origin;
        if starting || period <= 0.0 || last.at - first.at < least || from >= end {
            continue;
        }
        let near = (first.at - period)..=(last.at + period);
        found.push(Stall {
            from,
            seconds: last.at - first.at,
            height: first.height,
            timeouts: course.timeouts.iter().filter(|one| near.contains(&one.at)).count(),
            open: last.at >= course.last().at,
        });
    }
    found
}

/// The sample from which on, to the end of the course, every 30 samples bring at most twice the
/// blocks that are made in their time. `block_time` is in seconds. A course that does not grow at
/// all has halted, which says nothing of the tip: there must be two samples at least that bring
/// blocks. None if fewer than 30 samples follow.
pub fn tip(course: &Course, block_time: f64) -> Option<Tip> {
    let samples = &course.samples;
    let last = samples.len().checked_sub(TIP_SAMPLES + 1)?;
    let slow = |place: &usize| {
        let (from, to) = (&samples[*place], &samples[place + TIP_SAMPLES]);
        let most = (TIP_FACTOR * (to.at - from.at) / block_time).round().max(1.0);
        (to.height - from.height) as f64 <= most
    };
    let place = (0..=last).rev().take_while(slow).last()?;
    let tail = &samples[place..];
    let growing = tail.windows(2).filter(|pair| pair[1].height > pair[0].height).count();
    let at = tail.first().filter(|_| growing >= 2)?;
    Some(Tip { elapsed: at.at - course.origin, height: at.height })
}

/// Seconds of stalls before an elapsed time.
pub fn stalled_until(stalls: &[Stall], elapsed: f64) -> f64 {
    let part = |stall: &Stall| (elapsed - stall.from).clamp(0.0, stall.seconds);
    stalls.iter().map(part).sum()
}
