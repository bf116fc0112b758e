//! Reading answers, a piece of each connection at a time.
//!
//! A small answer is read and judged at once. Of a long one each turn takes a piece, between which
//! calls that are due are sent, so that nobody is late because somebody else's answer is long.

use lab_model::record::Class;

use super::call::{judge_all, keep, sample};
use super::{Doing, EngineThread};
use crate::engine::connection::{Got, PIECE_BYTES};
use crate::engine::reader::Read;
use crate::engine::world::World;

impl<W: World> EngineThread<W> {
    /// A socket has something: reads it, unless it waits for its turn already. `ending` says that the
    /// server has closed its side.
    pub(super) fn receive(&mut self, worker: u32, ending: bool) {
        let Some(connection) = &mut self.workers[worker as usize].connection else { return };
        connection.ending |= ending;
        if !connection.unread {
            self.read(worker);
        }
    }

    /// Reads a piece of each connection that has more, and sends what is due between them.
    pub(super) fn read_on(&mut self) {
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

    /// Reads up to the end of an answer, of the connection, or of a piece.
    fn read(&mut self, worker: u32) {
        let mut input = std::mem::take(&mut self.input);
        let mut room = PIECE_BYTES;
        loop {
            let at = &mut self.workers[worker as usize];
            let Some(connection) = &mut at.connection else { break };
            let ending = connection.ending;
            match connection.receive(&mut input, &mut self.ledger.interval.traffic) {
                Got::Nothing => break,
                Got::End => {
                    self.lost(worker);
                    break;
                }
                // Nobody has asked: whatever it is, the connection is of no more use.
                Got::Bytes { .. } if at.doing != Doing::Awaiting => {
                    self.close(worker);
                    break;
                }
                Got::Bytes { count, drained } => {
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

    /// Takes bytes of an answer; true once the answer is at its end.
    fn feed(&mut self, worker: u32, bytes: &[u8], ending: bool) -> bool {
        let at = &mut self.workers[worker as usize];
        let request = at.request;
        let Some(connection) = &mut at.connection else { return true };
        // Judging the last piece of a long answer is no part of its time.
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
                self.ledger.answer(head.status, head.retry_after);
                self.close(worker);
                let now = self.clock.read();
                self.fail(worker, Class::Malformed, now);
            }
            Read::Whole { head, body, .. } => {
                let now = came.unwrap_or_else(|| self.clock.read());
                judge_all(&self.composer, request, head.status, body.judged, &mut self.endings);
                self.ledger.bytes(request.asked, &at.methods, body.length);
                if let Some((sent, whole)) = at.sample.take().zip(body.whole) {
                    let sample = sample(request, &self.endings, sent, whole, now);
                    keep(&self.samples, sample, &self.shared.skipped);
                }
                self.ledger.answer(head.status, head.retry_after);
                self.after_answer(worker, head, ending);
                self.finish(worker, now);
            }
        }
        true
    }
}
