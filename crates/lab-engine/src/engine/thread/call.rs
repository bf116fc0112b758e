//! Sends the calls of one thread, classifies their responses and counts them. `thread/read.rs`
//! reads the responses.
//!
//! A worker (k6: VU) runs one iteration at a time. An iteration sends one request per step of its
//! scenario's mix. A request holds one call, or several as a batch. A sampled call is sent to a
//! reference node too, and the two responses are compared. Times of type `u64` are nanoseconds
//! since the start of the run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use lab_model::plan::Reuse;
use lab_model::record::{Class, Slot};

use super::{EngineThread, RESPONSE_QUEUE, WorkerState};
use crate::engine::body::{ReceivedBody, SAMPLE_BYTES_MAX};
use crate::engine::classify::{self, CallOutcome};
use crate::engine::compose::{Composer, Request, RequestKind};
use crate::engine::thread_recorder::ThreadRecorder;
use crate::engine::websocket::Opcode;
use crate::engine::world::World;
use crate::engine::{Sample, Shared};

impl<W: World> EngineThread<W> {
    /// Sends the worker's call, on a new connection if the worker has none.
    pub(super) fn start_call(&mut self, worker_id: u32) {
        let now = self.clock.read();
        let worker = &mut self.workers[worker_id as usize];
        let delay_ns = now.saturating_sub(worker.ready_at);
        worker.late_ns = self.lateness.of_send(delay_ns);
        worker.retries = 0;
        self.recorder.interval.scheduling_delay.saturating_record(delay_ns);
        if self.pool.is_some() {
            self.send_pooled(worker_id);
        } else if worker.connection.is_some() {
            self.transmit(worker_id);
        } else {
            self.dial(worker_id);
        }
    }

    /// Sends the worker's call on its open connection.
    pub(super) fn transmit(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        worker.compose(&mut self.composer);
        let Some(connection) = &mut worker.connection else { return };
        if worker.sample.is_some() {
            match &mut connection.websocket {
                Some(websocket) => websocket.body.store(),
                None => connection.reader.store_body(),
            }
        }
        let request = match &mut self.websocket {
            Some(websocket) => websocket.encode(Opcode::Text, self.composer.request_body()),
            None => self.composer.request(),
        };
        worker.sent_at = self.clock.read();
        let traffic = &mut self.recorder.interval.traffic;
        if connection.send(request, traffic).is_ok() {
            connection.uses += 1;
            worker.state = WorkerState::AwaitingResponse;
            self.deadlines.set(RESPONSE_QUEUE, worker_id, worker.sent_at);
            self.gauges.in_flight += worker.request.calls as u64;
        } else if connection.uses > 0 {
            // The server has closed the idle connection, and the thread has not handled that event
            // yet. No response was lost, so the call is sent on a new connection.
            traffic.closed_by_server += 1;
            worker.connection = None;
            self.dial(worker_id);
        } else {
            worker.state = WorkerState::AwaitingResponse;
            self.gauges.in_flight += worker.request.calls as u64;
            self.on_connection_lost(worker_id);
        }
    }

    /// Classifies a response over HTTP/2. If the call is sampled, passes it on for the comparison
    /// with the reference node.
    pub(super) fn classify_response(
        &mut self,
        worker_id: u32,
        status: u16,
        body: ReceivedBody<'_>,
        now: u64,
    ) {
        let worker = &mut self.workers[worker_id as usize];
        classify_calls(&self.composer, worker.request, status, body.parsed, &mut self.outcomes);
        store_error_body(&self.shared, &self.recorder, status, body.parsed, &self.outcomes);
        self.recorder.record_bytes(worker.request.kind, &worker.methods, body.length);
        let bodies = worker.sample.take().zip(body.stored);
        self.samples.send(worker.request, &self.outcomes, bodies, now);
    }

    /// Closes the connection after a response, or keeps it open for the next call. `keep_alive` is
    /// false if the server has announced that it will close the connection. `server_closed` is true
    /// if the server has already closed its side.
    pub(super) fn keep_or_close(&mut self, worker_id: u32, keep_alive: bool, server_closed: bool) {
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        connection.reader.reset();
        let has_unsent = !connection.sent_all();
        let uses_exhausted = match self.reuse {
            Reuse::Always => false,
            Reuse::Never => true,
            Reuse::Requests(requests_max) => connection.uses >= requests_max,
        };
        // If the reuse limit is reached, the client would close the connection too. So the close is
        // not counted as a close by the server.
        if server_closed {
            self.recorder.interval.traffic.closed_by_server += u64::from(!uses_exhausted);
            self.close_connection(worker_id);
        } else if !keep_alive {
            self.recorder.interval.traffic.closed_by_server += u64::from(!uses_exhausted);
            self.drain_connection(worker_id);
        } else if uses_exhausted && self.websocket.is_some() {
            // The close frame asks the server to close the connection.
            self.drain_connection(worker_id);
        } else if uses_exhausted || has_unsent {
            self.close_connection(worker_id);
        }
    }

    /// Handles a connection that the server has closed or reset. The end of the connection can
    /// complete the response.
    pub(super) fn on_connection_lost(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        if worker.state == WorkerState::Dialing {
            return self.on_upgrade_failed(worker_id, Class::Reset);
        }
        self.recorder.interval.traffic.closed_by_server += 1;
        let Some(connection) = worker.connection.take() else { return };
        if worker.state != WorkerState::AwaitingResponse {
            return;
        }
        let now = self.clock.read();
        let request = self.workers[worker_id as usize].request;
        match connection.reader.at_end() {
            Some((head, body)) => {
                classify_calls(
                    &self.composer,
                    request,
                    head.status,
                    body.parsed,
                    &mut self.outcomes,
                );
                let (status, outcomes) = (head.status, &self.outcomes);
                store_error_body(&self.shared, &self.recorder, status, body.parsed, outcomes);
                let worker = &self.workers[worker_id as usize];
                self.recorder.record_bytes(request.kind, &worker.methods, body.length);
                self.recorder.record_response(head.status, head.retry_after);
                self.finish_request(worker_id, now);
            }
            None => self.fail_request(worker_id, Class::Reset, now),
        }
    }

    /// Ends a request that has no valid response: counts each of its calls under `class`, and
    /// continues the iteration. If the id belongs to a pooled HTTP/2 connection, fails the calls
    /// that wait for that connection.
    pub(super) fn fail_request(&mut self, worker_id: u32, class: Class, ended_at: u64) {
        if self.is_pooled(worker_id) {
            return self.on_pooled_connect_failed(worker_id, class, ended_at);
        }
        let worker = &mut self.workers[worker_id as usize];
        if worker.state == WorkerState::Dialing {
            // The request was not built yet. Building it determines the methods, by which the calls
            // are counted.
            worker.compose(&mut self.composer);
            self.gauges.in_flight += worker.request.calls as u64;
        }
        worker.sample = None;
        self.outcomes.clear();
        self.outcomes.resize(worker.request.calls, CallOutcome::of(class));
        self.finish_request(worker_id, ended_at);
    }

    /// Counts the outcomes of the request's calls, and starts the next step of the iteration or
    /// ends the iteration.
    pub(super) fn finish_request(&mut self, worker_id: u32, ended_at: u64) {
        self.deadlines.remove(worker_id);
        let worker = &mut self.workers[worker_id as usize];
        let unconnected = worker.state == WorkerState::Dialing;
        worker.state = WorkerState::Idle;
        let latency_ns = ended_at.saturating_sub(worker.call_scheduled_at);
        let service_ns = ended_at.saturating_sub(worker.sent_at);
        let late_ns = worker.late_ns + self.lateness.of_event(ended_at);
        let stage = worker.request.stage;
        let after_scenario =
            ended_at > self.scenarios[usize::from(worker.request.key.scenario)].end();
        let after_stage = ended_at > self.stage_ends[usize::from(stage)];
        for (index, &outcome) in self.outcomes.iter().enumerate() {
            // The calls of a batch have a method each.
            let batch_method = || worker.methods.get(index).copied();
            let method = worker.request.kind.method().or_else(batch_method).unwrap_or_default();
            self.recorder.record_call(stage, method, outcome, latency_ns, service_ns);
            let slot = Slot { stage, method, class: outcome.class };
            self.recorder.record_delay(slot, latency_ns, late_ns);
            if after_scenario || after_stage {
                self.recorder.record_late_end(slot, after_scenario);
            }
        }
        self.recorder.interval.traffic.requests += 1;
        self.gauges.in_flight -= worker.request.calls as u64;
        if worker.request.key.step + 1 < self.composer.step_count(worker.request.key.scenario) {
            worker.request.key.step += 1;
            (worker.call_scheduled_at, worker.ready_at) = (ended_at, ended_at);
            self.start_call(worker_id);
        } else {
            let elapsed_ns = ended_at.saturating_sub(worker.scheduled_at);
            let counts = &mut self.recorder.interval.iterations[usize::from(stage)];
            counts.ended += 1;
            counts.ended_after_end += u64::from(after_scenario);
            self.recorder.interval.iteration_time.saturating_record(elapsed_ns);
            self.release(worker_id, ended_at, unconnected);
        }
    }
}

/// Classifies all calls of a request from the response, and writes one outcome per call to
/// `outcomes`.
pub(super) fn classify_calls(
    composer: &Composer,
    request: Request,
    status: u16,
    body: &[u8],
    outcomes: &mut Vec<CallOutcome>,
) {
    outcomes.clear();
    match request.kind {
        RequestKind::Single { id, .. } => outcomes.push(classify::single(status, body, id)),
        RequestKind::Batch { first_id, stride } => {
            outcomes.resize(request.calls, CallOutcome::of(Class::Malformed));
            classify::batch(status, body, first_id, stride, outcomes);
        }
        RequestKind::Recorded { index, .. } => {
            outcomes.resize(request.calls, CallOutcome::of(Class::Malformed));
            match composer.recorded(request.key, index) {
                Some(recorded_call) if recorded_call.body.trim_ascii_start().starts_with(b"[") => {
                    classify::recorded_batch(status, body, outcomes);
                }
                Some(recorded_call) => {
                    let outcome = classify::recorded(status, body, recorded_call);
                    outcomes.fill(outcome);
                    if let Some(log) = composer.transaction_log(request.key) {
                        log.record_response(index, outcome, body);
                    }
                }
                None => {}
            }
        }
    }
}

/// Maximum number of bytes that are stored of the body of a failed request.
const ERROR_BODY_BYTES_MAX: usize = 4 << 10;

/// Stores the body of a response if it is the first with an HTTP status that made a request fail.
/// Must be called before the status is counted.
pub(super) fn store_error_body(
    shared: &Shared,
    recorder: &ThreadRecorder,
    status: u16,
    body: &[u8],
    outcomes: &[CallOutcome],
) {
    let is_error = outcomes.first().is_some_and(|outcome| {
        matches!(outcome.class, Class::Limited | Class::Http4xx | Class::Http5xx)
    });
    // A status that was counted in this interval has a body already, so the lock is rarely taken.
    if is_error && !body.is_empty() && !recorder.interval.statuses.contains_key(&status) {
        let beginning = &body[..body.len().min(ERROR_BODY_BYTES_MAX)];
        let mut bodies = shared.error_bodies.lock();
        bodies.entry(status).or_insert_with(|| beginning.to_vec());
    }
}

/// Sends sampled calls to the comparison with the reference node.
pub(super) struct SampleSender {
    pub(super) queue: SyncSender<Sample>,
    /// Its field `skipped` counts the samples that were skipped because the queue was full.
    pub(super) shared: Arc<Shared>,
}

impl SampleSender {
    /// Sends a sampled call if its response can be compared, and skips it if the queue is full.
    /// `bodies` are the bodies of the request and of the response, or `None` if the call is not
    /// sampled.
    pub(super) fn send(
        &self,
        request: Request,
        outcomes: &[CallOutcome],
        bodies: Option<(Vec<u8>, &[u8])>,
        now: u64,
    ) {
        let Some((request_body, response_body)) = bodies else { return };
        let Some((method, outcome)) = request.kind.method().zip(outcomes.first()) else { return };
        let is_comparable = matches!(outcome.class, Class::Ok | Class::RpcError)
            && response_body.len() <= SAMPLE_BYTES_MAX;
        if !is_comparable {
            return;
        }
        let sample = Sample {
            at: Duration::from_nanos(now),
            stage: request.stage,
            method,
            request: request_body,
            response: response_body.to_vec(),
        };
        if self.queue.try_send(sample).is_err() {
            self.shared.skipped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
