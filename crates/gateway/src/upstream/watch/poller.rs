//! Polls one upstream for its *head*, the header of its newest block, and fetches older headers.
//! The poller has separate connections. It polls with one request at a time, and fetches several
//! headers at once. A chain's *view* is the published snapshot of its heads.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use wire::call::write_call;
use wire::family::Family;
use wire::hex::hash_from_value;
use wire::json::walk;
use wire::node_error::{MethodKind, NodeError};
use wire::quantity::{self, Decimal};
use wire::response::Outcome;

use crate::io::memory::Reservation;
use crate::policy::block_headers::BlockHeader;
use crate::policy::classify::{CallOutcome, Verdict, classify};
use crate::policy::heads::HeadPoll;
use crate::upstream::exchange::{HttpResponse, parse_response_to};
use crate::upstream::fault::{describe_connect_error, describe_exchange_error, describe_response};
use crate::upstream::http1::{Connection, new_parsed_heads};
use crate::upstream::multiplexed_connection::MultiplexedConnection;
use crate::upstream::multiplexed_pool;
use crate::upstream::request_head::build_call_head;
use crate::upstream::topology::Topology;
use crate::upstream::watch::WatchedChain;

/// Timeout of a poll, as a multiple of the poll interval. On a fast chain, a silent upstream must
/// be detected before the other upstreams have several new heads.
const POLL_TIMEOUT_INTERVALS: u32 = 4;
/// Shortest timeout of a poll.
const POLL_TIMEOUT_MIN: Duration = Duration::from_millis(500);
/// Longest timeout of a poll. The value is small, because an upstream that needs seconds for a
/// header is useless to clients too.
const POLL_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// Maximum size of the response to a poll, in bytes. A header with many transaction hashes has a
/// few hundred kB.
const POLL_RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Maximum JSON nesting of responses. Headers have only a few levels.
const DEPTH_MAX: usize = 64;

/// Why a query has no result.
pub(super) enum QueryError {
    /// The upstream did not respond, or its response is malformed.
    NoResponse,
    /// The upstream responded with an error of this class.
    ErrorResponse(Verdict),
    /// The upstream limits the request rate.
    RateLimited { retry_after: Option<Duration> },
}

/// Polls one upstream.
pub(super) struct Poller {
    pub(super) topology: Arc<Topology>,
    /// Index of the upstream in the configuration of `topology`.
    pub(super) upstream: usize,
    /// Index of the upstream in the chain's views. Reloads do not change it.
    pub(super) view_index: usize,
    /// The idle HTTP/1.1 connections.
    connections: RefCell<Vec<Connection>>,
    /// Used instead of `connections` if the upstream has no HTTP address.
    multiplexed: RefCell<Option<Rc<MultiplexedConnection>>>,
    /// Time from the last query to its response.
    pub(super) latency: Cell<Duration>,
    /// JSON-RPC id of the last query over HTTP; 0 before the first query.
    last_id: Cell<u64>,
    /// Why the last failed query failed, in words.
    pub(super) fault: RefCell<String>,
    /// True if the log already reports that no connection to the upstream can be opened.
    outage_logged: Cell<bool>,
    /// Progress of the upstream after an ejection, for the log.
    pub(super) recovery: Recovery,
}

/// Progress of an upstream from its ejection back to the newest head. An upstream that fails is
/// *ejected*: it gets calls only as a last resort. A *probe* is a poll that may readmit an ejected
/// upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recovery {
    /// The upstream was not ejected, or the log reports that it is readmitted.
    Done,
    /// A probe has succeeded.
    Probed,
    /// The log reports that the upstream responds but lags.
    Lagging,
}

impl Poller {
    pub(super) fn new(watched: &WatchedChain, view_index: usize) -> Poller {
        let topology = watched.topology();
        let upstream = watched.find_upstream(&topology, view_index);
        Poller {
            topology,
            upstream,
            view_index,
            connections: RefCell::default(),
            multiplexed: RefCell::default(),
            latency: Cell::default(),
            last_id: Cell::new(0),
            fault: RefCell::default(),
            outage_logged: Cell::new(false),
            recovery: Recovery::Done,
        }
    }

    /// Switches to the current configuration. Drops the connections if the upstream's connection
    /// settings have changed.
    pub(super) fn follow_config(&mut self, watched: &WatchedChain) {
        let topology = watched.topology();
        if Arc::ptr_eq(&topology, &self.topology) {
            return;
        }
        let upstream = watched.find_upstream(&topology, self.view_index);
        let (previous, current) =
            (&self.topology.upstreams[self.upstream], &topology.upstreams[upstream]);
        if !current.config.connects_like(&previous.config) {
            self.connections.take();
            if let Some(connection) = self.multiplexed.take() {
                connection.retire();
            }
        }
        (self.topology, self.upstream) = (topology, upstream);
    }

    /// Queries the head. If `with_finalized` is true, also queries the finalized height, the number
    /// of the newest final block. Only upstreams of the Ethereum family report the finalized
    /// height.
    pub(super) async fn query_head(
        &self,
        family: Family,
        with_finalized: bool,
    ) -> Result<HeadPoll, QueryError> {
        let header = self.query_header(family, None).await?;
        let mut head = header.ok_or_else(|| self.fail("it has no newest block".to_owned()))?;
        if family == Family::Ethereum && with_finalized {
            let response = self.query("eth_getBlockByNumber", b"[\"finalized\",false]").await;
            head.finalized = match response {
                Ok(result) => parse_header(family, &result).map(|header| header.number),
                Err(QueryError::ErrorResponse(_)) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(head)
    }

    /// Returns true if the upstream says that it is syncing. An upstream without the method counts as
    /// synced. Returns `None` if the upstream does not respond, its family has no such method, or
    /// `is_due` is false.
    pub(super) async fn query_syncing(&self, family: Family, is_due: bool) -> Option<bool> {
        if family != Family::Ethereum || !is_due {
            return None;
        }
        match self.query("eth_syncing", b"[]").await {
            Ok(result) => Some(result.starts_with(b"{")),
            Err(QueryError::ErrorResponse(_)) => Some(false),
            Err(QueryError::NoResponse | QueryError::RateLimited { .. }) => None,
        }
    }

    /// Queries the header at `number`, or the newest header if `number` is `None`. Returns `None` if
    /// the upstream has no block at `number`. It then responds with `null`, an error, or another
    /// block.
    pub(super) async fn query_header(
        &self,
        family: Family,
        number: Option<u64>,
    ) -> Result<Option<HeadPoll>, QueryError> {
        let result = match self.query_block(family, number).await {
            Ok(result) if &*result == b"null" => return Ok(None),
            Ok(result) => result,
            Err(QueryError::ErrorResponse(_)) if number.is_some() => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(header) = parse_header(family, &result) else {
            return Err(self.fail("its newest block has no valid header".to_owned()));
        };
        self.store_header(header.hash, &result);
        Ok(Some(header).filter(|_| number.is_none_or(|number| number == header.number)))
    }

    /// Queries the block at `number`, or the newest block if `number` is `None`. Returns the raw
    /// block.
    async fn query_block(
        &self,
        family: Family,
        number: Option<u64>,
    ) -> Result<Vec<u8>, QueryError> {
        match family {
            Family::Ethereum => {
                let block = number.map_or("latest".to_owned(), |number| format!("{number:#x}"));
                let params = format!("[\"{block}\",false]");
                self.query("eth_getBlockByNumber", params.as_bytes()).await
            }
            Family::Harmony => {
                let block = number.map_or("\"latest\"".to_owned(), |number| number.to_string());
                let params = format!("[{block},{{\"fullTx\":false}}]");
                self.query("hmyv2_getBlockByNumber", params.as_bytes()).await
            }
            Family::Bitcoin => {
                let hash = match number {
                    Some(number) => {
                        self.query("getblockhash", format!("[{number}]").as_bytes()).await?
                    }
                    None => self.query("getbestblockhash", b"[]").await?,
                };
                self.query("getblockheader", &[b"[", &*hash, b"]"].concat()).await
            }
        }
    }

    /// Records why a query has no usable response.
    fn fail(&self, reason: String) -> QueryError {
        self.fault.replace(reason);
        QueryError::NoResponse
    }

    /// Stores the header among the chain's recent headers. Later, `doubt.rs` compares responses
    /// with these headers.
    fn store_header(&self, hash: [u8; 32], raw: &[u8]) {
        let chain = &self.topology.chains[self.topology.upstreams[self.upstream].config.chain];
        if chain.headers.read().get(&hash).is_some() {
            return;
        }
        if let Some(header) = BlockHeader::parse(raw, self.topology.now()) {
            chain.headers.write().insert(hash, header);
        }
    }

    /// Sends one query and returns the raw result.
    pub(super) async fn query(&self, method: &str, params: &[u8]) -> Result<Vec<u8>, QueryError> {
        let chain = self.topology.upstreams[self.upstream].config.chain;
        let interval = self.topology.config.chains[chain].poll_interval;
        let timeout = interval * POLL_TIMEOUT_INTERVALS;
        let deadline = Instant::now() + timeout.clamp(POLL_TIMEOUT_MIN, POLL_TIMEOUT_MAX);
        let reused = !self.connections.borrow().is_empty() || self.multiplexed.borrow().is_some();
        match self.query_once(method, params, deadline).await {
            // A reused connection may have been closed while idle, and the others with it. So the
            // query is sent again over a new connection.
            Err(QueryError::NoResponse) if reused => {
                self.connections.take();
                self.query_once(method, params, deadline).await
            }
            outcome => outcome,
        }
    }

    /// Sends a query once and returns the raw result.
    async fn query_once(
        &self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, QueryError> {
        let began = Instant::now();
        let has_http = self.topology.upstreams[self.upstream].config.http().is_some();
        let (id, response) = if has_http {
            self.exchange_http(method, params, deadline).await?
        } else {
            self.exchange_multiplexed(method, params, deadline).await?
        };
        self.latency.set(began.elapsed());
        let HttpResponse { status, retry_after, body, .. } = response;
        let response = parse_response_to(&id, &body, DEPTH_MAX);
        let (outcome, is_error_response) = match response.as_ref().map(|response| &response.outcome)
        {
            Some(Outcome::Result(result)) if status == 200 => return Ok(result.to_vec()),
            Some(Outcome::Error { code, message, .. }) => {
                let (code, has_hex_data, method) = (*code, false, MethodKind::Other);
                let error = NodeError { status, code, message, has_hex_data, method };
                (CallOutcome::Error { error, retry_after }, true)
            }
            _ => (CallOutcome::Http { status, retry_after }, false),
        };
        let error_text = match &outcome {
            CallOutcome::Error { error, .. } => Some((error.code, error.message)),
            _ => None,
        };
        let config = &self.topology.upstreams[self.upstream].config;
        self.fault.replace(describe_response(status, error_text, config));
        Err(match classify(&outcome) {
            Verdict::RateLimited { retry_after } => QueryError::RateLimited { retry_after },
            verdict if is_error_response => QueryError::ErrorResponse(verdict),
            _ => QueryError::NoResponse,
        })
    }

    /// Sends a query over HTTP/1.1. Returns the id of the query and the response.
    async fn exchange_http(
        &self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, HttpResponse), QueryError> {
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let idle = self.connections.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                let config = &upstream.config;
                let connecting = upstream.connector.connect(config.http(), config.connect_timeout);
                Connection::new(
                    self.await_connection(connecting, deadline).await?,
                    new_parsed_heads(),
                )
            }
        };
        self.last_id.set(self.last_id.get() + 1);
        let id = Decimal::new(self.last_id.get());
        let mut body = Vec::with_capacity(128);
        write_call(&mut body, id.as_bytes(), method, Some(params));
        // `call_head` ends with `Content-Length: `.
        let call_head = build_call_head(&upstream.config);
        let length = format!("{}\r\n\r\n", body.len());
        let request = [&*call_head, length.as_bytes(), &body].concat();
        let response = connection
            .exchange(&request, deadline, POLL_RESPONSE_BYTES_MAX, &mut Reservation::unlimited())
            .await
            .map_err(|error| {
                let url = upstream.config.http().map(|(url, _)| url);
                self.fail(describe_exchange_error(error.kind, url))
            })?;
        if response.reusable && upstream.config.keep_alive {
            self.connections.borrow_mut().push(connection);
        }
        Ok((id, response))
    }

    /// Sends a query over a WebSocket or a local socket. Returns the id of the query and the
    /// response.
    async fn exchange_multiplexed(
        &self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, HttpResponse), QueryError> {
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let current = self.multiplexed.borrow().clone();
        let connection = match current.filter(|connection| connection.is_open()) {
            Some(connection) => connection,
            None => {
                let connecting = multiplexed_pool::open(
                    &upstream.connector,
                    &upstream.config,
                    POLL_RESPONSE_BYTES_MAX,
                    // This connection has no subscription, so it drops notifications.
                    Rc::new(|_| {}),
                );
                let (connection, driver) = self.await_connection(connecting, deadline).await?;
                tokio::task::spawn_local(driver);
                if let Some(previous) = self.multiplexed.replace(Some(Rc::clone(&connection))) {
                    previous.retire();
                }
                connection
            }
        };
        let call = connection
            .call(method, Some(params), Instant::now(), deadline)
            .ok_or_else(|| self.fail("the connection cannot take another call".to_owned()))?;
        let outcome = call.await;
        if outcome.is_err() {
            connection.retire();
            self.multiplexed.take();
        }
        let (id, body) = outcome.map_err(|error| {
            let url = upstream.config.multiplexed().map(|(url, _)| url);
            self.fail(describe_exchange_error(error.kind, url))
        })?;
        Ok((id, HttpResponse::from_message(body)))
    }

    /// Waits for a connection. Logs the error, because no client receives it, but only once per
    /// outage.
    async fn await_connection<T>(
        &self,
        connecting: impl Future<Output = io::Result<T>>,
        deadline: Instant,
    ) -> Result<T, QueryError> {
        let connected = tokio::time::timeout_at(deadline, connecting).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(connection) => {
                self.outage_logged.set(false);
                Ok(connection)
            }
            Err(error) => {
                let config = &self.topology.upstreams[self.upstream].config;
                let address = config.http().or_else(|| config.multiplexed());
                let why = address.map_or_else(
                    || error.to_string(),
                    |(url, _)| describe_connect_error(&error, url),
                );
                if !self.outage_logged.replace(true) {
                    tracing::warn!(upstream = &*config.name, why, "cannot connect to upstream");
                }
                Err(self.fail(why))
            }
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(connection) = self.multiplexed.take() {
            connection.retire();
        }
    }
}

/// Parses the number, hash and parent's hash of a raw header; `None` if one of them is missing or
/// malformed.
fn parse_header(family: Family, raw: &[u8]) -> Option<HeadPoll> {
    let (number, hash, parent) = if family == Family::Bitcoin {
        let [number, hash, parent] = walk::fields_of(raw, ["height", "hash", "previousblockhash"]);
        let parse_hash = |raw: &[u8]| {
            let digits = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            wire::hex::parse_digits(digits)
        };
        // The first block has no parent.
        (number?, parse_hash(hash?)?, parent.map_or(Some([0; 32]), parse_hash)?)
    } else {
        let [number, hash, parent] = walk::fields_of(raw, ["number", "hash", "parentHash"]);
        (number?, hash_from_value(hash?)?, hash_from_value(parent?)?)
    };
    Some(HeadPoll { number: quantity::from_value(number)?, hash, parent, finalized: None })
}

#[cfg(test)]
mod tests {
    //! Goal: a poller drops a connection whose settings have changed. Method: an in-memory
    //! connection, configurations as text, and no running task.

    use std::path::Path;

    use tokio::task::LocalSet;

    use super::*;
    use crate::config::Config;
    use crate::metrics::thread::{Counters, Labels};
    use crate::upstream::connector::Stream;
    use crate::upstream::watch::{OnEvent, Watcher};

    fn config(keys: &str) -> Config {
        let text = format!("[server]\nthreads = 1\n[[upstream]]\nurl = 'ws://a.local:1'\n{keys}\n");
        Config::from_text("test", &text, Path::new("/"), &|_| None)
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn counters(config: &Config) -> [Arc<Counters>; 1] {
        [Arc::new(Counters::new(&Labels::of(config)))]
    }

    fn start(keys: &str) -> Arc<Topology> {
        let config = Arc::new(config(keys));
        let counters = counters(&config);
        Topology::new(config, &counters, Vec::new())
    }

    fn reload(previous: &Topology, keys: &str) -> Arc<Topology> {
        let config = Arc::new(config(keys));
        let counters = counters(&config);
        previous.reload(config, &counters)
    }

    #[tokio::test]
    async fn a_reload_keeps_the_connection_unless_its_settings_change() {
        let initial = start("");
        let tasks = LocalSet::new();
        let _entered = tasks.enter();
        let on_event: OnEvent = Rc::new(|_, _| {});
        let mut watch = Watcher::default();
        watch.set_topology(&initial, &on_event);
        let view_index = 0;
        let mut poller = Poller::new(&watch.chains[0], view_index);
        let stream = Stream::Memory(tokio::io::duplex(64).0);
        poller.connections.borrow_mut().push(Connection::new(stream, new_parsed_heads()));
        let heavier = reload(&initial, "weight = 2");
        watch.set_topology(&heavier, &on_event);
        poller.follow_config(&watch.chains[0]);
        assert!(Arc::ptr_eq(&poller.topology, &heavier) && poller.connections.borrow().len() == 1);
        watch.set_topology(&reload(&heavier, "weight = 2\nping_interval = '1s'"), &on_event);
        poller.follow_config(&watch.chains[0]);
        assert!(poller.connections.borrow().is_empty());
    }
}
