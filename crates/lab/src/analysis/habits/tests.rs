//! Goal: a habit explains only the differences that it describes. Method: real differences between
//! clients, and similar differences that must count.

use lab_model::results::equal::DifferenceClass::{self, *};

use super::*;

const GETH: Option<&str> = Some("Geth/v1.16.0-stable/linux-amd64/go1.24");
const NETHERMIND: Option<&str> = Some("Nethermind/v1.32.0/linux-x64/dotnet9");

fn json(text: &str) -> Side {
    if text.is_empty() { Side::Nothing } else { Side::Json(text.to_owned()) }
}

/// Returns the name of the habit that explains a difference between geth and Nethermind.
fn explained(
    method: &str,
    class: DifferenceClass,
    pointer: &str,
    left: &str,
    right: &str,
) -> Option<&'static str> {
    let difference = ClassifiedDifference {
        class,
        spelling: None,
        pointer: pointer.to_owned(),
        left: json(left),
        right: json(right),
    };
    find_habit(&difference, method, [GETH, NETHERMIND]).map(|habit| habit.name.as_str())
}

#[test]
fn the_table_is_valid_and_names_a_source_for_each_habit() {
    let mut names = std::collections::BTreeSet::new();
    for habit in all() {
        assert!(names.insert(&habit.name), "{} occurs twice", habit.name);
        assert!(habit.note.ends_with('.') && habit.source.len() > 10, "{}", habit.name);
        assert!(!habit.codes.is_empty() || habit.class != ErrorCode, "{}", habit.name);
        let patterns = habit.pointers.iter();
        for pattern in patterns {
            assert!(pattern.starts_with('/') || pattern.starts_with("**/"), "{pattern}");
        }
    }
    assert!(names.len() > 15);
}

#[test]
fn habits_explain_what_clients_do() {
    let block = "eth_getBlockByNumber";
    for (method, class, pointer, left, right, name) in [
        ("eth_call", ErrorMessage, "/error/message", "\"a\"", "\"b\"", "error texts"),
        ("eth_call", ErrorCode, "/error/code", "3", "-32015", "server error codes"),
        ("eth_call", ErrorCode, "/error/code", "-32601", "-32604", "method not enabled"),
        (block, MissingMember, "/result/totalDifficulty", "", "\"0x1\"", "total difficulty"),
        (block, MissingMember, "/result/transactions/3/yParity", "", "\"0x1\"", "yParity"),
        (block, MissingMember, "/result/x", "", "null", "null or absent"),
        (
            "eth_getLogs",
            MissingMember,
            "/result/0/blockTimestamp",
            "\"0x1\"",
            "",
            "timestamp of logs",
        ),
        (block, MissingMember, "/result/author", "", "\"0x1\"", "additional members of nethermind"),
        ("eth_estimateGas", Value, "/result", "\"0x5208\"", "\"0x5250\"", "gas estimates"),
        ("getblock", Value, "/result/confirmations", "1", "2", "confirmations"),
    ] {
        assert_eq!(explained(method, class, pointer, left, right), Some(name), "{pointer}");
    }
}

#[test]
fn similar_differences_count() {
    let block = "eth_getBlockByNumber";
    for (method, class, pointer, left, right) in [
        ("eth_call", ErrorCode, "/error/code", "-32601", "-32000"),
        (block, MissingMember, "/result/hash", "", "\"0x1\""),
        (block, MissingMember, "/result/publicKey", "", "\"0x1\""),
        (block, MissingMember, "/result/transactions/0/accessList", "", "[1]"),
        ("eth_getLogs", MissingMember, "/result/totalDifficulty", "", "\"0x1\""),
        ("eth_estimateGas", Value, "/result", "\"0x5208\"", "\"0x6208\""),
        ("eth_getBalance", Value, "/result", "\"0x5208\"", "\"0x5209\""),
        ("eth_getLogs", Order, "/result", "[1,2]", "[2,1]"),
        ("eth_call", ErrorAgainstResult, "", "1", "2"),
    ] {
        assert_eq!(explained(method, class, pointer, left, right), None, "{method} {pointer}");
    }
}

#[test]
fn a_habit_of_a_client_needs_this_client() {
    let difference = ClassifiedDifference {
        class: MissingMember,
        spelling: None,
        pointer: "/result/author".to_owned(),
        left: json(""),
        right: json("1"),
    };
    assert!(find_habit(&difference, "eth_getBlockByHash", [GETH, NETHERMIND]).is_some());
    assert!(find_habit(&difference, "eth_getBlockByHash", [GETH, GETH]).is_none());
    assert!(find_habit(&difference, "eth_getBlockByHash", [None, None]).is_none());
}

#[test]
fn pointers_match_by_segment() {
    assert!(matches_pointer("/result/*/r", "/result/0/r"));
    assert!(!matches_pointer("/result/*/r", "/result/r"));
    assert!(matches_pointer("**/r", "/result/transactions/0/r"));
    assert!(!matches_pointer("**/r", "/result/transactions/0/gasr"));
    assert!(!matches_pointer("**/r", "/result/r/x"));
    assert!(matches_pointer("", ""));
}
