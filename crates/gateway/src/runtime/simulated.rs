//! A gateway on the caller's own runtime, for simulations in virtual time. It has no threads and no
//! sockets.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::DuplexStream;

use crate::admin::status::Status;
use crate::config::Config;
use crate::downstream::thread::Thread;
use crate::state::snapshot::Snapshot;
use crate::upstream::connector::{Connector, MemoryConnector};
use crate::upstream::watch::Watcher;

/// Size in bytes of the buffer for each direction of an in-memory stream.
const STREAM_BYTES: usize = 256 * 1024;

/// A simulated gateway. It must be created and used within a `tokio` local runtime.
pub struct Simulation {
    thread: Rc<Thread>,
    /// Polls the upstreams until it is dropped.
    _watch: Watcher,
}

impl Simulation {
    /// Starts a gateway and polls its upstreams. `connectors` holds one connector per upstream, in
    /// the order of the configuration.
    pub fn start(config: Config, connectors: Vec<MemoryConnector>, seed: u64) -> Simulation {
        let connectors = connectors.into_iter().map(Connector::Memory).collect();
        let snapshot = Snapshot::new(config, connectors);
        let mut watch = Watcher::default();
        watch.set_topology(&snapshot.topology, &snapshot.on_event());
        let thread_index = 0;
        let thread = Thread::new(snapshot, thread_index, seed, &Arc::default());
        Simulation { thread, _watch: watch }
    }

    /// Connects a client and returns its end of the stream.
    pub fn connect(&self, client: IpAddr) -> DuplexStream {
        let (gateway_end, client_end) = tokio::io::duplex(STREAM_BYTES);
        self.thread.accept(gateway_end, client);
        client_end
    }

    /// Returns the state that `/status` of the admin address prints.
    pub fn status(&self) -> Status {
        Status::of(&self.thread.context().snapshot)
    }

    /// Returns the height of the first chain's served head, the newest block that clients can read.
    /// `None` without a head.
    pub fn head(&self) -> Option<u64> {
        self.thread.context().snapshot.chains[0].view.load().head.map(|head| head.number)
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}
