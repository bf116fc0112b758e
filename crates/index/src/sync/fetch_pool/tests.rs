//! Goal: of several blocks that cannot be fetched, the sync names the lowest, whichever worker
//! fails first. Method: errors recorded in the order of their blocks and in reverse.

use std::sync::atomic::AtomicBool;

use super::super::node_pool::tests::{IgnoreReports, options};
use super::*;
use crate::contents::{Chain, Metadata};

#[test]
fn the_lowest_block_that_fails_ends_the_run() {
    let (options, stop) = (options(), AtomicBool::new(false));
    let nodes = NodePool::new(&options, &IgnoreReports, &stop);
    let metadata = Metadata {
        chain: Chain { family: "ethereum".to_owned(), id: "1".to_owned(), genesis_hash: [7; 32] },
        contents: options.contents,
        verification: "full".to_owned(),
        differing_forms: Vec::new(),
        untested_forms: Vec::new(),
    };
    let plan = FetchPlan::new(&metadata, &options);
    for order in [[9, 19, 29], [29, 19, 9], [19, 9, 29]] {
        let run = Run {
            state: Mutex::new(RunState {
                first_unclaimed: 30,
                last: 50,
                next: 9,
                fetched: BTreeMap::new(),
                fetched_bytes: 0,
                is_ended: false,
                failure: None,
            }),
            changed: Condvar::new(),
            nodes: &nodes,
            plan: &plan,
            batch_size: &Mutex::new(BatchSize::new(10)),
            finalized: 50,
        };
        for block in order {
            // A worker that fetches a lower block goes on after the failure of another worker.
            let fails_first = order[0] == block;
            assert!(fails_first || run.is_over(&run.state.lock(), block) == (block > order[0]));
            run.fail(block, SyncError::Mismatch(format!("block {block}")));
        }
        assert_eq!(run.claim(), None);
        let error = run.take_next().map(|blocks| blocks.map(|blocks| blocks.len())).unwrap_err();
        assert_eq!(error.to_string(), "block 9", "{order:?}");
    }
}
