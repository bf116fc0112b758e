//! Handles the signals that stop a command: SIGINT and SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use lab::run::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit_code::EXIT_INTERRUPTED;

/// Receives the stop signals. A signal that arrives between two calls of [`StopSignals::next`] is
/// not lost.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Installs the signal handlers. Must be called on a tokio runtime.
    pub(crate) fn new() -> Result<StopSignals> {
        let interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
        let terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
        Ok(StopSignals { interrupt, terminate })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Stops a run at the first signal. At the second, calls `on_second` and exits with code 6.
///
/// # Errors
/// Fails if the signal handlers cannot be installed, or the thread cannot start.
pub(crate) fn stop_run_on_signals(
    stop: &Arc<Stop>,
    on_second: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let stop = Arc::clone(stop);
    let message = "ending; what was measured so far is kept";
    on_signals(EXIT_INTERRUPTED, message, move || stop.request(), on_second)
}

/// Returns a flag that the first signal sets. The second signal exits with code 6.
///
/// # Errors
/// Fails if the signal handlers cannot be installed, or the thread cannot start.
pub(crate) fn flag_on_signals(message: &'static str) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    on_signals(EXIT_INTERRUPTED, message, move || flag.store(true, Ordering::Relaxed), || {})?;
    Ok(stop)
}

/// At the first signal, calls `on_first` and prints `message`. At the second, calls `on_second` and
/// exits the process with `code`.
///
/// # Errors
/// Fails if the signal handlers cannot be installed, or the thread cannot start.
pub(crate) fn on_signals(
    code: u8,
    message: &'static str,
    on_first: impl FnOnce() + Send + 'static,
    on_second: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { StopSignals::new() })?;
    let handle_signals = move || {
        runtime.block_on(signals.next());
        on_first();
        eprintln!("{message} (again to end at once)");
        runtime.block_on(signals.next());
        on_second();
        // Skipping destructors is safe here: the kernel closes the sockets of the process.
        #[expect(clippy::disallowed_methods)]
        std::process::exit(i32::from(code));
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(handle_signals)?;
    Ok(())
}
