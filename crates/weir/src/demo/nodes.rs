//! The three simulated nodes of a demo. Each runs on its own thread and listens on a loopback
//! socket; all serve the same chain.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use simnode::node::Node;
use simnode::node::settings::{Fault, FaultRule, Latency};
use simnode::schedule::WorldOptions;
use simnode::serve::NodeServer;
use simnode::world::World;
use tokio::sync::oneshot;

use super::script::{FAULTY_NODE, NodeEvent};

/// Names of the nodes.
pub(super) const NAMES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Index of the node that also gets direct calls, for comparison. No fault is injected into it.
pub(super) const DIRECT_NODE: usize = 0;
/// Latency of a node. It imitates a node in the same network, with a tail of slow responses.
pub(super) const LATENCY: Latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.4 };

/// The running nodes. Dropping this value stops them.
pub(super) struct Nodes {
    pub(super) world: Arc<World>,
    running: Vec<RunningNode>,
}

/// A node with the thread that runs it.
struct RunningNode {
    server: NodeServer,
    /// Dropping the sender stops the node. `None` only during the drop of this value.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Builds the chain up to its start height and starts the nodes.
    pub(super) fn start(options: WorldOptions) -> Result<Nodes> {
        let world = Arc::new(World::new(options).context("the demo's chain is invalid")?);
        let running = NAMES.iter().map(|name| RunningNode::start(name, Arc::clone(&world)));
        let running = running.collect::<Result<_>>()?;
        Ok(Nodes { world, running })
    }

    /// Returns the address of each node.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.running.iter().map(|running| running.server.addr()).collect()
    }

    /// Injects a fault into the faulty node, or clears it.
    pub(super) async fn apply(&self, event: NodeEvent) -> Result<()> {
        let server = &self.running[FAULTY_NODE].server;
        let node = server.node();
        let faults = match event {
            NodeEvent::Stall => vec![FaultRule::always(Fault::Hang)],
            NodeEvent::Freeze | NodeEvent::CatchUp | NodeEvent::Die | NodeEvent::Recover => {
                Vec::new()
            }
        };
        node.set(|settings| settings.faults = faults)?;
        match event {
            NodeEvent::Freeze => node.freeze(),
            NodeEvent::CatchUp => node.thaw(),
            NodeEvent::Die => server.close_port().await,
            NodeEvent::Recover => {
                server.open_port().await.context("the node's port was taken while it was down")?;
            }
            NodeEvent::Stall => {}
        }
        Ok(())
    }
}

impl RunningNode {
    fn start(name: &'static str, world: Arc<World>) -> Result<RunningNode> {
        let node = Node::new(name, world);
        node.set(|settings| settings.latency = LATENCY)?;
        let (started_tx, started_rx) = mpsc::sync_channel(1);
        let (stop_tx, stop_rx) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                let server = node.listen((Ipv4Addr::LOCALHOST, 0).into());
                // The send fails only if the demo has failed elsewhere.
                let _ = started_tx.send(server);
                // The node stops when the sender is dropped. The sender never sends a message.
                let _ = stop_rx.await;
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        let server = started_rx.recv().context("a node ended before it listened")?;
        let server = server.context("cannot listen on a free port of 127.0.0.1")?;
        Ok(RunningNode { server, stop: Some(stop_tx), thread: Some(thread) })
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the node's thread has already been printed.
            let _ = thread.join();
        }
    }
}
