//! An HTTP/2 server that does not process requests: it ends connections with GOAWAY, and refuses
//! streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::UNCACHED;
use crate::support::authority::{Authority, ConfigFiles, KeyType};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, ask, balance_params, chain_polled_once, result,
    upstream_toml,
};
use test_support::raw::Client;

const PREFACE_BYTES: usize = 24;
const HEADERS: u8 = 1;
const DATA: u8 = 0;
const END_STREAM: u8 = 1;
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// RST_STREAM with REFUSED_STREAM (RFC 9113, 6.4 and 7), without the stream id.
const REFUSED_STREAM: u32 = 7;
/// The HPACK index of `:status: 200` (RFC 7541, appendix A).
const STATUS_200: u8 = 0x88;

/// What the server does with a request.
#[derive(Clone, Copy)]
enum Fate {
    /// GOAWAY whose last stream id is below the stream, so the stream is not processed.
    GoAway,
    /// RST_STREAM with REFUSED_STREAM.
    Refuse,
    /// The node's response, and then GOAWAY.
    Respond,
}

/// Starts the server in front of a node. Each request gets the next of `fates` in turn. Returns the
/// `[[upstream]]` table of the server, and the certificates, which are removed when dropped.
fn start_server(node: &SimNode, fates: &'static [Fate]) -> (String, ConfigFiles) {
    let authority = Authority::new("provider");
    let mut files = ConfigFiles::new();
    files.write_certificate("server", &authority, KeyType::Ecdsa, &["127.0.0.1"]);
    let ca = files.write("ca.pem", authority.pem().as_bytes());
    let path = |name: &str| files.folder().join(name);
    let chain = CertificateDer::pem_file_iter(path("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(path("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth();
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let node_address = node.address.to_string();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let requests = Arc::new(AtomicUsize::new(0));
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, requests) = (acceptor.clone(), Arc::clone(&requests));
                let node_address = node_address.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let next_fate =
                        || fates[requests.fetch_add(1, Ordering::Relaxed) % fates.len()];
                    let _ended = serve(stream, next_fate, &node_address).await;
                });
            }
        });
    });
    let more = format!("tls_ca = \"{}\"\nhttp2 = true\n", ca.display());
    (upstream_toml("node", &url, &more), files)
}

/// Serves one connection until it ends with GOAWAY.
async fn serve(
    mut stream: TlsStream<TcpStream>,
    next_fate: impl Fn() -> Fate,
    node_address: &str,
) -> std::io::Result<()> {
    let mut preface = [0; PREFACE_BYTES];
    stream.read_exact(&mut preface).await?;
    stream.write_all(SETTINGS).await?;
    let mut fate = Fate::Respond;
    let mut body = Vec::new();
    loop {
        let (kind, flags, id, payload) = read_frame(&mut stream).await?;
        match (kind, fate) {
            (HEADERS, _) => {
                fate = next_fate();
                body.clear();
                match fate {
                    Fate::GoAway => return go_away(&mut stream, 0).await,
                    Fate::Refuse => {
                        stream.write_all(&frame(3, 0, id, &REFUSED_STREAM.to_be_bytes())).await?;
                    }
                    Fate::Respond => {}
                }
            }
            (DATA, Fate::Respond) => {
                body.extend_from_slice(&payload);
                if flags & END_STREAM != 0 {
                    let response = Client::connect(node_address).call("/", &body);
                    stream.write_all(&frame(HEADERS, 4, id, &[STATUS_200])).await?;
                    let response = response.text().as_bytes();
                    stream.write_all(&frame(DATA, END_STREAM, id, response)).await?;
                    return go_away(&mut stream, id).await;
                }
            }
            _ => {}
        }
    }
}

/// Ends the connection. The server has processed no stream above `last_id`.
async fn go_away(stream: &mut TlsStream<TcpStream>, last_id: u32) -> std::io::Result<()> {
    let payload = [last_id.to_be_bytes(), 0_u32.to_be_bytes()].concat();
    stream.write_all(&frame(7, 0, 0, &payload)).await?;
    stream.shutdown().await?;
    // The client's last frames are read, because a reset could overtake GOAWAY.
    tokio::io::copy(stream, &mut tokio::io::sink()).await.map(|_| ())
}

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&id.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Reads a frame. Returns its type, flags, stream id and payload.
async fn read_frame(stream: &mut TlsStream<TcpStream>) -> std::io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await?;
    Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// GOAWAY and REFUSED_STREAM prove that the request was not processed (RFC 9113, 6.8 and 8.7).
#[test]
fn a_request_that_the_upstream_has_not_processed_is_sent_again_up_to_four_times() {
    const FATES: &[Fate] = &[Fate::GoAway, Fate::Refuse, Fate::GoAway, Fate::Refuse, Fate::Respond];
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let (upstream, _files) = start_server(&node, FATES);
    // Retries at other upstreams are off, so only repetitions within the attempt help.
    let call = "[call]\nretries_max = 0\n";
    let gateway =
        TestGateway::start(&format!("{}{UNCACHED}{call}{upstream}", chain_polled_once("")));
    gateway.wait_for_candidates(&["node"]);
    let mut client = gateway.client();
    for account in 0..20 {
        let params = balance_params(account, "0x64");
        let answer = ask(&mut client, GET_BALANCE, &params);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(result(&answer), node.call(GET_BALANCE, &params));
    }
    // A method that is never repeated after it was sent is repeated too.
    let answer = ask(&mut client, "x_unknown", "[]");
    assert!(answer.text().contains("-32601"), "{}", answer.text());
    assert_eq!(gateway.upstream(0, "failed"), json!(0));
    assert_eq!(gateway.upstream(0, "ejections"), json!(0));
}
