//! A simulated node: a deterministic chain with true hashes behind a scripted JSON-RPC server, and
//! an oracle that says which answers were right. Not a client of any network, and not a part of the
//! gateway or the lab: they meet it at sockets.
//!
//! Reading order: `schedule` (which block exists when), `block` (what is in it), `world` (the chain
//! tree and its clock), `rpc` (answers as a function of a view), `node` (a view with a temper),
//! `serve` and `admin` (sockets), `replay` (recorded answers instead of a world), `oracle` (the
//! truth). `seed`, `hex`, `millis`, `bech32` and `pool` serve them.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! let world = Arc::new(simnode::world::World::new(Default::default())?);
//! let node = simnode::node::Node::new("a", world);
//! let listening = node.listen("127.0.0.1:0".parse()?)?;
//! println!("{}", listening.addr());
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
mod pool;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::time::Instant;

use crate::admin::Admin;
use crate::node::Node;
use crate::node::settings::{Settings, SettingsFault};
use crate::schedule::{OptionsFault, WorldOptions};
use crate::serve::Listening;
use crate::world::World;

/// Everything that a node on its own needs: what `weir node` is given.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The node's name.
    pub name: String,
    /// The chain.
    pub world: WorldOptions,
    /// When its first head is the head; nodes of one chain have the same.
    pub origin: Instant,
    /// The node's settings at its start.
    pub settings: Settings,
    /// Where to answer calls; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where to open the admin port, if at all.
    pub admin: Option<SocketAddr>,
}

/// A node on its own, up and serving until it is dropped.
pub struct Running {
    /// The chain.
    pub world: Arc<World>,
    /// The node.
    pub node: Arc<Node>,
    /// Its port.
    pub listening: Arc<Listening>,
    /// Its admin port.
    pub admin: Option<Admin>,
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartFault {
    /// The world cannot be.
    #[error(transparent)]
    World(#[from] OptionsFault),
    /// The settings cannot be.
    #[error(transparent)]
    Settings(#[from] SettingsFault),
    /// An address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// Starts a node on the current tokio runtime.
///
/// # Errors
/// The world or the settings cannot be, or an address cannot be listened on.
pub async fn serve(options: NodeOptions) -> Result<Running, StartFault> {
    let world = Arc::new(World::starting(options.world, options.origin)?);
    let node = Node::new(&options.name, Arc::clone(&world));
    node.set(|settings| *settings = options.settings)?;
    let addr = options.listen;
    let listening = node.listen(addr).map_err(|source| StartFault::Listen { addr, source })?;
    let listening = Arc::new(listening);
    let admin = match options.admin {
        None => None,
        Some(addr) => {
            let admin = Admin::listen(addr, Arc::clone(&listening)).await;
            Some(admin.map_err(|source| StartFault::Listen { addr, source })?)
        }
    };
    Ok(Running { world, node, listening, admin })
}
