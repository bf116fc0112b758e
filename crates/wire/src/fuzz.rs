//! Properties that hold for any bytes, as functions that panic if a property does not hold.
//!
//! The fuzzer `fuzz/src/jsonrpc.rs` calls these functions for as long as its user wants. Tests call
//! them for a fixed number of inputs. The functions are not part of the crate's interface.

use crate::block::{self, BlockFormat, BlockRef, ResponseBlock};
use crate::block_param;
use crate::call::{self, Body, Call, Limits, Params, decode};
use crate::family::Family;
use crate::filter::LogFilter;
use crate::json::envelope::EnvelopeScanner;
use crate::json::{DEPTH_CEILING, walk};
use crate::key::{KeyParts, write_key};
use crate::method::methods_of;
use crate::response::{self, Outcome, Response, ResponseError, Responses};

#[cfg(test)]
mod tests;

/// Parses bytes as a client's body and as a node's response.
///
/// # Panics
/// If a property does not hold.
pub fn jsonrpc(bytes: &[u8]) {
    let limits = Limits { body_bytes_max: 1 << 20, batch_calls_max: 50, ..Limits::DEFAULT };
    match decode(bytes, &limits) {
        Ok(Body::Single(Ok(call))) => check_call(&call),
        Ok(Body::Batch(items)) => {
            assert!((1..=50).contains(&items.len()), "a batch of {} passed", items.len());
            items.iter().flatten().for_each(check_call);
        }
        Ok(Body::Single(Err(rejection))) | Err(rejection) => {
            assert!(rejection.message.len() < 200, "a rejection repeats the body: {rejection}");
        }
    }
    check_responses(bytes);
    check_envelope(bytes);
    // The iterators end on any bytes.
    let _ = walk::elements(bytes).count() + walk::members(bytes).count();
}

/// Checks that a call that is written for a node parses as the same call with the same key.
fn check_call(call: &Call<'_>) {
    let mut text = Vec::new();
    call::write_call(&mut text, b"77", &call.method, call.params.raw());
    let Ok(Body::Single(Ok(reparsed))) = decode(&text, &Limits::DEFAULT) else {
        panic!("a written call is rejected: {}", String::from_utf8_lossy(&text))
    };
    assert_eq!((&reparsed.method, reparsed.params), (&call.method, call.params), "a call changed");
    for family in Family::ALL {
        // The two additional methods have parameters of many types.
        for method in [&*call.method, "eth_getLogs", "eth_call"] {
            let Some(method) = methods_of(family).method(method) else { continue };
            let mut key = Vec::new();
            let mut reparsed_key = Vec::new();
            let parts = KeyParts { chain: "c", method, params: &call.params, block: None };
            let result = write_key(&mut key, &parts);
            let reparsed_result =
                write_key(&mut reparsed_key, &KeyParts { params: &reparsed.params, ..parts });
            assert!(
                result == reparsed_result && key == reparsed_key,
                "a key depends on the envelope"
            );
            if let Ok(Some((_, span))) = method.block_ref(&call.params) {
                check_replaced_block(&call.params, span, method.block.map(|block| block.format));
            }
        }
    }
    if let Ok(filter) = LogFilter::from_params(&call.params) {
        let mut params = Vec::new();
        filter.write_params(&mut params, 5, 9);
        let filter = LogFilter::from_params(&Params::Array(&params)).expect("it was just written");
        assert_eq!(filter.from, Some(BlockRef::Number(5)), "a bound was lost");
        assert_eq!(filter.to, Some(BlockRef::Number(9)), "a bound was lost");
    }
}

/// Checks that parameters with a replaced block are valid JSON. `span` is the byte range of the
/// block parameter.
fn check_replaced_block(
    params: &Params<'_>,
    span: std::ops::Range<usize>,
    format: Option<BlockFormat>,
) {
    let mut replaced = Vec::new();
    let format = format.expect("a span comes from a row with a block");
    block_param::write_params_at(&mut replaced, params, span, format, 4096);
    let result = crate::json::validate(&replaced, Limits::DEFAULT.depth_max);
    assert!(result.is_ok(), "not json: {}", String::from_utf8_lossy(&replaced));
}

/// Checks that a response that is written for a client parses as the same response.
fn check_responses(bytes: &[u8]) {
    // At most 128 levels of nesting and 50 responses.
    let responses = match response::parse_responses(bytes, 128, 50) {
        Ok(Responses::Single(response)) => vec![response],
        Ok(Responses::Batch(list)) => list.into_iter().flatten().collect(),
        Err(_) => return,
    };
    for parsed in responses {
        let mut text = Vec::new();
        match &parsed.outcome {
            Outcome::Result(raw) => {
                for location in
                    [ResponseBlock::Itself, ResponseBlock::Members, ResponseBlock::ElementMembers]
                {
                    let _ = block::read_response_blocks(location, raw);
                }
                response::write_result(&mut text, parsed.id, raw);
            }
            Outcome::Error { raw, .. } => response::write_error_raw(&mut text, parsed.id, raw),
        }
        assert_eq!(response::parse_response(&text, 128), Ok(parsed), "a response changed");
    }
}

/// Checks that the envelope of a text does not depend on the size of its chunks. An envelope is the
/// text with placeholders for its results (`json/envelope.rs`). Also checks that parsing the
/// envelope has the same outcome as parsing the text.
pub(crate) fn check_envelope(bytes: &[u8]) {
    let mut whole_scanner = EnvelopeScanner::default();
    whole_scanner.feed(bytes);
    for chunk_bytes in [1, 3, 64, 97] {
        let mut chunked_scanner = EnvelopeScanner::default();
        bytes.chunks(chunk_bytes).for_each(|chunk| chunked_scanner.feed(chunk));
        assert_eq!(
            whole_scanner.envelope(),
            chunked_scanner.envelope(),
            "chunks of {chunk_bytes} make a difference"
        );
    }
    let envelope = whole_scanner.envelope();
    let parse_single =
        |text| response::parse_response(text, DEPTH_CEILING).map(|response| summarize(&response));
    assert_eq!(
        without_offset(parse_single(bytes)),
        without_offset(parse_single(envelope)),
        "{}",
        envelope.escape_ascii()
    );
    for responses_max in [0, 1, 2, 50] {
        let parse_batch =
            |text| match response::parse_responses(text, DEPTH_CEILING, responses_max)? {
                Responses::Single(response) => Ok(vec![without_offset(Ok(summarize(&response)))]),
                Responses::Batch(list) => Ok(list
                    .into_iter()
                    .map(|response| without_offset(response.map(|response| summarize(&response))))
                    .collect()),
            };
        assert_eq!(
            without_offset(parse_batch(bytes)),
            without_offset(parse_batch(envelope)),
            "{}",
            envelope.escape_ascii()
        );
    }
}

/// Describes a response. Of a result, the description states only if it is null.
fn summarize(response: &Response<'_>) -> String {
    match &response.outcome {
        Outcome::Result(raw) => format!("{:?} result {}", response.id, *raw == b"null"),
        error @ Outcome::Error { .. } => format!("{:?} {error:?}", response.id),
    }
}

/// Reduces an error to its variant, because the offsets of errors differ between a text and its
/// envelope.
fn without_offset<T>(
    parsed: Result<T, ResponseError>,
) -> Result<T, std::mem::Discriminant<ResponseError>> {
    parsed.map_err(|error| std::mem::discriminant(&error))
}

/// Returns the seed inputs: recorded traffic and difficult cases.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        r#"{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{"to":"0xAb","data":"0x"},"latest"]}"#,
        r#"[{"id":"\u0041","method":"eth_getLogs","params":[{"fromBlock":"0x1","address":["0xa"],"topics":[null,["0xb"]]}]},5]"#,
        r#"{"method":"hmyv2_getBlockByNumber","params":[-1,{"fullTx":true}],"id":1e400}"#,
        r#"{"id":null,"error":{"code":3,"message":"execution reverted","data":"0x"}}"#,
        r#"[{"id":2,"result":[{"blockHash":"0x00","blockNumber":"0x1"}]},{"id":1,"error":{"code":1,"message":"é\ud83d\ude00"}}]"#,
        r#"{"method":"eth_getBalance","params":["0xab",{"blockHash":"0xd226371d0b1551adb03fb52b71f08e3e11247fe9b1af994768af8cdaa8e7dcd7","requireCanonical":true}]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    // A line is a comment after `//`, a request after `>> ` or a response after `<< `.
    let recorded = include_str!("../../../testdata/wire/bodies/execution-apis.io");
    seeds.extend(
        recorded
            .lines()
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.get(3..).map(|body| body.as_bytes().to_vec())),
    );
    seeds
}

/// Passes mutated seed inputs to [`jsonrpc`] as long as `should_continue` returns true. The
/// argument of `should_continue` is the number of inputs so far. Returns the number of all inputs.
/// Equal values of `seed` give equal inputs.
///
/// Prints an input for which a property does not hold, before the panic continues.
pub fn mutate(seed: u64, should_continue: &mut dyn FnMut(u64) -> bool) -> u64 {
    mutate_all(&seeds(), jsonrpc, seed, should_continue)
}

/// Passes mutated inputs to `check` as [`mutate`] does, with `corpus` as seed inputs.
pub fn mutate_all(
    corpus: &[Vec<u8>],
    check: fn(&[u8]),
    seed: u64,
    should_continue: &mut dyn FnMut(u64) -> bool,
) -> u64 {
    // From the state 0, xorshift would return only zeros.
    let mut rng = Rng(seed | 1);
    let mut count = 0;
    while should_continue(count) {
        let mut input = corpus[rng.below(corpus.len())].clone();
        for _ in 0..=rng.below(6) {
            rng.edit(&mut input, corpus);
        }
        if let Err(panic) = std::panic::catch_unwind(|| check(&input)) {
            eprintln!(
                "failed for {:?} (input {count} of seed {seed})",
                input.escape_ascii().to_string()
            );
            std::panic::resume_unwind(panic);
        }
        count += 1;
    }
    count
}

/// A pseudorandom number generator: xorshift64* (Vigna, "An experimental exploration of Marsaglia's
/// xorshift generators", 2016).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Makes one random change to an input.
    fn edit(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        const TOKENS: [&[u8]; 16] = [
            b"{",
            b"}",
            b"[",
            b"]",
            b"\"",
            b",",
            b":",
            b"\\u0041",
            b"\\ud800",
            b"null",
            b"-1e5",
            b"\"id\":",
            b"\"params\":",
            b"\xc3\xa9",
            b"\x80",
            b"[[[[[[[[",
        ];
        let offset = self.below(input.len() + 1);
        match self.below(6) {
            0 => input.truncate(offset),
            1 if offset < input.len() => input[offset] = self.next() as u8,
            2 if offset < input.len() => {
                input.remove(offset);
            }
            3 => {
                // A part of another body, often a value or a member.
                let other = &corpus[self.below(corpus.len())];
                let start = self.below(other.len());
                let end = (start + self.below(40)).min(other.len());
                input.splice(offset..offset, other[start..end].iter().copied());
            }
            4 if offset < input.len() => {
                let end = (offset + self.below(20)).min(input.len());
                let copy = input[offset..end].to_vec();
                input.splice(offset..offset, copy);
            }
            _ => {
                let token = TOKENS[self.below(TOKENS.len())];
                input.splice(offset..offset, token.iter().copied());
            }
        }
    }
}
