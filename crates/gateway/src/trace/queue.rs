//! Moves spans from the serving threads to the exporter: one bounded queue per thread.
//!
//! A serving thread never waits for the collector. It adds the spans of a request to its queue under
//! a lock, which the exporter takes only to empty the queue. A full queue drops the spans of the
//! request and counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::span::Span;
use crate::config::tracing::Tracing;

/// Spans by what became of them.
#[derive(Debug, Default)]
pub(crate) struct SpanCounts {
    exported: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Returns the number of spans that the collector accepted.
    pub(crate) fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that could not be sent, or that the collector rejected.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were dropped because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(crate) fn add_exported(&self, spans: u64) {
        self.exported.fetch_add(spans, Ordering::Relaxed);
    }

    pub(crate) fn add_failed(&self, spans: u64) {
        self.failed.fetch_add(spans, Ordering::Relaxed);
    }

    pub(crate) fn add_dropped(&self, spans: u64) {
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }
}

/// The queues of all serving threads.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) config: Tracing,
    /// Counters that continue after a reload.
    pub(crate) counts: Arc<SpanCounts>,
    /// One queue per serving thread.
    queues: Vec<Mutex<Vec<Span>>>,
    /// Maximum number of spans in one queue.
    queue_max: usize,
}

impl Queues {
    /// Creates empty queues for a number of serving threads. They continue the counters of the
    /// previous configuration.
    pub(crate) fn new(config: Tracing, threads: usize, previous: Option<&Queues>) -> Queues {
        Queues {
            counts: previous.map(|previous| Arc::clone(&previous.counts)).unwrap_or_default(),
            queues: (0..threads).map(|_| Mutex::new(Vec::new())).collect(),
            queue_max: config.queue_max.div_ceil(threads.max(1)),
            config,
        }
    }

    /// Moves the spans of a request into the queue of a serving thread. If they do not fit, all of
    /// them are dropped, because a trace with gaps misleads.
    pub(super) fn push(&self, thread: usize, spans: &mut Vec<Span>) {
        let mut queue = self.queues[thread].lock();
        if queue.len() + spans.len() <= self.queue_max {
            queue.append(spans);
        } else {
            drop(queue);
            self.counts.add_dropped(spans.len() as u64);
        }
    }

    /// Takes the spans of all threads.
    pub(super) fn take(&self) -> Vec<Span> {
        self.queues.iter().flat_map(|queue| std::mem::take(&mut *queue.lock())).collect()
    }
}
