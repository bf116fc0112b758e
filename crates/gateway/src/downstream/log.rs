//! Builds access-log records. The fields of the request are set when the response is ready. The
//! fields of the response are set after the response is written.

use std::sync::Arc;

use crate::access::caller::Caller;
use crate::access_log::pending::{CallRecords, PendingRecord};
use crate::access_log::record::{Record, mask_path};
use crate::downstream::answer::Message;
use crate::downstream::head::{Head, Verb};
use crate::state::context::ThreadContext;

/// Status of a request whose connection ended before the response, as in nginx's log.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Starts the record of a request when its response is ready.
pub(crate) fn start_record(
    head: &Head,
    caller: Caller,
    path: &str,
    bytes_in: usize,
    protocol: &'static str,
    calls: CallRecords,
) -> Box<PendingRecord> {
    let grant = caller.grant.as_ref();
    let record = Record {
        key: grant.map(|grant| Arc::clone(&grant.name)),
        tier: grant.and_then(|grant| grant.tier.clone()),
        path: mask_path(path),
        http_method: match head.verb {
            Verb::Post => "POST",
            Verb::Get => "GET",
            Verb::Head => "HEAD",
            Verb::Options => "OPTIONS",
            Verb::Other => "-",
        },
        bytes_in,
        extra: head.extra.clone(),
        ..Record::without_head(caller.address, protocol)
    };
    Box::new(PendingRecord::new(record, calls))
}

/// Logs the request of a message after the message is written, if the access log is on.
pub(crate) fn log_message(cx: &ThreadContext, message: &mut Message) {
    if let Some(record) = message.record.take() {
        log_response(cx, *record, message.status, message.body.len());
    }
}

fn log_response(cx: &ThreadContext, pending: PendingRecord, status: u16, bytes: usize) {
    if let Some(queues) = &cx.snapshot.access_log {
        queues.log(cx.index, pending, status, bytes, &cx.counters, || cx.upstream.random());
    }
}

/// A request that is being served. Dropping it logs the request without a response: the client has
/// left, or the gateway has closed the connection.
pub(crate) struct ServedRequest<'a> {
    pub(crate) cx: &'a ThreadContext,
    pub(crate) head: &'a Head,
    pub(crate) caller: &'a Caller,
    pub(crate) path: &'a str,
    pub(crate) bytes_in: usize,
    pub(crate) protocol: &'static str,
    pub(crate) calls: &'a CallRecords,
}

impl ServedRequest<'_> {
    /// Ends the guard: the request has a response.
    pub(crate) fn end(self) {
        // All fields are references.
        std::mem::forget(self);
    }
}

impl Drop for ServedRequest<'_> {
    fn drop(&mut self) {
        let (caller, calls) = (self.caller.clone(), self.calls.take());
        let record =
            start_record(self.head, caller, self.path, self.bytes_in, self.protocol, calls);
        log_response(self.cx, *record, CLIENT_CLOSED_REQUEST, 0);
    }
}
