//! Goal: the demo's judge clears what the chain bears out and catches what it does not. Method: one
//! true answer and three planted ones.

use std::sync::Arc;
use std::time::Duration;

use simnode::rpc::{Reply, View, respond};
use simnode::world::World;
use tokio::time::Instant;

use super::{Evidence, Judge};
use crate::demo::script;

#[test]
fn planted_answers_are_caught() {
    let begun = Instant::now();
    let world = World::new(script::world(1, Duration::from_secs(20))).unwrap();
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

    let (judge, bench) = Judge::start(Arc::clone(&world)).unwrap();
    for (client, result) in (0..).zip(&bodies) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#).into_bytes();
        let params = params.to_owned();
        bench.bring(Evidence { method, params, body, sent: begun, received: begun, client });
    }
    drop(bench);
    let judged = judge.finish();
    let shown = judged.shown();
    assert_eq!((judged.right(), judged.wrong(), judged.passed_over()), (1, 3, 0), "{shown:?}");
    assert!(shown[0].contains("stale by 18 blocks"), "{shown:?}");
    assert!(shown[1].contains("wrong: "), "{shown:?}");
}
