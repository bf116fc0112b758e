//! A simulated blockchain node for tests, demos and load.
//!
//! A [`world::World`] is a deterministic chain with true hashes. A [`node::Node`] serves it over
//! JSON-RPC with a configured lag, speed and faults. A [`rpc::View`] is the part of the chain that
//! a node has at one instant. An [`oracle::Oracle`] decides which responses were right. The gateway
//! and the load-test lab reach a node only over its sockets.
//!
//! Modules from the lowest layer up: `seed`, `hex`, `millis`, `bech32`; `schedule` (when each block
//! exists); `block` (contents of a block); `world` (all branches and the clock); `rpc` (the reply
//! to a call as a function of a view); `replay` (recorded replies) and `oracle`; `node` (limits,
//! latency and faults); `serve` and `admin` (sockets).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! let world = Arc::new(simnode::world::World::new(Default::default())?);
//! let node = simnode::node::Node::new("a", world);
//! let server = node.listen("127.0.0.1:0".parse()?)?;
//! println!("{}", server.addr());
//! node.set(|settings| settings.lag_blocks = 3)?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod schedule;

pub mod block;

pub mod world;

pub mod rpc;

pub mod node;

pub mod serve;

pub mod admin;

pub mod replay;

pub mod oracle;

pub mod seed;

mod bech32;
mod hex;
mod millis;
mod transaction_pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;

use crate::admin::Admin;
use crate::node::Node;
use crate::node::settings::{Settings, SettingsError};
use crate::schedule::{OptionsError, WorldOptions};
use crate::serve::NodeServer;
use crate::world::World;

/// The options of `weir node`.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The node's name.
    pub name: String,
    /// The chain.
    pub world: WorldOptions,
    /// The instant at which the clock of the chain starts. All nodes of one chain must have the
    /// same instant.
    pub origin: Instant,
    /// The node's initial settings.
    pub settings: Settings,
    /// The address for calls. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// The address of the admin port. `None` for no admin port.
    pub admin: Option<SocketAddr>,
}

/// A node that serves until it is dropped.
pub struct RunningNode {
    /// The chain.
    pub world: Arc<World>,
    /// The node.
    pub node: Arc<Node>,
    /// The server of its calls.
    pub server: Arc<NodeServer>,
    /// The server of its admin port. `None` if the node has no admin port.
    pub admin: Option<Admin>,
}

/// The reason why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The options of the chain are invalid.
    #[error(transparent)]
    World(#[from] OptionsError),
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The process cannot listen on an address.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// Starts a node on the current tokio runtime. First builds the chain, which takes about 0.1 ms per
/// block. Then listens. After each built head, passes its number and the number of the newest block
/// to `on_progress`.
///
/// # Errors
/// Fails if the options are invalid, or if the process cannot listen on an address.
pub async fn serve(
    options: NodeOptions,
    on_progress: impl FnMut(u64, u64),
) -> Result<RunningNode, StartError> {
    let world = Arc::new(World::unbuilt(options.world, options.origin)?);
    let node = Node::new(&options.name, Arc::clone(&world));
    node.set(|settings| *settings = options.settings)?;
    world.catch_up(on_progress).await;
    let addr = options.listen;
    let server = node.listen(addr).map_err(|source| StartError::Listen { addr, source })?;
    let server = Arc::new(server);
    let admin = match options.admin {
        None => None,
        Some(addr) => {
            let admin = Admin::listen(addr, Arc::clone(&server)).await;
            Some(admin.map_err(|source| StartError::Listen { addr, source })?)
        }
    };
    Ok(RunningNode { world, node, server, admin })
}
