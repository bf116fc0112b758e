//! Subscriptions: `newHeads`, `logs` and `newPendingTransactions` as in geth
//! (`eth/filters/api.go`). The method names start with `eth_` or, as on Harmony, with `hmy_`.
//!
//! A [`World`] is the simulated chain with all its branches. A [`View`] is the part of it that a
//! node has at one instant. A subscription polls the view of its node and reports the changes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep_until};
use wire::call::{Body, Call};

use super::outgoing::Outgoing;
use crate::node::{Delivery, LIMITS, Node};
use crate::rpc::{self, Reply, RpcError, View};
use crate::world::World;

/// Interval at which a subscription polls the chain.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum number of subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 1024;

/// The subscriptions of one connection.
#[derive(Default)]
pub(super) struct Subscriptions {
    tasks: JoinSet<()>,
    by_id: HashMap<String, AbortHandle>,
    /// Number of subscription ids assigned so far. The next id is this number plus one.
    ids_used: u64,
}

impl Subscriptions {
    /// Responds to a message that subscribes or unsubscribes, and starts or ends the subscription.
    /// Returns `None` for any other message.
    pub(super) fn respond(
        &mut self,
        node: &Arc<Node>,
        message: &[u8],
        outgoing: &mpsc::Sender<Outgoing>,
    ) -> Option<Delivery> {
        // Most messages are other calls. This check avoids decoding them.
        memchr::memmem::find(message, b"subscribe")?;
        let Ok(Body::Single(Ok(call))) = wire::call::decode(message, &LIMITS) else { return None };
        let id = call.id?;
        let world = node.world()?;
        if node.settings().unsupported.contains(&*call.method) {
            return None;
        }
        let outcome = match &*call.method {
            "eth_subscribe" => self.subscribe(node, world, &call, "eth", outgoing),
            "hmy_subscribe" => self.subscribe(node, world, &call, "hmy", outgoing),
            "eth_unsubscribe" | "hmy_unsubscribe" => self.unsubscribe(&call),
            _ => return None,
        };
        let mut body = Vec::new();
        match outcome {
            Ok(result) => {
                wire::response::write_result(&mut body, id, result.to_string().as_bytes())
            }
            Err(error) => wire::response::write_error_raw(&mut body, id, &error.to_json()),
        }
        // A WebSocket or Unix socket sends only the body.
        let content_type = "application/json";
        Some(Delivery::Whole { status: 200, content_type, retry_after_s: None, body: body.into() })
    }

    /// Starts a subscription and returns its id.
    fn subscribe(
        &mut self,
        node: &Arc<Node>,
        world: &Arc<World>,
        call: &Call<'_>,
        namespace: &'static str,
        outgoing: &mpsc::Sender<Outgoing>,
    ) -> Result<Value, RpcError> {
        if self.by_id.len() >= SUBSCRIPTIONS_MAX {
            return Err(RpcError::new(-32000, "too many subscriptions"));
        }
        let kind = first_parameter(call)?;
        self.ids_used += 1;
        let id = format!("0x{:x}", self.ids_used);
        let (node, world, outgoing) = (Arc::clone(node), Arc::clone(world), outgoing.clone());
        let subscription = Subscription {
            node,
            world,
            outgoing,
            namespace,
            id: id.clone(),
            notification_count: 0,
            delayed: VecDeque::new(),
        };
        let task = match &*kind {
            "newHeads" => self.tasks.spawn(subscription.send_blocks(Content::Heads)),
            "logs" => {
                let filter = read_filter(call)?;
                self.tasks.spawn(subscription.send_blocks(Content::Logs(filter)))
            }
            "newPendingTransactions" => self.tasks.spawn(subscription.send_pending()),
            _ => {
                let message = format!("no \"{kind}\" subscription in {namespace} namespace");
                return Err(RpcError::new(-32601, message));
            }
        };
        self.by_id.insert(id.clone(), task);
        Ok(id.into())
    }

    fn unsubscribe(&mut self, call: &Call<'_>) -> Result<Value, RpcError> {
        let task = self.by_id.remove(&first_parameter(call)?);
        task.ok_or_else(|| RpcError::new(-32000, "subscription not found"))?.abort();
        Ok(true.into())
    }
}

/// Reads the first parameter, which must be a string.
fn first_parameter(call: &Call<'_>) -> Result<String, RpcError> {
    let params: Option<Value> = call.params.raw().and_then(|raw| serde_json::from_slice(raw).ok());
    let first = params.as_ref().and_then(|params| params[0].as_str());
    first.map(str::to_owned).ok_or_else(|| RpcError::new(-32602, "invalid params"))
}

/// Reads the second parameter of a subscription to logs: an optional object with `address` and
/// `topics`.
fn read_filter(call: &Call<'_>) -> Result<Map<String, Value>, RpcError> {
    let params: Option<Value> = call.params.raw().and_then(|raw| serde_json::from_slice(raw).ok());
    let mut filter = match params.as_ref().and_then(|params| params.get(1)) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(filter)) => filter.clone(),
        Some(_) => return Err(RpcError::new(-32602, "invalid params")),
    };
    filter.retain(|name, _| name == "address" || name == "topics");
    Ok(filter)
}

/// The content that a subscription sends for each block.
enum Content {
    /// The header.
    Heads,
    /// The logs that match this filter.
    Logs(Map<String, Value>),
}

/// One subscription.
struct Subscription {
    node: Arc<Node>,
    world: Arc<World>,
    outgoing: mpsc::Sender<Outgoing>,
    /// The prefix of the method names: `eth` or `hmy`.
    namespace: &'static str,
    id: String,
    /// Number of notifications so far, including lost notifications.
    notification_count: u64,
    /// Delayed notifications, each with the time at which it is sent.
    delayed: VecDeque<(Instant, Bytes)>,
}

impl Subscription {
    /// Sends the header or the logs of every new block of the node's view. If a reorg drops a
    /// block, sends its logs again, marked as removed.
    async fn send_blocks(mut self, content: Content) {
        let Some(mut view) = self.node.view(Instant::now()) else { return };
        loop {
            if !self.sleep_until_poll().await {
                return;
            }
            let new_view = self.node.view(Instant::now());
            // A muted node sends nothing. When it is no longer muted, it sends the blocks that it
            // has missed.
            if self.node.settings().mute_subscriptions {
                continue;
            }
            let Some(new_view) = new_view else { continue };
            let (old_head, head) = (view.head, new_view.head);
            // The hash of block `number` while `head` is the newest block.
            let hash_at = |head, number| self.world.hash_at(head, number);
            // The last block that both views have.
            let mut fork = old_head.min(head);
            while fork > 0 && hash_at(old_head, fork) != hash_at(head, fork) {
                fork -= 1;
            }
            let dropped =
                (fork + 1..=old_head).rev().filter_map(|number| hash_at(old_head, number));
            let dropped_hashes: Vec<_> = dropped.map(|hash| hash.to_string()).collect();
            let added = (fork + 1..=head).filter_map(|number| hash_at(head, number));
            let added_hashes: Vec<_> = added.map(|hash| hash.to_string()).collect();
            for (hashes, view, removed) in
                [(dropped_hashes, &view, true), (added_hashes, &new_view, false)]
            {
                for hash in hashes {
                    for result in self.notification_results(&content, view, &hash, removed) {
                        if !self.notify(&result).await {
                            return;
                        }
                    }
                }
            }
            view = new_view;
        }
    }

    /// Returns the `result` members of the notifications about a block of `view`. `removed` is true
    /// if a reorg has dropped the block.
    fn notification_results(
        &self,
        content: &Content,
        view: &View,
        hash: &str,
        removed: bool,
    ) -> Vec<Vec<u8>> {
        let call = |method, params: String| match rpc::respond(
            &self.world,
            view,
            method,
            Some(params.as_bytes()),
        ) {
            Reply::Result(result) => Some(result),
            _ => None,
        };
        match content {
            Content::Heads if removed => Vec::new(),
            Content::Heads => {
                let block = call("eth_getBlockByHash", format!("[\"{hash}\",false]"));
                block.map(|block| wire::block::header_from_block(&block)).into_iter().collect()
            }
            Content::Logs(filter) => {
                let mut filter = filter.clone();
                filter.insert("blockHash".to_owned(), hash.into());
                let logs = call("eth_getLogs", json!([filter]).to_string()).unwrap_or_default();
                let mut logs: Vec<Value> = serde_json::from_slice(&logs).unwrap_or_default();
                logs.iter_mut().for_each(|log| log["removed"] = removed.into());
                logs.iter().map(|log| log.to_string().into_bytes()).collect()
            }
        }
    }

    /// Sends every transaction that is added to the pool.
    async fn send_pending(mut self) {
        // Number of transactions ever added to the pool, up to the last poll.
        let mut added = self.world.pool_added();
        loop {
            if !self.sleep_until_poll().await {
                return;
            }
            if self.node.settings().mute_subscriptions {
                continue;
            }
            let (new_added, hashes) = self.world.pool_added_since(added);
            added = new_added;
            for hash in hashes {
                if !self.notify(format!("\"{hash}\"").as_bytes()).await {
                    return;
                }
            }
        }
    }

    /// Sleeps until the next poll of the chain, and sends delayed notifications. Returns true if
    /// the connection is still open.
    async fn sleep_until_poll(&mut self) -> bool {
        let next_poll = Instant::now() + POLL_INTERVAL;
        while let Some(&(due, _)) = self.delayed.front().filter(|(due, _)| *due <= next_poll) {
            sleep_until(due).await;
            let Some((_, body)) = self.delayed.pop_front() else { break };
            if !self.send(body).await {
                return false;
            }
        }
        sleep_until(next_poll).await;
        true
    }

    /// Sends a notification. The node's settings may delay, duplicate or lose it. Returns true if
    /// the connection is still open.
    async fn notify(&mut self, result: &[u8]) -> bool {
        let faults = self.node.settings().notifications;
        self.notification_count += 1;
        let body = self.encode(result);
        // `copies` is 0 for a lost notification, and 2 for a duplicated one.
        for _ in 0..faults.copies(self.notification_count) {
            if !faults.delay.is_zero() {
                self.delayed.push_back((Instant::now() + faults.delay, body.clone()));
            } else if !self.send(body.clone()).await {
                return false;
            }
        }
        true
    }

    /// Encodes a notification.
    fn encode(&self, result: &[u8]) -> Bytes {
        let mut body = Vec::with_capacity(result.len() + 128);
        body.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
        body.extend_from_slice(self.namespace.as_bytes());
        body.extend_from_slice(br#"_subscription","params":{"subscription":""#);
        body.extend_from_slice(self.id.as_bytes());
        body.extend_from_slice(br#"","result":"#);
        body.extend_from_slice(result);
        body.extend_from_slice(b"}}");
        body.into()
    }

    /// Sends an encoded notification. Returns true if the connection is still open.
    async fn send(&self, body: Bytes) -> bool {
        let content_type = "application/json";
        let delivery = Delivery::Whole { status: 200, content_type, retry_after_s: None, body };
        self.outgoing.send(Outgoing::Reply(delivery)).await.is_ok()
    }
}
