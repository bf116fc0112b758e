//! A thread that works beside the serving threads, such as the writer of the access log.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum time that a stop waits for the end of the thread's work.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread with a stop flag.
#[derive(Debug)]
pub(crate) struct BackgroundThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// The warning if a stop does not wait for the end of the work.
    unfinished: &'static str,
}

impl BackgroundThread {
    /// Starts a thread. `work` reads the stop flag between waits by `park_timeout`.
    ///
    /// # Errors
    /// Errors of starting the thread.
    pub(crate) fn start(
        name: &str,
        unfinished: &'static str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<BackgroundThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || work(&stopped))?;
        Ok(BackgroundThread { stop, thread, unfinished })
    }

    /// Returns true if the thread has ended because no request uses its configuration any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops the thread after its queued work, and waits for its end for a limited time.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let deadline = Instant::now() + STOP_TIMEOUT;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if !self.thread.is_finished() {
            tracing::warn!("{}", self.unfinished);
        }
    }
}
