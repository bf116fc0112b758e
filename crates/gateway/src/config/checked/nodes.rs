//! Nodes: names, the chain that each serves, headers and TLS.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::super::fault::Report;
use super::super::field::NODE;
use super::super::file::{Entry, Written};
use super::super::tls;
use super::super::url::{NodeUrl, Transport};
use super::super::{Chain, Node, Tls, Trust};
use super::{is_near, not_found, refuse};

/// Longest call over a WebSocket or socket where HTTP is the other way: what besu takes by default
/// (`--rpc-ws-max-frame-size`), and one that much longer would keep all others waiting behind it.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// All nodes; each chain learns which are its own.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    chains: &mut [Chain],
    report: &mut Report<'_>,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    let mut names = HashSet::new();
    let mut unread = 0;
    for entry in written.all(&NODE) {
        let chain = chain_of(entry, chains, report);
        let Some(url) = entry.chosen("url") else {
            unread += 1;
            continue;
        };
        let url = url.url();
        let name = name_of(entry, &url, &mut names, report);
        let node = node(entry, folder, name, url, chain.unwrap_or(0), report);
        if let Some(chain) = chain {
            chains[chain].nodes.push(nodes.len());
        }
        nodes.push(node);
    }
    // Where the URL of a node is faulty, that it is missing is no news.
    if unread == 0 {
        enough_nodes(chains, &nodes, written, report);
    }
    nodes
}

/// The chain that a node or group belongs to; without a name, the only one.
pub(super) fn chain_of(entry: &Entry, chains: &[Chain], report: &mut Report<'_>) -> Option<usize> {
    let known: Vec<&str> = chains.iter().map(|chain| &*chain.name).collect();
    match entry.chosen("chain") {
        Some(name) => {
            let name = name.text();
            let found = known.iter().position(|known| *known == name);
            if found.is_none() {
                let (message, allowed) = not_found("chain", &name, &known);
                refuse(report, entry, "chain", &message, &allowed);
            }
            found
        }
        None if chains.len() == 1 => Some(0),
        None => {
            refuse(report, entry, "chain", "must be set, for there are several", &known.join(", "));
            None
        }
    }
}

fn name_of(
    entry: &Entry,
    url: &NodeUrl,
    names: &mut HashSet<String>,
    report: &mut Report<'_>,
) -> Arc<str> {
    let name = match entry.chosen("name") {
        Some(name) => {
            let name = name.text();
            if names.contains(&name) {
                refuse(report, entry, "name", "another node has this name", "each name once");
            }
            name
        }
        None => {
            let place = url.place();
            let numbered = (2..).map(|i| format!("{place}:{i}"));
            let mut free = std::iter::once(place.clone()).chain(numbered);
            let name = free.find(|name| !names.contains(name));
            name.expect("one of endlessly many numbers is free")
        }
    };
    names.insert(name.clone());
    name.into()
}

fn node(
    entry: &Entry,
    folder: &Path,
    name: Arc<str>,
    url: NodeUrl,
    chain: usize,
    report: &mut Report<'_>,
) -> Node {
    let headers = entry.value("headers").headers();
    let authorized = headers.iter().any(|(name, _)| *name == http::header::AUTHORIZATION);
    if authorized && url.authorization().is_some() {
        let message = "both the url and the headers say who we are";
        refuse(report, entry, "headers", message, "a user part in the url or the header");
    }
    let ws_url = ws_url(entry, &url, report);
    for (key, url, safe) in
        [("url", Some(&url), "https:// or wss://"), ("ws_url", ws_url.as_ref(), "wss://")]
    {
        let Some(url) = url.filter(|url| url.transport() != Transport::Ipc) else { continue };
        let secrets = !headers.is_empty() || url.authorization().is_some();
        if !url.tls() && secrets && !is_near(url.host()) {
            let span = entry.set(key).and_then(|set| set.span.as_ref());
            let message = "secrets go to another network in clear text";
            report.warn(span, entry.key(key), message, safe);
        }
    }
    let http2 = entry.value("http2").switch();
    only_where_of_use(entry, &url, ws_url.is_some(), report);
    if url.transport() != Transport::Http && !entry.value("keep_alive").switch() {
        let message = "a websocket or socket carries many calls";
        refuse(report, entry, "keep_alive", message, "true, or an http:// url");
    }
    let own_tls = |url: &NodeUrl, report: &mut Report<'_>| {
        url.tls().then(|| tls_of(entry, folder, url, report)).flatten()
    };
    let any_tls = url.tls() || ws_url.as_ref().is_some_and(NodeUrl::tls);
    if !any_tls {
        for key in ["tls_ca", "tls_server_name", "tls_verify"] {
            if entry.set(key).is_some() {
                let message = "the url is neither https nor wss";
                refuse(report, entry, key, message, "an https:// or wss:// url");
            }
        }
    }
    let message_bytes_max = match entry.chosen("message_bytes_max") {
        Some(bytes) => Some(bytes.size()),
        None => ws_url.is_some().then_some(MESSAGE_BYTES_MAX),
    };
    Node {
        name,
        chain,
        weight: entry.value("weight").count() as u32,
        backup: entry.value("backup").switch(),
        connections_max: entry.value("connections_max").size(),
        idle_timeout: entry.value("idle_timeout").duration(),
        keep_alive: entry.value("keep_alive").switch(),
        connect_timeout: entry.value("connect_timeout").duration(),
        headers,
        tls: own_tls(&url, report),
        ws_tls: ws_url.as_ref().and_then(|url| own_tls(url, report)),
        url,
        ws_url,
        calls_per_connection_max: entry.value("calls_per_connection_max").size(),
        message_bytes_max,
        ping_interval: entry.value("ping_interval").duration(),
        http2,
        batch_calls_max: entry.value("batch_calls_max").size(),
        batch_wait: entry.value("batch_wait").duration(),
    }
}

/// Refuses what would do nothing with the addresses that the node has.
fn only_where_of_use(entry: &Entry, url: &NodeUrl, has_ws_url: bool, report: &mut Report<'_>) {
    let http_alone = url.transport() == Transport::Http && !has_ws_url;
    let http2 = entry.value("http2").switch();
    for key in ["calls_per_connection_max", "ping_interval"] {
        if entry.set(key).is_some() && http_alone && !http2 {
            let message = "the node has neither a websocket nor a socket, nor http2";
            refuse(report, entry, key, message, "a ws_url, a url that is no http, or http2 = true");
        }
    }
    if http2 && (url.transport() != Transport::Http || !url.tls()) {
        let message = "http/2 is agreed on in tls";
        refuse(report, entry, "http2", message, "an https:// url");
    }
    if http2 && !entry.value("keep_alive").switch() {
        let message = "a connection of http/2 carries many calls";
        refuse(report, entry, "keep_alive", message, "true, or http2 = false");
    }
    if entry.set("message_bytes_max").is_some() && http_alone {
        let message = "the node has neither a websocket nor a socket";
        refuse(report, entry, "message_bytes_max", message, "a ws_url, or a url that is no http");
    }
    let gathers = entry.value("batch_calls_max").size() > 1;
    if gathers && !http_alone {
        let message = "calls share the websocket or socket, one by one";
        refuse(report, entry, "batch_calls_max", message, "1, or an http:// url alone");
    }
    if entry.set("batch_wait").is_some() && !gathers {
        let message = "there are no batches";
        refuse(report, entry, "batch_wait", message, "a batch_calls_max above 1");
    }
}

/// The second address, if there is one.
fn ws_url(entry: &Entry, url: &NodeUrl, report: &mut Report<'_>) -> Option<NodeUrl> {
    let ws_url = entry.chosen("ws_url")?.url();
    if url.transport() != Transport::Http {
        let message = "the url is a websocket or socket by itself";
        refuse(report, entry, "ws_url", message, "one of both, or an http:// url");
        return None;
    }
    if ws_url.transport() == Transport::Http {
        refuse(report, entry, "ws_url", "this is an address of http", "ws://, wss:// or ipc:");
        return None;
    }
    Some(ws_url)
}

fn tls_of(entry: &Entry, folder: &Path, url: &NodeUrl, report: &mut Report<'_>) -> Option<Tls> {
    let chosen_name = entry.chosen("tls_server_name").map(|name| name.text());
    let name = chosen_name.unwrap_or_else(|| url.host().to_owned());
    let Ok(server_name) = ServerName::try_from(name) else {
        refuse(report, entry, "tls_server_name", "not a host name", "host name or ip address");
        return None;
    };
    let ca = entry.chosen("tls_ca").map(|path| folder.join(path.text()));
    let verify = entry.value("tls_verify").switch();
    let client = if verify {
        tls::verifying_client(ca.as_deref())
    } else {
        let span = entry.set("tls_verify").and_then(|set| set.span.as_ref());
        let message = "anyone on the way can answer in this node's place";
        report.warn(span, entry.key("tls_verify"), message, "tls_ca with the node's certificate");
        tls::trusting_client()
    };
    match client {
        Ok(client) => Some(Tls { client, trust: trust(ca.as_deref(), verify), server_name }),
        Err(message) => {
            refuse(report, entry, "tls_ca", &message, "a file of pem certificates");
            None
        }
    }
}

/// What a client was just built from.
fn trust(ca: Option<&Path>, verify: bool) -> Trust {
    match ca {
        _ if !verify => Trust::Anybody,
        None => Trust::Roots,
        // A file that is gone by now is told by the next look; until then it equals nothing else.
        Some(path) => Trust::File(std::fs::read(path).unwrap_or_default().into()),
    }
}

fn enough_nodes(chains: &[Chain], nodes: &[Node], written: &Written, report: &mut Report<'_>) {
    let span_of = |at: usize| {
        let entry = written.all(&super::super::field::CHAIN).nth(at);
        entry.and_then(|entry| entry.span.clone())
    };
    if report.has_faults() && nodes.is_empty() {
        return;
    }
    for (at, chain) in chains.iter().enumerate() {
        let span = span_of(at);
        let key = format!("chain.{}", chain.name);
        match chain.nodes.as_slice() {
            [] if report.has_faults() => {}
            [] => {
                let allowed = Some("at least one [[node]]".to_owned());
                report.fault(span.as_ref(), key, None, "the chain has no node", allowed);
            }
            [_] => {
                let message = "the chain has a single node: every call depends on it";
                report.warn(
                    span.as_ref(),
                    key,
                    message,
                    "a second [[node]], as backup = true if need be",
                );
            }
            own if own.iter().all(|node| nodes[*node].backup) => {
                let message = "all nodes of the chain are backups";
                report.warn(span.as_ref(), key, message, "at least one without backup = true");
            }
            _ => {}
        }
    }
}
