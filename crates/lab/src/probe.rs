//! Monitors targets with a small constant load that has no end: `weir probe`.
//!
//! A *turn* is one of the evenly spaced instants at which each target may receive one call
//! (`turns.rs`). Each target has a thread, which sends at most one call per turn (`caller.rs`). The
//! threads record their calls in one [`ProbeState`], which decides whether a target is up, lagging
//! or down. [`run`] passes this state to `on_tick` at short intervals.

mod caller;
mod default_calls;
mod turns;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_engine::engine::EngineFault;
use lab_engine::engine::single::SingleCalls;
use lab_model::plan::Plan;
use parking_lot::Mutex;

use crate::analysis::probe::{Event, ProbeState, Rules};
use crate::run::Stop;
use crate::target::{Client, TargetFault};
use caller::Caller;
use turns::Turns;

/// Interval at which [`run`] reports the state.
const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum share of a call's timeout that connecting may take. It is below 1, so a slow connect is
/// reported as such before the whole call times out.
const CONNECT_SHARE_MAX: f64 = 0.9;

/// Options of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of calls per second to each target. This is the number of turns per second.
    pub rate: f64,
    /// Timeout of a call.
    pub timeout: Duration,
    /// Conditions under which the state of a target changes.
    pub rules: Rules,
}

/// A target and the calls to it.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    /// Name in metrics and messages.
    pub name: String,
    /// The plan with the target's URL, headers and TLS settings, and with the calls to send.
    pub plan: Plan,
    /// True if cheap calls replace the plan's calls. The target's chain family determines the cheap
    /// calls.
    pub default_calls: bool,
}

/// Reason why a probe could not start.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFault {
    /// A client cannot be created.
    #[error(transparent)]
    Target(#[from] TargetFault),
    /// The calls of the plan cannot be sent.
    #[error(transparent)]
    Calls(#[from] EngineFault),
    /// A thread cannot start.
    #[error("cannot start the thread of a target")]
    Thread(#[source] std::io::Error),
}

/// Probes the targets until `stop` is requested. Calls `on_tick` at short intervals with the state,
/// and with the changes since the previous call of `on_tick`. A target that cannot be reached is
/// retried without limit.
///
/// # Errors
/// Fails if the calls of a plan cannot be sent, a client cannot be created, or a thread cannot
/// start.
pub fn run(
    targets: Vec<ProbeTarget>,
    options: &Options,
    stop: &Arc<Stop>,
    on_tick: &mut dyn FnMut(&ProbeState, &[Event]),
) -> Result<(), ProbeFault> {
    let names = targets.iter().map(|target| target.name.clone());
    let state = Arc::new(Mutex::new(ProbeState::new(names, options.rules)));
    let origin = Instant::now();
    for (index, mut target) in targets.into_iter().enumerate() {
        check_calls(&target)?;
        let connect_timeout = &mut target.plan.target.connect_timeout;
        *connect_timeout = options.timeout.mul_f64(CONNECT_SHARE_MAX).min(*connect_timeout);
        let turns = Arc::new(Turns::new(origin, options.rate));
        let plan = &target.plan;
        let client = Client::with_timeout(&plan.target, &plan.connections.tls, options.timeout)?;
        let client_turns = Arc::clone(&turns);
        let client = client.with_pace(move || _ = client_turns.wait());
        let state = Arc::clone(&state);
        let caller = Caller { index, target, client, turns, state, stop: Arc::clone(stop), origin };
        // The thread may wait for its next turn when the process ends, so it is not joined.
        let thread = std::thread::Builder::new().name(format!("probe {index}"));
        thread.spawn(move || caller.run()).map_err(ProbeFault::Thread)?;
    }
    while !stop.is_requested() {
        {
            let mut state = state.lock();
            state.tick(origin.elapsed());
            let events = state.take_events();
            on_tick(&state, &events);
        }
        // An early wake-up is harmless.
        std::thread::park_timeout(TICK_INTERVAL);
    }
    Ok(())
}

/// Fails if a call of the plan can never be sent. Missing chain data is no failure here, because
/// the target's thread fetches it later.
fn check_calls(target: &ProbeTarget) -> Result<(), EngineFault> {
    match SingleCalls::new(&target.plan, &Arc::default()) {
        Err(EngineFault::MissingValues { .. }) | Ok(_) => Ok(()),
        Err(fault) => Err(fault),
    }
}
