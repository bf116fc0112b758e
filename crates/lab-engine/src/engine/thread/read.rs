//! Reads responses in pieces of bounded size.
//!
//! A short response is read and classified at once. A turn reads one piece of a long response and
//! then sends the scheduled calls, so that a long response delays no other call.

use lab_model::record::Class;

use super::call::classify_calls;
use super::{EngineThread, WorkerState};
use crate::engine::connection::{PIECE_BYTES, ReadResult};
use crate::engine::reader::Read;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// Reads a readable socket, unless it is queued for the next piece already. `ending` is true if
    /// the server has closed its side.
    pub(super) fn receive(&mut self, worker_id: u32, ending: bool) {
        let Some(connection) = &mut self.workers[worker_id as usize].connection else { return };
        connection.ending |= ending;
        if !connection.unread {
            self.read(worker_id);
        }
    }

    /// Reads the next piece of each queued connection, and sends scheduled calls in between.
    pub(super) fn read_pending(&mut self) {
        for _ in 0..self.unread.len() {
            let Some((worker_id, generation)) = self.unread.pop_front() else { return };
            let worker = &mut self.workers[worker_id as usize];
            let is_current = worker.generation == generation;
            if let Some(connection) =
                worker.connection.as_mut().filter(|connection| is_current && connection.unread)
            {
                connection.unread = false;
                self.read(worker_id);
                self.start_due();
                self.drive_dirty();
            }
        }
    }

    /// Reads up to the end of the response, of the connection, or of the piece.
    fn read(&mut self, worker_id: u32) {
        let mut input = std::mem::take(&mut self.input);
        let mut remaining = PIECE_BYTES;
        loop {
            let worker = &mut self.workers[worker_id as usize];
            let Some(connection) = &mut worker.connection else { break };
            let ending = connection.ending;
            match connection.receive(&mut input, &mut self.recorder.interval.traffic) {
                ReadResult::Nothing => break,
                ReadResult::End => {
                    self.connection_lost(worker_id);
                    break;
                }
                // No request is in flight, so the connection is unusable after unsolicited data.
                ReadResult::Bytes { .. }
                    if connection.websocket.is_none()
                        && worker.state != WorkerState::AwaitingResponse =>
                {
                    self.close(worker_id);
                    break;
                }
                ReadResult::Bytes { count, drained } => {
                    let is_finished = match &connection.websocket {
                        Some(_) => self.feed_websocket(worker_id, &input[..count], ending),
                        None => self.feed(worker_id, &input[..count], ending),
                    };
                    if is_finished || (drained && !ending) {
                        break;
                    }
                    remaining = remaining.saturating_sub(count);
                    if remaining == 0 {
                        self.read_later(worker_id);
                        break;
                    }
                }
            }
        }
        self.input = input;
    }

    fn read_later(&mut self, worker_id: u32) {
        let worker = &mut self.workers[worker_id as usize];
        if let Some(connection) = &mut worker.connection {
            connection.unread = true;
            self.unread.push_back((worker_id, worker.generation));
        }
    }

    /// Parses response bytes. Returns true once the response is complete or invalid.
    fn feed(&mut self, worker_id: u32, bytes: &[u8], ending: bool) -> bool {
        let worker = &mut self.workers[worker_id as usize];
        let request = worker.request;
        let Some(connection) = &mut worker.connection else { return true };
        // Classifying the last piece of a long response does not count as response time.
        let arrived = connection.reader.is_long().then(|| self.clock.read());
        match connection.reader.feed(bytes, self.response_bytes_max) {
            Read::Incomplete => {
                if arrived.is_some() {
                    self.clock.read();
                }
                return false;
            }
            Read::Invalid(_) => {
                self.close(worker_id);
                let now = self.clock.read();
                self.fail(worker_id, Class::Malformed, now);
            }
            Read::Complete { head, extra: true, .. } => {
                self.recorder.response(head.status, head.retry_after);
                self.close(worker_id);
                let now = self.clock.read();
                self.fail(worker_id, Class::Malformed, now);
            }
            Read::Complete { head, body, .. } => {
                let now = arrived.unwrap_or_else(|| self.clock.read());
                classify_calls(
                    &self.composer,
                    request,
                    head.status,
                    body.parsed,
                    &mut self.outcomes,
                );
                self.recorder.bytes(request.kind, &worker.methods, body.length);
                let bodies = worker.sample.take().zip(body.stored);
                self.samples.send(request, &self.outcomes, bodies, now);
                self.recorder.response(head.status, head.retry_after);
                self.after_response(worker_id, head.keep_alive, ending);
                self.finish(worker_id, now);
            }
        }
        true
    }
}
