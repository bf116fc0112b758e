//! One thread's connection to Redis: the client, and the breaker before it.
//!
//! The client (fred) pipelines, follows clusters and sentinels and reads from replicas. When it is
//! lost a probe finds it so, and it is made anew rather than trusted to find its way back: a client
//! that waits for a replica which is gone serves nobody meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fred::prelude::*;
use fred::types::config::{Server, TlsConnector};
use fred::types::{ConnectHandle, Expiration};
use futures_util::future::try_join_all;
use tokio::sync::Notify;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::config;
use crate::policy::breaker::Breaker;

/// Time to connect, and for the client's own commands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Commands that wait within the client; breakers open long before.
const COMMANDS_MAX: usize = 8192;
/// A connection that was lost is tried again so often and with these pauses, milliseconds, before
/// the client gives up and a probe replaces it.
const RECONNECTS_MAX: u32 = 3;
const RECONNECT_PAUSE_MS: u32 = 100;
/// How long a probe waits for a connection.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_millis(1500);

/// What a line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Primary,
    Replicas,
    /// The primary, for scripts that judge calls.
    Judge,
}

pub(super) struct Line {
    pub(super) config: config::redis::Redis,
    role: Role,
    client: RefCell<Option<(Client, ConnectHandle)>>,
    breaker: RefCell<Breaker>,
    /// Until when it is not used although it could be.
    until: Cell<Duration>,
    loss: Rc<Loss>,
}

/// Whether the connection was lost since the last probe.
#[derive(Default)]
struct Loss {
    has_come: Cell<bool>,
    told: Notify,
}

impl Line {
    /// A line that is not connected before its first probe.
    pub(super) fn new(config: &config::redis::Redis, role: Role) -> Line {
        Line {
            breaker: RefCell::new(Breaker::new(config.failures_max, config.backoff)),
            config: config.clone(),
            role,
            client: RefCell::new(None),
            until: Cell::new(Duration::ZERO),
            loss: Rc::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.breaker.borrow().is_closed()
    }

    /// Whether it is closed and may be used by now.
    pub(super) fn is_usable(&self, now: Duration) -> bool {
        self.is_closed() && now >= self.until.get()
    }

    /// Leaves it unused until then.
    pub(super) fn wait_until(&self, until: Duration) {
        self.until.set(until);
    }

    pub(super) fn succeeded(&self) {
        self.breaker.borrow_mut().succeeded();
    }

    /// Notes a failure; whether that opened the breaker.
    pub(super) fn failed(&self, now: Duration) -> bool {
        let opened = self.breaker.borrow_mut().failed(now);
        if opened {
            tracing::warn!(redis = %self.config.url, role = ?self.role, "redis is left alone");
        }
        opened
    }

    pub(super) fn probe_due(&self, now: Duration) -> bool {
        self.breaker.borrow_mut().probe_due(now)
    }

    pub(super) fn probed(&self, well: bool, now: Duration) {
        self.breaker.borrow_mut().probed(well, now);
        if well {
            tracing::info!(redis = %self.config.url, role = ?self.role, "redis is used");
        }
    }

    /// Whether it answers in time; connects anew if it does not answer at all.
    pub(super) async fn probe(&self) -> bool {
        let key = || format!("{}:probe", self.config.prefix);
        if self.client.borrow().is_none() {
            self.connect();
        }
        // The first answer may include connecting; the second one is timed.
        let warm = tokio::time::timeout(PROBE_PATIENCE, self.get(vec![key()])).await;
        if !matches!(warm, Ok(Ok(_))) {
            self.close();
            return false;
        }
        self.loss.has_come.set(false);
        let timed = tokio::time::timeout(self.config.timeout, self.get(vec![key()])).await;
        matches!(timed, Ok(Ok(_)))
    }

    /// The values of these keys, in their order.
    pub(super) async fn get(&self, names: Vec<String>) -> Result<Vec<Option<Bytes>>, Error> {
        let client = self.client()?;
        let values: Vec<Value> = match (self.role, self.config.url.is_cluster()) {
            // The client writes what is ready in one go, each key to its own upstream.
            (Role::Primary | Role::Judge, true) => {
                try_join_all(names.into_iter().map(|name| client.get(name))).await?
            }
            (Role::Replicas, true) => {
                let replicas = client.replicas();
                try_join_all(names.into_iter().map(|name| replicas.get(name))).await?
            }
            (Role::Primary | Role::Judge, false) => client.mget(names).await?,
            (Role::Replicas, false) => {
                // Outside of a cluster the client finds replicas only by their primary's name.
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

    /// Sets a key for so long.
    pub(super) async fn set(
        &self,
        name: String,
        value: Vec<u8>,
        ttl: Duration,
    ) -> Result<(), Error> {
        let ttl = Expiration::PX(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
        self.client()?.set(name, Bytes::from(value), Some(ttl), None, false).await
    }

    /// The client, connected or on its way.
    pub(super) fn client(&self) -> Result<Client, Error> {
        let client = self.client.borrow().as_ref().map(|(client, _)| client.clone());
        client.ok_or_else(|| Error::new(ErrorKind::IO, "not connected"))
    }

    /// What `asked` gives, unless the connection is lost before, or was: who waits for another one
    /// comes too late. In a cluster one lost connection counts as all.
    pub(super) async fn while_connected<T>(
        &self,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let lost = || Err(Error::new(ErrorKind::IO, "the connection was lost"));
        if self.loss.has_come.get() {
            return lost();
        }
        tokio::select! {
            biased;
            given = asked => given,
            () = self.loss.told.notified() => lost(),
        }
    }

    fn connect(&self) {
        match builder(&self.config).build() {
            Ok(client) => {
                tokio::task::spawn_local(listen(client.error_rx(), Rc::downgrade(&self.loss)));
                let task = client.connect();
                *self.client.borrow_mut() = Some((client, task));
            }
            // The URL was checked; what is left are bounds of the client's own.
            Err(error) => tracing::error!(kind = ?error.kind(), "cannot make a redis client"),
        }
    }

    fn close(&self) {
        if let Some((_, task)) = self.client.borrow_mut().take() {
            task.abort();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.close();
    }
}

/// Notes each loss that a client tells, for as long as both are there.
async fn listen(mut told: Receiver<(Error, Option<Server>)>, loss: Weak<Loss>) {
    while !matches!(told.recv().await, Err(RecvError::Closed)) {
        let Some(loss) = loss.upgrade() else { return };
        loss.has_come.set(true);
        loss.told.notify_waiters();
    }
}

/// How every client of ours is set up.
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
            // A lookup that is repeated comes too late.
            connection.max_command_attempts = 1;
            connection.max_command_buffer_len = COMMANDS_MAX;
            connection.tcp.nodelay = Some(true);
            // Connected beforehand: a lookup that waits for a connection holds up all others.
            connection.replica.lazy_connections = false;
        })
        .with_performance_config(|performance| {
            performance.default_command_timeout = CONNECT_TIMEOUT;
        })
        .set_policy(ReconnectPolicy::new_constant(RECONNECTS_MAX, RECONNECT_PAUSE_MS));
    builder
}
