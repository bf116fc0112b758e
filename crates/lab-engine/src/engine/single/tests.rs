//! Goal: the single calls are the calls of the plan in order, and their responses get the same
//! classes as in a run. Method: plans with known calls, and responses as text.

use lab_model::plan::{Batch, Mix};
use lab_model::samples;

use super::*;

fn calls(plan: &Plan) -> Result<SingleCalls, EngineFault> {
    SingleCalls::new(plan, &Arc::default())
}

fn recorded(method: usize, calls: usize, body: &str) -> RecordedRequest {
    RecordedRequest { method, calls, body: body.as_bytes().into(), id: b"7"[..].into() }
}

#[test]
fn calls_of_a_mix_are_single_even_if_the_plan_makes_batches() {
    let mut plan = samples::open(1.0, 1, &["eth_chainId"]);
    plan.scenarios[0].batch = Some(Batch { probability: 1.0, size: 5 });
    let mut calls = calls(&plan).unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (method, body) = calls.next_call();
        let call: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!((method, call["method"].as_str()), (0, Some("eth_chainId")));
        let id = call["id"].as_u64().unwrap();
        let response = |id| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"0x1"}}"#);
        assert_eq!(calls.classify(200, response(id).as_bytes()), Class::Ok);
        assert_eq!(calls.classify(200, response(id + 1).as_bytes()), Class::WrongId);
        assert_eq!(calls.classify(503, b""), Class::Http5xx);
        ids.push(id);
        calls.advance();
    }
    ids.dedup();
    assert_eq!(ids.len(), 3, "each call has another id");
}

#[test]
fn recorded_calls_follow_each_other_and_recorded_batches_are_rejected() {
    let mut plan = samples::open(1.0, 1, &["a", "b"]);
    let mix = |steps| Mix { name: "recorded".into(), steps };
    plan.mixes = vec![mix(vec![Step::Replay(vec![recorded(0, 1, "A"), recorded(1, 1, "B")])])];
    let mut single = calls(&plan).unwrap();
    let mut bodies = Vec::new();
    for _ in 0..3 {
        bodies.push(single.next_call().1.to_vec());
        assert_eq!(single.classify(200, br#"{"jsonrpc":"2.0","id":7,"result":1}"#), Class::Ok);
        single.advance();
    }
    assert_eq!(bodies, [b"A", b"B", b"A"]);
    plan.mixes = vec![mix(vec![Step::Replay(vec![recorded(0, 2, "[A,B]")])])];
    assert!(matches!(calls(&plan), Err(EngineFault::RecordedBatch { .. })));
}
