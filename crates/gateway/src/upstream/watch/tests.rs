//! Goal: the view of an upstream is never attributed to another upstream, in any sequence of
//! reloads. The *view index* of an upstream is its index in the views of its chain. Method:
//! configurations without sockets; no poll task ever runs.

use std::path::Path;

use tokio::task::LocalSet;

use super::*;
use crate::config::Config;
use crate::metrics::thread::{Counters, Labels};
use crate::policy::heads::{ChainView, Head};

fn config(upstreams: &[&str]) -> Config {
    let upstream =
        |name: &&str| format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{name}.local:1\"\n");
    let upstreams: String = upstreams.iter().map(upstream).collect();
    let text = format!("[server]\nthreads = 1\n{upstreams}");
    Config::from_text("test", &text, Path::new("/"), &|_| None)
        .unwrap_or_else(|faults| panic!("{faults}"))
}

fn counters(config: &Config) -> [Arc<Counters>; 1] {
    [Arc::new(Counters::new(&Labels::of(config)))]
}

fn start(upstreams: &[&str]) -> Arc<Topology> {
    let config = Arc::new(config(upstreams));
    let counters = counters(&config);
    Topology::new(config, &counters, Vec::new())
}

fn reload(previous: &Topology, upstreams: &[&str]) -> Arc<Topology> {
    let config = Arc::new(config(upstreams));
    let counters = counters(&config);
    previous.reload(config, &counters)
}

fn ignore_events() -> OnEvent {
    Rc::new(|_, _| {})
}

#[tokio::test]
async fn an_upstream_that_reuses_a_view_index_does_not_inherit_the_view() {
    let initial = start(&["a"]);
    let second = reload(&initial, &["b"]);
    let third = reload(&second, &["c"]);
    assert_eq!(
        (initial.upstreams[0].view_index, third.upstreams[0].view_index),
        (0, 0),
        "the test needs a reused index"
    );
    let tasks = LocalSet::new();
    let _entered = tasks.enter();
    let mut watch = Watcher::default();
    watch.set_topology(&initial, &ignore_events());
    let upstream_view = UpstreamView {
        instance_id: initial.upstreams[0].instance_id,
        head: Some(9),
        live: true,
        consistent: true,
        syncing: false,
        at_head: true,
        lag: 0,
    };
    let mut view = ChainView::default();
    view.head = Some(Head { number: 9, hash: [1; 32] });
    view.upstreams = vec![upstream_view];
    initial.chains[0].publish(view, Duration::ZERO);
    let state = Arc::clone(&initial.chains[0]);
    assert_eq!(initial.upstreams[0].in_view(&state.view.load()), Some(upstream_view));
    // The watcher gets only the last of two reloads.
    watch.set_topology(&third, &ignore_events());
    assert_eq!(third.upstreams[0].in_view(&state.view.load()), None);
    // The new upstream has its own view after its first poll.
    let tracker = &watch.chains[0].tracker;
    let polled_head = HeadPoll { number: 7, hash: [2; 32], parent: [3; 32], finalized: None };
    let step = tracker.borrow_mut().observe(0, Duration::ZERO, polled_head);
    watch.chains[0].apply(step);
    let new_upstream_head =
        third.upstreams[0].in_view(&state.view.load()).and_then(|upstream_view| upstream_view.head);
    assert_eq!(new_upstream_head, Some(7));
}

#[tokio::test]
async fn calls_in_flight_still_find_the_view_of_a_removed_upstream() {
    let initial = start(&["a", "b"]);
    let reloaded = reload(&initial, &["a", "c"]);
    let tasks = LocalSet::new();
    let _entered = tasks.enter();
    let mut watch = Watcher::default();
    watch.set_topology(&initial, &ignore_events());
    let state = Arc::clone(&initial.chains[0]);
    let polled_head = HeadPoll { number: 7, hash: [2; 32], parent: [3; 32], finalized: None };
    for view_index in 0..2 {
        let step =
            watch.chains[0].tracker.borrow_mut().observe(view_index, Duration::ZERO, polled_head);
        watch.chains[0].apply(step);
    }
    watch.set_topology(&reloaded, &ignore_events());
    let view = state.view.load();
    let heads = [&initial.upstreams[0], &initial.upstreams[1], &reloaded.upstreams[0]]
        .map(|upstream| upstream.in_view(&view).unwrap().head);
    assert_eq!(heads, [Some(7); 3]);
    assert_eq!(
        reloaded.upstreams[1].in_view(&view).and_then(|upstream_view| upstream_view.head),
        None,
        "the upstream was never polled"
    );
}
