//! Opens WebSocket connections that subscribe to new blocks or logs, and counts their
//! notifications.
//!
//! A subscription of the plan has one or more connections. A subscriber is one of these
//! connections, and a group is the state that they share. A row is the subscription's entry in the
//! result.
//!
//! One thread reads all connections, so one clock orders all arrivals. If a connection ends, the
//! thread counts its end and does not open it again. The memory of a connection is bounded: it
//! stores one message of at most [`MESSAGE_BYTES_MAX`], and marks a fixed number of the latest
//! blocks or logs as received.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use lab_model::plan::Plan;
use lab_model::results::subscription::SubscriptionRow;

use self::thread::SubscriptionThread;
use super::EngineFault;
use super::world::{System, Wakeup};

mod bit_ring;
mod counter;
mod group;
mod heads;
mod logs;
mod message;
mod subscriber;
mod thread;

#[cfg(test)]
mod tests;

/// Maximum number of bytes of a message. A longer message ends its connection.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The subscriptions of a run. Dropping this value closes all connections.
pub struct Subscriptions {
    /// True if the thread must stop.
    stop: Arc<AtomicBool>,
    wakeup: Wakeup,
    /// `None` once the thread was joined.
    thread: Option<JoinHandle<Result<Vec<SubscriptionRow>, EngineFault>>>,
}

impl Subscriptions {
    /// Starts the subscriptions of a plan. `addresses` has one entry per subscription: the
    /// addresses of its server. `origin` is the start of the run, and may be in the future. Returns
    /// `None` if the plan has no subscriptions.
    ///
    /// # Errors
    /// Fails if a server has no address, if a header or TLS setting cannot be used, or if the
    /// system lacks epoll or allows too few open files or threads.
    pub fn start(
        plan: &Arc<Plan>,
        addresses: Vec<Vec<SocketAddr>>,
        origin: Instant,
    ) -> Result<Option<Subscriptions>, EngineFault> {
        if plan.subscriptions.is_empty() {
            return Ok(None);
        }
        super::allow_files(plan)?;
        let wakeup = Wakeup::new()?;
        let stop = Arc::<AtomicBool>::default();
        let world = System::new(origin, wakeup.clone())?;
        let thread = SubscriptionThread::new(plan, addresses, world, Arc::clone(&stop))?;
        let builder = std::thread::Builder::new().name("subscriptions".to_owned());
        let thread = builder.spawn(move || thread.run()).map_err(EngineFault::Start)?;
        Ok(Some(Subscriptions { stop, wakeup, thread: Some(thread) }))
    }

    /// Closes all connections and returns a row for each subscription of the plan.
    ///
    /// # Errors
    /// Fails if the thread ended with an error.
    pub fn finish(mut self) -> Result<Vec<SubscriptionRow>, EngineFault> {
        self.stop();
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        thread.join().map_err(|_| EngineFault::SubscriptionsPanicked)?
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wakeup.wake();
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        self.stop();
    }
}
