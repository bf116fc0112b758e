//! Three nodes of one chain that index blocks late, balance over two backends, or prune.

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

struct Phase {
    from: Instant,
    troubles: [Trouble; 3],
}

pub(crate) struct Nodes {
    world: Arc<World>,
    pub(crate) nodes: Vec<Arc<Node>>,
    /// For how many blocks each node keeps logs and receipts; `None` keeps all. Constant for a
    /// whole run.
    keeps: [Option<u64>; 3],
    phases: RefCell<Vec<Phase>>,
}

impl Nodes {
    /// Up to two nodes prune. At least one keeps all logs, so no data is lost for all.
    pub(crate) fn new(world: &Arc<World>, rng: &mut SmallRng) -> Nodes {
        let mut keeps = [None; 3];
        for keeps in keeps.iter_mut().take(rng.random_range(0..=2)) {
            *keeps = Some(rng.random_range(8..120));
        }
        keeps.shuffle(rng);
        let node = |name| Node::new(name, Arc::clone(world));
        let nodes = Nodes {
            world: Arc::clone(world),
            nodes: ["a", "b", "c"].map(node).into(),
            keeps,
            phases: RefCell::default(),
        };
        nodes.go_right();
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
    pub(crate) async fn go_wrong(&self, mut rng: SmallRng) {
        loop {
            let mut troubles = draw(&mut rng);
            troubles.shuffle(&mut rng);
            self.begin(troubles);
            // Sleeps: virtual time.
            sleep(Duration::from_millis(rng.random_range(2_000..9_000))).await;
        }
    }

    /// Ends the trouble of all nodes.
    pub(crate) fn go_right(&self) {
        self.begin([Trouble::None; 3]);
    }

    fn begin(&self, troubles: [Trouble; 3]) {
        for ((node, keeps), trouble) in self.nodes.iter().zip(self.keeps).zip(troubles) {
            let set = node.set(|settings| {
                settings.latency = Latency::Lognormal { median_ms: 3.0, sigma: 0.5 };
                settings.index_delay = Duration::ZERO;
                settings.inside = None;
                settings.keeping.logs_blocks = keeps;
                match trouble {
                    Trouble::None => {}
                    Trouble::Late(delay) => settings.index_delay = delay,
                    Trouble::SecondBackend(share, delay) => {
                        settings.index_delay = delay;
                        settings.inside = Some(SecondBackend { behind_blocks: 1, share });
                    }
                }
            });
            set.unwrap();
        }
        self.phases.borrow_mut().push(Phase { from: Instant::now(), troubles });
    }

    pub(crate) fn phase_count(&self) -> usize {
        self.phases.borrow().len()
    }

    /// True if some node had the logs and receipts of a block during the whole time from `from` to
    /// `until`.
    pub(crate) fn had(&self, number: u64, from: Instant, until: Instant) -> bool {
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
            let keeps = self.keeps[node].is_none_or(|blocks| number + blocks >= head);
            keeps
                && overlapping.iter().all(|(since, troubles)| match troubles[node] {
                    Trouble::None => appeared <= *since,
                    Trouble::Late(delay) => appeared + delay <= *since,
                    Trouble::SecondBackend(..) => false,
                })
        })
    }

    /// Describes the phases from 12 seconds before an instant on.
    pub(crate) fn describe_phases(&self, at: Instant) -> String {
        let mut text = format!("  keep {:?}\n", self.keeps);
        let since = at.checked_sub(Duration::from_secs(12)).unwrap_or(self.world.origin());
        for phase in self.phases.borrow().iter().filter(|phase| phase.from >= since) {
            let from = phase.from.saturating_duration_since(self.world.origin());
            let _ = writeln!(text, "  from {from:?}: {:?}", phase.troubles);
        }
        text
    }
}

/// Draws the troubles of the next phase. Often all three nodes are in trouble.
fn draw(rng: &mut SmallRng) -> [Trouble; 3] {
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
