//! What is gathered of a request for the access log, and handed to its writer once it is answered.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::access_log::record::{CallRecord, Record, masked};
use crate::call::cache_status::CacheStatus;
use crate::front::answer::{Answered, Message, code_of};
use crate::front::caller::Caller;
use crate::front::head::{Head, Verb};
use crate::worker::Worker;

/// Longest name of a method that is kept for the log.
const METHOD_BYTES_MAX: usize = 256;
/// Calls of one batch that are kept; the log says how many there were.
const CALLS_MAX: usize = 1000;

/// The calls of a request, in their order, once they are answered.
#[derive(Debug)]
pub(crate) struct Calls {
    began: Instant,
    list: RefCell<Vec<Option<CallRecord>>>,
    /// Those that are not kept among them.
    count: Cell<usize>,
}

impl Calls {
    /// Of a request that has just been read whole.
    pub(crate) fn new() -> Calls {
        Calls { began: Instant::now(), list: RefCell::default(), count: Cell::new(0) }
    }

    /// Takes up the next call, and gives its place.
    pub(crate) fn begin(&self) -> usize {
        let place = self.count.get();
        self.count.set(place + 1);
        if place < CALLS_MAX {
            self.list.borrow_mut().push(None);
        }
        place
    }

    /// Notes that the call at a place was answered.
    pub(crate) fn note(
        &self,
        place: usize,
        worker: &Worker,
        chain: usize,
        method: &str,
        answered: &Answered<'_>,
        took: Duration,
    ) {
        let mut list = self.list.borrow_mut();
        let Some(slot) = list.get_mut(place) else { return };
        let shared = &worker.shared;
        let asked = !matches!(answered.mark, None | Some(CacheStatus::Hit));
        let end = method.floor_char_boundary(METHOD_BYTES_MAX);
        *slot = Some(CallRecord {
            method: method[..end].into(),
            chain: Arc::clone(&shared.chains[chain].name),
            error: code_of(&answered.payload, shared),
            mark: answered.mark,
            node: answered.node.map(|node| Arc::clone(&shared.nodes[node].config.name)),
            bytes: answered.payload.bytes(),
            took,
            upstream: asked.then_some(took),
        });
    }
}

/// What is known of a request before its answer is written.
#[derive(Debug)]
pub(crate) struct Note {
    began: Instant,
    record: Record,
    calls: Vec<CallRecord>,
}

impl Note {
    /// Of a request whose answer is made.
    pub(crate) fn of(
        head: &Head,
        caller: Caller,
        path: &str,
        bytes_in: usize,
        protocol: &'static str,
        calls: Calls,
    ) -> Note {
        let (key, tier) = match &caller.grant {
            Some(grant) => (Some(Arc::clone(&grant.name)), grant.tier.clone()),
            None => (None, None),
        };
        let record = Record {
            key,
            tier,
            path: masked(path),
            verb: match head.verb {
                Verb::Post => "POST",
                Verb::Get => "GET",
                Verb::Head => "HEAD",
                Verb::Options => "OPTIONS",
                Verb::Other => "-",
            },
            bytes_in,
            calls: calls.count.get(),
            extra: head.extra.clone(),
            ..bare(caller.address, protocol)
        };
        let list = calls.list.into_inner().into_iter().flatten().collect();
        Note { began: calls.began, record, calls: list }
    }

    /// Of a request whose head could not be read.
    pub(crate) fn bare(client: IpAddr, protocol: &'static str) -> Note {
        Note { began: Instant::now(), record: bare(client, protocol), calls: Vec::new() }
    }
}

fn bare(client: IpAddr, protocol: &'static str) -> Record {
    Record {
        time: SystemTime::now(),
        client,
        key: None,
        tier: None,
        chain: None,
        path: "-".into(),
        verb: "-",
        protocol,
        status: 0,
        bytes_in: 0,
        bytes_out: 0,
        took: Duration::ZERO,
        calls: 0,
        call: None,
        extra: None,
    }
}

/// Hands a request over to the log, now that it is answered.
pub(crate) fn log(worker: &Worker, note: Note, message: &Message) {
    let Some(queues) = &worker.shared.access_log else { return };
    let Note { began, mut record, calls } = note;
    record.status = message.status;
    record.bytes_out = message.body.len();
    record.took = began.elapsed();
    if queues.config.per_call && !calls.is_empty() {
        for call in calls {
            let (bytes_out, took) = (call.bytes, call.took);
            put(worker, Record { bytes_out, took, call: Some(call), ..record.clone() });
        }
        return;
    }
    record.call = together(calls);
    put(worker, record);
}

/// Several calls as one: the method where all have the same, the first error, the longest wait.
fn together(calls: Vec<CallRecord>) -> Option<CallRecord> {
    let mut calls = calls.into_iter();
    let mut all = calls.next()?;
    for call in calls {
        if call.method != all.method {
            all.method = "batch".into();
        }
        all.error = all.error.or(call.error);
        all.upstream = all.upstream.max(call.upstream);
    }
    Some(all)
}

fn put(worker: &Worker, record: Record) {
    let Some(queues) = &worker.shared.access_log else { return };
    let always = queues.config.errors_always && record.is_error();
    // The upper 53 bits as a number below one.
    let drawn = || (worker.random() >> 11) as f64 / (1_u64 << 53) as f64;
    if !always && queues.config.sample < 1.0 && drawn() >= queues.config.sample {
        return;
    }
    let counters = &worker.counters;
    match queues.put(worker.index, record) {
        true => counters.log_lines.add(1),
        false => counters.log_dropped.add(1),
    }
}
