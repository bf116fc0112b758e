//! The access-log record of a call.

use std::sync::Arc;
use std::time::Duration;

use super::Request;
use crate::access_log::record::CallRecord;
use crate::call::cache_status::CacheStatus;
use crate::front::answer::{Answered, code_of};
use crate::worker::Worker;

/// Bytes of a method's name that are logged.
const METHOD_BYTES_MAX: usize = 256;

/// Records the response to a call, at the place that was reserved for it or at the next one.
pub(super) fn record(
    worker: &Worker,
    request: &Request<'_>,
    place: Option<usize>,
    method: &str,
    answered: &Answered<'_>,
    took: Duration,
) {
    let Some(calls) = request.calls else { return };
    let shared = &worker.shared;
    calls.finish(place.unwrap_or_else(|| calls.begin()), || {
        let upstream_used = !matches!(answered.mark, None | Some(CacheStatus::Hit));
        CallRecord {
            method: method[..method.floor_char_boundary(METHOD_BYTES_MAX)].into(),
            chain: Arc::clone(&shared.chains[request.chain].name),
            error: code_of(&answered.payload, shared),
            cache: answered.mark,
            upstream: answered.node.map(|node| Arc::clone(&shared.nodes[node].config.name)),
            bytes: answered.payload.bytes(),
            took,
            upstream_time: upstream_used.then_some(took),
        }
    });
}
