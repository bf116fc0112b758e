//! From the serving threads to the file: a bounded queue for each of them, and one thread that
//! writes.
//!
//! A serving thread never waits for the file: it puts a record into its own queue, under a lock that
//! only the writer takes besides, and only to swap the queue for an empty one. A queue that is full
//! drops the record, which is counted. The writer looks at the queues now and then instead of being
//! woken, since waking costs a system call for each record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::record::{self, Record};
use crate::config::access::{AccessLog, LogTarget};

#[cfg(test)]
mod tests;

/// Between two looks at the queues.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks at whether the file was moved away.
const REOPEN_EVERY: Duration = Duration::from_secs(1);
/// How long a stop waits for the last lines: whoever reads them may have stopped reading.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are gathered before they are written.
const GATHERED_BYTES: usize = 64 * 1024;

/// The queues.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) config: AccessLog,
    kept_headers: Vec<Box<str>>,
    /// One per serving thread. The lock is for the writer, which holds it for one swap.
    queues: Vec<Mutex<Vec<Record>>>,
    each_max: usize,
    /// Lines that the file did not take.
    unwritten: AtomicU64,
}

impl Queues {
    /// Empty ones for so many serving threads.
    pub(crate) fn new(config: AccessLog, kept_headers: &[Box<str>], threads: usize) -> Queues {
        Queues {
            each_max: config.queue_lines.div_ceil(threads.max(1)),
            queues: (0..threads).map(|_| Mutex::new(Vec::new())).collect(),
            kept_headers: kept_headers.to_vec(),
            config,
            unwritten: AtomicU64::new(0),
        }
    }

    /// Puts a record into the queue of a serving thread; whether there was room.
    pub(crate) fn put(&self, thread: usize, record: Record) -> bool {
        let mut queue = self.queues[thread].lock();
        let room = queue.len() < self.each_max;
        if room {
            queue.push(record);
        }
        room
    }

    /// Whether these are the queues of such a log.
    pub(crate) fn are_of(&self, config: &AccessLog, kept_headers: &[Box<str>]) -> bool {
        self.config == *config && self.kept_headers == kept_headers
    }

    /// Lines that the file did not take.
    pub(crate) fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }
}

/// The writing thread.
#[derive(Debug)]
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Opens the file and starts to write.
    ///
    /// # Errors
    /// Those of opening the file, and of starting a thread.
    pub(crate) fn start(queues: Arc<Queues>) -> io::Result<Writer> {
        let out = Out::open(&queues.config.to)?;
        Writer::run(queues, out)
    }

    /// The same where there is no turning back: a file that cannot be opened is tried again now and
    /// then, and lines are lost meanwhile.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(crate) fn start_anyway(queues: Arc<Queues>) -> io::Result<Writer> {
        let out = Out::open(&queues.config.to).unwrap_or_else(|error| {
            tracing::error!(%error, "the access log cannot be opened; it is tried again");
            Out::Nowhere
        });
        Writer::run(queues, out)
    }

    fn run(queues: Arc<Queues>, out: Out) -> io::Result<Writer> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("weir-access-log".to_owned())
            .spawn(move || run(&queues, out, &told))?;
        Ok(Writer { stop, thread })
    }

    /// Whether nobody uses its configuration any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Has the rest written, for a while.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        let give_up = Instant::now() + STOP_PATIENCE;
        while !self.thread.is_finished() && Instant::now() < give_up {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        if !self.thread.is_finished() {
            tracing::warn!("the access log was not taken to its end");
        }
    }
}

fn run(queues: &Arc<Queues>, mut out: Out, stop: &AtomicBool) {
    let mut batch = Vec::new();
    let mut text = String::with_capacity(GATHERED_BYTES * 2);
    let mut looked = Instant::now();
    let mut failing = false;
    loop {
        // Read before the queues are: what was put before the stop is then written.
        // Nobody else has the queues once a reload has replaced them and the last request is answered.
        let stopping = stop.load(Ordering::Acquire) || Arc::strong_count(queues) == 1;
        if looked.elapsed() >= REOPEN_EVERY {
            looked = Instant::now();
            out.follow(&queues.config.to);
        }
        let mut lines = 0_u64;
        let mut flush = |text: &mut String, lines: &mut u64| {
            if let Err(error) = out.write(text.as_bytes()) {
                queues.unwritten.fetch_add(*lines, Ordering::Relaxed);
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "the access log cannot be written; lines are lost");
                }
            } else if *lines > 0 {
                failing = false;
            }
            text.clear();
            *lines = 0;
        };
        for queue in &queues.queues {
            std::mem::swap(&mut *queue.lock(), &mut batch);
            for record in batch.drain(..) {
                let (format, kept) = (&queues.config.format, &queues.kept_headers);
                record::write(&mut text, format, kept, &record);
                lines += 1;
                if text.len() >= GATHERED_BYTES {
                    flush(&mut text, &mut lines);
                }
            }
        }
        flush(&mut text, &mut lines);
        if stopping {
            return;
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// Where lines go.
enum Out {
    Stdout,
    File(File),
    /// A file that could not be opened.
    Nowhere,
}

impl Out {
    fn open(to: &LogTarget) -> io::Result<Out> {
        match to {
            LogTarget::Stdout => Ok(Out::Stdout),
            LogTarget::File(path) => append_to(path).map(Out::File),
        }
    }

    /// Opens the file anew if the one of its name is another by now, as after a rotation.
    fn follow(&mut self, to: &LogTarget) {
        let LogTarget::File(path) = to else { return };
        let place = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
        let ours = match self {
            Out::File(file) => file.metadata().map(|meta| place(&meta)).ok(),
            Out::Stdout | Out::Nowhere => None,
        };
        let named = std::fs::metadata(path).map(|meta| place(&meta)).ok();
        if ours.is_some() && ours == named {
            return;
        }
        match append_to(path) {
            Ok(new) => *self = Out::File(new),
            Err(error) => tracing::error!(%error, "the access log cannot be opened anew"),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            Out::File(file) => file.write_all(bytes),
            Out::Nowhere => Err(io::ErrorKind::NotFound.into()),
            Out::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}
