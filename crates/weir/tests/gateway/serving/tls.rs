//! TLS between the gateway and nodes: trusted and rejected certificates, and few handshakes.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::support::harness::{
    GET_BALANCE, NEWEST_BLOCK, NodeRuntime, SimNode, TestGateway, ask, balance_params,
    chain_polled_once, error, result, upstream_toml,
};
use test_support::raw::Client;
use test_support::running::Weir;
use test_support::wait::wait_until;

/// The host name in the certificate.
const NAME: &str = "node.test";

/// A TLS server in front of a node, with a certificate of its own authority.
struct TlsProxy {
    address: SocketAddr,
    authority: NamedTempFile,
    handshakes: Arc<AtomicUsize>,
}

impl TlsProxy {
    fn in_front_of(runtime: &NodeRuntime, node: &SimNode) -> TlsProxy {
        let (server, pem) = server_config();
        let mut authority = NamedTempFile::new().unwrap();
        authority.write_all(pem.as_bytes()).unwrap();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (handshake_count, node) = (Arc::clone(&handshakes), node.address);
        let _within = runtime.handle.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        runtime.handle.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, handshake_count) = (acceptor.clone(), Arc::clone(&handshake_count));
                tokio::spawn(async move {
                    // A client that does not trust the certificate ends the handshake.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    handshake_count.fetch_add(1, Ordering::Relaxed);
                    let mut node = TcpStream::connect(node).await.unwrap();
                    // An error means that one side has ended the connection.
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut node).await;
                });
            }
        });
        TlsProxy { address, authority, handshakes }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The `[[upstream]]` key that makes the gateway trust the certificate.
    fn trust_key(&self) -> String {
        format!("tls_ca = \"{}\"\n", self.authority.path().display())
    }

    /// Number of completed handshakes so far.
    fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }
}

/// Returns a TLS server's configuration for [`NAME`], and the PEM of its authority.
fn server_config() -> (ServerConfig, String) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let named = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    let certificate = named.signed_by(&key, &issuer).unwrap().der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    (server, pem)
}

#[test]
fn a_trusted_node_is_used_over_few_handshakes() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let proxy = TlsProxy::in_front_of(&runtime, &node);
    let more = format!("{}tls_server_name = \"{NAME}\"", proxy.trust_key());
    let text = format!("{}{}", chain_polled_once(""), upstream_toml("node", &proxy.url(), &more));
    let gateway = TestGateway::start(&text);
    gateway.wait_for_head(Some(NEWEST_BLOCK));
    assert_eq!(proxy.handshakes(), 1, "the poller has one connection");
    let mut client = gateway.client();
    for account in 0..100 {
        let params = balance_params(account, "0x10");
        let answer = ask(&mut client, GET_BALANCE, &params);
        assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
    }
    assert_eq!(proxy.handshakes(), 2, "sequential calls need one connection");
    node.set_latency(GET_BALANCE, 100.0);
    std::thread::scope(|scope| {
        for worker in 1..=4 {
            let mut client = gateway.client();
            scope.spawn(move || {
                for number in 0..10 {
                    let params = balance_params(worker * 1000 + number, "0x10");
                    result(&ask(&mut client, GET_BALANCE, &params));
                }
            });
        }
    });
    let handshakes = proxy.handshakes();
    assert!((4..=1 + 4).contains(&handshakes), "{handshakes} handshakes for four concurrent calls");
}

#[test]
fn without_verification_any_certificate_is_accepted() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let proxy = TlsProxy::in_front_of(&runtime, &node);
    let upstream = upstream_toml("node", &proxy.url(), "tls_verify = false");
    let gateway = TestGateway::start(&format!("{}{upstream}", chain_polled_once("")));
    result(&ask(&mut gateway.client(), GET_BALANCE, &balance_params(1, "0x10")));
}

/// Starts a gateway that must reject the node's certificate. Checks the client's error and returns
/// the log.
fn log_of_rejection(proxy: &TlsProxy, more: &str) -> String {
    let node = upstream_toml("node", &proxy.url(), more);
    let mut gateway =
        Weir::serve().config(&format!("[chain.sim]\npoll_interval = \"50ms\"\n{node}")).start();
    let mut client = Client::connect(&gateway.address);
    let answer = ask(&mut client, GET_BALANCE, &balance_params(1, "0x10"));
    assert_eq!(error(&answer), (502, -32603, "no upstream could be reached".to_owned()));
    wait_until("the upstream is ejected", || gateway.log().contains("upstream ejected"));
    gateway.assert_sound();
    assert_eq!(proxy.handshakes(), 0);
    gateway.log()
}

#[test]
fn an_unknown_authority_is_rejected_and_logged() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let proxy = TlsProxy::in_front_of(&runtime, &node);
    let before = node.calls();
    let log = log_of_rejection(&proxy, &format!("tls_server_name = \"{NAME}\""));
    assert!(log.contains("the server's certificate comes from an untrusted authority"), "{log}");
    assert_eq!(log.matches("cannot connect").count(), 1, "logged once: {log}");
    assert_eq!(node.calls(), before);
}

#[test]
fn a_wrong_name_is_rejected_and_logged() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let proxy = TlsProxy::in_front_of(&runtime, &node);
    for (more, wrong) in [("", "127.0.0.1"), ("tls_server_name = \"other.test\"\n", "other.test")] {
        let log = log_of_rejection(&proxy, &format!("{}{more}", proxy.trust_key()));
        assert!(log.contains(wrong) && log.contains(NAME), "{log}");
    }
    assert_eq!(node.calls(), 0);
}
