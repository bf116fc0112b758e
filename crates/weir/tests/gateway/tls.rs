//! Goal: TLS between clients and the gateway works as documented: versions, ciphers, server names,
//! session resumption, client certificates and HTTP/2. Failed handshakes affect no other client.
//!
//! Method: real sockets, generated certificates, and rustls as the client. The client reports the
//! negotiated parameters, and `/metrics` reports the counts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gateway::config::Config;
use rustls::HandshakeKind::{Full, Resumed};
use rustls::ProtocolVersion;

use crate::support::authority::{self, Authority, ConfigFiles, KeyType};
use crate::support::harness::{self, NEWEST_BLOCK, NodeRuntime, SimNode, chain_polled_once};
use crate::support::tls_client::{TlsClient, TlsConnection};
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The server name that clients send in most tests.
const NAME: &str = "rpc.test";

/// A gateway with TLS, on two threads, in front of one node. It stops on drop.
struct TlsGateway {
    /// The gateway, or `None` after it was stopped.
    inner: Option<gateway::runtime::Gateway>,
    /// Address of the TLS listener.
    address: String,
    /// Address of the listener without TLS.
    plain_address: String,
    admin: String,
}

impl TlsGateway {
    fn start(node: &SimNode, files: &ConfigFiles, text: &str) -> TlsGateway {
        TlsGateway::with_config(TlsGateway::config(node, files, text))
    }

    fn config(node: &SimNode, files: &ConfigFiles, text: &str) -> Config {
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nlisten_tls = \"127.0.0.1:0\"\n\
             admin = \"127.0.0.1:0\"\nthreads = 2\ndrain_deadline = \"5s\"\n{text}\n{}\n{}",
            chain_polled_once(""),
            node.to_toml("")
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

    /// Returns the value of a metric. `series` is the metric's name with its labels.
    fn metric(&self, series: &str) -> u64 {
        let mut client = raw::Client::connect(&self.admin);
        client.send(b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n");
        let text = client.read_response().unwrap();
        let text = text.text();
        let found = text.lines().find_map(|line| line.strip_prefix(series));
        found.unwrap_or_else(|| panic!("no {series} in {text}")).trim().parse().unwrap()
    }

    /// Returns the number of failed handshakes with this reason.
    fn failed_handshakes(&self, reason: &str) -> u64 {
        self.metric(&format!("weir_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
    }

    fn wait_for_failed(&self, reason: &str, count: u64) {
        wait_until(&format!("{count} handshakes failed by {reason}"), || {
            self.failed_handshakes(reason) == count
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

/// Starts a node, and creates a certificate authority and configuration files. The files contain
/// the authority's certificate for [`NAME`], which [`CERTIFICATE`] configures.
fn set_up() -> (NodeRuntime, SimNode, Authority, ConfigFiles) {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let authority = Authority::new("authority");
    let mut files = ConfigFiles::new();
    files.write_certificate("own", &authority, KeyType::Ecdsa, &[NAME]);
    (runtime, node, authority, files)
}

/// Configuration of the gateway's certificate in most tests.
const CERTIFICATE: &str = "[[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n";

#[test]
fn calls_are_answered_with_and_without_tls() {
    let (_runtime, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let client = TlsClient::new(&authority);
    let mut connection = client.connect(&gateway.address, NAME).unwrap();
    let call = harness::body("eth_getBlockByNumber", "[\"0x10\",true]");
    let expected = raw::Client::connect(&gateway.plain_address).call("/", &call).body;
    for _ in 0..3 {
        assert_eq!(connection.post(&call), expected, "one connection carries several calls");
    }
    // A response of many TLS records, more than rustls buffers.
    let items: Vec<_> = (0..500)
        .map(|at| harness::body("eth_getBlockByNumber", &format!("[\"{:#x}\",true]", at % 64)))
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
    let (_runtime, node, authority, mut files) = set_up();
    files.write_certificate("rsa", &authority, KeyType::Rsa, &[NAME]);
    let rsa = CERTIFICATE.replace("own.", "rsa.");
    // As in nginx, the configuration accepts the cipher's OpenSSL name.
    let text = "[tls]\nversions = [\"1.2\"]\nciphers = [\"ECDHE-RSA-AES256-GCM-SHA384\"]\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{rsa}"));
    let connection = TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap();
    assert_eq!(connection.version(), ProtocolVersion::TLSv1_2);
    assert_eq!(connection.cipher_suite(), "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
    let newer = TlsClient::new(&authority).versions(&["1.3"]);
    assert!(newer.connect(&gateway.address, NAME).is_err(), "TLS 1.3 is not configured");
    let other = TlsClient::new(&authority).ciphers(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    assert!(other.connect(&gateway.address, NAME).is_err(), "the cipher is not configured");
    gateway.wait_for_failed("nothing_in_common", 2);
    assert_eq!(gateway.metric("weir_tls_handshakes_total{version=\"1.2\",handshake=\"full\"}"), 1);

    // The gateway selects the first cipher of its own order that the client supports, and ignores
    // the client's order.
    let text = "[tls]\nversions = [\"1.3\"]\n\
                ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"TLS_AES_128_GCM_SHA256\"]\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
    let connection = TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap();
    assert_eq!(
        (connection.version(), connection.cipher_suite()),
        (ProtocolVersion::TLSv1_3, "TLS13_CHACHA20_POLY1305_SHA256".into())
    );
    assert!(TlsClient::new(&authority).versions(&["1.2"]).connect(&gateway.address, NAME).is_err());
    let other = TlsClient::new(&authority).ciphers(&["TLS13_AES_256_GCM_SHA384"]);
    assert!(other.connect(&gateway.address, NAME).is_err());
}

/// Connects repeatedly with one client. Asserts that each handshake after the first resumes the
/// session, on whichever thread of the gateway.
fn assert_resumes(address: &str, client: &TlsClient, times: usize) {
    for time in 0..times {
        let mut connection = client.connect(address, NAME).unwrap();
        assert!(connection.get().starts_with("HTTP/1.1 200"));
        let expected = if time == 0 { Full } else { Resumed };
        assert_eq!(connection.handshake_kind(), expected, "connection {time}");
    }
}

#[test]
fn sessions_resume_on_every_thread() {
    let (_runtime, node, authority, files) = set_up();
    for (text, versions, label) in [
        ("", "1.2", "by ticket"),
        ("[tls]\ntickets = false\n", "1.2", "by session id"),
        ("", "1.3", "by ticket"),
        ("[tls]\ntickets = false\n", "1.3", "by stored session"),
    ] {
        let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
        println!("{versions} {label}");
        assert_resumes(&gateway.address, &TlsClient::new(&authority).versions(&[versions]), 20);
        let resumed =
            format!("weir_tls_handshakes_total{{version=\"{versions}\",handshake=\"resumed\"}}");
        assert_eq!(gateway.metric(&resumed), 19, "{versions} {label}");
    }
    let text = "[tls]\ntickets = false\nsessions_max = 0\n";
    let gateway = TlsGateway::start(&node, &files, &format!("{text}{CERTIFICATE}"));
    for version in ["1.2", "1.3"] {
        let client = TlsClient::new(&authority).versions(&[version]);
        for _ in 0..3 {
            let mut connection = client.connect(&gateway.address, NAME).unwrap();
            connection.get();
            assert_eq!(
                connection.handshake_kind(),
                Full,
                "{version} without tickets and stored sessions"
            );
        }
    }
}

#[test]
fn replicas_with_the_same_keys_resume_each_others_sessions() {
    let (_runtime, node, authority, mut files) = set_up();
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
                chain_polled_once(""),
                node.to_toml("")
            ))
            .start()
    };
    let first = start_gateway("[\"@one.key\"]");
    let same = start_gateway("[\"@one.key\"]");
    let rotated = start_gateway("[\"@two.key\", \"@one.key\"]");
    let other = start_gateway("[\"@two.key\"]");
    for version in ["1.2", "1.3"] {
        // Returns whether a session of the first gateway resumes on the second.
        let handshake_kind = |from: &Running, to: &Running| {
            let client = TlsClient::new(&authority).versions(&[version]);
            client.connect(&from.address, NAME).unwrap().get();
            let mut connection = client.connect(&to.address, NAME).unwrap();
            connection.get();
            connection.handshake_kind()
        };
        assert_eq!(handshake_kind(&first, &same), Resumed, "{version}");
        assert_eq!(handshake_kind(&same, &first), Resumed, "{version}");
        assert_eq!(
            handshake_kind(&first, &rotated),
            Resumed,
            "{version}: the old key still decrypts tickets"
        );
        assert_eq!(
            handshake_kind(&rotated, &other),
            Resumed,
            "{version}: the first key encrypts tickets"
        );
        assert_eq!(
            handshake_kind(&first, &other),
            Full,
            "{version}: a ticket of an unknown key is ignored"
        );
    }
}

#[test]
fn a_reload_changes_certificates_and_keeps_sessions_if_tls_settings_are_equal() {
    let (_runtime, node, authority, mut files) = set_up();
    files.write_certificate("new", &authority, KeyType::Ecdsa, &[NAME]);
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    let other = CERTIFICATE.replace("own.", "new.");
    // Changes the TLS settings and the certificate by a reload. Returns the kind of the next
    // handshake of a client with a session, or `None` if it fails.
    let handshake_after_reload = |before: &str, after: &str, version: &str| {
        let gateway = TlsGateway::start(&node, &files, &format!("{before}{CERTIFICATE}"));
        let client = TlsClient::new(&authority).versions(&[version]);
        let mut open_connection = client.connect(&gateway.address, NAME).unwrap();
        open_connection.get();
        assert_eq!(files.certificate_name(&open_connection.server_certificate()), "own");
        let after = TlsGateway::config(&node, &files, &format!("{after}{other}"));
        gateway.inner.as_ref().unwrap().reload(after);
        open_connection.get();
        let new_client = TlsClient::accepting_any_certificate();
        let new_connection = new_client.connect(&gateway.address, NAME).unwrap();
        assert_eq!(files.certificate_name(&new_connection.server_certificate()), "new");
        let mut connection = client.connect(&gateway.address, NAME).ok()?;
        connection.try_get()?;
        Some(connection.handshake_kind())
    };
    for version in ["1.2", "1.3"] {
        assert_eq!(handshake_after_reload("", "", version), Some(Resumed), "{version} by ticket");
        let without_tickets = "[tls]\ntickets = false\n";
        assert_eq!(
            handshake_after_reload(without_tickets, without_tickets, version),
            Some(Resumed),
            "{version} by id"
        );
        let fewer = "[tls]\nsessions_max = 5\n";
        assert_eq!(
            handshake_after_reload("", fewer, version),
            Some(Full),
            "{version}: other TLS settings"
        );
    }
    // The next reload requires client certificates. Without one, a TLS 1.2 handshake fails, and a
    // TLS 1.3 client gets no response.
    let stricter = "[tls]\nclient_ca = \"clients.pem\"\n";
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let clients = ["1.2", "1.3"].map(|version| TlsClient::new(&authority).versions(&[version]));
    for client in &clients {
        assert_resumes(&gateway.address, client, 2);
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
    let (_runtime, node, authority, files) = set_up();
    let first = TlsGateway::start(&node, &files, CERTIFICATE);
    let sockets = first.inner.as_ref().unwrap().sockets().unwrap();
    let config = TlsGateway::config(&node, &files, CERTIFICATE);
    let second = gateway::runtime::Gateway::start_on(config, sockets, None).unwrap();
    let second = TlsGateway::from_gateway(second);
    assert_eq!((&second.address, &second.plain_address), (&first.address, &first.plain_address));
    let mut first = first;
    first.inner.take().unwrap().stop_replaced();
    let client = TlsClient::new(&authority);
    for _ in 0..10 {
        client.connect(&second.address, NAME).unwrap().get();
        raw::Client::connect(&second.plain_address)
            .call("/", &harness::body("eth_blockNumber", "[]"));
    }
}

/// The example of docs/tls.md is a valid configuration.
#[test]
fn the_example_of_the_tls_page_is_valid() {
    let (_runtime, _node, authority, mut files) = set_up();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tls.md");
    let page = std::fs::read_to_string(page).unwrap();
    let text = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    files.write_certificate("rpc.example", &authority, KeyType::Rsa, &["rpc.example"]);
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
    let (_runtime, node, authority, mut files) = set_up();
    files.write_certificate("wild", &authority, KeyType::Ecdsa, &["*.wild.test"]);
    files.write_certificate("named", &authority, KeyType::Ecdsa, &["inside.test"]);
    files.write_certificate("rsa", &authority, KeyType::Rsa, &[NAME]);
    let entry = |name: &str| CERTIFICATE.replace("own.", &format!("{name}."));
    let named = format!("{}names = [\"other.test\", \"a.wild.test\"]\n", entry("named"));
    let text = [CERTIFICATE, &entry("wild"), &named, &entry("rsa")].concat();
    let gateway = TlsGateway::start(&node, &files, &text);
    let served_certificate = |name: &str| {
        let client = TlsClient::accepting_any_certificate();
        let connection = client.connect(&gateway.address, name).unwrap();
        files.certificate_name(&connection.server_certificate())
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
    // A client that connects to an IP address sends no server name.
    assert_eq!(served_certificate("127.0.0.1"), "own");
    // A client without ECDSA ciphers gets the RSA certificate.
    let rsa_client = TlsClient::accepting_any_certificate()
        .versions(&["1.2"])
        .ciphers(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
    let connection = rsa_client.connect(&gateway.address, NAME).unwrap();
    assert_eq!(files.certificate_name(&connection.server_certificate()), "rsa");
    // A client that verifies certificates accepts the chain.
    TlsClient::new(&authority).connect(&gateway.address, "b.wild.test").unwrap();
}

#[test]
fn client_certificates_are_requested_and_verified() {
    let (_runtime, node, authority, mut files) = set_up();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let good = clients.issue_client("ci");
    let stranger = Authority::new("strangers").issue_client("ci");
    let expired = clients.issue_expired_client("ci");
    let ca = "client_ca = \"clients.pem\"\n";
    for version in ["1.2", "1.3"] {
        let start = |client_auth: &str| {
            TlsGateway::start(&node, &files, &format!("[tls]\n{client_auth}{CERTIFICATE}"))
        };
        let response_for = |gateway: &TlsGateway, identity: Option<&authority::Identity>| {
            let client = TlsClient::new(&authority).versions(&[version]);
            let client = identity
                .map_or_else(|| client.clone(), |identity| client.clone().with_identity(identity));
            // In TLS 1.3, the client receives a rejection only when it reads the response.
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
        let client = TlsClient::new(&authority).versions(&[version]).with_identity(&good);
        assert_resumes(&required.address, &client, 3);
    }
}

#[test]
fn a_client_certificate_selects_an_api_key() {
    let (_runtime, node, authority, mut files) = set_up();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let text = format!(
        "[tls]\nclient_ca = \"clients.pem\"\nclient_auth = \"optional\"\n{CERTIFICATE}\
         [[key]]\nname = \"runner\"\ncertificate = \"cn:ci\"\nmethods_allow = [\"eth_chainId\"]\n\
         [[key]]\nname = \"alice\"\nsecret = \"wk_0123456789abcdefghij\"\n"
    );
    let gateway = TlsGateway::start(&node, &files, &text);
    let status_of = |certificate_name: Option<&str>, key: &str, method: &str| {
        let mut client = TlsClient::new(&authority);
        if let Some(name) = certificate_name {
            client = client.with_identity(&clients.issue_client(name));
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {NAME}\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = client.connect(&gateway.address, NAME).unwrap();
        let header_section = connection.request_head(request.as_bytes()).unwrap();
        header_section.split(' ').nth(1).unwrap().to_owned()
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
    // If the key forbids the method, the response is a JSON-RPC error with HTTP status 200.
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
    let (_runtime, node, authority, mut files) = set_up();
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
        let client = TlsClient::new(&authority).versions(&[version]);
        assert_resumes(&open.address, &client, 2);
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
    let (runtime, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let alpn = |offered: &[&str]| {
        let client = TlsClient::new(&authority).alpn(offered);
        let connection = client.connect(&gateway.address, NAME).unwrap();
        connection.alpn()
    };
    assert_eq!(alpn(&["h2", "http/1.1"]).as_deref(), Some("h2"));
    assert_eq!(alpn(&["http/1.1", "h2"]).as_deref(), Some("h2"), "the gateway's order wins");
    assert_eq!(alpn(&["http/1.1"]).as_deref(), Some("http/1.1"));
    assert_eq!(alpn(&[]), None);
    assert!(TlsClient::new(&authority).alpn(&["spdy/1"]).connect(&gateway.address, NAME).is_err());
    let call = harness::body("eth_blockNumber", "[]");
    let expected = raw::Client::connect(&gateway.plain_address).call("/", &call).body;
    let client = TlsClient::new(&authority).alpn(&["h2"]);
    let answers = runtime.handle.block_on(client.post_http2(&gateway.address, NAME, call, 20));
    assert_eq!(answers.len(), 20);
    assert!(answers.iter().all(|answer| *answer == expected));
    let text = String::from_utf8(expected).unwrap();
    assert!(text.contains(&format!("{NEWEST_BLOCK:#x}")), "{text}");
}

#[test]
fn an_incomplete_handshake_times_out() {
    let (_runtime, node, authority, files) = set_up();
    let text = format!("[tls]\nhandshake_timeout = \"300ms\"\n{CERTIFICATE}");
    let gateway = TlsGateway::start(&node, &files, &text);
    let mut silent = TcpStream::connect(&gateway.address).unwrap();
    let mut slow = TcpStream::connect(&gateway.address).unwrap();
    let hello = TlsClient::new(&authority).client_hello(NAME);
    // Sends all bytes except the last one, each in its own write.
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
    TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap().get();
}

#[test]
fn connections_without_a_handshake_are_refused_and_harm_no_others() {
    let (_runtime, node, authority, files) = set_up();
    let gateway = TlsGateway::start(&node, &files, CERTIFICATE);
    let hello = TlsClient::new(&authority).client_hello(NAME);
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
        let failed: u64 = reasons.iter().map(|reason| gateway.failed_handshakes(reason)).sum();
        failed == cases.len() as u64
    });
    assert!(gateway.failed_handshakes("not_tls") >= 4);
    TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap().get();
}

#[test]
fn malformed_handshakes_fill_no_log() {
    let (_runtime, node, authority, files) = set_up();
    let certificate = CERTIFICATE.replace("own.", &format!("{}/own.", files.folder().display()));
    let mut gateway = Weir::serve()
        .listen_as_configured()
        .config(&format!(
            "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n{certificate}{}\n{}",
            chain_polled_once(""),
            node.to_toml("")
        ))
        .start();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&gateway.address).unwrap();
        // A TLS `Finished` message, which must not be the first one.
        stream.write_all(&[0x16, 3, 3, 0, 4, 20, 0, 0, 0]).unwrap();
        let mut reply = Vec::new();
        // An error means a reset, which also ends the connection.
        let _ = stream.read_to_end(&mut reply);
    }
    TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap().get();
    gateway.assert_sound();
    assert!(!gateway.log().contains("rustls"), "{}", gateway.log());
}

#[test]
fn connections_close_after_the_configured_number_of_requests() {
    let (_runtime, node, authority, files) = set_up();
    let text = format!("[downstream]\nkeep_alive_requests_max = 3\n{CERTIFICATE}");
    let gateway = TlsGateway::start(&node, &files, &text);
    let mut client = raw::Client::connect(&gateway.plain_address);
    for requests_left in [2, 1, 0] {
        let answer = client.call("/", &harness::body("eth_blockNumber", "[]"));
        assert_eq!(answer.header("connection"), (requests_left == 0).then_some("close"));
    }
    assert!(client.is_closed());
    let mut connection: TlsConnection =
        TlsClient::new(&authority).connect(&gateway.address, NAME).unwrap();
    for _ in 0..3 {
        connection.get();
    }
    assert!(connection.is_closed());
}

#[test]
fn an_upstream_without_keep_alive_gets_one_call_per_connection() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    for (settings, expected_connections) in [("keep_alive = false", 10), ("", 1)] {
        let text = format!(
            "[cache]\nenabled = false\n{}{}",
            chain_polled_once(""),
            node.to_toml(settings)
        );
        let gateway = harness::TestGateway::start(&text);
        gateway.wait_for_candidates(&["node"]);
        let mut client = gateway.client();
        for number in 0..10 {
            let params = harness::balance_params(number, "0x10");
            harness::result(&harness::ask(&mut client, harness::GET_BALANCE, &params));
        }
        let series = "weir_upstream_connections_opened_total{chain=\"sim\",upstream=\"node\"} ";
        let metrics = gateway.get_admin("/metrics");
        let found = metrics.text().lines().find_map(|line| line.strip_prefix(series)).unwrap();
        assert_eq!(found.parse(), Ok(expected_connections), "{settings}");
    }
}
