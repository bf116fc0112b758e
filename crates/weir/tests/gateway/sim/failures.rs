//! The schedule of node failures: a sequence of phases drawn from the seed.
//!
//! Usually at least one node is healthy: it accepts connections, has no fault, and its head (its
//! newest block) is at most one block behind. In a phase without a healthy node, errors are
//! tolerated, but wrong responses are not. At most one node at a time reports a false head. No
//! other node fails meanwhile, because the gateway could not decide which node is correct.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gateway::MemoryConnector;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use simnode::node::Node;
use simnode::node::settings::{ErrorKind, Fault, FaultRule, Latency, SecondBackend, Settings};
use simnode::world::World;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Number of nodes of a simulation.
pub(crate) const NODES: usize = 3;
/// Time after the end of a failure until the node counts as healthy. The gateway needs a few polls
/// to notice the recovery.
const RECOVERY: Duration = Duration::from_millis(400);
/// Time for which the gateway's head may be old after all nodes were silent. The gateway requests
/// the missed blocks one by one, perhaps from slow nodes.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(2_500);
/// `Retry-After` of a node that limits its rate, in seconds. The gateway's default pause is equal.
const PAUSE_S: u64 = 1;
/// Buffer size of a stream between the gateway and a node.
const STREAM_BYTES: usize = 64 * 1024;
/// Bytes per second of a slow body. The body of a full block takes seconds.
const SLOW_BODY_RATE: u32 = 4_000;

/// The failure of one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The node is healthy.
    None,
    /// Responds slowly.
    Slow,
    /// Receives no new blocks.
    Frozen,
    /// Receives no new blocks until it is this many more blocks behind, and then stays so far
    /// behind.
    Lagging(u64),
    /// Reports a head this many blocks above the real one.
    Lying(u64),
    /// Has a block's logs and receipts only this long after the block.
    Unindexed(Duration),
    /// Sends this share of calls for logs and receipts to a second backend, which is one block
    /// behind. Instead of an error, the backend returns only what it has.
    SecondBackend(f64),
    /// Refuses connections and closes existing ones.
    Down,
    /// This share of requests fails with this fault.
    Faulty(Fault, f64),
}

impl Failure {
    fn is_healthy(&self) -> bool {
        matches!(self, Failure::None | Failure::Slow)
    }

    /// Returns true if the failure makes responses late or missing instead of causing immediate
    /// errors.
    fn hangs(&self) -> bool {
        matches!(self, Failure::Faulty(Fault::SlowBody { .. } | Fault::Hang, _))
    }

    /// Returns true if the gateway gets no current head from the node.
    fn is_silent(&self) -> bool {
        match self {
            Failure::Down => true,
            // The gateway does not poll a node that it pauses, and the head of a hanging node
            // arrives late.
            Failure::Faulty(_, share) => {
                *share >= 1.0 || !self.cooldown().is_zero() || self.hangs()
            }
            _ => false,
        }
    }

    /// Returns for how long the gateway sends nothing to the node after the failure.
    fn cooldown(&self) -> Duration {
        match self {
            Failure::Faulty(
                Fault::TooManyRequests { .. } | Fault::Error { error: ErrorKind::LimitExceeded },
                _,
            ) => Duration::from_secs(PAUSE_S),
            _ => Duration::ZERO,
        }
    }
}

/// A time span in which the nodes' failures do not change.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    from: Instant,
    failures: [Failure; NODES],
    /// When each node becomes healthy, or `None` if it is not healthy in this phase.
    healthy_from: [Option<Instant>; NODES],
}

/// How the gateway connects to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Over streams in memory, which [`Cluster::connectors`] opens.
    Memory,
    /// Over TCP ports that the test opens.
    Ports,
}

/// A node and its connections.
struct Member {
    node: Arc<Node>,
    /// The node's settings without a failure.
    healthy_settings: Settings,
    /// True if the node accepts connections.
    is_up: Arc<AtomicBool>,
    /// Tasks of the node's open connections.
    connection_tasks: Arc<Mutex<Vec<AbortHandle>>>,
    /// The task that changes the settings later, if the current failure needs that.
    failure_task: RefCell<Option<AbortHandle>>,
}

/// The nodes of a simulation, and their phases so far.
pub(crate) struct Cluster {
    transport: Transport,
    members: Vec<Member>,
    phases: RefCell<Vec<Phase>>,
}

impl Cluster {
    /// Creates nodes of one world, each with its own latency. The first node has the world's head,
    /// and the others are at most one block behind it.
    pub(crate) fn new(world: &Arc<World>, transport: Transport, rng: &mut SmallRng) -> Cluster {
        let member = |(index, name): (u64, &str)| {
            let node = Node::new(name, Arc::clone(world));
            let healthy_settings = Settings {
                lag_blocks: rng.random_range(0..=index.min(1)),
                delay: Duration::from_millis(rng.random_range(0..=100)),
                latency: Latency::Lognormal {
                    median_ms: rng.random_range(1.0..8.0),
                    sigma: rng.random_range(0.3..0.9),
                },
                ..Settings::default()
            };
            node.set(|settings| *settings = healthy_settings.clone())
                .expect("the settings are valid");
            let is_up = Arc::new(AtomicBool::new(true));
            Member {
                node,
                healthy_settings,
                is_up,
                connection_tasks: Arc::default(),
                failure_task: RefCell::default(),
            }
        };
        let members = (0..).zip(["a", "b", "c"]).map(member).collect();
        Cluster { transport, members, phases: RefCell::default() }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.members.iter().map(|member| &member.node)
    }

    /// Returns a function for each node that opens a connection from the gateway to it, for
    /// [`Transport::Memory`].
    pub(crate) fn connectors(&self) -> Vec<MemoryConnector> {
        self.members.iter().map(Member::connector).collect()
    }

    /// Ends the current phase and begins one with these failures.
    pub(crate) fn begin_phase(&self, failures: [Failure; NODES]) {
        let from = Instant::now();
        let mut phases = self.phases.borrow_mut();
        let previous = phases.last();
        let healthy_from = std::array::from_fn(|node| {
            let is_healthy = failures[node].is_healthy();
            let Some(previous) = previous else { return is_healthy.then_some(from) };
            let recovered_at = || previous.healthy_from[node].unwrap_or(from + RECOVERY);
            // The node counts as healthy only after the gateway's pause for its last failure.
            is_healthy.then(|| recovered_at() + previous.failures[node].cooldown())
        });
        for (member, failure) in self.members.iter().zip(&failures) {
            member.apply(failure);
        }
        phases.push(Phase { from, failures, healthy_from });
    }

    /// Begins random phases, one after the other, for ever.
    pub(crate) async fn run_random_failures(&self, mut rng: SmallRng) {
        loop {
            let (failures, length) = random_phase(&mut rng);
            self.begin_phase(failures.map(|failure| self.supported(failure)));
            tokio::time::sleep(length).await; // Sleeps: virtual time.
        }
    }

    /// Returns the failure, or a similar one if the transport does not support it. With
    /// [`Transport::Ports`], the ports stay open, so a node that is down resets all connections.
    fn supported(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Down if self.transport == Transport::Ports => {
                Failure::Faulty(Fault::Reset, 1.0)
            }
            failure => failure,
        }
    }

    /// Returns the number of phases so far.
    pub(crate) fn phase_count(&self) -> usize {
        self.phases.borrow().len()
    }

    /// Returns true if there was an instant between these two at which no node was healthy.
    pub(crate) fn all_unhealthy(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        phases.iter().enumerate().any(|(index, phase)| {
            let end = phases.get(index + 1).map_or(until, |next| next.from.min(until));
            let start = phase.from.max(from);
            let is_unhealthy = |since: &Option<Instant>| since.is_none_or(|since| since > start);
            start <= end && phase.healthy_from.iter().all(is_unhealthy)
        })
    }

    /// Returns true if the gateway may have got no current head in a phase between two instants.
    ///
    /// This is so if each node was silent in that phase or in the one before. It is also so if two
    /// of the three nodes hung, because the gateway notices a hanging node only after it has waited
    /// for three responses.
    pub(crate) fn all_silent(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        (0..phases.len()).any(|index| {
            let phase = &phases[index];
            let end = phases.get(index + 1).map_or(until, |next| next.from);
            let previous = index.checked_sub(1).map_or(phase, |previous| &phases[previous]);
            let is_silent = |node: usize| {
                phase.failures[node].is_silent() || previous.failures[node].is_silent()
            };
            let hanging = phase.failures.iter().filter(|failure| failure.hangs()).count();
            let head_unknown = (0..NODES).all(is_silent) || hanging >= 2;
            phase.from <= until && end >= from && head_unknown
        })
    }

    /// Returns true if a node reported a false head at any time between two instants.
    pub(crate) fn any_lying(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        phases.iter().enumerate().any(|(index, phase)| {
            let end = phases.get(index + 1).map_or(until, |next| next.from);
            let is_lying = |failure: &Failure| matches!(failure, Failure::Lying(_));
            phase.from <= until && end >= from && phase.failures.iter().any(is_lying)
        })
    }

    /// Describes the phases between two instants. Times are relative to the world's start.
    pub(crate) fn describe_phases(&self, from: Instant, until: Instant, origin: Instant) -> String {
        let phases = self.phases.borrow();
        let mut text = String::new();
        for (index, phase) in phases.iter().enumerate() {
            let end = phases.get(index + 1).map(|next| next.from);
            if phase.from <= until && end.is_none_or(|end| end >= from) {
                let start = phase.from.saturating_duration_since(origin);
                let _ = writeln!(text, "    from {start:?}: {:?}", phase.failures);
            }
        }
        text
    }
}

impl Member {
    fn connector(&self) -> MemoryConnector {
        let (node, is_up) = (Arc::clone(&self.node), Arc::clone(&self.is_up));
        let connection_tasks = Arc::clone(&self.connection_tasks);
        Arc::new(move || {
            if !is_up.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (gateway_end, node_end) = tokio::io::duplex(STREAM_BYTES);
            let serving = simnode::serve::serve_connection(Arc::clone(&node), node_end);
            let task = tokio::spawn(serving).abort_handle();
            let mut connection_tasks = connection_tasks.lock();
            connection_tasks.retain(|task| !task.is_finished());
            connection_tasks.push(task);
            Ok(gateway_end)
        })
    }

    /// Ends the node's current failure and starts this one.
    fn apply(&self, failure: &Failure) {
        let is_up = *failure != Failure::Down;
        self.is_up.store(is_up, Ordering::Relaxed);
        if !is_up {
            let connection_tasks = std::mem::take(&mut *self.connection_tasks.lock());
            connection_tasks.iter().for_each(AbortHandle::abort);
        }
        if let Some(previous_task) = self.failure_task.take() {
            previous_task.abort();
        }
        let view = self.node.view(Instant::now()).expect("the node has a world");
        let result = self.node.set(|settings| {
            *settings = self.healthy_settings.clone();
            match failure {
                Failure::None | Failure::Down => {}
                Failure::Slow => {
                    settings.latency = Latency::Lognormal { median_ms: 60.0, sigma: 0.6 };
                }
                Failure::Frozen | Failure::Lagging(_) => settings.frozen_at = Some(view.head),
                Failure::Lying(blocks) => settings.ahead_blocks = *blocks,
                Failure::Unindexed(delay) => settings.index_delay = *delay,
                Failure::SecondBackend(share) => {
                    settings.inside =
                        Some(SecondBackend { behind_blocks: 1, share: *share, all_methods: false });
                }
                Failure::Faulty(fault, share) => {
                    let rule = FaultRule { share: *share, ..FaultRule::always(*fault) };
                    settings.faults = vec![rule];
                }
            }
        });
        result.expect("the settings are valid");
        if let Failure::Lagging(blocks) = *failure {
            let lag_blocks = self.healthy_settings.lag_blocks + blocks;
            let node = Arc::clone(&self.node);
            let world = node.world().expect("the node has a world");
            let lag_reached_at =
                world.instant_of(view.head + lag_blocks) + self.healthy_settings.delay;
            let failure_task = tokio::spawn(async move {
                tokio::time::sleep_until(lag_reached_at).await;
                let result = node.set(|settings| {
                    (settings.frozen_at, settings.lag_blocks) = (None, lag_blocks);
                });
                result.expect("the settings are valid");
            });
            self.failure_task.replace(Some(failure_task.abort_handle()));
        }
    }
}

/// Returns the failures of a random phase, and its length.
fn random_phase(rng: &mut SmallRng) -> ([Failure; NODES], Duration) {
    let mut length = Duration::from_millis(rng.random_range(500..6_000));
    let mut failures = match rng.random_range(0..19) {
        0..2 => [Failure::None, Failure::None, Failure::None],
        2..5 => [false_head(rng), Failure::None, Failure::None],
        5..7 => [faulty(rng), Failure::None, Failure::None],
        7..9 => [faulty(rng), faulty(rng), Failure::None],
        9 => [Failure::Down, Failure::None, Failure::None],
        10 => [Failure::Down, Failure::Down, Failure::None],
        11 => [Failure::Down, faulty(rng), Failure::None],
        12 => [Failure::Slow, Failure::None, Failure::None],
        13 => [Failure::Slow, Failure::Slow, faulty(rng)],
        14 => [faulty(rng), faulty(rng), faulty(rng)],
        15..18 => [incomplete(rng), incomplete(rng), Failure::None],
        _ => {
            length = Duration::from_millis(rng.random_range(300..2_500));
            [Failure::Down, Failure::Down, Failure::Down]
        }
    };
    failures.shuffle(rng);
    (failures, length)
}

/// Returns a failure with a false or old head.
fn false_head(rng: &mut SmallRng) -> Failure {
    match rng.random_range(0..3) {
        0 => Failure::Frozen,
        1 => Failure::Lagging(rng.random_range(3..14)),
        _ => Failure::Lying(rng.random_range(1..120)),
    }
}

/// Returns a failure in which logs and receipts of new blocks are missing.
fn incomplete(rng: &mut SmallRng) -> Failure {
    match rng.random_range(0..3) {
        0 => Failure::SecondBackend([0.3, 1.0][rng.random_range(0..2)]),
        _ => Failure::Unindexed(Duration::from_millis(rng.random_range(200..3_000))),
    }
}

/// Returns a failure in which a share of all requests fails.
fn faulty(rng: &mut SmallRng) -> Failure {
    let fault = match rng.random_range(0..16) {
        0 => Fault::Close,
        1 => Fault::Reset,
        2 => Fault::Truncate,
        3 => Fault::Html,
        4 => Fault::WrongId,
        5 => Fault::DuplicateId,
        6 => Fault::TooManyRequests { retry_after_s: PAUSE_S },
        7 => Fault::Error { error: ErrorKind::LimitExceeded },
        8 => Fault::Error { error: ErrorKind::HeaderNotFound },
        9 => Fault::Error { error: ErrorKind::MissingTrieNode },
        10 => Fault::Error { error: ErrorKind::ExecutionTimeout },
        11 => Fault::ResultAndError,
        12 => Fault::NeitherResultNorError,
        13 => Fault::Unavailable,
        14 => Fault::SlowBody { bytes_per_second: SLOW_BODY_RATE },
        _ => Fault::Hang,
    };
    let share = [0.05, 0.3, 1.0][rng.random_range(0..3)];
    Failure::Faulty(fault, share)
}
