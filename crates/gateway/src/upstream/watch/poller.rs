//! Polls one upstream for heads and headers. The poller has a separate connection and sends one
//! request at a time.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use wire::call::write_call;
use wire::family::Family;
use wire::hex::hash_from_value;
use wire::json::walk;
use wire::quantity;
use wire::quantity::Decimal;
use wire::response::{Outcome, parse_response};

use crate::io::memory::Reservation;
use crate::policy::classify::{CallOutcome, Verdict, classify};
use crate::policy::contents::Contents;
use crate::policy::heads::HeadPoll;
use crate::upstream::connector::AddressKind;
use crate::upstream::http1::{Connection, HttpResponse, new_parsed_heads};
use crate::upstream::multiplexed_connection::MultiplexedConnection;
use crate::upstream::multiplexed_pool::OpenedStream;
use crate::upstream::send::has_id;
use crate::upstream::topology::Topology;
use crate::upstream::watch::WatchedChain;
use crate::upstream::{multiplexed_connection, multiplexed_pool};

/// Timeout of a poll in poll intervals. On a fast chain a silent upstream must be detected before
/// the other upstreams have several new heads.
const POLL_DEADLINE_INTERVALS: u32 = 4;
/// Shortest timeout of a poll.
const POLL_DEADLINE_MIN: Duration = Duration::from_millis(500);
/// Longest timeout of a poll. It is short, because an upstream that needs seconds for a header is
/// useless to clients too.
const POLL_DEADLINE_MAX: Duration = Duration::from_secs(2);
/// Upper limit of bytes of a poll's response. A header with many transaction hashes has some
/// hundred kB.
const POLL_RESPONSE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Nesting allowed in responses; headers have a handful of levels.
const DEPTH_MAX: usize = 64;

/// Why a poll returned no head.
pub(super) enum PollError {
    /// The upstream did not respond, or its response holds no head.
    NoHead,
    /// The upstream limits the request rate.
    RateLimited { retry_after: Option<Duration> },
}

/// Why a query has no result.
pub(super) enum QueryError {
    /// The upstream responded with an error.
    ErrorResponse,
    /// The upstream did not respond, or it limits the request rate.
    Poll(PollError),
}

impl From<QueryError> for PollError {
    fn from(error: QueryError) -> PollError {
        match error {
            QueryError::ErrorResponse => PollError::NoHead,
            QueryError::Poll(error) => error,
        }
    }
}

/// Polls one upstream.
pub(super) struct Poller {
    pub(super) topology: Arc<Topology>,
    /// Index of the upstream in the configuration of `topology`.
    pub(super) upstream: usize,
    /// Index of the upstream in the chain's views. Reloads do not change it.
    pub(super) view_index: usize,
    connection: Option<Connection>,
    /// Used instead of `connection` if the upstream has no HTTP address.
    multiplexed: Option<Rc<MultiplexedConnection>>,
    next_id: u64,
    /// True if the current outage was already logged.
    outage_logged: bool,
    pub(super) recovery: Recovery,
}

/// Progress of an upstream from its first successful probe back to the newest head.
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
        let upstream = watched.upstream(&topology, view_index);
        Poller {
            topology,
            upstream,
            view_index,
            connection: None,
            multiplexed: None,
            next_id: 0,
            outage_logged: false,
            recovery: Recovery::Done,
        }
    }

    /// Switches to the current configuration. Drops the connection if the upstream's connection
    /// settings have changed.
    pub(super) fn follow_config(&mut self, watched: &WatchedChain) {
        let topology = watched.topology();
        if Arc::ptr_eq(&topology, &self.topology) {
            return;
        }
        let upstream = watched.upstream(&topology, self.view_index);
        let (previous, current) =
            (&self.topology.upstreams[self.upstream], &topology.upstreams[upstream]);
        if !current.config.connects_like(&previous.config) {
            self.connection = None;
            if let Some(connection) = self.multiplexed.take() {
                connection.retire();
            }
        }
        (self.topology, self.upstream) = (topology, upstream);
    }

    /// Queries the head. Also queries the finalized height if `with_finalized` is true and the
    /// family has one.
    pub(super) async fn query_head(
        &mut self,
        family: Family,
        with_finalized: bool,
    ) -> Result<HeadPoll, PollError> {
        let result = match family {
            Family::Ethereum => self.query("eth_getBlockByNumber", b"[\"latest\",false]").await?,
            Family::Harmony => {
                self.query("hmyv2_getBlockByNumber", b"[\"latest\",{\"fullTx\":false}]").await?
            }
            Family::Bitcoin => self.bitcoin_head().await?,
        };
        let (number, hash, parent) = parse_header(family, &result).ok_or(PollError::NoHead)?;
        self.store_header(hash, &result);
        let mut finalized = None;
        if family == Family::Ethereum && with_finalized {
            let response = self.query("eth_getBlockByNumber", b"[\"finalized\",false]").await;
            finalized = match response {
                Ok(result) => parse_header(family, &result).map(|(number, ..)| number),
                Err(QueryError::ErrorResponse) => None,
                Err(QueryError::Poll(error)) => return Err(error),
            };
        }
        Ok(HeadPoll { number, hash, parent, finalized })
    }

    /// Queries the header at `number`. Returns its hash and its parent's.
    pub(super) async fn query_header(
        &mut self,
        family: Family,
        number: u64,
    ) -> Result<([u8; 32], [u8; 32]), PollError> {
        let mut params = Vec::with_capacity(32);
        let result = match family {
            Family::Ethereum => {
                params.extend_from_slice(b"[\"");
                quantity::write(&mut params, number);
                params.extend_from_slice(b"\",false]");
                self.query("eth_getBlockByNumber", &params).await?
            }
            Family::Harmony => {
                params.push(b'[');
                quantity::write_decimal(&mut params, number);
                params.extend_from_slice(b",{\"fullTx\":false}]");
                self.query("hmyv2_getBlockByNumber", &params).await?
            }
            Family::Bitcoin => {
                params.push(b'[');
                quantity::write_decimal(&mut params, number);
                params.push(b']');
                let hash = self.query("getblockhash", &params).await?;
                self.bitcoin_header(&hash).await?
            }
        };
        let (found_number, hash, parent) =
            parse_header(family, &result).ok_or(PollError::NoHead)?;
        self.store_header(hash, &result);
        if found_number == number { Ok((hash, parent)) } else { Err(PollError::NoHead) }
    }

    /// Stores the parsed header for checks of responses.
    fn store_header(&self, hash: [u8; 32], raw: &[u8]) {
        let chain = &self.topology.chains[self.topology.upstreams[self.upstream].config.chain];
        if chain.headers.read().has(&hash) {
            return;
        }
        if let Some(contents) = Contents::read(raw, self.topology.now()) {
            chain.headers.write().insert(hash, contents);
        }
    }

    async fn bitcoin_head(&mut self) -> Result<Vec<u8>, QueryError> {
        let hash = self.query("getbestblockhash", b"[]").await?;
        self.bitcoin_header(&hash).await
    }

    async fn bitcoin_header(&mut self, hash: &[u8]) -> Result<Vec<u8>, QueryError> {
        let params = [b"[", hash, b"]"].concat();
        self.query("getblockheader", &params).await
    }

    /// Sends one query and returns the raw result.
    pub(super) async fn query(
        &mut self,
        method: &str,
        params: &[u8],
    ) -> Result<Vec<u8>, QueryError> {
        let chain = self.topology.upstreams[self.upstream].config.chain;
        let interval = self.topology.config.chains[chain].poll_interval;
        let timeout = interval * POLL_DEADLINE_INTERVALS;
        let deadline = Instant::now() + timeout.clamp(POLL_DEADLINE_MIN, POLL_DEADLINE_MAX);
        let reused = self.connection.is_some() || self.multiplexed.is_some();
        match self.query_once(method, params, deadline).await {
            // A reused connection may have been closed while idle, so the query is sent again.
            Err(QueryError::Poll(PollError::NoHead)) if reused => {
                self.query_once(method, params, deadline).await
            }
            outcome => outcome,
        }
    }

    async fn query_once(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, QueryError> {
        let over_http = self.topology.upstreams[self.upstream].config.http().is_some();
        let (id, status, retry_after, body) = if over_http {
            let (id, response) = self.exchange(method, params, deadline).await?;
            (id, response.status, response.retry_after, response.body)
        } else {
            let (id, body) = self.exchange_multiplexed(method, params, deadline).await?;
            (id, 200, None, body)
        };
        let response = parse_response(&body, DEPTH_MAX).ok();
        let response = response.filter(|response| has_id(response, id.as_bytes()));
        let (reply, error) = match response.as_ref().map(|response| &response.outcome) {
            Some(Outcome::Result(result)) if status == 200 => return Ok(result.to_vec()),
            Some(Outcome::Error { code, message, .. }) => {
                let (code, broadcast) = (*code, false);
                (
                    CallOutcome::Error { status, retry_after, code, message, broadcast },
                    QueryError::ErrorResponse,
                )
            }
            _ => (CallOutcome::Http { status, retry_after }, QueryError::Poll(PollError::NoHead)),
        };
        Err(match classify(&reply) {
            Verdict::RateLimited { retry_after } => {
                QueryError::Poll(PollError::RateLimited { retry_after })
            }
            _ => error,
        })
    }

    async fn exchange(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, HttpResponse), QueryError> {
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connecting = upstream.connector.connect(&upstream.config, AddressKind::Http);
                Connection::new(
                    self.await_connection(connecting, deadline).await?,
                    new_parsed_heads(),
                )
            }
        };
        self.next_id += 1;
        let id = Decimal::new(self.next_id);
        let mut body = Vec::with_capacity(128);
        write_call(&mut body, id.as_bytes(), method, Some(params));
        let mut request = upstream.request_head.clone();
        request.extend_from_slice(format!("{}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(&body);
        let response = connection
            .exchange(&request, deadline, POLL_RESPONSE_BYTES_MAX, &mut Reservation::unlimited())
            .await
            .map_err(|_| QueryError::Poll(PollError::NoHead))?;
        if response.reusable && upstream.config.keep_alive {
            self.connection = Some(connection);
        }
        Ok((id, response))
    }

    async fn exchange_multiplexed(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, Bytes), QueryError> {
        let no_head = || QueryError::Poll(PollError::NoHead);
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let connection = match self.multiplexed.take().filter(|connection| connection.is_open()) {
            Some(connection) => connection,
            None => {
                let connecting = multiplexed_pool::open(&upstream.connector, &upstream.config);
                let opened = self.await_connection(connecting, deadline).await?;
                let OpenedStream { stream, websocket, read_ahead } = opened;
                let settings = multiplexed_connection::Settings {
                    response_bytes_max: POLL_RESPONSE_BYTES_MAX,
                    ping_interval: upstream.config.ping_interval,
                    on_notification: multiplexed_pool::ignore_notifications(),
                };
                let (connection, driver) =
                    MultiplexedConnection::new(stream, websocket, read_ahead, settings);
                tokio::task::spawn_local(driver);
                connection
            }
        };
        let call =
            connection.call(method, Some(params), Instant::now(), deadline).ok_or_else(no_head)?;
        let outcome = call.await;
        if outcome.is_err() {
            connection.retire();
        } else {
            self.multiplexed = Some(connection);
        }
        outcome.map_err(|_| no_head())
    }

    /// Waits for a connection. Logs the error once per outage, because errors of calls do not
    /// include it.
    async fn await_connection<T>(
        &mut self,
        connecting: impl Future<Output = io::Result<T>>,
        deadline: Instant,
    ) -> Result<T, QueryError> {
        let dialed = tokio::time::timeout_at(deadline, connecting).await;
        match dialed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(connected) => {
                self.outage_logged = false;
                Ok(connected)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.outage_logged, true) {
                    let upstream = &self.topology.upstreams[self.upstream];
                    tracing::warn!(upstream = &*upstream.config.name, %error, "cannot connect to upstream");
                }
                Err(QueryError::Poll(PollError::NoHead))
            }
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        if let Some(connection) = &self.multiplexed {
            connection.retire();
        }
    }
}

/// Parses the number, hash and parent's hash of a raw header.
fn parse_header(family: Family, raw: &[u8]) -> Option<(u64, [u8; 32], [u8; 32])> {
    if family == Family::Bitcoin {
        let [number, hash, parent] = walk::fields_of(raw, ["height", "hash", "previousblockhash"]);
        let digits = |raw: &[u8]| {
            let text = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            wire::hex::parse_hash_digits(text)
        };
        // The first block has no parent.
        let parent = parent.map_or(Some([0; 32]), digits)?;
        return Some((quantity::from_value(number?)?, digits(hash?)?, parent));
    }
    let [number, hash, parent] = walk::fields_of(raw, ["number", "hash", "parentHash"]);
    Some((quantity::from_value(number?)?, hash_from_value(hash?)?, hash_from_value(parent?)?))
}

#[cfg(test)]
mod tests {
    //! Goal: a poller drops a connection whose settings have changed. Method: a connection in
    //! memory, configurations in text, no task.

    use std::path::Path;

    use tokio::task::LocalSet;

    use super::*;
    use crate::config::Config;
    use crate::metrics::thread::{Counters, Labels};
    use crate::upstream::stream::Stream;
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
        let _here = tasks.enter();
        let on_event: OnEvent = Rc::new(|_, _| {});
        let mut watch = Watcher::default();
        watch.follow(&initial, &on_event);
        let mut poller = Poller::new(&watch.chains[0], 0);
        let stream = Stream::Memory(tokio::io::duplex(64).0);
        poller.connection = Some(Connection::new(stream, new_parsed_heads()));
        let heavier = reload(&initial, "weight = 2");
        watch.follow(&heavier, &on_event);
        poller.follow_config(&watch.chains[0]);
        assert!(Arc::ptr_eq(&poller.topology, &heavier) && poller.connection.is_some());
        watch.follow(&reload(&heavier, "weight = 2\nping_interval = '1s'"), &on_event);
        poller.follow_config(&watch.chains[0]);
        assert!(poller.connection.is_none());
    }
}
