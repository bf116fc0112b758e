//! Moves access-log records from the serving threads to the file: one bounded queue per serving
//! thread, and one writer thread.
//!
//! A serving thread never waits for the file. It locks its queue to add a record. The writer locks
//! the queue only to swap it for an empty one. If the queue is full, the record is dropped and
//! counted. The writer polls the queues, because waking up the writer would cost a system call per
//! record.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::pending::PendingRecord;
use super::record::{self, Record};
use crate::config::access_log::{AccessLog, LogTarget};
use crate::io::background::BackgroundThread;
use crate::metrics::counters::ThreadCounters;

#[cfg(test)]
mod tests;

/// Interval at which the writer polls the queues.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the writer checks that the path still refers to the open file.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Number of formatted bytes at which a write starts.
const WRITE_BYTES: usize = 64 * 1024;

/// The queues of all serving threads.
#[derive(Debug)]
pub(crate) struct RecordQueues {
    pub(crate) config: AccessLog,
    /// Names of the headers whose values the records hold.
    used_headers: Vec<Box<str>>,
    /// One queue per serving thread.
    queues: Vec<Mutex<Vec<Record>>>,
    /// Maximum number of records in one queue.
    queue_records_max: usize,
    /// Number of lines that could not be written to the file.
    pub(crate) unwritten: AtomicU64,
}

impl RecordQueues {
    pub(crate) fn new(
        config: AccessLog,
        used_headers: &[Box<str>],
        threads: usize,
    ) -> RecordQueues {
        RecordQueues {
            queue_records_max: config.queue_lines.div_ceil(threads.max(1)),
            queues: (0..threads).map(|_| Mutex::new(Vec::new())).collect(),
            used_headers: used_headers.to_vec(),
            config,
            unwritten: AtomicU64::new(0),
        }
    }

    /// Queues the records of a written response, except those that sampling leaves out. Counts the
    /// queued and the dropped records. `thread` is the index of the serving thread, and `random`
    /// returns 64 random bits.
    pub(crate) fn log(
        &self,
        thread: usize,
        pending: PendingRecord,
        status: u16,
        bytes_out: usize,
        counters: &ThreadCounters,
        random: impl Fn() -> u64,
    ) {
        let AccessLog { per_call, errors_always, sample, .. } = self.config;
        for record in pending.finish(status, bytes_out, per_call) {
            // An `f64` has 53 bits of precision. The upper 53 random bits, divided by 2^53, are a
            // number from 0 to just below 1.
            let random_share = || (random() >> 11) as f64 / (1_u64 << 53) as f64;
            let is_always_written = errors_always && record.is_error();
            if !is_always_written && sample < 1.0 && random_share() >= sample {
                continue;
            }
            match self.push(thread, record) {
                true => counters.log_lines.add(1),
                false => counters.log_dropped.add(1),
            }
        }
    }

    /// Puts a record into the queue of a serving thread. Returns false if the queue is full.
    fn push(&self, thread: usize, record: Record) -> bool {
        let mut queue = self.queues[thread].lock();
        let has_room = queue.len() < self.queue_records_max;
        if has_room {
            queue.push(record);
        }
        has_room
    }

    /// Returns true if the queues were created with this configuration.
    pub(crate) fn has_config(&self, config: &AccessLog, used_headers: &[Box<str>]) -> bool {
        self.config == *config && self.used_headers == used_headers
    }
}

/// Opens the file and starts the writer thread.
///
/// # Errors
/// Errors of opening the file or starting the thread.
pub(crate) fn start(queues: Arc<RecordQueues>) -> io::Result<BackgroundThread> {
    let out = LogOutput::open(&queues.config.target)?;
    start_writer(queues, out)
}

/// Starts the writer thread even if the file cannot be opened. The writer then retries. Lines are
/// lost until the file is open.
///
/// # Errors
/// Errors of starting the thread.
pub(crate) fn start_anyway(queues: Arc<RecordQueues>) -> io::Result<BackgroundThread> {
    let out = LogOutput::open(&queues.config.target).unwrap_or_else(|error| {
        tracing::error!(%error, "the access log cannot be opened; retrying");
        LogOutput::Unavailable
    });
    start_writer(queues, out)
}

fn start_writer(queues: Arc<RecordQueues>, out: LogOutput) -> io::Result<BackgroundThread> {
    let unfinished = "the last lines of the access log were not written";
    BackgroundThread::start("weir-access-log", unfinished, move |stop| {
        write_records(&queues, out, stop);
    })
}

/// The loop of the writer thread: formats the queued records and writes them, until the stop.
fn write_records(queues: &Arc<RecordQueues>, mut out: LogOutput, stop: &AtomicBool) {
    let mut batch = Vec::new();
    let mut text = String::with_capacity(WRITE_BYTES * 2);
    let mut last_check = Instant::now();
    let mut is_failing = false;
    loop {
        // The flag is read before the queues, so all records from before the stop are written. If
        // only this thread holds the queues, a reload has replaced them, and no request uses them.
        let stopping = stop.load(Ordering::Acquire) || Arc::strong_count(queues) == 1;
        if last_check.elapsed() >= REOPEN_INTERVAL {
            last_check = Instant::now();
            out.reopen_if_moved(&queues.config.target);
        }
        let mut lines = 0_u64;
        let mut flush = |text: &mut String, lines: &mut u64| {
            if let Err(error) = out.write(text.as_bytes()) {
                queues.unwritten.fetch_add(*lines, Ordering::Relaxed);
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(%error, "the access log cannot be written; lines are lost");
                }
            } else if *lines > 0 {
                is_failing = false;
            }
            text.clear();
            *lines = 0;
        };
        for queue in &queues.queues {
            std::mem::swap(&mut *queue.lock(), &mut batch);
            for record in batch.drain(..) {
                let (format, used_headers) = (&queues.config.format, &queues.used_headers);
                record::write_line(&mut text, format, used_headers, &record);
                lines += 1;
                if text.len() >= WRITE_BYTES {
                    flush(&mut text, &mut lines);
                }
            }
        }
        flush(&mut text, &mut lines);
        if stopping {
            return;
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

/// The destination of the lines.
enum LogOutput {
    Stdout,
    File(File),
    /// A file that could not be opened.
    Unavailable,
}

impl LogOutput {
    fn open(target: &LogTarget) -> io::Result<LogOutput> {
        match target {
            LogTarget::Stdout => Ok(LogOutput::Stdout),
            LogTarget::File(path) => append_to(path).map(LogOutput::File),
        }
    }

    /// Opens the path again if no file is open, or if the path no longer refers to the open file,
    /// for example after a log rotation.
    fn reopen_if_moved(&mut self, target: &LogTarget) {
        let LogTarget::File(path) = target else { return };
        let file_id = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
        let open_file = match self {
            LogOutput::File(file) => file.metadata().map(|meta| file_id(&meta)).ok(),
            LogOutput::Stdout | LogOutput::Unavailable => None,
        };
        let file_at_path = std::fs::metadata(path).map(|meta| file_id(&meta)).ok();
        if open_file.is_some() && open_file == file_at_path {
            return;
        }
        match append_to(path) {
            Ok(new) => *self = LogOutput::File(new),
            Err(error) => tracing::error!(%error, "the access log cannot be reopened"),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        match self {
            LogOutput::File(file) => file.write_all(bytes),
            LogOutput::Unavailable => Err(io::ErrorKind::NotFound.into()),
            LogOutput::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
        }
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    file.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
