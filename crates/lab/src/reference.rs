//! Compares sampled responses of the target with those of a trusted reference node.
//!
//! The engine samples some calls of the load. A separate thread repeats each sampled call on the
//! reference, one call at a time, so the comparison takes little CPU from the load. If the thread's
//! queue is full, a sample is counted as skipped.
//!
//! If the two responses differ, both nodes are called again. The target's response counts as wrong
//! if the difference persists, or if the chain cannot have moved between the calls. The chain
//! cannot have moved if both conditions hold:
//! - The reference returned the same response twice.
//! - The request names its block, or the reference's head (the number of its newest block) has not
//!   changed since before the sample.
//!
//! `analysis/json_compare.rs` compares the responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab_model::plan::{Plan, Tls};
use lab_model::results::run::{Compared, Difference};
use wire::block::BlockRef;
use wire::call;
use wire::call::{Body, Limits};
use wire::family::Family;
use wire::method::{Repeat, Validity, methods_of};

use crate::analysis::json_compare::{AllowedDifferences, difference};
use crate::target;
use crate::target::{Client, DifferentChains, TargetFault};

#[cfg(test)]
mod tests;

/// Maximum number of samples in the queue of the comparison.
const QUEUE_MAX: usize = 256;
/// Interval at which the reference's head is read.
const HEAD_INTERVAL: Duration = Duration::from_millis(250);
/// The comparison assumes that one node gets a block at most this long after the other.
const HEAD_SKEW_MAX: Duration = Duration::from_secs(1);
/// Maximum number of differences that are reported per method.
const EXAMPLES_MAX: usize = 5;
/// Maximum number of bytes of a request that are reported with a difference.
const REQUEST_BYTES_MAX: usize = 500;
/// Deepest nesting of arrays and objects in a response.
const DEPTH_MAX: usize = 128;

/// A sampled call with the target's response.
#[derive(Clone, Debug)]
pub(crate) struct SampledCall {
    /// Time at which the target responded.
    pub(crate) at: Instant,
    /// Index into the plan's methods.
    pub(crate) method: usize,
    /// Body of the request.
    pub(crate) request: Vec<u8>,
    /// Body of the response.
    pub(crate) response: Vec<u8>,
}

/// A handle to the thread that compares responses.
pub(crate) struct Comparison {
    samples: SyncSender<SampledCall>,
    /// For each method of the plan: true if its calls are safe to repeat and correct nodes return
    /// equal responses.
    comparable: Vec<bool>,
    /// Number of samples that the queue had no space for.
    skipped: u64,
    /// True once the thread must end.
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<Compared>,
}

/// Reason why responses cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceFault {
    /// The reference cannot be used.
    #[error("the reference: {0}")]
    Target(TargetFault),
    /// The reference has another chain than the target.
    #[error("the reference: {0}")]
    Chain(DifferentChains),
    /// The thread could not be started.
    #[error("cannot start the thread that compares responses: {0}")]
    Thread(#[source] std::io::Error),
}

// The messages contain the faults, so the faults are no sources, which would be printed again.
impl From<TargetFault> for ReferenceFault {
    fn from(fault: TargetFault) -> ReferenceFault {
        ReferenceFault::Target(fault)
    }
}

impl From<DifferentChains> for ReferenceFault {
    fn from(fault: DifferentChains) -> ReferenceFault {
        ReferenceFault::Chain(fault)
    }
}

impl Comparison {
    /// Starts the comparison. Returns `None` if the plan names no reference.
    ///
    /// # Errors
    /// Fails if the reference does not respond to a first call in JSON-RPC, or has another chain than
    /// the target.
    pub(crate) fn start(plan: &Plan) -> Result<Option<Comparison>, ReferenceFault> {
        let Some(reference) = &plan.reference else { return Ok(None) };
        let tls = Tls { ca: plan.connections.tls.ca.clone(), ..Tls::default() };
        let reference_client = Client::new(&reference.target(&plan.target), &tls)?;
        reference_client.call("web3_clientVersion", "[]")?;
        let target_client = Client::new(&plan.target, &plan.connections.tls)?;
        let urls = [plan.target.url.to_string(), reference.url.to_string()];
        let family = plan.target.family.unwrap_or(Family::Ethereum);
        target::check_same_chain(
            (&target_client, &urls[0]),
            (&reference_client, &urls[1]),
            family,
        )?;
        let mut comparer = Comparer {
            target: target_client,
            reference: reference_client,
            allowed: AllowedDifferences {
                ignore: reference.ignore.clone(),
                tolerance: reference.tolerance,
                sets: reference.sets.clone(),
            },
            methods: plan.methods.clone(),
            counts: BTreeMap::new(),
            family,
            head: None,
            head_read_at: None,
            compared: Compared { reference: reference.url.to_string(), ..Compared::default() },
        };
        comparer.read_head();
        let (samples, queue) = sync_channel(QUEUE_MAX);
        let stopped = Arc::new(AtomicBool::new(false));
        let thread_stopped = Arc::clone(&stopped);
        let thread = std::thread::Builder::new().name("reference".to_owned());
        let thread = thread
            .spawn(move || comparer.run(&queue, &thread_stopped))
            .map_err(ReferenceFault::Thread)?;
        let comparable = plan.methods.iter().map(|name| is_comparable(name)).collect();
        Ok(Some(Comparison { samples, comparable, skipped: 0, stopped, thread }))
    }

    /// Queues a sample, or counts it as skipped if the queue is full. Calls that must not be
    /// repeated, or whose responses depend on the node, are ignored.
    pub(crate) fn offer(&mut self, sample: SampledCall) {
        if !self.comparable.get(sample.method).copied().unwrap_or_default() {
            return;
        }
        // Sending fails if the queue is full, or if the thread has panicked.
        self.skipped += u64::from(self.samples.try_send(sample).is_err());
    }

    /// Ends the comparison after the current call. The samples in the queue count as skipped.
    /// `not_offered` is the number of samples that the engine skipped; these count as skipped too.
    pub(crate) fn finish(self, not_offered: u64) -> Compared {
        self.stopped.store(true, Ordering::Relaxed);
        drop(self.samples);
        let mut compared = self.thread.join().unwrap_or_default();
        compared.skipped += self.skipped + not_offered;
        compared
    }
}

/// Returns true if a method's responses can be compared. The method must be in a family's method
/// table and safe to repeat, and its response must depend only on the chain. A row is the method's
/// entry in that table.
fn is_comparable(method: &str) -> bool {
    let rows = Family::ALL.into_iter().filter_map(|family| methods_of(family).method(method));
    rows.into_iter().any(|row| {
        row.repeat == Repeat::Safe && !matches!(row.validity, Validity::Mempool | Validity::Never)
    })
}

/// The state of the thread that compares responses.
struct Comparer {
    target: Client,
    reference: Client,
    allowed: AllowedDifferences,
    methods: Vec<Box<str>>,
    /// Counts by the index of a method in `methods`.
    counts: BTreeMap<usize, MethodCounts>,
    family: Family,
    /// The reference's head, and the time at which that head was first read. `None` if the
    /// reference did not return a head.
    head: Option<(u64, Instant)>,
    /// Time of the last attempt to read the head.
    head_read_at: Option<Instant>,
    /// The result so far.
    compared: Compared,
}

/// Counts of one method.
#[derive(Clone, Copy, Default)]
struct MethodCounts {
    compared: u64,
    wrong: u64,
}

impl Comparer {
    /// Compares samples until [`Comparison::finish`] drops the sending half of the queue. Once
    /// `stopped` is true, counts the remaining samples as skipped.
    fn run(&mut self, samples: &Receiver<SampledCall>, stopped: &AtomicBool) -> Compared {
        loop {
            if self.head_read_at.is_none_or(|read_at| read_at.elapsed() >= HEAD_INTERVAL) {
                self.read_head();
            }
            let sample = match samples.recv_timeout(HEAD_INTERVAL) {
                Ok(sample) => sample,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if stopped.load(Ordering::Relaxed) {
                self.compared.skipped += 1;
            } else {
                self.compare(&sample);
            }
        }
        let name = |method: usize| self.methods.get(method).map(|name| name.to_string());
        let rows = self.counts.iter().map(|(&method, counts)| {
            (name(method).unwrap_or_default(), counts.compared, counts.wrong)
        });
        self.compared.methods = rows.collect();
        std::mem::take(&mut self.compared)
    }

    /// Reads the reference's head. An unchanged head keeps the time at which it was first read.
    fn read_head(&mut self) {
        let new_head = target::read_head_with(&self.reference, self.family);
        self.head_read_at = Some(Instant::now());
        self.head = match (self.head, new_head) {
            (Some((old_head, since)), Some(head)) if old_head == head => Some((head, since)),
            (_, new_head) => new_head.map(|head| (head, Instant::now())),
        };
    }

    /// Returns true if the request names its block, or if the reference's head has not changed
    /// since before the target's response.
    fn is_block_unchanged(&mut self, sample: &SampledCall) -> bool {
        if names_its_block(&sample.request) {
            return true;
        }
        self.read_head();
        self.head.is_some_and(|(_, since)| since + HEAD_SKEW_MAX <= sample.at)
    }

    /// Compares the target's response with the reference's, and records the outcome.
    fn compare(&mut self, sample: &SampledCall) {
        let Some(first_response) = call_node(&self.reference, &sample.request) else {
            self.compared.unanswered += 1;
            return;
        };
        let mut mismatch = difference(&sample.response, &first_response, &self.allowed);
        if mismatch.is_some() {
            let target_response = call_node(&self.target, &sample.request);
            let second_response = call_node(&self.reference, &sample.request);
            let (Some(target_response), Some(second_response)) = (target_response, second_response)
            else {
                self.compared.unanswered += 1;
                return;
            };
            let is_reference_stable =
                difference(&first_response, &second_response, &self.allowed).is_none();
            let second_mismatch = difference(&target_response, &second_response, &self.allowed);
            // If the responses agree now, either the chain has moved, or the target's first
            // response was wrong. The latter is certain only if the chain cannot have moved.
            let is_first_response_wrong =
                second_mismatch.is_none() && is_reference_stable && self.is_block_unchanged(sample);
            if !is_first_response_wrong {
                self.compared.moved += u64::from(second_mismatch.is_none());
                mismatch = second_mismatch;
            }
        }
        self.compared.compared += 1;
        let counts = self.counts.entry(sample.method).or_default();
        counts.compared += 1;
        let Some(mismatch) = mismatch else { return };
        counts.wrong += 1;
        self.compared.wrong += 1;
        if counts.wrong <= EXAMPLES_MAX as u64 {
            let request = &sample.request[..sample.request.len().min(REQUEST_BYTES_MAX)];
            self.compared.examples.push(Difference {
                method: self
                    .methods
                    .get(sample.method)
                    .map_or_else(String::new, ToString::to_string),
                request: String::from_utf8_lossy(request).into_owned(),
                pointer: mismatch.pointer,
                target: mismatch.left.to_string(),
                reference: mismatch.right.to_string(),
            });
        }
    }
}

/// Returns true if the call names the block that its response is about, or if the response is the
/// same for all blocks. A tag such as `latest` does not name a block.
pub(crate) fn names_its_block(request: &[u8]) -> bool {
    let Ok(Body::Single(Ok(call))) = call::decode(request, &Limits::DEFAULT) else { return false };
    let rows = Family::ALL.into_iter().filter_map(|family| methods_of(family).method(&call.method));
    let names_block = |row: &wire::method::Method| match row.validity {
        Validity::Constant => true,
        Validity::Number | Validity::Hash => match row.block_ref(&call.params) {
            Ok(Some((block, _))) => !matches!(block, BlockRef::Tag(_)),
            _ => false,
        },
        _ => false,
    };
    rows.into_iter().any(names_block)
}

/// Sends a request to a node and returns the body of the response. Returns `None` if there is no
/// JSON-RPC response, or if the HTTP status is 429.
fn call_node(node: &Client, request: &[u8]) -> Option<Vec<u8>> {
    let (status, body) = node.post(request).ok()?;
    let valid = status != 429 && wire::response::parse_response(&body, DEPTH_MAX).is_ok();
    valid.then_some(body)
}
