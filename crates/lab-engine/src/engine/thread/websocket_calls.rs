//! The calls of one thread over WebSockets: the opening handshake, frames, and the end of a
//! connection. `engine/websocket.rs` encodes and decodes frames.
//!
//! Each worker has its own WebSocket and at most one request in flight. So the next message is the
//! response to that request.

use lab_model::plan::Target;
use lab_model::record::Class;

use super::call::classify_calls;
use super::{EngineThread, WorkerState};
use crate::engine::EngineFault;
use crate::engine::compose::RequestKind;
use crate::engine::connection::Phase;
use crate::engine::websocket::{
    CallSocket, Event, HandshakeState, Masking, NO_CLOSE_CODE, NORMAL_CLOSURE, Opcode, Opener,
};
use crate::engine::world::World;

/// HTTP status with which messages are classified, because a message has no status.
const STATUS_OK: u16 = 200;

/// The shared state of all WebSockets of one thread.
pub(super) struct WebSocketCalls {
    opener: Opener,
    masking: Masking,
    /// Buffer with the last encoded frame.
    frame: Vec<u8>,
}

impl WebSocketCalls {
    /// Creates the state, or returns `None` if the target is not called over WebSockets.
    ///
    /// # Errors
    /// Fails if a header of the target cannot be sent.
    pub(super) fn new(target: &Target) -> Result<Option<WebSocketCalls>, EngineFault> {
        if !target.is_websocket() {
            return Ok(None);
        }
        let opener = Opener::new(target)?;
        Ok(Some(WebSocketCalls { opener, masking: Masking::default(), frame: Vec::new() }))
    }

    /// Encodes a masked frame.
    pub(super) fn encode(&mut self, opcode: Opcode, payload: &[u8]) -> &[u8] {
        self.frame.clear();
        self.masking.encode(&mut self.frame, opcode, payload);
        &self.frame
    }
}

/// Why a WebSocket cannot carry further calls.
#[derive(Clone, Copy)]
enum End {
    /// The server sent a close frame with this code.
    Closed(Option<u16>),
    /// The server sent an invalid frame, a message beyond the plan's limit, or a message that no
    /// call asked for.
    Invalid,
}

impl<W: World> EngineThread<W> {
    /// Sends the request that opens a WebSocket on a connected socket.
    pub(super) fn start_upgrade(&mut self, worker_id: u32) {
        let now = self.clock.read();
        let Some(calls) = &self.websocket else { return };
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        let (request, handshake) = calls.opener.open();
        connection.websocket = Some(Box::new(CallSocket::new(handshake, now)));
        connection.phase = Phase::Upgrading;
        if connection.send(&request, &mut self.recorder.interval.traffic).is_err() {
            self.on_upgrade_failed(worker_id, Class::Reset);
        }
    }

    /// Fails the call of a worker whose WebSocket could not be opened.
    pub(super) fn on_upgrade_failed(&mut self, worker_id: u32, class: Class) {
        self.recorder.interval.traffic.connections_failed += 1;
        self.close_connection(worker_id);
        let now = self.clock.read();
        self.fail_request(worker_id, class, now);
    }

    /// Handles received bytes. Returns true if the connection no longer belongs to the worker.
    pub(super) fn feed_websocket(
        &mut self,
        worker_id: u32,
        bytes: &[u8],
        server_closed: bool,
    ) -> bool {
        let worker = &mut self.workers[worker_id as usize];
        let generation = worker.generation;
        let socket =
            worker.connection.as_mut().and_then(|connection| connection.websocket.as_mut());
        match socket.and_then(|socket| socket.handshake.as_mut()) {
            Some(handshake) => {
                let state = handshake.feed(bytes);
                self.continue_upgrade(worker_id, state);
            }
            None => self.feed_frames(worker_id, bytes, server_closed),
        }
        let worker = &self.workers[worker_id as usize];
        worker.connection.is_none() || worker.generation != generation
    }

    /// Handles the state of the opening handshake after received bytes.
    fn continue_upgrade(&mut self, worker_id: u32, state: HandshakeState) {
        match state {
            HandshakeState::Incomplete => {}
            HandshakeState::Open { frames } => self.on_upgraded(worker_id, &frames),
            HandshakeState::Refused { status, retry_after } => {
                self.recorder.record_response(status, retry_after);
                let class = if status == 429 { Class::Limited } else { Class::Upgrade };
                self.on_upgrade_failed(worker_id, class);
            }
            HandshakeState::Invalid => self.on_upgrade_failed(worker_id, Class::Upgrade),
        }
    }

    /// Sends the call on a WebSocket that has just opened. `frames` are the bytes that followed the
    /// response to the handshake.
    fn on_upgraded(&mut self, worker_id: u32, frames: &[u8]) {
        let now = self.clock.read();
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        let Some(socket) = &mut connection.websocket else { return };
        connection.phase = Phase::Open;
        socket.handshake = None;
        self.recorder.interval.upgrade_time.saturating_record(now - socket.started);
        self.recorder.interval.traffic.connections += 1;
        self.recorder.record_response(101, None);
        self.deadlines.remove(worker_id);
        self.feed_frames(worker_id, frames, false);
        let worker = &self.workers[worker_id as usize];
        let phase = worker.connection.as_ref().map(|connection| connection.phase);
        if worker.state == WorkerState::Dialing && phase == Some(Phase::Open) {
            self.transmit(worker_id);
        }
    }

    /// Decodes all frames in `bytes`. The worker starts its next call only after the last of these
    /// frames. So an unexpected message is not mistaken for the response to that call.
    fn feed_frames(&mut self, worker_id: u32, mut bytes: &[u8], server_closed: bool) {
        let (mut responded_at, mut end) = (None, None);
        while end.is_none() {
            let worker = &mut self.workers[worker_id as usize];
            let socket =
                worker.connection.as_mut().and_then(|connection| connection.websocket.as_mut());
            let Some(socket) = socket else { return };
            let Ok((used, event)) = socket.decoder.next(bytes) else {
                end = Some(End::Invalid);
                break;
            };
            bytes = &bytes[used..];
            match event {
                None if bytes.is_empty() => break,
                None | Some(Event::Pong) => {}
                Some(Event::Ping(payload)) => socket.pong = Some(payload.to_vec()),
                Some(Event::Close(code)) => end = Some(End::Closed(code)),
                Some(Event::Piece { bytes: piece, is_last }) => {
                    // A message that nothing awaits may repeat the last response.
                    let is_awaited =
                        worker.state == WorkerState::AwaitingResponse && responded_at.is_none();
                    let is_possible = is_awaited || socket.answered.is_some();
                    // A long response ends when its last piece arrives. The latency excludes the
                    // time to scan and classify that piece.
                    let arrived_at = socket.body.is_long().then(|| self.clock.read());
                    let is_invalid =
                        !is_possible || socket.body.append(piece, self.response_bytes_max).is_err();
                    if is_invalid {
                        end = Some(End::Invalid);
                    } else if is_last && !self.skip_duplicate(worker_id) {
                        if is_awaited {
                            responded_at = Some(arrived_at.unwrap_or_else(|| self.clock.read()));
                            self.classify_message(worker_id);
                        } else {
                            end = Some(End::Invalid);
                        }
                    } else if arrived_at.is_some() {
                        self.clock.read();
                    }
                }
            }
        }
        self.send_pong(worker_id);
        self.finish_frames(worker_id, responded_at, end, server_closed);
    }

    /// Counts and skips the complete message if it repeats the response to the last request. Returns
    /// false if it does not.
    fn skip_duplicate(&mut self, worker_id: u32) -> bool {
        let worker = &mut self.workers[worker_id as usize];
        let connection = worker.connection.as_mut();
        let socket = connection.and_then(|connection| connection.websocket.as_mut());
        let Some(socket) = socket else { return false };
        let Some(answered) = socket.answered else { return false };
        let mut outcomes = Vec::new();
        let body = socket.body.received();
        classify_calls(&self.composer, answered, STATUS_OK, body.parsed, &mut outcomes);
        if outcomes.iter().any(|outcome| is_mismatch(outcome.class)) {
            return false;
        }
        socket.body.reset();
        self.recorder.interval.traffic.duplicates += 1;
        true
    }

    /// Classifies the complete message as the response to the worker's request.
    fn classify_message(&mut self, worker_id: u32) {
        let now = self.clock.now;
        let worker = &mut self.workers[worker_id as usize];
        let (request, connection) = (worker.request, &mut worker.connection);
        let socket = connection.as_mut().and_then(|connection| connection.websocket.as_mut());
        let Some(socket) = socket else { return };
        let body = socket.body.received();
        classify_calls(&self.composer, request, STATUS_OK, body.parsed, &mut self.outcomes);
        self.recorder.record_bytes(request.kind, &worker.methods, body.length);
        let bodies = worker.sample.take().zip(body.stored);
        self.samples.send(request, &self.outcomes, bodies, now);
        socket.body.reset();
        // The ids of recorded calls are those of the recording, so equal ids show no duplicate.
        let has_own_ids = !matches!(request.kind, RequestKind::Recorded { .. });
        socket.answered = has_own_ids.then_some(request);
    }

    /// Finishes the worker's request after all frames were decoded, if a response arrived or the
    /// WebSocket has ended. `responded_at` is the time of the response, or `None` if no response
    /// arrived. `end` is the reason for the end of the WebSocket, or `None` if the WebSocket is
    /// open.
    fn finish_frames(
        &mut self,
        worker_id: u32,
        responded_at: Option<u64>,
        end: Option<End>,
        server_closed: bool,
    ) {
        match end {
            Some(End::Closed(code)) => self.on_close_frame(worker_id, code),
            Some(End::Invalid) => self.close_connection(worker_id),
            // The response may belong to an earlier call. In that case, all later responses may
            // arrive one call late too. So the next call needs another WebSocket.
            None if responded_at.is_some() && self.is_mismatched() => {
                self.close_connection(worker_id)
            }
            None if responded_at.is_some() => {
                let keep_alive = true;
                self.keep_or_close(worker_id, keep_alive, server_closed);
            }
            None => return,
        }
        let has_call = self.workers[worker_id as usize].state != WorkerState::Idle;
        match (responded_at, end) {
            (Some(responded_at), _) => self.finish_request(worker_id, responded_at),
            (None, Some(end)) if has_call => {
                let now = self.clock.read();
                let class = match end {
                    End::Closed(_) => Class::Closed,
                    End::Invalid => Class::Malformed,
                };
                self.fail_request(worker_id, class, now);
            }
            (None, _) => {}
        }
    }

    /// Returns true if the last response may belong to another request.
    fn is_mismatched(&self) -> bool {
        self.outcomes.iter().any(|outcome| is_mismatch(outcome.class))
    }

    /// Counts the server's close frame, replies to it, and lets the server close the connection.
    fn on_close_frame(&mut self, worker_id: u32, code: Option<u16>) {
        let interval = &mut self.recorder.interval;
        interval.traffic.closed_by_server += 1;
        *interval.close_codes.entry(code.unwrap_or(NO_CLOSE_CODE)).or_default() += 1;
        let connection = self.workers[worker_id as usize].connection.as_mut();
        if let Some(socket) = connection.and_then(|connection| connection.websocket.as_mut()) {
            socket.close_code = code.unwrap_or(NORMAL_CLOSURE);
        }
        self.drain_connection(worker_id);
    }

    /// Sends the pong for the last ping. Does nothing if the socket has not accepted all earlier
    /// bytes yet.
    pub(super) fn send_pong(&mut self, worker_id: u32) {
        let Some(calls) = &mut self.websocket else { return };
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        let is_ready = connection.sent_all();
        let socket = connection.websocket.as_mut().filter(|_| is_ready);
        if let Some(payload) = socket.and_then(|socket| socket.pong.take()) {
            let frame = calls.encode(Opcode::Pong, &payload);
            // After a write error, the next read reports the end of the connection.
            let _ignored = connection.send(frame, &mut self.recorder.interval.traffic);
        }
    }

    /// Sends a close frame if the WebSocket is open and the socket has accepted all earlier bytes.
    pub(super) fn send_close(&mut self, worker_id: u32) {
        let Some(calls) = &mut self.websocket else { return };
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        let is_ready = connection.phase == Phase::Open && connection.sent_all();
        if let Some(socket) = connection.websocket.as_ref().filter(|_| is_ready) {
            let frame = calls.encode(Opcode::Close, &socket.close_code.to_be_bytes());
            // The connection is closed in any case.
            let _ignored = connection.send(frame, &mut self.recorder.interval.traffic);
        }
    }

    /// Closes the WebSockets of all workers at the end of the run.
    pub(super) fn close_websockets(&mut self) {
        if self.websocket.is_some() {
            (0..self.workers.len() as u32).for_each(|worker_id| self.close_connection(worker_id));
        }
    }
}

/// Returns true if a response of this class may belong to another request.
fn is_mismatch(class: Class) -> bool {
    matches!(class, Class::WrongId | Class::Malformed)
}
