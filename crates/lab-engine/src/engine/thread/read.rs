//! Reading responses, in pieces of bounded size.
//!
//! A short response is read and classified at once. A turn reads one piece of a long response and
//! then sends the scheduled calls, so that a long response delays no other call.

use lab_model::record::Class;

use super::call::{judge_all, keep, sample};
use super::{EngineThread, WorkerState};
use crate::engine::connection::{PIECE_BYTES, ReadResult};
use crate::engine::reader::Read;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// Reads a readable socket, unless it is queued for the next piece already. `ending` is true if
    /// the server has closed its side.
    pub(super) fn receive(&mut self, worker: u32, ending: bool) {
        let Some(connection) = &mut self.workers[worker as usize].connection else { return };
        connection.ending |= ending;
        if !connection.unread {
            self.read(worker);
        }
    }

    /// Reads the next piece of each queued connection, and sends scheduled calls in between.
    pub(super) fn read_pending(&mut self) {
        for _ in 0..self.unread.len() {
            let Some((worker, generation)) = self.unread.pop_front() else { return };
            let at = &mut self.workers[worker as usize];
            let same = at.generation == generation;
            if let Some(connection) = at.connection.as_mut().filter(|one| same && one.unread) {
                connection.unread = false;
                self.read(worker);
                self.start_due();
                self.drive_dirty();
            }
        }
    }

    /// Reads up to the end of the response, of the connection, or of the piece.
    fn read(&mut self, worker: u32) {
        let mut input = std::mem::take(&mut self.input);
        let mut room = PIECE_BYTES;
        loop {
            let at = &mut self.workers[worker as usize];
            let Some(connection) = &mut at.connection else { break };
            let ending = connection.ending;
            match connection.receive(&mut input, &mut self.recorder.interval.traffic) {
                ReadResult::Nothing => break,
                ReadResult::End => {
                    self.connection_lost(worker);
                    break;
                }
                // No request is in flight, so the connection is unusable after unsolicited data.
                ReadResult::Bytes { .. } if at.state != WorkerState::AwaitingResponse => {
                    self.close(worker);
                    break;
                }
                ReadResult::Bytes { count, drained } => {
                    if self.feed(worker, &input[..count], ending) || (drained && !ending) {
                        break;
                    }
                    room = room.saturating_sub(count);
                    if room == 0 {
                        self.read_later(worker);
                        break;
                    }
                }
            }
        }
        self.input = input;
    }

    fn read_later(&mut self, worker: u32) {
        let at = &mut self.workers[worker as usize];
        if let Some(connection) = &mut at.connection {
            connection.unread = true;
            self.unread.push_back((worker, at.generation));
        }
    }

    /// Parses response bytes. Returns true once the response is complete or invalid.
    fn feed(&mut self, worker: u32, bytes: &[u8], ending: bool) -> bool {
        let at = &mut self.workers[worker as usize];
        let request = at.request;
        let Some(connection) = &mut at.connection else { return true };
        // Classifying the last piece of a long response does not count as response time.
        let came = connection.reader.is_long().then(|| self.clock.read());
        match connection.reader.feed(bytes, self.response_bytes_max) {
            Read::More => {
                if came.is_some() {
                    self.clock.read();
                }
                return false;
            }
            Read::Bad(_) => {
                self.close(worker);
                let now = self.clock.read();
                self.fail(worker, Class::Malformed, now);
            }
            Read::Whole { head, extra: true, .. } => {
                self.recorder.answer(head.status, head.retry_after);
                self.close(worker);
                let now = self.clock.read();
                self.fail(worker, Class::Malformed, now);
            }
            Read::Whole { head, body, .. } => {
                let now = came.unwrap_or_else(|| self.clock.read());
                judge_all(&self.composer, request, head.status, body.judged, &mut self.outcomes);
                self.recorder.bytes(request.kind, &at.methods, body.length);
                if let Some((sent, whole)) = at.sample.take().zip(body.whole) {
                    let sample = sample(request, &self.outcomes, sent, whole, now);
                    keep(&self.samples, sample, &self.shared.skipped);
                }
                self.recorder.answer(head.status, head.retry_after);
                self.after_answer(worker, head, ending);
                self.finish(worker, now);
            }
        }
        true
    }
}
