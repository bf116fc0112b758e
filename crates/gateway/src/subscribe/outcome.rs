//! The outcome of a call about subscriptions or filters.

use bytes::Bytes;

use crate::call::Payload;
use crate::call::failure::{Failure, FailureKind, SubscribeRefusal};

/// The outcome of a call about subscriptions or filters.
#[derive(Debug)]
pub(crate) enum SubscribeOutcome {
    /// The gateway's own response.
    Payload(Payload),
    /// The caller must resolve an `eth_getLogs` call with this filter.
    Logs(Bytes),
    /// The caller must forward the call to an upstream.
    Upstream,
}

/// Returns the failure for a refused subscription or filter.
pub(super) fn refuse(reason: SubscribeRefusal) -> Failure {
    Failure::ours(FailureKind::SubscribeRefused(reason))
}

/// Returns the outcome with this raw JSON result.
pub(super) fn result_outcome(raw_result: &'static [u8]) -> SubscribeOutcome {
    SubscribeOutcome::Payload(Payload::Result(Bytes::from_static(raw_result)))
}
