//! The judge of a demo: compares results with the simulated chain's truth, on a thread beside the
//! clients, so that judging costs no call its time. What is true is `simnode::oracle`'s to say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use simnode::oracle::{Exchange, ObservedReply, Oracle, OracleOptions, Verdict};
use simnode::world::World;
use tokio::time::Instant;
use wire::response::{Outcome, parse_response};

use super::traffic::ANSWER_DEPTH_MAX;

#[cfg(test)]
mod tests;

/// Answers that may wait to be judged; beyond it they are passed over, and counted as such.
const WAITING_MAX: usize = 8_192;
/// Untrue answers that are shown; all are counted.
const SHOWN_MAX: usize = 5;
/// Letters of a shown answer.
const SHOWN_LETTERS_MAX: usize = 160;
/// How old the view behind an answer may be when the call is sent: two of the gateway's default
/// head polls (500 ms), one for a first and one for a second node to show a block, and half a
/// second for their answers.
pub(super) const STALENESS: Duration = Duration::from_millis(1500);
/// Blocks that an honest node may be behind, as the gateway's default `lag_max`.
pub(super) const LAG_BLOCKS_MAX: u64 = 2;

/// A call with its answer.
pub(super) struct Evidence {
    pub(super) method: &'static str,
    pub(super) params: String,
    /// The answer's body, with a result in it.
    pub(super) body: Vec<u8>,
    /// When it was sent, less the longest that the machine has held up a client so far.
    pub(super) sent: Instant,
    pub(super) received: Instant,
    /// Whose heads may not fall.
    pub(super) client: u64,
}

/// What was judged so far.
#[derive(Default)]
pub(super) struct Judged {
    right: AtomicU64,
    wrong: AtomicU64,
    passed_over: AtomicU64,
    shown: Mutex<Vec<String>>,
}

/// Where clients bring their answers.
#[derive(Clone)]
pub(super) struct Bench {
    queue: SyncSender<Evidence>,
    judged: Arc<Judged>,
}

/// The judge at work.
pub(super) struct Judge {
    pub(super) judged: Arc<Judged>,
    thread: JoinHandle<()>,
}

impl Judged {
    /// Answers that the chain bears out.
    pub(super) fn right(&self) -> u64 {
        self.right.load(Ordering::Relaxed)
    }

    /// Answers that it does not: stale, mixed, going back, or plainly wrong.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Answers that nobody judged, because the judge could not keep up.
    pub(super) fn passed_over(&self) -> u64 {
        self.passed_over.load(Ordering::Relaxed)
    }

    /// The first wrong answers, in words.
    pub(super) fn shown(&self) -> Vec<String> {
        self.shown.lock().clone()
    }
}

impl Bench {
    /// Brings an answer; never waits.
    pub(super) fn bring(&self, evidence: Evidence) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(evidence)
        {
            self.judged.passed_over.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Judge {
    /// Starts the judge of all answers that come from one chain. He ends when every [`Bench`] is
    /// gone.
    pub(super) fn start(world: Arc<World>) -> Result<(Judge, Bench)> {
        let options = OracleOptions {
            staleness: STALENESS,
            lag_blocks_max: LAG_BLOCKS_MAX,
            ..OracleOptions::default()
        };
        let oracle = Oracle::new(world, options);
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let judged = Arc::<Judged>::default();
        let bench = Bench { queue, judged: Arc::clone(&judged) };
        let thread = {
            let judged = Arc::clone(&judged);
            let work = move || judge_all(&oracle, &waiting, &judged);
            std::thread::Builder::new().name("demo-judge".to_owned()).spawn(work)?
        };
        Ok((Judge { judged, thread }, bench))
    }

    /// Waits until everything brought is judged.
    pub(super) fn finish(self) -> Arc<Judged> {
        if self.thread.join().is_err() {
            // Its panic is printed; what it had not judged must not pass for right.
            self.judged.wrong.fetch_add(1, Ordering::Relaxed);
        }
        self.judged
    }
}

fn judge_all(oracle: &Oracle, waiting: &Receiver<Evidence>, judged: &Judged) {
    for evidence in waiting {
        let Some(fault) = fault_of(oracle, &evidence) else {
            judged.right.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        judged.wrong.fetch_add(1, Ordering::Relaxed);
        let mut shown = judged.shown.lock();
        if shown.len() < SHOWN_MAX {
            let body = String::from_utf8_lossy(&evidence.body);
            let body: String = body.chars().take(SHOWN_LETTERS_MAX).collect();
            let Evidence { method, params, .. } = evidence;
            shown.push(format!("{method} {params}: {fault}\n{body}"));
        }
    }
}

/// What is untrue about an answer, if anything.
fn fault_of(oracle: &Oracle, evidence: &Evidence) -> Option<String> {
    let Evidence { method, params, body, sent, received, client } = evidence;
    let Ok(read) = parse_response(body, ANSWER_DEPTH_MAX) else {
        return Some("not an answer".to_owned());
    };
    let Outcome::Result(result) = read.outcome else { return Some("an error".to_owned()) };
    let verdict = oracle.judge(&Exchange {
        method,
        params: Some(params.as_bytes()),
        reply: ObservedReply::Result(result),
        sent: *sent,
        received: *received,
        client: *client,
    });
    match verdict {
        Verdict::Right => None,
        Verdict::Stale { by } => Some(format!("stale by {by} blocks")),
        Verdict::Backward { from, to } => Some(format!("head {to} after head {from} was seen")),
        Verdict::Mixed(why) => Some(format!("mixed: {why}")),
        Verdict::Wrong(why) => Some(format!("wrong: {why}")),
        // The demo makes only calls whose results the chain determines.
        Verdict::Failed { .. } | Verdict::Unjudged(_) => Some("cannot be judged".to_owned()),
    }
}
