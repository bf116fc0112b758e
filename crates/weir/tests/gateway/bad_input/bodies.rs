//! Request bodies that are not valid calls, or unusual ones. The gateway responds to each body, and
//! the connection stays open.

use super::{After, CALL, CALL_OK, Case, assert_memory_bounded, check, post, start_gateway};

/// The longest body that is accepted.
const BODY_BYTES_MAX: usize = 5 * 1024 * 1024;

fn case(name: &str, body: impl AsRef<[u8]>, expected: &str) -> Case {
    let (bytes, expected) = (post("/", body.as_ref()), expected.to_owned());
    Case { name: name.to_owned(), bytes, expected, after: After::Open }
}

/// A valid call with another value for one member. An empty value omits the member.
fn call_with(member: &str, value: &str) -> String {
    let mut members = vec![
        ("jsonrpc", r#""2.0""#),
        ("id", "1"),
        ("method", r#""eth_chainId""#),
        ("params", "[]"),
    ];
    for (name, text) in &mut members {
        if *name == member {
            *text = value;
        }
    }
    let members: Vec<_> = members
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| format!("\"{name}\":{text}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

#[test]
fn a_body_that_is_not_json_is_a_parse_error() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        call_with("params", &format!("{open}{close}"))
    };
    let broken =
        |body: &str, message: &str| case(body, body, &format!("200 null -32700 {message}"));
    let mut cases = vec![
        broken("", "empty body where a json-rpc call is needed"),
        broken(" \r\n\t ", "empty body where a json-rpc call is needed"),
        broken("<html></html>", "unexpected byte 0x3c at byte 0"),
        broken("{", "text ends too early at byte 1"),
        broken("[1,]", "unexpected byte 0x5d at byte 3"),
        broken("{'id':1}", "unexpected byte 0x27 at byte 1"),
        broken("{\"id\":1,}", "unexpected byte 0x7d at byte 8"),
        broken("{\"id\":1 /* one */}", "unexpected byte 0x2f at byte 8"),
        broken("{\"id\":01}", "invalid number at byte 6"),
        broken("{\"id\":+1}", "unexpected byte 0x2b at byte 6"),
        broken("{\"id\":1.}", "invalid number at byte 6"),
        broken("{\"id\":NaN}", "unexpected byte 0x4e at byte 6"),
        broken("{\"id\":0x1}", "unexpected byte 0x78 at byte 7"),
        broken("{\"id\":\"a\nb\"}", "unescaped control character 0x0a in a string at byte 8"),
        broken("{\"id\":\"\\x\"}", "invalid escape sequence in a string at byte 7"),
    ];
    cases.extend([
        case(
            "byte order mark",
            [b"\xef\xbb\xbf", CALL.as_bytes()].concat(),
            "200 null -32700 byte order mark, which json text must not have, at byte 0",
        ),
        case("UTF-16", [0xff, 0xfe, b'{', 0], "200 null -32700 unexpected byte 0xff at byte 0"),
        case(
            "garbage behind",
            format!("{CALL}x"),
            "200 null -32700 unexpected byte 0x78 after the json value at byte 59",
        ),
        case(
            "two calls in a row",
            format!("{CALL}{CALL}"),
            "200 null -32700 unexpected byte 0x7b after the json value at byte 59",
        ),
        case(
            "a zero byte behind",
            format!("{CALL}\0"),
            "200 null -32700 unexpected byte 0x00 after the json value at byte 59",
        ),
        case("white space around", format!(" \r\n\t{CALL} \r\n\t"), CALL_OK),
        case(
            "invalid UTF-8",
            b"{\"id\":\"\xc3\x28\"}",
            "200 null -32700 invalid utf-8 in a string at byte 7",
        ),
        case(
            "overlong UTF-8 of a slash",
            b"{\"id\":\"\xc0\xaf\"}",
            "200 null -32700 invalid utf-8 in a string at byte 7",
        ),
        case(
            "too deep by one",
            nested(128),
            "200 null -32700 nesting deeper than 128 levels at byte 183",
        ),
        case(
            "depth 10^5",
            nested(100_000),
            "200 null -32700 nesting deeper than 128 levels at byte 183",
        ),
        case(
            "depth 10^5, never closed",
            "[".repeat(100_000),
            "200 null -32700 nesting deeper than 128 levels at byte 128",
        ),
        case(
            "depth 10^5 of objects",
            "{\"a\":".repeat(100_000),
            "200 null -32700 nesting deeper than 128 levels at byte 640",
        ),
    ]);
    check(&mut gateway, &cases);
    assert_memory_bounded(&gateway, before);
}

#[test]
fn a_body_without_a_call_is_an_invalid_request() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let long_name = format!("\"{}\"", "m".repeat(129));
    let long_id = format!("\"{}\"", "i".repeat(1_000_000));
    let million = format!("[{}1]", "1,".repeat(999_999));
    let thousand_and_one = format!("[{}{CALL}]", format!("{CALL},").repeat(1000));
    let version = "200 1 -32600 jsonrpc must be \"2.0\", \"1.1\", \"1.0\" or absent";
    let bad_id = "200 null -32600 id must be a number, a string or null";
    let bad_params = "200 1 -32602 params must be an array, an object or absent";
    let neither = "200 null -32600 body is neither an object nor an array";
    let twice =
        |at: usize| format!("200 null -32600 member name at byte {at} occurs twice in its object");
    let cases = [
        case("a number", "1", neither),
        case("a string", "\"eth_chainId\"", neither),
        case("null", "null", neither),
        case("an empty object", "{}", "200 null -32600 method is missing"),
        case("an empty batch", "[]", "200 null -32600 empty batch"),
        case(
            "batches in a batch",
            "[[], 1]",
            "200 [null -32600 batch member at byte 1 is not an object, \
             null -32600 batch member at byte 5 is not an object]",
        ),
        case(
            "good among bad",
            format!("[1,{CALL},{{\"id\":\"x\"}}]"),
            "200 [null -32600 batch member at byte 1 is not an object, \
             1 result \"0x67932\", \"x\" -32600 method is missing]",
        ),
        case(
            "10^6 members",
            million,
            "200 null -32600 batch too large: at most 1000 calls are allowed",
        ),
        case(
            "1001 calls",
            thousand_and_one,
            "200 null -32600 batch too large: at most 1000 calls are allowed",
        ),
        case("jsonrpc 3.0", call_with("jsonrpc", "\"3.0\""), version),
        case("jsonrpc as a number", call_with("jsonrpc", "2.0"), version),
        case("jsonrpc 1.0", call_with("jsonrpc", "\"1.0\""), CALL_OK),
        case("no jsonrpc", call_with("jsonrpc", ""), CALL_OK),
        case("id true", call_with("id", "true"), bad_id),
        case("id object", call_with("id", "{}"), bad_id),
        case("id array", call_with("id", "[1]"), bad_id),
        case("id null", call_with("id", "null"), r#"200 null result "0x67932""#),
        case(
            "id of 10^6 digits",
            call_with("id", &"9".repeat(1_000_000)),
            "200 null -32600 id of 1000000 bytes, at most 1024 are allowed",
        ),
        case(
            "id of 10^6 letters",
            call_with("id", &long_id),
            "200 null -32600 id of 1000002 bytes, at most 1024 are allowed",
        ),
        case("id with an exponent", call_with("id", "1e999"), r#"200 1e999 result "0x67932""#),
        case("no id", call_with("id", ""), "200"),
        case("a batch without ids", format!("[{0},{0}]", call_with("id", "")), "200"),
        case("method missing", call_with("method", ""), "200 1 -32600 method is missing"),
        case(
            "method as a number",
            call_with("method", "7"),
            "200 1 -32600 method must be a string",
        ),
        case("method empty", call_with("method", "\"\""), "200 1 -32600 method is empty"),
        case(
            "method too long",
            call_with("method", &long_name),
            "200 1 -32600 method name of 129 bytes, at most 128 are allowed",
        ),
        case(
            "method with half a character",
            call_with("method", "\"\\ud800\""),
            "200 1 -32600 method is not valid unicode",
        ),
        case(
            "method written with escapes",
            call_with("method", r#""\u0065th_chainI\u0064""#),
            CALL_OK,
        ),
        case(
            "method with a line break",
            call_with("method", "\"eth\\r\\nX: y\""),
            "200 1 -32600 method holds a character other than A-Z, a-z, 0-9, _ and .",
        ),
        case("params as a string", call_with("params", "\"latest\""), bad_params),
        case("params as a number", call_with("params", "1"), bad_params),
        case("params null", call_with("params", "null"), CALL_OK),
        case("no params", call_with("params", ""), CALL_OK),
        case("id twice", r#"{"id":1,"id":2,"method":"eth_chainId"}"#, &twice(8)),
        case("method twice", r#"{"id":1,"method":"eth_chainId","method":"admin_x"}"#, &twice(31)),
        case(
            "twice by escapes",
            r#"{"id":1,"method":"eth_chainId","m\u0065thod":"x"}"#,
            &twice(31),
        ),
        case(
            "twice within params",
            call_with("params", r#"[{"to":"0x1","to":"0x2"}]"#),
            &twice(69),
        ),
        case("a foreign member", r#"{"id":1,"method":"eth_chainId","x":{"y":[]}}"#, CALL_OK),
    ];
    check(&mut gateway, &cases);
    assert_memory_bounded(&gateway, before);
}

#[test]
fn sizes_are_bounded_to_the_byte() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let padded = |bytes: usize| format!("{CALL}{}", " ".repeat(bytes - CALL.len()));
    let members: Vec<_> = (0..200_000).map(|at| format!("\"{at}\":0")).collect();
    let numbers = format!("[{}0]", "0,".repeat(999_999));
    let too_large = format!("413 null -32600 body exceeds the limit of {BODY_BYTES_MAX} bytes");
    let mut over = case("one byte over", padded(BODY_BYTES_MAX + 1), &too_large);
    over.after = After::Closed;
    let cases = [
        case("the longest body", padded(BODY_BYTES_MAX), CALL_OK),
        over,
        // The gateway must not need quadratic time to find repeated names.
        case(
            "200,000 names",
            call_with("params", &format!("[{{{}}}]", members.join(","))),
            CALL_OK,
        ),
        case(
            "10^6 parameters",
            call_with("params", &numbers),
            "200 1 -32602 too many arguments, want at most 8",
        ),
    ];
    let began = std::time::Instant::now();
    check(&mut gateway, &cases);
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    assert_memory_bounded(&gateway, before);
}
