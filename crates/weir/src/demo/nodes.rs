//! The three simulated nodes of a demo: each on a thread of its own, behind a real socket on
//! loopback, all looking at one chain.

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

use super::script::{TROUBLED, Trouble};

/// What the nodes are called.
pub(super) const NAMES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Which node is asked directly, for comparison: one that stays well.
pub(super) const COMPARED: usize = 0;
/// How long a node takes for a call: the order of a node on the same network, with a tail.
pub(super) const LATENCY: Latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.4 };

/// Up until dropped.
pub(super) struct Nodes {
    pub(super) world: Arc<World>,
    running: Vec<Running>,
}

struct Running {
    listening: NodeServer,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Nodes {
    /// Builds the chain up to its start and starts the nodes.
    pub(super) fn start(options: WorldOptions) -> Result<Nodes> {
        let world = Arc::new(World::new(options).context("the demo's chain cannot be")?);
        let running = NAMES.iter().map(|name| Running::start(name, Arc::clone(&world)));
        let running = running.collect::<Result<_>>()?;
        Ok(Nodes { world, running })
    }

    /// Where each node answers calls.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.running.iter().map(|running| running.listening.addr()).collect()
    }

    /// Lets a trouble happen.
    pub(super) async fn apply(&self, trouble: Trouble) -> Result<()> {
        let listening = &self.running[TROUBLED].listening;
        let node = listening.node();
        let faults = match trouble {
            Trouble::Stall => vec![FaultRule::always(Fault::Hang)],
            Trouble::Freeze | Trouble::CatchUp | Trouble::Die | Trouble::Recover => Vec::new(),
        };
        node.set(|settings| settings.faults = faults)?;
        match trouble {
            Trouble::Freeze => node.freeze(),
            Trouble::CatchUp => node.thaw(),
            Trouble::Die => listening.down().await,
            Trouble::Recover => {
                listening.up().await.context("the node's port was taken while it was down")?;
            }
            Trouble::Stall => {}
        }
        Ok(())
    }
}

impl Running {
    fn start(name: &'static str, world: Arc<World>) -> Result<Running> {
        let node = Node::new(name, world);
        node.set(|settings| settings.latency = LATENCY)?;
        let (tell, told) = mpsc::sync_channel(1);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            runtime.block_on(async {
                let listening = node.listen((Ipv4Addr::LOCALHOST, 0).into());
                // Whoever waits for it is gone only if the demo has failed elsewhere.
                let _ = tell.send(listening);
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        let listening = told.recv().context("a node ended before it listened")?;
        let listening = listening.context("cannot listen on a free port of 127.0.0.1")?;
        Ok(Running { listening, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the node has been printed; there is nothing left to save.
            let _ = thread.join();
        }
    }
}
