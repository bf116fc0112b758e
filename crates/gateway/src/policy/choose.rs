//! Load balancing within a group: weighted round robin, consistent hash, or power of two choices.
//!
//! The algorithms ignore health: the caller passes the usable upstreams (from `health` and
//! `heads`). Upstreams are identified by their index in the group.

use std::time::Duration;

use smallvec::SmallVec;

#[cfg(test)]
mod tests;

/// Number of points on the consistent-hash ring per unit of weight, as in ketama and nginx
/// (`ngx_http_upstream_hash_module.c`, `peer->weight * 160`).
pub const RING_POINTS_PER_WEIGHT: u32 = 160;

/// Maximum number of points of one ring. If the weights need more points, each upstream gets
/// proportionally fewer, so that the ring takes less than 1 MiB.
pub const RING_POINTS_MAX: u64 = 65_536;

/// Maximum load of an upstream on the ring, relative to the average. With this bound c, a change of
/// an upstream moves O(1/(c-1)^2) keys (Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with
/// Bounded Loads", 2016). HAProxy's manual calls 1.25 a reasonable `hash-balance-factor`.
pub const RING_BALANCE: f64 = 1.25;

/// Time constant of the decay of the latency estimate, which is an exponentially weighted moving
/// average (EWMA). It is the default of linkerd's balancer
/// (`linkerd/app/outbound/src/http/logical`, `DEFAULT_EWMA` decay 10 s) and of Finagle's
/// `PeakEwma`.
const EWMA_DECAY: Duration = Duration::from_secs(10);

/// Latency assumed for an upstream without any response yet: linkerd's default estimate of 30 ms.
pub const EWMA_START: Duration = Duration::from_millis(30);

/// Latency assumed for an upstream that is used again after it was ejected as unhealthy; its
/// earlier estimate is dropped. Also assumed for a new upstream while other upstreams have known
/// latencies. The low latency attracts calls at once, and a few calls in flight raise the
/// upstream's cost to the cost of the others.
pub const EWMA_READMITTED: Duration = Duration::from_millis(1);

/// Smooth weighted round robin, exactly as nginx's `ngx_http_upstream_get_peer`.
///
/// Each choice adds every usable upstream's effective weight to its current weight. The upstream
/// with the highest current weight is chosen, and the sum of the effective weights is subtracted
/// from its current weight. So the choices of one upstream are spread evenly over time.
#[derive(Debug, Clone)]
pub struct SmoothWeighted {
    states: Vec<WeightState>,
    /// Number of failures that reduce an effective weight to zero; 0 if failures do not count.
    fails_max: i64,
}

/// The three weights of one upstream, named as in nginx.
#[derive(Debug, Clone, Copy)]
struct WeightState {
    /// Priority in the next choice. It rises while the upstream is not chosen.
    current: i64,
    /// The configured weight, reduced by recent failures.
    effective: i64,
    configured: i64,
}

impl SmoothWeighted {
    /// Creates one entry per upstream. `fails_max` is nginx's `max_fails`.
    pub fn new(weights: &[u32], fails_max: u32) -> Self {
        let state = |&weight: &u32| WeightState {
            current: 0,
            effective: i64::from(weight),
            configured: i64::from(weight),
        };
        Self { states: weights.iter().map(state).collect(), fails_max: i64::from(fails_max) }
    }

    /// Returns the next usable upstream; `None` if no upstream is usable.
    pub fn pick(&mut self, usable: impl Fn(usize) -> bool) -> Option<usize> {
        let mut total = 0;
        let mut best: Option<(usize, i64)> = None;
        for (upstream, state) in self.states.iter_mut().enumerate() {
            if !usable(upstream) {
                continue;
            }
            state.current += state.effective;
            total += state.effective;
            if state.effective < state.configured {
                state.effective += 1;
            }
            if best.is_none_or(|(_, current)| state.current > current) {
                best = Some((upstream, state.current));
            }
        }
        let (upstream, _) = best?;
        self.states[upstream].current -= total;
        Some(upstream)
    }

    /// Returns the next usable upstream that has fewer calls in flight than its bound. The bound is
    /// the upstream's share of all calls in flight, by weight, times [`RING_BALANCE`]. Returns
    /// `None` if no upstream is usable. `loads` is the number of calls in flight per upstream.
    /// Callers use this function instead of [`SmoothWeighted::pick`] while calls wait for a permit
    /// (`overload`), because one slow upstream must not hold all permits.
    pub fn pick_bounded(&mut self, loads: &[u32], usable: impl Fn(usize) -> bool) -> Option<usize> {
        let weights = self.states.iter().map(|state| state.configured as f64);
        let weights: SmallVec<[f64; 8]> = weights.collect();
        let load_max = compute_load_bounds(RING_BALANCE, loads, &weights, &usable);
        let bounded =
            |upstream: usize| usable(upstream) && f64::from(loads[upstream]) < load_max(upstream);
        self.pick(bounded)
    }

    /// Records a failed call. The effective weight falls by the configured weight divided by
    /// `fails_max`, and recovers by one with each choice.
    pub fn record_failure(&mut self, upstream: usize) {
        if self.fails_max == 0 {
            return;
        }
        let state = &mut self.states[upstream];
        state.effective = (state.effective - state.configured / self.fails_max).max(0);
    }
}

/// A point on the ring. A key goes to the upstream of the next point clockwise from the key's hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RingPoint {
    hash: u64,
    upstream: u16,
}

/// A consistent hash ring with bounded load. Each upstream has several points on the ring.
#[derive(Debug, Clone)]
pub struct Ring {
    /// Sorted by hash.
    points: Vec<RingPoint>,
    /// Weight by upstream.
    weights: Vec<f64>,
    /// Maximum load of an upstream, relative to the average; at least 1.
    balance: f64,
}

impl Ring {
    /// Builds a ring from names and weights. Points depend on names, not positions, so an upstream
    /// keeps its keys when others come and go.
    pub fn new(upstreams: &[(&str, u32)], balance: f64) -> Self {
        let weight_sum: u64 = upstreams.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let points_unscaled = weight_sum * u64::from(RING_POINTS_PER_WEIGHT);
        let mut points = Vec::with_capacity(points_unscaled.min(RING_POINTS_MAX) as usize);
        for (upstream, &(name, weight)) in upstreams.iter().enumerate() {
            let unscaled = u128::from(weight) * u128::from(RING_POINTS_PER_WEIGHT);
            let divisor = u128::from(points_unscaled.max(RING_POINTS_MAX));
            // This is `unscaled` if all points together are within the maximum.
            let count = (unscaled * u128::from(RING_POINTS_MAX) / divisor).max(1) as u64;
            let name_hash = hash64(name.as_bytes());
            points.extend((0..count).map(|point| RingPoint {
                hash: mix64(name_hash ^ mix64(point + 1)),
                upstream: upstream as u16,
            }));
        }
        points.sort_unstable();
        points.dedup_by_key(|point| point.hash);
        Self {
            points,
            weights: upstreams.iter().map(|&(_, weight)| f64::from(weight)).collect(),
            balance: balance.max(1.0),
        }
    }

    /// Returns the first usable upstream, clockwise from the key, that has fewer calls in flight
    /// than its bound. The bound is the upstream's share of all calls in flight, by weight, times
    /// `balance`. Returns `None` if no upstream is usable. `loads` is the number of calls in flight
    /// per upstream.
    pub fn pick(
        &self,
        key_hash: u64,
        loads: &[u32],
        usable: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let load_max = compute_load_bounds(self.balance, loads, &self.weights, &usable);
        let start = self.points.partition_point(|point| point.hash < key_hash);
        let clockwise = self.points[start..].iter().chain(&self.points[..start]);
        // The first usable upstream clockwise from the key.
        let mut fallback = None;
        for point in clockwise {
            let upstream = usize::from(point.upstream);
            if !usable(upstream) {
                continue;
            }
            fallback.get_or_insert(upstream);
            if f64::from(loads[upstream]) < load_max(upstream) {
                return Some(upstream);
            }
        }
        fallback
    }
}

/// Returns a function from an upstream to its maximum number of calls in flight: its share of all
/// calls in flight, by weight, times `balance`. At least one usable upstream has fewer calls in
/// flight than its maximum.
fn compute_load_bounds<'a>(
    balance: f64,
    loads: &[u32],
    weights: &'a [f64],
    usable: &dyn Fn(usize) -> bool,
) -> impl Fn(usize) -> f64 + use<'a> {
    // The sum includes the new call.
    let (mut load_sum, mut weight_sum) = (1.0, 0.0);
    for upstream in (0..weights.len()).filter(|&upstream| usable(upstream)) {
        load_sum += f64::from(loads[upstream]);
        weight_sum += weights[upstream];
    }
    let load_per_weight = balance * load_sum / weight_sum;
    move |upstream| (load_per_weight * weights[upstream]).ceil()
}

/// Returns the FNV-1a hash of the bytes, mixed by [`mix64`]. The hash has no random seed and is the
/// same in every process and release, because replicas must map equal keys to equal upstreams.
pub fn hash64(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix64(fnv)
}

/// Mixes the bits of a hash by MurmurHash3's 64-bit finaliser (`fmix64`). FNV alone mixes the high
/// bits of short keys poorly.
fn mix64(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value = value.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

/// An upstream's latency estimate, which rises at once and falls slowly. It is Finagle's
/// `PeakEwma`, which linkerd uses through tower's `load::PeakEwma`.
#[derive(Debug, Clone, Copy)]
pub struct PeakEwma {
    /// Estimated round trip in seconds.
    rtt_secs: f64,
    /// Time of the last response.
    updated: Duration,
    /// True if the estimate follows from a round trip, not from an assumption.
    measured: bool,
}

impl PeakEwma {
    /// Creates an estimate for an upstream without calls. `start` is the assumed latency, for
    /// example [`EWMA_START`].
    pub fn new(now: Duration, start: Duration) -> Self {
        Self { rtt_secs: start.as_secs_f64(), updated: now, measured: false }
    }

    /// Records the round trip of a response. For a failed call the caller passes a longer time,
    /// because an upstream that fails fast must not look like the fastest one.
    pub fn observe(&mut self, now: Duration, rtt: Duration) {
        let newest_secs = rtt.as_secs_f64();
        if newest_secs > self.rtt_secs {
            self.rtt_secs = newest_secs;
        } else {
            let decay_factor = self.decay_factor(now);
            self.rtt_secs = self.rtt_secs * decay_factor + newest_secs * (1.0 - decay_factor);
        }
        self.updated = self.updated.max(now);
        self.measured = true;
    }

    /// Returns true if a round trip was recorded.
    pub fn is_measured(&self) -> bool {
        self.measured
    }

    /// Returns the estimate at the time of the last response.
    pub fn estimate(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_secs)
    }

    /// Returns the cost of one more call: the expected latency times the calls in flight, this call
    /// included. The expected latency is the estimate, decayed towards zero since the last
    /// response. It is at least `silence`: the time for which the upstream has sent no response
    /// although calls wait for one.
    pub fn cost(&self, now: Duration, in_flight: u32, silence: Duration) -> f64 {
        let rtt_secs = (self.rtt_secs * self.decay_factor(now)).max(silence.as_secs_f64());
        rtt_secs * (f64::from(in_flight) + 1.0)
    }

    fn decay_factor(&self, now: Duration) -> f64 {
        let elapsed = now.saturating_sub(self.updated).as_secs_f64();
        (-elapsed / EWMA_DECAY.as_secs_f64()).exp()
    }
}

/// Returns the cheaper of two random candidates (power of two choices). Each half of `random`
/// chooses one of the two. `skip` excludes candidates, such as upstreams that were already tried.
/// Returns `None` if no candidate remains.
///
/// If `skip` excludes one of the two, the function returns the cheapest of all remaining
/// candidates. Otherwise a call that timed out at a stalled upstream could go to another stalled
/// upstream.
pub fn pick_two(
    random: u64,
    candidates: &[u16],
    skip: impl Fn(u16) -> bool,
    cost: impl Fn(u16) -> f64,
) -> Option<u16> {
    let count = candidates.len() as u64;
    if count > 1 {
        // 32 random bits times `count`, divided by 2^32, are a random index below `count`.
        let index = ((random & 0xffff_ffff) * count) >> 32;
        let first = candidates[index as usize];
        // The second index is drawn from the indices without the first one.
        let other_index = ((random >> 32) * (count - 1)) >> 32;
        let other_index = other_index + u64::from(other_index >= index);
        let second = candidates[other_index as usize];
        if !skip(first) && !skip(second) {
            return Some(if cost(second) < cost(first) { second } else { first });
        }
    }
    let remaining = candidates.iter().copied().filter(|&upstream| !skip(upstream));
    remaining.min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
}

/// Primary and backup tiers. A tier is used only if no upstream of a tier with a lower number is
/// usable.
#[derive(Debug, Clone)]
pub struct TierOrder {
    tiers: Vec<Vec<u16>>,
}

impl TierOrder {
    /// Creates the order from each upstream's tier: 0 is primary, 1 is backup, and so on.
    pub fn new(tiers: &[u8]) -> Self {
        let mut numbers = tiers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let upstreams_of = |&number: &u8| {
            (0..tiers.len() as u16)
                .filter(|&upstream| tiers[usize::from(upstream)] == number)
                .collect()
        };
        Self { tiers: numbers.iter().map(upstreams_of).collect() }
    }

    /// Fills `out` with the usable upstreams of the first tier that has any. Called when the state
    /// of an upstream changes, not for each call.
    pub fn fill_candidates(&self, usable: impl Fn(u16) -> bool, out: &mut Vec<u16>) {
        out.clear();
        for tier in &self.tiers {
            out.extend(tier.iter().copied().filter(|&upstream| usable(upstream)));
            if !out.is_empty() {
                return;
            }
        }
    }
}
