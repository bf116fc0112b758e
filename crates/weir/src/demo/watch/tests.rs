//! Goal: each change of a node's state becomes one event. Method: pairs of statuses.

use super::NodeState::{Ejected, Healthy, Lagging, Probing};
use super::{Chain, Node, NodeState, describe_changes};

fn chain(states: [NodeState; 3], readmissions: u64, reorgs: u64) -> Chain {
    let node = |state| Node {
        state,
        head: Some(7),
        attempts: 0,
        failed: 0,
        in_flight: 0,
        readmissions: 0,
    };
    let mut nodes: Vec<_> = states.into_iter().map(node).collect();
    nodes[2].readmissions = readmissions;
    Chain { head: None, reorgs, reorg_depth_max: 0, upstreams: nodes }
}

#[test]
fn each_change_has_its_description() {
    let healthy = chain([Healthy, Healthy, Healthy], 0, 0);
    let lagging = chain([Healthy, Healthy, Lagging], 0, 0);
    let ejected = chain([Healthy, Healthy, Ejected], 0, 0);
    let probing = chain([Healthy, Healthy, Probing], 0, 0);
    let readmitted = chain([Healthy, Healthy, Healthy], 1, 0);
    let ejected_again = chain([Healthy, Healthy, Ejected], 1, 0);
    let reorganised = chain([Healthy, Healthy, Healthy], 0, 1);

    assert!(describe_changes(&healthy, &healthy).is_empty());
    assert_eq!(
        describe_changes(&healthy, &lagging),
        ["sends node-3 no calls at the head: it lags"]
    );
    assert_eq!(describe_changes(&lagging, &healthy), ["sends node-3 all calls again"]);
    assert_eq!(describe_changes(&lagging, &ejected), ["ejects node-3"]);
    assert!(describe_changes(&ejected, &probing).is_empty());
    assert!(describe_changes(&probing, &ejected).is_empty());
    assert_eq!(describe_changes(&probing, &readmitted), ["readmits node-3"]);
    assert_eq!(describe_changes(&ejected, &ejected_again), ["readmits node-3", "ejects node-3"]);
    assert_eq!(describe_changes(&healthy, &reorganised).len(), 1);
    assert_eq!((ejected_again.ejections(), ejected_again.readmissions()), (2, 1));
    assert_eq!((readmitted.ejections(), readmitted.readmissions()), (1, 1));
}
