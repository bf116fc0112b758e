//! TLS to nodes: trusted and rejected certificates, and few handshakes.

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

use crate::support::scene::{
    READ, Scene, Served, SimNode, account, ask, entry, error, polled_once, result,
};
use test_support::raw::Client;
use test_support::running::Weir;
use test_support::wait::wait_until;

/// The name in the certificate.
const NAME: &str = "node.test";

/// An authority of our own, and a TLS server before a node with a certificate of it.
struct Sealed {
    address: SocketAddr,
    authority: NamedTempFile,
    handshakes: Arc<AtomicUsize>,
}

impl Sealed {
    fn before(scene: &Scene, node: &SimNode) -> Sealed {
        let (server, pem) = certified();
        let mut authority = NamedTempFile::new().unwrap();
        authority.write_all(pem.as_bytes()).unwrap();
        let handshakes = Arc::new(AtomicUsize::new(0));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (counted, node) = (Arc::clone(&handshakes), node.address);
        let _within = scene.handle.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server));
        scene.handle.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (acceptor.clone(), Arc::clone(&counted));
                tokio::spawn(async move {
                    // A client that does not trust us ends the handshake.
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    counted.fetch_add(1, Ordering::Relaxed);
                    let mut node = TcpStream::connect(node).await.unwrap();
                    // Either side may end it.
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut node).await;
                });
            }
        });
        Sealed { address, authority, handshakes }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn trust(&self) -> String {
        format!("tls_ca = \"{}\"\n", self.authority.path().display())
    }

    fn handshakes(&self) -> usize {
        self.handshakes.load(Ordering::Relaxed)
    }
}

/// A server for [`NAME`] alone, and the authority to trust for it.
fn certified() -> (ServerConfig, String) {
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
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let sealed = Sealed::before(&scene, &node);
    let more = format!("{}tls_server_name = \"{NAME}\"", sealed.trust());
    let text = format!("{}{}", polled_once(""), entry("node", &sealed.url(), &more));
    let served = Served::start(&text);
    served.wait_for_head(Some(crate::support::scene::HEAD));
    assert_eq!(sealed.handshakes(), 1, "the watcher's own");
    let mut client = served.client();
    for number in 0..100 {
        let params = account(number, "0x10");
        assert_eq!(result(&ask(&mut client, READ, &params)), node.result(READ, &params));
    }
    assert_eq!(sealed.handshakes(), 2, "calls one after the other need one connection");
    node.slow(READ, 100.0);
    std::thread::scope(|scope| {
        for worker in 1..=4 {
            let mut client = served.client();
            scope.spawn(move || {
                for number in 0..10 {
                    result(&ask(&mut client, READ, &account(worker * 1000 + number, "0x10")));
                }
            });
        }
    });
    let handshakes = sealed.handshakes();
    assert!((4..=1 + 4).contains(&handshakes), "{handshakes} for four at a time");
}

#[test]
fn any_certificate_does_where_the_operator_says_so() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let sealed = Sealed::before(&scene, &node);
    let text = format!("{}{}", polled_once(""), entry("node", &sealed.url(), "tls_verify = false"));
    let served = Served::start(&text);
    result(&ask(&mut served.client(), READ, &account(1, "0x10")));
}

/// What a client is told, and what the log says at its usual level.
fn refused(sealed: &Sealed, more: &str) -> String {
    let node = entry("node", &sealed.url(), more);
    let mut gateway =
        Weir::serve().config(&format!("[chain.sim]\npoll_interval = \"50ms\"\n{node}")).start();
    let mut client = Client::connect(&gateway.address);
    let answer = ask(&mut client, READ, &account(1, "0x10"));
    assert_eq!(error(&answer), (502, -32603, "no upstream could be reached".to_owned()));
    wait_until("the upstream is ejected", || gateway.log().contains("upstream ejected"));
    gateway.assert_sound();
    assert_eq!(sealed.handshakes(), 0);
    gateway.log()
}

#[test]
fn an_unknown_authority_is_refused_and_named() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let sealed = Sealed::before(&scene, &node);
    let before = node.calls();
    let said = refused(&sealed, &format!("tls_server_name = \"{NAME}\""));
    assert!(said.contains("UnknownIssuer"), "{said}");
    assert_eq!(said.matches("UnknownIssuer").count(), 1, "told once: {said}");
    assert_eq!(node.calls(), before);
}

#[test]
fn a_wrong_name_is_refused_and_named() {
    let scene = Scene::set();
    let [node] = scene.nodes(["node"]);
    let sealed = Sealed::before(&scene, &node);
    for (more, wrong) in [("", "127.0.0.1"), ("tls_server_name = \"other.test\"\n", "other.test")] {
        let said = refused(&sealed, &format!("{}{more}", sealed.trust()));
        assert!(said.contains(wrong) && said.contains(NAME), "{said}");
    }
    assert_eq!(node.calls(), 0);
}
