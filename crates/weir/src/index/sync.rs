//! `weir index sync`.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use index::contents::Contents;
use index::nodes::Endpoint;
use index::planner::range::SyncEnd;
use index::store::{self, Location};
use index::sync::{Event, Observer, Options, Progress, SyncOutcome};
use index::verify::Level;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use serde::Serialize;

use super::{IndexArgs, NODE, NodeArgs, format_bytes};
use crate::exit_code::{EXIT_FAULTY, EXIT_INTERRUPTED};
use crate::stop;

/// Interval at which samples are written and the progress bar is redrawn.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of progress lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Fetch, verify and store the blocks of a chain
///
/// May be stopped at any time; the next run continues where this one stopped. Several nodes share
/// the work; the others take over from a node that is slow, rate-limited or wrong.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir index sync --from http://127.0.0.1:8545 --db chain.db
  weir index sync --from ipc:/var/geth.ipc --from wss://node.example --db chain.db --end follow
  weir index sync --from http://127.0.0.1:8545 --db logs.db --start 20000000 --what logs
  weir index sync --from http://127.0.0.1:9500 --db one.db --what blocks,receipts,logs,hmyv2
  weir index sync --from http://127.0.0.1:8545 -H 'authorization: Bearer TOKEN' --db chain.db
  PGPASSWORD=secret weir index sync --from http://127.0.0.1:8545 \\
    --db postgres://weir@db.example/chains

Verification: `full` recomputes the hash of each header, the hashes and the root of the transactions,
the root of the receipts, blooms and withdrawals, and every field that follows from them. `senders`
also recovers the sender of each transaction, which takes much longer. `headers` verifies headers
only. `off` is for trusted nodes.

Of a Harmony chain, `--what blocks,receipts,logs,hmyv2` also stores each block as hmyv2_getBlocks
and similar methods return it. Harmony's block hash is not Ethereum's, so nothing of such an index is
verified; `weir index stats` prints this.

Exit codes: 0 complete; 1 failed; 2 faulty arguments; 6 interrupted: the next run continues.")]
pub(crate) struct Sync {
    #[command(flatten)]
    database: IndexArgs,

    /// URL of a node: http, https, ws, wss, or ipc:/path of a socket; may be repeated
    #[arg(long = "from", value_name = "URL", required = true, value_parser = NODE)]
    nodes: Vec<Endpoint>,

    #[command(flatten)]
    node_args: NodeArgs,

    /// First block of a new index [default: 0]
    #[arg(long, value_name = "NUMBER")]
    start: Option<u64>,

    /// Last block: a number, finalized, or follow to continue with each new block
    #[arg(long, value_name = "END", default_value = "finalized")]
    end: SyncEnd,

    /// Parts of each block to store, separated by commas: blocks, receipts, logs and, for a Harmony
    /// chain, hmyv2
    #[arg(long, value_name = "PARTS", default_value = "blocks,receipts,logs")]
    what: Contents,

    /// Level of verification: off, headers, full, senders [default: full, and off with hmyv2]
    #[arg(long, value_name = "LEVEL")]
    verify: Option<Level>,

    /// Maximum number of requests in flight
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,

    /// Maximum number of blocks per request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    batch: u64,

    /// Stop after this many seconds without a response from any node; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    patience: u64,

    /// Write a line of JSON each second to this file: height, totals, page cache, memory, disk
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,

    /// Print only errors
    #[arg(long, short)]
    quiet: bool,
}

impl Sync {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let verify = match self.verification_level() {
            Ok(level) => level,
            Err(reason) => {
                eprintln!("weir index sync: {reason}");
                return Ok(ExitCode::from(EXIT_FAULTY));
            }
        };
        let samples = self.samples.as_deref().map(create_file).transpose()?;
        let stop = stop::flag_on_signals("ending; fetched blocks are kept")?;
        let options = Options {
            nodes: self.node_args.endpoints(&self.nodes)?,
            start: self.start,
            end: self.end,
            contents: self.what,
            verify,
            concurrency: usize::from(self.concurrency),
            batch_max: self.batch,
            settings: self.database.settings()?,
            patience: (self.patience > 0).then(|| Duration::from_secs(self.patience)),
        };
        let location = &self.database.db;
        let is_new_file = matches!(location, Location::File(path) if !path.exists());
        let store = store::open(location, options.settings)?;
        let progress = ProgressOutput::new(self.quiet);
        let done = AtomicBool::new(false);
        let start = Instant::now();
        let (outcome, samples_result) = std::thread::scope(|scope| {
            let output = scope.spawn(|| progress.run(samples, location, &done));
            let outcome = index::sync::sync(store, &options, &progress, &stop);
            done.store(true, Ordering::Relaxed);
            output.thread().unpark();
            match output.join() {
                Ok(samples_result) => (outcome, samples_result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        progress.finish();
        // A sync that fails before the first block leaves no files behind. Its own error says more
        // than that of a failed deletion.
        if is_new_file && !matches!(outcome, Ok(SyncOutcome::Complete)) {
            let _ = store::delete_uninitialized(location);
        }
        let outcome = outcome?;
        samples_result.context("cannot write samples")?;
        if !self.quiet {
            println!("{}", progress.summary(start.elapsed()));
        }
        Ok(match outcome {
            SyncOutcome::Complete => ExitCode::SUCCESS,
            SyncOutcome::Stopped => ExitCode::from(EXIT_INTERRUPTED),
        })
    }

    /// Returns the level of verification, or the reason why the requested level is impossible.
    fn verification_level(&self) -> Result<Level, String> {
        match self.verify {
            Some(level) if self.what.hmyv2 && level != Level::Off => Err(format!(
                "--verify {level}: blocks with hmyv2 cannot be verified, because Harmony's block \
                 hash is not Ethereum's: omit --verify, or set it to off"
            )),
            Some(level) => Ok(level),
            None if self.what.hmyv2 => Ok(Level::Off),
            None => Ok(Level::Full),
        }
    }
}

fn create_file(path: &Path) -> Result<BufWriter<File>> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(BufWriter::new(file))
}

/// One line of `--samples`. `blocks`, `transactions` and `logs` are numbers since the start of this
/// run. `memory` and `disk` are in bytes.
#[derive(Serialize)]
struct Sample {
    time: String,
    height: Option<u64>,
    head: u64,
    blocks: u64,
    transactions: u64,
    logs: u64,
    #[serde(flatten)]
    page_cache: Option<PageCacheSample>,
    memory: u64,
    disk: u64,
    done: bool,
}

/// Counters of the page cache; absent with PostgreSQL.
#[derive(Serialize)]
struct PageCacheSample {
    /// Bytes of the cache in use.
    page_cache_used: u64,
    page_cache_hit: u64,
    page_cache_miss: u64,
    page_cache_spill: u64,
}

impl Sample {
    fn from_progress(progress: &Progress) -> Sample {
        Sample {
            time: jiff::Timestamp::now().to_string(),
            height: progress.height,
            head: progress.head,
            blocks: progress.blocks,
            transactions: progress.transactions,
            logs: progress.logs,
            page_cache: progress.page_cache.map(|counters| PageCacheSample {
                page_cache_used: counters.used,
                page_cache_hit: counters.hit,
                page_cache_miss: counters.miss,
                page_cache_spill: counters.spill,
            }),
            memory: resident_bytes(),
            disk: progress.disk_bytes,
            done: progress.done,
        }
    }
}

/// Resident memory of this process in bytes (proc(5), `statm`).
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Progress of a sync on standard error.
struct ProgressOutput {
    progress: Mutex<Progress>,
    bar: Option<ProgressBar>,
    /// True if progress and events are printed as lines. Ignored if there is a bar.
    print_lines: bool,
}

impl Observer for ProgressOutput {
    fn on_progress(&self, progress: &Progress) {
        self.progress.lock().clone_from(progress);
    }

    fn on_event(&self, event: &Event) {
        match &self.bar {
            Some(bar) => bar.println(event.to_string()),
            None if self.print_lines => eprintln!("{event}"),
            None => {}
        }
    }
}

impl ProgressOutput {
    fn new(quiet: bool) -> ProgressOutput {
        let show_bar = std::io::stderr().is_terminal() && !quiet;
        let bar = show_bar.then(|| {
            let bar = ProgressBar::new(0);
            // The constant template is valid, so this never fails.
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
            bar
        });
        ProgressOutput { progress: Mutex::default(), bar, print_lines: !quiet }
    }

    /// Redraws progress and writes samples until `done` is set.
    fn run(
        &self,
        mut samples: Option<BufWriter<File>>,
        location: &Location,
        done: &AtomicBool,
    ) -> std::io::Result<()> {
        let mut last_line = Instant::now();
        let mut rate_base = RateBase { time: last_line, progress: Progress::default() };
        loop {
            let is_done = done.load(Ordering::Relaxed);
            let progress = self.progress.lock().clone();
            if let Some(samples) = &mut samples {
                serde_json::to_writer(&mut *samples, &Sample::from_progress(&progress))?;
                samples.write_all(b"\n")?;
                samples.flush()?;
            }
            if let (Some(bar), Some(height)) = (&self.bar, progress.height) {
                let first = progress.first.unwrap_or(0);
                bar.set_length(progress.target.max(height) + 1 - first);
                bar.set_position(height + 1 - first);
                bar.set_message(progress_line(&progress, &rate_base));
            } else if self.print_lines
                && last_line.elapsed() >= LINE_INTERVAL
                && progress.height.is_some()
            {
                eprintln!("{location}: {}", progress_line(&progress, &rate_base));
                last_line = Instant::now();
            }
            if is_done {
                return Ok(());
            }
            // The rates beside a bar cover one interval. The rates in a line of text cover the time
            // since the previous line.
            let line_is_new = last_line.elapsed() < SAMPLE_INTERVAL;
            if self.bar.is_some() || line_is_new {
                rate_base = RateBase { time: Instant::now(), progress };
            }
            std::thread::park_timeout(SAMPLE_INTERVAL);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn summary(&self, elapsed: Duration) -> String {
        let progress = self.progress.lock();
        let seconds = elapsed.as_secs_f64().max(0.001);
        let stored = match (progress.first, progress.height) {
            (Some(first), Some(height)) => {
                format!("blocks {} to {} stored", HumanCount(first), HumanCount(height))
            }
            _ => "no blocks stored".to_owned(),
        };
        format!(
            "{stored}; this run: {} blocks, {} transactions, {} logs in {seconds:.1} s ({} blocks/s, {} \
             logs/s); {} on disk",
            HumanCount(progress.blocks),
            HumanCount(progress.transactions),
            HumanCount(progress.logs),
            HumanCount((progress.blocks as f64 / seconds).round() as u64),
            HumanCount((progress.logs as f64 / seconds).round() as u64),
            format_bytes(progress.disk_bytes),
        )
    }
}

/// Start of the period over which the rates of a progress line are computed.
struct RateBase {
    time: Instant,
    progress: Progress,
}

/// Formats the height, the rates since `base`, the time left, and page cache counters.
fn progress_line(current: &Progress, base: &RateBase) -> String {
    let seconds = base.time.elapsed().as_secs_f64().max(0.001);
    let rate = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
    let block_rate = rate(current.blocks, base.progress.blocks);
    let log_rate = rate(current.logs, base.progress.logs);
    let height = current.height.unwrap_or(0);
    let eta = match current.target.saturating_sub(height) {
        0 => "at the end".to_owned(),
        _ if block_rate < 0.01 => "waiting".to_owned(),
        blocks_left => {
            let time_left = Duration::from_secs_f64((blocks_left as f64 / block_rate).min(1e9));
            format!("{} left", HumanDuration(time_left))
        }
    };
    let page_cache = current
        .page_cache
        .map(|cache| format!("; page cache {} hits, {} misses", cache.hit, cache.miss));
    format!(
        "block {} of {}, {} blocks/s, {} logs/s, {eta}{}",
        HumanCount(height),
        HumanCount(current.target),
        HumanCount(block_rate.round() as u64),
        HumanCount(log_rate.round() as u64),
        page_cache.unwrap_or_default(),
    )
}
