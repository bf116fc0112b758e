//! Three nodes of one chain. In random phases, they index blocks late or balance calls over two
//! backends. Some nodes also prune old data.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use gateway::MemoryConnector;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use simnode::node::Node;
use simnode::node::settings::{Latency, SecondBackend};
use simnode::world::World;
use tokio::time::{Instant, sleep};

/// Buffer size of the in-memory connections between the gateway and a node.
const STREAM_BYTES: usize = 64 * 1024;

/// What is wrong with a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    None,
    /// The node has logs and receipts this long after their block.
    Late(Duration),
    /// A share of the calls reaches a second backend that is one block behind. Both backends have
    /// logs and receipts this long after their block.
    SecondBackend(f64, Duration),
}

/// A time during which each node has one trouble. It ends when the next phase begins.
struct Phase {
    from: Instant,
    troubles: [Trouble; 3],
}

pub(crate) struct Nodes {
    world: Arc<World>,
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Number of newest blocks whose logs and receipts each node keeps. `None` keeps all. It stays
    /// the same for the whole test.
    kept_blocks: [Option<u64>; 3],
    phases: RefCell<Vec<Phase>>,
}

impl Nodes {
    /// Starts three nodes. Up to two of them prune. At least one keeps all logs, so that the
    /// gateway can always find them.
    pub(crate) fn new(world: &Arc<World>, rng: &mut SmallRng) -> Nodes {
        let mut kept_blocks = [None; 3];
        for kept in kept_blocks.iter_mut().take(rng.random_range(0..=2)) {
            *kept = Some(rng.random_range(8..120));
        }
        kept_blocks.shuffle(rng);
        let node = |name| Node::new(name, Arc::clone(world));
        let nodes = Nodes {
            world: Arc::clone(world),
            nodes: ["a", "b", "c"].map(node).into(),
            kept_blocks,
            phases: RefCell::default(),
        };
        nodes.make_healthy();
        nodes
    }

    pub(crate) fn connectors(&self) -> Vec<MemoryConnector> {
        let connector = |node: &Arc<Node>| -> MemoryConnector {
            let node = Arc::clone(node);
            Arc::new(move || {
                let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
                tokio::spawn(simnode::serve::serve_connection(Arc::clone(&node), theirs));
                Ok(ours)
            })
        };
        self.nodes.iter().map(connector).collect()
    }

    /// Starts a new random phase every few seconds, without end.
    pub(crate) async fn run_random_phases(&self, mut rng: SmallRng) {
        loop {
            let mut troubles = random_troubles(&mut rng);
            troubles.shuffle(&mut rng);
            self.begin_phase(troubles);
            // Sleeps: virtual time.
            sleep(Duration::from_millis(rng.random_range(2_000..9_000))).await;
        }
    }

    /// Ends the trouble of all nodes.
    pub(crate) fn make_healthy(&self) {
        self.begin_phase([Trouble::None; 3]);
    }

    fn begin_phase(&self, troubles: [Trouble; 3]) {
        for ((node, kept), trouble) in self.nodes.iter().zip(self.kept_blocks).zip(troubles) {
            let changed = node.set(|settings| {
                settings.latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.5 };
                settings.index_delay = Duration::ZERO;
                settings.inside = None;
                settings.keeping.logs_blocks = kept;
                match trouble {
                    Trouble::None => {}
                    Trouble::Late(delay) => settings.index_delay = delay,
                    Trouble::SecondBackend(share, delay) => {
                        settings.index_delay = delay;
                        settings.inside =
                            Some(SecondBackend { behind_blocks: 1, share, all_methods: false });
                    }
                }
            });
            changed.unwrap();
        }
        self.phases.borrow_mut().push(Phase { from: Instant::now(), troubles });
    }

    pub(crate) fn phase_count(&self) -> usize {
        self.phases.borrow().len()
    }

    /// True if at least one node had the logs and receipts of a block for the whole time between
    /// `from` and `until`.
    pub(crate) fn had_logs_of(&self, number: u64, from: Instant, until: Instant) -> bool {
        let appeared = self.world.instant_of(number);
        let head = self.world.height_at(until);
        let phases = self.phases.borrow();
        let overlapping: Vec<(Instant, &[Trouble; 3])> = phases
            .iter()
            .enumerate()
            .filter(|(at, phase)| {
                let end = phases.get(at + 1).map(|next| next.from);
                phase.from <= until && end.is_none_or(|end| end > from)
            })
            .map(|(_, phase)| (phase.from.max(from), &phase.troubles))
            .collect();
        (0..self.nodes.len()).any(|node| {
            let is_kept = self.kept_blocks[node].is_none_or(|blocks| number + blocks >= head);
            is_kept
                && overlapping.iter().all(|(since, troubles)| match troubles[node] {
                    Trouble::None => appeared <= *since,
                    Trouble::Late(delay) => appeared + delay <= *since,
                    Trouble::SecondBackend(..) => false,
                })
        })
    }

    /// Describes the phases that began at most 12 seconds before `at`, or later.
    pub(crate) fn describe_phases(&self, at: Instant) -> String {
        let mut text = format!("  keep {:?}\n", self.kept_blocks);
        let since = at.checked_sub(Duration::from_secs(12)).unwrap_or(self.world.origin());
        for phase in self.phases.borrow().iter().filter(|phase| phase.from >= since) {
            let from = phase.from.saturating_duration_since(self.world.origin());
            let _ = writeln!(text, "  from {from:?}: {:?}", phase.troubles);
        }
        text
    }
}

/// Returns random troubles for the next phase. Often all three nodes have one.
fn random_troubles(rng: &mut SmallRng) -> [Trouble; 3] {
    let other = |rng: &mut SmallRng| {
        let late = Duration::from_millis(rng.random_range(200..3_000));
        match rng.random_range(0..3) {
            0 => Trouble::SecondBackend(rng.random_range(0.2..0.8), late / 4),
            _ => Trouble::Late(late),
        }
    };
    let first = match rng.random_range(0..3) {
        0 => Trouble::None,
        1 => Trouble::Late(Duration::from_millis(200)),
        _ => other(rng),
    };
    [first, other(rng), other(rng)]
}
