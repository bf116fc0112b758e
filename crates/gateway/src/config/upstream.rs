//! `[[upstream]]`: addresses of upstreams, and how connections to them are opened and used.
//!
//! A *multiplexed* connection carries many calls at a time. It is a WebSocket, a local socket or an
//! HTTP/2 connection.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use settings::url::{NodeUrl, Transport};
use settings::value::{Bool, Duration, File, Integer};
use settings::{Key, Located, Location, Report};

use super::chain::{self, Chain, ChainTable};
use super::validate::is_local_host;
use super::values::{
    DAY_MS, GIB, HOUR_MS, Headers, History, Host, Name, SECOND_MS, Size, UpstreamAddress,
};

#[cfg(test)]
mod tests;

settings::table! {
    /// An upstream. Its URL and header values are secrets and are never printed.
    pub struct UpstreamTable as label => pub UpstreamKeys {
        /// Name of the upstream in headers, metrics and logs.
        name: Name = described "host and port of the URL";
        /// Address of the upstream: `http://`, `https://`, `ws://`, `wss://`, or `ipc:` and the
        /// path of a socket. A user part in the URL becomes an `authorization` header.
        url: UpstreamAddress = required;
        /// A WebSocket (`ws://`, `wss://`) or socket (`ipc:`) of the same upstream, in addition to
        /// its HTTP address. Calls use this address while it works, and `url` otherwise.
        ws_url: UpstreamAddress = described "none";
        /// The chain that the upstream serves. It must be set if there are several chains.
        chain: Name = described "the only chain";
        /// Weight of the upstream, relative to the other upstreams, if the group balances by
        /// `weighted` or `hash`.
        weight: Integer<1, 1000, u32> = "1";
        /// If true, the upstream is used only while no other upstream of its group is usable.
        backup: Bool = "false";
        /// Which data of old blocks the upstream has. With `"auto"`, the gateway finds it out by
        /// calls about old blocks and by the upstream's refusals. A call goes to an upstream that
        /// has the data, and to an archive only if no other upstream has the data or a call waits.
        /// `"archive"` means all data, and `{ blocks = 128 }` the state of the newest 128 blocks.
        history: History = "auto";
        /// Maximum number of open connections, over all threads.
        connections_max: Integer<1, 100_000, usize> = "512";
        /// Maximum number of calls in flight on one WebSocket, socket or HTTP/2 connection. Further
        /// calls open another connection.
        calls_per_connection_max: Integer<1, 65_536, usize> = "256";
        /// Maximum size of a call over the WebSocket or socket. An upstream may close the
        /// connection when it receives a longer call, and then all calls on the connection fail. By
        /// default besu accepts 1 MiB, and geth 32 MiB. Longer calls go to the upstream's HTTP
        /// address, or to another upstream if this one has no HTTP address.
        message_bytes_max: Size<1024, { 4 * GIB }> =
            described "1MiB with an HTTP address, no limit without";
        /// The gateway pings a WebSocket after this time without data, and the upstream must
        /// respond within the same time. HTTP/2 connections are pinged at the same interval.
        ping_interval: Duration<1, HOUR_MS> = "5s";
        /// If true, the gateway offers HTTP/2 in the TLS handshake, so that many calls share a
        /// connection. If the upstream declines, the gateway uses HTTP/1.1 for ten minutes. Polls
        /// always use HTTP/1.1. Only for https.
        http2: Bool = "false";
        /// Maximum number of calls in one JSON-RPC batch to the upstream. A thread combines the
        /// calls that it has for the upstream at the moment, even if they come from different
        /// clients. It combines only cheap reads, and sends other calls alone. If the upstream
        /// rejects a batch as a whole, the gateway sends its calls one by one, and makes the next
        /// batches smaller. 1 disables batches. Batches are for providers that only offer HTTP.
        batch_calls_max: Integer<1, 1000, usize> = "1";
        /// Time for which the first call of a batch waits for others. With `0ms`, a thread combines
        /// only the calls of one turn of its event loop, such as the calls of a client's own batch.
        batch_wait: Duration<0, SECOND_MS> = "1ms";
        /// Time for which an unused connection stays open. Keep it below the upstream's own idle
        /// timeout.
        idle_timeout: Duration<1, DAY_MS> = "10s";
        /// If true, an HTTP connection is used for several calls. If false, each call opens its own
        /// connection and sends `connection: close`.
        keep_alive: Bool = "true";
        /// Maximum time for opening a connection, including the TLS handshake.
        connect_timeout: Duration<1, HOUR_MS> = "2s";
        /// Headers to add to every request, such as `{ authorization = "Bearer ${TOKEN}" }`.
        headers: Headers = empty;
        /// File of PEM certificates to trust instead of the built-in ones. Only for https and wss.
        tls_ca: File = described "Mozilla's roots, built in";
        /// Host name that the gateway sends (SNI) and verifies. Only for https and wss.
        tls_server_name: Host = described "the host of the URL";
        /// If true, the upstream's certificate is verified. Only for https and wss.
        tls_verify: Bool = "true";
    }
}

/// Default of `message_bytes_max` in bytes if the upstream also has an HTTP address. The value is
/// besu's default (`--rpc-ws-max-frame-size`). A longer call would also delay the calls behind it
/// on the same connection.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// An upstream. The struct dereferences to its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// Unique name in headers, metrics and logs. It is a configured name, or host and port of the
    /// URL, so it contains no secret.
    pub name: Arc<str>,
    /// Index into [`super::Config::chains`].
    pub chain: usize,
    /// TLS settings for `url`; `None` if its scheme is neither `https://` nor `wss://`.
    pub tls: Option<Tls>,
    /// TLS settings for `ws_url`; `None` if its scheme is not `wss://`.
    pub ws_tls: Option<Tls>,
    keys: UpstreamKeys,
}

impl Deref for Upstream {
    type Target = UpstreamKeys;

    fn deref(&self) -> &UpstreamKeys {
        &self.keys
    }
}

impl Upstream {
    /// Returns the HTTP address and its TLS settings; `None` without an HTTP address.
    pub(crate) fn http(&self) -> Option<(&NodeUrl, Option<&Tls>)> {
        (self.url.transport() == Transport::Http).then_some((&self.url, self.tls.as_ref()))
    }

    /// Returns the address for multiplexed connections (WebSocket or local socket) and its TLS
    /// settings; `None` without such an address.
    pub(crate) fn multiplexed(&self) -> Option<(&NodeUrl, Option<&Tls>)> {
        match &self.ws_url {
            Some(url) => Some((url, self.ws_tls.as_ref())),
            None if self.url.transport() == Transport::Http => None,
            None => Some((&self.url, self.tls.as_ref())),
        }
    }

    /// Returns true if both upstreams have the same addresses and credentials. Then state such as
    /// the health of one is valid for the other.
    pub(crate) fn has_same_target(&self, other: &Upstream) -> bool {
        self.url == other.url
            && self.ws_url == other.ws_url
            && self.headers == other.headers
            && self.tls == other.tls
            && self.ws_tls == other.ws_tls
    }

    /// Returns true if connections to one upstream can be used for the other. Ignores the keys that
    /// only load balancing uses, and the keys from which `tls` is built, because `tls` itself is
    /// compared. All other keys must be equal, including keys that future versions add.
    pub(crate) fn connects_like(&self, other: &Upstream) -> bool {
        let UpstreamKeys {
            name,
            chain,
            weight,
            backup,
            history,
            tls_ca,
            tls_server_name,
            tls_verify,
            ..
        } = other.keys.clone();
        let keys = UpstreamKeys {
            name,
            chain,
            weight,
            backup,
            history,
            tls_ca,
            tls_server_name,
            tls_verify,
            ..self.keys.clone()
        };
        let name = Arc::clone(&other.name);
        Upstream { name, chain: other.chain, keys, ..self.clone() } == *other
    }
}

/// TLS settings for one address. Two values are equal if they were built from the same
/// configuration.
#[derive(Clone)]
pub struct Tls {
    /// The TLS client with its trusted certificates and stored sessions. All connections to the
    /// address share the client.
    pub client: Arc<rustls::ClientConfig>,
    /// The trust settings of the client.
    pub(crate) trust: Trust,
    /// The name that is sent (SNI) and verified.
    pub server_name: ServerName<'static>,
}

/// Certificates that a TLS client trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// The built-in roots.
    Roots,
    /// The certificates of a file. Holds the file's content.
    File(Arc<[u8]>),
    /// Any certificate is trusted.
    Any,
}

impl Tls {
    /// Returns the content of the file `tls_ca`; `None` if the key is not set.
    pub fn ca_pem(&self) -> Option<&[u8]> {
        match &self.trust {
            Trust::File(pem) => Some(pem),
            Trust::Roots | Trust::Any => None,
        }
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        // Clients cannot be compared. Equal trust settings build equal clients.
        let Tls { client: _, trust, server_name } = self;
        *trust == other.trust && *server_name == other.server_name
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Tls")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

/// Labels the table in diagnostics with the name of the upstream, or with host and port.
fn label(table: &UpstreamTable) -> String {
    let address = || table.url.valid_value().map(NodeUrl::default_name);
    table.name.as_deref().map(str::to_owned).or_else(address).unwrap_or_default()
}

/// Validates all upstreams, and adds each to its chain. The returned list omits upstreams without a
/// valid URL.
pub(super) fn check(
    tables: &[UpstreamTable],
    folder: &Path,
    chains: &mut [Chain],
    chain_tables: &[(String, ChainTable)],
    report: &mut Report<'_>,
) -> Vec<Upstream> {
    let mut upstreams: Vec<Upstream> = Vec::new();
    let mut names = HashSet::new();
    for table in tables {
        let chain = chain::find_or_only(&table.chain, chains, report);
        if table.url.valid_value().is_none() {
            continue;
        }
        let name = choose_name(table, &mut names, report);
        // If the chain is unknown, its error is already reported, and the index 0 does not matter.
        let upstream = check_upstream(table, folder, name, chain.unwrap_or(0), report);
        if let Some(chain) = chain {
            chains[chain].upstreams.push(upstreams.len());
        }
        upstreams.push(upstream);
    }
    // An upstream with an invalid URL is missing in `upstreams`, so its chain may seem to have too
    // few upstreams. That is why the counts are checked only if all URLs are valid.
    if upstreams.len() == tables.len() {
        check_upstream_counts(chains, chain_tables, &upstreams, report);
    }
    upstreams
}

/// Returns the configured name of an upstream, or its host and port. A number follows host and port
/// if another upstream has the same name. Adds the name to `names`.
fn choose_name(
    table: &UpstreamTable,
    names: &mut HashSet<String>,
    report: &mut Report<'_>,
) -> Arc<str> {
    let name = match table.name.as_deref() {
        Some(name) => {
            if names.contains(name) {
                report.error(&table.name, "another upstream has this name", "each name once");
            }
            name.to_owned()
        }
        None => {
            let address = table.url.default_name();
            let numbered = (2..).map(|number| format!("{address}:{number}"));
            let mut candidates = std::iter::once(address.clone()).chain(numbered);
            let name = candidates.find(|name| !names.contains(name));
            name.expect("one of endlessly many numbers is free")
        }
    };
    names.insert(name.clone());
    name.into()
}

/// Validates an upstream. `chain` is the index of its chain.
fn check_upstream(
    table: &UpstreamTable,
    folder: &Path,
    name: Arc<str>,
    chain: usize,
    report: &mut Report<'_>,
) -> Upstream {
    let url = &*table.url;
    check_authorization(&table.headers, url, report);
    let ws_url = check_ws_url(table, report);
    warn_of_plain_secrets(&table.headers, &table.url, url, "https:// or wss://", report);
    if let Some(url) = &ws_url {
        warn_of_plain_secrets(&table.headers, &table.ws_url, url, "wss://", report);
    }
    reject_unused_keys(table, ws_url.is_some(), report);
    if !url.tls() && !ws_url.as_ref().is_some_and(NodeUrl::tls) {
        let UpstreamTable { tls_ca, tls_server_name, tls_verify, .. } = table;
        let keys = [&tls_ca.location, &tls_server_name.location, &tls_verify.location];
        for position in keys.into_iter().filter(|position| position.is_written()) {
            report.error(position, "the url is neither https nor wss", "an https:// or wss:// url");
        }
    }
    let build_tls_for = |url: &NodeUrl, report: &mut Report<'_>| {
        url.tls().then(|| build_tls(table, folder, url, report)).flatten()
    };
    let mut keys = table.values();
    let default_bytes_max = ws_url.is_some().then_some(MESSAGE_BYTES_MAX);
    keys.message_bytes_max = keys.message_bytes_max.or(default_bytes_max);
    Upstream {
        name,
        chain,
        tls: build_tls_for(url, report),
        ws_tls: ws_url.as_ref().and_then(|url| build_tls_for(url, report)),
        keys: UpstreamKeys { ws_url, ..keys },
    }
}

/// Checks that the URL and the headers do not both set `authorization`.
pub(super) fn check_authorization(
    headers: &Key<Vec<(HeaderName, HeaderValue)>>,
    url: &NodeUrl,
    report: &mut Report<'_>,
) {
    let has_authorization = headers.iter().any(|(name, _)| *name == http::header::AUTHORIZATION);
    if has_authorization && url.authorization().is_some() {
        let message = "both the url and the headers set authorization";
        report.error(headers, message, "a user part in the url or the header");
    }
}

/// Warns of secrets that are sent to another network without TLS. `url_key` is the configuration
/// key that holds the URL. `advice` describes a safe value of that key.
pub(super) fn warn_of_plain_secrets(
    headers: &[(HeaderName, HeaderValue)],
    url_key: &impl Located,
    url: &NodeUrl,
    advice: &str,
    report: &mut Report<'_>,
) {
    let has_secrets = !headers.is_empty() || url.authorization().is_some();
    let is_plain = url.transport() != Transport::Ipc && !url.tls();
    if has_secrets && is_plain && !is_local_host(url.host()) {
        report.warn(url_key, "secrets are sent to another network in plain text", advice);
    }
}

/// Rejects keys that have no effect with the addresses of the upstream.
fn reject_unused_keys(table: &UpstreamTable, has_ws_url: bool, report: &mut Report<'_>) {
    let is_http = table.url.transport() == Transport::Http;
    let (is_http_only, http2) = (is_http && !has_ws_url, *table.http2);
    let multiplexed = [&table.calls_per_connection_max.location, &table.ping_interval.location];
    let is_unused = |key: &&Location| key.is_written() && is_http_only && !http2;
    for position in multiplexed.into_iter().filter(is_unused) {
        let message = "the upstream has neither a websocket nor a socket, nor http2";
        report.error(position, message, "a ws_url, a url that is no http, or http2 = true");
    }
    if http2 && (!is_http || !table.url.tls()) {
        report.error(&table.http2, "http/2 is agreed on in tls", "an https:// url");
    }
    if http2 && !*table.keep_alive {
        let message = "an http/2 connection carries many calls";
        report.error(&table.keep_alive, message, "true, or http2 = false");
    }
    if !is_http && !*table.keep_alive {
        let message = "a websocket or socket carries many calls";
        report.error(&table.keep_alive, message, "true, or an http:// url");
    }
    if table.message_bytes_max.is_set() && is_http_only {
        let message = "the upstream has neither a websocket nor a socket";
        report.error(&table.message_bytes_max, message, "a ws_url, or a url that is no http");
    }
    let has_batches = *table.batch_calls_max > 1;
    if has_batches && !is_http_only {
        let message = "calls over a websocket or socket are not batched";
        report.error(&table.batch_calls_max, message, "1, or an http:// url alone");
    }
    if table.batch_wait.is_set() && !has_batches {
        report.error(&table.batch_wait, "there are no batches", "a batch_calls_max above 1");
    }
}

/// Returns `ws_url`; `None` if it is not set, and after an error.
fn check_ws_url(table: &UpstreamTable, report: &mut Report<'_>) -> Option<NodeUrl> {
    let ws_url = table.ws_url.as_ref()?;
    if table.url.transport() != Transport::Http {
        let message = "the url is already a websocket or socket";
        report.error(&table.ws_url, message, "one of both, or an http:// url");
        return None;
    }
    if ws_url.transport() == Transport::Http {
        report.error(&table.ws_url, "this is an address of http", "ws://, wss:// or ipc:");
        return None;
    }
    Some(ws_url.clone())
}

/// Builds the TLS settings for one address; `None` after an error.
fn build_tls(
    table: &UpstreamTable,
    folder: &Path,
    url: &NodeUrl,
    report: &mut Report<'_>,
) -> Option<Tls> {
    let name = table.tls_server_name.as_deref().unwrap_or(url.host()).to_owned();
    let Ok(server_name) = ServerName::try_from(name) else {
        report.error(&table.tls_server_name, "not a host name", "host name or ip address");
        return None;
    };
    let ca = table.tls_ca.as_ref().map(|path| folder.join(path));
    let client = if *table.tls_verify {
        wire::tls::build_verifying_client(ca.as_deref())
    } else {
        let message = "anyone on the network path can impersonate this upstream";
        report.warn(&table.tls_verify, message, "tls_ca with the upstream's certificate");
        wire::tls::build_trusting_client()
    };
    let trust = match &ca {
        _ if !*table.tls_verify => Trust::Any,
        None => Trust::Roots,
        // If the file was removed since the client was built, the next reload reports the error.
        Some(path) => Trust::File(std::fs::read(path).unwrap_or_default().into()),
    };
    match client {
        Ok(mut client) => {
            client.alpn_protocols = vec![b"http/1.1".to_vec()];
            Some(Tls { client: Arc::new(client), trust, server_name })
        }
        Err(message) => {
            report.error(&table.tls_ca, message, "a file of pem certificates");
            None
        }
    }
}

/// Reports chains without an upstream. Warns of chains with a single upstream, and of chains with
/// only backups.
fn check_upstream_counts(
    chains: &[Chain],
    tables: &[(String, ChainTable)],
    upstreams: &[Upstream],
    report: &mut Report<'_>,
) {
    if report.has_errors() && upstreams.is_empty() {
        return;
    }
    for (index, chain) in chains.iter().enumerate() {
        let table = tables.get(index);
        let mut position = table.map(|(_, table)| table.location.clone()).unwrap_or_default();
        position.path = format!("chain.{}", chain.name);
        match chain.upstreams.as_slice() {
            [] if report.has_errors() => {}
            [] => {
                let allowed = "at least one [[upstream]], or a [[provider]] that has the chain";
                report.error(&position, "the chain has no upstream", allowed);
            }
            [_] => {
                let message = "the chain has a single upstream: if it fails, all calls fail";
                let advice = "a second [[upstream]], possibly with backup = true";
                report.warn(&position, message, advice);
            }
            members if members.iter().all(|upstream| upstreams[*upstream].backup) => {
                let message = "all upstreams of the chain are backups";
                report.warn(&position, message, "at least one without backup = true");
            }
            _ => {}
        }
    }
}
