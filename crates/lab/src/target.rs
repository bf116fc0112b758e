//! Who is loaded: is it there, does it speak JSON-RPC, what is it, where is its head, and what of
//! its chain do parameters need?
//!
//! A few calls before a run and one after it, one at a time. They are not part of what is measured.

mod chain;
pub(crate) mod client;

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use lab_engine::chain::ChainFacts;
use lab_model::plan::{Plan, Step, Target, Tls};
use lab_model::results::TargetFacts;
use wire::family::Family;

pub(crate) use client::Client;

use chain::Needed;
use client::Reply;

#[cfg(test)]
mod tests;

/// Why a target cannot be loaded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{url}: {why}")]
pub struct TargetFault {
    /// The target's URL with secrets masked.
    pub url: String,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with a target.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Why {
    /// No address is known for the name.
    #[error("the name {host:?} has no address")]
    Resolve {
        /// The name.
        host: String,
    },
    /// Nobody listens.
    #[error("the connection was refused; nobody listens on port {port}")]
    Refused {
        /// The port.
        port: u16,
    },
    /// The connection was not made in time.
    #[error("no connection within {after:?}")]
    ConnectTimeout {
        /// The limit.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {error}")]
    Tls {
        /// What is wrong and what to do, in words.
        error: String,
    },
    /// The file of trust anchors cannot be used.
    #[error("trust anchors in {path}: {error}")]
    Anchors {
        /// The file.
        path: String,
        /// What is wrong with it.
        error: String,
    },
    /// Connected, but no answer came.
    #[error("it takes connections, but gave no answer within {after:?}")]
    Silent {
        /// The limit.
        after: Duration,
    },
    /// It answers in something else.
    #[error("it does not answer in HTTP; its answer begins with \"{first}\"")]
    NotHttp {
        /// The first bytes.
        first: String,
    },
    /// It speaks HTTP, but the body is no JSON-RPC answer.
    #[error(
        "it is no JSON-RPC server: it answered a call with HTTP status {status}, {fault}; the body begins \
         with \"{first}\""
    )]
    NotJsonRpc {
        /// HTTP status.
        status: u16,
        /// What is wrong with the body.
        fault: String,
        /// Its first bytes.
        first: String,
    },
    /// It limits the rate so much that not even the questions before a run got through.
    #[error(
        "it answered 429 to a single call {tries} times in a row; wait until its limit allows one"
    )]
    Limited {
        /// Tries.
        tries: u32,
    },
    /// JSON-RPC, but none of the families that are known.
    #[error(
        "it speaks JSON-RPC, but is of no known family: {asked}; say which it is with --family \
         ethereum|harmony|bitcoin (family in a plan), or give requests that need no facts of a chain"
    )]
    NoFamily {
        /// What was asked and answered.
        asked: String,
    },
    /// The plan draws from the chain, and the target does not say what is needed.
    #[error("the plan draws {what} from its chain, but {method} was answered with {answer}")]
    NoChain {
        /// What is needed.
        what: &'static str,
        /// The method asked.
        method: String,
        /// What came back.
        answer: String,
    },
    /// Anything else between us and it.
    #[error("{error}")]
    Other {
        /// As the client says it.
        error: String,
    },
}

/// What was found out about a target.
#[derive(Clone, Debug)]
pub struct Probed {
    /// Its addresses.
    pub addresses: Vec<SocketAddr>,
    /// Who it is.
    pub facts: TargetFacts,
    /// What parameters are drawn from.
    pub chain: ChainFacts,
    /// What to know beside it.
    pub warnings: Vec<String>,
}

/// The family of methods that a target understands.
///
/// # Errors
/// If it cannot be reached, is no JSON-RPC server, or is of no known family.
pub fn family(target: &Target, tls: &Tls) -> Result<Family, TargetFault> {
    resolve(target)?;
    let client = Client::new(target, tls)?;
    let found = Found::ask(&client)?;
    found.family().ok_or_else(|| found.no_family(target))
}

/// Finds out who the target of a plan is, and fetches what its parameters are drawn from.
///
/// A plan that gives its family, or that replays recorded requests, may load what answers the
/// questions of no family; any other must have a target of a known one.
///
/// # Errors
/// If the target cannot be reached, is no JSON-RPC server, or lacks what the plan needs.
pub fn probe(plan: &Plan) -> Result<Probed, TargetFault> {
    let target = &plan.target;
    let addresses = resolve(target)?;
    let client = Client::new(target, &plan.connections.tls)?;
    let needed = Needed::of(plan);
    let tolerant = target.family.is_some() || (needed == Needed::default() && replays(plan));
    let mut warnings = Vec::new();
    let found = match Found::ask(&client) {
        Ok(found) => found,
        Err(TargetFault { why: why @ (Why::NotJsonRpc { .. } | Why::Limited { .. }), .. })
            if tolerant && needed == Needed::default() =>
        {
            warnings.push(format!("nothing is known of the target: {why}"));
            Found::default()
        }
        Err(fault) => return Err(fault),
    };
    let family = target.family.or_else(|| found.family());
    if family.is_none() && needed != Needed::default() {
        return Err(found.no_family(target));
    }
    let mut facts = TargetFacts {
        url: target.shown.clone(),
        family: family.map_or("unknown", Family::as_str).to_owned(),
        client: found.client.clone(),
        chain_id: found.chain_id.clone(),
        head_start: None,
        head_end: None,
    };
    let mut chain = ChainFacts::default();
    if let Some(family) = family {
        chain.decimal = family != Family::Ethereum;
        facts.head_start = chain::head(&client, family)?;
        chain::fill(&client, family, needed, facts.head_start, &mut chain)
            .map_err(|why| TargetFault { url: target.shown.clone(), why })?;
    }
    Ok(Probed { addresses, facts, chain, warnings })
}

/// The target's head now, if it says.
pub fn head(plan: &Plan, family: &str) -> Option<u64> {
    let client = Client::new(&plan.target, &plan.connections.tls).ok()?;
    chain::head(&client, family.parse().ok()?).ok().flatten()
}

/// The head of a server; none if it does not say.
pub(crate) fn head_of(client: &Client, family: Family) -> Option<u64> {
    chain::head(client, family).ok().flatten()
}

fn replays(plan: &Plan) -> bool {
    let mut steps = plan.mixes.iter().flat_map(|mix| &mix.steps);
    steps.all(|step| matches!(step, Step::Replay(_)))
}

fn resolve(target: &Target) -> Result<Vec<SocketAddr>, TargetFault> {
    let host = target.host.trim_matches(['[', ']']);
    let found: Vec<SocketAddr> =
        (host, target.port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    if found.is_empty() {
        let why = Why::Resolve { host: host.to_owned() };
        return Err(TargetFault { url: target.shown.clone(), why });
    }
    Ok(found)
}

/// Harmony's chain ids, of its shards and test networks too
/// (<https://docs.harmony.one/home/developers/network-and-faucets>).
const HARMONY_IDS: std::ops::Range<u64> = 1_666_600_000..1_666_990_000;

/// What a target answered to the questions that tell families apart.
#[derive(Clone, Debug, Default)]
struct Found {
    client: Option<String>,
    chain_id: Option<String>,
    /// Methods that were answered with a result.
    known: Vec<&'static str>,
    /// What was asked and answered, in words.
    asked: Vec<String>,
}

impl Found {
    fn ask(client: &Client) -> Result<Found, TargetFault> {
        let mut found = Found::default();
        let text = |value: serde_json::Value| match value {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        found.client = found.one(client, "web3_clientVersion")?.map(text);
        found.chain_id = found.one(client, "eth_chainId")?.map(text);
        // A chain that is the first of these has an Ethereum interface too.
        found.one(client, "hmyv2_blockNumber")?;
        if found.known.is_empty() || found.chain_id.is_none() {
            found.one(client, "eth_blockNumber")?;
        }
        if found.known.is_empty()
            && let Some(network) = found.one(client, "getnetworkinfo")?
        {
            found.client = network.get("subversion").cloned().map(text);
        }
        if found.known.is_empty() || found.known == ["getnetworkinfo"] {
            found.one(client, "getblockcount")?;
        }
        Ok(found)
    }

    fn one(
        &mut self,
        client: &Client,
        method: &'static str,
    ) -> Result<Option<serde_json::Value>, TargetFault> {
        match client.call(method, "[]")? {
            Reply::Result(value) if !value.is_null() => {
                self.known.push(method);
                Ok(Some(value))
            }
            Reply::Result(_) => {
                self.asked.push(format!("{method} was answered with null"));
                Ok(None)
            }
            Reply::Error { code, message } => {
                self.asked.push(format!("{method} was answered with error {code} ({message})"));
                Ok(None)
            }
        }
    }

    fn knows(&self, method: &str) -> bool {
        self.known.contains(&method)
    }

    /// Harmony's nodes have Ethereum's methods too, and others may have some of Harmony's; what
    /// they say they are decides.
    fn family(&self) -> Option<Family> {
        let says_harmony = self
            .client
            .as_ref()
            .is_some_and(|client| client.to_ascii_lowercase().contains("harmony"));
        let id = self.chain_id.as_deref().and_then(chain::number_in);
        let of_harmony = id.is_some_and(|id| HARMONY_IDS.contains(&id));
        let ethereum = self.knows("eth_chainId") || self.knows("eth_blockNumber");
        if self.knows("hmyv2_blockNumber") && (says_harmony || of_harmony || !ethereum) {
            Some(Family::Harmony)
        } else if ethereum {
            Some(Family::Ethereum)
        } else if self.knows("getblockcount") {
            Some(Family::Bitcoin)
        } else {
            None
        }
    }

    fn no_family(&self, target: &Target) -> TargetFault {
        let asked = self.asked.join(", ");
        TargetFault { url: target.shown.clone(), why: Why::NoFamily { asked } }
    }
}
