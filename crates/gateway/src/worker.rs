//! What one serving thread has to itself: pools, balancers, flights, counters.
//!
//! Nothing here is shared with another thread but through [`Shared`]; so nothing here is locked.
//! The thread's client connections, and which worker new requests get, are `thread.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::coalesce::Flights;
use crate::config::Config;
use crate::config::group::Group;
use crate::front::caller;
use crate::front::head::Head;
use crate::front::token::Tokens;
use crate::metrics::thread::Counters;
use crate::nodes::balance::Balancer;
use crate::nodes::gather::Gather;
use crate::nodes::http2::Http2;
use crate::nodes::multiplex::Multiplex;
use crate::nodes::overload::Lane;
use crate::nodes::pool::Pool;
use crate::recall::Recall;
use crate::redis::Tier;
use crate::redis::zones::Judge;
use crate::rules::choose::{EWMA_DECAY, EWMA_READMITTED, EWMA_START, PeakEwma};
use crate::rules::hedge::{Hedge, HedgeSettings};
use crate::rules::retry::RetryBudget;
use crate::rules::stall::Silence;
use crate::shared::{GroupShared, NodeShared, Shared};

/// Further attempts after responses that may lack something, as a share of calls to nodes: as many
/// as the usual `retries_max` allows. For seconds all calls may be about blocks that all nodes index
/// late.
const SECOND_OPINIONS_SHARE: f64 = 2.0;

/// Spare buffers kept per thread; more than this are in use at once only in a burst.
const SPARES_MAX: usize = 64;
/// A spare buffer larger than this is not kept.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// How many heads of requests are known to one thread: one for each usual length, of few kinds of
/// clients.
const HEADS_KNOWN: usize = 64;

/// What the clock of request limits begins at, milliseconds: some 35 years.
const LIMITS_CLOCK_START: u64 = 1 << 40;

/// One serving thread's own state under one configuration. A request uses the same one from its
/// first byte to its answer.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) flights: Flights,
    /// The tier of the cache in Redis, where it is on.
    pub(crate) redis: Option<Rc<Tier>>,
    /// Who judges by shared zones; none where no zone is shared.
    pub(crate) judge: Option<Rc<Judge>>,
    pub(crate) spare: Rc<Spare>,
    /// What the last heads of requests have said.
    pub(crate) heads: RefCell<Recall<Rc<Head>>>,
    /// By node, as in the configuration.
    pub(crate) nodes: Vec<Rc<LocalNode>>,
    /// By group, as in the configuration.
    pub(crate) balancers: Vec<RefCell<Balancer>>,
    /// By group.
    pub(crate) hedges: Vec<Rc<RefCell<Hedge>>>,
    pub(crate) budget: Rc<RefCell<RetryBudget>>,
    /// Bounds the further attempts after a response that may lack something.
    pub(crate) second_opinions: Rc<RefCell<RetryBudget>>,
    /// By group; none where calls at nodes are not limited.
    pub(crate) lanes: Vec<Option<Rc<Lane>>>,
    /// What is remembered of tokens; none where no tokens are taken.
    pub(crate) tokens: Option<RefCell<Tokens>>,
    /// Its place among the serving threads.
    pub(crate) index: usize,
    recent: Cell<Instant>,
    now: Cell<Duration>,
    random: Rc<Cell<u64>>,
    next_id: Rc<Cell<u64>>,
    date: RefCell<Date>,
}

/// What this thread knows of a node.
pub(crate) struct LocalNode {
    pub(crate) pool: Rc<Pool>,
    /// Connections that carry many calls; none where the node has no address for such.
    pub(crate) multiplex: Option<Rc<Multiplex>>,
    /// HTTP/2 connections; none where that is not asked for.
    pub(crate) http2: Option<Rc<Http2>>,
    /// Calls that leave as one batch; none where that is off.
    pub(crate) gather: Option<Rc<Gather>>,
    pub(crate) latency: Cell<PeakEwma>,
    /// Readmissions of the node that `latency` knows of.
    readmissions: Cell<u64>,
    pub(crate) in_flight: Cell<u32>,
    pub(crate) silence: Cell<Silence>,
}

impl LocalNode {
    fn new(
        shared: &Shared,
        index: usize,
        node: &NodeShared,
        now: Duration,
        latency: Duration,
    ) -> LocalNode {
        let config = &shared.config;
        let place = shared.nodes.iter().position(|own| std::ptr::eq(own, node));
        let counts = place.map(|place| Arc::clone(&shared.counters[index].upstreams[place]));
        let counts = counts.unwrap_or_default();
        let methods = shared.chains[node.config.chain].family.count();
        let connections_max = node.config.connections_max.div_ceil(config.server.threads);
        LocalNode {
            pool: Pool::new(connections_max, node.config.idle_timeout),
            multiplex: Multiplex::new(config, &node.config, &node.dial, methods, &counts),
            http2: Http2::new(config, &node.config, &node.dial, &counts),
            gather: Gather::new(&node.config),
            latency: Cell::new(PeakEwma::new(now, latency, EWMA_DECAY)),
            readmissions: Cell::new(node.readmissions.load(Ordering::Relaxed)),
            in_flight: Cell::new(0),
            silence: Cell::default(),
        }
    }

    /// Closes its connections, those in use after their calls.
    fn close(&self) {
        self.pool.close();
        if let Some(multiplex) = &self.multiplex {
            multiplex.close();
        }
        if let Some(http2) = &self.http2 {
            http2.close();
        }
    }

    /// What one more call there costs; a node that was taken back starts anew.
    pub(crate) fn cost(&self, node: &NodeShared, now: Duration) -> f64 {
        let readmissions = node.readmissions.load(Ordering::Relaxed);
        if self.readmissions.replace(readmissions) != readmissions {
            self.latency.set(PeakEwma::new(now, EWMA_READMITTED, EWMA_DECAY));
        }
        let in_flight = self.in_flight.get();
        self.latency.get().cost(now, in_flight, self.silence(now)) / f64::from(node.config.weight)
    }

    /// For how long calls have waited there without any answer.
    pub(crate) fn silence(&self, now: Duration) -> Duration {
        if self.in_flight.get() == 0 { Duration::ZERO } else { self.silence.get().age(now) }
    }

    /// Notes that the node has answered a call.
    pub(crate) fn answered(&self, now: Duration) {
        let mut silence = self.silence.get();
        silence.ends(now);
        self.silence.set(silence);
    }

    /// Notes how long an attempt felt.
    pub(crate) fn felt(&self, now: Duration, felt: Duration) {
        let mut latency = self.latency.get();
        latency.observe(now, felt);
        self.latency.set(latency);
    }
}

struct Date {
    until: Option<Instant>,
    text: [u8; 29],
}

impl Worker {
    /// The worker with this index of `config.server.threads`.
    pub(crate) fn new(shared: Arc<Shared>, index: usize, seed: u64) -> Rc<Worker> {
        let config = &shared.config;
        let now = shared.now();
        let nodes = shared
            .nodes
            .iter()
            .map(|node| Rc::new(LocalNode::new(&shared, index, node, now, EWMA_START)));
        let nodes = nodes.collect();
        let hedges = config.groups.iter().map(|group| new_hedge(group.hedge.as_ref()));
        let hedges = hedges.collect();
        let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
        // Odd, so that the generator never starts at its fixed point, zero.
        let random = seed.wrapping_add(index as u64).wrapping_mul(2) | 1;
        Rc::new(Worker {
            counters: Arc::clone(&shared.counters[index]),
            flights: Flights::default(),
            redis: Tier::start(&shared, &shared.counters[index]),
            judge: Judge::start(&shared, &shared.counters[index], None),
            spare: Rc::default(),
            heads: RefCell::new(Recall::new(HEADS_KNOWN)),
            nodes,
            balancers: balancers(config),
            hedges,
            second_opinions: Rc::new(RefCell::new(second_opinions(config))),
            budget: Rc::new(RefCell::new(budget)),
            lanes: lanes(&shared, index, &[]),
            tokens: caller::tokens(config).map(RefCell::new),
            index,
            recent: Cell::new(Instant::now()),
            now: Cell::new(now),
            random: Rc::new(Cell::new(random)),
            next_id: Rc::new(Cell::new(1)),
            date: RefCell::new(Date { until: None, text: [b' '; 29] }),
            shared,
        })
    }

    /// The worker that takes this one's place under a new configuration. Connections to nodes that
    /// are reached as before are taken over with what is known of their latency; the others close,
    /// those in use after their call.
    pub(crate) fn succeed(&self, shared: Arc<Shared>, index: usize) -> Rc<Worker> {
        let config = &shared.config;
        let now = shared.now();
        let same = |node: &NodeShared, before: &NodeShared| {
            node.is(before) && node.config.connects_like(&before.config)
        };
        let nodes = shared.nodes.iter().map(|node| {
            let before = self.shared.nodes.iter().position(|before| same(node, before));
            let local = before.and_then(|before| self.nodes.get(before)).cloned();
            let fits = |local: &Rc<LocalNode>| {
                local.multiplex.as_ref().is_none_or(|multiplex| multiplex.fits(config))
            };
            local.filter(fits).unwrap_or_else(|| {
                Rc::new(LocalNode::new(&shared, index, node, now, EWMA_READMITTED))
            })
        });
        let nodes = nodes.collect();
        let nodes: Vec<Rc<LocalNode>> = nodes;
        for local in &self.nodes {
            if !nodes.iter().any(|own| Rc::ptr_eq(own, local)) {
                local.close();
            }
        }
        let before = &self.shared.config;
        let name = |config: &Config, group: &Group| {
            (Arc::clone(&config.chains[group.chain].name), Arc::clone(&group.name))
        };
        let hedges = config.groups.iter().map(|group| {
            let known = before.groups.iter().position(|own| {
                name(before, own) == name(config, group) && own.hedge == group.hedge
            });
            let known = known.map(|own| Rc::clone(&self.hedges[own]));
            known.unwrap_or_else(|| new_hedge(group.hedge.as_ref()))
        });
        let hedges = hedges.collect();
        let (budget, second) = if before.retry == config.retry {
            (Rc::clone(&self.budget), Rc::clone(&self.second_opinions))
        } else {
            let budget = RetryBudget::new(config.retry.share_max, config.retry.rate_min);
            (Rc::new(RefCell::new(budget)), Rc::new(RefCell::new(second_opinions(config))))
        };
        Rc::new(Worker {
            counters: Arc::clone(&shared.counters[index]),
            flights: Flights::default(),
            redis: Tier::start(&shared, &shared.counters[index]),
            judge: Judge::start(&shared, &shared.counters[index], self.judge.as_deref()),
            spare: Rc::clone(&self.spare),
            heads: RefCell::new(Recall::new(HEADS_KNOWN)),
            nodes,
            balancers: balancers(config),
            hedges,
            budget,
            second_opinions: second,
            lanes: lanes(&shared, index, &self.lanes),
            // Their keys may be others now.
            tokens: caller::tokens(config).map(RefCell::new),
            index,
            recent: Cell::new(Instant::now()),
            now: Cell::new(now),
            random: Rc::clone(&self.random),
            next_id: Rc::clone(&self.next_id),
            date: RefCell::new(Date { until: None, text: [b' '; 29] }),
            shared,
        })
    }

    /// The next id of a call to a node; never a client's.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Counts an attempt at a node that begins.
    pub(crate) fn entered(&self, node: usize) {
        let local = &self.nodes[node];
        let mut silence = local.silence.get();
        silence.begins(self.now(), local.in_flight.get() == 0);
        local.silence.set(silence);
        local.in_flight.update(|calls| calls + 1);
        self.counters.upstreams[node].in_flight.add(1);
    }

    /// And one that has ended.
    pub(crate) fn left(&self, node: usize) {
        self.nodes[node].in_flight.update(|calls| calls - 1);
        self.counters.upstreams[node].in_flight.subtract_one();
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

    /// The same in whole milliseconds, the clock of request limits. It does not begin at zero: Redis
    /// tells of charges that are older than this process.
    pub(crate) fn now_ms(&self) -> u64 {
        LIMITS_CLOCK_START + self.now.get().as_millis() as u64
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
            if let Some(multiplex) = &node.multiplex {
                multiplex.sweep(now);
            }
        }
        self.counters.calls_in_flight.set(self.flights.len() as u64);
    }
}

fn balancers(config: &Config) -> Vec<RefCell<Balancer>> {
    config.groups.iter().map(|group| RefCell::new(Balancer::new(config, group))).collect()
}

/// The lanes of all groups, those whose group goes on as before a reload taken over.
fn lanes(shared: &Shared, index: usize, before: &[Option<Rc<Lane>>]) -> Vec<Option<Rc<Lane>>> {
    let counts = &shared.counters[index].groups;
    let lane = |(group, (_, counts)): (&GroupShared, (_, _))| {
        let room = group.room.as_ref();
        let known = before.iter().flatten().find(|lane| lane.is_of(room));
        known.cloned().or_else(|| Lane::new(&shared.config, room, counts))
    };
    shared.groups.iter().zip(counts.iter()).map(lane).collect()
}

/// The budget of further attempts after a response that may lack something.
fn second_opinions(config: &Config) -> RetryBudget {
    RetryBudget::new(SECOND_OPINIONS_SHARE, config.retry.rate_min)
}

fn new_hedge(config: Option<&crate::config::group::Hedge>) -> Rc<RefCell<Hedge>> {
    let settings = config.map(|config| HedgeSettings {
        quantile: config.quantile,
        delay_min: config.delay_min,
        share_max: config.share_max,
    });
    Rc::new(RefCell::new(Hedge::new(settings)))
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
