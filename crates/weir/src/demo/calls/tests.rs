//! Goal: every generated call has a result, and the mix covers all methods. Method: some thousand
//! calls, each executed on the simulated chain.

use std::collections::BTreeMap;
use std::time::Duration;

use simnode::rpc::{Reply, View, respond};
use simnode::world::World;

use super::{CallKind, generate};
use crate::demo::script;

#[test]
fn every_call_has_a_result() {
    let world = World::new(script::world_options(7, Duration::from_secs(20))).unwrap();
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
    let world = |seed| World::new(script::world_options(seed, Duration::from_secs(20))).unwrap();
    let (first, same_seed, other_seed) = (world(1), world(1), world(2));
    let calls =
        |world: &World| (0..50).map(|index| generate(world, 1000, 0, index)).collect::<Vec<_>>();
    assert_eq!(calls(&first), calls(&same_seed));
    assert_ne!(calls(&first), calls(&other_seed));
    assert_eq!(calls(&first)[0].kind, CallKind::Head);
    assert_eq!(calls(&first)[1].kind, CallKind::History);
}
