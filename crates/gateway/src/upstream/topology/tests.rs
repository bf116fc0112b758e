//! Goal: a reload keeps exactly the state that is still valid, and never confuses two upstreams or
//! two chains. The headers of a request are correct. An upstream has a *view index* in the views of
//! its chain, and a *cache number* that identifies it in cache entries. Method: successive
//! configurations in text, without sockets or a gateway.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::config::Config;
use crate::io::random::Random;
use crate::metrics::thread::{Counters, Labels};
use crate::policy::heads::{ChainView, Head, UpstreamView};
use crate::upstream::request_head::build_call_head;
use crate::upstream::thread::Upstreams;
use crate::upstream::topology::{NO_UPSTREAM, Topology};

fn config(text: &str) -> Config {
    let text = format!("[server]\nthreads = 1\n{text}");
    Config::from_text("test", &text, Path::new("/"), &|_| None)
        .unwrap_or_else(|faults| panic!("{faults}"))
}

fn counters(config: &Config) -> Arc<Counters> {
    Arc::new(Counters::new(&Labels::of(config)))
}

fn start(text: &str) -> Arc<Topology> {
    let config = Arc::new(config(text));
    let counters = [counters(&config)];
    Topology::new(config, &counters, Vec::new())
}

fn reload(previous: &Topology, text: &str) -> Arc<Topology> {
    let config = Arc::new(config(text));
    let counters = [counters(&config)];
    previous.reload(config, &counters)
}

fn upstream(name: &str, keys: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{name}.local:1\"\n{keys}\n")
}

/// Returns a view in which this many upstreams, with their initial instance ids, are at the head.
fn view(upstreams: usize) -> ChainView {
    let mut view = ChainView::default();
    view.head = Some(Head { number: 9, hash: [1; 32] });
    let upstream_view = |view_index: usize| {
        let instance_id = view_index as u64 + 1;
        UpstreamView {
            instance_id,
            head: Some(9),
            lag: 0,
            live: true,
            consistent: true,
            syncing: false,
            at_head: true,
        }
    };
    view.upstreams = (0..upstreams).map(upstream_view).collect();
    view
}

#[test]
fn health_survives_a_change_of_order_or_weight_but_not_of_the_url() {
    let previous = start(&(upstream("a", "") + &upstream("b", "") + &upstream("c", "")));
    // The third failed poll ejects the upstream.
    for _ in 0..8 {
        previous.update_health(1, |health, now| health.record_failed_poll(now, 0));
    }
    assert_eq!(previous.upstreams[1].ejections.load(Ordering::Relaxed), 1);
    let moved_c = upstream("c", "").replace("c.local", "d.local");
    let reloaded =
        reload(&previous, &(upstream("b", "weight = 5") + &moved_c + &upstream("a", "")));
    let [upstream_b, upstream_c, upstream_a] = &reloaded.upstreams[..] else {
        panic!("three upstreams")
    };
    assert!(
        upstream_b.is_same_as(&previous.upstreams[1])
            && upstream_a.is_same_as(&previous.upstreams[0])
            && !upstream_c.is_same_as(&previous.upstreams[2])
    );
    assert_eq!(
        (upstream_b.view_index, upstream_a.view_index),
        (1, 0),
        "calls in flight look them up there"
    );
    assert_eq!(upstream_c.view_index, 3, "calls in flight still look up the former c");
    assert_eq!(upstream_b.config.weight, 5);
    assert_eq!(upstream_b.ejections.load(Ordering::Relaxed), 1);
    let reloaded_twice = reload(&reloaded, &(upstream("a", "") + &upstream("e", "")));
    let upstream_e = &reloaded_twice.upstreams[1];
    assert_eq!(upstream_e.view_index, 2, "a view index is reused one reload later");
    // The watcher may not know the last reloads yet, and still publish views of `previous`.
    let view = view(3);
    assert_eq!(upstream_e.in_view(&view), None, "the view belongs to another upstream");
    assert_eq!(
        previous.upstreams[2].in_view(&view).map(|upstream_view| upstream_view.instance_id),
        Some(previous.upstreams[2].instance_id)
    );
    assert_eq!(reloaded_twice.upstreams[0].in_view(&view), previous.upstreams[0].in_view(&view));
}

#[test]
fn a_cache_number_identifies_an_upstream_even_if_its_index_changes() {
    let previous = start(&(upstream("a", "") + &upstream("b", "")));
    let (number_a, number_b) =
        (previous.upstreams[0].cache_number, previous.upstreams[1].cache_number);
    let reloaded = reload(&previous, &(upstream("c", "") + &upstream("b", "")));
    assert_eq!(reloaded.find_upstream_by_number(number_b), Some(1));
    assert_eq!(reloaded.find_upstream_by_number(number_a), None, "the upstream was removed");
    assert_eq!(reloaded.find_upstream_by_number(NO_UPSTREAM), None);
    let back = reload(&reloaded, &upstream("a", ""));
    assert_ne!(
        back.upstreams[0].cache_number, number_a,
        "another upstream may have had the name meanwhile"
    );
    let mut topology = back;
    for round in 0..2 {
        let number = topology.by_number.len();
        topology = reload(&topology, &upstream(&format!("n{round}"), ""));
        assert_eq!(topology.by_number.len(), number + 1);
    }
}

#[test]
fn without_free_cache_numbers_new_upstreams_get_none() {
    let previous = start(&upstream("a", ""));
    let mut numbers = previous.by_number.clone();
    numbers.resize(usize::from(NO_UPSTREAM) - 1, None);
    assert_eq!(super::build::assign_cache_number(&mut numbers), NO_UPSTREAM - 1);
    assert_eq!(super::build::assign_cache_number(&mut numbers), NO_UPSTREAM);
    assert_eq!(numbers.len(), usize::from(NO_UPSTREAM));
}

#[test]
fn a_chain_with_another_id_is_another_chain_even_with_the_same_name() {
    let text = |id: u32| format!("[chain.x]\nid = {id}\n{}", upstream("a", ""));
    let previous = start(&text(1));
    let unchanged = reload(&previous, &text(1));
    assert!(Arc::ptr_eq(&previous.chains[0], &unchanged.chains[0]));
    assert_eq!(&*unchanged.chains[0].key, "x");
    let with_other_id = reload(&unchanged, &text(2));
    assert!(!Arc::ptr_eq(&unchanged.chains[0], &with_other_id.chains[0]));
    assert!(
        !with_other_id.upstreams[0].is_same_as(&unchanged.upstreams[0]),
        "its former health belongs to another chain"
    );
    let with_first_id = reload(&with_other_id, &text(1));
    let keys =
        [&unchanged.chains[0].key, &with_other_id.chains[0].key, &with_first_id.chains[0].key];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
}

#[test]
fn a_change_of_health_updates_every_configuration_in_use() {
    let previous = start(&(upstream("a", "") + &upstream("b", "")));
    previous.chains[0].publish(view(2), Duration::ZERO);
    previous.renew_candidates(0);
    let reloaded = reload(&previous, &(upstream("b", "") + &upstream("a", "")));
    let candidates =
        |topology: &Topology| topology.groups[0].candidates.load().group_indices.clone();
    assert_eq!((candidates(&previous), candidates(&reloaded)), (vec![0, 1], vec![0, 1]));
    for _ in 0..8 {
        reloaded.update_health(0, |health, now| health.record_failed_poll(now, 0));
    }
    assert_eq!((candidates(&previous), candidates(&reloaded)), (vec![0], vec![1]));
    drop(reloaded);
    assert_eq!(previous.in_use.list().len(), 1, "an unused topology is dropped");
}

#[test]
fn a_new_upstream_waits_for_its_first_poll_if_other_upstreams_exist() {
    let previous = start(&upstream("a", ""));
    previous.chains[0].publish(view(1), Duration::ZERO);
    let reloaded = reload(&previous, &(upstream("new", "") + &upstream("a", "")));
    assert_eq!(reloaded.groups[0].candidates.load().group_indices, [1]);
    let only_new = reload(&reloaded, &upstream("other", ""));
    assert_eq!(only_new.groups[0].candidates.load().group_indices, [0]);
}

#[test]
fn a_thread_keeps_connections_with_unchanged_settings() {
    let previous = start(&(upstream("a", "") + &upstream("b", "") + &upstream("c", "")));
    let upstreams =
        Upstreams::new(Arc::clone(&previous), counters(&previous.config), Random::new(1, 0));
    let text = upstream("c", "connections_max = 3") + &upstream("b", "weight = 2");
    let reloaded = reload(&previous, &text);
    let counters = counters(&reloaded.config);
    let reloaded = upstreams.reload(reloaded, counters);
    assert!(std::rc::Rc::ptr_eq(&reloaded.local[1], &upstreams.local[1]));
    assert!(
        !std::rc::Rc::ptr_eq(&reloaded.local[0], &upstreams.local[2]),
        "connections_max has changed"
    );
    let closed = |index: usize| upstreams.local[index].http.is_closed();
    assert_eq!([closed(0), closed(1), closed(2)], [true, false, true]);
    assert!(
        reloaded.thread.next_id() < upstreams.thread.next_id(),
        "ids continue, so that no id is used twice"
    );
}

#[test]
fn credentials_are_sent_once_and_only_to_their_address() {
    let upstream = |lines: &str| {
        let text = format!("[[upstream]]\n{lines}\n");
        String::from_utf8(build_call_head(&config(&text).upstreams[0]))
            .unwrap()
            .to_ascii_lowercase()
    };
    let count = |head: &str| head.matches("authorization: ").count();
    let by_url = upstream("url = \"http://user:pass@127.0.0.1:1\"");
    assert!(by_url.contains("authorization: basic dxnlcjpwyxnz\r\n"), "{by_url}");
    assert_eq!(count(&by_url), 1);
    let by_header =
        upstream("url = \"http://127.0.0.1:1\"\nheaders = { authorization = \"Bearer x\" }");
    assert_eq!(count(&by_header), 1);
    let other = upstream("url = \"http://127.0.0.1:1\"\nws_url = \"ws://user:pass@127.0.0.1:2\"");
    assert_eq!(count(&other), 0, "{other}");
}
