//! The judge of a demo: verifies results against the simulated chain (the *world*). The *oracle*
//! (`simnode::oracle`) decides if a correct node could have returned a result. The judge runs on
//! its own thread, so that it adds no latency to calls.

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

#[cfg(test)]
mod tests;

/// Maximum nesting depth of a response's JSON. Blocks with transactions have about five levels.
pub(super) const RESPONSE_DEPTH_MAX: usize = 32;
/// Capacity of the judge's queue. Further responses are skipped, and counted as skipped.
const QUEUE_MAX: usize = 8_192;
/// Maximum number of wrong responses that are reported with their text. All wrong responses are
/// counted.
const SAMPLES_MAX: usize = 5;
/// Maximum number of characters of a reported response body.
const SAMPLE_CHARS_MAX: usize = 160;
/// Maximum age that a response's chain state may have when the call is sent. The gateway uses a new
/// block once two nodes have reported it. That takes up to two of the gateway's default poll
/// intervals of 500 ms, and the responses to the polls take up to 500 ms more.
pub(super) const STALENESS: Duration = Duration::from_millis(1500);
/// Maximum number of blocks by which a correct node lags: the gateway's default `lag_max`.
pub(super) const LAG_BLOCKS_MAX: u64 = 2;

/// A call and its response.
pub(super) struct Evidence {
    pub(super) method: &'static str,
    pub(super) params: String,
    /// Body of the response, which holds a result.
    pub(super) body: Vec<u8>,
    /// Send time minus the longest scheduling delay so far. The delay extends the allowed age
    /// (`traffic.rs`).
    pub(super) sent: Instant,
    pub(super) received: Instant,
    /// Client number. A client must never receive an older head than in an earlier response.
    pub(super) client: u64,
}

/// Counts of verdicts.
#[derive(Default)]
pub(super) struct Verdicts {
    right: AtomicU64,
    wrong: AtomicU64,
    skipped: AtomicU64,
    /// Descriptions of the first wrong responses.
    samples: Mutex<Vec<String>>,
}

/// Sends responses to the judge.
#[derive(Clone)]
pub(super) struct JudgeSender {
    queue: SyncSender<Evidence>,
    verdicts: Arc<Verdicts>,
}

/// The running judge.
pub(super) struct Judge {
    pub(super) verdicts: Arc<Verdicts>,
    thread: JoinHandle<()>,
}

impl Verdicts {
    /// Returns the number of responses that match the chain.
    pub(super) fn right(&self) -> u64 {
        self.right.load(Ordering::Relaxed)
    }

    /// Returns the number of responses that do not match: stale, mixed (of two branches), with an
    /// older head than an earlier response, or wrong.
    pub(super) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// Returns the number of responses that were skipped because the judge could not keep up.
    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Returns descriptions of the first wrong responses.
    pub(super) fn samples(&self) -> Vec<String> {
        self.samples.lock().clone()
    }
}

impl JudgeSender {
    /// Submits a response. Skips it if the queue is full; never blocks.
    pub(super) fn submit(&self, evidence: Evidence) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(evidence)
        {
            self.verdicts.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Judge {
    /// Starts the judge of one chain's responses. It ends when every [`JudgeSender`] is dropped.
    pub(super) fn start(world: Arc<World>) -> Result<(Judge, JudgeSender)> {
        let options = OracleOptions {
            staleness: STALENESS,
            lag_blocks_max: LAG_BLOCKS_MAX,
            ..OracleOptions::default()
        };
        let oracle = Oracle::new(world, options);
        let (queue, submitted) = sync_channel(QUEUE_MAX);
        let verdicts = Arc::<Verdicts>::default();
        let sender = JudgeSender { queue, verdicts: Arc::clone(&verdicts) };
        let thread = {
            let verdicts = Arc::clone(&verdicts);
            let work = move || judge_submitted(&oracle, &submitted, &verdicts);
            std::thread::Builder::new().name("demo-judge".to_owned()).spawn(work)?
        };
        Ok((Judge { verdicts, thread }, sender))
    }

    /// Waits until every submitted response is judged.
    pub(super) fn finish(self) -> Arc<Verdicts> {
        if self.thread.join().is_err() {
            // The judge has panicked and may have left responses unjudged. One wrong response makes
            // the demo fail.
            self.verdicts.wrong.fetch_add(1, Ordering::Relaxed);
        }
        self.verdicts
    }
}

/// Judges the submitted responses until every [`JudgeSender`] is dropped.
fn judge_submitted(oracle: &Oracle, submitted: &Receiver<Evidence>, verdicts: &Verdicts) {
    for evidence in submitted {
        let Some(fault) = find_fault(oracle, &evidence) else {
            verdicts.right.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        verdicts.wrong.fetch_add(1, Ordering::Relaxed);
        let mut samples = verdicts.samples.lock();
        if samples.len() < SAMPLES_MAX {
            let body = String::from_utf8_lossy(&evidence.body);
            let body: String = body.chars().take(SAMPLE_CHARS_MAX).collect();
            let Evidence { method, params, .. } = evidence;
            samples.push(format!("{method} {params}: {fault}\n{body}"));
        }
    }
}

/// Returns a description of the fault in a response, or `None` if the response matches the chain.
fn find_fault(oracle: &Oracle, evidence: &Evidence) -> Option<String> {
    let Evidence { method, params, body, sent, received, client } = evidence;
    let Ok(response) = parse_response(body, RESPONSE_DEPTH_MAX) else {
        return Some("not a JSON-RPC response".to_owned());
    };
    let Outcome::Result(result) = response.outcome else { return Some("an error".to_owned()) };
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
        Verdict::Stale { blocks } => Some(format!("stale by {blocks} blocks")),
        Verdict::Backward { from, to } => Some(format!("head {to} after head {from}")),
        Verdict::Mixed(reason) => Some(format!("mixed: {reason}")),
        Verdict::Wrong(reason) => Some(format!("wrong: {reason}")),
        // The demo's calls get no such verdict: the chain determines the result of each call.
        Verdict::Failed { .. } | Verdict::Unjudged(_) => Some("cannot be judged".to_owned()),
    }
}
