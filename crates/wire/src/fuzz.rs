//! What must hold for any bytes at all, as functions for fuzzers.
//!
//! Called by `fuzz/src/jsonrpc.rs` for as long as one likes, and by the tests below for a second in
//! every check. Not part of the crate's interface.

use crate::answer::{self, AnswerFault, Answers, Outcome};
use crate::block;
use crate::call::{Body, Call, Limits, Params, decode};
use crate::filter::LogFilter;
use crate::json::skeleton::Skeleton;
use crate::json::{DEPTH_CEILING, walk};
use crate::key::{KeyParts, write_key};
use crate::method::{FamilyName, family};

#[cfg(test)]
mod tests;

/// Tries bytes as a client's body and as a node's answer.
///
/// # Panics
/// When a promise of the crate is broken.
pub fn jsonrpc(bytes: &[u8]) {
    let limits = Limits { body_bytes_max: 1 << 20, batch_calls_max: 50, ..Limits::USUAL };
    match decode(bytes, &limits) {
        Ok(Body::Single(Ok(call))) => try_call(&call),
        Ok(Body::Batch(items)) => {
            assert!((1..=50).contains(&items.len()), "a batch of {} passed", items.len());
            items.iter().flatten().for_each(try_call);
        }
        Ok(Body::Single(Err(refusal))) | Err(refusal) => {
            assert!(refusal.message.len() < 200, "a refusal repeats the body: {refusal}");
        }
    }
    try_answers(bytes);
    try_skeleton(bytes);
    // The walkers promise to end on anything.
    let _ = walk::elements(bytes).count() + walk::members(bytes).count();
}

/// A call that is written for a node reads as the same call, and its key can be taken.
fn try_call(call: &Call<'_>) {
    let mut written = Vec::new();
    answer::write_call(&mut written, b"77", &call.method, &call.params);
    let Ok(Body::Single(Ok(again))) = decode(&written, &Limits::USUAL) else {
        panic!("a written call is refused: {}", String::from_utf8_lossy(&written))
    };
    assert_eq!((&again.method, again.params), (&call.method, call.params), "a call changed");
    for name in FamilyName::ALL {
        // Unknown names are tried as two methods with difficult parameters.
        for method in [&*call.method, "eth_getLogs", "eth_call"] {
            let Some(method) = family(name).method(method) else { continue };
            let mut key = Vec::new();
            let mut key_again = Vec::new();
            let parts = KeyParts { chain: "c", method, params: &call.params, block: None };
            let made = write_key(&mut key, &parts);
            let made_again =
                write_key(&mut key_again, &KeyParts { params: &again.params, ..parts });
            assert!(made == made_again && key == key_again, "a key depends on the envelope");
            if let Ok(Some((_, span))) = block::block_ref(method, &call.params) {
                try_splice(&call.params, span, method.block.map(|block| block.form));
            }
        }
    }
    if let Ok(filter) = LogFilter::read(&call.params) {
        let mut params = Vec::new();
        filter.write_params(&mut params, 5, 9);
        let filter = LogFilter::read(&Params::Array(&params)).expect("it was just written");
        assert_eq!(filter.from, Some(block::BlockRef::Number(5)), "a bound was lost");
        assert_eq!(filter.to, Some(block::BlockRef::Number(9)), "a bound was lost");
    }
}

/// Parameters with another block are still JSON.
fn try_splice(params: &Params<'_>, span: std::ops::Range<usize>, form: Option<block::BlockForm>) {
    let mut spliced = Vec::new();
    let form = form.expect("a span comes from a row with a block");
    block::write_params_at(&mut spliced, params, span, form, 4096);
    let whole = crate::json::check(&spliced, Limits::USUAL.depth_max);
    assert!(whole.is_ok(), "not json: {}", String::from_utf8_lossy(&spliced));
}

/// An answer that is written for a client reads as the same answer.
fn try_answers(bytes: &[u8]) {
    let answers = match answer::read_answers(bytes, 128, 50) {
        Ok(Answers::One(one)) => vec![one],
        Ok(Answers::Batch(list)) => list.into_iter().flatten().collect(),
        Err(_) => return,
    };
    for read in answers {
        let mut written = Vec::new();
        match &read.outcome {
            Outcome::Result(raw) => {
                for kind in [
                    crate::method::AnswerBlock::Block,
                    crate::method::AnswerBlock::Names,
                    crate::method::AnswerBlock::EachNames,
                ] {
                    let _ = block::named_blocks(kind, raw);
                }
                answer::write_result(&mut written, read.id, raw);
            }
            Outcome::Error { raw, .. } => answer::write_error_raw(&mut written, read.id, raw),
        }
        assert_eq!(answer::read_answer(&written, 128), Ok(read), "an answer changed");
    }
}

/// The skeleton is the same however the text is cut, and reads as the text does.
pub(crate) fn try_skeleton(bytes: &[u8]) {
    let mut whole = Skeleton::default();
    whole.feed(bytes);
    for size in [1, 3, 64, 97] {
        let mut cut = Skeleton::default();
        bytes.chunks(size).for_each(|piece| cut.feed(piece));
        assert_eq!(whole.kept(), cut.kept(), "pieces of {size} make a difference");
    }
    let kept = whole.kept();
    let single = |text| answer::read_answer(text, DEPTH_CEILING).map(|one| gist(&one));
    assert_eq!(told(single(bytes)), told(single(kept)), "{}", kept.escape_ascii());
    for most in [0, 1, 2, 50] {
        let many = |text| match answer::read_answers(text, DEPTH_CEILING, most)? {
            Answers::One(one) => Ok(vec![told(Ok(gist(&one)))]),
            Answers::Batch(list) => {
                Ok(list.into_iter().map(|one| told(one.map(|one| gist(&one)))).collect())
            }
        };
        assert_eq!(told(many(bytes)), told(many(kept)), "{}", kept.escape_ascii());
    }
}

/// All of an answer but its result, of which only matters whether it is null.
fn gist(answer: &answer::Answer<'_>) -> String {
    match &answer.outcome {
        Outcome::Result(raw) => format!("{:?} result {}", answer.id, *raw == b"null"),
        error @ Outcome::Error { .. } => format!("{:?} {error:?}", answer.id),
    }
}

/// The same with faults by their kind: their places differ.
fn told<T>(read: Result<T, AnswerFault>) -> Result<T, std::mem::Discriminant<AnswerFault>> {
    read.map_err(|fault| std::mem::discriminant(&fault))
}

/// Bodies to start from: recorded traffic and the hard cases of the rules.
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
    let recorded = include_str!("../../../testdata/wire/bodies/execution-apis.io");
    seeds.extend(
        recorded
            .lines()
            .filter(|line| !line.starts_with("//"))
            .filter_map(|line| line.get(3..).map(|body| body.as_bytes().to_vec())),
    );
    seeds
}

/// Mutates the seeds for as long as `go_on` says, with a generator started from `seed`; returns how
/// many inputs were tried. Equal seeds try equal inputs.
///
/// An input that breaks a promise is printed before the panic goes on.
pub fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    mutate_all(&seeds(), jsonrpc, seed, go_on)
}

/// The same for other seeds and another decoder.
pub fn mutate_all(
    corpus: &[Vec<u8>],
    try_one: fn(&[u8]),
    seed: u64,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> u64 {
    let mut dice = Dice(seed | 1);
    let mut tried = 0;
    while go_on(tried) {
        let mut input = corpus[dice.below(corpus.len())].clone();
        for _ in 0..=dice.below(6) {
            dice.edit(&mut input, corpus);
        }
        if let Err(panic) = std::panic::catch_unwind(|| try_one(&input)) {
            eprintln!(
                "broken by {:?} (input {tried} of seed {seed})",
                input.escape_ascii().to_string()
            );
            std::panic::resume_unwind(panic);
        }
        tried += 1;
    }
    tried
}

/// xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators", 2016).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

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
        let at = self.below(input.len() + 1);
        match self.below(6) {
            0 => input.truncate(at),
            1 if at < input.len() => input[at] = self.roll() as u8,
            2 if at < input.len() => {
                input.remove(at);
            }
            3 => {
                // A piece of another body, most often a value or a member.
                let other = &corpus[self.below(corpus.len())];
                let start = self.below(other.len());
                let end = (start + self.below(40)).min(other.len());
                input.splice(at..at, other[start..end].iter().copied());
            }
            4 if at < input.len() => {
                let end = (at + self.below(20)).min(input.len());
                let copy = input[at..end].to_vec();
                input.splice(at..at, copy);
            }
            _ => {
                let token = TOKENS[self.below(TOKENS.len())];
                input.splice(at..at, token.iter().copied());
            }
        }
    }
}
