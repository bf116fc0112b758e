//! What one serving thread has to itself: connections, pools, balancers, flights, counters.
//!
//! Nothing here is shared with another thread but through [`Shared`]; so nothing here is locked.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::coalesce::Flights;
use crate::front::head::Head;
use crate::front::http1::{self, Standing};
use crate::nodes::balance::Balancer;
use crate::nodes::pool::Pool;
use crate::recall::Recall;
use crate::rules::choose::{EWMA_DECAY, EWMA_READMITTED, EWMA_START, PeakEwma};
use crate::rules::hedge::{Hedge, HedgeSettings};
use crate::rules::retry::RetryBudget;
use crate::see::counters::Counters;
use crate::shared::{NodeShared, Shared};

/// Spare buffers kept per thread; more than this are in use at once only in a burst.
const SPARES_MAX: usize = 64;
/// A spare buffer larger than this is not kept.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// How many heads of requests are known to one thread: one for each usual length, of few kinds of
/// clients.
const HEADS_KNOWN: usize = 64;

/// One serving thread's own state.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) flights: Flights,
    pub(crate) spare: Spare,
    /// What the last heads of requests have said.
    pub(crate) heads: RefCell<Recall<Rc<Head>>>,
    /// By node, as in the configuration.
    pub(crate) nodes: Vec<LocalNode>,
    /// By group, as in the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// By group; none where hedging is off.
    pub(crate) hedges: Vec<Option<RefCell<Hedge>>>,
    pub(crate) budget: RefCell<RetryBudget>,
    recent: Cell<Instant>,
    now: Cell<Duration>,
    random: Cell<u64>,
    next_id: Cell<u64>,
    date: RefCell<Date>,
    draining: Cell<bool>,
    drain: Notify,
    connections: RefCell<Connections>,
}

/// What this thread knows of a node.
pub(crate) struct LocalNode {
    pub(crate) pool: Rc<Pool>,
    pub(crate) latency: Cell<PeakEwma>,
    /// Readmissions of the node that `latency` knows of.
    readmissions: Cell<u64>,
    pub(crate) in_flight: Cell<u32>,
}

impl LocalNode {
    /// What one more call there costs; a node that was taken back starts anew.
    pub(crate) fn cost(&self, node: &NodeShared, now: Duration) -> f64 {
        let readmissions = node.readmissions.load(Ordering::Relaxed);
        if self.readmissions.replace(readmissions) != readmissions {
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED, EWMA_DECAY));
        }
        self.latency.get().cost(now, self.in_flight.get()) / f64::from(node.config.weight)
    }

    /// Notes how long an attempt felt.
    pub(crate) fn felt(&self, now: Duration, felt: Duration) {
        let mut latency = self.latency.get();
        latency.observe(now, felt);
        self.latency.set(latency);
    }
}

#[derive(Default)]
struct Connections {
    open: Vec<Option<Open>>,
    free: Vec<usize>,
}

struct Open {
    standing: Rc<Standing>,
    task: AbortHandle,
}

struct Date {
    until: Option<Instant>,
    text: [u8; 29],
}

impl Worker {
    /// The worker with this index of `config.threads`.
    pub(crate) fn new(shared: Arc<Shared>, index: usize, seed: u64) -> Rc<Worker> {
        let config = &shared.config;
        let now = shared.now();
        let nodes = shared
            .nodes
            .iter()
            .map(|node| LocalNode {
                pool: Pool::new(
                    node.config.connections_max.div_ceil(config.threads),
                    node.config.idle_timeout,
                ),
                latency: Cell::new(PeakEwma::new(now, EWMA_START, EWMA_DECAY)),
                readmissions: Cell::new(0),
                in_flight: Cell::new(0),
            })
            .collect();
        let balancers =
            config.groups.iter().map(|group| RefCell::new(Balancer::new(config, group))).collect();
        let hedges = config
            .groups
            .iter()
            .map(|group| group.hedge.as_ref().map(|hedge| RefCell::new(new_hedge(hedge))))
            .collect();
        let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
        Rc::new(Worker {
            counters: Arc::clone(&shared.counters[index]),
            flights: Flights::default(),
            spare: Spare::default(),
            heads: RefCell::new(Recall::new(HEADS_KNOWN)),
            nodes,
            balancers,
            hedges,
            budget: RefCell::new(budget),
            recent: Cell::new(Instant::now()),
            now: Cell::new(now),
            // Odd, so that the generator never starts at its fixed point, zero.
            random: Cell::new(seed.wrapping_add(index as u64).wrapping_mul(2) | 1),
            next_id: Cell::new(1),
            date: RefCell::new(Date { until: None, text: [b' '; 29] }),
            draining: Cell::new(false),
            drain: Notify::new(),
            connections: RefCell::default(),
            shared,
        })
    }

    /// Serves a client in a task of its own.
    pub(crate) fn accept<S>(self: &Rc<Worker>, stream: S, client: IpAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let standing = Rc::new(Standing::default());
        let slot = self.connections.borrow_mut().reserve();
        let worker = Rc::clone(self);
        let served = http1::serve(Rc::clone(self), stream, client, Rc::clone(&standing));
        self.counters.connection_opened();
        let task = tokio::task::spawn_local(async move {
            let _closed = Closed { worker, slot };
            served.await;
        });
        let open = Open { standing, task: task.abort_handle() };
        self.connections.borrow_mut().open[slot] = Some(open);
    }

    /// Open client connections.
    pub(crate) fn connection_count(&self) -> usize {
        let connections = self.connections.borrow();
        connections.open.len() - connections.free.len()
    }

    /// Whether a graceful stop has begun.
    pub(crate) fn draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for a graceful stop to begin.
    pub(crate) async fn drain_begun(&self) {
        let begun = self.drain.notified();
        if !self.draining.get() {
            begun.await;
        }
    }

    /// Begins a graceful stop: connections that wait for a request close now, the others after
    /// their answer.
    pub(crate) fn begin_drain(&self) {
        self.draining.set(true);
        self.drain.notify_waiters();
        for open in self.connections.borrow().open.iter().flatten() {
            if !open.standing.busy.get() {
                open.task.abort();
            }
        }
    }

    /// The next id of a call to a node; never a client's.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Counts an attempt at a node that begins.
    pub(crate) fn entered(&self, node: usize) {
        let in_flight = self.nodes[node].in_flight.get() + 1;
        self.nodes[node].in_flight.set(in_flight);
        self.counters.nodes[node].in_flight.set(u64::from(in_flight));
    }

    /// And one that has ended.
    pub(crate) fn left(&self, node: usize) {
        let in_flight = self.nodes[node].in_flight.get() - 1;
        self.nodes[node].in_flight.set(in_flight);
        self.counters.nodes[node].in_flight.set(u64::from(in_flight));
    }

    /// Reads the clock. To be called where time has passed: when a connection or a call begins, and
    /// after each wait for a node.
    pub(crate) fn tick(&self) -> Instant {
        let now = Instant::now();
        self.recent.set(now);
        self.now.set(self.shared.since_start(now));
        now
    }

    /// The time of the last tick on this thread: the present, for all that happens between two
    /// waits. Reading the clock costs as much as looking up a cache entry, so it is done seldom.
    pub(crate) fn recent(&self) -> Instant {
        self.recent.get()
    }

    /// [`Worker::recent`] as the rules count time.
    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }

    /// A pseudo-random number: xorshift64* (Vigna 2016), good enough to spread calls.
    pub(crate) fn random(&self) -> u64 {
        let mut state = self.random.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.random.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// The present as an HTTP date.
    pub(crate) fn date(&self) -> [u8; 29] {
        let now = self.recent();
        let mut date = self.date.borrow_mut();
        if date.until.is_none_or(|until| now >= until) {
            date.until = Some(now + Duration::from_secs(1));
            let text = httpdate::fmt_http_date(std::time::SystemTime::now());
            date.text.copy_from_slice(&text.as_bytes()[..29]);
        }
        date.text
    }

    /// Closes what has been idle for too long; called each second.
    pub(crate) fn sweep(&self) {
        let now = self.tick();
        for node in &self.nodes {
            node.pool.sweep(now);
        }
        self.counters.flights.set(self.flights.len() as u64);
    }
}

fn new_hedge(config: &crate::config::Hedge) -> Hedge {
    Hedge::new(HedgeSettings {
        quantile: config.quantile,
        delay_min: config.delay_min,
        share_max: config.share_max,
    })
}

impl Connections {
    fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.open.push(None);
            self.open.len() - 1
        })
    }
}

struct Closed {
    worker: Rc<Worker>,
    slot: usize,
}

impl Drop for Closed {
    fn drop(&mut self) {
        let mut connections = self.worker.connections.borrow_mut();
        connections.open[self.slot] = None;
        connections.free.push(self.slot);
        self.worker.counters.connection_closed();
    }
}

/// Buffers for requests and answers, used again and again.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    buffers: RefCell<Vec<Vec<u8>>>,
}

impl Spare {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.buffers.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < SPARES_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            buffers.push(buffer);
        }
    }
}
