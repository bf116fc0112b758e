//! The watcher's own connection to one upstream: heads and headers asked for, one question at a
//! time.

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

use crate::io::memory::Hold;
use crate::policy::classify::{CallOutcome, Verdict, classify};
use crate::policy::contents::Contents;
use crate::policy::heads::HeadPoll;
use crate::upstream::dial::Way;
use crate::upstream::http1::{Connection, HttpAnswer, known_heads};
use crate::upstream::send::is_ours;
use crate::upstream::topology::Topology;
use crate::upstream::trunk::Trunk;
use crate::upstream::watch::Watched;
use crate::upstream::{multiplex, trunk};

/// A poll that takes longer than so many intervals counts as missed, within these bounds: on a
/// fast chain a silent upstream must not be waited for while others have new heads, and one that
/// needs seconds for a header is of no use to clients either.
const POLL_DEADLINE_INTERVALS: u32 = 4;
const POLL_DEADLINE_MIN: Duration = Duration::from_millis(500);
const POLL_DEADLINE_MAX: Duration = Duration::from_secs(2);
/// A header with many transaction hashes is some hundred kB; no honest one is larger than this.
const POLL_ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Nesting of an answer; headers have a handful of levels.
const DEPTH_MAX: usize = 64;

/// Why a poll brought no head.
pub(super) enum Missed {
    /// No answer came, or none that is a head.
    Silent,
    /// The upstream limits our rate.
    Limited { retry_after: Option<Duration> },
}

/// Why a question has no result.
pub(super) enum Refused {
    /// The upstream answered with an error.
    ByUpstream,
    /// It did not answer.
    Missed(Missed),
}

impl From<Refused> for Missed {
    fn from(refused: Refused) -> Missed {
        match refused {
            Refused::ByUpstream => Missed::Silent,
            Refused::Missed(missed) => missed,
        }
    }
}

/// The watcher's own connection to one upstream.
pub(super) struct Line {
    pub(super) topology: Arc<Topology>,
    /// Its index in that configuration.
    pub(super) upstream: usize,
    /// Its place among the chain's upstreams, under every configuration.
    pub(super) place: usize,
    connection: Option<Connection>,
    /// In place of it where the upstream has no HTTP address.
    trunk: Option<Rc<Trunk>>,
    next_id: u64,
    /// Whether it was told that the upstream cannot be reached; told once for each outage.
    told: bool,
}

impl Line {
    pub(super) fn to(watched: &Watched, place: usize) -> Line {
        let topology = watched.topology();
        let upstream = watched.upstream(&topology, place);
        Line { topology, upstream, place, connection: None, trunk: None, next_id: 0, told: false }
    }

    /// Continues under the configuration that holds now, over a new connection if the upstream's
    /// keys have changed.
    pub(super) fn turn_to(&mut self, watched: &Watched) {
        let topology = watched.topology();
        if Arc::ptr_eq(&topology, &self.topology) {
            return;
        }
        let upstream = watched.upstream(&topology, self.place);
        let (before, after) =
            (&self.topology.upstreams[self.upstream], &topology.upstreams[upstream]);
        if !after.config.connects_like(&before.config) {
            self.connection = None;
            if let Some(trunk) = self.trunk.take() {
                trunk.retire();
            }
        }
        (self.topology, self.upstream) = (topology, upstream);
    }

    /// Asks for the head and, where it is wanted and known, the finalized height.
    pub(super) async fn head(
        &mut self,
        family: Family,
        with_finalized: bool,
    ) -> Result<HeadPoll, Missed> {
        let result = match family {
            Family::Ethereum => self.ask("eth_getBlockByNumber", b"[\"latest\",false]").await?,
            Family::Harmony => {
                self.ask("hmyv2_getBlockByNumber", b"[\"latest\",{\"fullTx\":false}]").await?
            }
            Family::Bitcoin => self.bitcoin_head().await?,
        };
        let (number, hash, parent) = header(family, &result).ok_or(Missed::Silent)?;
        self.remember(hash, &result);
        let mut finalized = None;
        if family == Family::Ethereum && with_finalized {
            let answer = self.ask("eth_getBlockByNumber", b"[\"finalized\",false]").await;
            finalized = match answer {
                Ok(result) => header(family, &result).map(|(number, ..)| number),
                Err(Refused::ByUpstream) => None,
                Err(Refused::Missed(missed)) => return Err(missed),
            };
        }
        Ok(HeadPoll { number, hash, parent, finalized })
    }

    /// The header at `number`: its hash and its parent's.
    pub(super) async fn header(
        &mut self,
        family: Family,
        number: u64,
    ) -> Result<([u8; 32], [u8; 32]), Missed> {
        let mut params = Vec::with_capacity(32);
        let result = match family {
            Family::Ethereum => {
                params.extend_from_slice(b"[\"");
                quantity::write(&mut params, number);
                params.extend_from_slice(b"\",false]");
                self.ask("eth_getBlockByNumber", &params).await?
            }
            Family::Harmony => {
                params.push(b'[');
                quantity::write_decimal(&mut params, number);
                params.extend_from_slice(b",{\"fullTx\":false}]");
                self.ask("hmyv2_getBlockByNumber", &params).await?
            }
            Family::Bitcoin => {
                params.push(b'[');
                quantity::write_decimal(&mut params, number);
                params.push(b']');
                let hash = self.ask("getblockhash", &params).await?;
                self.bitcoin_header(&hash).await?
            }
        };
        let (found, hash, parent) = header(family, &result).ok_or(Missed::Silent)?;
        self.remember(hash, &result);
        if found == number { Ok((hash, parent)) } else { Err(Missed::Silent) }
    }

    /// Keeps what a header says of its block's logs and transactions.
    fn remember(&self, hash: [u8; 32], raw: &[u8]) {
        let chain = &self.topology.chains[self.topology.upstreams[self.upstream].config.chain];
        if chain.headers.read().has(&hash) {
            return;
        }
        if let Some(contents) = Contents::read(raw, self.topology.now()) {
            chain.headers.write().insert(hash, contents);
        }
    }

    async fn bitcoin_head(&mut self) -> Result<Vec<u8>, Refused> {
        let hash = self.ask("getbestblockhash", b"[]").await?;
        self.bitcoin_header(&hash).await
    }

    async fn bitcoin_header(&mut self, hash: &[u8]) -> Result<Vec<u8>, Refused> {
        let params = [b"[", hash, b"]"].concat();
        self.ask("getblockheader", &params).await
    }

    /// Asks one question and gives the raw result.
    pub(super) async fn ask(&mut self, method: &str, params: &[u8]) -> Result<Vec<u8>, Refused> {
        let chain = self.topology.upstreams[self.upstream].config.chain;
        let interval = self.topology.config.chains[chain].poll_interval;
        let patience = interval * POLL_DEADLINE_INTERVALS;
        let deadline = Instant::now() + patience.clamp(POLL_DEADLINE_MIN, POLL_DEADLINE_MAX);
        let reused = self.connection.is_some() || self.trunk.is_some();
        match self.ask_once(method, params, deadline).await {
            // An idle connection that was closed says nothing of the upstream.
            Err(Refused::Missed(Missed::Silent)) if reused => {
                self.ask_once(method, params, deadline).await
            }
            asked => asked,
        }
    }

    async fn ask_once(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<Vec<u8>, Refused> {
        let over_http = self.topology.upstreams[self.upstream].config.http().is_some();
        let (id, status, retry_after, body) = if over_http {
            let (id, answer) = self.exchange(method, params, deadline).await?;
            (id, answer.status, answer.retry_after, answer.body)
        } else {
            let (id, body) = self.exchange_over_trunk(method, params, deadline).await?;
            (id, 200, None, body)
        };
        let read = parse_response(&body, DEPTH_MAX);
        let read = read.ok().filter(|read| is_ours(read, id.as_bytes()));
        let (heard, missed) = match read.as_ref().map(|read| &read.outcome) {
            Some(Outcome::Result(result)) if status == 200 => return Ok(result.to_vec()),
            Some(Outcome::Error { code, message, .. }) => {
                let (code, broadcast) = (*code, false);
                (
                    CallOutcome::Error { status, retry_after, code, message, broadcast },
                    Refused::ByUpstream,
                )
            }
            _ => (CallOutcome::Http { status, retry_after }, Refused::Missed(Missed::Silent)),
        };
        Err(match classify(&heard) {
            Verdict::RateLimited { retry_after } => {
                Refused::Missed(Missed::Limited { retry_after })
            }
            _ => missed,
        })
    }

    async fn exchange(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, HttpAnswer), Refused> {
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let dialing = upstream.dial.connect(&upstream.config, Way::Http);
                Connection::new(self.connected(dialing, deadline).await?, known_heads())
            }
        };
        self.next_id += 1;
        let id = Decimal::new(self.next_id);
        let mut body = Vec::with_capacity(128);
        write_call(&mut body, id.as_bytes(), method, Some(params));
        let mut request = upstream.request_head.clone();
        request.extend_from_slice(format!("{}\r\n\r\n", body.len()).as_bytes());
        request.extend_from_slice(&body);
        let answer = connection
            .exchange(&request, deadline, POLL_ANSWER_BYTES_MAX, &mut Hold::apart())
            .await
            .map_err(|_| Refused::Missed(Missed::Silent))?;
        if answer.reusable && upstream.config.keep_alive {
            self.connection = Some(connection);
        }
        Ok((id, answer))
    }

    async fn exchange_over_trunk(
        &mut self,
        method: &str,
        params: &[u8],
        deadline: Instant,
    ) -> Result<(Decimal, Bytes), Refused> {
        let silent = || Refused::Missed(Missed::Silent);
        let topology = Arc::clone(&self.topology);
        let upstream = &topology.upstreams[self.upstream];
        let trunk = match self.trunk.take().filter(|trunk| trunk.is_open()) {
            Some(trunk) => trunk,
            None => {
                let dialing = multiplex::open(&upstream.dial, &upstream.config);
                let (stream, websocket, read) = self.connected(dialing, deadline).await?;
                let settings = trunk::Settings {
                    response_bytes_max: POLL_ANSWER_BYTES_MAX,
                    ping_interval: upstream.config.ping_interval,
                    notice: multiplex::ignored(),
                };
                let (trunk, driver) = Trunk::new(stream, websocket, read, settings);
                tokio::task::spawn_local(driver);
                trunk
            }
        };
        let call = trunk.call(method, Some(params), Instant::now(), deadline).ok_or_else(silent)?;
        let answered = call.await;
        if answered.is_err() {
            trunk.retire();
        } else {
            self.trunk = Some(trunk);
        }
        answered.map_err(|_| silent())
    }

    /// Connects, and says once in each outage why that is not possible: calls only tell their
    /// clients that it is not.
    async fn connected<T>(
        &mut self,
        dialing: impl Future<Output = io::Result<T>>,
        deadline: Instant,
    ) -> Result<T, Refused> {
        let dialed = tokio::time::timeout_at(deadline, dialing).await;
        match dialed.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(connected) => {
                self.told = false;
                Ok(connected)
            }
            Err(error) => {
                if !std::mem::replace(&mut self.told, true) {
                    let upstream = &self.topology.upstreams[self.upstream];
                    tracing::warn!(upstream = &*upstream.config.name, %error, "cannot connect to upstream");
                }
                Err(Refused::Missed(Missed::Silent))
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(trunk) = &self.trunk {
            trunk.retire();
        }
    }
}

/// Number, hash and parent's hash of a raw header.
fn header(family: Family, raw: &[u8]) -> Option<(u64, [u8; 32], [u8; 32])> {
    if family == Family::Bitcoin {
        let [number, hash, parent] = walk::fields_of(raw, ["height", "hash", "previousblockhash"]);
        let digits = |raw: &[u8]| {
            let text = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
            wire::hex::parse_hash_digits(text)
        };
        // The first block has no previous one.
        let parent = parent.map_or(Some([0; 32]), digits)?;
        return Some((quantity::from_value(number?)?, digits(hash?)?, parent));
    }
    let [number, hash, parent] = walk::fields_of(raw, ["number", "hash", "parentHash"]);
    Some((quantity::from_value(number?)?, hash_from_value(hash?)?, hash_from_value(parent?)?))
}

#[cfg(test)]
mod tests {
    //! Goal: polls leave a connection that was made under other keys of the upstream. Method: a
    //! connection in memory, configurations in text, no task.

    use std::path::Path;

    use tokio::task::LocalSet;

    use super::*;
    use crate::config::Config;
    use crate::metrics::thread::{Counters, Labels};
    use crate::upstream::stream::Stream;
    use crate::upstream::watch::{OnEvent, Watch};

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

    fn reload(before: &Topology, keys: &str) -> Arc<Topology> {
        let config = Arc::new(config(keys));
        let counters = counters(&config);
        before.reload(config, &counters)
    }

    #[tokio::test]
    async fn a_reload_keeps_the_connection_unless_keys_of_it_change() {
        let before = start("");
        let tasks = LocalSet::new();
        let _here = tasks.enter();
        let on_event: OnEvent = Rc::new(|_, _| {});
        let mut watch = Watch::default();
        watch.follow(&before, &on_event);
        let mut line = Line::to(&watch.chains[0], 0);
        let stream = Stream::Memory(tokio::io::duplex(64).0);
        line.connection = Some(Connection::new(stream, known_heads()));
        let heavier = reload(&before, "weight = 2");
        watch.follow(&heavier, &on_event);
        line.turn_to(&watch.chains[0]);
        assert!(Arc::ptr_eq(&line.topology, &heavier) && line.connection.is_some());
        watch.follow(&reload(&heavier, "weight = 2\nping_interval = '1s'"), &on_event);
        line.turn_to(&watch.chains[0]);
        assert!(line.connection.is_none());
    }
}
