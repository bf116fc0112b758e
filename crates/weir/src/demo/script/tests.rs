//! Goal: a run of any duration contains every fault in order and both reorgs. Method: the bounds of
//! `--duration` and the default.

use std::time::Duration;

use simnode::schedule::Schedule;

use super::{NodeEvent, steps, world_options};

#[test]
fn every_event_and_reorg_is_within_the_run() {
    for seconds in [5, 12, 20, 3600] {
        let duration = Duration::from_secs(seconds);
        let steps = steps(duration);
        assert!(steps.is_sorted_by(|left, right| left.at < right.at), "{steps:?}");
        assert!(steps.iter().all(|step| step.at < duration), "{steps:?}");
        assert_eq!(steps[0].event, NodeEvent::Freeze);
        assert_eq!(steps[4].event, NodeEvent::Recover);

        let options = world_options(1, duration);
        let schedule = Schedule::new(&options).unwrap();
        let blocks = duration.div_duration_f64(options.block_time) as u64;
        assert_eq!(schedule.reorgs().len(), 2);
        for reorg in schedule.reorgs() {
            assert!(reorg.at_height > options.height_start, "{reorg:?}");
            assert!(reorg.at_height + 1 < options.height_start + blocks, "{reorg:?}");
        }
    }
}
