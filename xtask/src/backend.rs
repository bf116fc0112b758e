//! The constant node of the bench: a node with constant responses at the lowest CPU cost.
//!
//! The node serves HTTP/1.1 and, on the same port, WebSocket (`backend/websocket.rs`). It responds
//! to single calls and to batches. It knows only the few methods that the bench calls, and the
//! methods with which gateways track the newest block. It does not model a chain as the `simnode`
//! crate does. Hashes are arbitrary, and only heights, parents and times are consistent. The node
//! has one thread, so the bench can pin it to a core.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Number of the newest block when the node starts. It is far above every block that the bench
/// requests, so the requested blocks are final.
const HEAD_START: u64 = 20_000_000;
/// Ethereum's slot time.
const BLOCK_SECONDS: u64 = 12;
/// Distance from the newest block to the finalized block, in blocks: two epochs of 32 slots,
/// Ethereum's best case.
const FINALITY_BLOCKS: u64 = 64;
/// A method that returns the number of calls that the node has served so far.
pub(crate) const SERVED_METHOD: &str = "backend_served";
/// A method that gateways call only for a client, never to poll.
pub(crate) const CALLED_METHOD: &str = "eth_getBlockTransactionCountByNumber";
/// The method that sets the node's fault; its parameter is a [`Fault`].
const FAULT_METHOD: &str = "backend_fault";
/// Time between two bytes of [`Fault::Drip`].
const DRIP_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size of a request. The bench sends only smaller ones.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Serves on every address until the process ends. `latency` is the delay of each response over
/// HTTP/1.1.
///
/// # Errors
/// Fails if an address cannot be bound.
pub(crate) fn serve(addresses: &[SocketAddr], latency: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fault_state = Arc::default();
    let chain = Chain { started_secs: now_seconds(), served: Arc::default(), latency, fault_state };
    runtime.block_on(async {
        for address in addresses {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot bind {address}"))?;
            tokio::spawn(accept(listener, chain.clone()));
        }
        std::future::pending().await
    })
}

/// A fault of the node's HTTP/1.1 interface. It lasts until another fault is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fault {
    /// No fault.
    #[default]
    None,
    /// Responds only to the calls with which gateways poll.
    Hang,
    /// Sends no response on connections that are older than the fault.
    HalfOpen,
    /// Sends responses byte by byte.
    Drip,
    /// Sends responses that do not end.
    Endless,
    /// Responds with status 429.
    Limited,
}

impl Fault {
    /// Returns the call that sets this fault.
    pub(crate) fn call(self) -> String {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": FAULT_METHOD, "params": [self]});
        call.to_string()
    }

    /// Sends a response with this fault. `is_old` is true if the connection is older than the
    /// fault.
    async fn send(
        self,
        stream: &mut TcpStream,
        body: &[u8],
        reply: &str,
        is_old: bool,
    ) -> Result<()> {
        const JSON: &str = "Content-Type: application/json\r\n";
        let length = reply.len();
        let headers = format!("HTTP/1.1 200 OK\r\n{JSON}Content-Length: {length}\r\n\r\n");
        match self {
            Fault::Hang if !is_poll(body) => std::future::pending().await,
            Fault::HalfOpen if is_old => std::future::pending().await,
            Fault::Drip => {
                stream.write_all(headers.as_bytes()).await?;
                for byte in reply.bytes() {
                    stream.write_u8(byte).await?;
                    tokio::time::sleep(DRIP_INTERVAL).await;
                }
            }
            Fault::Endless => {
                let headers =
                    format!("HTTP/1.1 200 OK\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n");
                stream.write_all(headers.as_bytes()).await?;
                loop {
                    stream.write_all(b"10\r\n                \r\n").await?;
                    tokio::time::sleep(DRIP_INTERVAL).await;
                }
            }
            Fault::Limited => {
                let headers = "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(headers.as_bytes()).await?;
            }
            Fault::None | Fault::Hang | Fault::HalfOpen => {
                stream
                    .write_all([headers.as_bytes(), reply.as_bytes()].concat().as_slice())
                    .await?;
            }
        }
        Ok(())
    }
}

/// Returns true for a call with which gateways poll: any call except [`CALLED_METHOD`].
fn is_poll(body: &[u8]) -> bool {
    let call: Result<Call<'_>, _> = serde_json::from_slice(body);
    call.is_ok_and(|call| call.method != CALLED_METHOD)
}

/// Accepts connections and serves each in its own task.
async fn accept(listener: TcpListener, chain: Chain) {
    while let Ok((stream, _)) = listener.accept().await {
        let chain = chain.clone();
        tokio::spawn(async move {
            // An error closes the connection, and the client counts this as an error.
            let _ignored = serve_connection(stream, chain).await;
        });
    }
}

async fn serve_connection(mut stream: TcpStream, chain: Chain) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(16 << 10);
    let fault_count_at_start = chain.fault_state.lock().fault_count;
    loop {
        while let Some((header_end, body_end)) = request_bounds(&buffer)? {
            let headers = std::str::from_utf8(&buffer[..header_end])?;
            if let Some(key) = websocket::websocket_key(headers) {
                stream.write_all(websocket::handshake_response(key).as_bytes()).await?;
                let frames = buffer.split_off(body_end);
                return websocket::serve_connection(stream, frames, chain).await;
            }
            if !chain.latency.is_zero() {
                tokio::time::sleep(chain.latency).await;
            }
            // A call that sets or ends a fault must get a correct response. Such a call is detected
            // by the changed number of faults.
            let FaultState { fault, fault_count } = *chain.fault_state.lock();
            let reply = chain.reply(&buffer[header_end..body_end])?;
            let is_fault_call = chain.fault_state.lock().fault_count != fault_count;
            let fault = if is_fault_call { Fault::None } else { fault };
            let is_old = fault_count != fault_count_at_start;
            fault.send(&mut stream, &buffer[header_end..body_end], &reply, is_old).await?;
            buffer.drain(..body_end);
        }
        anyhow::ensure!(
            buffer.len() <= REQUEST_BYTES_MAX,
            "request above {REQUEST_BYTES_MAX} bytes"
        );
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// Returns the ends of the header section and of the body of the first HTTP request, or `None` if
/// the request is incomplete.
fn request_bounds(bytes: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(header_length) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let headers = std::str::from_utf8(&bytes[..header_length])?;
    let length = headers
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map_or(Ok(0), |(_, value)| value.trim().parse::<usize>())?;
    let header_end = header_length + 4;
    let body_end = header_end + length;
    Ok((bytes.len() >= body_end).then_some((header_end, body_end)))
}

/// A JSON-RPC call.
#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The state of the node, which all connections share. Its chain grows by one block every
/// [`BLOCK_SECONDS`].
#[derive(Clone)]
struct Chain {
    /// Start of the node in seconds since 1970.
    started_secs: u64,
    /// Number of calls served so far. With this number, the bench verifies that calls missed a
    /// gateway's cache.
    served: Arc<AtomicU64>,
    /// Delay of each response over HTTP/1.1.
    latency: Duration,
    fault_state: Arc<Mutex<FaultState>>,
}

/// The current fault, and the number of faults set so far. A connection that began with a lower
/// number is older than the fault.
#[derive(Default)]
struct FaultState {
    fault: Fault,
    fault_count: u64,
}

impl Chain {
    /// Returns the response to a call or a batch.
    fn reply(&self, body: &[u8]) -> Result<String> {
        if body.first() == Some(&b'[') {
            let calls: Vec<Call<'_>> = serde_json::from_slice(body)?;
            let responses: Vec<String> = calls.iter().map(|call| self.respond(call)).collect();
            return Ok(format!("[{}]", responses.join(",")));
        }
        Ok(self.respond(&serde_json::from_slice(body)?))
    }

    /// Returns the response to one call.
    fn respond(&self, call: &Call<'_>) -> String {
        let id = call.id.map_or("null", RawValue::get);
        let params = call.params.map_or("", RawValue::get);
        let served = self.served.fetch_add(1, Ordering::Relaxed);
        let result = match call.method.as_ref() {
            "eth_chainId" => "\"0x1\"".to_owned(),
            SERVED_METHOD => served.to_string(),
            FAULT_METHOD => self.set_fault(params),
            "net_version" => "\"1\"".to_owned(),
            "eth_syncing" => "false".to_owned(),
            "web3_clientVersion" => "\"constant/1\"".to_owned(),
            "eth_blockNumber" => format!("\"{:#x}\"", self.head_number()),
            CALLED_METHOD => "\"0x8\"".to_owned(),
            "eth_getBlockByNumber" => self.format_block(self.resolve_height(params)),
            other => {
                return format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"the method {other} does not exist/is not available"}}}}"#
                );
            }
        };
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }

    /// Sets the fault in `params`. Returns the JSON `true`, or `false` if `params` is not a fault.
    fn set_fault(&self, params: &str) -> String {
        let Ok([fault]) = serde_json::from_str::<[Fault; 1]>(params) else {
            return "false".to_owned();
        };
        let mut fault_state = self.fault_state.lock();
        *fault_state = FaultState { fault, fault_count: fault_state.fault_count + 1 };
        "true".to_owned()
    }

    /// Returns the number of the newest block now.
    fn head_number(&self) -> u64 {
        HEAD_START + now_seconds().saturating_sub(self.started_secs) / BLOCK_SECONDS
    }

    /// Resolves the block number or tag in the first parameter of `params` (a JSON array as text).
    /// Any other text means the newest block.
    fn resolve_height(&self, params: &str) -> u64 {
        let block = params.split('"').nth(1).unwrap_or("latest");
        match block {
            "finalized" | "safe" => self.head_number() - FINALITY_BLOCKS,
            "earliest" => 0,
            hex => hex
                .strip_prefix("0x")
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .unwrap_or_else(|| self.head_number()),
        }
    }

    /// Returns the block at a height as JSON. It has no transactions.
    fn format_block(&self, number: u64) -> String {
        let distance_secs = HEAD_START.abs_diff(number) * BLOCK_SECONDS;
        let time = if number < HEAD_START {
            self.started_secs.saturating_sub(distance_secs)
        } else {
            self.started_secs + distance_secs
        };
        let bloom = "0".repeat(512);
        // The root of an empty trie.
        let root = "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421";
        format!(
            r#"{{"baseFeePerGas":"0x7","difficulty":"0x0","extraData":"0x","gasLimit":"0x1c9c380","gasUsed":"0x0","hash":"0x{}","logsBloom":"0x{bloom}","miner":"0x0000000000000000000000000000000000000000","mixHash":"0x{:064x}","nonce":"0x0000000000000000","number":"{number:#x}","parentHash":"0x{}","receiptsRoot":"0x{root}","sha3Uncles":"0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347","size":"0x21c","stateRoot":"0x{root}","timestamp":"{time:#x}","transactions":[],"transactionsRoot":"0x{root}","uncles":[]}}"#,
            compute_hash(number),
            0,
            compute_hash(number.wrapping_sub(1)),
        )
    }
}

/// Returns 64 hexadecimal digits that differ for every number. They contain the number itself and
/// the number mixed by the last step of splitmix64.
fn compute_hash(number: u64) -> String {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    format!("{mixed:016x}{number:016x}{mixed:016x}{number:016x}")
}

/// Returns the seconds since 1970.
fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

mod websocket;

#[cfg(test)]
mod tests;
