//! Goal: each check runs the fuzzer for a second, and the seed inputs are calls and responses.
//! Method: a fixed seed and a time limit. A failing input becomes a case of `regressions`.
use std::time::{Duration, Instant};

use super::*;

#[test]
fn the_properties_hold_for_the_seed_inputs() {
    let seeds = seeds();
    assert!(seeds.len() > 20, "only {} seeds", seeds.len());
    let calls = seeds.iter().filter(|seed| {
        matches!(decode(seed, &Limits::DEFAULT), Ok(Body::Single(Ok(_)) | Body::Batch(_)))
    });
    assert!(calls.count() > 10, "most seeds are no calls");
    seeds.iter().for_each(|seed| jsonrpc(seed));
}

#[test]
fn the_properties_hold_for_one_second_of_mutations() {
    let start = Instant::now();
    let random_seed = 20_261_120;
    let tried = mutate(random_seed, &mut |_| start.elapsed() < Duration::from_secs(1));
    assert!(tried > 100, "only {tried} inputs in a second");
}

#[test]
fn regressions() {
    for input in [
        // Empty parameters of a method with a default block at position 0 or beyond.
        r#"{"method":"eth_call","params":[]}"#,
        r#"{"method":"eth_call"}"#,
        r#"{"method":"eth_call","params":null}"#,
    ] {
        jsonrpc(input.as_bytes());
    }
}
