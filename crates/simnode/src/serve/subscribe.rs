//! Subscriptions: `newHeads` and `newPendingTransactions` as in geth (`eth/filters/api.go`), under
//! the names of Ethereum and of Harmony.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep};
use wire::call::{Body, Call, Id};

use super::outgoing::Outgoing;
use crate::node::{Delivery, LIMITS, Node};
use crate::rpc::{self, Reply, RpcError};
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
        // Most messages are other calls. They are not decoded here.
        memchr::memmem::find(message, b"subscribe")?;
        let Ok(Body::Single(Ok(call))) = wire::call::decode(message, &LIMITS) else { return None };
        let Id::Raw(id) = call.id else { return None };
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
        let content_type = "application/json";
        Some(Delivery::Whole { status: 200, content_type, retry_after_s: None, body: body.into() })
    }

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
        let kind = parameter(call)?;
        self.ids_used += 1;
        let id = format!("0x{:x}", self.ids_used);
        let (node, world, outgoing) = (Arc::clone(node), Arc::clone(world), outgoing.clone());
        let subscription = Subscription { node, world, outgoing, namespace, id: id.clone() };
        let task = match &*kind {
            "newHeads" => self.tasks.spawn(subscription.send_heads()),
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
        let task = self.by_id.remove(&parameter(call)?);
        task.ok_or_else(|| RpcError::new(-32000, "subscription not found"))?.abort();
        Ok(true.into())
    }
}

/// Reads the first parameter, which must be a string.
fn parameter(call: &Call<'_>) -> Result<String, RpcError> {
    let params: Option<Value> = call.params.raw().and_then(|raw| serde_json::from_slice(raw).ok());
    let first = params.as_ref().and_then(|params| params[0].as_str());
    first.map(str::to_owned).ok_or_else(|| RpcError::new(-32602, "invalid params"))
}

/// One subscription.
struct Subscription {
    node: Arc<Node>,
    world: Arc<World>,
    outgoing: mpsc::Sender<Outgoing>,
    namespace: &'static str,
    id: String,
}

impl Subscription {
    /// Sends the header of every new block of the node's view.
    async fn send_heads(self) {
        let Some(mut view) = self.node.view(Instant::now()) else { return };
        loop {
            sleep(POLL_INTERVAL).await;
            let (Some(new_view), false) =
                (self.node.view(Instant::now()), self.node.settings().mute_subscriptions)
            else {
                continue;
            };
            let (old_head, head) = (view.head, new_view.head);
            let hash = |head, number| self.world.hash_at(head, number);
            // The last block that both views have.
            let mut fork = old_head.min(head);
            while fork > 0 && hash(old_head, fork) != hash(head, fork) {
                fork -= 1;
            }
            for number in fork + 1..=head {
                let Some(hash) = hash(head, number) else { continue };
                let params = format!("[\"{hash}\",false]");
                let params = Some(params.as_bytes());
                let reply = rpc::respond(&self.world, &new_view, "eth_getBlockByHash", params);
                let Reply::Result(block) = reply else { continue };
                if !self.send(&wire::block::header_from_block(&block)).await {
                    return;
                }
            }
            view = new_view;
        }
    }

    /// Sends every transaction that is added to the pool.
    async fn send_pending(self) {
        let mut added = self.world.pool_added();
        loop {
            sleep(POLL_INTERVAL).await;
            if self.node.settings().mute_subscriptions {
                continue;
            }
            let (new_added, hashes) = self.world.pool_added_since(added);
            added = new_added;
            for hash in hashes {
                if !self.send(format!("\"{hash}\"").as_bytes()).await {
                    return;
                }
            }
        }
    }

    /// Sends a notification. Returns true if the connection is still open.
    async fn send(&self, result: &[u8]) -> bool {
        let mut body = Vec::with_capacity(result.len() + 128);
        body.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
        body.extend_from_slice(self.namespace.as_bytes());
        body.extend_from_slice(br#"_subscription","params":{"subscription":""#);
        body.extend_from_slice(self.id.as_bytes());
        body.extend_from_slice(br#"","result":"#);
        body.extend_from_slice(result);
        body.extend_from_slice(b"}}");
        let content_type = "application/json";
        let body = Bytes::from(body);
        let delivery = Delivery::Whole { status: 200, content_type, retry_after_s: None, body };
        self.outgoing.send(Outgoing::Reply(delivery)).await.is_ok()
    }
}
