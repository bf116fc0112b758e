//! The signals that stop a command which serves: SIGINT and SIGTERM.

use anyhow::{Context, Result};
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
