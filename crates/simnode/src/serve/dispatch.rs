//! Serves the messages of a WebSocket or Unix socket concurrently, as geth does. The connection
//! writes each response as soon as it is ready.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::outgoing::Outgoing;
use super::subscribe::Subscriptions;
use crate::node::Node;

/// Maximum number of messages in flight per connection. Further messages are not read.
const IN_FLIGHT_MAX: usize = 1024;

/// The messages in flight on one connection.
pub(super) struct CallDispatcher {
    node: Arc<Node>,
    tasks: JoinSet<()>,
    subscriptions: Subscriptions,
    replies: mpsc::Sender<Outgoing>,
}

impl CallDispatcher {
    pub(super) fn new(node: Arc<Node>, replies: mpsc::Sender<Outgoing>) -> CallDispatcher {
        let subscriptions = Subscriptions::default();
        CallDispatcher { node, tasks: JoinSet::new(), subscriptions, replies }
    }

    /// Starts to serve a message. While [`IN_FLIGHT_MAX`] messages are in flight, waits before the
    /// start.
    pub(super) async fn start(&mut self, message: Bytes) {
        while self.tasks.len() >= IN_FLIGHT_MAX {
            self.tasks.join_next().await;
        }
        while self.tasks.try_join_next().is_some() {}
        if let Some(delivery) = self.subscriptions.respond(&self.node, &message, &self.replies) {
            let _ = self.replies.send(Outgoing::Reply(delivery)).await;
            return;
        }
        let (node, replies) = (Arc::clone(&self.node), self.replies.clone());
        self.tasks.spawn(async move {
            let delivery = node.serve(&message).await;
            // The send fails if the connection has ended.
            let _ = replies.send(Outgoing::Reply(delivery)).await;
        });
    }
}
