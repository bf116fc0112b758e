//! Requests that are not HTTP, and requests that are unusual or ambiguous. Two parsers could find
//! different ends of an ambiguous request (request smuggling). So the gateway refuses such requests
//! and closes the connection.

use std::io::Write;

use super::{After, CALL, CALL_OK, Case, assert_memory_bounded, check, start_gateway};
use test_support::raw::post_with;

// Expected responses, as `describe` writes them.
const SYNTAX: &str = "400 null -32600 request line or header is not valid HTTP/1.1";
const LENGTH: &str = "400 null -32600 Content-Length must be given once, in decimal digits";
const BOTH: &str = "400 null -32600 both Content-Length and Transfer-Encoding are given";
const CODING: &str = "400 null -32600 Transfer-Encoding must be `chunked`, once, in HTTP/1.1";
const BARE: &str = "400 null -32600 line ends in a bare line feed; CR LF is required";
const HOST: &str = "400 null -32600 exactly one Host header is required";
const BAD_HOST: &str = "400 null -32600 Host must be a name or an address, optionally with a port";
const VERSION: &str = "505 null -32603 HTTP version is not supported; use 1.0, 1.1 or 2";
const HEADERS: &str = "431 null -32600 more than 64 header lines";
const HEAD: &str = "431 null -32600 request head exceeds the size limit";
const SIZE: &str = "400 null -32600 chunk size must be 1 to 8 hexadecimal digits followed by CR LF";
const CHUNK_END: &str = "400 null -32600 chunk must end in CR LF";
const TRAILER: &str = "400 null -32600 trailer section is over 8 KiB or malformed";
const TOO_LARGE: &str = "413 null -32600 body exceeds the limit of 5242880 bytes";
const METHOD: &str = "405 null -32600 method must be POST, GET, HEAD or OPTIONS";
const MEDIA: &str = "415 null -32600 content-type must be application/json, \
                     application/json-rpc or application/jsonrequest; \
                     downstream.content_type = 'lenient' accepts any";
const PACKING: &str = "415 null -32600 content-encoding must be gzip, zstd or identity";
const UNPACKABLE: &str = "400 null -32600 body does not match its content-encoding";
const NOWHERE: &str = "404 null -32600 no chain is served at this path";

/// A second request, which a case hides in the body of a first one. The gateway must not serve it.
const HIDDEN: &str = "POST / HTTP/1.1\r\nHost: hidden\r\nContent-Type: application/json\r\n\
                      Content-Length: 0\r\n\r\n";

/// A case after which the connection stays open.
fn open(name: &str, bytes: impl AsRef<[u8]>, expected: &str) -> Case {
    case(name, bytes, expected, After::Open)
}

/// A case after which the gateway closes the connection.
fn closed(name: &str, bytes: impl AsRef<[u8]>, expected: &str) -> Case {
    case(name, bytes, expected, After::Closed)
}

fn case(name: &str, bytes: impl AsRef<[u8]>, expected: &str, after: After) -> Case {
    let (name, expected) = (name.to_owned(), expected.to_owned());
    Case { name, bytes: bytes.as_ref().to_vec(), expected, after }
}

/// A request without a body: this request line, a `Host` header and these header lines.
fn head(request_line: &str, headers: &str) -> String {
    format!("{request_line}\r\nHost: localhost\r\n{headers}\r\n")
}

/// A POST request with this body. `headers` must declare the length of the body.
fn framed(headers: &str, body: &str) -> String {
    let headers = format!("Content-Type: application/json\r\n{headers}");
    format!("{}{body}", head("POST / HTTP/1.1", &headers))
}

/// A POST request with a chunked body. `body` has the chunks with their sizes.
fn chunks(body: &str) -> String {
    framed("Transfer-Encoding: chunked\r\n", body)
}

/// A POST request with [`CALL`] as one chunk. `size` is the text of the chunk's size.
fn sized(size: &str) -> String {
    chunks(&format!("{size}\r\n{CALL}\r\n0\r\n\r\n"))
}

#[test]
fn ambiguous_lengths_are_refused() {
    let (_node, mut gateway) = start_gateway("");
    let n = CALL.len();
    let length = |value: &str| framed(&format!("Content-Length:{value}\r\n"), CALL);
    let coding = |value: &[u8]| {
        let head = framed("Transfer-Encoding: ", "");
        let body = format!("\r\n\r\n{n:x}\r\n{CALL}\r\n0\r\n\r\n");
        [&head.as_bytes()[..head.len() - 2], value, body.as_bytes()].concat()
    };
    let mut cases = vec![
        closed(
            "both lengths",
            framed(
                &format!("Content-Length: {n}\r\nTransfer-Encoding: chunked\r\n"),
                &format!("0\r\n\r\n{HIDDEN}"),
            ),
            BOTH,
        ),
        closed(
            "both lengths, the other way round",
            framed(
                &format!("Transfer-Encoding: chunked\r\nContent-Length: {n}\r\n"),
                &format!("0\r\n\r\n{HIDDEN}"),
            ),
            BOTH,
        ),
        closed(
            "two equal lengths",
            framed(&format!("Content-Length: {n}\r\n").repeat(2), CALL),
            LENGTH,
        ),
        closed(
            "two lengths",
            framed(&format!("Content-Length: 0\r\ncontent-length: {n}\r\n"), CALL),
            LENGTH,
        ),
        closed("a length beyond 64 bits", length("18446744073709551616"), LENGTH),
        closed("1 GiB to come", length(" 1073741824"), TOO_LARGE),
        closed("the longest length", length(" 18446744073709551615"), TOO_LARGE),
        open("white space around the length", length(&format!("\t {n} \t")), CALL_OK),
    ];
    for value in
        ["+60", "-1", "0x3c", "60,60", "60, 60", "6 0", "", "60;", "60.0", "6_0", "\u{661}"]
    {
        let bytes = length(&format!(" {value}"));
        cases.push(closed(&format!("length {value:?}"), bytes, LENGTH));
    }
    let codings: [&[u8]; 10] = [
        b"xchunked",
        b"chunkedx",
        b"identity",
        b"gzip, chunked",
        b"chunked, identity",
        b"chunked, chunked",
        b"\"chunked\"",
        b"chunked;q=1",
        b"",
        b"chunked\r\nTransfer-Encoding: chunked",
    ];
    for value in codings {
        let name = format!("coding {}", value.escape_ascii());
        cases.push(closed(&name, coding(value), CODING));
    }
    cases.extend([
        open("coding in capitals", coding(b"ChUnKeD"), CALL_OK),
        open("white space around the coding", coding(b" chunked\t "), CALL_OK),
        closed("a vertical tab before the coding", coding(b"\x0bchunked"), SYNTAX),
        closed("a zero byte in the coding", coding(b"chunked\0"), SYNTAX),
        closed(
            "chunks in HTTP/1.0",
            String::from_utf8(coding(b"chunked")).unwrap().replace("HTTP/1.1", "HTTP/1.0"),
            CODING,
        ),
    ]);
    check(&mut gateway, &cases);
}

#[test]
fn chunks_are_read_strictly() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let n = CALL.len();
    let trailer = |lines: &str| chunks(&format!("{n:x}\r\n{CALL}\r\n0\r\n{lines}\r\n"));
    let mut one_by_one = String::new();
    for byte in CALL.chars() {
        one_by_one.push_str(&format!("1\r\n{byte}\r\n"));
    }
    let mut cases = vec![
        open("a byte each", chunks(&format!("{one_by_one}0\r\n\r\n")), CALL_OK),
        open("digits in capitals", sized(&format!("{n:X}")), CALL_OK),
        open("leading zeros", sized(&format!("{n:08x}")), CALL_OK),
        open("an extension", sized(&format!("{n:x};name=\"a b\"")), CALL_OK),
        open("an extension behind white space", sized(&format!("{n:x} ; name")), CALL_OK),
        open("a trailer", trailer("Content-Length: 7\r\nX: y\r\n"), CALL_OK),
        open(
            "no bytes",
            chunks("0\r\n\r\n"),
            "200 null -32700 empty body where a json-rpc call is needed",
        ),
        closed("nine digits", sized(&format!("{n:09x}")), SIZE),
        closed("an endless extension", sized(&format!("{n:x};{}", "x".repeat(300))), SIZE),
        closed("a size of 4 GiB", chunks("FFFFFFFF\r\n"), TOO_LARGE),
        closed(
            "sizes that add up to too much",
            chunks(&format!("1\r\n{{\r\n{:x}\r\n", 5 << 20)),
            TOO_LARGE,
        ),
        closed("a size that wraps around", chunks("10000000000000000\r\n"), SIZE),
        closed(
            "a chunk too short",
            chunks(&format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", n - 1)),
            CHUNK_END,
        ),
        closed(
            "a chunk too long",
            chunks(&format!("{:x}\r\n{CALL}\r\n0\r\n\r\n", n + 1)),
            CHUNK_END,
        ),
        closed("a chunk without its end", chunks(&format!("{n:x}\r\n{CALL}0\r\n\r\n")), CHUNK_END),
        closed(
            "a bare line feed behind a size",
            chunks(&format!("{n:x}\n{CALL}\r\n0\r\n\r\n")),
            SIZE,
        ),
        closed(
            "a bare line feed behind a chunk",
            chunks(&format!("{n:x}\r\n{CALL}\n0\r\n\r\n")),
            CHUNK_END,
        ),
        closed("a bare line feed in an extension", sized(&format!("{n:x};a\nb")), SIZE),
        closed("a bare line feed in a trailer", trailer("X: y\n"), TRAILER),
        closed("an endless trailer", trailer(&format!("X: {}\r\n", "y".repeat(9000))), TRAILER),
        closed("an endless run of trailers", trailer(&"X: y\r\n".repeat(2000)), TRAILER),
    ];
    for size in
        ["", "zz", "-1", "+3c", "0x3c", "3c g", " 3c", "3c\r", "3c;a\rb", "3c\0", "\u{ff13}c"]
    {
        let name = format!("size {size:?}");
        cases.push(closed(&name, sized(size), SIZE));
    }
    check(&mut gateway, &cases);
    assert_memory_bounded(&gateway, before);
}

#[test]
fn heads_are_read_strictly() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let n = CALL.len();
    let length = format!("Content-Length: {n}\r\n");
    let lines = |more: &str| framed(&format!("{more}{length}"), CALL);
    let line = |line: &str| {
        let lines = format!("Content-Type: application/json\r\n{length}");
        format!("{}{CALL}", head(line, &lines))
    };
    let hosts = |hosts: &str| lines("").replace("Host: localhost\r\n", hosts);
    let bare = |from: &str, to: &str| lines("X: y\r\n").replacen(from, to, 1);
    let cases = [
        open("empty lines before", format!("\r\n\r\n{}", lines("")), CALL_OK),
        open("bytes beyond ASCII in a value", lines("X: \u{e9}\r\n"), CALL_OK),
        open("an empty value", lines("X:\r\n"), CALL_OK),
        closed(
            "a bare line feed behind the request line",
            bare("HTTP/1.1\r\n", "HTTP/1.1\n"),
            BARE,
        ),
        closed("a bare line feed behind a header", bare("X: y\r\n", "X: y\n"), BARE),
        closed("a bare line feed as the end", bare("\r\n\r\n", "\r\n\n"), BARE),
        closed("bare line feeds alone", lines("").replace("\r\n", "\n"), BARE),
        closed("a bare line feed first", format!("\n{}", lines("")), BARE),
        closed("a bare carriage return", bare("X: y\r\n", "X: y\rZ: z\r\n"), SYNTAX),
        closed("a folded header", lines("X: y\r\n z\r\n"), SYNTAX),
        closed(
            "a folded length",
            lines("").replace("Content-Length: ", "Content-Length:\r\n "),
            SYNTAX,
        ),
        closed("white space before the first header", lines("").replace("Host", " Host"), SYNTAX),
        closed("white space before a colon", lines("").replace("Length:", "Length :"), SYNTAX),
        closed("a tab before a colon", lines("").replace("Length:", "Length\t:"), SYNTAX),
        closed("no name", lines(": y\r\n"), SYNTAX),
        closed("no colon", lines("X\r\n"), SYNTAX),
        closed("a name of two words", lines("X Y: z\r\n"), SYNTAX),
        closed("a zero byte in a value", lines("X: \0\r\n"), SYNTAX),
        closed("a zero byte in a name", lines("X\0: y\r\n"), SYNTAX),
        closed("no host", hosts(""), HOST),
        closed("two hosts", hosts("Host: a\r\nHost: b\r\n"), HOST),
        closed("a host of two words", hosts("Host: a b\r\n"), BAD_HOST),
        closed("a host with a path", hosts("Host: a/b\r\n"), BAD_HOST),
        closed("HTTP/2.0 as text", line("POST / HTTP/2.0"), VERSION),
        closed("HTTP/1.2", line("POST / HTTP/1.2"), VERSION),
        closed("HTTP/0.9", "GET /\r\n\r\n", SYNTAX),
        closed("no version", line("POST /"), SYNTAX),
        closed("two spaces", line("POST  / HTTP/1.1"), SYNTAX),
        closed("a space in the target", line("POST /a b HTTP/1.1"), VERSION),
        closed("a zero byte in the target", line("POST /\0 HTTP/1.1"), SYNTAX),
        closed("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", SYNTAX),
        closed("another protocol", "SSH-2.0-OpenSSH_9.6\r\n", SYNTAX),
        closed("65 headers", lines(&"X: y\r\n".repeat(62)), HEADERS),
        open("64 headers", lines(&"X: y\r\n".repeat(61)), CALL_OK),
        closed("10,000 headers", lines(&"X: y\r\n".repeat(10_000)), HEADERS),
        closed("a header of 20 kB", lines(&format!("X: {}\r\n", "y".repeat(20_000))), HEAD),
        closed("a header of 10 MB", lines(&format!("X: {}\r\n", "y".repeat(10_000_000))), HEAD),
        closed("a target of 20 kB", line(&format!("POST /{} HTTP/1.1", "a".repeat(20_000))), HEAD),
        closed(
            "another expectation",
            lines("Expect: 200-ok\r\n"),
            "417 null -32600 expectation is not `100-continue`",
        ),
    ];
    check(&mut gateway, &cases);
    assert_memory_bounded(&gateway, before);
}

#[test]
fn targets_methods_and_types_are_distinguished() {
    let (_node, mut gateway) = start_gateway("");
    let n = CALL.len();
    let json = format!("Content-Type: application/json\r\nContent-Length: {n}\r\n");
    let to_target =
        |target: &str| format!("{}{CALL}", head(&format!("POST {target} HTTP/1.1"), &json));
    let with_method =
        |method: &str| format!("{}{CALL}", head(&format!("{method} / HTTP/1.1"), &json));
    let typed = |line: &str| {
        format!("{}{CALL}", head("POST / HTTP/1.1", &format!("{line}Content-Length: {n}\r\n")))
    };
    let http10 = |headers: &str| {
        with_method("POST").replace("HTTP/1.1", "HTTP/1.0").replace("Host: localhost\r\n", headers)
    };
    let mut cases = vec![
        open("the absolute form", to_target("http://elsewhere.example/eth?a#b"), CALL_OK),
        open("the absolute form without a path", to_target("http://elsewhere.example"), CALL_OK),
        open("a query", to_target("/eth?key=1"), CALL_OK),
        open("an unknown path", to_target("/nowhere"), NOWHERE),
        open("a path with dots", to_target("/nowhere/../eth"), NOWHERE),
        open("an encoded path", to_target("/%65th"), NOWHERE),
        open("two slashes", to_target("//eth"), NOWHERE),
        open("a name and a port", to_target("elsewhere.example:443"), NOWHERE),
        open("POST in small letters", with_method("post"), METHOD),
        open("PUT", with_method("PUT"), METHOD),
        open("TRACE", with_method("TRACE"), METHOD),
        open("CONNECT", with_method("CONNECT"), METHOD),
        open("a method of one's own", with_method("M-SEARCH"), METHOD),
        open("GET", head("GET / HTTP/1.1", ""), "200 service"),
        open("GET with a body", with_method("GET"), "200 service"),
        open("GET of an unknown path", head("GET /nowhere HTTP/1.1", ""), NOWHERE),
        open("OPTIONS", head("OPTIONS /eth HTTP/1.1", "Origin: https://a.example\r\n"), "204"),
        open(
            "no body",
            framed("", ""),
            "200 null -32700 empty body where a json-rpc call is needed",
        ),
        closed("HTTP/1.0", http10(""), CALL_OK),
        open("HTTP/1.0 that stays", http10("Connection: keep-alive\r\n"), CALL_OK),
        closed(
            "a connection to close",
            to_target("/").replace("Host:", "Connection: x, Close\r\nHost:"),
            CALL_OK,
        ),
        open(
            "a type with a parameter",
            typed("Content-Type: application/json; charset=utf-8\r\n"),
            CALL_OK,
        ),
        open("application/json-rpc", typed("Content-Type: Application/JSON-RPC\r\n"), CALL_OK),
        open(
            "application/jsonrequest",
            typed("Content-Type: application/jsonrequest\r\n"),
            CALL_OK,
        ),
    ];
    for line in [
        "",
        "Content-Type:\r\n",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/jsonx\r\n",
        "Content-Type: multipart/form-data; boundary=application/json\r\n",
    ] {
        cases.push(open(&format!("type {line:?}"), typed(line), MEDIA));
    }
    check(&mut gateway, &cases);
}

#[test]
fn packed_bodies_are_bounded() {
    let (_node, mut gateway) = start_gateway("");
    let (before, _) = gateway.memory();
    let gzip = |body: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |body: &[u8]| zstd::encode_all(body, 19).unwrap();
    let packed = |coding: &str, body: &[u8]| {
        post_with("/", &format!("Content-Encoding: {coding}\r\n"), body)
    };
    // Decompressed, each bomb is twelve times the size limit. Compressed, it is below the limit.
    let blank = vec![b' '; 64 << 20];
    let (gzip_bomb, zstd_bomb) = (gzip(&blank), zstd(&blank));
    drop(blank);
    assert!(gzip_bomb.len() < 1 << 20 && zstd_bomb.len() < 1 << 20);
    // RFC 9659 limits the window of zstd to 8 MiB by default. This window is 128 MiB.
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(27).unwrap();
    wide.write_all(CALL.as_bytes()).unwrap();
    let wide = wide.finish().unwrap();
    let good = gzip(CALL.as_bytes());
    let mut damaged = good.clone();
    let last = damaged.len() - 6;
    damaged[last] ^= 1;
    let mut cases = vec![
        open("gzip", packed("gzip", &good), CALL_OK),
        open("GZIP", packed("GZIP", &good), CALL_OK),
        open("zstd", packed("zstd", &zstd(CALL.as_bytes())), CALL_OK),
        open("identity", packed("identity", CALL.as_bytes()), CALL_OK),
        closed("brotli", packed("br", &good), PACKING),
        closed("gzip twice", packed("gzip, gzip", &gzip(&good)), PACKING),
        closed("not gzip", packed("gzip", CALL.as_bytes()), UNPACKABLE),
        closed("not zstd", packed("zstd", CALL.as_bytes()), UNPACKABLE),
        closed("cut gzip", packed("gzip", &good[..good.len() - 9]), UNPACKABLE),
        closed("damaged gzip", packed("gzip", &damaged), UNPACKABLE),
        closed("zstd with a window of 128 MiB", packed("zstd", &wide), UNPACKABLE),
        closed("cut zstd", packed("zstd", &zstd(CALL.as_bytes())[..20]), UNPACKABLE),
    ];
    for (coding, bomb) in [("gzip", gzip_bomb), ("zstd", zstd_bomb)] {
        for round in 0..20 {
            cases.push(closed(&format!("{coding} bomb {round}"), packed(coding, &bomb), TOO_LARGE));
        }
    }
    check(&mut gateway, &cases);
    assert_memory_bounded(&gateway, before);
}
