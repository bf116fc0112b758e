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

/// The name that is asked for unless a test is about names.
const NAME: &str = "rpc.test";

/// A gateway with TLS, on two threads, before one node.
struct Sealed {
    gateway: Option<gateway::runtime::Gateway>,
    address: String,
    clear: String,
    admin: String,
}

impl Sealed {
    fn start(node: &SimNode, files: &Files, text: &str) -> Sealed {
        Sealed::configured(Sealed::config(node, files, text))
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

    fn configured(config: Config) -> Sealed {
        Sealed::of(gateway::runtime::Gateway::start(config).unwrap())
    }

    fn of(gateway: gateway::runtime::Gateway) -> Sealed {
        let address = gateway.listen_tls.unwrap().to_string();
        let (clear, admin) = (gateway.listen.to_string(), gateway.admin.unwrap().to_string());
        Sealed { gateway: Some(gateway), address, clear, admin }
    }

    /// The value of a metric with these labels.
    fn metric(&self, line: &str) -> u64 {
        let mut client = raw::Client::connect(&self.admin);
        client.send(b"GET /metrics HTTP/1.1\r\nHost: admin\r\n\r\n");
        let text = client.answer().unwrap();
        let text = text.text();
        let found = text.lines().find_map(|row| row.strip_prefix(line));
        found.unwrap_or_else(|| panic!("no {line} in {text}")).trim().parse().unwrap()
    }

    fn failed(&self, reason: &str) -> u64 {
        self.metric(&format!("weir_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
    }

    fn wait_for_failed(&self, reason: &str, count: u64) {
        wait_until(&format!("{count} handshakes failed by {reason}"), || {
            self.failed(reason) == count
        });
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop();
        }
    }
}

/// A scene with one node, an authority, and a certificate of it for [`NAME`].
fn set() -> (Scene, SimNode, Authority, Files) {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let authority = Authority::new("authority");
    let mut files = Files::new();
    files.certificate("own", &authority, Kind::Ecdsa, &[NAME]);
    (scene, node, authority, files)
}

const OWN: &str = "[[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n";

#[test]
fn calls_are_answered_over_tls_and_beside_it() {
    let (_scene, node, authority, files) = set();
    let sealed = Sealed::start(&node, &files, OWN);
    let guest = Guest::new(&authority);
    let mut talk = guest.connect(&sealed.address, NAME).unwrap();
    let call = scene::body("eth_getBlockByNumber", "[\"0x10\",true]");
    let expected = raw::Client::connect(&sealed.clear).call("/", &call).body;
    for _ in 0..3 {
        assert_eq!(talk.post(&call), expected, "one connection carries several calls");
    }
    // Many records, more than rustls holds: the answer comes in parts that join.
    let items: Vec<_> = (0..500)
        .map(|at| scene::body("eth_getBlockByNumber", &format!("[\"{:#x}\",true]", at % 64)))
        .collect();
    let batch = [b"[", &items.join(&b","[..])[..], b"]"].concat();
    let expected = raw::Client::connect(&sealed.clear).call("/", &batch).body;
    assert!(expected.len() > 300_000, "{}", expected.len());
    assert!(talk.post(&batch) == expected, "a long answer arrives as it is");
    assert!(batch.len() > 20_000, "and so does a long request");
    assert_eq!(sealed.metric("weir_tls_handshakes_total{version=\"1.3\",handshake=\"full\"}"), 1);
    // A stop does not wait for a connection that waits.
    let began = Instant::now();
    drop(sealed);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(talk.is_closed());
}

#[test]
fn only_the_versions_and_ciphers_of_the_file_are_spoken() {
    let (_scene, node, authority, mut files) = set();
    files.certificate("rsa", &authority, Kind::Rsa, &[NAME]);
    let rsa = OWN.replace("own.", "rsa.");
    // The cipher of the report on gateways, by the name that nginx has for it.
    let text = "[tls]\nversions = [\"1.2\"]\nciphers = [\"ECDHE-RSA-AES256-GCM-SHA384\"]\n";
    let sealed = Sealed::start(&node, &files, &format!("{text}{rsa}"));
    let talk = Guest::new(&authority).connect(&sealed.address, NAME).unwrap();
    assert_eq!(talk.version(), ProtocolVersion::TLSv1_2);
    assert_eq!(talk.suite(), "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384");
    let newer = Guest::new(&authority).versions(&["1.3"]);
    assert!(newer.connect(&sealed.address, NAME).is_err(), "1.3 is not spoken");
    let other = Guest::new(&authority).ciphers(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
    assert!(other.connect(&sealed.address, NAME).is_err(), "the cipher is not spoken");
    sealed.wait_for_failed("nothing_in_common", 2);
    assert_eq!(sealed.metric("weir_tls_handshakes_total{version=\"1.2\",handshake=\"full\"}"), 1);

    // Several in one's own order; the client has another one.
    let text = "[tls]\nversions = [\"1.3\"]\n\
                ciphers = [\"TLS_CHACHA20_POLY1305_SHA256\", \"TLS_AES_128_GCM_SHA256\"]\n";
    let sealed = Sealed::start(&node, &files, &format!("{text}{OWN}"));
    let talk = Guest::new(&authority).connect(&sealed.address, NAME).unwrap();
    assert_eq!(
        (talk.version(), talk.suite()),
        (ProtocolVersion::TLSv1_3, "TLS13_CHACHA20_POLY1305_SHA256".into())
    );
    assert!(Guest::new(&authority).versions(&["1.2"]).connect(&sealed.address, NAME).is_err());
    let other = Guest::new(&authority).ciphers(&["TLS13_AES_256_GCM_SHA384"]);
    assert!(other.connect(&sealed.address, NAME).is_err());
}

/// Connects many times with one guest; all but the first resume, whichever thread they meet.
fn check_resumed(address: &str, guest: &Guest, times: usize) {
    for time in 0..times {
        let mut talk = guest.connect(address, NAME).unwrap();
        assert!(talk.get().starts_with("HTTP/1.1 200"));
        let expected = if time == 0 { Full } else { Resumed };
        assert_eq!(talk.kind(), expected, "connection {time}");
    }
}

#[test]
fn sessions_resume_on_every_thread() {
    let (_scene, node, authority, files) = set();
    for (text, versions, label) in [
        ("", "1.2", "by ticket"),
        ("[tls]\ntickets = false\n", "1.2", "by session id"),
        ("", "1.3", "by ticket"),
        ("[tls]\ntickets = false\n", "1.3", "by a session that is kept"),
    ] {
        let sealed = Sealed::start(&node, &files, &format!("{text}{OWN}"));
        println!("{versions} {label}");
        check_resumed(&sealed.address, &Guest::new(&authority).versions(&[versions]), 20);
        let resumed =
            format!("weir_tls_handshakes_total{{version=\"{versions}\",handshake=\"resumed\"}}");
        assert_eq!(sealed.metric(&resumed), 19, "{versions} {label}");
    }
    let text = "[tls]\ntickets = false\nsessions_max = 0\n";
    let sealed = Sealed::start(&node, &files, &format!("{text}{OWN}"));
    for version in ["1.2", "1.3"] {
        let guest = Guest::new(&authority).versions(&[version]);
        for _ in 0..3 {
            let mut talk = guest.connect(&sealed.address, NAME).unwrap();
            talk.get();
            assert_eq!(talk.kind(), Full, "{version} with nothing to resume by");
        }
    }
}

#[test]
fn replicas_with_the_same_keys_resume_each_others_sessions() {
    let (_scene, node, authority, mut files) = set();
    let key = |seed: u8| (0..80).map(|at| seed.wrapping_mul(31) ^ at).collect::<Vec<u8>>();
    files.write("one.key", &key(1));
    files.write("two.key", &key(2));
    let process = |keys: &str| {
        let folder = files.folder().display();
        let certificate = OWN.replace("own.", &format!("{folder}/own."));
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
    let first = process("[\"@one.key\"]");
    let same = process("[\"@one.key\"]");
    let rolled = process("[\"@two.key\", \"@one.key\"]");
    let other = process("[\"@two.key\"]");
    for version in ["1.2", "1.3"] {
        let kind = |from: &Running, to: &Running| {
            let guest = Guest::new(&authority).versions(&[version]);
            guest.connect(&from.address, NAME).unwrap().get();
            let mut talk = guest.connect(&to.address, NAME).unwrap();
            talk.get();
            talk.kind()
        };
        assert_eq!(kind(&first, &same), Resumed, "{version}");
        assert_eq!(kind(&same, &first), Resumed, "{version}");
        assert_eq!(kind(&first, &rolled), Resumed, "{version}: the former key is still taken");
        assert_eq!(kind(&rolled, &other), Resumed, "{version}: the first key makes tickets");
        assert_eq!(kind(&first, &other), Full, "{version}: an unknown key opens nothing");
    }
}

#[test]
fn a_reload_changes_certificates_and_keeps_sessions_on_the_same_terms() {
    let (_scene, node, authority, mut files) = set();
    files.certificate("new", &authority, Kind::Ecdsa, &[NAME]);
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    let other = OWN.replace("own.", "new.");
    let after_reload = |before: &str, after: &str, version: &str| {
        let sealed = Sealed::start(&node, &files, &format!("{before}{OWN}"));
        let guest = Guest::new(&authority).versions(&[version]);
        let mut open = guest.connect(&sealed.address, NAME).unwrap();
        open.get();
        assert_eq!(files.name_of(&open.certificate()), "own");
        let after = Sealed::config(&node, &files, &format!("{after}{other}"));
        sealed.gateway.as_ref().unwrap().reload(after);
        open.get();
        let stranger = Guest::trusting().connect(&sealed.address, NAME).unwrap();
        assert_eq!(files.name_of(&stranger.certificate()), "new");
        let mut talk = guest.connect(&sealed.address, NAME).ok()?;
        talk.try_get()?;
        Some(talk.kind())
    };
    for version in ["1.2", "1.3"] {
        assert_eq!(after_reload("", "", version), Some(Resumed), "{version} by ticket");
        let by_id = "[tls]\ntickets = false\n";
        assert_eq!(after_reload(by_id, by_id, version), Some(Resumed), "{version} by id");
        let fewer = "[tls]\nsessions_max = 5\n";
        assert_eq!(after_reload("", fewer, version), Some(Full), "{version}: on other terms");
    }
    // A certificate that is needed from now on: in 1.2 the handshake fails without it.
    let stricter = "[tls]\nclient_ca = \"clients.pem\"\n";
    let sealed = Sealed::start(&node, &files, OWN);
    let guests = ["1.2", "1.3"].map(|version| Guest::new(&authority).versions(&[version]));
    for guest in &guests {
        check_resumed(&sealed.address, guest, 2);
    }
    let after = Sealed::config(&node, &files, &format!("{stricter}{OWN}"));
    sealed.gateway.as_ref().unwrap().reload(after);
    for guest in &guests {
        let got = guest.connect(&sealed.address, NAME).ok().and_then(|mut talk| talk.try_get());
        assert_eq!(got, None);
    }
    sealed.wait_for_failed("certificate_missing", 2);
}

#[test]
fn the_process_that_takes_over_has_the_same_addresses() {
    let (_scene, node, authority, files) = set();
    let first = Sealed::start(&node, &files, OWN);
    let sockets = first.gateway.as_ref().unwrap().sockets().unwrap();
    let config = Sealed::config(&node, &files, OWN);
    let second = gateway::runtime::Gateway::start_on(config, sockets, None).unwrap();
    let second = Sealed::of(second);
    assert_eq!((&second.address, &second.clear), (&first.address, &first.clear));
    let mut first = first;
    first.gateway.take().unwrap().stop_replaced();
    let guest = Guest::new(&authority);
    for _ in 0..10 {
        guest.connect(&second.address, NAME).unwrap().get();
        raw::Client::connect(&second.clear).call("/", &scene::body("eth_blockNumber", "[]"));
    }
}

/// The configuration that the page shows is one that starts.
#[test]
fn the_page_on_tls_shows_what_works() {
    let (_scene, _node, authority, mut files) = set();
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
    let (_scene, node, authority, mut files) = set();
    files.certificate("wild", &authority, Kind::Ecdsa, &["*.wild.test"]);
    files.certificate("named", &authority, Kind::Ecdsa, &["inside.test"]);
    files.certificate("rsa", &authority, Kind::Rsa, &[NAME]);
    let entry = |name: &str| OWN.replace("own.", &format!("{name}."));
    let named = format!("{}names = [\"other.test\", \"a.wild.test\"]\n", entry("named"));
    let text = [OWN, &entry("wild"), &named, &entry("rsa")].concat();
    let sealed = Sealed::start(&node, &files, &text);
    let shown = |name: &str| {
        let talk = Guest::trusting().connect(&sealed.address, name).unwrap();
        files.name_of(&talk.certificate())
    };
    assert_eq!(shown(NAME), "own");
    assert_eq!(shown("b.wild.test"), "wild");
    assert_eq!(shown("a.wild.test"), "named", "an exact name goes before a star");
    assert_eq!(shown("other.test"), "named");
    assert_eq!(shown("inside.test"), "own", "names in the file replace those in it");
    assert_eq!(shown("c.b.wild.test"), "own");
    assert_eq!(shown("unknown.test"), "own");
    // Without a name: an address is none.
    assert_eq!(shown("127.0.0.1"), "own");
    // Whoever cannot verify the first kind of key is shown the second.
    let old =
        Guest::trusting().versions(&["1.2"]).ciphers(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
    let talk = old.connect(&sealed.address, NAME).unwrap();
    assert_eq!(files.name_of(&talk.certificate()), "rsa");
    // And the chain is one that a strict client believes.
    Guest::new(&authority).connect(&sealed.address, "b.wild.test").unwrap();
}

#[test]
fn clients_certificates_are_asked_for_and_verified() {
    let (_scene, node, authority, mut files) = set();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let good = clients.client("ci");
    let stranger = Authority::new("strangers").client("ci");
    let ended = clients.ended_client("ci");
    let ca = "client_ca = \"clients.pem\"\n";
    for version in ["1.2", "1.3"] {
        let start = |auth: &str| Sealed::start(&node, &files, &format!("[tls]\n{auth}{OWN}"));
        let served = |sealed: &Sealed, own: Option<&authority::Identity>| {
            let guest = Guest::new(&authority).versions(&[version]);
            let guest = own.map_or_else(|| guest.clone(), |own| guest.clone().showing(own));
            // In TLS 1.3 the client learns of a refusal only from what it reads.
            let mut talk = guest.connect(&sealed.address, NAME).ok()?;
            talk.try_get().filter(|answer| answer.starts_with("HTTP/1.1 200"))
        };
        let off = start("client_auth = \"off\"\n");
        for own in [None, Some(&good), Some(&stranger)] {
            assert!(served(&off, own).is_some(), "{version} off");
        }
        let optional = start(&format!("{ca}client_auth = \"optional\"\n"));
        assert!(served(&optional, None).is_some(), "{version} optional, none");
        assert!(served(&optional, Some(&good)).is_some(), "{version} optional, good");
        assert!(served(&optional, Some(&stranger)).is_none(), "{version} optional, stranger");
        assert!(served(&optional, Some(&ended)).is_none(), "{version} optional, ended");
        optional.wait_for_failed("certificate_refused", 2);
        // As it is where only the authority is named.
        let required = start(ca);
        assert!(served(&required, None).is_none(), "{version} required, none");
        required.wait_for_failed("certificate_missing", 1);
        assert!(served(&required, Some(&good)).is_some(), "{version} required, good");
        assert!(served(&required, Some(&stranger)).is_none(), "{version} required, stranger");
        assert!(served(&required, Some(&ended)).is_none(), "{version} required, ended");
        required.wait_for_failed("certificate_refused", 2);
        // One that is good is not asked for again when its session resumes.
        let guest = Guest::new(&authority).versions(&[version]).showing(&good);
        check_resumed(&required.address, &guest, 3);
    }
}

#[test]
fn a_certificate_stands_for_a_key() {
    let (_scene, node, authority, mut files) = set();
    let clients = Authority::new("clients");
    files.write("clients.pem", clients.pem().as_bytes());
    let text = format!(
        "[tls]\nclient_ca = \"clients.pem\"\nclient_auth = \"optional\"\n{OWN}\
         [[key]]\nname = \"runner\"\ncertificate = \"cn:ci\"\nmethods_allow = [\"eth_chainId\"]\n\
         [[key]]\nname = \"alice\"\nsecret = \"wk_0123456789abcdefghij\"\n"
    );
    let sealed = Sealed::start(&node, &files, &text);
    let said = |own: Option<&str>, key: &str, method: &str| {
        let mut guest = Guest::new(&authority);
        if let Some(name) = own {
            guest = guest.showing(&clients.client(name));
        }
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {NAME}\r\n{key}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut talk = guest.connect(&sealed.address, NAME).unwrap();
        let head = talk.ask(request.as_bytes()).unwrap();
        head.split(' ').nth(1).unwrap().to_owned()
    };
    let key = "x-api-key: wk_0123456789abcdefghij\r\n";
    let calls = |name: &str| sealed.metric(&format!("weir_key_calls_total{{key=\"{name}\"}}"));
    assert_eq!(said(None, "", "eth_chainId"), "401", "nothing is shown");
    assert_eq!(said(Some("stranger"), "", "eth_chainId"), "401", "nobody knows the name");
    assert_eq!(said(Some("ci"), "", "eth_chainId"), "200");
    assert_eq!(calls("runner"), 1);
    // What the certificate's key may not call is refused as a method, not as a request.
    assert_eq!(said(Some("ci"), "", "eth_gasPrice"), "200");
    assert_eq!(sealed.metric("weir_access_denied_total{reason=\"method\"}"), 1);
    assert_eq!(said(Some("ci"), key, "eth_gasPrice"), "200", "a key goes before it");
    assert_eq!(calls("alice"), 1);
    assert_eq!(said(Some("ci"), "x-api-key: wrong\r\n", "eth_chainId"), "401", "a wrong key too");
}

#[test]
fn a_session_from_before_a_certificate_was_required_does_not_resume() {
    let (_scene, node, authority, mut files) = set();
    files.write("clients.pem", Authority::new("clients").pem().as_bytes());
    files.write("ticket.key", &[7; 80]);
    let keys = "[tls]\nticket_key_files = [\"ticket.key\"]\n";
    let open = Sealed::start(&node, &files, &format!("{keys}{OWN}"));
    let closed = Sealed::start(&node, &files, &format!("{keys}client_ca = \"clients.pem\"\n{OWN}"));
    for version in ["1.2", "1.3"] {
        let guest = Guest::new(&authority).versions(&[version]);
        check_resumed(&open.address, &guest, 2);
        let got = guest.connect(&closed.address, NAME).ok().and_then(|mut talk| talk.try_get());
        assert_eq!(got, None, "{version}");
    }
    closed.wait_for_failed("certificate_missing", 2);
}

#[test]
fn http2_is_agreed_on_in_the_handshake() {
    let (scene, node, authority, files) = set();
    let sealed = Sealed::start(&node, &files, OWN);
    let alpn = |offered: &[&str]| {
        let guest = Guest::new(&authority).alpn(offered);
        let talk = guest.connect(&sealed.address, NAME).unwrap();
        talk.alpn()
    };
    assert_eq!(alpn(&["h2", "http/1.1"]).as_deref(), Some("h2"));
    assert_eq!(alpn(&["http/1.1", "h2"]).as_deref(), Some("h2"), "ours is the order");
    assert_eq!(alpn(&["http/1.1"]).as_deref(), Some("http/1.1"));
    assert_eq!(alpn(&[]), None);
    assert!(Guest::new(&authority).alpn(&["spdy/1"]).connect(&sealed.address, NAME).is_err());
    let call = scene::body("eth_blockNumber", "[]");
    let expected = raw::Client::connect(&sealed.clear).call("/", &call).body;
    let guest = Guest::new(&authority).alpn(&["h2"]);
    let answers = scene.handle.block_on(guest.post_http2(&sealed.address, NAME, call, 20));
    assert_eq!(answers.len(), 20);
    assert!(answers.iter().all(|answer| *answer == expected));
    let text = String::from_utf8(expected).unwrap();
    assert!(text.contains(&format!("{HEAD:#x}")), "{text}");
}

#[test]
fn a_handshake_that_does_not_come_is_cut() {
    let (_scene, node, authority, files) = set();
    let text = format!("[tls]\nhandshake_timeout = \"300ms\"\n{OWN}");
    let sealed = Sealed::start(&node, &files, &text);
    let mut silent = TcpStream::connect(&sealed.address).unwrap();
    let mut slow = TcpStream::connect(&sealed.address).unwrap();
    let hello = Guest::new(&authority).hello(NAME);
    // All but the last byte, one by one.
    slow.set_nodelay(true).unwrap();
    for byte in &hello[..hello.len() - 1] {
        slow.write_all(&[*byte]).unwrap();
    }
    for stream in [&mut silent, &mut slow] {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut rest = Vec::new();
        assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0, "closed without a word");
    }
    sealed.wait_for_failed("timeout", 2);
    drop(TcpStream::connect(&sealed.address).unwrap());
    sealed.wait_for_failed("closed", 1);
    // One byte at a time is no fault as long as it is in time.
    Guest::new(&authority).connect(&sealed.address, NAME).unwrap().get();
}

#[test]
fn connections_without_a_handshake_are_refused_and_harm_no_others() {
    let (_scene, node, authority, files) = set();
    let sealed = Sealed::start(&node, &files, OWN);
    let hello = Guest::new(&authority).hello(NAME);
    let mut cases: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0; 600],
        vec![0xff; 100_000],
        [&[0x16, 3, 1, 0xff, 0xff], &[1; 70_000][..]].concat(),
        // A record of the right form with nothing sensible in it.
        [&[0x16, 3, 1, 0, 5], &[9; 5][..]].concat(),
        // An alert first.
        vec![0x15, 3, 3, 0, 2, 2, 40],
    ];
    for at in [5, 9, 11, 43, 44, 76, 80, hello.len() - 2] {
        let mut broken = hello.clone();
        broken[at] ^= 0xff;
        cases.push(broken);
    }
    let mut refused = 0;
    for case in &cases {
        let mut stream = TcpStream::connect(&sealed.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The gateway may have closed before all is sent.
        let _ = stream.write_all(case);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut said);
        refused += usize::from(said.first() == Some(&0x15));
    }
    assert!(refused >= 5, "only {refused} were told why by an alert");
    let classes = ["not_tls", "closed", "alert", "nothing_in_common", "other"];
    wait_until("every one is counted", || {
        let failed: u64 = classes.iter().map(|class| sealed.failed(class)).sum();
        failed == cases.len() as u64
    });
    assert!(sealed.failed("not_tls") >= 4);
    Guest::new(&authority).connect(&sealed.address, NAME).unwrap().get();
}

#[test]
fn malformed_handshakes_fill_no_log() {
    let (_scene, node, authority, files) = set();
    let certificate = OWN.replace("own.", &format!("{}/own.", files.folder().display()));
    let mut sealed = Weir::serve()
        .listen_as_configured()
        .config(&format!(
            "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n{certificate}{}\n{}",
            polled_once(""),
            node.entry("")
        ))
        .start();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&sealed.address).unwrap();
        // The last message of a handshake, as the first.
        stream.write_all(&[0x16, 3, 3, 0, 4, 20, 0, 0, 0]).unwrap();
        let mut said = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut said);
    }
    Guest::new(&authority).connect(&sealed.address, NAME).unwrap().get();
    sealed.assert_sound();
    assert!(!sealed.log().contains("rustls"), "{}", sealed.log());
}

#[test]
fn connections_are_short_where_the_operator_wants_it() {
    let (_scene, node, authority, files) = set();
    let text = format!("[downstream]\nkeep_alive_requests_max = 3\n{OWN}");
    let sealed = Sealed::start(&node, &files, &text);
    let mut client = raw::Client::connect(&sealed.clear);
    for left in [2, 1, 0] {
        let answer = client.call("/", &scene::body("eth_blockNumber", "[]"));
        assert_eq!(answer.header("connection"), (left == 0).then_some("close"));
    }
    assert!(client.is_closed());
    let mut talk: Talk = Guest::new(&authority).connect(&sealed.address, NAME).unwrap();
    for _ in 0..3 {
        talk.get();
    }
    assert!(talk.is_closed());
}

#[test]
fn a_node_that_takes_one_call_per_connection_gets_it_so() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    for (more, connects) in [("keep_alive = false", 10), ("", 1)] {
        let text = format!("[cache]\nenabled = false\n{}{}", polled_once(""), node.entry(more));
        let served = scene::Served::start(&text);
        served.wait_for_candidates(&["node"]);
        let mut client = served.client();
        for number in 0..10 {
            scene::result(&scene::ask(&mut client, scene::READ, &scene::account(number, "0x10")));
        }
        let line = "weir_upstream_connections_opened_total{chain=\"sim\",upstream=\"node\"} ";
        let metrics = served.look("/metrics");
        let found = metrics.text().lines().find_map(|row| row.strip_prefix(line)).unwrap();
        assert_eq!(found.parse(), Ok(connects), "{more}");
    }
}
