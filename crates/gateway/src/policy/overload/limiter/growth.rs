//! The growth of the limit until upstreams are proven saturated.
//!
//! In the *growth phase*, the limit follows the calls that wait. While no response arrives, nothing
//! speaks against more calls, so the limit rises by all waiting calls at once. While responses
//! arrive, the limit doubles with each measurement at which calls wait.
//!
//! If the calls in flight have doubled and the throughput has not followed, upstreams are suspected
//! to be saturated. The same happens if upstreams with capacity left become slower all the time:
//! more calls are in flight, because each takes longer. So in the *proof phase* half the limit is
//! on trial. If the throughput stays, the upstreams are saturated, and the search starts. If it
//! falls, the upstreams have capacity left, and the limit follows the waiting calls again. The
//! comparison of a lower limit after a higher one removes the effect of a steady change.

use std::time::Duration;

use crate::policy::overload::limiter::measurement::{Measurement, OngoingMeasurement, is_slower};
use crate::policy::overload::limiter::{
    ABORT_BELOW, CAPACITY_LEFT_MIN, Direction, Limiter, MEASUREMENT_TIME_MAX, Phase,
    REFERENCE_EXPIRES_AFTER, ResponseSample, STEP_MAX,
};

/// In the growth phase, the limit gets at least this share of itself as a reserve for further calls.
const RESERVE_SHARE: u32 = 4;
/// The reserve is also at least this multiple of the square root of the limit. The number of calls in
/// flight that arrive independently has a Poisson distribution, whose standard deviation is the
/// square root of its mean.
const RESERVE_DEVIATIONS: f64 = 4.0;

/// While responses arrive, the limit grows by this factor.
const GROWTH_STEP: u32 = 2;

/// In the growth phase, upstreams are suspected to be saturated if the number of calls in flight has
/// risen by this factor and the throughput has not followed. After a pause without waiting calls the
/// factor is twice as high: calls in flight grow slowly, and each proof delays calls.
const SUSPECTED_ABOVE: f64 = 2.0;

/// Minimum number of responses in a measurement of the growth phase.
const GROWTH_SAMPLES_MIN: u32 = 32;
/// Minimum number of responses in the trial that may prove the upstreams saturated.
const PROOF_SAMPLES_MIN: u32 = 128;
/// A trial proves nothing if `ln(throughput ratio)` exceeds this value: half the calls in flight give
/// more than the 2.7-fold throughput only if the upstreams became faster meanwhile.
const PROOF_GAIN_MAX: f64 = 1.0;

impl Limiter {
    /// Returns the limit on trial after this suspicion; `None` if it would be too low.
    fn proof_limit(&self, suspicion: &Measurement) -> Option<u32> {
        let lower = (f64::from(suspicion.limit) / STEP_MAX) as u32;
        (lower >= self.settings.limit_min).then_some(lower)
    }

    /// Starts the trial that may prove the upstreams saturated.
    fn start_proof(&mut self, now: Duration, suspicion: Measurement, lower: u32) {
        self.phase = Phase::Proof;
        self.trial = Some(Direction::Down);
        self.accepted = Some(suspicion);
        self.limit_before_proof = self.limit;
        self.set_limit(now, lower);
    }

    /// Growth phase: raises the limit by the waiting calls and a reserve, because no response arrives.
    pub(super) fn follow_demand(&mut self, now: Duration) {
        let deviations = RESERVE_DEVIATIONS * f64::from(self.limit).sqrt();
        let reserve = (self.limit / RESERVE_SHARE).max(deviations as u32);
        self.raise(now, self.limit.saturating_add(self.waiting).saturating_add(reserve));
    }

    /// Growth phase: raises the limit. At the highest limit, starts the search instead.
    fn raise(&mut self, now: Duration, limit: u32) {
        if self.limit == self.settings.limit_max {
            self.phase = Phase::Search;
        }
        let last_progress = self.last_progress;
        self.set_limit(now, limit.min(self.settings.limit_max));
        // The silence of the upstreams goes on.
        self.last_progress = last_progress;
        self.waiting = 0;
    }

    /// Growth phase: adds a response to the measurement. When the measurement is complete, the limit
    /// doubles, or the trial starts that may prove the upstreams saturated.
    pub(super) fn measure_growth(&mut self, now: Duration, sample: ResponseSample) {
        let elapsed = now.saturating_sub(self.ongoing.limit_set_at);
        if self.ongoing.responses_to_skip > 0 && elapsed < MEASUREMENT_TIME_MAX {
            self.ongoing.responses_to_skip -= 1;
            return;
        }
        if sample.queue == 0 {
            // Fewer calls than the limit are in flight.
            self.ongoing = OngoingMeasurement::new(now, 0);
            return;
        }
        self.ongoing.begin(now, GROWTH_SAMPLES_MIN.max(self.limit / 2));
        let is_complete = self.ongoing.add(now, sample);
        if !is_complete && !self.has_measured_long(now) {
            return;
        }
        let measured = self.ongoing.measure(self.limit);
        let is_slow = measured.is_slow();
        let has_followed = self.reference.as_ref().is_none_or(|(measured_at, reference)| {
            let error = if is_slow { measured.error.hypot(reference.error) } else { 0.0 };
            let gain = (measured.rate / reference.rate).ln() - error;
            gain > CAPACITY_LEFT_MIN * SUSPECTED_ABOVE.ln()
                || measured.limit < reference.limit
                || now.saturating_sub(*measured_at) >= REFERENCE_EXPIRES_AFTER
        });
        let has_room = has_followed
            && self.reference.as_ref().is_some_and(|(_, reference)| {
                let log_step = (f64::from(measured.limit) / f64::from(reference.limit)).ln();
                log_step > 0.0 && !is_slower(reference, &measured, log_step)
            });
        if has_followed {
            self.reference = Some((now, measured));
            self.grew_slowly = false;
        }
        let suspected_above =
            if self.grew_slowly { SUSPECTED_ABOVE * 2.0 } else { SUSPECTED_ABOVE };
        let has_grown = self.reference.as_ref().is_some_and(|(_, reference)| {
            f64::from(measured.limit) >= f64::from(reference.limit) * suspected_above
        });
        if has_grown && is_slow {
            // So few responses arrive that a proof would take too long. The latencies belong to
            // lower limits.
            self.begin_search(now, measured.without_latencies());
        } else if has_grown && let Some(lower) = self.proof_limit(&measured) {
            self.start_proof(now, measured, lower);
        } else if has_room {
            self.follow_demand(now);
        } else {
            self.raise(now, self.limit.saturating_mul(GROWTH_STEP));
        }
    }

    /// Proof phase: adds a response to the measurement, and ends the trial if its result is clear.
    pub(super) fn measure_proof(&mut self, now: Duration, sample: ResponseSample) {
        if self.is_trial_hopeless(now) {
            self.reject_proof(now);
            return;
        }
        let is_earlier = self.ongoing.samples == 0 && sample.epoch != self.epoch;
        if is_earlier {
            // With capacity left, a gap without responses follows the last response to an earlier
            // call. The gap belongs to the measurement.
            self.ongoing.start = None;
        }
        self.ongoing.begin(now, PROOF_SAMPLES_MIN.max(2 * self.limit));
        if is_earlier {
            return;
        }
        let is_complete = self.ongoing.add(now, sample);
        let has_failed = self.ongoing.samples >= self.limit / 2 && self.has_trial_failed();
        if has_failed {
            self.reject_proof(now);
        } else if is_complete || self.has_measured_long(now) {
            self.judge_proof(now);
        }
    }

    /// Ends the trial that may prove the upstreams saturated.
    fn judge_proof(&mut self, now: Duration) {
        let measured = self.ongoing.measure(self.limit);
        let Some(accepted) = &self.accepted else { return };
        let log_step = (f64::from(accepted.limit) / f64::from(measured.limit)).ln();
        let throughput_loss = (accepted.rate / measured.rate).ln();
        let is_load_high = self.ongoing.samples_with_queue * 2 >= self.ongoing.samples;
        let is_saturated = is_load_high
            && throughput_loss < CAPACITY_LEFT_MIN * log_step
            && throughput_loss > -PROOF_GAIN_MAX;
        if !is_saturated {
            self.reject_proof(now);
            return;
        }
        self.begin_search(now, measured);
    }

    /// Starts the search with a trial of a lower limit: the upstreams are saturated.
    fn begin_search(&mut self, now: Duration, accepted: Measurement) {
        self.restart_search();
        self.phase = Phase::Search;
        self.accepted = Some(accepted);
        self.ongoing = OngoingMeasurement::new(now, 0);
        self.reverse_search(now, Direction::Up);
        self.try_next(now);
    }

    /// Returns to the growth phase, because a lower limit costs throughput or calls wait no longer.
    pub(super) fn reject_proof(&mut self, now: Duration) {
        let before = self.limit_before_proof;
        let measured = self.ongoing.measure(self.limit);
        let has_room = self.accepted.as_ref().is_some_and(|accepted| {
            let log_step = (f64::from(accepted.limit) / f64::from(measured.limit)).ln();
            self.ongoing.samples >= GROWTH_SAMPLES_MIN
                && measured.rate < accepted.rate * ABORT_BELOW
                && !is_slower(&measured, accepted, log_step)
        });
        let raise_max = if has_room { u32::MAX } else { before };
        let limit = before.saturating_add(self.waiting.min(raise_max));
        let reference = self.accepted.map(|accepted| (now, accepted));
        self.restart_search();
        self.reference = reference;
        self.set_limit(now, limit.min(self.settings.limit_max));
        self.waiting = 0;
    }
}
