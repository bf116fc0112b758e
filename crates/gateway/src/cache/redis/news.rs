//! The invalidation bus between gateways, on the watch thread: the generation of each chain, and
//! reorgs.
//!
//! A generation is a random number under the key `PREFIX:CHAIN:generation` and part of every other
//! key of the chain. Replacing it invalidates all entries at once, without a scan. Gateways read it
//! every second, so a lost message costs at most a second. Reorgs need no new generation, because
//! entries contain their block's hash. They are announced so that other gateways poll their
//! upstreams at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::clients::SubscriberClient;
use fred::prelude::*;
use fred::types::{ConnectHandle, SetOptions};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::cache::redis::line::{Line, Role, builder};
use crate::cache::redis::message::{Message, read};
use crate::cache::redis::{Common, Outgoing, message};
use crate::config;
use crate::io::random::random_seed;
use crate::upstream::chain::ChainState;
use crate::upstream::topology::Topology;

/// How often generations are read.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a read or a publication.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before the subscriber reconnects.
const SUBSCRIBE_PAUSE: Duration = Duration::from_millis(500);

/// The tasks of the bus under one configuration. Dropping it ends them.
pub(crate) struct News {
    tasks: Vec<AbortHandle>,
}

impl News {
    /// Starts the bus. Returns `None` without Redis.
    pub(crate) fn start(topology: &Arc<Topology>, common: Option<&Arc<Common>>) -> Option<News> {
        let (config, common) = (topology.config.redis.clone()?, Arc::clone(common?));
        let (sender, tell_reorgs) = (random_seed(), config.tell_reorgs);
        let speaker = Speaker {
            line: Line::new(&config, Role::Primary),
            topology: Arc::clone(topology),
            config: config.clone(),
            common: Arc::clone(&common),
            sender,
        };
        let mut tasks = vec![tokio::task::spawn_local(speaker.run()).abort_handle()];
        if tell_reorgs {
            let hear = hear(Arc::clone(topology), common, config, sender);
            tasks.push(tokio::task::spawn_local(hear).abort_handle());
        }
        Some(News { tasks })
    }
}

impl Drop for News {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

struct Speaker {
    topology: Arc<Topology>,
    config: config::redis::Redis,
    common: Arc<Common>,
    line: Line,
    sender: u64,
}

impl Speaker {
    async fn run(self) {
        let mut look_at = Instant::now();
        loop {
            if self.line.probe_due(self.topology.now()) {
                let well = self.line.probe().await;
                self.line.probed(well, self.topology.now());
                if well {
                    look_at = Instant::now();
                }
            }
            let told = self.common.outbox.lock().pop_front();
            if let Some(told) = told {
                self.send(&told).await;
                continue;
            }
            let probe_at = Instant::now() + self.config.backoff;
            let wake_at = if self.line.is_closed() { look_at } else { probe_at };
            let woken = tokio::select! {
                () = self.common.look.notified() => true,
                () = tokio::time::sleep_until(wake_at) => false,
            };
            if woken || Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_INTERVAL;
                self.look().await;
            }
        }
    }

    /// Refreshes the generations of all chains.
    async fn look(&self) {
        if !self.line.is_closed() {
            return;
        }
        for chain in &self.topology.chains {
            let looked = tokio::time::timeout(PATIENCE, self.look_at(chain)).await;
            match looked {
                Ok(Ok(())) => self.line.succeeded(),
                Ok(Err(_)) | Err(_) => {
                    self.line.failed(self.topology.now());
                    return;
                }
            }
        }
    }

    async fn look_at(&self, chain: &ChainState) -> Result<(), Error> {
        let client = self.line.client()?;
        let mark = &self.common.mark(chain);
        let name = format!("{}:{}:generation", self.config.prefix, chain.name);
        if mark.voided.load(Ordering::Acquire) {
            let _: () = client.set(&name, shown(new_generation()), None, None, false).await?;
            mark.voided.store(false, Ordering::Release);
            self.common.tell(&chain.name, message::News::Generation);
        } else {
            // The first gateway creates the generation, as does the first one after a flush.
            let known = mark.generation.load(Ordering::Acquire);
            let first = if known == 0 { new_generation() } else { known };
            let _: Value =
                client.set(&name, shown(first), None, Some(SetOptions::NX), false).await?;
        }
        let stored: Option<String> = client.get(&name).await?;
        let read = stored.and_then(|text| u64::from_str_radix(&text, 16).ok());
        if mark.voided.load(Ordering::Acquire) {
            return Ok(());
        }
        match read.filter(|read| *read != 0) {
            Some(read) => mark.generation.store(read, Ordering::Release),
            // The key was overwritten by something else, so all entries are invalidated.
            None => self.common.void(chain),
        }
        Ok(())
    }

    async fn send(&self, told: &Outgoing) {
        if !self.config.tell_reorgs || !self.line.is_closed() {
            return;
        }
        let Ok(client) = self.line.client() else { return };
        let text = Message { sender: self.sender, chain: &told.chain, news: told.news }.to_string();
        let sent = client.publish::<Value, _, _>(channel(&self.config), text);
        if let Ok(Ok(_)) = tokio::time::timeout(PATIENCE, sent).await {
            self.common.messages_sent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Receives messages and reconnects after each failure.
async fn hear(
    topology: Arc<Topology>,
    common: Arc<Common>,
    config: config::redis::Redis,
    sender: u64,
) {
    loop {
        if let Ok(client) = builder(&config).build_subscriber_client() {
            let task = Connected(client.connect());
            let subscribe = async {
                client.wait_for_connect().await?;
                client.subscribe(channel(&config)).await
            };
            if let Ok(Ok(())) = tokio::time::timeout(PATIENCE, subscribe).await {
                listen(&topology, &common, &client, &task.0, sender).await;
            }
        }
        tokio::time::sleep(SUBSCRIBE_PAUSE).await;
    }
}

/// Aborts the client's task when it is dropped.
struct Connected(ConnectHandle);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Receives messages until the connection is lost.
async fn listen(
    topology: &Topology,
    common: &Common,
    client: &SubscriberClient,
    task: &ConnectHandle,
    sender: u64,
) {
    let mut messages = client.message_rx();
    let mut lost = client.error_rx();
    let mut look = tokio::time::interval(LOOK_INTERVAL);
    loop {
        tokio::select! {
            heard = messages.recv() => match heard {
                Ok(message) => {
                    if let Some(bytes) = message.value.as_bytes() {
                        on_message(topology, common, bytes, sender);
                    }
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            // After any error, a new connection subscribes again.
            _ = lost.recv() => return,
            _ = look.tick() => if task.is_finished() { return },
        }
    }
}

fn on_message(topology: &Topology, common: &Common, bytes: &[u8], own: u64) {
    let Some(message) = read(bytes).filter(|message| message.sender != own) else { return };
    common.messages_heard.fetch_add(1, Ordering::Relaxed);
    let found = topology.chains.iter().position(|chain| &*chain.name == message.chain);
    let Some(chain) = found else { return };
    match message.news {
        message::News::Reorg { fork } => {
            tracing::debug!(chain = message.chain, fork, "another gateway saw a reorg");
            for upstream in &topology.config.chains[chain].upstreams {
                topology.upstreams[*upstream].suspected.notify_one();
            }
        }
        message::News::Generation => common.look.notify_one(),
    }
}

fn channel(config: &config::redis::Redis) -> String {
    format!("{}:news", config.prefix)
}

fn shown(generation: u64) -> String {
    format!("{generation:016x}")
}

/// Returns a random, nonzero number. Randomness avoids reuse after Redis has lost the old number.
fn new_generation() -> u64 {
    random_seed() | 1
}
