//! Probes a target before a run. The probe checks that the target is reachable and speaks JSON-RPC.
//! It reads the target's client version, its chain id, its head (the number of the newest block),
//! and the chain data from which parameters are drawn.
//!
//! The probe makes a few sequential calls before a run and one after it. These calls are not
//! measured.

mod chain;
pub(crate) mod client;
mod missing;
mod nonces;

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use lab_engine::chain::ChainFacts;
use lab_model::plan::{Plan, Step, Target, Tls};
use lab_model::results::TargetFacts;
use wire::family::Family;

pub(crate) use chain::{head_method, number, number_in};
pub(crate) use client::{Client, Reply};

use chain::NeededData;

#[cfg(test)]
mod tests;

/// Error for a target that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{url}: {reason}")]
pub struct TargetFault {
    /// The target's URL with secrets masked.
    pub url: String,
    /// The reason.
    pub reason: Reason,
}

/// Reason why a target cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each field is a part of the message")]
pub enum Reason {
    /// The host name cannot be resolved.
    #[error("the name {host:?} has no address")]
    Resolve { host: String },
    /// Nothing listens on the port.
    #[error("the connection was refused; nothing listens on port {port}")]
    Refused { port: u16 },
    /// Connecting timed out.
    #[error("no connection within {after:?}")]
    ConnectTimeout { after: Duration },
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {error}")]
    Tls {
        /// The error and how to fix it.
        error: String,
    },
    /// No route leads to the host.
    #[error("the host cannot be reached: {error}")]
    Unreachable { error: String },
    /// The server closed the connection.
    #[error("the connection closed before the response was complete")]
    Closed,
    /// The file with the certificates of authorities (`tls_ca` in a plan) cannot be used.
    #[error("CA certificates in {path}: {error}")]
    Anchors { path: String, error: String },
    /// There was no response.
    #[error("it accepts connections, but did not respond within {after:?}")]
    Silent { after: Duration },
    /// The response is not HTTP.
    #[error("it does not speak HTTP; its response begins with \"{beginning}\"")]
    NotHttp { beginning: String },
    /// The server does not open a WebSocket.
    #[error(
        "it did not open a WebSocket: the response to the upgrade request had HTTP status {status}; \
         is it an http:// address, or is the path of its WebSocket another one?"
    )]
    NoWebSocket { status: u16 },
    /// The body of the HTTP response is not JSON-RPC.
    #[error(
        "it is not a JSON-RPC server: the response had HTTP status {status}, {fault}; the body begins \
         with \"{beginning}\""
    )]
    NotJsonRpc {
        status: u16,
        /// The fault of the body.
        fault: String,
        /// The first bytes of the body.
        beginning: String,
    },
    /// The rate limit does not even allow the calls before a run.
    #[error(
        "a single call got status 429 {tries} times in a row, with the response \"{beginning}\"; wait \
         until the rate limit or the quota allows a call"
    )]
    Limited {
        /// Number of attempts.
        tries: u32,
        /// The message or the first bytes of the last response.
        beginning: String,
    },
    /// The target requires credentials.
    #[error(
        "it requires a key or token (HTTP status 401: {beginning}); send one with -H 'x-api-key: KEY' or \
         -H 'authorization: Bearer TOKEN' (headers in a plan)"
    )]
    Unauthorized {
        /// The message or the first bytes of the body.
        beginning: String,
    },
    /// A JSON-RPC server of an unknown family.
    #[error(
        "it speaks JSON-RPC, but its family is unknown: {replies}; set it with --family \
         ethereum|harmony|bitcoin (family in a plan), or use requests that need no data of the chain"
    )]
    NoFamily {
        /// The calls and their replies.
        replies: String,
    },
    /// The plan needs data of the chain that the target does not provide.
    #[error("the plan needs {what} of its chain, but {method} returned {answer}")]
    NoChain {
        /// The data that the plan needs.
        what: &'static str,
        method: String,
        answer: String,
    },
    /// The chain lacks the data of every call of a mix.
    #[error(
        "every call of mix {mix:?} draws {missing}, but no block that was read has any; send a \
         transaction to the chain first, or choose calls with fixed parameters (--method and --params, \
         params in a plan)"
    )]
    NothingToSend { mix: String, missing: String },
    /// The plan's transactions are signed for another chain.
    #[error("the plan's transactions are for chain {signed_for}, but it serves chain {served}")]
    OtherChain { signed_for: u64, served: u64 },
    /// The target has transactions with nonces of the plan's transactions already.
    #[error(
        "{used} of {count} transactions of {sender} are used: its next nonce is {next}, and the file begins \
         with {first}; sign transactions from nonce {next} on"
    )]
    UsedNonces {
        sender: String,
        /// Number of the plan's transactions whose nonces are used.
        used: u64,
        /// Number of the plan's transactions of the sender.
        count: u64,
        /// The sender's next nonce.
        next: u64,
        /// The first nonce of the sender in the file.
        first: u64,
    },
    /// The plan's transactions begin with a nonce that is too high.
    #[error(
        "the transactions of {sender} begin with nonce {first}, but its next nonce is {next}: the target \
         would hold all of them back; sign transactions from nonce {next} on"
    )]
    NonceGap { sender: String, next: u64, first: u64 },
    /// Another error of the connection.
    #[error("{error}")]
    Other { error: String },
}

/// Two servers have different chains, so their responses cannot be compared.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the servers have different chains: {a} has the {what} {value_a}, and {b} has {value_b}")]
pub struct DifferentChains {
    /// URL of the first server.
    pub a: String,
    /// URL of the second server.
    pub b: String,
    /// What differs: the chain id or the first block.
    pub what: &'static str,
    /// The first server's value.
    pub value_a: String,
    /// The second server's value.
    pub value_b: String,
}

/// Fails if two servers, given with their URLs, have different chain ids or first blocks. A value
/// that one of them does not return is not compared.
pub(crate) fn check_same_chain(
    (client_a, a): (&Client, &str),
    (client_b, b): (&Client, &str),
    family: Family,
) -> Result<(), DifferentChains> {
    let check = |what, values: [Option<String>; 2], are_equal: &dyn Fn(&str, &str) -> bool| {
        let [Some(value_a), Some(value_b)] = values else { return Ok(()) };
        if are_equal(&value_a, &value_b) {
            return Ok(());
        }
        Err(DifferentChains { a: a.to_owned(), b: b.to_owned(), what, value_a, value_b })
    };
    let ids = [client_a, client_b].map(|client| chain::read_chain_id(client, family));
    check("chain id", ids, &|a, b| number_in(a) == number_in(b))?;
    let blocks = [client_a, client_b].map(|client| chain::read_first_block(client, family));
    check("first block", blocks, &|a, b| a.eq_ignore_ascii_case(b))
}

/// The result of a probe.
#[derive(Clone, Debug)]
pub struct ProbeResult {
    /// Addresses of the target.
    pub addresses: Vec<SocketAddr>,
    /// Client version, chain and head of the target.
    pub facts: TargetFacts,
    /// The chain data from which parameters are drawn.
    pub chain: ChainFacts,
    /// The plan without the calls for which the chain lacks data. `None` if no call lacks data.
    pub reduced_plan: Option<Plan>,
    /// Warnings for the report.
    pub warnings: Vec<String>,
}

/// Returns the family of a target. A family is a set of chains whose nodes have the same methods:
/// Ethereum, Harmony or Bitcoin.
///
/// # Errors
/// Fails if the target cannot be reached, is not a JSON-RPC server, or is of an unknown family.
pub fn detect_family(target: &Target, tls: &Tls) -> Result<Family, TargetFault> {
    resolve(target)?;
    let client = Client::new(target, tls)?;
    let identity = Identity::query(&mut |method| client.call(method, "[]"))?;
    identity.family().ok_or_else(|| identity.unknown_family_fault(target))
}

/// Identifies the target of a plan and fetches the chain data from which parameters are drawn.
///
/// If the plan draws parameters from the chain, the target's family must be known. A target that
/// cannot be identified causes only a warning if two conditions hold. First, the plan draws no
/// parameters from the chain. Second, the plan sets the family or sends only recorded requests.
///
/// # Errors
/// Fails if the target cannot be reached, is not a JSON-RPC server, or lacks data that the plan
/// needs.
pub fn probe(plan: &Plan) -> Result<ProbeResult, TargetFault> {
    probe_with(&Client::new(&plan.target, &plan.connections.tls)?, plan)
}

/// Probes the target as [`probe`] does, with an existing client of the plan's target.
///
/// # Errors
/// Fails as [`probe`] does.
pub(crate) fn probe_with(client: &Client, plan: &Plan) -> Result<ProbeResult, TargetFault> {
    let target = &plan.target;
    let addresses = resolve(target)?;
    let needed = NeededData::of(plan);
    let needs_data = needed != NeededData::default();
    let may_be_unidentified =
        !needs_data && (target.family.is_some() || sends_recorded_requests(plan));
    let mut warnings = Vec::new();
    let identity = match Identity::query(&mut |method| client.call(method, "[]")) {
        Ok(identity) => identity,
        Err(TargetFault {
            reason: reason @ (Reason::NotJsonRpc { .. } | Reason::Limited { .. }),
            ..
        }) if may_be_unidentified => {
            warnings.push(format!("the target could not be identified: {reason}"));
            Identity::default()
        }
        Err(fault) => return Err(fault),
    };
    let family = target.family.or_else(|| identity.family());
    if family.is_none() && needs_data {
        return Err(identity.unknown_family_fault(target));
    }
    let mut facts = identity.into_facts(target, family);
    check_chain_of_transactions(plan, &facts)?;
    let target_fault = |reason| TargetFault { url: target.url.to_string(), reason };
    if let Some(transactions) = plan.transactions() {
        warnings.extend(nonces::check(client, &transactions.senders).map_err(target_fault)?);
    }
    let mut chain = ChainFacts::default();
    if let Some(family) = family {
        chain.has_decimal_numbers = family != Family::Ethereum;
        facts.head_start = chain::read_head(client, family)?;
        chain::fetch(client, family, needed, facts.head_start, &mut chain).map_err(target_fault)?;
        warnings.extend(missing::replace_addresses(client, family, needed, &mut chain));
    }
    let (reduced_plan, dropped) =
        missing::without_missing(plan, &chain).map_err(target_fault)?.unzip();
    warnings.extend(dropped.into_iter().flatten());
    Ok(ProbeResult { addresses, facts, chain, reduced_plan, warnings })
}

/// Fails if the plan's transactions are signed for another chain than the target's. Passes if one
/// of the two chain ids is unknown.
fn check_chain_of_transactions(plan: &Plan, facts: &TargetFacts) -> Result<(), TargetFault> {
    let signed_for = plan.transactions().and_then(|transactions| transactions.chain_id);
    let served = facts.chain_id.as_deref().and_then(number_in);
    match signed_for.zip(served) {
        Some((signed_for, served)) if signed_for != served => {
            let reason = Reason::OtherChain { signed_for, served };
            Err(TargetFault { url: facts.url.clone(), reason })
        }
        _ => Ok(()),
    }
}

/// Connects to a target. Returns the client, the facts about the target, and its family.
///
/// # Errors
/// Fails if the target cannot be reached, is not a JSON-RPC server, or is of an unknown family.
pub(crate) fn identify(
    target: &Target,
    tls: &Tls,
) -> Result<(Client, TargetFacts, Family), TargetFault> {
    resolve(target)?;
    let client = Client::new(target, tls)?;
    let identity = Identity::query(&mut |method| client.call(method, "[]"))?;
    let family = target.family.or_else(|| identity.family());
    let family = family.ok_or_else(|| identity.unknown_family_fault(target))?;
    let mut facts = identity.into_facts(target, Some(family));
    facts.head_start = chain::read_head(&client, family)?;
    Ok((client, facts, family))
}

/// Returns the current head of a plan's target. `None` if the target does not return a head, or if
/// its family is unknown. `family` is the name of the family.
pub fn read_head(plan: &Plan, family: &str) -> Option<u64> {
    let client = Client::new(&plan.target, &plan.connections.tls).ok()?;
    read_head_with(&client, family.parse().ok()?)
}

/// Returns the head of a server, or `None` if the server does not return one.
pub(crate) fn read_head_with(client: &Client, family: Family) -> Option<u64> {
    chain::read_head(client, family).ok().flatten()
}

/// Returns true if the plan needs no data of the chain: it only replays recorded requests or sends
/// prepared transactions.
fn sends_recorded_requests(plan: &Plan) -> bool {
    let mut steps = plan.mixes.iter().flat_map(|mix| &mix.steps);
    steps.all(|step| matches!(step, Step::Replay(_) | Step::Transactions(_)))
}

/// Returns the addresses of a target.
///
/// # Errors
/// Fails if its host name has no address.
pub(crate) fn resolve(target: &Target) -> Result<Vec<SocketAddr>, TargetFault> {
    let host = target.url.host();
    let addresses: Vec<SocketAddr> =
        (host, target.url.port()).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if addresses.is_empty() {
        let reason = Reason::Resolve { host: host.to_owned() };
        return Err(TargetFault { url: target.url.to_string(), reason });
    }
    Ok(addresses)
}

/// Harmony's chain ids, including shards and test networks
/// (<https://docs.harmony.one/home/developers/network-and-faucets>).
const HARMONY_CHAIN_IDS: std::ops::Range<u64> = 1_666_600_000..1_666_990_000;

/// A function that calls a method without parameters.
type CallWithoutParams<'a> = dyn FnMut(&'static str) -> Result<Reply, TargetFault> + 'a;

/// The replies to the calls that identify a target's family of methods.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    /// Client version; `None` if the target does not return one.
    pub(crate) client: Option<String>,
    /// Chain id as the target wrote it; `None` if the target does not return one.
    pub(crate) chain_id: Option<String>,
    /// Methods that returned a result.
    supported: Vec<&'static str>,
    /// Descriptions of the replies with `null` or an error, for the message of a fault.
    pub(crate) rejections: Vec<String>,
}

impl Identity {
    /// Identifies a target. Calls only as many methods as it needs to determine the family. `call`
    /// calls a method without parameters.
    pub(crate) fn query(call: &mut CallWithoutParams<'_>) -> Result<Identity, TargetFault> {
        let mut identity = Identity::default();
        let to_text = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        identity.client = identity.call(call, "web3_clientVersion")?.map(to_text);
        identity.chain_id = identity.call(call, "eth_chainId")?.map(to_text);
        // A Harmony node supports Ethereum's methods too, so this call is made even if Ethereum's
        // methods succeeded.
        identity.call(call, "hmyv2_blockNumber")?;
        if identity.supported.is_empty() || identity.chain_id.is_none() {
            identity.call(call, "eth_blockNumber")?;
        }
        if identity.supported.is_empty()
            && let Some(network) = identity.call(call, "getnetworkinfo")?
        {
            identity.client = network.get("subversion").cloned().map(to_text);
        }
        if identity.supported.is_empty() || identity.supported == ["getnetworkinfo"] {
            identity.call(call, "getblockcount")?;
        }
        Ok(identity)
    }

    /// Calls a method without parameters and records whether the target supports it. Returns `None`
    /// if the target returned `null` or an error.
    fn call(
        &mut self,
        call: &mut CallWithoutParams<'_>,
        method: &'static str,
    ) -> Result<Option<serde_json::Value>, TargetFault> {
        match call(method)? {
            Reply::Result(value) if !value.is_null() => {
                self.supported.push(method);
                Ok(Some(value))
            }
            Reply::Result(_) => {
                self.rejections.push(format!("{method} returned null"));
                Ok(None)
            }
            Reply::Error { code, message } => {
                self.rejections.push(format!("{method} returned error {code} ({message})"));
                Ok(None)
            }
        }
    }

    /// Returns true if the target returned a result for a method.
    fn supports(&self, method: &str) -> bool {
        self.supported.contains(&method)
    }

    /// Returns the family, or `None` if the target supports no method that identifies a family.
    ///
    /// Harmony nodes support Ethereum's methods too, and other nodes may support some of Harmony's.
    /// In both cases the client version and the chain id decide.
    pub(crate) fn family(&self) -> Option<Family> {
        let is_harmony_client = self
            .client
            .as_ref()
            .is_some_and(|client| client.to_ascii_lowercase().contains("harmony"));
        let chain_id = self.chain_id.as_deref().and_then(chain::number_in);
        let is_harmony_chain = chain_id.is_some_and(|id| HARMONY_CHAIN_IDS.contains(&id));
        let supports_ethereum = self.supports("eth_chainId") || self.supports("eth_blockNumber");
        if self.supports("hmyv2_blockNumber")
            && (is_harmony_client || is_harmony_chain || !supports_ethereum)
        {
            Some(Family::Harmony)
        } else if supports_ethereum {
            Some(Family::Ethereum)
        } else if self.supports("getblockcount") {
            Some(Family::Bitcoin)
        } else {
            None
        }
    }

    /// Returns the facts about a target. Its heads at the start and end of a run are not set.
    fn into_facts(self, target: &Target, family: Option<Family>) -> TargetFacts {
        TargetFacts {
            url: target.url.to_string(),
            family: family.map_or("unknown", Family::as_str).to_owned(),
            client: self.client,
            chain_id: self.chain_id,
            head_start: None,
            head_end: None,
        }
    }

    /// Returns the fault of a target whose family is unknown.
    fn unknown_family_fault(&self, target: &Target) -> TargetFault {
        let replies = self.rejections.join(", ");
        TargetFault { url: target.url.to_string(), reason: Reason::NoFamily { replies } }
    }
}
