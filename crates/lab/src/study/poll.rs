//! Polls the heights of running nodes and records them as samples. A height is the number of a
//! node's newest block.
//!
//! Each node has its own thread, so a node that hangs does not delay the others. A failed poll is a
//! gap and not an error, because nodes may restart during a study.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use lab_model::plan::line::UrlOptions;
use lab_model::plan::{Target, Tls};
use wire::family::Family;

use super::StudyFault;
use super::read::{RunBuilder, SampleLine};
use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::{Sample, VariantRuns};
use crate::run::{Stop, unix_now};
use crate::target::client::Reply;
use crate::target::{Client, detect_family, head_method, number};
use crate::wording::number::count;

/// Interval at which the threads of the nodes, and the thread that records, check if they must
/// stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of polled heights that wait to be recorded. Each node adds one height per
/// interval of [`PollOptions::every`].
const QUEUE_MAX: usize = 64;
/// Maximum number of nodes.
const NODES_MAX: usize = 16;

/// A node to poll.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the variant. Each node is a variant of the study.
    pub name: String,
    /// URL of the node.
    pub url: String,
}

/// Options of polling.
#[derive(Clone, Debug)]
pub struct PollOptions {
    /// Poll interval.
    pub every: Duration,
    /// Chain family of all nodes. If `None`, it is detected for each node.
    pub family: Option<Family>,
    /// Time after which polling ends. `None` sets no limit.
    pub duration: Option<Duration>,
    /// Polling ends once all nodes have reached this height. `None` sets no limit.
    pub height: Option<u64>,
    /// Folder to which samples are written while polling. If `None`, no samples are written.
    pub folder: Option<PathBuf>,
}

/// State of a polled node.
#[derive(Clone, Copy, Debug)]
pub struct NodeState<'a> {
    /// Name of the variant.
    pub name: &'a str,
    /// Newest height; `None` before the first height.
    pub height: Option<u64>,
    /// Number of failed polls.
    pub failed: u64,
}

/// The result of one poll.
struct PolledHeight {
    /// Index of the node.
    node: usize,
    /// Time of the poll in seconds since 1970.
    at: f64,
    /// The height, or the reason why the poll failed.
    height: Result<u64, String>,
}

/// Returns the block time of a chain family's main network, in seconds.
pub const fn block_time(family: Family) -> f64 {
    // ethereum.org has slots of 12 s and docs.harmony.one a block time of 2 s. Bitcoin's target is
    // 10 min.
    match family {
        Family::Ethereum => 12.0,
        Family::Harmony => 2.0,
        Family::Bitcoin => 600.0,
    }
}

/// Polls nodes until the duration is over, the height is reached, or the study is stopped. Calls
/// `on_poll` with the elapsed time and the states of all nodes once per poll interval. Returns the
/// family of the first node, and one run per node.
///
/// # Errors
/// Fails if a node is unreachable at the start, is of an unknown family, or never returns a height,
/// or if samples cannot be written.
pub fn poll(
    nodes: &[Node],
    watch: &PollOptions,
    stop: &Stop,
    on_poll: &mut dyn FnMut(Duration, &[NodeState<'_>]),
) -> Result<(Family, Vec<VariantRuns>), StudyFault> {
    if nodes.len() > NODES_MAX {
        let count = nodes.len();
        return Err(StudyFault::Option(format!(
            "a study polls at most {NODES_MAX} nodes; {count} were given"
        )));
    }
    let mut targets = Vec::new();
    let options = UrlOptions { family: watch.family, ..UrlOptions::default() };
    for node in nodes {
        // The outer error is that of `detect_family`. The inner errors are those of the plan.
        let plan = options.plan(&node.url, |target, tls| detect_family(target, tls).map(Some));
        let plan = plan.map_err(|error| StudyFault::Operation(error.to_string()))?;
        let plan = plan.map_err(|errors| StudyFault::Operation(errors.to_string()))?;
        let family = plan.target.family.unwrap_or(Family::Ethereum);
        let (target, tls) = (plan.target, plan.connections.tls);
        targets.push((target, tls, family));
    }
    let family = targets.first().map_or(Family::Ethereum, |(_, _, family)| *family);
    let stopped = Arc::new(AtomicBool::new(false));
    let (sender, polled) = sync_channel(QUEUE_MAX);
    for (node, (target, tls, family)) in targets.into_iter().enumerate() {
        let (sender, stopped, interval) = (sender.clone(), Arc::clone(&stopped), watch.every);
        let poll = move || poll_node(node, &target, &tls, family, interval, &sender, &stopped);
        let spawned = std::thread::Builder::new().name(format!("poll-{node}")).spawn(poll);
        spawned
            .map_err(|error| StudyFault::Operation(format!("cannot start a thread: {error}")))?;
    }
    drop(sender);
    let runs = record(nodes, watch, &polled, stop, on_poll);
    // A thread that waits for a response ends when the response arrives, or with the program.
    stopped.store(true, Ordering::Relaxed);
    Ok((family, runs?))
}

/// Polls one node in the node's thread. `node` is its index.
fn poll_node(
    node: usize,
    target: &Target,
    tls: &Tls,
    family: Family,
    interval: Duration,
    sender: &SyncSender<PolledHeight>,
    stopped: &AtomicBool,
) {
    let started = Instant::now();
    let mut next_poll = Duration::ZERO;
    let client = Client::new(target, tls);
    while !stopped.load(Ordering::Relaxed) {
        let until_poll = next_poll.saturating_sub(started.elapsed());
        if !until_poll.is_zero() {
            std::thread::park_timeout(POLL_INTERVAL.min(until_poll));
            continue;
        }
        let height = match &client {
            Ok(client) => read_height(client, family),
            Err(fault) => Err(fault.to_string()),
        };
        if sender.send(PolledHeight { node, at: unix_now(), height }).is_err() {
            return;
        }
        // Polls that were scheduled during a slow poll are skipped.
        while next_poll <= started.elapsed() {
            next_poll += interval;
        }
    }
}

/// Returns the height of a node, or the reason why the poll failed.
fn read_height(client: &Client, family: Family) -> Result<u64, String> {
    let method = head_method(family);
    match client.call(method, "[]").map_err(|fault| fault.to_string())? {
        Reply::Result(value) => number(&value).ok_or_else(|| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{method} returned {text:.60}")
        }),
        Reply::Error { code, message } => {
            Err(format!("{method} returned error {code} ({message:.60})"))
        }
    }
}

/// The recorded heights of one node.
struct NodeRecord {
    run: RunBuilder,
    /// Newest height; `None` before the first height.
    height: Option<u64>,
    /// Number of failed polls.
    failed: u64,
    /// Error of the last failed poll.
    fault: Option<String>,
    /// File of the samples; `None` if no samples are written.
    file: Option<BufWriter<File>>,
}

/// Records polled heights until one of the conditions of [`poll`] ends the study.
fn record(
    nodes: &[Node],
    watch: &PollOptions,
    polled: &Receiver<PolledHeight>,
    stop: &Stop,
    on_poll: &mut dyn FnMut(Duration, &[NodeState<'_>]),
) -> Result<Vec<VariantRuns>, StudyFault> {
    let mut records = Vec::new();
    for node in nodes {
        let file = watch.folder.as_deref().map(|folder| create_samples_file(folder, &node.name));
        let (run, file) = (RunBuilder::new(), file.transpose()?);
        records.push(NodeRecord { run, height: None, failed: 0, fault: None, file });
    }
    let started = Instant::now();
    let mut next_report = Duration::ZERO;
    loop {
        match polled.recv_timeout(POLL_INTERVAL) {
            Ok(polled_height) => add(&mut records[polled_height.node], polled_height, nodes)?,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
        }
        let elapsed = started.elapsed();
        if elapsed >= next_report {
            next_report += watch.every.max(POLL_INTERVAL);
            let states: Vec<NodeState<'_>> = nodes
                .iter()
                .zip(&records)
                .map(|(node, record)| NodeState {
                    name: &node.name,
                    height: record.height,
                    failed: record.failed,
                })
                .collect();
            on_poll(elapsed, &states);
        }
        let all_reached = |height: u64| {
            records
                .iter()
                .all(|record| record.height.is_some_and(|node_height| node_height >= height))
        };
        let is_duration_over = watch.duration.is_some_and(|duration| elapsed >= duration);
        if stop.is_requested() || is_duration_over || watch.height.is_some_and(all_reached) {
            break;
        }
    }
    records.into_iter().zip(nodes).map(|(record, node)| finish(record, node)).collect()
}

/// Creates the samples file of a variant. Characters of its name that do not suit a file name are
/// replaced.
fn create_samples_file(folder: &Path, name: &str) -> Result<BufWriter<File>, StudyFault> {
    let safe_name: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    let path = folder.join(format!("samples-{safe_name}.jsonl"));
    let created = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
    let fault = |error| StudyFault::Operation(format!("cannot write {}: {error}", path.display()));
    created.map(BufWriter::new).map_err(fault)
}

/// Records the result of a poll.
fn add(record: &mut NodeRecord, polled: PolledHeight, nodes: &[Node]) -> Result<(), StudyFault> {
    let height = match polled.height {
        Ok(height) => height,
        Err(fault) => {
            record.failed += 1;
            record.fault = Some(fault);
            return Ok(());
        }
    };
    let sample = Sample { at: polled.at, height, ..Sample::default() };
    record.run.push(sample).map_err(|what| {
        let name = nodes.get(polled.node).map_or("", |node| node.name.as_str());
        StudyFault::Operation(format!("{name}: {what}"))
    })?;
    record.height = Some(height);
    if let Some(file) = &mut record.file {
        let line =
            SampleLine { time: rfc3339(polled.at), height: Some(height), ..SampleLine::default() };
        let text = serde_json::to_string(&line).unwrap_or_default();
        let write_result = writeln!(file, "{text}").and_then(|()| file.flush());
        write_result
            .map_err(|error| StudyFault::Operation(format!("cannot write samples: {error}")))?;
    }
    Ok(())
}

/// Returns the run of a node. Fails if the node never returned a height.
fn finish(mut record: NodeRecord, node: &Node) -> Result<VariantRuns, StudyFault> {
    if record.failed > 0 {
        let last_fault = record.fault.clone().unwrap_or_default();
        record
            .run
            .note(format!("{} polls failed, the last with: {last_fault}", count(record.failed)));
    }
    let run = record.run.finish("live").ok_or_else(|| {
        let last_fault = record.fault.unwrap_or_else(|| "there was no response".to_owned());
        StudyFault::Operation(format!("{} never returned a height: {last_fault}", node.name))
    })?;
    Ok(VariantRuns { name: node.name.clone(), runs: vec![run] })
}
