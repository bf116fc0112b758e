//! Goal: the view of one upstream is never attributed to another, in any sequence of reloads.
//! Method: configurations without sockets; no poll task ever runs.

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

fn reload(before: &Topology, upstreams: &[&str]) -> Arc<Topology> {
    let config = Arc::new(config(upstreams));
    let counters = counters(&config);
    before.reload(config, &counters)
}

fn no_event() -> OnEvent {
    Rc::new(|_, _| {})
}

#[tokio::test]
async fn an_upstream_that_takes_a_place_does_not_inherit_its_view() {
    let a = start(&["a"]);
    let b = reload(&a, &["b"]);
    let c = reload(&b, &["c"]);
    assert_eq!((a.upstreams[0].place, c.upstreams[0].place), (0, 0), "nothing is tested");
    let tasks = LocalSet::new();
    let _here = tasks.enter();
    let mut watch = Watcher::default();
    watch.follow(&a, &no_event());
    let seen = UpstreamView {
        mark: a.upstreams[0].mark,
        head: Some(9),
        live: true,
        consistent: true,
        at_head: true,
        lag: 0,
    };
    let mut view = ChainView::default();
    view.head = Some(Head { number: 9, hash: [1; 32] });
    view.upstreams = vec![seen];
    a.chains[0].publish(view, Duration::ZERO);
    let state = Arc::clone(&a.chains[0]);
    assert_eq!(a.upstreams[0].in_view(&state.view.load()), Some(seen));
    // The watcher gets only the last of two reloads.
    watch.follow(&c, &no_event());
    assert_eq!(c.upstreams[0].in_view(&state.view.load()), None);
    // The new upstream has its own view after its first poll.
    let tracker = &watch.chains[0].tracker;
    let seen_head = HeadPoll { number: 7, hash: [2; 32], parent: [3; 32], finalized: None };
    let step = tracker.borrow_mut().observe(0, Duration::ZERO, seen_head);
    watch.chains[0].apply(step);
    let known = c.upstreams[0].in_view(&state.view.load()).and_then(|seen| seen.head);
    assert_eq!(known, Some(7));
}

#[tokio::test]
async fn calls_in_flight_still_find_the_view_of_a_removed_upstream() {
    let a = start(&["a", "b"]);
    let c = reload(&a, &["a", "c"]);
    let tasks = LocalSet::new();
    let _here = tasks.enter();
    let mut watch = Watcher::default();
    watch.follow(&a, &no_event());
    let state = Arc::clone(&a.chains[0]);
    let seen_head = HeadPoll { number: 7, hash: [2; 32], parent: [3; 32], finalized: None };
    for place in 0..2 {
        let step = watch.chains[0].tracker.borrow_mut().observe(place, Duration::ZERO, seen_head);
        watch.chains[0].apply(step);
    }
    watch.follow(&c, &no_event());
    let view = state.view.load();
    let heads = [&a.upstreams[0], &a.upstreams[1], &c.upstreams[0]]
        .map(|upstream| upstream.in_view(&view).unwrap().head);
    assert_eq!(heads, [Some(7); 3]);
    assert_eq!(c.upstreams[1].in_view(&view).and_then(|seen| seen.head), None, "it was never seen");
}
