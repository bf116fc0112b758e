//! Goal: each change of a node's state becomes one event. Method: pairs of statuses.

use super::{Chain, Node, changes};

fn chain(states: [&str; 3], readmissions: u64, reorgs: u64) -> Chain {
    let node = |state: &str| Node {
        state: state.to_owned(),
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
fn changes_in_words() {
    let well = chain(["healthy", "healthy", "healthy"], 0, 0);
    let lagging = chain(["healthy", "healthy", "lagging"], 0, 0);
    let out = chain(["healthy", "healthy", "ejected"], 0, 0);
    let probing = chain(["healthy", "healthy", "probing"], 0, 0);
    let back = chain(["healthy", "healthy", "healthy"], 1, 0);
    let out_again = chain(["healthy", "healthy", "ejected"], 1, 0);
    let reorganised = chain(["healthy", "healthy", "healthy"], 0, 1);

    assert!(changes(&well, &well).is_empty());
    assert_eq!(changes(&well, &lagging), ["asks node-3 nothing about the head: it is behind"]);
    assert_eq!(changes(&lagging, &well), ["asks node-3 everything again"]);
    assert_eq!(changes(&lagging, &out), ["takes node-3 out"]);
    assert!(changes(&out, &probing).is_empty());
    assert!(changes(&probing, &out).is_empty());
    assert_eq!(changes(&probing, &back), ["takes node-3 back"]);
    assert_eq!(changes(&out, &out_again), ["takes node-3 back", "takes node-3 out"]);
    assert_eq!(changes(&well, &reorganised).len(), 1);
    assert_eq!((out_again.ejections(), out_again.readmissions()), (2, 1));
    assert_eq!((back.ejections(), back.readmissions()), (1, 1));
}
