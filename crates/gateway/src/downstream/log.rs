//! Builds access-log records. The fields of the request are set when the response is ready. The
//! fields of the response are set after the response is written.

use std::sync::Arc;

use crate::access::caller::Caller;
use crate::access_log::pending::{CallRecords, PendingRecord};
use crate::access_log::record::{Record, mask_path};
use crate::downstream::answer::Message;
use crate::downstream::head::{Head, Verb};
use crate::state::context::ThreadContext;

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

/// Logs a request after its response is written.
pub(crate) fn log(cx: &ThreadContext, pending: PendingRecord, message: &Message) {
    if let Some(queues) = &cx.snapshot.access_log {
        let response = (message.status, message.body.len());
        queues.log(cx.index, pending, response, &cx.counters, || cx.upstream.random());
    }
}
