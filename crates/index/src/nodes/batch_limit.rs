//! The number of calls that a node accepts in one batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wire::node_error::{self, ErrorKind, MethodKind, NodeError, read_batch_limit};

use super::CallError;

/// What is known about the number of calls that a node accepts in one batch. Copies share it. It is
/// no part of an endpoint's identity, so any two limits are equal.
#[derive(Debug, Clone)]
pub(super) struct BatchLimit(Arc<Learned>);

#[derive(Debug)]
struct Learned {
    /// The maximum number of calls in a batch.
    calls_max: AtomicUsize,
    /// The number of calls of the largest batch that the node has accepted.
    accepted: AtomicUsize,
}

impl Default for BatchLimit {
    fn default() -> BatchLimit {
        let (calls_max, accepted) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(1));
        BatchLimit(Arc::new(Learned { calls_max, accepted }))
    }
}

impl PartialEq for BatchLimit {
    fn eq(&self, _: &BatchLimit) -> bool {
        true
    }
}

impl Eq for BatchLimit {}

impl BatchLimit {
    /// Returns the maximum number of calls in a batch.
    pub(super) fn calls_max(&self) -> usize {
        self.0.calls_max.load(Ordering::Relaxed)
    }

    /// Records that the node has accepted a batch.
    pub(super) fn record_accepted(&self, calls: usize) {
        self.0.accepted.fetch_max(calls, Ordering::Relaxed);
    }

    /// Lowers the maximum if the error rejects a batch of this many calls because of their number.
    /// The new maximum is the number that the error states, or the number of calls of the largest
    /// accepted batch. Returns true if the maximum is now lower than `calls`.
    pub(super) fn record_rejection(&self, calls: usize, error: &CallError) -> bool {
        let Some(stated) = read_rejection(error) else { return false };
        let accepted = self.0.accepted.load(Ordering::Relaxed);
        let limit = stated.unwrap_or(accepted).clamp(1, calls.saturating_sub(1).max(1));
        self.0.calls_max.fetch_min(limit, Ordering::Relaxed);
        self.calls_max() < calls
    }
}

/// Returns the number of calls that an error states as the maximum of a batch; `Some(None)` if it
/// rejects a batch without a number. Returns `None` for all other errors.
fn read_rejection(error: &CallError) -> Option<Option<usize>> {
    let (status, code, message) = match error {
        CallError::Rejected(error) => (200, error.code, &error.message),
        CallError::Status { status, text, .. } => (*status, 0, text),
        CallError::Transport(_) | CallError::Malformed(_) => return None,
    };
    let method = MethodKind::Other;
    let error = NodeError { status, code, message, has_hex_data: false, method };
    let is_batch = node_error::classify(&error) == ErrorKind::BatchTooLarge;
    is_batch.then(|| read_batch_limit(message))
}

#[cfg(test)]
mod tests {
    //! Goal: batches that real nodes and providers reject become small enough at once.

    use super::*;
    use crate::nodes::RpcError;

    fn status(status: u16, text: &str) -> CallError {
        CallError::Status { status, retry_after: None, text: text.to_owned() }
    }

    fn rejected(message: &str) -> CallError {
        CallError::Rejected(RpcError { code: -32600, message: message.to_owned() })
    }

    #[test]
    fn rejections_of_batches_are_recognized() {
        let text =
            r#"{"message":"Batch of more than 3 requests are not allowed on free tier","code":31}"#;
        assert_eq!(read_rejection(&status(500, text)), Some(Some(3)));
        assert_eq!(read_rejection(&status(400, "The batch request was too large")), Some(None));
        assert_eq!(read_rejection(&rejected("batch limit 100 exceeded")), Some(Some(100)));
        assert_eq!(
            read_rejection(&rejected("Number of requests exceeds max batch size")),
            Some(None)
        );
        assert_eq!(read_rejection(&rejected("batch too large")), Some(None));
        assert_eq!(read_rejection(&rejected("block range is too large")), None);
        assert_eq!(read_rejection(&status(429, "too many requests")), None);
        assert_eq!(read_rejection(&CallError::Transport("batch too large".to_owned())), None);
    }

    #[test]
    fn the_limit_is_the_stated_number_or_what_was_accepted() {
        let limit = BatchLimit::default();
        limit.record_accepted(4);
        assert!(limit.record_rejection(8, &rejected("batch too large")));
        assert_eq!(limit.calls_max(), 4);
        assert!(limit.clone().record_rejection(4, &rejected("batch limit 2 exceeded")));
        assert_eq!(limit.calls_max(), 2);
        assert!(!limit.record_rejection(2, &rejected("header not found")));
        assert!(limit.record_rejection(2, &rejected("batch limit 5 exceeded")), "it was lower");
        assert_eq!(limit.calls_max(), 1);
    }
}
