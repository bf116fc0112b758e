//! The Redis client of one thread, with a circuit breaker.
//!
//! The client library (fred) pipelines commands, supports clusters and sentinels, and reads from
//! replicas. The library's client reconnects by itself, but it can hang on a replica that no longer
//! exists. So a probe closes a client that does not respond, and the next probe creates a new
//! client.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fred::prelude::*;
use fred::types::config::{Server, TlsConnector};
use fred::types::{ConnectHandle, Expiration};
use futures_util::future::try_join_all;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::config;
use crate::policy::availability::Finding;
use crate::policy::breaker::Breaker;
use crate::process::Process;

/// Timeout to connect, and timeout of the library's internal commands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of commands in the library client's queue. The breaker opens long before the
/// queue is full.
const QUEUED_COMMANDS_MAX: usize = 8192;
/// Maximum number of reconnects of a client. Afterwards a probe closes the client.
const RECONNECTS_MAX: u32 = 3;
/// Pause before each reconnect, in milliseconds.
const RECONNECT_PAUSE_MS: u32 = 100;
/// Longest wait of a probe for a connection.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longest time of [`check_redis`].
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The purpose of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Lookups and stores at the primary.
    Primary,
    /// Lookups at replicas.
    Replicas,
    /// The primary, for the scripts of shared limits and quotas.
    Scripts,
}

/// A client of Redis.
pub(super) struct RedisClient {
    pub(super) config: config::redis::Redis,
    role: Role,
    /// The library's client and its connection task; `None` before the first probe, and after a
    /// probe has failed.
    client: RefCell<Option<(Client, ConnectHandle)>>,
    breaker: RefCell<Breaker>,
    /// The end of a pause (`zones.rs`), by the clock of `Topology::now`. Before this time the
    /// client is not usable, even if the breaker is closed.
    usable_from: Cell<Duration>,
    loss: Rc<ConnectionLoss>,
    process: Arc<Process>,
}

/// Whether the connection was lost since the last successful probe.
#[derive(Default)]
struct ConnectionLoss {
    /// True if the connection was lost since the last successful probe.
    is_lost: Cell<bool>,
    /// Notified when the connection is lost.
    lost: Notify,
}

impl RedisClient {
    /// Creates a client that connects at its first probe.
    pub(super) fn new(
        config: &config::redis::Redis,
        role: Role,
        process: &Arc<Process>,
    ) -> RedisClient {
        RedisClient {
            breaker: RefCell::new(Breaker::new(config.failures_max, config.backoff)),
            config: config.clone(),
            role,
            client: RefCell::new(None),
            usable_from: Cell::new(Duration::ZERO),
            loss: Rc::default(),
            process: Arc::clone(process),
        }
    }

    /// Returns true if the breaker is closed.
    pub(super) fn is_available(&self) -> bool {
        self.breaker.borrow().is_closed()
    }

    /// Returns true if the breaker is closed and no pause is in effect.
    pub(super) fn is_usable(&self, now: Duration) -> bool {
        self.is_available() && now >= self.usable_from.get()
    }

    /// Pauses the use of the client until `until`.
    pub(super) fn pause_until(&self, until: Duration) {
        self.usable_from.set(until);
    }

    /// Records a success.
    pub(super) fn record_success(&self) {
        self.breaker.borrow_mut().record_success();
    }

    /// Records a failure. Returns true if the failure opened the breaker.
    pub(super) fn record_failure(&self, now: Duration) -> bool {
        let opened = self.breaker.borrow_mut().record_failure(now);
        if opened {
            self.report(Finding::Down);
        }
        opened
    }

    /// Returns true if the breaker is open and a probe is due. The caller must then run the probe.
    pub(super) fn begin_due_probe(&self, now: Duration) -> bool {
        self.breaker.borrow_mut().begin_due_probe(now)
    }

    /// Records the result of a probe.
    pub(super) fn record_probe(&self, healthy: bool, now: Duration) {
        self.breaker.borrow_mut().record_probe(healthy, now);
        self.report(if healthy { Finding::Up } else { Finding::ProbeFailed });
    }

    /// Logs that Redis is up or down, with the consequences, if no client has logged it before.
    fn report(&self, finding: Finding) {
        let is_replica = self.role == Role::Replicas;
        let (redis, reported) = (self.config.url.to_string(), &self.process.redis);
        let news = reported[usize::from(is_replica)].lock().record(&redis, finding);
        let Some(is_up) = news else { return };
        match (is_up, is_replica) {
            (true, false) => {
                tracing::info!(redis, "redis is up: gateways share what is configured")
            }
            (false, false) => tracing::warn!(
                redis,
                "redis is down: calls are served, responses are cached in memory only, and shared \
                 limits and quotas apply this gateway's share; redis is tried again"
            ),
            (true, true) => tracing::info!(redis, "redis replicas are up: they serve lookups"),
            (false, true) => tracing::warn!(
                redis,
                "redis replicas are down: the primary serves lookups; the replicas are tried again"
            ),
        }
    }

    /// Returns true if Redis responds within the configured timeout. Closes a client that does not
    /// respond at all.
    pub(super) async fn probe(&self) -> bool {
        // Only the second response is timed, because the first may include the time to connect.
        if !self.ensure_connected().await {
            return false;
        }
        let timed_response = self.get(vec![self.probe_key()]);
        let timed_response = tokio::time::timeout(self.config.timeout, timed_response).await;
        matches!(timed_response, Ok(Ok(_)))
    }

    /// Connects if there is no connection. Returns true if Redis responds. Otherwise closes the
    /// client, so that the next attempt opens another connection.
    pub(super) async fn ensure_connected(&self) -> bool {
        if self.client.borrow().is_none() {
            self.connect();
        }
        let response = self.get(vec![self.probe_key()]);
        let responds = matches!(tokio::time::timeout(PROBE_TIMEOUT, response).await, Ok(Ok(_)));
        if responds {
            self.loss.is_lost.set(false);
        } else {
            self.close();
        }
        responds
    }

    /// Returns the key that probes read.
    fn probe_key(&self) -> String {
        format!("{}:probe", self.config.prefix)
    }

    /// Returns the value of each key, in the order of the keys; `None` for a key without a value.
    pub(super) async fn get(&self, names: Vec<String>) -> Result<Vec<Option<Bytes>>, Error> {
        let client = self.client()?;
        let values: Vec<Value> = match (self.role, self.config.url.is_cluster()) {
            // In a cluster each key belongs to a node. The client sends all waiting commands to a
            // node in one write.
            (Role::Primary | Role::Scripts, true) => {
                try_join_all(names.into_iter().map(|name| client.get(name))).await?
            }
            (Role::Replicas, true) => {
                let replicas = client.replicas();
                try_join_all(names.into_iter().map(|name| replicas.get(name))).await?
            }
            (Role::Primary | Role::Scripts, false) => client.mget(names).await?,
            (Role::Replicas, false) => {
                // Without a cluster, the client addresses replicas through their primary.
                let replicas = client.replicas();
                match replicas.nodes().into_values().next() {
                    Some(primary) => {
                        let options = Options { cluster_node: Some(primary), ..Options::default() };
                        replicas.with_options(&options).mget(names).await?
                    }
                    None => client.mget(names).await?,
                }
            }
        };
        Ok(values.into_iter().map(Value::into_bytes).collect())
    }

    /// Sets a key to a value that expires after `ttl`.
    pub(super) async fn set(
        &self,
        name: String,
        value: Vec<u8>,
        ttl: Duration,
    ) -> Result<(), Error> {
        let ttl = Expiration::PX(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
        // The last two arguments mean that the write has no condition, and that the old value is
        // not returned.
        self.client()?.set(name, Bytes::from(value), Some(ttl), None, false).await
    }

    /// Returns the library's client, which may still be connecting.
    pub(super) fn client(&self) -> Result<Client, Error> {
        let client = self.client.borrow().as_ref().map(|(client, _)| client.clone());
        client.ok_or_else(|| Error::new(ErrorKind::IO, "not connected"))
    }

    /// Runs `command`. Fails at once if the connection is already lost, or if it is lost while the
    /// command runs. Waiting for a reconnect would take too long. In a cluster, the loss of one
    /// connection counts as the loss of all.
    pub(super) async fn run_while_connected<T>(
        &self,
        command: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let lost_error = || Err(Error::new(ErrorKind::IO, "the connection was lost"));
        if self.loss.is_lost.get() {
            return lost_error();
        }
        tokio::select! {
            biased;
            result = command => result,
            () = self.loss.lost.notified() => lost_error(),
        }
    }

    /// Creates the library's client, which connects in the background.
    fn connect(&self) {
        match builder(&self.config).build() {
            Ok(client) => {
                tokio::task::spawn_local(record_losses(
                    client.error_rx(),
                    Rc::downgrade(&self.loss),
                ));
                let task = client.connect();
                *self.client.borrow_mut() = Some((client, task));
            }
            // The URL is already validated, so only a limit of the library can cause this error.
            Err(error) => tracing::error!(kind = ?error.kind(), "cannot make a redis client"),
        }
    }

    fn close(&self) {
        if let Some((_, task)) = self.client.borrow_mut().take() {
            task.abort();
        }
    }
}

impl Drop for RedisClient {
    fn drop(&mut self) {
        self.close();
    }
}

/// Records each connection loss that the library's client reports, until that client or `loss` is
/// dropped.
async fn record_losses(mut errors: Receiver<(Error, Option<Server>)>, loss: Weak<ConnectionLoss>) {
    while !matches!(errors.recv().await, Err(RecvError::Closed)) {
        let Some(loss) = loss.upgrade() else { return };
        loss.is_lost.set(true);
        loss.lost.notify_waiters();
    }
}

/// Connects to Redis as the gateway does and reads one key. Returns the time of the read.
///
/// # Errors
/// The reason why the gateway cannot use the Redis, in the words of Redis where it responds.
pub async fn check_redis(config: &config::redis::Redis) -> Result<Duration, String> {
    let client = builder(config).build().map_err(|error| error.to_string())?;
    let read = async {
        let task = client.init().await?;
        let start = Instant::now();
        let _value: Value = client.get(format!("{}:probe", config.prefix)).await?;
        task.abort();
        Ok(start.elapsed())
    };
    let timed_read = tokio::time::timeout(CHECK_TIMEOUT, read).await;
    let result: Result<Duration, Error> =
        timed_read.map_err(|_| format!("no response within {CHECK_TIMEOUT:?}"))?;
    result.map_err(|error| error.to_string())
}

/// Builds a client with the gateway's settings.
pub(super) fn builder(config: &config::redis::Redis) -> Builder {
    let mut client = config.url.client();
    client.tls = config.tls.as_ref().map(|tls| {
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(&tls.client));
        TlsConnector::from(connector).into()
    });
    let mut builder = Builder::from_config(client);
    builder
        .with_connection_config(|connection| {
            connection.connection_timeout = CONNECT_TIMEOUT;
            connection.internal_command_timeout = CONNECT_TIMEOUT;
            // The response to a retried command would come too late.
            connection.max_command_attempts = 1;
            connection.max_command_buffer_len = QUEUED_COMMANDS_MAX;
            connection.tcp.nodelay = Some(true);
            // Connections to replicas are opened in advance, because a lookup that waits for a
            // connection delays all other lookups.
            connection.replica.lazy_connections = false;
        })
        .with_performance_config(|performance| {
            performance.default_command_timeout = CONNECT_TIMEOUT;
        })
        .set_policy(ReconnectPolicy::new_constant(RECONNECTS_MAX, RECONNECT_PAUSE_MS));
    builder
}
