//! Subscriptions over a connection that carries many calls: `newHeads` and `newPendingTransactions`,
//! as geth has them (`eth/filters/api.go`), under the names of Ethereum and of Harmony.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Duration, Instant, sleep};
use wire::call::{Body, Call, Id};

use super::many::Said;
use crate::node::{LIMITS, Node, Served};
use crate::rpc::{self, Reply, RpcError};
use crate::world::World;

/// How often it is looked whether there is something to be told.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Subscriptions of one connection.
const SUBSCRIPTIONS_MAX: usize = 1024;

/// What one connection has subscribed to.
#[derive(Default)]
pub(super) struct Subscriptions {
    tasks: JoinSet<()>,
    by_id: HashMap<String, AbortHandle>,
    made: u64,
}

impl Subscriptions {
    /// The answer to a message that subscribes or unsubscribes, and what begins behind it; none for
    /// any other message.
    pub(super) fn answer(
        &mut self,
        node: &Arc<Node>,
        message: &[u8],
        said: &mpsc::Sender<Said>,
    ) -> Option<Served> {
        // Most messages are none, and are decoded only once.
        memchr::memmem::find(message, b"subscribe")?;
        let Ok(Body::Single(Ok(call))) = wire::call::decode(message, &LIMITS) else { return None };
        let Id::Raw(id) = call.id else { return None };
        let world = node.world()?;
        if node.settings().unsupported.contains(&*call.method) {
            return None;
        }
        let answered = match &*call.method {
            "eth_subscribe" => self.subscribe(node, world, &call, "eth", said),
            "hmy_subscribe" => self.subscribe(node, world, &call, "hmy", said),
            "eth_unsubscribe" | "hmy_unsubscribe" => self.unsubscribe(&call),
            _ => return None,
        };
        let mut body = Vec::new();
        match answered {
            Ok(result) => wire::answer::write_result(&mut body, id, result.to_string().as_bytes()),
            Err(error) => wire::answer::write_error_raw(&mut body, id, &error.to_json()),
        }
        let content_type = "application/json";
        Some(Served::Whole { status: 200, content_type, retry_after_s: None, body: body.into() })
    }

    fn subscribe(
        &mut self,
        node: &Arc<Node>,
        world: &Arc<World>,
        call: &Call<'_>,
        namespace: &'static str,
        said: &mpsc::Sender<Said>,
    ) -> Result<Value, RpcError> {
        if self.by_id.len() >= SUBSCRIPTIONS_MAX {
            return Err(RpcError::new(-32000, "too many subscriptions"));
        }
        let kind = parameter(call)?;
        self.made += 1;
        let id = format!("0x{:x}", self.made);
        let (node, world, said) = (Arc::clone(node), Arc::clone(world), said.clone());
        let telling = Telling { node, world, said, namespace, id: id.clone() };
        let task = match &*kind {
            "newHeads" => self.tasks.spawn(telling.heads()),
            "newPendingTransactions" => self.tasks.spawn(telling.pending()),
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

/// The first parameter, a string.
fn parameter(call: &Call<'_>) -> Result<String, RpcError> {
    let params: Option<Value> = call.params.raw().and_then(|raw| serde_json::from_slice(raw).ok());
    let first = params.as_ref().and_then(|params| params[0].as_str());
    first.map(str::to_owned).ok_or_else(|| RpcError::new(-32602, "invalid params"))
}

/// One subscription.
struct Telling {
    node: Arc<Node>,
    world: Arc<World>,
    said: mpsc::Sender<Said>,
    namespace: &'static str,
    id: String,
}

impl Telling {
    async fn heads(self) {
        let Some(mut sight) = self.node.sight(Instant::now()) else { return };
        loop {
            sleep(LOOK_EVERY).await;
            let (Some(now), false) =
                (self.node.sight(Instant::now()), self.node.settings().mute_subscriptions)
            else {
                continue;
            };
            let (before, head) = (sight.head, now.head);
            let hash = |head, number| self.world.hash_at(head, number);
            let mut fork = before.min(head);
            while fork > 0 && hash(before, fork) != hash(head, fork) {
                fork -= 1;
            }
            for number in fork + 1..=head {
                let Some(hash) = hash(head, number) else { continue };
                let params = format!("[\"{hash}\",false]");
                let block =
                    rpc::answer(&self.world, &now, "eth_getBlockByHash", Some(params.as_bytes()));
                let Reply::Result(block) = block else { continue };
                if !self.tell(&wire::block::header_of(&block)).await {
                    return;
                }
            }
            sight = now;
        }
    }

    async fn pending(self) {
        let mut seen = self.world.pooled();
        loop {
            sleep(LOOK_EVERY).await;
            if self.node.settings().mute_subscriptions {
                continue;
            }
            let (now, new) = self.world.pooled_since(seen);
            seen = now;
            for hash in new {
                if !self.tell(format!("\"{hash}\"").as_bytes()).await {
                    return;
                }
            }
        }
    }

    /// Whether somebody still listens.
    async fn tell(&self, result: &[u8]) -> bool {
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
        let served = Served::Whole { status: 200, content_type, retry_after_s: None, body };
        self.said.send(Said::Answer(served)).await.is_ok()
    }
}
