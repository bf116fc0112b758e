//! A simulated chain over HTTP/1.1 within the test. It puts each transaction into a separate block,
//! a known time after the transaction arrived, unless the test refuses it or keeps it pending.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use test_support::raw::read_request;

/// How the chain treats a transaction.
pub(crate) enum Fate {
    /// A block includes the transaction this long after its arrival.
    Included(Duration),
    /// No block includes the transaction.
    Pending,
    /// The response is an error with this message.
    Refused(&'static str),
}

/// Returns the fate of a transaction by its number in the order of arrival, from 0.
pub(crate) type Rule = Box<dyn Fn(usize) -> Fate + Send + Sync>;

struct Chain {
    rule: Rule,
    /// True if blocks cannot be read.
    hides_blocks: bool,
    /// The raw transactions in the order of arrival, with the time of their block. `None` for
    /// transactions that are never included.
    arrived: Mutex<Vec<(String, Option<Instant>)>>,
}

/// A running chain. It ends when this value is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    chain: Arc<Chain>,
    is_stopped: Arc<AtomicBool>,
}

impl Server {
    pub(crate) fn start(hides_blocks: bool, rule: Rule) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let chain = Arc::new(Chain { rule, hides_blocks, arrived: Mutex::default() });
        let (thread_is_stopped, thread_chain) = (Arc::clone(&is_stopped), Arc::clone(&chain));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if thread_is_stopped.load(Ordering::Relaxed) {
                    return;
                }
                let chain = Arc::clone(&thread_chain);
                std::thread::spawn(move || serve(&stream.unwrap(), &chain));
            }
        });
        Server { port, chain, is_stopped }
    }

    /// Returns the raw transactions in the order of arrival.
    pub(crate) fn arrived(&self) -> Vec<String> {
        self.chain.arrived.lock().iter().map(|(raw, _)| raw.clone()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // The connection wakes the thread that accepts.
        let _wakeup = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// Responds to the calls of one connection, one at a time.
fn serve(stream: &TcpStream, chain: &Chain) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    let mut stream = stream;
    while let Some(body) = read_request(&mut reader) {
        let call: Value = serde_json::from_slice(&body).unwrap();
        let mut response = chain.respond(call["method"].as_str().unwrap(), &call["params"]);
        response["jsonrpc"] = json!("2.0");
        response["id"] = call["id"].clone();
        let text = response.to_string();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
        let http_response = format!("{head}Content-Length: {}\r\n\r\n{text}", text.len());
        if stream.write_all(http_response.as_bytes()).is_err() {
            return;
        }
    }
}

impl Chain {
    fn respond(&self, method: &str, params: &Value) -> Value {
        match method {
            "web3_clientVersion" => json!({ "result": "planted" }),
            "eth_chainId" => json!({ "result": "0x539" }),
            "eth_blockNumber" => json!({ "result": format!("{:#x}", self.mined().len()) }),
            "eth_getBlockByNumber" if !self.hides_blocks => {
                json!({ "result": self.block(&params[0]) })
            }
            "eth_sendRawTransaction" => self.send(params[0].as_str().unwrap()),
            _ => json!({ "error": { "code": -32601, "message": "no such method" } }),
        }
    }

    /// Accepts or refuses a transaction.
    fn send(&self, raw: &str) -> Value {
        let now = Instant::now();
        let mut arrived = self.arrived.lock();
        let fate = (self.rule)(arrived.len());
        let included_at = match fate {
            Fate::Included(after) => Some(now + after),
            Fate::Pending | Fate::Refused(_) => None,
        };
        arrived.push((raw.to_owned(), included_at));
        match fate {
            Fate::Refused(message) => json!({ "error": { "code": -32000, "message": message } }),
            _ => json!({ "result": hash(raw) }),
        }
    }

    /// Returns the hashes of the transactions that are in a block now, in order of time. Each block
    /// has one transaction.
    fn mined(&self) -> Vec<String> {
        let now = Instant::now();
        let arrived = self.arrived.lock();
        let mut mined: Vec<_> =
            arrived.iter().filter_map(|(raw, at)| Some(((*at)?, hash(raw)))).collect();
        mined.retain(|(at, _)| *at <= now);
        mined.sort();
        mined.into_iter().map(|(_, hash)| hash).collect()
    }

    /// Returns a block; null if it does not exist yet. Block 0 has no transaction.
    fn block(&self, tag: &Value) -> Value {
        let mined = self.mined();
        let number = match tag.as_str().unwrap() {
            "latest" => mined.len(),
            number => usize::from_str_radix(&number[2..], 16).unwrap(),
        };
        let hash_of = |number: usize| format!("0x{number:064x}");
        if number > mined.len() {
            return Value::Null;
        }
        json!({
            "number": format!("{number:#x}"),
            "hash": hash_of(number + 1),
            "parentHash": hash_of(number),
            "transactions": number.checked_sub(1).map(|index| vec![&mined[index]]).unwrap_or_default(),
        })
    }
}

fn hash(raw: &str) -> String {
    test_support::signing::hash(&test_support::signing::bytes(raw))
}
