//! Goal: parameters are converted to the expected pieces. Method: parameters as written in a plan.
//! `plan/tests.rs` tests the problems of parameters with golden files.

use crate::plan::{Draw, Piece, Step, read};

/// Compares the pieces of one call's parameters with the expected text. In the expected text,
/// random pieces are in `<>`.
fn check(params: &str, expected: &str) {
    let text = format!(
        "[[scenario]]\nmix = \"m\"\nworkers_max = 1\nstages = [{{ duration = \"9s\", rate = 1 }}]\n\
         [variables]\nn = 4\n[mix.m]\ncalls = [{{ method = \"x\", params = {params} }}]"
    );
    let plan = read(&text, "t", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    let Step::Choose(calls) = &plan.mixes[0].steps[0] else { panic!("calls are chosen") };
    let piece = |piece: &Piece| match piece {
        Piece::Text(text) => String::from_utf8(text.to_vec()).unwrap(),
        Piece::Draw(Draw::OneOf(values)) => {
            let values: Vec<_> = values.iter().map(|v| String::from_utf8_lossy(v)).collect();
            format!("<{}>", values.join("|"))
        }
        Piece::Draw(draw) => format!("<{draw:?}>"),
    };
    let texts_of_pieces: Vec<_> = calls[0].template.params.iter().map(piece).collect();
    assert_eq!(texts_of_pieces.concat(), expected, "{params}");
    let texts = calls[0].template.params.windows(2);
    let split = |pair: &[Piece]| matches!(pair, [Piece::Text(_), Piece::Text(_)]);
    assert!(!texts.into_iter().any(split), "texts are not joined: {params}");
}

#[test]
fn values_become_json() {
    check("[]", "[]");
    check("[1, -2.5, 1e3, true, \"a\\\"b\", [], {}]", "[1,-2.5,1e3,true,\"a\\\"b\",[],{}]");
    check("[0x10, 123456789012345678]", "[16,123456789012345678]");
    check("{ z = 1, a = 2 }", "{\"z\":1,\"a\":2}");
    check("'[{\"to\": \"0x0\"}, null]'", "[{\"to\": \"0x0\"}, null]");
    check("[{ json = 'null' }]", "[null]");
    check("[{ block = 3, x = 1 }]", "[{\"block\":3,\"x\":1}]");
}

#[test]
fn generators_become_random_pieces() {
    check("[{ block = \"latest\" }]", "[<BlockBehind { behind: (0, 0) }>]");
    check("[{ block = \"latest-100\" }, false]", "[<BlockBehind { behind: (100, 100) }>,false]");
    check("[{ draw = \"block\", behind = [0, \"n * 2\"] }]", "[<BlockBehind { behind: (0, 8) }>]");
    check("[{ draw = \"logs\", blocks = \"n\" }]", "[{<LogRange { blocks: 4, behind: (0, 0) }>}]");
    check(
        "[{ draw = \"logs\", blocks = 2, behind = 7, address = { draw = \"address\" }, topics = [[\"0x1\"]] }]",
        "[{<LogRange { blocks: 2, behind: (7, 7) }>,\"address\":<Address([])>,\"topics\":[[\"0x1\"]]}]",
    );
    check("[{ draw = \"block-hash\" }]", "[<BlockHash>]");
    check("[{ draw = \"transaction-hash\" }]", "[<TransactionHash>]");
    check("[{ draw = \"address\", of = [\"0xa\"] }]", "[<Address([\"0xa\"])>]");
    check("[{ draw = \"bytes\", count = 32 }]", "[<RandomBytes(32)>]");
    check("[{ draw = \"one-of\", values = [1, \"b\", { c = [] }] }]", "[<1|\"b\"|{\"c\":[]}>]");
    check("[{ from = { block = \"latest-3\" } }]", "[{\"from\":<BlockBehind { behind: (3, 3) }>}]");
}

#[test]
fn json_texts_are_unchanged_unless_they_contain_generators() {
    check("'{\"z\": 1.50,  \"a\": null}'", "{\"z\": 1.50,  \"a\": null}");
    check(
        "'[{\"draw\":\"address\"}, \"latest\", null, 1.50, {\"z\":[{\"block\":\"latest-2\"}],\"a\":true}]'",
        "[<Address([])>,\"latest\",null,1.50,{\"z\":[<BlockBehind { behind: (2, 2) }>],\"a\":true}]",
    );
    check(
        "'[{\"draw\":\"logs\",\"blocks\":10,\"behind\":[0,-0]},{\"draw\":\"bytes\",\"count\":4}]'",
        "[{<LogRange { blocks: 10, behind: (0, 0) }>},<RandomBytes(4)>]",
    );
    check("'[{\"block\":\"0x1\",\"x\":2}]'", "[{\"block\":\"0x1\",\"x\":2}]");
}

#[test]
fn deep_json_is_rejected() {
    let span = 0..0;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(super::json::parse_item(&nested(100), &span).is_some());
    assert!(super::json::parse_item(&nested(200_000), &span).is_none());
}

/// Returns the problems of a plan with these parameters.
fn problem_of(params: &str) -> String {
    let text = format!(
        "[[scenario]]\nmix = \"m\"\nworkers_max = 1\nstages = [{{ duration = \"9s\", rate = 1 }}]\n\
         [mix.m]\ncalls = [{{ method = \"x\", params = {params} }}]"
    );
    read(&text, "t", &[]).unwrap_err().to_string()
}

#[test]
fn names_after_a_dollar_sign_are_rejected_with_advice() {
    for params in ["[\"$address\"]", "'[\"$address\",\"latest\"]'", "'[{\"a\":[\"$address\"]}]'"] {
        let problem = problem_of(params);
        assert!(problem.contains("{ \"draw\": \"address\" }"), "{problem}");
    }
    let problem = problem_of("'[{\"$logs\":10}]'");
    assert!(problem.contains("{ \"draw\": \"logs\" }"), "{problem}");
    let problem = problem_of("[\"$adress\"]");
    assert!(problem.contains("it is no generator; known are block, logs"), "{problem}");
    check("[{ json = '\"$address\"' }]", "[\"$address\"]");
    check("[\"$\", \"$ 1\", \"1$\", \"$1\"]", "[\"$\",\"$ 1\",\"1$\",\"$1\"]");
}

#[test]
fn a_problem_within_a_json_text_prints_no_secret_of_the_text() {
    let text = "'[\"http://u:sekrit@h\",{\"draw\":\"address\",\"of\":[\"\"]}]'";
    let problem = problem_of(text);
    assert!(problem.contains("mix.m.calls.params.of = \"***\": cannot be an address"), "{problem}");
    assert!(!problem.contains("sekrit"), "{problem}");
}
