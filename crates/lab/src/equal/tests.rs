//! Goal: recorded calls name a block and unsafe calls are left out. Method: texts of calls, without
//! servers.

use lab_model::results::equal::SkipReason;

use super::*;

fn options() -> Options {
    Options {
        recorded: true,
        calls_max: 100,
        block: None,
        blocks: 4,
        keep_tags: false,
        all_methods: false,
        strict: false,
        ignore: Vec::new(),
        concurrency: 1,
    }
}

fn select(family: Family, bodies: &[&str], options: &Options) -> (Vec<String>, Vec<SkipReason>) {
    let requests: Vec<_> = bodies
        .iter()
        .map(|body| lab_model::plan::RecordedRequest {
            method: 0,
            calls: 1,
            body: body.as_bytes().into(),
            id: Box::default(),
        })
        .collect();
    let (calls, skipped) = recorded::select_calls(requests.iter(), family, Some(16), options);
    let text = |call: &ComparedCall| {
        let params = String::from_utf8(call.params.clone().unwrap_or_default()).unwrap();
        let note = if call.names_its_block { "" } else { " at the head" };
        format!("{} {params}{note}", call.method)
    };
    (calls.iter().map(text).collect(), skipped.iter().map(|row| row.reason).collect())
}

fn body(method: &str, params: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":9,"method":"{method}","params":{params}}}"#)
}

#[test]
fn tags_become_the_common_block_in_the_format_of_the_method() {
    let call = |family, method: &str, params: &str, options: &Options| {
        select(family, &[&body(method, params)], options).0.remove(0)
    };
    use Family::{Ethereum, Harmony};
    for (family, method, params, expected) in [
        (Ethereum, "eth_getBalance", r#"["0x1","latest"]"#, r#"["0x1","0x10"]"#),
        (Ethereum, "eth_getBlockByNumber", r#"["earliest",true]"#, r#"["earliest",true]"#),
        (Ethereum, "eth_call", "[{}]", r#"[{},"0x10"]"#),
        (Ethereum, "eth_getBlockByNumber", r#"["0x7",true]"#, r#"["0x7",true]"#),
        (Harmony, "hmyv2_getBlockByNumber", r#"["latest",{}]"#, "[16,{}]"),
    ] {
        let selected = call(family, method, params, &options());
        assert!(selected.starts_with(&format!("{method} {expected}")), "{selected}");
    }
    let tags = Options { keep_tags: true, ..options() };
    let selected = call(Ethereum, "eth_getBalance", r#"["0x1","latest"]"#, &tags);
    assert_eq!(selected, r#"eth_getBalance ["0x1","latest"] at the head"#);
}

#[test]
fn calls_that_change_something_are_never_sent() {
    let bodies = [
        body("eth_sendRawTransaction", r#"["0x00"]"#),
        body("admin_addPeer", r#"["x"]"#),
        body("eth_newFilter", "[{}]"),
        body("web3_clientVersion", "[]"),
        body("my_method", "[]"),
        body("eth_chainId", "[]"),
        body("eth_chainId", "[]"),
    ];
    let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
    let (calls, skipped) = select(Family::Ethereum, &bodies, &options());
    assert_eq!(calls, ["eth_chainId []"]);
    assert_eq!(skipped.len(), 5);
    let all_methods_options = Options { all_methods: true, ..options() };
    let (calls, skipped) = select(Family::Ethereum, &bodies, &all_methods_options);
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert_eq!(skipped, [SkipReason::Unsafe; 3]);
    let limited_options = Options { calls_max: 1, ..all_methods_options };
    assert_eq!(select(Family::Ethereum, &bodies, &limited_options).0.len(), 1);
}
