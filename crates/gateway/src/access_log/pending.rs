//! The record of a request until its response is written. The calls are added one by one. The
//! status and the size of the response follow.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;

use tokio::time::Instant;

use super::record::{CallRecord, Record};

/// Maximum number of records stored for one batch. The log line states the number of all calls.
const CALLS_MAX: usize = 1000;

/// Records of a request's calls, in the order of the calls.
#[derive(Debug)]
pub(crate) struct CallRecords {
    began: Instant,
    records: RefCell<Vec<Option<CallRecord>>>,
    /// Number of calls, including calls beyond [`CALLS_MAX`].
    count: Cell<usize>,
}

impl CallRecords {
    /// Starts the records of a request once the request is completely read.
    pub(crate) fn new() -> CallRecords {
        CallRecords { began: Instant::now(), records: RefCell::default(), count: Cell::new(0) }
    }

    /// Takes the records of the calls so far.
    pub(crate) fn take(&self) -> CallRecords {
        CallRecords {
            began: self.began,
            records: RefCell::new(self.records.take()),
            count: self.count.clone(),
        }
    }

    /// Reserves the index of the next call.
    pub(crate) fn begin(&self) -> usize {
        let index = self.count.get();
        self.count.set(index + 1);
        if index < CALLS_MAX {
            self.records.borrow_mut().push(None);
        }
        index
    }

    /// Records the call at an index.
    pub(crate) fn finish(&self, index: usize, record: impl FnOnce() -> CallRecord) {
        if let Some(slot) = self.records.borrow_mut().get_mut(index) {
            *slot = Some(record());
        }
    }
}

/// A request's record before its response is written.
#[derive(Debug)]
pub(crate) struct PendingRecord {
    began: Instant,
    record: Record,
    calls: Vec<CallRecord>,
}

impl PendingRecord {
    /// Starts the record of a request whose response is ready.
    pub(crate) fn new(record: Record, calls: CallRecords) -> PendingRecord {
        let record = Record { calls: calls.count.get(), ..record };
        let records = calls.records.into_inner();
        PendingRecord { began: calls.began, record, calls: records.into_iter().flatten().collect() }
    }

    /// Starts the record of a request whose head could not be read.
    pub(crate) fn without_head(client: IpAddr, protocol: &'static str) -> PendingRecord {
        let record = Record::without_head(client, protocol);
        PendingRecord { began: Instant::now(), record, calls: Vec::new() }
    }

    /// Returns the records of a written response. There is one record per call, or one for all
    /// calls.
    pub(super) fn finish(self, status: u16, bytes_out: usize, per_call: bool) -> Vec<Record> {
        let PendingRecord { began, record, calls } = self;
        let record = Record { status, bytes_out, took: began.elapsed(), ..record };
        if !per_call || calls.is_empty() {
            return vec![Record { call: merge(calls), ..record }];
        }
        let record_of = |call: CallRecord| {
            let (bytes_out, took) = (call.bytes, call.took);
            Record { bytes_out, took, call: Some(call), ..record.clone() }
        };
        calls.into_iter().map(record_of).collect()
    }
}

/// Merges the records of several calls. The merged record has the first error and the longest
/// upstream time. Its method is `batch` if the methods differ.
fn merge(calls: Vec<CallRecord>) -> Option<CallRecord> {
    let mut calls = calls.into_iter();
    let mut merged = calls.next()?;
    for call in calls {
        if call.method != merged.method {
            merged.method = "batch".into();
        }
        merged.error = merged.error.or(call.error);
        merged.upstream_time = merged.upstream_time.max(call.upstream_time);
    }
    Some(merged)
}
