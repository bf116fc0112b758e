//! Goal: the engine and the server count the same handshakes, and failed handshakes are of class
//! `tls`. Method: a rustls server with a self-signed certificate and optional session tickets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lab_model::plan::{Tls, TlsVersion};
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::PrivateKeyDer;
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use super::{Class, Plan, Reuse, RunOutcome, Server, plan, run};

/// A TLS server with the default response.
struct TlsServer {
    /// A server value with the same address, for the functions that build a plan.
    plain: Server,
    ca: PathBuf,
    _folder: tempfile::TempDir,
    full_handshakes: Arc<AtomicU64>,
    resumed_handshakes: Arc<AtomicU64>,
    listen_address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let _woken = TcpStream::connect(self.listen_address);
    }
}

impl TlsServer {
    fn new(version: &'static rustls::SupportedProtocolVersion, tickets: bool) -> TlsServer {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, certificate.pem()).unwrap();
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        if tickets {
            config.ticketer = Ticketer::new().unwrap();
        } else {
            config.send_tls13_tickets = 0;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut plain = Server::new(super::server::Request::ok);
        let listens = listener.local_addr().unwrap();
        plain.address = listens;
        let secure = TlsServer {
            plain,
            ca,
            _folder: folder,
            full_handshakes: Arc::default(),
            resumed_handshakes: Arc::default(),
            listen_address: listens,
            is_stopped: Arc::default(),
        };
        let counts = (Arc::clone(&secure.full_handshakes), Arc::clone(&secure.resumed_handshakes));
        let (config, is_stopped) = (Arc::new(config), Arc::clone(&secure.is_stopped));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (config, counts) = (Arc::clone(&config), counts.clone());
                std::thread::spawn(move || {
                    // A client that does not trust the certificate ends the connection.
                    let _ended = converse(stream.unwrap(), config, &counts);
                });
            }
        });
        secure
    }

    fn plan(&self, iterations: u64, tls: Tls) -> Plan {
        let mut plan = plan(&self.plain, iterations);
        let url = format!("https://localhost:{}/rpc", self.plain.address.port());
        plan.target.point_at(&url).unwrap();
        plan.connections.tls = tls;
        plan
    }

    fn trusted(&self) -> Tls {
        Tls { ca: Some(self.ca.clone()), ..Tls::default() }
    }

    /// Runs the plan, and checks that the engine and the server count the same handshakes.
    fn run(&self, plan: Plan) -> RunOutcome {
        let outcome = run(plan, &self.plain);
        let server = (
            self.full_handshakes.load(Ordering::Relaxed),
            self.resumed_handshakes.load(Ordering::Relaxed),
        );
        let traffic = outcome.totals.traffic;
        assert_eq!((traffic.handshakes_full, traffic.handshakes_resumed), server);
        assert_eq!(outcome.totals.handshake_full_time.len(), server.0);
        assert_eq!(outcome.totals.handshake_resumed_time.len(), server.1);
        outcome
    }
}

fn converse(
    stream: TcpStream,
    config: Arc<ServerConfig>,
    (full, resumed): &(Arc<AtomicU64>, Arc<AtomicU64>),
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut bytes = Vec::new();
    let mut counted = false;
    loop {
        let mut more = [0; 4096];
        let count = stream.read(&mut more)?;
        if !std::mem::replace(&mut counted, true) {
            let kind = stream.conn.handshake_kind();
            let count = if kind == Some(HandshakeKind::Resumed) { resumed } else { full };
            count.fetch_add(1, Ordering::Relaxed);
        }
        if count == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&more[..count]);
        if !bytes.ends_with(b"}") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut bytes)).unwrap();
        let id: u64 = text
            .split("\"id\":")
            .nth(1)
            .unwrap()
            .split([',', '}'])
            .next()
            .unwrap()
            .parse()
            .unwrap();
        // Some responses are so long that the engine reads them in several pieces.
        let size = if id % 5 == 4 { 900_000 } else { 20_000 };
        let body = format!(r#"{{"id":{id},"result":"{}"}}"#, "x".repeat(size));
        stream.write_all(&super::server::http(200, "", &body))?;
    }
}

/// Makes 20 calls, each on its own connection, and checks that `resumed` handshakes are resumed.
/// `tickets` is true if the server issues session tickets, and `resume` if the client uses them.
fn check(version: TlsVersion, tickets: bool, resume: bool, resumed: u64) {
    let supported = match version {
        TlsVersion::Tls12 => &rustls::version::TLS12,
        TlsVersion::Tls13 => &rustls::version::TLS13,
    };
    let server = TlsServer::new(supported, tickets);
    let mut plan = server.plan(20, Tls { resume, version: Some(version), ..server.trusted() });
    plan.connections.reuse = Reuse::Never;
    let outcome = server.run(plan);
    outcome.check_all(Class::Ok, 20);
    assert_eq!(outcome.totals.traffic.connections, 20);
    assert_eq!(outcome.totals.traffic.handshakes_resumed, resumed);
}

#[test]
fn resumption_is_measured() {
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        check(version, true, true, 19);
        check(version, true, false, 0);
        check(version, false, true, 0);
    }
}

#[test]
fn one_handshake_for_a_connection_that_is_reused() {
    let server = TlsServer::new(&rustls::version::TLS13, true);
    let outcome = server.run(server.plan(50, server.trusted()));
    outcome.check_all(Class::Ok, 50);
    assert_eq!(outcome.totals.traffic.handshakes_full, 1);
    assert!(outcome.totals.traffic.bytes_received > 50 * 20_000);
}

#[test]
fn certificates_are_verified_unless_the_plan_is_insecure() {
    let server = TlsServer::new(&rustls::version::TLS13, true);
    let strange = run(server.plan(2, Tls::default()), &server.plain);
    strange.check_all(Class::Tls, 2);
    assert_eq!(strange.totals.traffic.connections_failed, 2);
    let server = TlsServer::new(&rustls::version::TLS13, true);
    let insecure = Tls { insecure: true, ..Tls::default() };
    server.run(server.plan(2, insecure)).check_all(Class::Ok, 2);
}

#[test]
fn a_version_that_the_server_does_not_support() {
    let server = TlsServer::new(&rustls::version::TLS12, true);
    let newer = Tls { version: Some(TlsVersion::Tls13), ..server.trusted() };
    run(server.plan(2, newer), &server.plain).check_all(Class::Tls, 2);
}

#[test]
fn only_the_configured_cipher_is_offered() {
    let server = TlsServer::new(&rustls::version::TLS12, true);
    let ecdsa = Tls {
        version: Some(TlsVersion::Tls12),
        ciphers: vec!["ECDHE-ECDSA-AES256-GCM-SHA384".to_owned()],
        ..server.trusted()
    };
    server.run(server.plan(2, ecdsa.clone())).check_all(Class::Ok, 2);
    let server = TlsServer::new(&rustls::version::TLS12, true);
    let rsa = Tls { ciphers: vec!["ECDHE-RSA-AES256-GCM-SHA384".to_owned()], ..ecdsa };
    let rsa = Tls { ca: Some(server.ca.clone()), ..rsa };
    run(server.plan(2, rsa), &server.plain).check_all(Class::Tls, 2);
}

#[test]
fn a_server_without_tls() {
    let server = Server::new(|_| super::server::Reply::Silence);
    let mut plain = plan(&server, 2);
    let url = format!("https://localhost:{}/rpc", server.address.port());
    plain.target.point_at(&url).unwrap();
    plain.target.connect_timeout = std::time::Duration::from_millis(100);
    run(plain, &server).check_all(Class::Tls, 2);
}

#[test]
fn http2_requires_alpn() {
    let server = TlsServer::new(&rustls::version::TLS13, true);
    let mut plan = server.plan(2, server.trusted());
    plan.connections.http = lab_model::plan::HttpVersion::Http2;
    run(plan, &server.plain).check_all(Class::Tls, 2);
}
