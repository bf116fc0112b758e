//! Detects stalls of the machine, which make measured rates wrong. Threads sleep for two
//! milliseconds at a time and record the longest oversleep.
//!
//! A test that measures rates may try again only if the machine has stalled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Length of each sleep.
const SLEEP: Duration = Duration::from_millis(2);

/// A stall detector that runs until [`StallDetector::longest_stall`] is called.
pub(crate) struct StallDetector {
    worst_micros: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl StallDetector {
    /// Starts one thread per core, because a stall may affect a single core.
    pub(crate) fn start() -> StallDetector {
        let (worst_micros, done) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|_| {
            let (worst, done) = (Arc::clone(&worst_micros), Arc::clone(&done));
            std::thread::spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let slept_at = Instant::now();
                    // Sleeps: the oversleep is the measurement.
                    std::thread::park_timeout(SLEEP);
                    let oversleep = slept_at.elapsed().saturating_sub(SLEEP);
                    worst.fetch_max(oversleep.as_micros() as u64, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        StallDetector { worst_micros, done, threads }
    }

    /// Stops the threads and returns the longest oversleep.
    pub(crate) fn longest_stall(self) -> Duration {
        self.done.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().unwrap();
        }
        Duration::from_micros(self.worst_micros.load(Ordering::Relaxed))
    }
}
