//! Courses of running nodes: their heights are asked for each second, and kept as samples.
//!
//! Each node has a thread of its own, so that one that hangs does not make the others late. A
//! question that fails is a gap, and no fault: nodes are restarted while they are watched.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab_model::plan::line::UrlOptions;
use lab_model::plan::{Target, Tls};
use wire::family::Family;

use super::StudyFault;
use super::read::{Builder, SampleLine};
use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::{ArmCourses, Sample};
use crate::run::Stop;
use crate::target::client::Reply;
use crate::target::{Client, family};
use crate::wording::number::count;

/// How often it is looked whether somebody asks to end.
const TICK: Duration = Duration::from_millis(50);
/// Answers that wait to be taken; a node gives one a second.
const WAITING_MAX: usize = 64;
/// Nodes at most.
const NODES_MAX: usize = 16;

/// A node to watch.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its arm's name.
    pub name: String,
    /// Its URL.
    pub url: String,
}

/// How to watch.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Time between questions.
    pub every: Duration,
    /// Family of all nodes; none: found out.
    pub family: Option<Family>,
    /// When to end by itself.
    pub duration: Option<Duration>,
    /// A height that all must have reached to end.
    pub height: Option<u64>,
    /// Where samples are kept as they come.
    pub folder: Option<PathBuf>,
}

/// A node as it stands: name, height, failed questions.
pub type State<'a> = (&'a str, Option<u64>, u64);

struct Heard {
    node: usize,
    at: f64,
    height: Result<u64, String>,
}

/// The family of a node, and the time in which its chain makes a block.
pub const fn block_time(family: Family) -> f64 {
    // ethereum.org: slots of 12 s; docs.harmony.one: 2 s; bitcoin: 10 min.
    match family {
        Family::Ethereum => 12.0,
        Family::Harmony => 2.0,
        Family::Bitcoin => 600.0,
    }
}

/// Watches nodes until the time is over, the height is reached, or somebody asks; the family of the
/// first, and a course of each.
///
/// # Errors
/// If a node cannot be reached at the beginning, is of no known family, never says a height, or
/// samples cannot be kept.
pub fn poll(
    nodes: &[Node],
    watch: &Watch,
    stop: &Stop,
    see: &mut dyn FnMut(Duration, &[State<'_>]),
) -> Result<(Family, Vec<ArmCourses>), StudyFault> {
    if nodes.len() < 2 || nodes.len() > NODES_MAX {
        let found = format!("{} were given, and at most {NODES_MAX} are watched", nodes.len());
        return Err(StudyFault::Arms { found });
    }
    let asked = |error: String| StudyFault::Asked(error);
    let mut targets = Vec::new();
    let options = UrlOptions::of(watch.family);
    for node in nodes {
        let plan = options.plan(&node.url, |target, tls| family(target, tls).map(Some));
        let plan = plan.map_err(|fault| asked(fault.to_string()))?;
        let plan = plan.map_err(|faults| asked(faults.to_string()))?;
        let family = plan.target.family.unwrap_or(Family::Ethereum);
        let (target, tls) = (plan.target, plan.connections.tls);
        targets.push((target, tls, family));
    }
    let family = targets.first().map_or(Family::Ethereum, |target| target.2);
    let over = Arc::new(AtomicBool::new(false));
    let (send, heard) = sync_channel(WAITING_MAX);
    for (node, (target, tls, family)) in targets.into_iter().enumerate() {
        let (send, over, every) = (send.clone(), Arc::clone(&over), watch.every);
        let ask = move || ask(node, &target, &tls, family, every, &send, &over);
        let spawned = std::thread::Builder::new().name(format!("poll-{node}")).spawn(ask);
        spawned.map_err(|error| asked(format!("cannot start a thread: {error}")))?;
    }
    drop(send);
    let courses = follow(nodes, watch, &heard, stop, see);
    // A thread that waits for an answer ends when that has come, or with the program.
    over.store(true, Ordering::Relaxed);
    Ok((family, courses?))
}

fn ask(
    node: usize,
    target: &Target,
    tls: &Tls,
    family: Family,
    every: Duration,
    send: &SyncSender<Heard>,
    over: &AtomicBool,
) {
    let begun = Instant::now();
    let mut due = Duration::ZERO;
    let client = Client::new(target, tls);
    while !over.load(Ordering::Relaxed) {
        if begun.elapsed() < due {
            std::thread::park_timeout(TICK.min(due.saturating_sub(begun.elapsed())));
            continue;
        }
        let height = match &client {
            Ok(client) => height(client, family),
            Err(fault) => Err(fault.to_string()),
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        if send.send(Heard { node, at, height }).is_err() {
            return;
        }
        // Questions that an unanswered one took the time of are left out, not asked in a bunch.
        while due <= begun.elapsed() {
            due += every;
        }
    }
}

fn height(client: &Client, family: Family) -> Result<u64, String> {
    let method = match family {
        Family::Ethereum => "eth_blockNumber",
        Family::Harmony => "hmyv2_blockNumber",
        Family::Bitcoin => "getblockcount",
    };
    match client.call(method, "[]").map_err(|fault| fault.to_string())? {
        Reply::Result(value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let read = match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            };
            read.ok_or_else(|| format!("{method} was answered with {text:.60}"))
        }
        Reply::Error { code, message } => {
            Err(format!("{method} was answered with error {code} ({message:.60})"))
        }
    }
}

/// What is kept of a node.
struct Kept {
    built: Builder,
    height: Option<u64>,
    failed: u64,
    fault: Option<String>,
    file: Option<BufWriter<File>>,
}

fn follow(
    nodes: &[Node],
    watch: &Watch,
    heard: &Receiver<Heard>,
    stop: &Stop,
    see: &mut dyn FnMut(Duration, &[State<'_>]),
) -> Result<Vec<ArmCourses>, StudyFault> {
    let mut kept = Vec::new();
    for node in nodes {
        let file = watch.folder.as_deref().map(|folder| samples_file(folder, &node.name));
        let file = file.transpose()?;
        kept.push(Kept { built: Builder::new(), height: None, failed: 0, fault: None, file });
    }
    let (begun, mut shown) = (Instant::now(), Duration::ZERO);
    loop {
        match heard.recv_timeout(TICK) {
            Ok(one) => take(&mut kept[one.node], one, nodes)?,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
        }
        let elapsed = begun.elapsed();
        if elapsed >= shown {
            shown += watch.every.max(TICK);
            let states: Vec<State<'_>> = nodes
                .iter()
                .zip(&kept)
                .map(|(node, kept)| (node.name.as_str(), kept.height, kept.failed))
                .collect();
            see(elapsed, &states);
        }
        let reached = |height: u64| kept.iter().all(|one| one.height.is_some_and(|h| h >= height));
        let late = watch.duration.is_some_and(|duration| elapsed >= duration);
        if stop.asked() || late || watch.height.is_some_and(reached) {
            break;
        }
    }
    kept.into_iter().zip(nodes).map(|(kept, node)| finished(kept, node)).collect()
}

fn samples_file(folder: &Path, name: &str) -> Result<BufWriter<File>, StudyFault> {
    let plain: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' })
        .collect();
    let path = folder.join(format!("samples-{plain}.jsonl"));
    let made = std::fs::create_dir_all(folder).and_then(|()| File::create(&path));
    let told = |error| StudyFault::Asked(format!("cannot write {}: {error}", path.display()));
    made.map(BufWriter::new).map_err(told)
}

fn take(kept: &mut Kept, heard: Heard, nodes: &[Node]) -> Result<(), StudyFault> {
    let height = match heard.height {
        Ok(height) => height,
        Err(fault) => {
            kept.failed += 1;
            kept.fault = Some(fault);
            return Ok(());
        }
    };
    let sample = Sample { at: heard.at, height, ..Sample::default() };
    kept.built.push(sample).map_err(|what| {
        let name = nodes.get(heard.node).map_or("", |node| node.name.as_str());
        StudyFault::Asked(format!("{name}: {what}"))
    })?;
    kept.height = Some(height);
    if let Some(file) = &mut kept.file {
        let line =
            SampleLine { time: rfc3339(heard.at), height: Some(height), ..SampleLine::default() };
        let text = serde_json::to_string(&line).unwrap_or_default();
        let written = writeln!(file, "{text}").and_then(|()| file.flush());
        written.map_err(|error| StudyFault::Asked(format!("cannot keep samples: {error}")))?;
    }
    Ok(())
}

fn finished(mut kept: Kept, node: &Node) -> Result<ArmCourses, StudyFault> {
    if kept.failed > 0 {
        let last = kept.fault.clone().unwrap_or_default();
        kept.built.note(format!("{} questions failed, the last with: {last}", count(kept.failed)));
    }
    let course = kept.built.finish("live").ok_or_else(|| {
        let last = kept.fault.unwrap_or_else(|| "no answer came".to_owned());
        StudyFault::Asked(format!("{} never said a height: {last}", node.name))
    })?;
    Ok(ArmCourses { name: node.name.clone(), runs: vec![course] })
}
