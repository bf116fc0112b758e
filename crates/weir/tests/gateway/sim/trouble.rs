//! The schedule of node failures: a sequence of phases drawn from the seed.
//!
//! Usually at least one node is healthy: up, without faults, at most the allowed number of blocks
//! behind. In a phase without a healthy node, errors are tolerated; wrong responses never are. At
//! most one node at a time reports a false head, and no other node fails meanwhile, because the
//! gateway could not decide which one is correct.

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

/// Nodes of a simulation.
pub(crate) const NODES: usize = 3;
/// How long after the end of its trouble a node is sound again: a few polls, by which the gateway
/// sees it.
const RECOVERY: Duration = Duration::from_millis(400);
/// How long after all nodes were silent the served head may be behind: nothing was heard, and the
/// gateway asks for the missed blocks one by one, of slow nodes perhaps.
pub(crate) const CATCH_UP: Duration = Duration::from_millis(2_500);
/// What a node that limits the rate asks for; the gateway's own pause is as long by default.
const REST_S: u64 = 1;
/// Bytes on their way between the gateway and a node.
const STREAM_BYTES: usize = 64 * 1024;
/// A body of a full block then takes seconds.
const SLOW_BODY: u32 = 4_000;

/// What is wrong with one node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Trouble {
    None,
    /// Answers, but late.
    Slow,
    /// Sees no new blocks.
    Frozen,
    /// Falls this many more blocks behind, one by one, and stays behind.
    Lagging(u64),
    /// Claims so many blocks more than there are.
    Lying(u64),
    /// Has logs and receipts only so long after their block.
    Unindexed(Duration),
    /// This share of calls for logs and receipts reaches a node behind the same address that is one
    /// block behind and ends ranges at its head.
    SecondBackend(f64),
    /// Refuses connections and closes existing ones.
    Down,
    /// Fails this share of requests in this way.
    Faulty(Fault, f64),
}

impl Trouble {
    fn is_sound(&self) -> bool {
        matches!(self, Trouble::None | Trouble::Slow)
    }

    /// True if its responses are late or missing, instead of immediate errors.
    fn hangs(&self) -> bool {
        matches!(self, Trouble::Faulty(Fault::SlowBody { .. } | Fault::Hang, _))
    }

    /// Whether no head can be learnt from the node.
    fn is_silent(&self) -> bool {
        match self {
            Trouble::Down => true,
            // One that limits the rate is not asked for its head either while it rests.
            // A head that takes as long as a block is old when it comes.
            Trouble::Faulty(_, share) => *share >= 1.0 || !self.rest().is_zero() || self.hangs(),
            _ => false,
        }
    }

    /// How long the gateway lets the node rest when it is over.
    fn rest(&self) -> Duration {
        match self {
            Trouble::Faulty(
                Fault::TooManyRequests { .. } | Fault::Error { error: ErrorKind::LimitExceeded },
                _,
            ) => Duration::from_secs(REST_S),
            _ => Duration::ZERO,
        }
    }
}

/// A time in which nothing changes.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    from: Instant,
    troubles: [Trouble; NODES],
    /// Since when each node is sound; none if it is not.
    sound_from: [Option<Instant>; NODES],
}

/// How the gateway reaches the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Over streams in memory: [`Cluster::connectors`].
    Memory,
    /// Over ports that the test opens.
    Ports,
}

/// One node and the way to it.
struct Member {
    node: Arc<Node>,
    /// Its settings without trouble.
    usual: Settings,
    up: Arc<AtomicBool>,
    served: Arc<Mutex<Vec<AbortHandle>>>,
    /// What is still to come of the present trouble.
    worsening: RefCell<Option<AbortHandle>>,
}

/// The nodes of a simulation, and what has happened to them.
pub(crate) struct Cluster {
    way: Way,
    members: Vec<Member>,
    phases: RefCell<Vec<Phase>>,
}

impl Cluster {
    /// Nodes of one world: the first at its head, the others a little behind, all of them
    /// at different speeds.
    pub(crate) fn new(world: &Arc<World>, way: Way, rng: &mut SmallRng) -> Cluster {
        let member = |(place, name): (u64, &str)| {
            let node = Node::new(name, Arc::clone(world));
            let usual = Settings {
                lag_blocks: rng.random_range(0..=place.min(1)),
                delay: Duration::from_millis(rng.random_range(0..=100)),
                latency: Latency::Lognormal {
                    median_ms: rng.random_range(1.0..8.0),
                    sigma: rng.random_range(0.3..0.9),
                },
                ..Settings::default()
            };
            node.set(|settings| *settings = usual.clone()).expect("these settings can be");
            let (up, served) = (Arc::new(AtomicBool::new(true)), Arc::default());
            Member { node, usual, up, served, worsening: RefCell::default() }
        };
        let members = (0..).zip(["a", "b", "c"]).map(member).collect();
        Cluster { way, members, phases: RefCell::default() }
    }

    /// The nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.members.iter().map(|member| &member.node)
    }

    /// How the gateway reaches the nodes in virtual time.
    pub(crate) fn connectors(&self) -> Vec<MemoryConnector> {
        self.members.iter().map(Member::connector).collect()
    }

    /// Begins a phase.
    pub(crate) fn begin(&self, troubles: [Trouble; NODES]) {
        let from = Instant::now();
        let mut phases = self.phases.borrow_mut();
        let before = phases.last();
        let sound_from = std::array::from_fn(|at| {
            let sound = troubles[at].is_sound();
            let Some(before) = before else { return sound.then_some(from) };
            let since = || before.sound_from[at].unwrap_or(from + RECOVERY);
            // Several rests may follow each other; the last one that was asked for ends them.
            sound.then(|| since() + before.troubles[at].rest())
        });
        for (member, trouble) in self.members.iter().zip(&troubles) {
            member.suffer(trouble);
        }
        phases.push(Phase { from, troubles, sound_from });
    }

    /// Begins phases drawn from the seed, for ever.
    pub(crate) async fn trouble(&self, mut rng: SmallRng) {
        loop {
            let (troubles, length) = draw(&mut rng);
            self.begin(troubles.map(|trouble| self.reachable(trouble)));
            tokio::time::sleep(length).await; // Sleeps: virtual time.
        }
    }

    /// The trouble as the way to the nodes allows it: a port stays open, so what is down resets.
    fn reachable(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Down if self.way == Way::Ports => Trouble::Faulty(Fault::Reset, 1.0),
            trouble => trouble,
        }
    }

    /// How many phases there have been.
    pub(crate) fn phase_count(&self) -> usize {
        self.phases.borrow().len()
    }

    /// Whether there was an instant between these two at which no node was sound.
    pub(crate) fn all_unsound(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        phases.iter().enumerate().any(|(at, phase)| {
            let end = phases.get(at + 1).map_or(until, |next| next.from.min(until));
            let first = phase.from.max(from);
            let unsound = |since: &Option<Instant>| since.is_none_or(|since| since > first);
            first <= end && phase.sound_from.iter().all(unsound)
        })
    }

    /// Whether no head could be learnt at some instant between these two: all nodes were out of
    /// reach (one that has just come back still is), or two of the three hung, which takes the
    /// gateway as long to notice as it waits for three answers.
    pub(crate) fn none_heard(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        (0..phases.len()).any(|at| {
            let phase = &phases[at];
            let end = phases.get(at + 1).map_or(until, |next| next.from);
            let before = at.checked_sub(1).map_or(phase, |before| &phases[before]);
            let silent =
                |node: usize| phase.troubles[node].is_silent() || before.troubles[node].is_silent();
            let hung = phase.troubles.iter().filter(|trouble| trouble.hangs()).count();
            let unknown = (0..NODES).all(silent) || hung >= 2;
            phase.from <= until && end >= from && unknown
        })
    }

    /// Whether a node lied at some instant between these two.
    pub(crate) fn any_lying(&self, from: Instant, until: Instant) -> bool {
        let phases = self.phases.borrow();
        phases.iter().enumerate().any(|(at, phase)| {
            let end = phases.get(at + 1).map_or(until, |next| next.from);
            let lies = |trouble: &Trouble| matches!(trouble, Trouble::Lying(_));
            phase.from <= until && end >= from && phase.troubles.iter().any(lies)
        })
    }

    /// The phases between two instants in words, times counted from the world's start.
    pub(crate) fn told(&self, from: Instant, until: Instant, origin: Instant) -> String {
        let phases = self.phases.borrow();
        let mut text = String::new();
        for (at, phase) in phases.iter().enumerate() {
            let end = phases.get(at + 1).map(|next| next.from);
            if phase.from <= until && end.is_none_or(|end| end >= from) {
                let begins = phase.from.saturating_duration_since(origin);
                let _ = writeln!(text, "    from {begins:?}: {:?}", phase.troubles);
            }
        }
        text
    }
}

impl Member {
    fn connector(&self) -> MemoryConnector {
        let (node, up) = (Arc::clone(&self.node), Arc::clone(&self.up));
        let served = Arc::clone(&self.served);
        Arc::new(move || {
            if !up.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            let serving = simnode::serve::serve_connection(Arc::clone(&node), theirs);
            let task = tokio::spawn(serving).abort_handle();
            let mut served = served.lock();
            served.retain(|task| !task.is_finished());
            served.push(task);
            Ok(ours)
        })
    }

    fn suffer(&self, trouble: &Trouble) {
        let up = *trouble != Trouble::Down;
        self.up.store(up, Ordering::Relaxed);
        if !up {
            let served = std::mem::take(&mut *self.served.lock());
            served.iter().for_each(AbortHandle::abort);
        }
        if let Some(former) = self.worsening.take() {
            former.abort();
        }
        let view = self.node.view(Instant::now()).expect("it looks at a world");
        let set = self.node.set(|settings| {
            *settings = self.usual.clone();
            match trouble {
                Trouble::None | Trouble::Down => {}
                Trouble::Slow => {
                    settings.latency = Latency::Lognormal { median_ms: 60.0, sigma: 0.6 };
                }
                Trouble::Frozen | Trouble::Lagging(_) => settings.frozen_at = Some(view.head),
                Trouble::Lying(blocks) => settings.ahead_blocks = *blocks,
                Trouble::Unindexed(delay) => settings.index_delay = *delay,
                Trouble::SecondBackend(share) => {
                    settings.inside = Some(SecondBackend { behind_blocks: 1, share: *share });
                }
                Trouble::Faulty(fault, share) => {
                    let rule = FaultRule { share: *share, ..FaultRule::always(*fault) };
                    settings.faults = vec![rule];
                }
            }
        });
        set.expect("these settings can be");
        if let Trouble::Lagging(blocks) = *trouble {
            let lag_blocks = self.usual.lag_blocks + blocks;
            let node = Arc::clone(&self.node);
            let world = node.world().expect("it looks at a world");
            let reached = world.instant_of(view.head + lag_blocks) + self.usual.delay;
            let worsening = tokio::spawn(async move {
                tokio::time::sleep_until(reached).await;
                let set = node.set(|settings| {
                    (settings.frozen_at, settings.lag_blocks) = (None, lag_blocks);
                });
                set.expect("these settings can be");
            });
            self.worsening.replace(Some(worsening.abort_handle()));
        }
    }
}

/// What goes wrong next, and for how long.
fn draw(rng: &mut SmallRng) -> ([Trouble; NODES], Duration) {
    let mut length = Duration::from_millis(rng.random_range(500..6_000));
    let mut troubles = match rng.random_range(0..19) {
        0..2 => [Trouble::None, Trouble::None, Trouble::None],
        2..5 => [deceit(rng), Trouble::None, Trouble::None],
        5..7 => [faulty(rng), Trouble::None, Trouble::None],
        7..9 => [faulty(rng), faulty(rng), Trouble::None],
        9 => [Trouble::Down, Trouble::None, Trouble::None],
        10 => [Trouble::Down, Trouble::Down, Trouble::None],
        11 => [Trouble::Down, faulty(rng), Trouble::None],
        12 => [Trouble::Slow, Trouble::None, Trouble::None],
        13 => [Trouble::Slow, Trouble::Slow, faulty(rng)],
        14 => [faulty(rng), faulty(rng), faulty(rng)],
        15..18 => [incomplete(rng), incomplete(rng), Trouble::None],
        _ => {
            length = Duration::from_millis(rng.random_range(300..2_500));
            [Trouble::Down, Trouble::Down, Trouble::Down]
        }
    };
    troubles.shuffle(rng);
    (troubles, length)
}

fn deceit(rng: &mut SmallRng) -> Trouble {
    match rng.random_range(0..3) {
        0 => Trouble::Frozen,
        1 => Trouble::Lagging(rng.random_range(3..14)),
        _ => Trouble::Lying(rng.random_range(1..120)),
    }
}

/// Something that makes responses lack what their blocks have.
fn incomplete(rng: &mut SmallRng) -> Trouble {
    match rng.random_range(0..3) {
        0 => Trouble::SecondBackend([0.3, 1.0][rng.random_range(0..2)]),
        _ => Trouble::Unindexed(Duration::from_millis(rng.random_range(200..3_000))),
    }
}

fn faulty(rng: &mut SmallRng) -> Trouble {
    let fault = match rng.random_range(0..16) {
        0 => Fault::Close,
        1 => Fault::Reset,
        2 => Fault::Truncate,
        3 => Fault::Html,
        4 => Fault::WrongId,
        5 => Fault::DuplicateId,
        6 => Fault::TooManyRequests { retry_after_s: REST_S },
        7 => Fault::Error { error: ErrorKind::LimitExceeded },
        8 => Fault::Error { error: ErrorKind::HeaderNotFound },
        9 => Fault::Error { error: ErrorKind::MissingTrieNode },
        10 => Fault::Error { error: ErrorKind::ExecutionTimeout },
        11 => Fault::ResultAndError,
        12 => Fault::NeitherResultNorError,
        13 => Fault::Unavailable,
        14 => Fault::SlowBody { bytes_per_second: SLOW_BODY },
        _ => Fault::Hang,
    };
    let share = [0.05, 0.3, 1.0][rng.random_range(0..3)];
    Trouble::Faulty(fault, share)
}
