//! Builds the calls of a plan one by one, for a caller that sends them itself. The requests and the
//! classes of the responses are the same as in a run of the engine. A class says how a call ended,
//! such as `ok` or `timeout`.

use std::sync::Arc;

use lab_model::plan::{Plan, RecordedRequest, Step};
use lab_model::record::Class;

use super::EngineFault;
use super::classify;
use super::compose::{Composer, RequestKey, RequestKind};
use crate::chain::ChainFacts;

#[cfg(test)]
mod tests;

/// An endless sequence of the calls of a plan's first scenario.
pub struct SingleCalls {
    composer: Composer,
    /// Identifies the current call.
    key: RequestKey,
    /// Kind of the current call.
    kind: RequestKind,
    /// Buffer for the methods of a batch; single calls leave it empty.
    batch_methods: Vec<u16>,
}

impl SingleCalls {
    /// Prepares the calls. Ignores the plan's batch setting: every request is a single call.
    ///
    /// # Errors
    /// Fails if the plan draws values that the chain lacks, has transactions, replays recorded
    /// batches, or has a header that cannot be sent.
    pub fn new(plan: &Plan, chain: &Arc<ChainFacts>) -> Result<SingleCalls, EngineFault> {
        let mut plan = plan.clone();
        plan.scenarios.truncate(1);
        plan.scenarios[0].batch = None;
        let mix = &plan.mixes[plan.scenarios[0].mix];
        if mix.transactions().is_some() {
            return Err(EngineFault::Transactions { mix: mix.name.clone() });
        }
        let is_batch = |request: &RecordedRequest| request.calls > 1;
        let has_batch = mix.steps.iter().any(|step| match step {
            Step::Replay(requests) => requests.iter().any(is_batch),
            Step::Choose(_) | Step::Transactions(_) => false,
        });
        if has_batch {
            return Err(EngineFault::RecordedBatch { mix: mix.name.clone() });
        }
        Ok(SingleCalls {
            composer: Composer::new(&plan, chain)?,
            key: RequestKey { scenario: 0, iteration: 1, step: 0 },
            kind: RequestKind::Single { method: 0, id: 0 },
            batch_methods: Vec::new(),
        })
    }

    /// Builds the current call. Returns the index of its method in the plan, and its body.
    pub fn next_call(&mut self) -> (usize, &[u8]) {
        self.kind = self.composer.compose(self.key, &mut self.batch_methods).kind;
        // `new` excludes batches, so the call has a method.
        let method = self.kind.method().unwrap_or_default();
        (usize::from(method), self.composer.request_body())
    }

    /// Classifies the response to the current call.
    pub fn classify(&self, status: u16, body: &[u8]) -> Class {
        let outcome = match self.kind {
            RequestKind::Recorded { index, .. } => {
                let request = self.composer.recorded(self.key, index);
                request.map(|request| classify::recorded(status, body, request))
            }
            RequestKind::Single { id, .. } => Some(classify::single(status, body, id)),
            RequestKind::Batch { .. } => None,
        };
        outcome.map_or(Class::Malformed, |outcome| outcome.class)
    }

    /// Makes the next call the current one.
    pub fn advance(&mut self) {
        self.key.step += 1;
        if self.key.step == self.composer.step_count(0) {
            self.key = RequestKey { iteration: self.key.iteration + 1, step: 0, ..self.key };
        }
    }
}

/// Classifies the response to a single call with this id.
pub fn classify(status: u16, body: &[u8], id: u64) -> Class {
    classify::single(status, body, id).class
}
