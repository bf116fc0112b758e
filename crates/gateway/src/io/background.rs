//! A background thread beside the serving threads, such as the writer of the access log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for the end of the thread's work when the thread is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread with a stop flag.
#[derive(Debug)]
pub(crate) struct BackgroundThread {
    /// True once the work must end.
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// The warning to log if the work has not ended within [`STOP_TIMEOUT`].
    unfinished_warning: &'static str,
}

impl BackgroundThread {
    /// Starts a thread that runs `work`. `work` must check the stop flag often, and may wait only
    /// with `park_timeout`.
    ///
    /// # Errors
    /// Errors of starting the thread.
    pub(crate) fn start(
        name: &str,
        unfinished_warning: &'static str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<BackgroundThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || work(&thread_stop))?;
        Ok(BackgroundThread { stop, thread, unfinished_warning })
    }

    /// Returns true if the thread has ended. The thread's work ends by itself once no request uses
    /// the thread's configuration.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sets the stop flag, and waits up to [`STOP_TIMEOUT`] until the thread has done its queued
    /// work.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if !self.thread.is_finished() {
            tracing::warn!("{}", self.unfinished_warning);
        }
    }
}
