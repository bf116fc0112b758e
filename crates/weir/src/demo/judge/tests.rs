//! Goal: the judge accepts results that match the chain and rejects others. Method: one correct
//! response and three wrong ones.

use std::sync::Arc;
use std::time::Duration;

use simnode::rpc::{Reply, View, respond};
use simnode::world::World;
use tokio::time::Instant;

use super::{Evidence, Judge};
use crate::demo::script;

#[test]
fn wrong_responses_are_rejected() {
    let start = Instant::now();
    let world = World::new(script::world_options(1, Duration::from_secs(20))).unwrap();
    let world = Arc::new(world);
    let head = world.options().height_start;
    let (method, params) = ("eth_getBlockByNumber", "[\"latest\",false]");
    let block_at =
        |head| match respond(&world, &View::honest(head), method, Some(params.as_bytes())) {
            Reply::Result(result) => String::from_utf8(result.to_vec()).unwrap(),
            Reply::Error(error) => panic!("{error:?}"),
        };
    let bodies = [
        block_at(head),
        block_at(head - 20),
        block_at(head).replacen("\"gasUsed\":\"0x", "\"gasUsed\":\"0x1", 1),
        "null".to_owned(),
    ];
    assert_ne!(bodies[2], bodies[0]);

    let (judge, sender) = Judge::start(Arc::clone(&world)).unwrap();
    for (client, result) in (0..).zip(&bodies) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#).into_bytes();
        let params = params.to_owned();
        sender.submit(Evidence { method, params, body, sent: start, received: start, client });
    }
    drop(sender);
    let verdicts = judge.finish();
    let samples = verdicts.samples();
    assert_eq!((verdicts.right(), verdicts.wrong(), verdicts.skipped()), (1, 3, 0), "{samples:?}");
    assert!(samples[0].contains("stale by 18 blocks"), "{samples:?}");
    assert!(samples[1].contains("wrong: "), "{samples:?}");
}
