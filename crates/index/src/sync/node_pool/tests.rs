//! Goal: the last error of a node names the lowest block that it lacks. Method: failures and
//! successes recorded by hand.

use super::*;
use crate::planner::range::SyncEnd;
use crate::store::Settings;
use crate::sync::Progress;
use crate::verify::Level;

/// An observer that ignores all reports.
pub(in crate::sync) struct IgnoreReports;

impl Observer for IgnoreReports {
    fn on_progress(&self, _: &Progress) {}
    fn on_event(&self, _: &Event) {}
}

/// The options of a sync from one node, which no test calls.
pub(in crate::sync) fn options() -> Options {
    let url = settings::url::NodeUrl::parse("http://127.0.0.1:1").unwrap();
    Options {
        nodes: vec![Arc::new(Endpoint::from(url))],
        start: None,
        end: SyncEnd::At(50),
        contents: "blocks".parse().unwrap(),
        verify: Level::Full,
        concurrency: 1,
        batch_max: 10,
        settings: Settings::default(),
        patience: None,
    }
}

#[test]
fn the_lowest_missing_block_is_named_until_it_is_fetched() {
    let (options, stop) = (options(), AtomicBool::new(false));
    let nodes = NodePool::new(&options, &IgnoreReports, &stop);
    let fail = |block, reason| nodes.record_failure(0, (block, reason), Instant::now(), None);
    let last_error = || nodes.nodes[0].state.lock().last_error.clone().unwrap();
    for (block, reason, expected) in [
        (Some(19), "19", "19"),
        (Some(9), "9", "9"),
        (Some(29), "29", "9"),
        (None, "refused", "refused"),
        (Some(29), "29", "29"),
        (Some(9), "9", "9"),
    ] {
        fail(block, reason);
        assert_eq!(last_error(), expected);
    }
    nodes.record_fetch(0, (20, 28));
    fail(Some(29), "29");
    assert_eq!(last_error(), "9");
    nodes.record_fetch(0, (6, 9));
    fail(Some(29), "29");
    assert_eq!(last_error(), "29");
}
