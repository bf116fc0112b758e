//! Goal: the gateway returns recorded responses unchanged: every byte of each result, and every id,
//! in order. This holds for responses from the node and from the cache, over every protocol and
//! with every content coding.
//!
//! Method: simulated nodes behind the gateway replay recorded exchanges (requests and responses) of
//! Ethereum and Harmony.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use simnode::node::Node;
use simnode::replay::{FixedHead, Recording};
use tokio::sync::oneshot;

use test_support::members::{difference, excerpt, items, members};
use test_support::raw::{Client, Response, post_with};
use test_support::running::{Running, Weir};

/// The numbers of the nodes' newest blocks. All recorded blocks are older, and so they are final.
const MAINNET_HEAD: u64 = 25_000_000;
const HARMONY_HEAD: u64 = 90_000_000;
/// Size of a chunk of a chunked request: a prime number, so that chunks end at irregular places.
const CHUNK_BYTES: usize = 97;
/// The smallest positive integer that a 64-bit floating-point number cannot represent. JavaScript
/// has only such numbers.
const INEXACT_FROM: u128 = (1 << 53) + 1;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A recorded request, the path of its chain at the gateway, and the recorded response.
struct Exchange {
    path: &'static str,
    request: String,
    response: Option<String>,
    /// True if a gateway with a cache does not forward the request unchanged. The gateway itself
    /// responds with the number of the newest block. It also splits `eth_getLogs` into block ranges
    /// that a replaying node does not know. (`transparency.rs` compares logs with a real node.)
    is_rewritten: bool,
}

/// A node on its own thread that replays recorded responses.
struct ReplayingNode {
    address: String,
    _stop: oneshot::Sender<()>,
}

impl ReplayingNode {
    fn start(recording: Recording) -> ReplayingNode {
        let (stop, stopped) = oneshot::channel();
        let (send_address, receive_address) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let node = Node::replaying("replaying", Arc::new(recording));
                let listening = node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                send_address.send(listening.addr().to_string()).unwrap();
                // An error means that the test has ended.
                let _ = stopped.await;
            });
        });
        ReplayingNode { address: receive_address.recv().unwrap(), _stop: stop }
    }
}

/// Returns the newest block of a chain, which is also final.
fn final_head(chain_id: u64, number: u64) -> Option<FixedHead> {
    let (hash, parent) = ([0xfe; 32].into(), [0xfd; 32].into());
    Some(FixedHead { chain_id, number, hash, parent, finalized: number })
}

/// Adds the recorded mainnet exchanges to the recording and returns them. Omits exchanges about a
/// tag such as `latest`. Their recorded result is null, and the gateway would get the same result
/// when it polls the newest block.
fn add_mainnet_exchanges(recording: &mut Recording) -> Vec<Exchange> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in std::fs::read_dir(fixture("mainnet/erigon-rpc-tests")).unwrap() {
        let entries = std::fs::read_dir(folder.unwrap().path()).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.sort();
    assert_eq!(files.len(), 160);
    let moving_tags = ["\"latest\"", "\"finalized\"", "\"safe\"", "eth_blockNumber"];
    let mut exchanges = Vec::new();
    for file in &files {
        let text = read(file);
        let before = exchanges.len();
        for pair in items(&text) {
            let pair = members(pair.get());
            let (request, response) = (pair["request"].get(), pair["response"].get());
            if moving_tags.iter().any(|tag| request.contains(tag)) {
                let result = members(response).get("result").map(|raw| raw.get());
                assert!(matches!(result, None | Some("null")), "{}", file.display());
                continue;
            }
            exchanges.push(Exchange {
                path: "/",
                request: request.to_owned(),
                response: Some(response.to_owned()),
                is_rewritten: request.contains("eth_getLogs"),
            });
        }
        if exchanges.len() > before {
            recording.add_pairs(file).unwrap();
        }
    }
    let batches = exchanges.iter().filter(|exchange| exchange.request.starts_with('[')).count();
    let count = exchanges.len();
    assert!(count >= 130 && batches == 3, "{count} sent, {batches} batches");
    exchanges
}

/// Adds whole blocks and receipts to the recording, and returns exchanges that request them. The
/// largest response has 908 kB.
fn add_blocks(recording: &mut Recording) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    let mut send = |method: &str, params: String, result: Option<String>| {
        let id = exchanges.len();
        let request = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"block {id}\",\"method\":\"{method}\",\"params\":{params}}}"
        );
        let response = result.map(|result| format!("{{\"result\":{result}}}"));
        exchanges.push(Exchange { path: "/", request, response, is_rewritten: false });
    };
    for file in std::fs::read_dir(fixture("mainnet/nimbus-blocks")).unwrap() {
        let file = file.unwrap().path();
        if file.file_name().unwrap() == "storage_proof.json" {
            continue;
        }
        let (number, hash) = recording.add_block(&file).unwrap();
        let result = read(&file).trim().to_owned();
        send("eth_getBlockByNumber", format!("[\"{number:#x}\", true]"), Some(result.clone()));
        send("eth_getBlockByHash", format!("[\"{hash}\",true]"), Some(result));
    }
    let file = fixture("mainnet/helios/receipts.json");
    assert_eq!(recording.add_receipts(&file).unwrap(), 202);
    let all = read(&file).trim().to_owned();
    let receipts = items(&all);
    let hash = members(receipts[0].get())["blockHash"].get();
    send("eth_getBlockReceipts", "[\"0x14e8d38\"]".to_owned(), Some(all.clone()));
    send("eth_getBlockReceipts", format!("[{hash}]"), Some(all.clone()));
    for receipt in &receipts {
        let hash = members(receipt.get())["transactionHash"].get();
        let result = receipt.get().to_owned();
        send("eth_getTransactionReceipt", format!("[{hash}]"), Some(result));
    }
    assert!(exchanges.len() >= 210, "{} calls", exchanges.len());
    let responses = exchanges.iter().filter_map(|exchange| exchange.response.as_ref());
    let largest = responses.map(String::len).max();
    assert!(largest.unwrap() > 900_000, "the largest is {largest:?}");
    exchanges
}

/// Adds the samples of Harmony's documentation to the recording and returns them.
fn add_harmony_samples(recording: &mut Recording) -> Vec<Exchange> {
    let file = fixture("harmony/docs-samples.json");
    assert_eq!(recording.add_pairs(&file).unwrap(), 73);
    let text = read(&file);
    let mut aliases = Vec::new();
    let exchanges = items(&text).into_iter().map(|pair| {
        let pair = members(pair.get());
        let (request, response) = (pair["request"].get(), pair["response"].get());
        if request.contains("\"latest\"") {
            // The gateway forwards the call with the newest block's number instead of the tag.
            let request = request.replace("\"latest\"", &HARMONY_HEAD.to_string());
            aliases.push(format!("{{\"request\":{request},\"response\":{response}}}"));
        }
        Exchange {
            path: "/harmony",
            request: request.to_owned(),
            response: Some(response.to_owned()),
            is_rewritten: request.contains("_blockNumber"),
        }
    });
    let exchanges = exchanges.collect();
    assert_eq!(aliases.len(), 2, "samples about the latest block");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "[{}]", aliases.join(",")).unwrap();
    recording.add_pairs(file.path()).unwrap();
    assert_eq!(recording.conflicts(), 0);
    exchanges
}

/// A mainnet node and a Harmony node that replay exchanges, and these exchanges.
struct RecordedTraffic {
    mainnet: ReplayingNode,
    harmony: ReplayingNode,
    exchanges: Vec<Exchange>,
}

impl RecordedTraffic {
    fn start() -> RecordedTraffic {
        let mut recording = Recording::new(final_head(1, MAINNET_HEAD));
        let mut exchanges = add_mainnet_exchanges(&mut recording);
        exchanges.extend(add_blocks(&mut recording));
        let mainnet = ReplayingNode::start(recording);
        let mut recording = Recording::new(final_head(1_666_600_000, HARMONY_HEAD));
        exchanges.extend(add_harmony_samples(&mut recording));
        RecordedTraffic { mainnet, harmony: ReplayingNode::start(recording), exchanges }
    }

    /// Starts a gateway in front of both nodes. `more` is further configuration.
    fn start_gateway(&self, more: &str) -> Running {
        let (mainnet, harmony) = (&self.mainnet.address, &self.harmony.address);
        Weir::serve()
            .config(&format!(
                r#"
            [chain.mainnet]
            id = 1
            default = true
            [chain.harmony]
            family = "harmony"
            [[upstream]]
            url = "http://{mainnet}"
            chain = "mainnet"
            [[upstream]]
            url = "http://{harmony}"
            chain = "harmony"
            {more}
            "#
            ))
            .start()
    }

    /// Sends all requests directly to the nodes and returns their responses.
    fn node_responses(&self) -> Vec<String> {
        let mut mainnet = Client::connect(&self.mainnet.address);
        let mut harmony = Client::connect(&self.harmony.address);
        let responses = self.exchanges.iter().map(|exchange| {
            let client = if exchange.path == "/" { &mut mainnet } else { &mut harmony };
            let answer = client.call("/", exchange.request.as_bytes());
            assert_eq!(answer.status, 200);
            answer.text().to_owned()
        });
        let responses: Vec<_> = responses.collect();
        for (exchange, answer) in self.exchanges.iter().zip(&responses) {
            assert_as_recorded(exchange, answer);
        }
        responses
    }
}

/// Asserts that the node has returned the recorded result. The tests compare the gateway only with
/// the node.
fn assert_as_recorded(exchange: &Exchange, answer: &str) {
    let Some(recorded) = &exchange.response else { return };
    let check = |recorded: &str, answer: &str| {
        let (recorded, answer) = (members(recorded), members(answer));
        if let Some(result) = recorded.get("result").filter(|raw| raw.get() != "null") {
            assert!(answer["result"].get() == result.get(), "{}", excerpt(&exchange.request));
        }
    };
    if exchange.request.starts_with('[') {
        for (recorded, answer) in items(recorded).into_iter().zip(items(answer)) {
            check(recorded.get(), answer.get());
        }
    } else {
        check(recorded, answer);
    }
}

/// Asserts that the gateway's response equals the node's, byte for byte. The gateway itself rejects
/// invalid calls, and for these only the id and the error code must be equal.
fn assert_same(exchange: &Exchange, node_response: &str, gateway_response: &str, variant: &str) {
    let compare = |request: &str, node_response: &str, gateway_response: &str| {
        let is_call = request.starts_with('{') && members(request).contains_key("method");
        let difference_found = if is_call {
            difference(node_response, gateway_response)
        } else {
            let id_and_code = |text: &str| {
                let fields = members(text);
                let code = members(fields["error"].get())["code"].get().to_owned();
                (fields["id"].get().to_owned(), code)
            };
            let (node_response, gateway_response) =
                (id_and_code(node_response), id_and_code(gateway_response));
            (node_response != gateway_response)
                .then(|| format!("{node_response:?} became {gateway_response:?}"))
        };
        if let Some(difference_found) = difference_found {
            panic!("{variant}: {}: {difference_found}", excerpt(request));
        }
    };
    if exchange.request.starts_with('[') {
        let (requests, node_response, gateway_response) =
            (items(&exchange.request), items(node_response), items(gateway_response));
        assert_eq!(
            (node_response.len(), gateway_response.len()),
            (requests.len(), requests.len()),
            "{variant}"
        );
        for index in 0..requests.len() {
            compare(
                requests[index].get(),
                node_response[index].get(),
                gateway_response[index].get(),
            );
        }
    } else {
        compare(&exchange.request, node_response, gateway_response);
    }
}

/// Returns the decompressed body of a response.
fn decompressed(answer: &Response) -> String {
    let mut text = String::new();
    match answer.header("content-encoding") {
        None => answer.text().clone_into(&mut text),
        Some("gzip") => {
            let size = flate2::read::GzDecoder::new(&*answer.body).read_to_string(&mut text);
            assert_eq!(size.unwrap(), text.len());
        }
        Some("zstd") => {
            text = String::from_utf8(zstd::decode_all(&*answer.body).unwrap()).unwrap();
        }
        Some(other) => panic!("compressed as {other}, which was not accepted"),
    }
    text
}

/// Returns a request with a chunked body.
fn chunked(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    for chunk in body.chunks(CHUNK_BYTES) {
        write!(request, "{:x}\r\n", chunk.len()).unwrap();
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

#[test]
fn recorded_traffic_comes_back_as_recorded() {
    let traffic = RecordedTraffic::start();
    let node_responses = traffic.node_responses();
    let mut gateway = traffic.start_gateway("");
    let mut client = Client::connect(&gateway.address);
    let mut hits = 0;
    for round in ["first", "second"] {
        for (exchange, node_response) in traffic.exchanges.iter().zip(&node_responses) {
            let answer = client.call(exchange.path, exchange.request.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            if exchange.is_rewritten {
                if exchange.request.contains("eth_getLogs") {
                    continue;
                }
                let head = format!("{HARMONY_HEAD:#x}");
                let result = members(answer.text())["result"].get().trim_matches('"').to_owned();
                assert!(result == head || result == HARMONY_HEAD.to_string(), "{result}");
                continue;
            }
            assert_same(exchange, node_response, answer.text(), round);
            let cache_status = answer.header("x-weir-cache").unwrap_or("");
            hits += usize::from(round == "second" && cache_status.starts_with("hit"));
        }
    }
    println!("{} requests, {hits} of the second round from the cache", traffic.exchanges.len());
    assert!(hits >= 300, "only {hits} of {} came from the cache", traffic.exchanges.len());
    gateway.assert_sound();
}

#[test]
fn without_a_cache_the_node_answers_every_call() {
    let traffic = RecordedTraffic::start();
    let node_responses = traffic.node_responses();
    let mut gateway = traffic.start_gateway("[cache]\nenabled = false");
    let mut client = Client::connect(&gateway.address);
    for (exchange, node_response) in traffic.exchanges.iter().zip(&node_responses) {
        let answer = client.call(exchange.path, exchange.request.as_bytes());
        assert_same(exchange, node_response, answer.text(), "no cache");
        let cache_status = answer.header("x-weir-cache").unwrap_or("");
        assert!(!cache_status.contains("hit"), "{cache_status}: {}", excerpt(&exchange.request));
    }
    gateway.assert_sound();
}

#[test]
fn compression_and_chunks_change_no_byte() {
    let traffic = RecordedTraffic::start();
    let node_responses = traffic.node_responses();
    let mut gateway = traffic.start_gateway("");
    let mut client = Client::connect(&gateway.address);
    let compressed = |accepted: &str, exchange: &Exchange| {
        let headers = format!("Accept-Encoding: {accepted}\r\n");
        post_with(exchange.path, &headers, exchange.request.as_bytes())
    };
    let mut codings = std::collections::BTreeMap::<String, usize>::new();
    let forwarded = traffic.exchanges.iter().zip(&node_responses);
    for (exchange, node_response) in forwarded.filter(|(exchange, _)| !exchange.is_rewritten) {
        let requests = [
            ("gzip", compressed("gzip", exchange)),
            ("zstd", compressed("br, zstd", exchange)),
            ("either", compressed("gzip;q=0.5, zstd;q=0", exchange)),
            ("chunks", chunked(exchange.path, exchange.request.as_bytes())),
        ];
        for (variant, request) in requests {
            client.send(&request);
            let answer = client.read_response().unwrap();
            let text = decompressed(&answer);
            assert_same(exchange, node_response, &text, variant);
            let coding = answer.header("content-encoding").unwrap_or("none");
            // The gateway does not compress responses below 1 KiB.
            assert!(variant == "chunks" || coding != "none" || text.len() < 1024, "{}", text.len());
            *codings.entry(format!("{variant}: {coding}")).or_default() += 1;
        }
    }
    println!("{codings:?}");
    for variant_and_coding in ["gzip: gzip", "zstd: zstd", "either: gzip", "chunks: none"] {
        assert!(
            codings.get(variant_and_coding).is_some_and(|count| *count >= 50),
            "{variant_and_coding}: {codings:?}"
        );
    }
    gateway.assert_sound();
}

/// Sends a request over HTTP/2 and returns the response's status and body.
async fn post_http2(
    mut sender: SendRequest<Full<Bytes>>,
    address: &str,
    exchange: &Exchange,
) -> (u16, String) {
    let request = Request::post(format!("http://{address}{}", exchange.path))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(exchange.request.clone())))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn http2_carries_the_same_bytes() {
    let traffic = RecordedTraffic::start();
    let node_responses = traffic.node_responses();
    let mut gateway = traffic.start_gateway("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&gateway.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
            TokioExecutor::new(),
            TokioIo::new(stream),
        );
        let (sender, connection) = handshake.await.unwrap();
        let connection_task = tokio::spawn(connection);
        for round in ["one after the other", "many at a time"] {
            let concurrency = if round == "many at a time" { 50 } else { 1 };
            let groups = traffic.exchanges.chunks(concurrency);
            for (group, group_responses) in groups.zip(node_responses.chunks(concurrency)) {
                let mut requests = Vec::new();
                for exchange in group {
                    requests.push(Box::pin(post_http2(sender.clone(), &gateway.address, exchange)));
                }
                let answers = join_all(requests).await;
                for ((exchange, node_response), (status, gateway_response)) in
                    group.iter().zip(group_responses).zip(answers)
                {
                    assert_eq!(status, 200, "{gateway_response}");
                    if !exchange.is_rewritten {
                        assert_same(exchange, node_response, &gateway_response, round);
                    }
                }
            }
        }
        drop(sender);
        connection_task.await.unwrap().unwrap();
    });
    gateway.assert_sound();
}

/// Polls all futures until each is complete. Returns their outputs in order.
async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = std::pin::Pin::new(future).poll(cx)
            {
                *done = Some(output);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Counts the integers outside of strings that a 64-bit floating-point number cannot represent.
fn count_inexact_integers(text: &str) -> usize {
    let mut count = 0;
    for (index, part) in text.split('"').enumerate() {
        // Every second part is inside of a string, because no recorded string contains an escaped
        // quote.
        if index % 2 == 0 {
            let digits = part.split(|c: char| !c.is_ascii_digit());
            let is_inexact =
                |run: &str| run.parse::<u128>().is_ok_and(|value| value >= INEXACT_FROM);
            count += digits.filter(|run| is_inexact(run)).count();
        }
    }
    count
}

#[test]
fn integers_beyond_doubles_survive() {
    let traffic = RecordedTraffic::start();
    let gateway = traffic.start_gateway("");
    let mut client = Client::connect(&gateway.address);
    for round in ["first", "second"] {
        let mut count = 0;
        for exchange in traffic.exchanges.iter().filter(|exchange| exchange.path == "/harmony") {
            let answer = client.call(exchange.path, exchange.request.as_bytes());
            count += count_inexact_integers(answer.text());
        }
        assert_eq!(count, 19, "{round}: the samples hold 19 such integers");
    }
}

#[test]
fn a_batch_of_many_large_answers_is_in_order() {
    let traffic = RecordedTraffic::start();
    let node_responses = traffic.node_responses();
    let gateway = traffic.start_gateway("");
    let mut client = Client::connect(&gateway.address);
    let singles: Vec<_> = traffic
        .exchanges
        .iter()
        .zip(&node_responses)
        .filter(|(exchange, _)| {
            let is_single_call = exchange.request.starts_with('{');
            exchange.path == "/" && is_single_call && !exchange.is_rewritten
        })
        .collect();
    assert!(singles.len() > 300, "{}", singles.len());
    for round in ["first", "second"] {
        let requests: Vec<_> =
            singles.iter().map(|(exchange, _)| exchange.request.as_str()).collect();
        let answer = client.call("/", format!("[{}]", requests.join(",")).as_bytes());
        let gateway_responses = items(answer.text());
        assert_eq!(gateway_responses.len(), singles.len());
        for ((exchange, node_response), gateway_response) in singles.iter().zip(gateway_responses) {
            assert_same(exchange, node_response, gateway_response.get(), round);
        }
        println!("{round}: {} bytes, {:?}", answer.body.len(), answer.header("x-weir-cache"));
    }
}

#[test]
fn the_comparison_detects_changed_answers() {
    let exchange = |request: &str| Exchange {
        path: "/",
        request: request.to_owned(),
        response: None,
        is_rewritten: false,
    };
    let is_detected = |request: &str, node_response: &str, gateway_response: &str| {
        std::panic::catch_unwind(|| {
            assert_same(&exchange(request), node_response, gateway_response, "here");
        })
        .is_err()
    };
    let call = r#"{"id":1,"method":"m"}"#;
    let answer = r#"{"id":1,"result":9007199254740993}"#;
    assert!(!is_detected(call, answer, answer));
    assert!(is_detected(call, answer, r#"{"id":1,"result":9007199254740992}"#));
    assert!(is_detected(call, answer, r#"{"id":"1","result":9007199254740993}"#));
    let batch = r#"[{"id":1,"method":"m"},{"id":2,"method":"m"},7]"#;
    let refusal = r#"{"id":null,"error":{"code":-32600,"message":"theirs"}}"#;
    let batch_of = |first: &str, second: &str, third: &str| format!("[{first},{second},{third}]");
    let (first_answer, second_answer) = (r#"{"id":1,"result":1}"#, r#"{"id":2,"result":1}"#);
    let theirs = batch_of(first_answer, second_answer, refusal);
    assert!(!is_detected(
        batch,
        &theirs,
        &batch_of(first_answer, second_answer, &refusal.replace("theirs", "ours"))
    ));
    assert!(is_detected(batch, &theirs, &batch_of(second_answer, first_answer, refusal)));
    assert!(is_detected(
        batch,
        &theirs,
        &batch_of(first_answer, second_answer, &refusal.replace("-32600", "-32700"))
    ));
    assert!(is_detected(batch, &theirs, &format!("[{first_answer},{second_answer}]")));
}
