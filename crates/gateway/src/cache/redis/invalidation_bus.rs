//! Messages between gateways over Redis pub/sub. The watch thread (`runtime/watch.rs`) sends and
//! receives the messages. A message reports a reorg, or a new generation of a chain's entries in
//! the Redis cache.
//!
//! A *generation* is a random number that Redis stores under `PREFIX:CHAIN:generation`. The number
//! is part of every other Redis key of the chain. So a new number invalidates all entries at once,
//! without a scan. Gateways read the generation every second, so without a message they learn of a
//! new generation at most a second later.
//!
//! A reorg needs no new generation, because each entry contains the hash of its block. The message
//! about a reorg only makes other gateways poll their upstreams at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::clients::SubscriberClient;
use fred::prelude::*;
use fred::types::{ConnectHandle, SetOptions};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cache::redis::client::{RedisClient, Role, builder};
use crate::cache::redis::message::{Message, parse};
use crate::cache::redis::{OutgoingMessage, SharedState, message};
use crate::config;
use crate::io::random::random_seed;
use crate::upstream::chain::ChainState;
use crate::upstream::topology::Topology;

/// Interval at which a gateway reads the generations.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a refresh, a publication or a subscription.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the subscriber reconnects.
const SUBSCRIBE_PAUSE: Duration = Duration::from_millis(500);

/// The tasks that send and receive messages under one configuration. Dropping the bus ends the
/// tasks.
pub(crate) struct InvalidationBus {
    tasks: Vec<AbortHandle>,
}

impl InvalidationBus {
    /// Starts the tasks. Returns `None` if Redis is not configured as a cache.
    pub(crate) fn start(
        topology: &Arc<Topology>,
        shared: Option<&Arc<SharedState>>,
    ) -> Option<InvalidationBus> {
        let (config, shared) = (topology.config.redis.clone()?, Arc::clone(shared?));
        let process_number = random_seed();
        let publisher = Publisher {
            redis: RedisClient::new(&config, Role::Primary, &topology.process),
            topology: Arc::clone(topology),
            shared: Arc::clone(&shared),
            process_number,
        };
        let mut tasks = vec![tokio::task::spawn_local(publisher.run()).abort_handle()];
        if config.messages {
            let receiver = receive(Arc::clone(topology), shared, config, process_number);
            tasks.push(tokio::task::spawn_local(receiver).abort_handle());
        }
        Some(InvalidationBus { tasks })
    }
}

impl Drop for InvalidationBus {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Refreshes generations and sends messages.
struct Publisher {
    topology: Arc<Topology>,
    shared: Arc<SharedState>,
    redis: RedisClient,
    /// The random number that identifies this process as a sender.
    process_number: u64,
}

impl Publisher {
    /// Sends queued messages. Refreshes the generations at intervals and after each wakeup.
    async fn run(self) {
        let mut refresh_at = Instant::now();
        loop {
            if self.redis.begin_due_probe(self.topology.now()) {
                let healthy = self.redis.probe().await;
                self.redis.record_probe(healthy, self.topology.now());
                if healthy {
                    refresh_at = Instant::now();
                }
            }
            let outgoing = self.shared.outbox.lock().pop_front();
            if let Some(outgoing) = outgoing {
                self.send(&outgoing).await;
                continue;
            }
            let probe_at = Instant::now() + self.redis.config.backoff;
            let wake_at = if self.redis.is_available() { refresh_at } else { probe_at };
            let is_notified = tokio::select! {
                () = self.shared.wakeup.notified() => true,
                () = tokio::time::sleep_until(wake_at) => false,
            };
            if is_notified || Instant::now() >= refresh_at {
                refresh_at = Instant::now() + REFRESH_INTERVAL;
                self.refresh().await;
            }
        }
    }

    /// Stores new generations in Redis, and reads the generations of all chains. Stops at the first
    /// chain whose refresh fails.
    async fn refresh(&self) {
        if !self.redis.is_available() {
            return;
        }
        for chain in &self.topology.chains {
            let refreshed = tokio::time::timeout(EXCHANGE_TIMEOUT, self.refresh_chain(chain)).await;
            match refreshed {
                Ok(Ok(())) => self.redis.record_success(),
                Ok(Err(_)) | Err(_) => {
                    self.redis.record_failure(self.topology.now());
                    return;
                }
            }
        }
    }

    /// Stores a new generation of a chain in Redis if this gateway has invalidated the old one.
    /// Then reads the stored generation.
    async fn refresh_chain(&self, chain: &ChainState) -> Result<(), Error> {
        let client = self.redis.client()?;
        let generation = &self.shared.generation_of(chain);
        let key = format!("{}:{}:generation", self.redis.config.prefix, chain.name);
        if generation.invalidated.load(Ordering::Acquire) {
            // The last three arguments mean no expiry, no condition, and that the old value is not
            // returned.
            let _: () = client.set(&key, to_hex(new_generation()), None, None, false).await?;
            generation.invalidated.store(false, Ordering::Release);
            self.shared.queue_message(&chain.name, message::Subject::Generation);
        } else {
            // At the first start, and after Redis was flushed, Redis has no number. NX (set only if
            // missing) keeps a number that another gateway has stored meanwhile.
            let known_number = generation.number.load(Ordering::Acquire);
            let number = if known_number == 0 { new_generation() } else { known_number };
            let _: Value =
                client.set(&key, to_hex(number), None, Some(SetOptions::NX), false).await?;
        }
        let stored: Option<String> = client.get(&key).await?;
        let stored_number = stored.and_then(|text| u64::from_str_radix(&text, 16).ok());
        // If another thread has invalidated the chain meanwhile, the number that was read is
        // outdated.
        if generation.invalidated.load(Ordering::Acquire) {
            return Ok(());
        }
        match stored_number.filter(|stored_number| *stored_number != 0) {
            Some(stored_number) => generation.number.store(stored_number, Ordering::Release),
            // Another program has overwritten the key with a value that is no generation.
            None => self.shared.invalidate(chain),
        }
        Ok(())
    }

    /// Publishes a message. If Redis is not available, the message is lost.
    async fn send(&self, outgoing: &OutgoingMessage) {
        if !self.redis.config.messages || !self.redis.is_available() {
            return;
        }
        let Ok(client) = self.redis.client() else { return };
        let message = Message {
            sender: self.process_number,
            chain: &outgoing.chain,
            subject: outgoing.subject,
        };
        let text = message.to_string();
        let sent = client.publish::<Value, _, _>(channel(&self.redis.config), text);
        if let Ok(Ok(_)) = tokio::time::timeout(EXCHANGE_TIMEOUT, sent).await {
            self.shared.messages_sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Subscribes and receives messages. Subscribes again after each failure.
async fn receive(
    topology: Arc<Topology>,
    shared: Arc<SharedState>,
    config: config::redis::Redis,
    process_number: u64,
) {
    loop {
        if let Ok(client) = builder(&config).build_subscriber_client() {
            let task = AbortOnDrop(client.connect());
            let subscribe = async {
                client.wait_for_connect().await?;
                client.subscribe(channel(&config)).await
            };
            if let Ok(Ok(())) = tokio::time::timeout(EXCHANGE_TIMEOUT, subscribe).await {
                listen(&topology, &shared, &client, &task.0, process_number).await;
            }
        }
        tokio::time::sleep(SUBSCRIBE_PAUSE).await;
    }
}

/// Aborts the client's connection task when it is dropped.
struct AbortOnDrop(ConnectHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Receives messages until the connection is lost.
async fn listen(
    topology: &Topology,
    shared: &SharedState,
    client: &SubscriberClient,
    task: &ConnectHandle,
    process_number: u64,
) {
    let mut messages = client.message_rx();
    let mut errors = client.error_rx();
    let mut check = tokio::time::interval(REFRESH_INTERVAL);
    loop {
        tokio::select! {
            received = messages.recv() => match received {
                Ok(message) => {
                    if let Some(bytes) = message.value.as_bytes() {
                        on_message(topology, shared, bytes, process_number);
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            // After any error, the caller subscribes again over a new connection.
            _ = errors.recv() => return,
            _ = check.tick() => if task.is_finished() { return },
        }
    }
}

/// Handles a message. Ignores malformed messages and messages of this process.
fn on_message(topology: &Topology, shared: &SharedState, bytes: &[u8], process_number: u64) {
    let message = parse(bytes).filter(|message| message.sender != process_number);
    let Some(message) = message else { return };
    shared.messages_received.fetch_add(1, Ordering::Relaxed);
    let chain_index = topology.chains.iter().position(|chain| &*chain.name == message.chain);
    let Some(chain_index) = chain_index else { return };
    match message.subject {
        message::Subject::Reorg { fork } => {
            tracing::debug!(chain = message.chain, fork, "another gateway reported a reorg");
            for upstream in &topology.config.chains[chain_index].upstreams {
                topology.upstreams[*upstream].poll_now.notify_one();
            }
        }
        message::Subject::Generation => shared.wakeup.notify_one(),
    }
}

/// Returns the name of the pub/sub channel.
fn channel(config: &config::redis::Redis) -> String {
    format!("{}:messages", config.prefix)
}

fn to_hex(generation: u64) -> String {
    format!("{generation:016x}")
}

/// Returns a random, nonzero number. Unlike a counter, it differs from all earlier numbers even
/// after Redis has lost its data.
fn new_generation() -> u64 {
    random_seed() | 1
}
