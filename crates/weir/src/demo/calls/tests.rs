//! Goal: every generated call has a result, and the mix covers all methods. Method: some thousand
//! calls, each executed on the simulated chain.

use std::collections::BTreeMap;
use std::time::Duration;

use simnode::rpc::{Reply, View, respond};
use simnode::world::World;

use super::{Kind, generate};
use crate::demo::script;

#[test]
fn every_call_has_a_result() {
    let world = World::new(script::world(7, Duration::from_secs(20))).unwrap();
    let head = world.options().height_start + 18;
    let mut methods = BTreeMap::new();
    for index in 0..3000 {
        let call = generate(&world, head, 0, index);
        *methods.entry(call.method).or_insert(0) += 1;
        let params = Some(call.params.as_bytes());
        match respond(&world, &View::honest(head), call.method, params) {
            Reply::Result(result) => assert_ne!(&*result, b"null", "{call:?}"),
            Reply::Error(error) => panic!("{call:?}: {error:?}"),
        }
    }
    assert_eq!(methods.len(), 10, "{methods:?}");
    assert!(methods.values().all(|count| *count > 150), "{methods:?}");
}

#[test]
fn a_seed_gives_the_same_calls() {
    let world = |seed| World::new(script::world(seed, Duration::from_secs(20))).unwrap();
    let (one, same, other) = (world(1), world(1), world(2));
    let calls = |world: &World| (0..50).map(|n| generate(world, 1000, 0, n)).collect::<Vec<_>>();
    assert_eq!(calls(&one), calls(&same));
    assert_ne!(calls(&one), calls(&other));
    assert_eq!(calls(&one)[0].kind, Kind::Head);
    assert_eq!(calls(&one)[1].kind, Kind::History);
}
