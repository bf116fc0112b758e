//! Measures what a node serves, with a limited number of calls: its chain, head and client, how far
//! back it has state, optional methods, subscriptions over a WebSocket, and on request the largest
//! range of logs and the largest batch.
//!
//! A property that the node does not reveal is unknown. Its error is then the reason.

mod caller;
mod sizes;
mod state;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use lab_model::plan::{Target, Tls};
use serde_json::Value;
use wire::family::Family;
use wire::node_error::ErrorKind;

use crate::target::{Identity, Reason, Reply, TargetFault, head_method, number, resolve};
use caller::{Budget, CallFault, Caller};

pub use sizes::SizeLimit;
pub use state::StateDepth;

/// Maximum number of requests to a node. A batch is one request.
pub const REQUESTS_MAX: u32 = 60;
/// Maximum number of calls to a node. A batch of 100 calls counts as 100.
pub const CALLS_MAX: u32 = 320;

/// The optional methods that are called, with parameters that cost the node little.
const OPTIONAL_METHODS: [(&str, &str); 4] = [
    ("debug_traceBlockByNumber", r#"["0x1",{}]"#),
    ("trace_block", r#"["0x1"]"#),
    ("eth_getBlockReceipts", r#"["0x1"]"#),
    ("eth_getProof", r#"["0x0000000000000000000000000000000000000000",[],"latest"]"#),
];

/// A property of a node. The error is the reason why the property is unknown.
pub type Measured<T> = Result<T, String>;

/// A node and how to reach it.
#[derive(Clone, Debug)]
pub struct MeasuredNode {
    /// The address of calls.
    pub target: Target,
    /// The address for subscriptions; `None` if subscriptions are not measured.
    pub websocket: Option<Target>,
    /// TLS settings of both addresses.
    pub tls: Tls,
}

/// The limits of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Timeout of one call.
    pub call_timeout: Duration,
    /// Time after which no further call is sent.
    pub duration_max: Duration,
    /// True if the largest range of logs and the largest batch are measured.
    pub sizes: bool,
}

/// The properties of a node that responds.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The family of its methods.
    pub family: Family,
    /// The client software and its version.
    pub client: Measured<String>,
    /// The chain id.
    pub chain_id: Measured<u64>,
    /// The number of the newest block.
    pub head: Measured<u64>,
    /// The blocks whose state the node has.
    pub state: Measured<StateDepth>,
    /// Optional methods; true if the node serves the method.
    pub methods: Vec<(&'static str, Measured<bool>)>,
    /// Whether the node accepts a subscription; `None` if this was not measured.
    pub websocket: Option<Measured<()>>,
    /// The largest range of `eth_getLogs` in blocks; `None` if it was not measured.
    pub log_range: Option<Measured<SizeLimit>>,
    /// The largest batch in calls; `None` if it was not measured.
    pub batch: Option<Measured<SizeLimit>>,
    /// Number of requests that were sent.
    pub requests: u32,
    /// Number of calls that were sent.
    pub calls: u32,
}

/// Measures a node.
///
/// # Errors
/// Returns the reason why the node cannot be used: it cannot be reached, refuses the key, or does
/// not respond as a node does.
pub fn measure(node: &MeasuredNode, options: &Options) -> Result<Capabilities, String> {
    let deadline = Instant::now() + options.duration_max;
    resolve(&node.target).map_err(|fault| fault.reason.to_string())?;
    let budget = Budget::new(REQUESTS_MAX, CALLS_MAX, deadline);
    let caller = Caller::new(&node.target, &node.tls, options.call_timeout, &budget)?;
    let (family, client, chain_id) = identify(&caller, node.target.family)?;
    let head = caller.call(head_method(family), "[]").and_then(|head| {
        number(&head).ok_or_else(|| CallFault::no_response("the head is not a number"))
    });
    let head = head.map_err(|fault| fault.to_string());
    let is_bitcoin = family == Family::Bitcoin;
    let unknown_head = || head.clone().map_err(|reason| format!("the head is unknown: {reason}"));
    let state = match is_bitcoin {
        true => Err("Bitcoin has no state of accounts".to_owned()),
        false => unknown_head().and_then(|head| state::measure(&caller, head)),
    };
    let methods = match is_bitcoin {
        true => Vec::new(),
        false => OPTIONAL_METHODS
            .map(|(method, params)| (method, is_served(&caller.call(method, params))))
            .into(),
    };
    let websocket = node.websocket.as_ref().map(|target| {
        let caller = Caller::new(target, &node.tls, options.call_timeout, &budget)?;
        caller.call("eth_subscribe", r#"["newHeads"]"#).map(drop).map_err(|fault| fault.to_string())
    });
    let log_range = (options.sizes && !is_bitcoin)
        .then(|| unknown_head().and_then(|head| sizes::measure_log_range(&caller, head)));
    let batch_method = if is_bitcoin { "getblockcount" } else { "eth_chainId" };
    let batch = options.sizes.then(|| sizes::measure_batch(&caller, batch_method));
    let (requests, calls) = budget.sent();
    Ok(Capabilities {
        family,
        client,
        chain_id,
        head,
        state,
        methods,
        websocket,
        log_range,
        batch,
        requests,
        calls,
    })
}

/// Returns the family, the client version and the chain id. Detects the family if it is `None`.
/// Fails if the node cannot be used.
fn identify(
    caller: &Caller<'_>,
    family: Option<Family>,
) -> Result<(Family, Measured<String>, Measured<u64>), String> {
    let no_chain_id = || Err("nodes of Bitcoin return no chain id".to_owned());
    let text_of = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    // The first call fails as a whole if the node cannot be used.
    let first = |method| match caller.call(method, "[]") {
        Err(fault) if fault.is_of_the_node() => Err(fault.describe_unusable()),
        other => Ok(other),
    };
    let Some(family) = family else {
        let identity = Identity::query(&mut |method| match caller.call(method, "[]") {
            Ok(result) => Ok(Reply::Result(result)),
            Err(CallFault::Error { code, message, kind })
                if kind != ErrorKind::AccessDenied && kind != ErrorKind::Rate =>
            {
                Ok(Reply::Error { code, message })
            }
            Err(fault) => {
                let reason = Reason::Other { error: fault.describe_unusable() };
                Err(TargetFault { url: String::new(), reason })
            }
        });
        let identity = identity.map_err(|fault| fault.reason.to_string())?;
        let family = identity.family().ok_or_else(|| {
            format!("it is a node of no known family: {}", identity.rejections.join(", "))
        })?;
        let unknown = |method: &str| format!("{method} returned nothing");
        let chain_id = identity.chain_id.as_deref().and_then(crate::target::number_in);
        let chain_id = match family {
            Family::Bitcoin => no_chain_id(),
            _ => chain_id.ok_or_else(|| unknown("eth_chainId")),
        };
        return Ok((
            family,
            identity.client.ok_or_else(|| unknown("the client version")),
            chain_id,
        ));
    };
    if family == Family::Bitcoin {
        let network = first("getnetworkinfo")?.map_err(|fault| fault.to_string());
        let client = network.map(|network| text_of(network["subversion"].clone()));
        return Ok((family, client, no_chain_id()));
    }
    let chain_id = first("eth_chainId")?.map_err(|fault| fault.to_string()).and_then(|id| {
        number(&id).ok_or_else(|| format!("eth_chainId returned {id}, which is not a number"))
    });
    let client = caller.call("web3_clientVersion", "[]").map(text_of);
    Ok((family, client.map_err(|fault| fault.to_string()), chain_id))
}

/// Returns true if the node serves the method of a call with this outcome.
fn is_served(outcome: &Result<Value, CallFault>) -> Measured<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(CallFault::Error { kind: ErrorKind::MethodNotServed, .. }) => Ok(false),
        // A node only reports what is wrong with a call, or with its block, if it serves the method.
        Err(CallFault::Error {
            kind:
                ErrorKind::Caller
                | ErrorKind::LikelyCaller
                | ErrorKind::HistoryMissing
                | ErrorKind::BlockUnknown
                | ErrorKind::Execution,
            ..
        }) => Ok(true),
        Err(fault) => Err(fault.to_string()),
    }
}
