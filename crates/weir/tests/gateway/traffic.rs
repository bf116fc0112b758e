//! Goal: what real clients sent to real nodes comes back through the gateway as it was recorded:
//! every byte of each result, every id, in order; from the node and from the cache, over every
//! protocol and coding that is offered. Method: nodes that replay recorded Ethereum and Harmony
//! exchanges, and the gateway in front of them.

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
use test_support::raw::{Answer, Client, post_with};
use test_support::running::{Running, Weir};

/// Heads above every recorded block, so that nothing recorded is among the unfinalized ones.
const MAINNET_HEAD: u64 = 25_000_000;
const HARMONY_HEAD: u64 = 90_000_000;
/// Bytes that a chunked request is cut into; no divisor of anything.
const CHUNK_BYTES: usize = 97;
/// The first integer that a double cannot hold, and with it much of JavaScript.
const INEXACT_FROM: u128 = (1 << 53) + 1;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A request with the path that it belongs to, and what was recorded as its response.
struct Sent {
    path: &'static str,
    request: String,
    response: Option<String>,
    /// Whether the gateway, with its cache on, does not send it on as it came: the number of the
    /// head it answers by itself, a range of logs it asks for in parts, and a node that replays
    /// knows no parts. (`transparency.rs` compares logs with a node that does.)
    reworked: bool,
}

/// A replaying node on a thread of its own.
struct Replaying {
    address: String,
    _stop: oneshot::Sender<()>,
}

impl Replaying {
    fn start(recording: Recording) -> Replaying {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let node = Node::replaying("replaying", Arc::new(recording));
                let listening = node.listen("127.0.0.1:0".parse().unwrap()).unwrap();
                tell.send(listening.addr().to_string()).unwrap();
                // An error means that the test has ended.
                let _ = stopped.await;
            });
        });
        Replaying { address: told.recv().unwrap(), _stop: stop }
    }
}

fn head(chain_id: u64, number: u64) -> Option<FixedHead> {
    let (hash, parent) = ([0xfe; 32].into(), [0xfd; 32].into());
    Some(FixedHead { chain_id, number, hash, parent, finalized: number })
}

/// Recorded mainnet exchanges, but for those about a moving block: they were recorded without the
/// value of their moment, and would have the head's polls answered with null.
fn mainnet(recording: &mut Recording) -> Vec<Sent> {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in std::fs::read_dir(fixture("mainnet/erigon-rpc-tests")).unwrap() {
        let entries = std::fs::read_dir(folder.unwrap().path()).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.sort();
    assert_eq!(files.len(), 160);
    let moving = ["\"latest\"", "\"finalized\"", "\"safe\"", "eth_blockNumber"];
    let mut sent = Vec::new();
    for file in &files {
        let text = read(file);
        let before = sent.len();
        for pair in items(&text) {
            let pair = members(pair.get());
            let (request, response) = (pair["request"].get(), pair["response"].get());
            if moving.iter().any(|tag| request.contains(tag)) {
                let result = members(response).get("result").map(|raw| raw.get());
                assert!(matches!(result, None | Some("null")), "{}", file.display());
                continue;
            }
            sent.push(Sent {
                path: "/",
                request: request.to_owned(),
                response: Some(response.to_owned()),
                reworked: request.contains("eth_getLogs"),
            });
        }
        if sent.len() > before {
            recording.add_pairs(file).unwrap();
        }
    }
    let batches = sent.iter().filter(|sent| sent.request.starts_with('[')).count();
    assert!(sent.len() >= 130 && batches == 3, "{} sent, {batches} batches", sent.len());
    sent
}

/// Calls for whole blocks with their transactions and receipts: the largest is 908 kB.
fn blocks(recording: &mut Recording) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut send = |method: &str, params: String, result: Option<String>| {
        let id = sent.len();
        let request = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":\"block {id}\",\"method\":\"{method}\",\"params\":{params}}}"
        );
        let response = result.map(|result| format!("{{\"result\":{result}}}"));
        sent.push(Sent { path: "/", request, response, reworked: false });
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
    assert!(sent.len() >= 210, "{} calls", sent.len());
    let largest = sent.iter().filter_map(|sent| sent.response.as_ref()).map(String::len).max();
    assert!(largest.unwrap() > 900_000, "the largest is {largest:?}");
    sent
}

/// The samples of Harmony's documentation.
fn harmony(recording: &mut Recording) -> Vec<Sent> {
    let file = fixture("harmony/docs-samples.json");
    assert_eq!(recording.add_pairs(&file).unwrap(), 73);
    let text = read(&file);
    let mut aliases = Vec::new();
    let sent = items(&text).into_iter().map(|pair| {
        let pair = members(pair.get());
        let (request, response) = (pair["request"].get(), pair["response"].get());
        if request.contains("\"latest\"") {
            // The gateway sends it on for the block that the tag names.
            let request = request.replace("\"latest\"", &HARMONY_HEAD.to_string());
            aliases.push(format!("{{\"request\":{request},\"response\":{response}}}"));
        }
        Sent {
            path: "/harmony",
            request: request.to_owned(),
            response: Some(response.to_owned()),
            reworked: request.contains("_blockNumber"),
        }
    });
    let sent = sent.collect();
    assert_eq!(aliases.len(), 2, "samples about the latest block");
    let mut file = tempfile::NamedTempFile::new().unwrap();
    write!(file, "[{}]", aliases.join(",")).unwrap();
    recording.add_pairs(file.path()).unwrap();
    assert_eq!(recording.conflicts(), 0);
    sent
}

/// Both nodes, and all that is to be sent.
struct Scene {
    mainnet: Replaying,
    harmony: Replaying,
    sent: Vec<Sent>,
}

impl Scene {
    fn set() -> Scene {
        let mut recording = Recording::new(head(1, MAINNET_HEAD));
        let mut sent = mainnet(&mut recording);
        sent.extend(blocks(&mut recording));
        let mainnet = Replaying::start(recording);
        let mut recording = Recording::new(head(1_666_600_000, HARMONY_HEAD));
        sent.extend(harmony(&mut recording));
        Scene { mainnet, harmony: Replaying::start(recording), sent }
    }

    fn gateway(&self, more: &str) -> Running {
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

    /// What the nodes answer when nothing stands in between.
    fn direct(&self) -> Vec<String> {
        let mut mainnet = Client::connect(&self.mainnet.address);
        let mut harmony = Client::connect(&self.harmony.address);
        let answers = self.sent.iter().map(|sent| {
            let client = if sent.path == "/" { &mut mainnet } else { &mut harmony };
            let answer = client.call("/", sent.request.as_bytes());
            assert_eq!(answer.status, 200);
            answer.text().to_owned()
        });
        let answers: Vec<_> = answers.collect();
        for (sent, answer) in self.sent.iter().zip(&answers) {
            assert_as_recorded(sent, answer);
        }
        answers
    }
}

/// The node itself gives what was recorded; else all comparing with it would say nothing.
fn assert_as_recorded(sent: &Sent, answer: &str) {
    let Some(recorded) = &sent.response else { return };
    let check = |recorded: &str, answer: &str| {
        let (recorded, answer) = (members(recorded), members(answer));
        if let Some(result) = recorded.get("result").filter(|raw| raw.get() != "null") {
            assert!(answer["result"].get() == result.get(), "{}", excerpt(&sent.request));
        }
    };
    if sent.request.starts_with('[') {
        for (recorded, answer) in items(recorded).into_iter().zip(items(answer)) {
            check(recorded.get(), answer.get());
        }
    } else {
        check(recorded, answer);
    }
}

/// Fails unless an answer is the node's, byte for byte. What is no call is refused by the gateway
/// in its own words, under the node's code.
fn assert_same(sent: &Sent, theirs: &str, ours: &str, how: &str) {
    let compare = |request: &str, theirs: &str, ours: &str| {
        let is_call = request.starts_with('{') && members(request).contains_key("method");
        let found = if is_call {
            difference(theirs, ours)
        } else {
            let of = |text: &str| {
                let all = members(text);
                let code = members(all["error"].get())["code"].get().to_owned();
                (all["id"].get().to_owned(), code)
            };
            (of(theirs) != of(ours)).then(|| format!("{:?} became {:?}", of(theirs), of(ours)))
        };
        if let Some(found) = found {
            panic!("{how}: {}: {found}", excerpt(request));
        }
    };
    if sent.request.starts_with('[') {
        let (requests, theirs, ours) = (items(&sent.request), items(theirs), items(ours));
        assert_eq!((theirs.len(), ours.len()), (requests.len(), requests.len()), "{how}");
        for at in 0..requests.len() {
            compare(requests[at].get(), theirs[at].get(), ours[at].get());
        }
    } else {
        compare(&sent.request, theirs, ours);
    }
}

/// An answer's body with its content coding undone.
fn unpacked(answer: &Answer) -> String {
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
        Some(other) => panic!("packed as {other}, which was not accepted"),
    }
    text
}

/// A request whose body comes in chunks.
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
    let scene = Scene::set();
    let direct = scene.direct();
    let mut gateway = scene.gateway("");
    let mut client = Client::connect(&gateway.address);
    let mut hits = 0;
    for round in ["first", "second"] {
        for (sent, theirs) in scene.sent.iter().zip(&direct) {
            let answer = client.call(sent.path, sent.request.as_bytes());
            assert_eq!(answer.status, 200, "{}", answer.text());
            if sent.reworked {
                if sent.request.contains("eth_getLogs") {
                    continue;
                }
                let head = format!("{HARMONY_HEAD:#x}");
                let said = members(answer.text())["result"].get().trim_matches('"').to_owned();
                assert!(said == head || said == HARMONY_HEAD.to_string(), "{said}");
                continue;
            }
            assert_same(sent, theirs, answer.text(), round);
            let mark = answer.header("x-weir-cache").unwrap_or("");
            hits += usize::from(round == "second" && mark.starts_with("hit"));
        }
    }
    println!("{} requests, {hits} of the second round from the cache", scene.sent.len());
    assert!(hits >= 300, "only {hits} of {} came from the cache", scene.sent.len());
    gateway.assert_sound();
}

#[test]
fn without_a_cache_every_call_is_the_nodes() {
    let scene = Scene::set();
    let direct = scene.direct();
    let mut gateway = scene.gateway("[cache]\nenabled = false");
    let mut client = Client::connect(&gateway.address);
    for (sent, theirs) in scene.sent.iter().zip(&direct) {
        let answer = client.call(sent.path, sent.request.as_bytes());
        assert_same(sent, theirs, answer.text(), "no cache");
        let mark = answer.header("x-weir-cache").unwrap_or("");
        assert!(!mark.contains("hit"), "{mark}: {}", excerpt(&sent.request));
    }
    gateway.assert_sound();
}

#[test]
fn codings_and_chunks_change_no_byte() {
    let scene = Scene::set();
    let direct = scene.direct();
    let mut gateway = scene.gateway("");
    let mut client = Client::connect(&gateway.address);
    let packed = |accepted: &str, sent: &Sent| {
        let lines = format!("Accept-Encoding: {accepted}\r\n");
        post_with(sent.path, &lines, sent.request.as_bytes())
    };
    let mut codings = std::collections::BTreeMap::<String, usize>::new();
    for (sent, theirs) in scene.sent.iter().zip(&direct).filter(|(sent, _)| !sent.reworked) {
        let requests = [
            ("gzip", packed("gzip", sent)),
            ("zstd", packed("br, zstd", sent)),
            ("either", packed("gzip;q=0.5, zstd;q=0", sent)),
            ("chunks", chunked(sent.path, sent.request.as_bytes())),
        ];
        for (how, request) in requests {
            client.send(&request);
            let answer = client.answer().unwrap();
            let text = unpacked(&answer);
            assert_same(sent, theirs, &text, how);
            let coding = answer.header("content-encoding").unwrap_or("none");
            // Small answers are not worth packing.
            assert!(how == "chunks" || coding != "none" || text.len() < 1024, "{}", text.len());
            *codings.entry(format!("{how}: {coding}")).or_default() += 1;
        }
    }
    println!("{codings:?}");
    for way in ["gzip: gzip", "zstd: zstd", "either: gzip", "chunks: none"] {
        assert!(codings.get(way).is_some_and(|count| *count >= 50), "{way}: {codings:?}");
    }
    gateway.assert_sound();
}

async fn over_http2(
    mut sender: SendRequest<Full<Bytes>>,
    address: &str,
    sent: &Sent,
) -> (u16, String) {
    let request = Request::post(format!("http://{address}{}", sent.path))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(sent.request.clone())))
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[test]
fn http2_carries_the_same_bytes() {
    let scene = Scene::set();
    let direct = scene.direct();
    let mut gateway = scene.gateway("");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(&gateway.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake = hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(
            TokioExecutor::new(),
            TokioIo::new(stream),
        );
        let (sender, connection) = handshake.await.unwrap();
        let running = tokio::spawn(connection);
        for round in ["one after the other", "many at a time"] {
            let width = if round == "many at a time" { 50 } else { 1 };
            for (part, direct) in scene.sent.chunks(width).zip(direct.chunks(width)) {
                let mut asked = Vec::new();
                for sent in part {
                    asked.push(Box::pin(over_http2(sender.clone(), &gateway.address, sent)));
                }
                let answers = join_all(asked).await;
                for ((sent, theirs), (status, ours)) in part.iter().zip(direct).zip(answers) {
                    assert_eq!(status, 200, "{ours}");
                    if !sent.reworked {
                        assert_same(sent, theirs, &ours, round);
                    }
                }
            }
        }
        drop(sender);
        running.await.unwrap().unwrap();
    });
    gateway.assert_sound();
}

/// Drives futures together to their ends.
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

/// Integers outside of strings that a double cannot hold.
fn inexact(text: &str) -> usize {
    let mut count = 0;
    for (at, part) in text.split('"').enumerate() {
        // Every second part is inside of a string; no recorded string holds an escaped quote.
        if at % 2 == 0 {
            let digits = part.split(|c: char| !c.is_ascii_digit());
            let big = |run: &str| run.parse::<u128>().is_ok_and(|value| value >= INEXACT_FROM);
            count += digits.filter(|run| big(run)).count();
        }
    }
    count
}

#[test]
fn integers_beyond_doubles_survive() {
    let scene = Scene::set();
    let gateway = scene.gateway("");
    let mut client = Client::connect(&gateway.address);
    for round in ["first", "second"] {
        let mut count = 0;
        for sent in scene.sent.iter().filter(|sent| sent.path == "/harmony") {
            let answer = client.call(sent.path, sent.request.as_bytes());
            count += inexact(answer.text());
        }
        assert_eq!(count, 19, "{round}: the samples hold 19 such integers");
    }
}

#[test]
fn a_batch_of_many_large_answers_is_in_order() {
    let scene = Scene::set();
    let direct = scene.direct();
    let gateway = scene.gateway("");
    let mut client = Client::connect(&gateway.address);
    let singles: Vec<_> = scene
        .sent
        .iter()
        .zip(&direct)
        .filter(|(sent, _)| sent.path == "/" && sent.request.starts_with('{') && !sent.reworked)
        .collect();
    assert!(singles.len() > 300, "{}", singles.len());
    for round in ["first", "second"] {
        let requests: Vec<_> = singles.iter().map(|(sent, _)| sent.request.as_str()).collect();
        let answer = client.call("/", format!("[{}]", requests.join(",")).as_bytes());
        let ours = items(answer.text());
        assert_eq!(ours.len(), singles.len());
        for ((sent, theirs), ours) in singles.iter().zip(ours) {
            assert_same(sent, theirs, ours.get(), round);
        }
        println!("{round}: {} bytes, {:?}", answer.body.len(), answer.header("x-weir-cache"));
    }
}

#[test]
fn a_changed_answer_is_seen() {
    let sent = |request: &str| Sent {
        path: "/",
        request: request.to_owned(),
        response: None,
        reworked: false,
    };
    let seen = |request: &str, theirs: &str, ours: &str| {
        std::panic::catch_unwind(|| assert_same(&sent(request), theirs, ours, "here")).is_err()
    };
    let call = r#"{"id":1,"method":"m"}"#;
    let answer = r#"{"id":1,"result":9007199254740993}"#;
    assert!(!seen(call, answer, answer));
    assert!(seen(call, answer, r#"{"id":1,"result":9007199254740992}"#));
    assert!(seen(call, answer, r#"{"id":"1","result":9007199254740993}"#));
    let batch = r#"[{"id":1,"method":"m"},{"id":2,"method":"m"},7]"#;
    let refusal = r#"{"id":null,"error":{"code":-32600,"message":"theirs"}}"#;
    let answers = |first: &str, second: &str, third: &str| format!("[{first},{second},{third}]");
    let (one, two) = (r#"{"id":1,"result":1}"#, r#"{"id":2,"result":1}"#);
    let theirs = answers(one, two, refusal);
    assert!(!seen(batch, &theirs, &answers(one, two, &refusal.replace("theirs", "ours"))));
    assert!(seen(batch, &theirs, &answers(two, one, refusal)));
    assert!(seen(batch, &theirs, &answers(one, two, &refusal.replace("-32600", "-32700"))));
    assert!(seen(batch, &theirs, &format!("[{one},{two}]")));
}
