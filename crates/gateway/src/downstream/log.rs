//! Builds access-log records of requests. The fields of the request are set when the response is
//! ready. The fields of the response are set after the response was written, or after the
//! connection has ended without a response.

use std::sync::Arc;

use crate::access::caller::Caller;
use crate::access_log::pending::{CallRecords, PendingRecord};
use crate::access_log::record::{Record, mask_path};
use crate::downstream::answer::ClientResponse;
use crate::downstream::head::{Head, HttpMethod};
use crate::state::context::ThreadContext;

/// Status of a request whose connection ended before the response, as in nginx's log.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Starts the record of a request when its response is ready. `bytes_in` is the length of the
/// request's body.
pub(crate) fn start_record(
    head: &Head,
    caller: Caller,
    path: &str,
    bytes_in: usize,
    protocol: &'static str,
    call_records: CallRecords,
) -> Box<PendingRecord> {
    // A grant holds the rights of an API key or token. `grant` is `None` for a caller without a key
    // or token.
    let grant = caller.grant.as_ref();
    let record = Record {
        key: grant.map(|grant| Arc::clone(&grant.name)),
        tier: grant.and_then(|grant| grant.tier.clone()),
        path: mask_path(path),
        http_method: match head.http_method {
            HttpMethod::Post => "POST",
            HttpMethod::Get => "GET",
            HttpMethod::Head => "HEAD",
            HttpMethod::Options => "OPTIONS",
            HttpMethod::Other => "-",
        },
        bytes_in,
        access_values: head.access_values.clone(),
        ..Record::without_head(caller.address, protocol)
    };
    Box::new(PendingRecord::new(record, call_records))
}

/// Logs the request that `response` belongs to, if the access log is on. Called after the response
/// was written.
pub(crate) fn log_request(cx: &ThreadContext, response: &mut ClientResponse) {
    if let Some(record) = response.record.take() {
        queue_record(cx, *record, response.status, response.body.len());
    }
}

/// Queues a record with the status and the body length of the response.
fn queue_record(cx: &ThreadContext, pending: PendingRecord, status: u16, bytes_out: usize) {
    if let Some(queues) = &cx.snapshot.access_log {
        queues.log(cx.index, pending, status, bytes_out, &cx.counters, || cx.upstreams.random());
    }
}

/// A request that is being served. If it is dropped before [`ServedRequest::end`], the client has
/// disconnected or the gateway has closed the connection. The request is then logged without a
/// response.
pub(crate) struct ServedRequest<'a> {
    pub(crate) cx: &'a ThreadContext,
    pub(crate) head: &'a Head,
    pub(crate) caller: &'a Caller,
    pub(crate) path: &'a str,
    /// Length of the request's body in bytes.
    pub(crate) bytes_in: usize,
    pub(crate) protocol: &'static str,
    /// The records of the request's calls so far.
    pub(crate) call_records: &'a CallRecords,
}

impl ServedRequest<'_> {
    /// Ends the guard without a record. Called when the request has a response, which is logged
    /// separately.
    pub(crate) fn end(self) {
        // All fields are references or numbers, so nothing leaks.
        std::mem::forget(self);
    }
}

impl Drop for ServedRequest<'_> {
    fn drop(&mut self) {
        let (caller, call_records) = (self.caller.clone(), self.call_records.take());
        let record =
            start_record(self.head, caller, self.path, self.bytes_in, self.protocol, call_records);
        queue_record(self.cx, *record, CLIENT_CLOSED_REQUEST, 0);
    }
}
