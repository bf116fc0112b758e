//! Goal: the errors of real node software and providers mean what their sources say. Method: every
//! rule's recorded example must match that rule first; then tables of texts with their sources.

use std::time::Duration;

use super::numbers::WAIT_MAX;
use super::*;

fn error(code: i64, message: &str) -> NodeError<'_> {
    NodeError { status: 200, code, message, has_hex_data: false, method: MethodKind::Other }
}

#[test]
fn every_rule_is_reached_by_its_own_example() {
    let file: RulesFile = toml::from_str(ERRORS).unwrap();
    assert!(file.rule.len() > 150, "{}", file.rule.len());
    for (index, rule) in file.rule.iter().enumerate() {
        let code = rule.codes.first().copied().unwrap_or(-32000);
        let method = rule.only.unwrap_or(MethodKind::Other);
        let turn = if rule.last { Turn::Last } else { Turn::First };
        let example = NodeError { method, ..error(code, &rule.example) };
        let matching_index = find_rule(&example, turn)
            .and_then(|matching| load_rules().iter().position(|rule| std::ptr::eq(rule, matching)));
        assert_eq!(matching_index, Some(index), "{:?} of {}", rule.example, rule.source);
        // A rule with general words is reached only if no other rule knows the example.
        assert!(!rule.last || find_rule(&example, Turn::First).is_none(), "{:?}", rule.example);
        let words = || rule.text.iter().chain(&rule.any);
        assert!(words().next().is_some() && words().all(|word| word.len() >= 3));
        assert!(rule.source.len() > 2, "{:?} needs a source", rule.text);
    }
}

/// A row of a table of texts.
struct Row {
    /// What the error means, by its source.
    meaning: String,
    method: String,
    status: u16,
    code: i64,
    has_hex_data: bool,
    text: String,
    source: String,
}

fn read_rows(file: &str) -> Vec<Row> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/error-texts/");
    let table = std::fs::read_to_string(format!("{path}{file}")).unwrap();
    let read_row = |line: &str| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [meaning, method, status, code, data, text, source] = columns[..] else {
            panic!("{file}: {line}")
        };
        Row {
            meaning: meaning.to_owned(),
            method: method.to_owned(),
            status: status.parse().unwrap(),
            code: code.parse().unwrap(),
            has_hex_data: data.starts_with("\"0x"),
            text: text.to_owned(),
            source: source.to_owned(),
        }
    };
    table.lines().skip(1).map(read_row).collect()
}

impl Row {
    fn kind(&self) -> ErrorKind {
        let broadcasts = ["eth_send", "sendTransaction", "sendrawtransaction", "author_submit"];
        let is_broadcast = broadcasts.iter().any(|prefix| self.method.starts_with(prefix));
        let repeat = if is_broadcast { Repeat::Broadcast } else { Repeat::Safe };
        classify(&NodeError {
            status: self.status,
            code: self.code,
            message: &self.text,
            has_hex_data: self.has_hex_data,
            method: MethodKind::new(&self.method, repeat),
        })
    }

    /// The kinds that are right for the row.
    fn right_kinds(&self) -> &'static [ErrorKind] {
        use ErrorKind::*;
        match self.meaning.as_str() {
            // Sources do not tell the kinds of size apart: a text often names two.
            "too-large-range" => &[RangeTooLarge, TooManyResults, ResponseTooLarge, TooSlow],
            "too-large-results" | "too-large-bytes" => {
                &[RangeTooLarge, TooManyResults, ResponseTooLarge]
            }
            "too-large-batch" => &[BatchTooLarge],
            "rate-second" => &[Rate],
            "rate-day" => &[DayUsedUp],
            "rate-month" => &[MonthUsedUp],
            "history-missing" => &[HistoryMissing],
            "block-unknown" => &[BlockUnknown],
            "method-not-served" => &[MethodNotServed],
            "key-refused" => &[AccessDenied],
            "execution-failed" => &[Reverted, Execution],
            "callers-fault" => &[Caller, LikelyCaller],
            // A lookup of the sent transaction shows that it is known.
            "pool-known" => &[AlreadyKnown, NonceTooLow],
            "pool-nonce-low" => &[NonceTooLow],
            "pool-price" => &[Underpriced, FeeTooLow],
            "node-trouble" => &[Internal, TooSlow],
            other => panic!("unknown meaning {other}"),
        }
    }

    /// True if a caller that acts on the kind does what is right: asks another node, asks for less,
    /// pauses, or returns the error. An unknown error is returned if another node repeats it.
    fn leads_to_the_right_action(&self, kind: ErrorKind) -> bool {
        use ErrorKind::*;
        let also_right: &[ErrorKind] = match self.meaning.as_str() {
            "execution-failed" | "callers-fault" | "pool-price" => {
                &[Reverted, Execution, Caller, LikelyCaller, Underpriced, FeeTooLow, Unknown]
            }
            "node-trouble" | "block-unknown" | "history-missing" | "key-refused" => {
                &[Internal, TooSlow, BlockUnknown, HistoryMissing, AccessDenied, Unknown]
            }
            "rate-day" | "rate-month" | "rate-second" => &[Rate, DayUsedUp, MonthUsedUp],
            _ => &[],
        };
        self.right_kinds().contains(&kind) || also_right.contains(&kind)
    }
}

#[test]
fn known_texts_have_their_kind() {
    let rows = read_rows("known.tsv");
    assert!(rows.len() >= 400, "{}", rows.len());
    for row in &rows {
        let kind = row.kind();
        assert!(row.right_kinds().contains(&kind), "{kind:?}: {:?} of {}", row.text, row.source);
    }
}

#[test]
fn unseen_texts_lead_to_the_right_action() {
    let rows = read_rows("unseen.tsv");
    assert!(rows.len() >= 100, "{}", rows.len());
    let right = rows.iter().filter(|row| row.leads_to_the_right_action(row.kind())).count();
    let exact = rows.iter().filter(|row| row.right_kinds().contains(&row.kind())).count();
    println!("{exact} of {} have their kind, {right} lead to the right action", rows.len());
    assert!(right * 10 >= rows.len() * 9, "{right} of {}", rows.len());
}

#[test]
fn limits_and_waits_are_read() {
    for (text, limits) in [
        (
            "query returned more than 10000 results. Try with this block range [0x10, 0x1f].",
            vec![16],
        ),
        ("query exceeds max results 20000, retry with the range 100-109", vec![10]),
        ("You can make eth_getLogs requests with up to a 2K block range", vec![2000]),
        ("eth_getLogs is limited to a 10,000 range", vec![10_000]),
        ("exceeds the range allowed for your plan (1000000 > 3000)", vec![1_000_000, 3000]),
        ("this block range should work: [0x1f, 0x10]", vec![]),
        ("Too many logs requested. Max logs per response is 10000.", vec![]),
    ] {
        assert_eq!(read_range_limits(text), limits, "{text}");
    }
    for (text, limit) in [
        ("Batch of more than 3 requests are not allowed on free tier", Some(3)),
        ("batch limit 100 exceeded: 142 requests given", Some(100)),
        ("Number of requests exceeds max batch size", None),
        ("batch too large", None),
    ] {
        assert_eq!(read_batch_limit(text), limit, "{text}");
    }
    let seconds = Duration::from_secs;
    for (text, wait) in [
        ("Too many requests, reason: call rate limit exhausted, retry in 10s", Some(seconds(10))),
        ("call rate limit exhausted, retry in 10m0s", Some(seconds(600))),
        ("try again in 250ms", Some(Duration::from_millis(250))),
        ("limit will reset in 60 seconds", Some(seconds(60))),
        ("retry in 1.5 minutes.", Some(seconds(90))),
        ("retry in 99999999999999999999999999999999h", Some(WAIT_MAX)),
        ("retry in a while", None),
        ("retry in 10 blocks", None),
        ("Too Many Requests", None),
    ] {
        assert_eq!(read_wait(text), wait, "{text}");
    }
}

#[test]
fn long_and_odd_messages_are_bounded() {
    let trace = format!("Internal error{}", " at Foo.Bar()".repeat(100_000));
    assert_eq!(classify(&error(-32603, &trace)), ErrorKind::Internal);
    let late = format!("{}execution reverted", "é".repeat(MESSAGE_BYTES_MAX));
    assert_eq!(classify(&error(-32000, &late)), ErrorKind::Unknown);
}

/// A client that is told of a success although another transaction was meant would wait for ever.
#[test]
fn words_about_another_transaction_are_no_success() {
    for text in [
        "Transaction was not mined within 50 blocks",
        "nonce already used by a pending transaction",
        "an account already exists at this address",
        "another transaction with the same nonce is already pending",
    ] {
        let sent = NodeError { method: MethodKind::Broadcast, ..error(-32000, text) };
        assert_ne!(classify(&sent), ErrorKind::AlreadyKnown, "{text}");
    }
}
