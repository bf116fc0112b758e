//! The signals that stop a command: SIGINT and SIGTERM.

use std::sync::Arc;

use anyhow::{Context, Result};
use lab::run::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Watches for the signals from its making on.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Must be called on a tokio runtime.
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

/// Asks a run to end at the first signal, and ends the program at the second with this code.
///
/// # Errors
/// If the signals cannot be watched for.
pub(crate) fn ask_on_signals(stop: &Arc<Stop>, code: u8) -> Result<()> {
    let stop = Arc::clone(stop);
    on_signals(code, "ending; what was measured so far is kept", move || stop.ask())
}

/// Says and does something at the first signal, and ends the program at the second with this code.
///
/// # Errors
/// If the signals cannot be watched for.
pub(crate) fn on_signals(
    code: u8,
    say: &'static str,
    ask: impl FnOnce() + Send + 'static,
) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { StopSignals::new() })?;
    let watch = move || {
        runtime.block_on(signals.next());
        ask();
        eprintln!("{say} (again to end at once)");
        runtime.block_on(signals.next());
        // Whoever asks twice wants no more waiting, and there is nothing that must be put in order:
        // sockets close with the program.
        #[expect(clippy::disallowed_methods)]
        std::process::exit(i32::from(code));
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
    Ok(())
}
