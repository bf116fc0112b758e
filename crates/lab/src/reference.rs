//! Compares sampled responses of the target with those of a trusted reference node.
//!
//! The comparison runs on its own thread, one call at a time, so it costs the load only a little
//! CPU. If the queue is full, a sample is counted as skipped. A difference counts in two cases: it
//! persists after both nodes were called again, or the chain cannot have moved between the two
//! calls. The latter holds if the reference returned the same response twice, and either the call
//! names its block or the reference's head has not changed since before the sample.
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
use crate::target::{Client, TargetFault};

#[cfg(test)]
mod tests;

/// Maximum number of samples that wait for the comparison.
const WAITING_MAX: usize = 256;
/// Interval at which the reference's head is read.
const HEAD_EVERY: Duration = Duration::from_millis(250);
/// Maximum time by which the target may see a block earlier or later than the reference.
const HEADS_APART: Duration = Duration::from_secs(1);
/// Maximum number of differences that are reported per method.
const EXAMPLES_MAX: usize = 5;
/// Maximum number of bytes of a request that are reported with a difference.
const REQUEST_BYTES_MAX: usize = 500;

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

/// A handle to the comparing thread.
pub(crate) struct Comparison {
    samples: SyncSender<SampledCall>,
    /// By method: true if responses of two nodes must be equal and the call is safe to repeat.
    comparable: Vec<bool>,
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
    Target(#[from] TargetFault),
    /// The thread could not be started.
    #[error("cannot start the thread that compares responses: {0}")]
    Thread(#[source] std::io::Error),
}

impl Comparison {
    /// Starts the comparison, if the plan names a reference.
    ///
    /// # Errors
    /// Fails if the reference does not respond to a first call in JSON-RPC.
    pub(crate) fn start(plan: &Plan) -> Result<Option<Comparison>, ReferenceFault> {
        let Some(reference) = &plan.reference else { return Ok(None) };
        let tls = Tls { ca: plan.connections.tls.ca.clone(), ..Tls::default() };
        let client = Client::new(&reference.target(&plan.target), &tls)?;
        client.call("web3_clientVersion", "[]")?;
        let mut comparer = Comparer {
            target: Client::new(&plan.target, &plan.connections.tls)?,
            reference: client,
            allowed: AllowedDifferences {
                ignore: reference.ignore.clone(),
                tolerance: reference.tolerance,
                sets: reference.sets.clone(),
            },
            methods: plan.methods.clone(),
            counts: BTreeMap::new(),
            family: plan.target.family.unwrap_or(Family::Ethereum),
            head: None,
            head_read: None,
            compared: Compared { reference: reference.url.to_string(), ..Compared::default() },
        };
        comparer.read_head();
        let (samples, waiting) = sync_channel(WAITING_MAX);
        let stopped = Arc::new(AtomicBool::new(false));
        let thread_stopped = Arc::clone(&stopped);
        let thread = std::thread::Builder::new().name("reference".to_owned());
        let thread = thread
            .spawn(move || comparer.run(&waiting, &thread_stopped))
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
        // The thread takes no further sample if the queue is full, or if it has panicked.
        self.skipped += u64::from(self.samples.try_send(sample).is_err());
    }

    /// Ends the comparison after the current call. Waiting samples count as skipped, and so do the
    /// `skipped` ones that were never offered.
    pub(crate) fn finish(self, skipped: u64) -> Compared {
        self.stopped.store(true, Ordering::Relaxed);
        drop(self.samples);
        let mut compared = self.thread.join().unwrap_or_default();
        compared.skipped += self.skipped + skipped;
        compared
    }
}

/// Returns true if a method's responses can be compared: the method is known, safe to repeat, and
/// about the chain.
fn is_comparable(method: &str) -> bool {
    let rows = Family::ALL.into_iter().filter_map(|name| methods_of(name).method(method));
    rows.into_iter().any(|row| {
        row.repeat == Repeat::Safe && !matches!(row.validity, Validity::Mempool | Validity::Never)
    })
}

struct Comparer {
    target: Client,
    reference: Client,
    allowed: AllowedDifferences,
    methods: Vec<Box<str>>,
    /// Compared calls and differences, by method.
    counts: BTreeMap<usize, (u64, u64)>,
    family: Family,
    /// The reference's head, and the time at which that head was first read.
    head: Option<(u64, Instant)>,
    /// Time of the last reading of the head.
    head_read: Option<Instant>,
    compared: Compared,
}

impl Comparer {
    fn run(&mut self, samples: &Receiver<SampledCall>, stopped: &AtomicBool) -> Compared {
        loop {
            if self.head_read.is_none_or(|read_at| read_at.elapsed() >= HEAD_EVERY) {
                self.read_head();
            }
            let sample = match samples.recv_timeout(HEAD_EVERY) {
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
        let rows = self
            .counts
            .iter()
            .map(|(&method, &(calls, wrong))| (name(method).unwrap_or_default(), calls, wrong));
        self.compared.methods = rows.collect();
        std::mem::take(&mut self.compared)
    }

    fn read_head(&mut self) {
        let new_head = target::read_head_with(&self.reference, self.family);
        self.head_read = Some(Instant::now());
        self.head = match (self.head, new_head) {
            (Some((known, since)), Some(head)) if known == head => Some((known, since)),
            (_, new_head) => new_head.map(|head| (head, Instant::now())),
        };
    }

    /// Returns true if the chain cannot have moved between the target's response and now.
    fn head_unchanged(&mut self, sample: &SampledCall) -> bool {
        if names_its_block(&sample.request) {
            return true;
        }
        self.read_head();
        self.head.is_some_and(|(_, since)| since + HEADS_APART <= sample.at)
    }

    fn compare(&mut self, sample: &SampledCall) {
        let Some(first_response) = call_node(&self.reference, &sample.request) else {
            self.compared.unanswered += 1;
            return;
        };
        let mut mismatch = difference(&sample.response, &first_response, &self.allowed);
        if mismatch.is_some() {
            let target = call_node(&self.target, &sample.request);
            let reference = call_node(&self.reference, &sample.request);
            let (Some(target), Some(reference)) = (target, reference) else {
                self.compared.unanswered += 1;
                return;
            };
            let same = difference(&first_response, &reference, &self.allowed).is_none();
            let target_difference = difference(&target, &reference, &self.allowed);
            // If the target agrees now, its first response was wrong, or the chain has moved.
            if target_difference.is_some() || !(same && self.head_unchanged(sample)) {
                self.compared.moved += u64::from(target_difference.is_none());
                mismatch = target_difference;
            }
        }
        self.compared.compared += 1;
        let count = self.counts.entry(sample.method).or_default();
        count.0 += 1;
        let Some(mismatch) = mismatch else { return };
        count.1 += 1;
        self.compared.wrong += 1;
        if count.1 <= EXAMPLES_MAX as u64 {
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

/// Returns true if the call names the block that its response is about.
pub(crate) fn names_its_block(request: &[u8]) -> bool {
    let Ok(Body::Single(Ok(asked))) = call::decode(request, &Limits::DEFAULT) else { return false };
    let rows = Family::ALL.into_iter().filter_map(|name| methods_of(name).method(&asked.method));
    let by_name = |row: &wire::method::Method| match row.validity {
        Validity::Constant => true,
        Validity::Number | Validity::Hash => match row.block_ref(&asked.params) {
            Ok(Some((block, _))) => !matches!(block, BlockRef::Tag(_)),
            _ => false,
        },
        _ => false,
    };
    rows.into_iter().any(by_name)
}

/// Sends a request to a node; none unless the body is a JSON-RPC response without HTTP status 429.
fn call_node(node: &Client, request: &[u8]) -> Option<Vec<u8>> {
    let (status, body) = node.post(request).ok()?;
    let valid = status != 429 && wire::response::parse_response(&body, 128).is_ok();
    valid.then_some(body)
}
