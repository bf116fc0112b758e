//! Goal: what is served of Harmony's blocks is what a node would say, or nothing. Method: a block in
//! the layout of harmony's own types is turned into each form and compared with the text that those
//! types give; then an index of linked blocks is asked in every way, wherever it is kept.

use super::*;
use crate::reader::Reader;
use crate::sample::{self, FIRST, LAST};
use crate::search::Bounds;
use crate::serve::{Found, Scope};
use crate::store::kinds::{self, Kinds};

fn form(options: &str) -> Option<(bool, bool)> {
    Form::read(options.as_bytes()).map(|form| (form.whole, form.staking))
}

#[test]
fn options_that_are_known_say_a_form() {
    assert_eq!(form(WHOLE_OPTIONS), Some((true, true)));
    assert_eq!(form("{}"), Some((false, false)));
    assert_eq!(form(r#"{ "inclStaking" : true }"#), Some((false, true)));
    assert_eq!(form(r#"{"fullT\u0078":true,"withSigners":false}"#), Some((true, false)));
    for form in [Form::KEPT, Form { whole: false, staking: true }] {
        assert_eq!(Form::read(form.options().as_bytes()), Some(form));
    }
    for other in [
        "null",
        "true",
        "[]",
        r#""fullTx""#,
        r#"{"withSigners":true}"#,
        r#"{"withSigners":true,"withSigners":false}"#,
        r#"{"fullTx":true,"fullTx":true}"#,
        r#"{"fullTx":null}"#,
        r#"{"fullTx":"true"}"#,
        r#"{"fullTx":1}"#,
        r#"{"fulltx":true}"#,
        r#"{"fullTx":true,"more":false}"#,
    ] {
        assert_eq!(form(other), None, "{other}");
    }
}

/// The members between which the lists stand, in the order of harmony's types.
fn block(transactions: &str, staking: &str) -> String {
    format!(
        r#"{{"number":7,"hash":"0x{}","uncles":[],"transactions":{transactions},"stakingTransactions":{staking}}}"#,
        "ab".repeat(32)
    )
}

fn written(raw: &str, whole: bool, staking: bool) -> Option<String> {
    let mut out = b"before".to_vec();
    let done = write(&mut out, raw.as_bytes(), Form { whole, staking });
    let text = String::from_utf8(out).unwrap();
    let text = text.strip_prefix("before").unwrap().to_owned();
    assert!(done || text.is_empty(), "{text}");
    done.then_some(text)
}

#[test]
fn a_whole_block_gives_the_other_forms() {
    let transactions = r#"[{"hash":"0x1","ethHash":"0x2"},{"ethHash":"0x4","hash":"0x3"}]"#;
    let staking = r#"[{"hash":"0x5","msg":{"hash":"0x6"}}]"#;
    let raw = block(transactions, staking);
    assert_eq!(written(&raw, true, true).unwrap(), raw);
    assert_eq!(written(&raw, true, false).unwrap(), block(transactions, "[]"));
    let hashes = r#"["0x1","0x3"],"transactionsInEthHash":["0x2","0x4"]"#;
    assert_eq!(written(&raw, false, true).unwrap(), block(hashes, r#"["0x5"]"#));
    assert_eq!(written(&raw, false, false).unwrap(), block(hashes, "[]"));
    // Without transactions, and where the whole block has the other hashes already.
    let none = block(r#"[],"transactionsInEthHash":[]"#, "[]");
    assert_eq!(written(&block("[]", "[]"), false, true).unwrap(), none);
    let both = format!(r#"{transactions},"transactionsInEthHash":["0x2","0x4"]"#);
    assert_eq!(written(&block(&both, staking), false, false).unwrap(), block(hashes, "[]"));
    assert_eq!(counts(raw.as_bytes()), Some((2, 1)));
}

/// In nodes' samples members are sorted, so that staking transactions come first.
#[test]
fn the_order_of_the_lists_does_not_matter() {
    let raw = r#"{"stakingTransactions":[{"hash":"0x5"}],"transactions":[{"hash":"0x1","ethHash":"0x2"}],"z":1}"#;
    let hashes = r#"{"stakingTransactions":["0x5"],"transactions":["0x1"],"transactionsInEthHash":["0x2"],"z":1}"#;
    assert_eq!(written(raw, false, true).unwrap(), hashes);
}

#[test]
fn what_cannot_be_turned_is_not() {
    for transactions in [r#"["0x1"]"#, r#"[{"ethHash":"0x2"}]"#, r#"[{"hash":"0x1"}]"#] {
        assert_eq!(written(&block(transactions, "[]"), false, false), None, "{transactions}");
    }
    assert_eq!(written(&block("[]", "[{}]"), false, true), None);
    assert_eq!(written(r#"{"transactions":[]}"#, true, false), None);
}

#[test]
fn a_block_that_is_another_is_told() {
    let header = Header { number: 7, hash: [0xab; 32], parent: [0; 32], time: 9 };
    let of = OfBlock::new(&header.hash, header.number, header.time);
    let raw = block("[]", "[]");
    let kept = piece(raw.replace(':', " : ").as_bytes(), &header, &of).unwrap();
    let mut back = Vec::new();
    crate::pieces::restore(&mut back, &kept, &of, None);
    assert_eq!(String::from_utf8(back).unwrap(), raw);
    assert!(kept.len() + 60 < raw.len(), "the hash is not kept twice");
    let told = |raw: &str| piece(raw.as_bytes(), &header, &of).unwrap_err();
    assert!(told(&raw.replace(":7,", ":8,")).contains("hmyv2 block.number"));
    assert!(told(&raw.replace("abab", "abac")).contains("hmyv2 block.hash"));
    assert!(told("{}").contains("hmyv2 block.number"));
    assert!(told("null").contains("hmyv2 block.number"));
}

struct File {
    reader: Reader,
    /// By number.
    blocks: Vec<(u64, String, String)>,
}

impl File {
    fn new(kinds: &Kinds, what: &str) -> File {
        let at = kinds.at(what);
        sample::write(&at, what, 2);
        let reader = sample::reader(&at);
        let made = crate::verify::tests::made::Made::chain(FIRST, LAST - FIRST + 1);
        let blocks = made.iter().map(|made| {
            let text = String::from_utf8(sample::harmony(&made.block)).unwrap();
            (text, made.block["hash"].as_str().unwrap().to_owned())
        });
        let blocks = (FIRST..).zip(blocks).map(|(at, (text, hash))| (at, text, hash)).collect();
        File { reader, blocks }
    }

    fn scoped(&mut self, method: &str, params: &str, final_to: u64, bytes: u64) -> Option<String> {
        let scope = Scope {
            finalized: Some(final_to),
            canonical: &|_, _| false,
            bounds: Bounds { logs: 0, bytes, until: None },
        };
        match self.reader.answer(method, params.as_bytes(), &scope).unwrap() {
            Found::Whole(raw) => Some(String::from_utf8(raw).unwrap()),
            Found::Nothing => None,
            // Whole answers are arrays or objects.
            Found::Part { from, to, listed } => {
                Some(format!("{from} to {to}: {}", String::from_utf8(listed).unwrap()))
            }
        }
    }

    fn ask(&mut self, method: &str, params: &str) -> Option<String> {
        self.scoped(method, params, LAST, u64::MAX)
    }
}

#[test]
fn blocks_are_answered_in_every_way_of_asking() {
    kinds::each(|kinds| {
        let mut file = File::new(kinds, "blocks,receipts,logs,hmyv2");
        let all: Vec<String> = file.blocks.iter().map(|(_, text, _)| text.clone()).collect();
        assert!(all[0].contains("Delegate") && !all[1].contains("Delegate"));
        let range = |from, to| format!("[{from},{to},{WHOLE_OPTIONS}]");
        let expected = format!("[{}]", all.join(","));
        assert_eq!(file.ask("hmyv2_getBlocks", &range(FIRST, LAST)), Some(expected));
        let mixed = format!(r#"["{FIRST}","{:#x}",{WHOLE_OPTIONS}]"#, FIRST + 1);
        let two = format!("[{},{}]", all[0], all[1]);
        assert_eq!(file.ask("hmyv2_getBlocks", &mixed), Some(two));
        for (number, text, hash) in file.blocks.clone() {
            for (whole, staking) in [(true, true), (true, false), (false, true), (false, false)] {
                let options = Form { whole, staking }.options();
                let expected = written(&text, whole, staking);
                assert!(expected.is_some());
                let by_number =
                    file.ask("hmyv2_getBlockByNumber", &format!("[{number},{options}]"));
                assert_eq!(by_number, expected);
                let by_hash = file.ask("hmyv2_getBlockByHash", &format!(r#"["{hash}",{options}]"#));
                assert_eq!(by_hash, expected);
                let listed = file.ask("hmyv2_getBlocks", &format!("[{number},{number},{options}]"));
                assert_eq!(listed, expected.map(|text| format!("[{text}]")));
            }
            for (method, block) in [("Number", number.to_string()), ("Hash", format!("\"{hash}\""))]
            {
                let method = format!("hmyv2_getBlockTransactionCountBy{method}");
                assert_eq!(file.ask(&method, &format!("[{block}]")), Some("9".to_owned()));
            }
        }
    });
}

#[test]
fn what_is_not_held_or_not_sure_is_for_nodes() {
    kinds::each(|kinds| {
        let mut file = File::new(kinds, "blocks,hmyv2");
        let range = |from: u64, to: u64| format!("[{from},{to},{WHOLE_OPTIONS}]");
        let blocks = "hmyv2_getBlocks";
        assert!(file.ask(blocks, &range(LAST, LAST)).is_some());
        for (from, to) in [
            (LAST + 1, LAST + 2),
            (FIRST - 1, FIRST),
            (LAST, FIRST),
            (0, 4),
            (0, LAST),
            (FIRST, FIRST + 1025),
        ] {
            assert_eq!(file.ask(blocks, &range(from, to)), None, "{from} to {to}");
        }
        // The first part of a range.
        let three: Vec<String> = file.blocks[3..].iter().map(|(_, text, _)| text.clone()).collect();
        let part =
            |to, blocks: &[String]| Some(format!("{} to {to}: {}", FIRST + 3, blocks.join(",")));
        let from = FIRST + 3;
        assert_eq!(file.ask(blocks, &range(from, LAST + 9)), part(LAST, &three));
        // The last one is not final for who asks.
        let found = file.scoped(blocks, &range(from, LAST), LAST - 1, u64::MAX);
        assert_eq!(found, part(LAST - 1, &three[..2]));
        assert!(file.scoped(blocks, &range(FIRST, LAST - 1), LAST - 1, u64::MAX).is_some());
        assert_eq!(file.scoped(blocks, &range(LAST, LAST), LAST - 1, u64::MAX), None);
        assert_eq!(file.scoped(blocks, &range(FIRST, LAST), LAST, 2000), None, "too long");
        for params in [
            format!("[{FIRST},{LAST}]"),
            format!("[{FIRST},\"latest\",{WHOLE_OPTIONS}]"),
            format!("[{FIRST},-1,{WHOLE_OPTIONS}]"),
            format!(r#"[{FIRST},{FIRST},{{"withSigners":true,"fullTx":true,"inclStaking":true}}]"#),
            format!("[{FIRST},{FIRST},true]"),
            "[]".to_owned(),
        ] {
            assert_eq!(file.ask(blocks, &params), None, "{params}");
        }
        assert_eq!(file.ask("hmyv2_getBlockByNumber", &format!("[{FIRST}]")), None);
        assert_eq!(
            file.ask("hmyv2_getBlockByNumber", &format!("[\"latest\",{WHOLE_OPTIONS}]")),
            None
        );
        assert_eq!(file.ask("hmy_getBlockByNumber", &format!("[{FIRST},true]")), None);
        let mut other = File::new(kinds, "blocks,receipts,logs");
        assert_eq!(other.ask(blocks, &range(FIRST, LAST)), None);
        assert_eq!(
            other.ask("hmyv2_getBlockTransactionCountByNumber", &format!("[{FIRST}]")),
            None
        );
        assert_eq!(
            other.ask("hmyv2_getBlockByNumber", &format!("[{FIRST},{WHOLE_OPTIONS}]")),
            None
        );
    });
}

#[test]
fn forms_that_a_node_writes_in_another_way_are_for_nodes() {
    kinds::each(|kinds| {
        let params =
            |whole, staking| format!("[{FIRST},{FIRST},{}]", Form { whole, staking }.options());
        for (name, lost) in [
            (HASHES, [false, false, true, true, false]),
            (WITHOUT_STAKING, [false, true, false, true, false]),
            (SINGLE, [false; 5]),
            (COUNT, [false, false, false, false, true]),
        ] {
            let mut file = File::new(kinds, "blocks,hmyv2");
            let at = file.reader.store().location().clone();
            // That a form was not seen yet means the same.
            let fact = if name == HASHES { "untried" } else { "unlike" };
            let sql = format!("UPDATE facts SET value = '{name}' WHERE name = '{fact}'");
            assert_eq!(kinds::change(&at, &sql), 1);
            file.reader = sample::reader(&at);
            for (at, (whole, staking)) in
                [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
            {
                let found = file.ask("hmyv2_getBlocks", &params(whole, staking));
                assert_eq!(found.is_none(), lost[at], "{name}, {whole}, {staking}");
            }
            let single = file.ask("hmyv2_getBlockByNumber", &format!("[{FIRST},{WHOLE_OPTIONS}]"));
            assert_eq!(single.is_none(), name == SINGLE);
            let count = file.ask("hmyv2_getBlockTransactionCountByNumber", &format!("[{FIRST}]"));
            assert_eq!(count.is_none(), lost[4], "{name}");
        }
    });
}
