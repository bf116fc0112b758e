//! Goal: TLS with clients works as documented: versions, ciphers, names, resumption, client
//! certificates, HTTP/2; failed handshakes affect no other client. Method: real sockets, generated
//! certificates, rustls as the client. The client reports the negotiated parameters, `/metrics` the
//! counts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gateway::config::Config;
use rustls::HandshakeKind::{Full, Resumed};
use rustls::ProtocolVersion;

use crate::support::authority::{self, Authority, Files, Kind};
use crate::support::guest::{Guest, Talk};
use crate::support::scene::{self, HEAD, Scene, SimNode, polled_once};
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The server name that clients send in most tests.
const NAME: &str = "rpc.test";

/// A gateway with TLS, on two threads, in front of one node.
struct TlsGateway {
    /// `None` once the gateway is stopped.
    inner: Option<gateway::runtime::Gateway>,
    /// Address of the TLS listener.
    address: String,
    /// Address of the listener without TLS.
    plain_address: String,
    admin: String,
}

impl TlsGateway {
    fn start(node: &SimNode, files: &Files, text: &str) -> TlsGateway {
        TlsGateway::with_config(TlsGateway::config(node, files, text))
    }

    fn config(node: &SimNode, files: &Files, text: &str) -> Config {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nlisten_tls = \"127.0.0.1:0\"\n\
             admin = \"127.0.0.1:0\"\nthreads = 2\ndrain_deadline = \"5s\"\n{text}\n{}\n{}",
            polled_once(""),
            node.entry("")
        );
        let config = Config::from_text("test", &text, files.folder(), &|_| None);
        config.unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn with_config(config: Config) -> TlsGateway {
        TlsGateway::from_gateway(gateway::runtime::Gateway::start(config).unwrap())
    }

    fn from_gateway(gateway: gateway::runtime::Gateway) -> TlsGateway {
        let address = gateway.listen_tls.unwrap().to_string();
        let (plain_address, admin) =
            (gateway.listen.to_string(), gateway.admin.unwrap().to_string());
        TlsGateway { inner: Some(gateway), address, plain_address, admin }
    }

    /// Returns the value of a metric. `series` is its name with its labels.
    fn metric(&self, series: &str) -> u64 {
        let mut client = raw::Client::connect(&self.admin);
        client.send(b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n");
        let text = client.read_response().unwrap();
        let text = text.text();
        let found = text.lines().find_map(|row| row.strip_prefix(series));
        found.unwrap_or_else(|| panic!("no {series} in {text}")).trim().parse().unwrap()
    }

    /// Returns the number of failed handshakes with this reason.
    fn failed(&self, reason: &str) -> u64 {
        self.metric(&format!("weir_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
    }

    fn wait_for_failed(&self, reason: &str, count: u64) {
        wait_until(&format!("{count} handshakes failed by {reason}"), || {
            self.failed(reason) == count
        });
    }
}

impl Drop for TlsGateway {
    fn drop(&mut self) {
        if let Some(gateway) = self.inner.take() {
            gateway.stop();
        }
    }
}

/// Returns a scene with one node, a certificate authority, and its certificate for [`NAME`].
fn set_up() -> (Scene, SimNode, Authority, Files) {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let authority = Authority::new("authority");
    let mut files = Files::new();
    files.certificate("own", &authority, Kind::Ecdsa, &[NAME]);
    (scene, node, authority, files)
}

/// Configuration of the gateway's usual certificate.
const CERTIFICATE: &str = "[[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n";

#[test]
fn calls_are_answered_with_and_without_tls() {
    let (_scene, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let client = Guest::new(&authority);
    let mut connection = client.connect(&gateway.address, NAME).unwrap();
    let call = scene::body("eth_getBlockByNumber", "[\"0x10\",true]");
    let expected = raw::Client::connect(&gateway.plain_address).call("/", &call).body;
    for _ in 0..3 {
        assert_eq!(connection.post(&call), expected, "one connection carries several calls");
    }
    // A response of many TLS records, more than rustls buffers.
    let items: Vec<_> = (0..500)
        .map(|at| scene::body("eth_getBlockByNumber", &format!("[\"{:#x}\",true]", at % 64)))
        .collect();
    let batch = [b"[", &items.join(&b","[..])[..], b"]"].concat();
    let expected = raw::Client::connect(&gateway.plain_address).call("/", &batch).body;
    assert!(expected.len() > 300_000, "{}", expected.len());
    assert!(connection.post(&batch) == expected, "a long response arrives unchanged");
    assert!(batch.len() > 20_000, "the request is long too");
    assert_eq!(gateway.metric("weir_tls_handshakes_total{version=\"1.3\",handshake=\"full\"}"), 1);
    // A stop does not wait for an idle connection.
    let began = Instant::now();
    drop(gateway);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(connection.is_closed());
}

#[test]
fn only_configured_versions_and_ciphers_are_accepted() {
    let (_scene, node, authority, mut files) = set_up();
    files.certificate("rsa", &authority, Kind::Rsa, &[NAME]);
    let rsa = CERTIFICATE.replace("own.", "rsa.");
    // The configuration uses the cipher's OpenSSL name, as nginx does.
    let text = "[tls]\nversions = [\"1.2\"]\nciphers = [\"ECDHE-RSA-AES256-GCM-SHA384\"]\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{rsa}"));
    let connection = Guest::new(&authority).connect(&gateway.address, NAME).unwrap();
    assert_eq!(connection.version(), ProtocolVersion::TLSv1_2);
    assert_eq!(connection.suite(), "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
    let newer = Guest::new(&authority).versions(&["1.3"]);
    assert!(newer.connect(&gateway.address, NAME).is_err(), "TLS 1.3 is not configured");
    let other = Guest::new(&authority).ciphers(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    assert!(other.connect(&gateway.address, NAME).is_err(), "the cipher is not configured");
    gateway.wait_for_failed("nothing_in_common", 2);
    assert_eq!(gateway.metric("weir_tls_handshakes_total{version=\"1.2\",handshake=\"full\"}"), 1);

    // The gateway's order of ciphers wins over the client's.
    let text = "[tls]\nversions = [\"1.3\"]\n\
                ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"TLS_AES_128_GCM_SHA256\"]\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
    let connection = Guest::new(&authority).connect(&gateway.address, NAME).unwrap();
    assert_eq!(
        (connection.version(), connection.suite()),
        (ProtocolVersion::TLSv1_3, "TLS13_CHACHA20_POLY1305_SHA256".into())
    );
    assert!(Guest::new(&authority).versions(&["1.2"]).connect(&gateway.address, NAME).is_err());
    let other = Guest::new(&authority).ciphers(&["TLS13_AES_256_GCM_SHA384"]);
    assert!(other.connect(&gateway.address, NAME).is_err());
}

/// Connects many times with one client. All but the first handshakes must resume the session, on
/// any thread.
fn check_resumed(address: &str, client: &Guest, times: usize) {
    for time in 0..times {
        let mut connection = client.connect(address, NAME).unwrap();
        assert!(connection.get().starts_with("HTTP/1.1 200"));
        let expected = if time == 0 { Full } else { Resumed };
        assert_eq!(connection.kind(), expected, "connection {time}");
    }
}

#[test]
fn sessions_resume_on_every_thread() {
    let (_scene, node, authority, files) = set_up();
    for (text, versions, label) in [
        ("", "1.2", "by ticket"),
        ("[tls]\ntickets = false\n", "1.2", "by session id"),
        ("", "1.3", "by ticket"),
        ("[tls]\ntickets = false\n", "1.3", "by stored session"),
    ] {
        let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
        println!("{versions} {label}");
        check_resumed(&gateway.address, &Guest::new(&authority).versions(&[versions]), 20);
        let resumed =
            format!("weir_tls_handshakes_total{{version=\"{versions}\",handshake=\"resumed\"}}");
        assert_eq!(gateway.metric(&resumed), 19, "{versions} {label}");
    }
    let text = "[tls]\ntickets = false\nsessions_max = 0\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
    for version in ["1.2", "1.3"] {
        let client = Guest::new(&authority).versions(&[version]);
        for _ in 0..3 {
            let mut connection = client.connect(&gateway.address, NAME).unwrap();
            connection.get();
            assert_eq!(connection.kind(), Full, "{version} without tickets and stored sessions");
        }
    }
}

#[test]
fn replicas_with_the_same_keys_resume_each_others_sessions() {
    let (_scene, node, authority, mut files) = set_up();
    let key = |seed: u8| (0..80).map(|index| seed.wrapping_mul(31) ^ index).collect::<Vec<u8>>();
    files.write("one.key", &key(1));
    files.write("two.key", &key(2));
    let start_gateway = |keys: &str| {
        let folder = files.folder().display();
        let certificate = CERTIFICATE.replace("own.", &format!("{folder}/own."));
        let keys = keys.replace('@', &format!("{folder}/"));
        Weir::serve()
            .listen_as_configured()
            .config(&format!(
                "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\nthreads = 1\n\
             [tls]\nticket_key_files = {keys}\n{certificate}{}\n{}",
                polled_once(""),
                node.entry("")
            ))
            .start()
    };
    let first = start_gateway("[\"@one.key\"]");
    let same = start_gateway("[\"@one.key\"]");
    let rotated = start_gateway("[\"@two.key\", \"@one.key\"]");
    let other = start_gateway("[\"@two.key\"]");
    for version in ["1.2", "1.3"] {
        let kind = |from: &Running, to: &Running| {
            let client = Guest::new(&authority).versions(&[version]);
            client.connect(&from.address, NAME).unwrap().get();
            let mut connection = client.connect(&to.address, NAME).unwrap();
            connection.get();
            connection.kind()
        };
        assert_eq!(kind(&first, &same), Resumed, "{version}");
        assert_eq!(kind(&same, &first), Resumed, "{version}");
        assert_eq!(
            kind(&first, &rotated),
            Resumed,
            "{version}: the old key still decrypts tickets"
        );
        assert_eq!(kind(&rotated, &other), Resumed, "{version}: the first key encrypts tickets");
        assert_eq!(kind(&first, &other), Full, "{version}: a ticket of an unknown key is ignored");
    }
}

#[test]
fn a_reload_changes_certificates_and_keeps_sessions_if_tls_settings_are_equal() {
    let (_scene, node, authority, mut files) = set_up();
    files.certificate("new", &authority, Kind::Ecdsa, &[NAME]);
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    let other = CERTIFICATE.replace("own.", "new.");
    let after_reload = |before: &str, after: &str, version: &str| {
        let gateway = TlsGateway::start(&node, &files, &format!("{before}{CERTIFICATE}"));
        let client = Guest::new(&authority).versions(&[version]);
        let mut open_connection = client.connect(&gateway.address, NAME).unwrap();
        open_connection.get();
        assert_eq!(files.name_of(&open_connection.certificate()), "own");
        let after = TlsGateway::config(&node, &files, &format!("{after}{other}"));
        gateway.inner.as_ref().unwrap().reload(after);
        open_connection.get();
        let new_connection = Guest::trusting().connect(&gateway.address, NAME).unwrap();
        assert_eq!(files.name_of(&new_connection.certificate()), "new");
        let mut connection = client.connect(&gateway.address, NAME).ok()?;
        connection.try_get()?;
        Some(connection.kind())
    };
    for version in ["1.2", "1.3"] {
        assert_eq!(after_reload("", "", version), Some(Resumed), "{version} by ticket");
        let without_tickets = "[tls]\ntickets = false\n";
        assert_eq!(
            after_reload(without_tickets, without_tickets, version),
            Some(Resumed),
            "{version} by id"
        );
        let fewer = "[tls]\nsessions_max = 5\n";
        assert_eq!(after_reload("", fewer, version), Some(Full), "{version}: other TLS settings");
    }
    // The reload requires client certificates. In TLS 1.2 the handshake itself fails without one.
    let stricter = "[tls]\nclient_ca = \"clients.pem\"\n";
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let clients = ["1.2", "1.3"].map(|version| Guest::new(&authority).versions(&[version]));
    for client in &clients {
        check_resumed(&gateway.address, client, 2);
    }
    let after = TlsGateway::config(&node, &files, &format!("{stricter}{CERTIFICATE}"));
    gateway.inner.as_ref().unwrap().reload(after);
    for client in &clients {
        let response = client
            .connect(&gateway.address, NAME)
            .ok()
            .and_then(|mut connection| connection.try_get());
        assert_eq!(response, None);
    }
    gateway.wait_for_failed("certificate_missing", 2);
}

#[test]
fn an_upgraded_process_keeps_the_addresses() {
    let (_scene, node, authority, files) = set_up();
    let first = TlsGateway::start(&node, &files, CERTIFICATE);
    let sockets = first.inner.as_ref().unwrap().sockets().unwrap();
    let config = TlsGateway::config(&node, &files, CERTIFICATE);
    let second = gateway::runtime::Gateway::start_on(config, sockets, None).unwrap();
    let second = TlsGateway::from_gateway(second);
    assert_eq!((&second.address, &second.plain_address), (&first.address, &first.plain_address));
    let mut first = first;
    first.inner.take().unwrap().stop_replaced();
    let client = Guest::new(&authority);
    for _ in 0..10 {
        client.connect(&second.address, NAME).unwrap().get();
        raw::Client::connect(&second.plain_address)
            .call("/", &scene::body("eth_blockNumber", "[]"));
    }
}

/// The example of docs/tls.md is a valid configuration.
#[test]
fn the_example_of_the_tls_page_is_valid() {
    let (_scene, _node, authority, mut files) = set_up();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tls.md");
    let page = std::fs::read_to_string(page).unwrap();
    let text = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    files.certificate("rpc.example", &authority, Kind::Rsa, &["rpc.example"]);
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    for name in ["ticket-now.key", "ticket-before.key"] {
        files.write(name, &[1; 80]);
    }
    let config = Config::from_text("docs/tls.md", text, files.folder(), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(config.listen_tls.as_ref().unwrap().names, [["rpc.example"]]);
}

#[test]
fn the_certificate_follows_the_server_name() {
    let (_scene, node, authority, mut files) = set_up();
    files.certificate("wild", &authority, Kind::Ecdsa, &["*.wild.test"]);
    files.certificate("named", &authority, Kind::Ecdsa, &["inside.test"]);
    files.certificate("rsa", &authority, Kind::Rsa, &[NAME]);
    let entry = |name: &str| CERTIFICATE.replace("own.", &format!("{name}."));
    let named = format!("{}names = [\"other.test\", \"a.wild.test\"]\n", entry("named"));
    let text = [CERTIFICATE, &entry("wild"), &named, &entry("rsa")].concat();
    let gateway = TlsGateway::start(&node, &files, &text);
    let served_certificate = |name: &str| {
        let connection = Guest::trusting().connect(&gateway.address, name).unwrap();
        files.name_of(&connection.certificate())
    };
    assert_eq!(served_certificate(NAME), "own");
    assert_eq!(served_certificate("b.wild.test"), "wild");
    assert_eq!(served_certificate("a.wild.test"), "named", "an exact name wins over a wildcard");
    assert_eq!(served_certificate("other.test"), "named");
    assert_eq!(
        served_certificate("inside.test"),
        "own",
        "configured names replace those of the certificate"
    );
    assert_eq!(served_certificate("c.b.wild.test"), "own");
    assert_eq!(served_certificate("unknown.test"), "own");
    // An IP address is not sent as a server name.
    assert_eq!(served_certificate("127.0.0.1"), "own");
    // A client without ECDSA ciphers gets the RSA certificate.
    let rsa_client =
        Guest::trusting().versions(&["1.2"]).ciphers(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
    let connection = rsa_client.connect(&gateway.address, NAME).unwrap();
    assert_eq!(files.name_of(&connection.certificate()), "rsa");
    // A client that verifies certificates accepts the chain.
    Guest::new(&authority).connect(&gateway.address, "b.wild.test").unwrap();
}

#[test]
fn client_certificates_are_requested_and_verified() {
    let (_scene, node, authority, mut files) = set_up();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let good = clients.client("ci");
    let stranger = Authority::new("strangers").client("ci");
    let expired = clients.ended_client("ci");
    let ca = "client_ca = \"clients.pem\"\n";
    for version in ["1.2", "1.3"] {
        let start = |client_auth: &str| {
            TlsGateway::start(&node, &files, &format!("[tls]\n{client_auth}{CERTIFICATE}"))
        };
        let response_for = |gateway: &TlsGateway, identity: Option<&authority::Identity>| {
            let client = Guest::new(&authority).versions(&[version]);
            let client = identity
                .map_or_else(|| client.clone(), |identity| client.clone().showing(identity));
            // In TLS 1.3 the client learns of a rejection only when it reads.
            let mut connection = client.connect(&gateway.address, NAME).ok()?;
            connection.try_get().filter(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        let disabled = start("client_auth = \"off\"\n");
        for identity in [None, Some(&good), Some(&stranger)] {
            assert!(response_for(&disabled, identity).is_some(), "{version} off");
        }
        let optional = start(&format!("{ca}client_auth = \"optional\"\n"));
        assert!(response_for(&optional, None).is_some(), "{version} optional, none");
        assert!(response_for(&optional, Some(&good)).is_some(), "{version} optional, good");
        assert!(response_for(&optional, Some(&stranger)).is_none(), "{version} optional, stranger");
        assert!(response_for(&optional, Some(&expired)).is_none(), "{version} optional, expired");
        optional.wait_for_failed("certificate_refused", 2);
        // With `client_ca` alone, certificates are required.
        let required = start(ca);
        assert!(response_for(&required, None).is_none(), "{version} required, none");
        required.wait_for_failed("certificate_missing", 1);
        assert!(response_for(&required, Some(&good)).is_some(), "{version} required, good");
        assert!(response_for(&required, Some(&stranger)).is_none(), "{version} required, stranger");
        assert!(response_for(&required, Some(&expired)).is_none(), "{version} required, expired");
        required.wait_for_failed("certificate_refused", 2);
        // A resumed session needs no new certificate.
        let client = Guest::new(&authority).versions(&[version]).showing(&good);
        check_resumed(&required.address, &client, 3);
    }
}

#[test]
fn a_client_certificate_selects_an_api_key() {
    let (_scene, node, authority, mut files) = set_up();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let text = format!(
        "[tls]\nclient_ca = \"clients.pem\"\nclient_auth = \"optional\"\n{CERTIFICATE}\
         [[key]]\nname = \"runner\"\ncertificate = \"cn:ci\"\nmethods_allow = [\"eth_chainId\"]\n\
         [[key]]\nname = \"alice\"\nsecret = \"wk_0123456789abcdefghij\"\n"
    );
    let gateway = TlsGateway::start(&node, &files, &text);
    let status_of = |certificate_name: Option<&str>, key: &str, method: &str| {
        let mut client = Guest::new(&authority);
        if let Some(name) = certificate_name {
            client = client.showing(&clients.client(name));
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {NAME}\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = client.connect(&gateway.address, NAME).unwrap();
        let head = connection.ask(request.as_bytes()).unwrap();
        head.split(' ').nth(1).unwrap().to_owned()
    };
    let key = "x-api-key: wk_0123456789abcdefghij\r\n";
    let calls = |name: &str| gateway.metric(&format!("weir_key_calls_total{{key=\"{name}\"}}"));
    assert_eq!(status_of(None, "", "eth_chainId"), "401", "no certificate and no key");
    assert_eq!(
        status_of(Some("stranger"), "", "eth_chainId"),
        "401",
        "no key has this certificate name"
    );
    assert_eq!(status_of(Some("ci"), "", "eth_chainId"), "200");
    assert_eq!(calls("runner"), 1);
    // A method that the key forbids is a JSON-RPC error with HTTP status 200.
    assert_eq!(status_of(Some("ci"), "", "eth_gasPrice"), "200");
    assert_eq!(gateway.metric("weir_access_denied_total{reason=\"method\"}"), 1);
    assert_eq!(
        status_of(Some("ci"), key, "eth_gasPrice"),
        "200",
        "a key in a header wins over the certificate"
    );
    assert_eq!(calls("alice"), 1);
    assert_eq!(
        status_of(Some("ci"), "x-api-key: wrong\r\n", "eth_chainId"),
        "401",
        "a wrong key in a header wins too"
    );
}

#[test]
fn a_session_from_before_a_certificate_was_required_does_not_resume() {
    let (_scene, node, authority, mut files) = set_up();
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    files.write("ticket.key", &[7; 80]);
    let keys = "[tls]\nticket_key_files = [\"ticket.key\"]\n";
    let open = TlsGateway::start(&node, &files, &format!("{keys}{CERTIFICATE}"));
    let closed = TlsGateway::start(
        &node,
        &files,
        &format!("{keys}client_ca = \"clients.pem\"\n{CERTIFICATE}"),
    );
    for version in ["1.2", "1.3"] {
        let client = Guest::new(&authority).versions(&[version]);
        check_resumed(&open.address, &client, 2);
        let response = client
            .connect(&closed.address, NAME)
            .ok()
            .and_then(|mut connection| connection.try_get());
        assert_eq!(response, None, "{version}");
    }
    closed.wait_for_failed("certificate_missing", 2);
}

#[test]
fn http2_is_negotiated_in_the_handshake() {
    let (scene, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let alpn = |offered: &[&str]| {
        let client = Guest::new(&authority).alpn(offered);
        let connection = client.connect(&gateway.address, NAME).unwrap();
        connection.alpn()
    };
    assert_eq!(alpn(&["h2", "http/1.1"]).as_deref(), Some("h2"));
    assert_eq!(alpn(&["http/1.1", "h2"]).as_deref(), Some("h2"), "the gateway's order wins");
    assert_eq!(alpn(&["http/1.1"]).as_deref(), Some("http/1.1"));
    assert_eq!(alpn(&[]), None);
    assert!(Guest::new(&authority).alpn(&["spdy/1"]).connect(&gateway.address, NAME).is_err());
    let call = scene::body("eth_blockNumber", "[]");
    let expected = raw::Client::connect(&gateway.plain_address).call("/", &call).body;
    let client = Guest::new(&authority).alpn(&["h2"]);
    let answers = scene.handle.block_on(client.post_http2(&gateway.address, NAME, call, 20));
    assert_eq!(answers.len(), 20);
    assert!(answers.iter().all(|answer| *answer == expected));
    let text = String::from_utf8(expected).unwrap();
    assert!(text.contains(&format!("{HEAD:#x}")), "{text}");
}

#[test]
fn an_incomplete_handshake_times_out() {
    let (_scene, node, authority, files) = set_up();
    let text = format!("[tls]\nhandshake_timeout = \"300ms\"\n{CERTIFICATE}");
    let gateway = TlsGateway::start(&node, &files, &text);
    let mut silent = TcpStream::connect(&gateway.address).unwrap();
    let mut slow = TcpStream::connect(&gateway.address).unwrap();
    let hello = Guest::new(&authority).hello(NAME);
    // Send all bytes but the last, each in its own write.
    slow.set_nodelay(true).unwrap();
    for byte in &hello[..hello.len() - 1] {
        slow.write_all(&[*byte]).unwrap();
    }
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0, "closed without a message");
    }
    gateway.wait_for_failed("timeout", 2);
    drop(TcpStream::connect(&gateway.address).unwrap());
    gateway.wait_for_failed("closed", 1);
    // A complete handshake still succeeds.
    Guest::new(&authority).connect(&gateway.address, NAME).unwrap().get();
}

#[test]
fn connections_without_a_handshake_are_refused_and_harm_no_others() {
    let (_scene, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let hello = Guest::new(&authority).hello(NAME);
    let mut cases: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0; 600],
        vec![0xff; 100_000],
        [&[0x16, 3, 1, 0xff, 0xff], &[1; 70_000][..]].concat(),
        // A well-formed record with meaningless content.
        [&[0x16, 3, 1, 0, 5], &[9; 5][..]].concat(),
        // An alert as the first record.
        vec![0x15, 3, 3, 0, 2, 2, 40],
    ];
    for index in [5, 9, 11, 43, 44, 76, 80, hello.len() - 2] {
        let mut broken = hello.clone();
        broken[index] ^= 0xff;
        cases.push(broken);
    }
    let mut alerts = 0;
    for case in &cases {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // An error means that the gateway has closed the connection early.
        let _ = stream.write_all(case);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = Vec::new();
        // An error means a reset, which also ends the connection.
        let _ = stream.read_to_end(&mut reply);
        alerts += usize::from(reply.first() == Some(&0x15));
    }
    assert!(alerts >= 5, "only {alerts} clients received an alert");
    let reasons = ["not_tls", "closed", "alert", "nothing_in_common", "other"];
    wait_until("every failed handshake is counted", || {
        let failed: u64 = reasons.iter().map(|reason| gateway.failed(reason)).sum();
        failed == cases.len() as u64
    });
    assert!(gateway.failed("not_tls") >= 4);
    Guest::new(&authority).connect(&gateway.address, NAME).unwrap().get();
}

#[test]
fn malformed_handshakes_fill_no_log() {
    let (_scene, node, authority, files) = set_up();
    let certificate = CERTIFICATE.replace("own.", &format!("{}/own.", files.folder().display()));
    let mut gateway = Weir::serve()
        .listen_as_configured()
        .config(&format!(
            "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n{certificate}{}\n{}",
            polled_once(""),
            node.entry("")
        ))
        .start();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        // A Finished message, which must not come first.
        stream.write_all(&[0x16, 3, 3, 0, 4, 20, 0, 0, 0]).unwrap();
        let mut reply = Vec::new();
        // An error means a reset, which also ends the connection.
        let _ = stream.read_to_end(&mut reply);
    }
    Guest::new(&authority).connect(&gateway.address, NAME).unwrap().get();
    gateway.assert_sound();
    assert!(!gateway.log().contains("rustls"), "{}", gateway.log());
}

#[test]
fn connections_close_after_the_configured_number_of_requests() {
    let (_scene, node, authority, files) = set_up();
    let text = format!("[downstream]\nkeep_alive_requests_max = 3\n{CERTIFICATE}");
    let gateway = TlsGateway::start(&node, &files, &text);
    let mut client = raw::Client::connect(&gateway.plain_address);
    for requests_left in [2, 1, 0] {
        let answer = client.call("/", &scene::body("eth_blockNumber", "[]"));
        assert_eq!(answer.header("connection"), (requests_left == 0).then_some("close"));
    }
    assert!(client.is_closed());
    let mut connection: Talk = Guest::new(&authority).connect(&gateway.address, NAME).unwrap();
    for _ in 0..3 {
        connection.get();
    }
    assert!(connection.is_closed());
}

#[test]
fn an_upstream_without_keep_alive_gets_one_call_per_connection() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    for (settings, connects) in [("keep_alive = false", 10), ("", 1)] {
        let text = format!("[cache]\nenabled = false\n{}{}", polled_once(""), node.entry(settings));
        let served = scene::Served::start(&text);
        served.wait_for_candidates(&["node"]);
        let mut client = served.client();
        for number in 0..10 {
            scene::result(&scene::ask(&mut client, scene::READ, &scene::account(number, "0x10")));
        }
        let series = "weir_upstream_connections_opened_total{chain=\"sim\",upstream=\"node\"} ";
        let metrics = served.look("/metrics");
        let found = metrics.text().lines().find_map(|row| row.strip_prefix(series)).unwrap();
        assert_eq!(found.parse(), Ok(connects), "{settings}");
    }
}
