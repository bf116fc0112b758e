//! Calls of one thread, from sending to classification. `thread/read.rs` reads the responses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use lab_model::plan::Reuse;
use lab_model::record::{Class, Slot};

use super::{EngineThread, RESPONSE, Request, WorkerState};
use crate::engine::Sample;
use crate::engine::body::{ReceivedBody, SAMPLE_BYTES_MAX};
use crate::engine::classify::{self, CallOutcome};
use crate::engine::compose::{Composer, RequestKind};
use crate::engine::reader::Head;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// Sends the worker's call, on a new connection if it has none.
    pub(super) fn call(&mut self, worker: u32) {
        let now = self.clock.read();
        let at = &self.workers[worker as usize];
        self.recorder.interval.lateness.saturating_record(now.saturating_sub(at.ready));
        if self.pool.is_some() {
            self.send_pooled(worker);
        } else if at.connection.is_some() {
            self.transmit(worker);
        } else {
            self.dial(worker);
        }
    }

    /// Sends the call on the open connection.
    pub(super) fn transmit(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        let Some(connection) = &mut at.connection else { return };
        let composed = self.composer.compose(at.request.key, &mut at.methods);
        (at.request.kind, at.request.calls) = (composed.kind, composed.calls);
        at.sample = composed.sampled.then(|| self.composer.request_body().to_vec());
        if composed.sampled {
            connection.reader.keep();
        }
        at.sent = self.clock.read();
        let traffic = &mut self.recorder.interval.traffic;
        if connection.send(self.composer.request(), traffic).is_ok() {
            connection.uses += 1;
            at.state = WorkerState::AwaitingResponse;
            self.deadlines.set(RESPONSE, worker, at.sent);
            self.gauges.in_flight += at.request.calls as u64;
        } else if connection.uses > 0 {
            // The server closed the idle connection and its event has not arrived yet. No response
            // was lost.
            traffic.closed_by_server += 1;
            at.connection = None;
            self.dial(worker);
        } else {
            at.state = WorkerState::AwaitingResponse;
            self.gauges.in_flight += at.request.calls as u64;
            self.connection_lost(worker);
        }
    }

    /// Classifies a response whose body is not in the connection's own buffers.
    pub(super) fn judge(&mut self, worker: u32, status: u16, body: ReceivedBody<'_>, now: u64) {
        let at = &mut self.workers[worker as usize];
        judge_all(&self.composer, at.request, status, body.judged, &mut self.outcomes);
        self.recorder.bytes(at.request.kind, &at.methods, body.length);
        if let Some((sent, whole)) = at.sample.take().zip(body.whole) {
            let sample = sample(at.request, &self.outcomes, sent, whole, now);
            keep(&self.samples, sample, &self.shared.skipped);
        }
    }

    /// Closes the connection, or keeps it for the next call.
    pub(super) fn after_answer(&mut self, worker: u32, head: Head, ending: bool) {
        let Some(connection) = &mut self.workers[worker as usize].connection else { return };
        connection.reader.reset();
        let unsent = !connection.sent_all();
        let used_up = match self.reuse {
            Reuse::Always => false,
            Reuse::Never => true,
            Reuse::Requests(most) => connection.uses >= most,
        };
        if ending {
            self.recorder.interval.traffic.closed_by_server += u64::from(!used_up);
            self.close(worker);
        } else if !head.keep {
            self.recorder.interval.traffic.closed_by_server += u64::from(!used_up);
            self.drain(worker);
        } else if used_up || unsent {
            self.close(worker);
        }
    }

    /// Handles a connection that the server has closed or reset.
    pub(super) fn connection_lost(&mut self, worker: u32) {
        self.recorder.interval.traffic.closed_by_server += 1;
        let at = &mut self.workers[worker as usize];
        let Some(connection) = at.connection.take() else { return };
        if at.state != WorkerState::AwaitingResponse {
            return;
        }
        let now = self.clock.read();
        let request = self.workers[worker as usize].request;
        match connection.reader.at_end() {
            Some((head, body)) => {
                judge_all(&self.composer, request, head.status, body.judged, &mut self.outcomes);
                let own = &self.workers[worker as usize];
                self.recorder.bytes(request.kind, &own.methods, body.length);
                self.recorder.answer(head.status, head.retry_after);
                self.finish(worker, now);
            }
            None => self.fail(worker, Class::Reset, now),
        }
    }

    /// Counts all calls of the request in one class, without a response.
    pub(super) fn fail(&mut self, worker: u32, class: Class, at: u64) {
        if self.is_pooled(worker) {
            return self.pooled_failed(worker, class, at);
        }
        let own = &mut self.workers[worker as usize];
        if own.state == WorkerState::Dialing {
            // The request was not sent, but its calls are counted by method all the same.
            let composed = self.composer.compose(own.request.key, &mut own.methods);
            (own.request.kind, own.request.calls) = (composed.kind, composed.calls);
            self.gauges.in_flight += own.request.calls as u64;
        }
        own.sample = None;
        self.outcomes.clear();
        self.outcomes.resize(own.request.calls, CallOutcome::of(class));
        self.finish(worker, at);
    }

    /// Counts the calls of the request and continues the iteration.
    pub(super) fn finish(&mut self, worker: u32, at: u64) {
        self.deadlines.remove(worker);
        let own = &mut self.workers[worker as usize];
        own.state = WorkerState::Idle;
        let (latency, service) = (at.saturating_sub(own.call_due), at.saturating_sub(own.sent));
        let stage = own.request.stage;
        let after_scenario = at > self.scenarios[usize::from(own.request.key.scenario)].end();
        let after_stage = at > self.stage_ends[usize::from(stage)];
        let mut unconnected = false;
        for (nth, &ending) in self.outcomes.iter().enumerate() {
            let method = match own.request.kind {
                RequestKind::Single { method, .. } | RequestKind::Recorded { method, .. } => method,
                RequestKind::Batch { .. } => own.methods.get(nth).copied().unwrap_or_default(),
            };
            unconnected |= matches!(ending.class, Class::Connect | Class::Tls);
            self.recorder.call(own.request.stage, method, ending, latency, service);
            if after_scenario || after_stage {
                let slot = Slot { stage, method, class: ending.class };
                self.recorder.late(slot, after_scenario);
            }
        }
        self.recorder.interval.traffic.requests += 1;
        self.gauges.in_flight -= own.request.calls as u64;
        if own.request.key.step + 1 < self.composer.steps(own.request.key.scenario) {
            own.request.key.step += 1;
            (own.call_due, own.ready) = (at, at);
            self.call(worker);
        } else {
            let took = at.saturating_sub(own.due);
            let counts = &mut self.recorder.interval.iterations[usize::from(stage)];
            counts.ended += 1;
            counts.ended_late += u64::from(after_scenario);
            self.recorder.interval.iteration_time.saturating_record(took);
            self.release(worker, at, unconnected);
        }
    }
}

/// Classifies all calls of one request by its response.
pub(super) fn judge_all(
    composer: &Composer,
    request: Request,
    status: u16,
    body: &[u8],
    outcomes: &mut Vec<CallOutcome>,
) {
    outcomes.clear();
    match request.kind {
        RequestKind::Single { id, .. } => outcomes.push(classify::single(status, body, id)),
        RequestKind::Batch { first, stride } => {
            outcomes.resize(request.calls, CallOutcome::of(Class::Malformed));
            classify::batch(status, body, first, stride, outcomes);
        }
        RequestKind::Recorded { index, .. } => {
            outcomes.resize(request.calls, CallOutcome::of(Class::Malformed));
            match composer.recorded(request.key, index) {
                Some(asked) if asked.body.trim_ascii_start().starts_with(b"[") => {
                    classify::recorded_batch(status, body, outcomes);
                }
                Some(asked) => outcomes.fill(classify::recorded(status, body, asked)),
                None => {}
            }
        }
    }
}

/// Returns the call as a sample, if its response can be compared.
pub(super) fn sample(
    request: Request,
    outcomes: &[CallOutcome],
    sent: Vec<u8>,
    body: &[u8],
    now: u64,
) -> Option<Sample> {
    let method = match request.kind {
        RequestKind::Single { method, .. } | RequestKind::Recorded { method, .. } => method,
        RequestKind::Batch { .. } => return None,
    };
    let class = outcomes.first()?.class;
    let fits = matches!(class, Class::Ok | Class::RpcError) && body.len() <= SAMPLE_BYTES_MAX;
    fits.then(|| Sample {
        at: Duration::from_nanos(now),
        stage: request.stage,
        method,
        request: sent,
        answer: body.to_vec(),
    })
}

/// Sends a sample to the comparison. Skips it if the queue is full.
pub(super) fn keep(samples: &SyncSender<Sample>, sample: Option<Sample>, skipped: &AtomicU64) {
    if sample.is_some_and(|sample| samples.try_send(sample).is_err()) {
        skipped.fetch_add(1, Ordering::Relaxed);
    }
}
