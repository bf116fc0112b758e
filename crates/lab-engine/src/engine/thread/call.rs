//! Calls of one thread, from sending to their class. `thread/read.rs` reads the answers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use lab_model::plan::Reuse;
use lab_model::record::{Class, Slot};

use super::{ANSWER, Doing, EngineThread, Request};
use crate::engine::Sample;
use crate::engine::body::{Came, SAMPLE_BYTES_MAX};
use crate::engine::compose::{Asked, Composer};
use crate::engine::judge::{self, Ending};
use crate::engine::reader::Head;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// Sends the call that a worker is at, on a new connection if it has none.
    pub(super) fn call(&mut self, worker: u32) {
        let now = self.clock.read();
        let at = &self.workers[worker as usize];
        self.ledger.interval.lateness.saturating_record(now.saturating_sub(at.ready));
        if self.carriers.is_some() {
            self.carry(worker);
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
        let composed = self.composer.compose(at.request.which, &mut at.methods);
        (at.request.asked, at.request.calls) = (composed.asked, composed.calls);
        at.sample = composed.sampled.then(|| self.composer.request_body().to_vec());
        if composed.sampled {
            connection.reader.keep();
        }
        at.sent = self.clock.read();
        let traffic = &mut self.ledger.interval.traffic;
        if connection.send(self.composer.request(), traffic).is_ok() {
            connection.uses += 1;
            at.doing = Doing::Awaiting;
            self.waits.enter(ANSWER, worker, at.sent);
            self.gauges.in_flight += at.request.calls as u64;
        } else if connection.uses > 0 {
            // It was closed while idle, and this came before its event; nothing was answered.
            traffic.closed_by_server += 1;
            at.connection = None;
            self.dial(worker);
        } else {
            at.doing = Doing::Awaiting;
            self.gauges.in_flight += at.request.calls as u64;
            self.lost(worker);
        }
    }

    /// Judges an answer that lies apart from the connection's own buffers.
    pub(super) fn judge(&mut self, worker: u32, status: u16, body: Came<'_>, now: u64) {
        let at = &mut self.workers[worker as usize];
        judge_all(&self.composer, at.request, status, body.judged, &mut self.endings);
        self.ledger.bytes(at.request.asked, &at.methods, body.length);
        if let Some((sent, whole)) = at.sample.take().zip(body.whole) {
            let sample = sample(at.request, &self.endings, sent, whole, now);
            keep(&self.samples, sample, &self.shared.skipped);
        }
    }

    /// Decides whether the connection is used again.
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
            self.ledger.interval.traffic.closed_by_server += u64::from(!used_up);
            self.close(worker);
        } else if !head.keep {
            self.ledger.interval.traffic.closed_by_server += u64::from(!used_up);
            self.leave(worker);
        } else if used_up || unsent {
            self.close(worker);
        }
    }

    /// The connection has ended by itself.
    pub(super) fn lost(&mut self, worker: u32) {
        self.ledger.interval.traffic.closed_by_server += 1;
        let at = &mut self.workers[worker as usize];
        let Some(connection) = at.connection.take() else { return };
        if at.doing != Doing::Awaiting {
            return;
        }
        let now = self.clock.read();
        let request = self.workers[worker as usize].request;
        match connection.reader.at_end() {
            Some((head, body)) => {
                judge_all(&self.composer, request, head.status, body.judged, &mut self.endings);
                let own = &self.workers[worker as usize];
                self.ledger.bytes(request.asked, &own.methods, body.length);
                self.ledger.answer(head.status, head.retry_after);
                self.finish(worker, now);
            }
            None => self.fail(worker, Class::Reset, now),
        }
    }

    /// Counts all calls of the request as of one class, without an answer.
    pub(super) fn fail(&mut self, worker: u32, class: Class, at: u64) {
        if self.is_carrier(worker) {
            return self.carrier_failed(worker, class, at);
        }
        let own = &mut self.workers[worker as usize];
        if own.doing == Doing::Dialing {
            // Nothing was sent; which calls it would have been is known all the same.
            let composed = self.composer.compose(own.request.which, &mut own.methods);
            (own.request.asked, own.request.calls) = (composed.asked, composed.calls);
            self.gauges.in_flight += own.request.calls as u64;
        }
        own.sample = None;
        self.endings.clear();
        self.endings.resize(own.request.calls, Ending::of(class));
        self.finish(worker, at);
    }

    /// Counts the calls of the request and goes on with the iteration.
    pub(super) fn finish(&mut self, worker: u32, at: u64) {
        self.waits.leave(worker);
        let own = &mut self.workers[worker as usize];
        own.doing = Doing::Nothing;
        let (latency, service) = (at.saturating_sub(own.call_due), at.saturating_sub(own.sent));
        let stage = own.request.stage;
        let after_scenario = at > self.streams[usize::from(own.request.which.scenario)].end();
        let after_stage = at > self.stage_ends[usize::from(stage)];
        let mut unconnected = false;
        for (nth, &ending) in self.endings.iter().enumerate() {
            let method = match own.request.asked {
                Asked::Single { method, .. } | Asked::Recorded { method, .. } => method,
                Asked::Batch { .. } => own.methods.get(nth).copied().unwrap_or_default(),
            };
            unconnected |= matches!(ending.class, Class::Connect | Class::Tls);
            self.ledger.call(own.request.stage, method, ending, latency, service);
            if after_scenario || after_stage {
                let slot = Slot { stage, method, class: ending.class };
                self.ledger.late(slot, after_scenario);
            }
        }
        self.ledger.interval.traffic.requests += 1;
        self.gauges.in_flight -= own.request.calls as u64;
        if own.request.which.step + 1 < self.composer.steps(own.request.which.scenario) {
            own.request.which.step += 1;
            (own.call_due, own.ready) = (at, at);
            self.call(worker);
        } else {
            let took = at.saturating_sub(own.due);
            let counts = &mut self.ledger.interval.iterations[usize::from(stage)];
            counts.ended += 1;
            counts.ended_late += u64::from(after_scenario);
            self.ledger.interval.iteration_time.saturating_record(took);
            self.release(worker, at, unconnected);
        }
    }
}

/// Judges all calls of the request that the answer is for.
pub(super) fn judge_all(
    composer: &Composer,
    request: Request,
    status: u16,
    body: &[u8],
    endings: &mut Vec<Ending>,
) {
    endings.clear();
    match request.asked {
        Asked::Single { id, .. } => endings.push(judge::single(status, body, id)),
        Asked::Batch { first, stride } => {
            endings.resize(request.calls, Ending::of(Class::Malformed));
            judge::batch(status, body, first, stride, endings);
        }
        Asked::Recorded { index, .. } => {
            endings.resize(request.calls, Ending::of(Class::Malformed));
            match composer.recorded(request.which, index) {
                Some(asked) if asked.body.trim_ascii_start().starts_with(b"[") => {
                    judge::recorded_batch(status, body, endings);
                }
                Some(asked) => endings.fill(judge::recorded(status, body, asked)),
                None => {}
            }
        }
    }
}

/// A call to be compared, if its answer is one that can be.
pub(super) fn sample(
    request: Request,
    endings: &[Ending],
    sent: Vec<u8>,
    body: &[u8],
    now: u64,
) -> Option<Sample> {
    let method = match request.asked {
        Asked::Single { method, .. } | Asked::Recorded { method, .. } => method,
        Asked::Batch { .. } => return None,
    };
    let class = endings.first()?.class;
    let fits = matches!(class, Class::Ok | Class::RpcError) && body.len() <= SAMPLE_BYTES_MAX;
    fits.then(|| Sample {
        at: Duration::from_nanos(now),
        stage: request.stage,
        method,
        request: sent,
        answer: body.to_vec(),
    })
}

/// Hands a sample over, unless whoever compares has fallen behind: then it is skipped.
pub(super) fn keep(samples: &SyncSender<Sample>, sample: Option<Sample>, skipped: &AtomicU64) {
    if sample.is_some_and(|sample| samples.try_send(sample).is_err()) {
        skipped.fetch_add(1, Ordering::Relaxed);
    }
}
