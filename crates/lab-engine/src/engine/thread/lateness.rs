//! Measures how late an engine thread itself was. A thread is late if it is stopped, has no core, or
//! works for long between two looks at its sockets.
//!
//! A call is delayed by its thread in two ways. It is sent later than planned, or its response lies
//! in the socket until the thread reads it. The delay of a call is the sum of both. The latency minus
//! the delay is a lower bound of the true latency, because a response may also have arrived at the
//! end of a gap.
//!
//! After a gap, a thread sends all calls that became due in it at once. If the server works first
//! come, first served, this burst delays each call by at most the length of the gap. So that time
//! counts as a delay of each call that is sent until the burst is over.
//!
//! Times of type `u64` are nanoseconds since the start of the run.

use std::time::Duration;

use lab_model::record::GAP_MIN_NS;
use rustix::event::epoll;

use super::{DIAL_QUEUE, EVENTS_MAX, EngineThread, RESPONSE_QUEUE, WorkerState};
use crate::engine::EngineFault;
use crate::engine::world::World;

/// Maximum time that a thread sleeps at once. The start of a gap is known to this precision.
const SLEEP_MAX_NS: u64 = 10_000_000;

/// How late a thread is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    /// Time of the last look at the sockets. All events until then have been handled, except for
    /// the events of the current turn.
    pub(super) polled_at: u64,
    /// How late the events of the current turn may have been received.
    received_late_ns: u64,
    /// Maximum number of sockets that had events at the end of the last gap, and whose events have
    /// not been returned since. One look at the sockets returns at most [`EVENTS_MAX`] events.
    unreturned: usize,
    /// The burst after a gap; `None` outside of a burst.
    burst: Option<Burst>,
}

/// The calls that a thread sends at once after a gap.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Length of the longest gap before or in the burst.
    gap_ns: u64,
    /// Number of calls in flight at the gap. The burst is over when no more are in flight.
    in_flight: u64,
}

impl Lateness {
    /// Returns how late an event of the current turn is handled at `now`. Returns 0 for a time
    /// before the current turn, such as a deadline.
    pub(super) fn of_event(&self, now: u64) -> u64 {
        match now.checked_sub(self.polled_at) {
            Some(handled_late_ns) => self.received_late_ns + handled_late_ns,
            None => 0,
        }
    }

    /// Returns how late a call is sent: its own delay, or the delay that a burst causes.
    pub(super) fn of_send(&self, delay_ns: u64) -> u64 {
        self.burst.map_or(delay_ns, |burst| delay_ns.max(burst.gap_ns))
    }
}

impl<W: World> EngineThread<W> {
    /// Waits for events until `wake_at`, at most [`SLEEP_MAX_NS`]. Returns how late the events may
    /// have been received.
    ///
    /// A wait that takes longer than intended shows a gap. A thread that has no core when an event
    /// arrives wakes late too, but perhaps before the intended end of its wait. So the kernel's
    /// account of the thread's waits for a core is read before and after a sleep. It takes some
    /// microseconds, and a busy thread hardly sleeps, so a sleep begins with a short wait without
    /// it.
    pub(super) fn sleep(
        &mut self,
        events: &mut Vec<epoll::Event>,
        started: u64,
        wake_at: u64,
    ) -> Result<u64, EngineFault> {
        let wake_at = wake_at.min(started + SLEEP_MAX_NS);
        let intended_ns = wake_at.saturating_sub(started);
        let short_ns = intended_ns.min(GAP_MIN_NS);
        let late_ns = self.wait_until(events, started, started + short_ns)?;
        if intended_ns == short_ns || late_ns > 0 || !events.is_empty() {
            return Ok(late_ns);
        }
        // The thread may also be stopped between the two waits. So the second wait counts from the
        // end of the first.
        let started = self.clock.now;
        let run_delay_before = self.recorder.run_delay_ns();
        self.clock.read();
        let late_ns = self.wait_until(events, started, started.max(wake_at))?;
        Ok(late_ns.max(self.recorder.run_delay_ns() - run_delay_before))
    }

    /// Waits for events until `end`. Returns how late the events may have been received: up to the
    /// whole time since `started` if the wait ended far later than intended, otherwise not at all.
    fn wait_until(
        &mut self,
        events: &mut Vec<epoll::Event>,
        started: u64,
        end: u64,
    ) -> Result<u64, EngineFault> {
        let mut timeout_ns = end.saturating_sub(self.clock.now);
        loop {
            let wait_started = self.clock.now;
            self.clock.world.wait(events, timeout_ns)?;
            let now = self.clock.read();
            let is_late = now.saturating_sub(end) >= GAP_MIN_NS;
            let was_fast = timeout_ns == 0 && now - wait_started < GAP_MIN_NS;
            if !is_late || was_fast || events.len() == EVENTS_MAX {
                return Ok(if is_late { now - started } else { 0 });
            }
            // The thread may have been stopped after the kernel had looked at the sockets. Then the
            // responses that have arrived meanwhile must be received in this turn. SIGCONT also
            // interrupts a wait before it reports any event.
            timeout_ns = 0;
        }
    }

    /// Ends a turn of the loop, after its wait. The time since the last look at the sockets was work
    /// until `wait_started`, and then the wait, which ended late by `late_ns` and returned this many
    /// events.
    pub(super) fn end_turn(&mut self, wait_started: u64, late_ns: u64, events: usize) {
        // `sleep` has read the clock after its wait.
        let now = self.clock.now;
        let worked_ns = wait_started.saturating_sub(self.lateness.polled_at);
        let gap_ns = worked_ns + late_ns;
        self.delay_calls(if worked_ns >= GAP_MIN_NS { worked_ns } else { 0 });
        let lateness = &mut self.lateness;
        // The kernel returns events in the order of their sockets' first event.
        let carried_ns = if lateness.unreturned > 0 { lateness.of_event(now) } else { 0 };
        let is_gap = gap_ns >= GAP_MIN_NS;
        lateness.received_late_ns = carried_ns.max(if is_gap { gap_ns } else { 0 });
        if is_gap {
            lateness.unreturned = self.workers.len();
        }
        lateness.unreturned = match events < EVENTS_MAX {
            true => 0,
            false => lateness.unreturned.saturating_sub(events),
        };
        lateness.polled_at = now;
        if !is_gap {
            return;
        }
        for queue in [RESPONSE_QUEUE, DIAL_QUEUE] {
            self.deadlines.extend(queue, gap_ns, now);
        }
        let (from, to) = (now.saturating_sub(gap_ns), now);
        self.recorder.interval.record_gap(Duration::from_nanos(from), Duration::from_nanos(to));
        if self.scenarios.iter().any(super::ScenarioState::is_paced) {
            let in_flight = self.gauges.in_flight;
            let burst = self.lateness.burst.get_or_insert(Burst { gap_ns, in_flight });
            burst.gap_ns = burst.gap_ns.max(gap_ns);
        }
    }

    /// Adds the delays of this turn to the calls in flight, at its end. `worked_ns` is the time that
    /// the turn took, or 0 if it was short.
    ///
    /// The thread may have been stopped between the time that counts as a call's send and the actual
    /// send. A call may also have advanced without an end: a rest of its request was sent, or a part
    /// of its response was read. A server cannot send the rest of a response while the socket is full.
    fn delay_calls(&mut self, worked_ns: u64) {
        let Lateness { polled_at, received_late_ns, .. } = self.lateness;
        if worked_ns == 0 && received_late_ns == 0 {
            return;
        }
        for worker in &mut self.workers {
            match worker.state {
                WorkerState::Idle => {}
                _ if worker.sent_at >= polled_at => worker.late_ns += worked_ns,
                WorkerState::AwaitingResponse if worker.advanced_in_turn == polled_at => {
                    worker.late_ns += received_late_ns + worked_ns;
                }
                _ => {}
            }
        }
    }

    /// Ends the burst if all its calls have been sent and have ended.
    pub(super) fn end_burst(&mut self) {
        let Some(burst) = self.lateness.burst else { return };
        let is_drained = self.gauges.queued == 0 && self.gauges.in_flight <= burst.in_flight;
        if is_drained && self.next_planned() > self.clock.now {
            self.lateness.burst = None;
        }
    }
}
