//! The access-log record of a request until its response is written. Each call adds its own record.
//! Status and size are added once the response is written.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;

use tokio::time::Instant;

use super::record::{CallRecord, Record};

/// Maximum number of call records of one batch. The log line still states the number of all calls.
const CALLS_MAX: usize = 1000;

/// Records of a request's calls, in the order of the calls.
#[derive(Debug)]
pub(crate) struct CallRecords {
    /// When the request was read completely.
    started_at: Instant,
    /// One entry per call, at most [`CALLS_MAX`]; `None` until the call has ended.
    records: RefCell<Vec<Option<CallRecord>>>,
    /// Number of calls, including calls beyond [`CALLS_MAX`].
    count: Cell<usize>,
}

impl CallRecords {
    /// Starts the records of a request that has just been read completely.
    pub(crate) fn new() -> CallRecords {
        CallRecords { started_at: Instant::now(), records: RefCell::default(), count: Cell::new(0) }
    }

    /// Moves the records of the calls so far into a new value.
    pub(crate) fn take(&self) -> CallRecords {
        CallRecords {
            started_at: self.started_at,
            records: RefCell::new(self.records.take()),
            count: self.count.clone(),
        }
    }

    /// Counts a call and returns the index of its record.
    pub(crate) fn begin(&self) -> usize {
        let index = self.count.get();
        self.count.set(index + 1);
        if index < CALLS_MAX {
            self.records.borrow_mut().push(None);
        }
        index
    }

    /// Stores the record of the call at an index. Ignores calls beyond [`CALLS_MAX`].
    pub(crate) fn finish(&self, index: usize, record: impl FnOnce() -> CallRecord) {
        if let Some(slot) = self.records.borrow_mut().get_mut(index) {
            *slot = Some(record());
        }
    }
}

/// A request's record before its response is written.
#[derive(Debug)]
pub(crate) struct PendingRecord {
    /// When the request was read completely, or when its head could not be read.
    started_at: Instant,
    record: Record,
    calls: Vec<CallRecord>,
}

impl PendingRecord {
    /// Creates the record of a request whose response is ready to be written.
    pub(crate) fn new(record: Record, calls: CallRecords) -> PendingRecord {
        let record = Record { calls: calls.count.get(), ..record };
        let records = calls.records.into_inner();
        PendingRecord {
            started_at: calls.started_at,
            record,
            calls: records.into_iter().flatten().collect(),
        }
    }

    /// Creates the record of a request whose head could not be read.
    pub(crate) fn without_head(client: IpAddr, protocol: &'static str) -> PendingRecord {
        let record = Record::without_head(client, protocol);
        PendingRecord { started_at: Instant::now(), record, calls: Vec::new() }
    }

    /// Returns the records of a written response. If `per_call` is true and the request has calls,
    /// there is one record per call. Otherwise there is one record for the whole request.
    pub(super) fn finish(self, status: u16, bytes_out: usize, per_call: bool) -> Vec<Record> {
        let PendingRecord { started_at, record, calls } = self;
        let record = Record { status, bytes_out, duration: started_at.elapsed(), ..record };
        if !per_call || calls.is_empty() {
            return vec![Record { call: merge(calls), ..record }];
        }
        let record_of = |call: CallRecord| {
            let (bytes_out, duration) = (call.bytes, call.duration);
            Record { bytes_out, duration, call: Some(call), ..record.clone() }
        };
        calls.into_iter().map(record_of).collect()
    }
}

/// Merges the records of several calls; `None` without calls. The merged record has the first error
/// and the longest upstream time. If the methods differ, the method is `batch`. All other facts are
/// those of the first call.
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
