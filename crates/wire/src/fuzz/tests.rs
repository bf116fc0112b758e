//! Goal: each check runs the same inputs of the fuzzer on each machine, and the seed inputs are
//! calls and responses. Method: a fixed seed and number of inputs. A failing input becomes a case of
//! `regressions`.

use super::*;

#[test]
fn the_seed_inputs_are_calls_and_no_property_panics() {
    let seeds = seeds();
    assert!(seeds.len() > 20, "only {} seeds", seeds.len());
    let calls = seeds.iter().filter(|seed| {
        matches!(decode(seed, &Limits::DEFAULT), Ok(Body::Single(Ok(_)) | Body::Batch(_)))
    });
    assert!(calls.count() > 10, "most seeds are no calls");
    seeds.iter().for_each(|seed| jsonrpc(seed));
}

#[test]
fn the_properties_hold_for_mutations() {
    let random_seed = 20_261_120;
    mutate(random_seed, &mut |inputs| inputs < 50_000);
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
