//! Goal: a URL is split into the right parts and prints no secret. Method: tables of URLs.

use super::*;

/// Parses a URL. Returns whether it uses TLS, its host, its port, its authority and its target.
fn parts(text: &str) -> (bool, String, u16, String, String) {
    let url = NodeUrl::parse(text).unwrap();
    (
        url.tls(),
        url.host().to_owned(),
        url.port(),
        url.authority().to_owned(),
        url.target().to_owned(),
    )
}

#[test]
fn urls_are_split_into_parts() {
    let parts_of = |tls: bool, host: &str, port: u16, authority: &str, target: &str| {
        (tls, host.to_owned(), port, authority.to_owned(), target.to_owned())
    };
    let cases = [
        ("http://127.0.0.1:8545", parts_of(false, "127.0.0.1", 8545, "127.0.0.1:8545", "/")),
        ("https://Node.Example/", parts_of(true, "node.example", 443, "node.example", "/")),
        ("http://node", parts_of(false, "node", 80, "node", "/")),
        ("http://[::1]:9500/rpc", parts_of(false, "::1", 9500, "[::1]:9500", "/rpc")),
        ("https://[::1]", parts_of(true, "::1", 443, "[::1]", "/")),
        ("https://u:p@h/v2/KEY?a=b", parts_of(true, "h", 443, "h", "/v2/KEY?a=b")),
        ("https://h?apikey=x", parts_of(true, "h", 443, "h", "/?apikey=x")),
        ("ws://h", parts_of(false, "h", 80, "h", "/")),
        ("wss://h:8546/v3/KEY", parts_of(true, "h", 8546, "h:8546", "/v3/KEY")),
        ("ipc:/var/lib/geth.ipc", parts_of(false, "", 0, "", "/var/lib/geth.ipc")),
        ("ipc:///var/lib/geth.ipc", parts_of(false, "", 0, "", "/var/lib/geth.ipc")),
    ];
    for (text, expected) in cases {
        assert_eq!(parts(text), expected, "{text}");
    }
}

#[test]
fn user_part_becomes_basic_authorization() {
    let url = NodeUrl::parse("http://Aladdin:open%20sesame@h").unwrap();
    // The example of RFC 7617 section 2.
    assert_eq!(url.authorization().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    assert!(url.authorization().unwrap().is_sensitive());
    assert!(NodeUrl::parse("http://h").unwrap().authorization().is_none());
}

#[test]
fn secrets_are_not_printed() {
    let cases = [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        (
            "https://mainnet.infura.io/v3/84842078b09946638c03157f83405213",
            "https://mainnet.infura.io/v3/***",
        ),
        ("https://user:pass@node.example/rpc", "https://***@node.example/rpc"),
        (
            "https://lb.drpc.org/ogrpc?network=ethereum&dkey=Ak765fp4",
            "https://lb.drpc.org/ogrpc?***",
        ),
        ("https://x.quiknode.pro/0123456789abcdef0123/", "https://x.quiknode.pro/***/"),
        (
            "https://0123456789abcdef0123456789abcdef.eth.rpc.rivet.cloud/",
            "https://***.eth.rpc.rivet.cloud",
        ),
        ("http://[::1]:9500/ext/bc/C/rpc", "http://[::1]:9500/ext/bc/C/rpc"),
        ("https://h/api/v1/hmy/v2", "https://h/api/v1/hmy/v2"),
        ("https://h/s3cr3t1", "https://h/***"),
        ("https://h/hunter", "https://h/***"),
        ("https://h/eth-mainnet/abc12", "https://h/eth-mainnet/***"),
        ("https://h/Pa.ss/rpc/v123", "https://h/***/rpc/***"),
        ("wss://u:p@h/0123456789", "wss://***@h/***"),
        ("ipc:/var/lib/geth.ipc", "ipc:/var/lib/geth.ipc"),
    ];
    for (text, expected) in cases {
        let url = NodeUrl::parse(text).unwrap();
        assert_eq!(url.to_string(), expected);
        assert_eq!(format!("{url:?}"), expected);
    }
}

#[test]
fn texts_that_may_be_keys_are_masked() {
    let cases = [
        ("not a url with KEY", "***"),
        ("KEY", "***"),
        ("localhost:8545", "localhost:8545"),
        ("127.0.0.1:8545/v3/0123456789", "127.0.0.1:8545/v3/***"),
        ("wss://h/0123456789", "wss://h/***"),
        ("KEY://h", "***"),
        ("htp://h/v3/0123456789", "htp://h/v3/***"),
        ("htps://u:p@h/rpc?key=0123456789", "htps://***@h/rpc?***"),
        ("abcdefg://h", "***"),
    ];
    for (text, expected) in cases {
        assert_eq!(mask_url(text), expected);
    }
}

#[test]
fn references_are_printed_and_the_text_around_them_is_masked() {
    let cases = [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("https://h/v3/${env:KEY}", "https://h/v3/${env:KEY}"),
        ("https://${env:HOST}/sekrit/${file:/a/b}", "https://${env:HOST}/***/${file:/a/b}"),
        ("https://u:${env:P}@h/rpc?key=${env:KEY}", "https://***@h/rpc?***"),
        ("https://h/sekrit${env:KEY}/api${n}", "https://h/***/api${n}"),
        (
            "https://long-endpoint-${env:NAME}.h/${env:A}${env:B}",
            "https://long-endpoint-${env:NAME}.h/${env:A}${env:B}",
        ),
        ("${env:URL}", "***"),
        ("${env:URL:-https://u:sekrit@h/rpc}", "${env:URL:-https://***@h/rpc}"),
        ("https://h/${env:KEY:-sekrit}", "***"),
        ("https://h/${env:KEY", "***"),
        ("https://h/~rpc~/${env:KEY}", "***"),
        ("https://h/~rpc~", "https://h/~rpc~"),
    ];
    for (text, expected) in cases {
        assert_eq!(mask_around_references(text), expected, "{text}");
    }
}

#[test]
fn parse_http_rejects_other_schemes() {
    assert_eq!(NodeUrl::parse_http("HTTPS://h").unwrap().port(), 443);
    for text in ["", "h", "ws://h", "ipc:/a", "ftp://h"] {
        let error = NodeUrl::parse_http(text).unwrap_err();
        assert_eq!(error, "a url begins with http:// or https://", "{text}");
    }
    assert_eq!(NodeUrl::parse_http("http://h:0"), Err("the port is not one of 1 to 65535"));
}

#[test]
fn parse_remote_rejects_local_sockets() {
    for (text, transport) in [("HTTPS://h", Transport::Http), ("WSS://h", Transport::WebSocket)] {
        assert_eq!(NodeUrl::parse_remote(text).unwrap().transport(), transport);
    }
    for text in ["", "h", "ipc:/a", "ftp://h"] {
        let error = NodeUrl::parse_remote(text).unwrap_err();
        assert_eq!(error, "a url begins with http://, https://, ws:// or wss://", "{text}");
    }
    assert_eq!(NodeUrl::parse_remote("ws://h:0"), Err("the port is not one of 1 to 65535"));
}

#[test]
fn errors_repeat_no_part_of_the_url() {
    let cases = [
        ("127.0.0.1:8545", "a url begins with http://, https://, ws://, wss:// or ipc:"),
        ("ftp://h", "the scheme is none of http, https, ws, wss and ipc"),
        ("ipc:geth.ipc", "after ipc: comes the whole path of a socket, such as ipc:/var/geth.ipc"),
        ("ipc:/var/", "after ipc: comes the whole path of a socket, such as ipc:/var/geth.ipc"),
        ("ipc:", "after ipc: comes the whole path of a socket, such as ipc:/var/geth.ipc"),
        ("ws://h/#x", "a url of a node has no fragment (#)"),
        ("http://", "not a url"),
        ("http://h/#x", "a url of a node has no fragment (#)"),
        ("http://h:0", "the port is not one of 1 to 65535"),
        ("http://h:99999", "the port is not one of 1 to 65535"),
        ("http://h h", "not a url"),
        ("http://a%2:b@h", "the user part has a bad % escape"),
    ];
    for (text, expected) in cases {
        assert_eq!(NodeUrl::parse(text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn the_scheme_decides_the_transport() {
    let transport_of = |text: &str| NodeUrl::parse(text).unwrap().transport();
    assert_eq!(transport_of("https://h"), Transport::Http);
    assert_eq!(transport_of("WSS://h"), Transport::WebSocket);
    assert_eq!(transport_of("ipc:/a"), Transport::Ipc);
    assert_eq!(NodeUrl::parse("ipc:/var/lib/geth.ipc").unwrap().default_name(), "ipc:geth.ipc");
    let long = format!("ipc:/{}", "a".repeat(SOCKET_PATH_BYTES_MAX));
    assert_eq!(NodeUrl::parse(&long), Err("the path of a socket has at most 107 bytes"));
}

#[test]
fn secrets_are_masked_in_texts_of_the_node() {
    let url = NodeUrl::parse("https://h/v2/0123456789ab?key=0123456789abcdef").unwrap();
    let text = "no quota for 0123456789abcdef at /v2/0123456789ab, token sekrit-token";
    let masked = url.mask_secrets_in(text, ["Bearer sekrit-token"]);
    assert_eq!(masked, "no quota for *** at /v2/***, token ***");
    assert_eq!(url.mask_secrets_in("Bearer of v2", ["Bearer sekrit-token"]), "Bearer of v2");
}
