//! Whether the machine itself held up what ran on it: a thread that asks to be woken every few
//! milliseconds, and how late it was at the worst.
//!
//! A test that judges rates may try again after a
//! stall, and only then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(2);

/// A watch that goes on until it is asked.
pub(crate) struct Stalls {
    worst_micros: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stalls {
    /// Watches with one thread for each core, so that a single busy core is seen too.
    pub(crate) fn watch() -> Stalls {
        let (worst_micros, done) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..cores).map(|_| {
            let (worst, done) = (Arc::clone(&worst_micros), Arc::clone(&done));
            std::thread::spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let asked = Instant::now();
                    // Sleeps: how late it wakes is what is measured.
                    std::thread::park_timeout(STEP);
                    let late = asked.elapsed().saturating_sub(STEP);
                    worst.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Stalls { worst_micros, done, threads }
    }

    /// The worst so far.
    pub(crate) fn worst(self) -> Duration {
        self.done.store(true, Ordering::Release);
        for thread in self.threads {
            thread.join().unwrap();
        }
        Duration::from_micros(self.worst_micros.load(Ordering::Relaxed))
    }
}
