//! Reads responses in pieces of bounded size.
//!
//! The thread reads and classifies a short response at once. It reads one piece of a long response
//! and then sends the scheduled calls before it reads the next piece. So a long response delays no
//! other call. `h2_pool.rs` reads the responses over HTTP/2.

use lab_model::record::Class;

use super::call::{classify_calls, store_error_body};
use super::{EngineThread, WorkerState};
use crate::engine::connection::{PIECE_BYTES, ReadResult};
use crate::engine::reader::Read;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// Reads from a worker's connection. If the connection is already in the read queue,
    /// [`EngineThread::read_pending`] reads it later. `server_closed` is true if the server has
    /// closed its side.
    pub(super) fn receive(&mut self, worker_id: u32, server_closed: bool) {
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        connection.server_closed |= server_closed;
        if !connection.read_queued {
            self.read(worker_id);
        }
    }

    /// Reads one piece from each queued connection, and sends scheduled calls after each piece.
    pub(super) fn read_pending(&mut self) {
        for _ in 0..self.read_queue.len() {
            let Some((worker_id, generation)) = self.read_queue.pop_front() else { return };
            let worker = &mut self.workers[worker_id as usize];
            let is_current = worker.generation == generation;
            if let Some(connection) =
                worker.connection.as_mut().filter(|connection| is_current && connection.read_queued)
            {
                connection.read_queued = false;
                self.read(worker_id);
                self.start_due();
                self.drive_dirty();
            }
        }
    }

    /// Reads until the response or the connection ends, the socket is empty, or the piece is full.
    /// After a full piece, queues the connection, so that the next piece is read later.
    fn read(&mut self, worker_id: u32) {
        let mut input = std::mem::take(&mut self.input);
        let mut remaining_bytes = PIECE_BYTES;
        loop {
            let worker = &mut self.workers[worker_id as usize];
            let Some(connection) = &mut worker.connection else { break };
            worker.advanced_in_turn = self.lateness.polled_at;
            let server_closed = connection.server_closed;
            match connection.receive(&mut input, &mut self.recorder.interval.traffic) {
                ReadResult::Nothing => break,
                ReadResult::End => {
                    self.on_connection_lost(worker_id);
                    break;
                }
                // The server sent data although no request is in flight.
                ReadResult::Bytes { .. }
                    if connection.websocket.is_none()
                        && worker.state != WorkerState::AwaitingResponse =>
                {
                    self.close_connection(worker_id);
                    break;
                }
                ReadResult::Bytes { count, drained } => {
                    let is_finished = match &connection.websocket {
                        Some(_) => self.feed_websocket(worker_id, &input[..count], server_closed),
                        None => self.feed(worker_id, &input[..count], server_closed),
                    };
                    // A drained socket reports further data with an event. If the server has closed
                    // its side, no event follows, so the thread reads up to the end.
                    if is_finished || (drained && !server_closed) {
                        break;
                    }
                    remaining_bytes = remaining_bytes.saturating_sub(count);
                    if remaining_bytes == 0 {
                        self.read_later(worker_id);
                        break;
                    }
                }
            }
        }
        self.input = input;
    }

    /// Queues the worker's connection for the next piece.
    fn read_later(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        if let Some(connection) = &mut worker.connection {
            connection.read_queued = true;
            self.read_queue.push_back((worker_id, worker.generation));
        }
    }

    /// Parses response bytes. Returns true once the response is complete or invalid.
    fn feed(&mut self, worker_id: u32, bytes: &[u8], server_closed: bool) -> bool {
        let worker = &mut self.workers[worker_id as usize];
        let request = worker.request;
        let Some(connection) = &mut worker.connection else { return true };
        // A long response ends when its last piece arrives. The latency excludes the time to scan
        // and classify that piece.
        let arrived_at = connection.reader.is_long().then(|| self.clock.read());
        match connection.reader.feed(bytes, self.response_bytes_max) {
            Read::Incomplete => {
                // Scanning the piece took time, so the last reading of the clock is outdated.
                if arrived_at.is_some() {
                    self.clock.read();
                }
                return false;
            }
            Read::Invalid(_) => {
                self.close_connection(worker_id);
                let now = self.clock.read();
                self.fail_request(worker_id, Class::Malformed, now);
            }
            // The server sent more bytes than the response has.
            Read::Complete { head, extra: true, .. } => {
                self.recorder.record_response(head.status, head.retry_after);
                self.close_connection(worker_id);
                let now = self.clock.read();
                self.fail_request(worker_id, Class::Malformed, now);
            }
            Read::Complete { head, body, .. } => {
                let now = arrived_at.unwrap_or_else(|| self.clock.read());
                classify_calls(
                    &self.composer,
                    request,
                    head.status,
                    body.parsed,
                    &mut self.outcomes,
                );
                let (status, outcomes) = (head.status, &self.outcomes);
                store_error_body(&self.shared, &self.recorder, status, body.parsed, outcomes);
                self.recorder.record_bytes(request.kind, &worker.methods, body.length);
                let bodies = worker.sample.take().zip(body.stored);
                self.samples.send(request, &self.outcomes, bodies, now);
                self.recorder.record_response(head.status, head.retry_after);
                self.keep_or_close(worker_id, head.keep_alive, server_closed);
                self.finish_request(worker_id, now);
            }
        }
        true
    }
}
