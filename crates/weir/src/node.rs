//! `weir node`: runs a simulated node. The crate `simnode` implements it; this file converts the
//! arguments to its options.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use settings::value::parse_duration;
use simnode::admin::Admin;
use simnode::node::settings::{Capacity, Latency, Rate, RateLimitAction, Settings};
use simnode::replay::{FixedHead, Recording, RecordingError};
use simnode::rpc::wording::Client;
use simnode::rpc::{Retention, SkippedHeight};
use simnode::schedule::{Reorg, ReorgEvery, WorldOptions};
use simnode::serve::{NodeServer, listen_ipc};
use simnode::{NodeOptions, StartError};
use tokio::time::Instant;

use crate::exit_code::EXIT_FAULTY;
use crate::stop::StopSignals;

/// Interval at which the node reports the progress of building its chain.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of calls that wait for a slot of `--capacity`. Further calls are rejected.
const QUEUE_MAX: u32 = 10_000;

/// The code of "limit exceeded" in EIP-1474.
const LIMIT_EXCEEDED: i64 = -32_005;

/// Run a simulated node
///
/// Serves a deterministic chain with valid hashes, roots and receipts by eth_, net_, web3_ and
/// hmyv2_ calls. The same seed gives the same chain. The node can lag, be slow, have limited
/// capacity and reorganise; its admin port enables further faults while it runs. With --replay it
/// sends recorded responses instead.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir node
  weir node --block-time 200ms --txs 100..200 --latency 2ms..20ms --capacity 8:1ms
  weir node --rate eth_getLogs=50:hang --rate eth_call=200:429
  weir node --reorg 1010:3 --reorg 1050:5 --lag 1 --listen 127.0.0.1:8546
  weir node --admin 127.0.0.1:8547
  weir node --family harmony --chain-id 1666600000 --listen 127.0.0.1:9500
  weir node --replay testdata/mainnet/erigon-rpc-tests --head 25000000

With an admin port:
  curl -s http://127.0.0.1:8547/state
  curl -s http://127.0.0.1:8547/faults -d '{\"faults\":[{\"fault\":{\"kind\":\"html\"},\"share\":0.1}]}'
  curl -s -X POST http://127.0.0.1:8547/freeze

Exit codes: 0 stopped by a signal; 1 an address is taken; 2 faulty arguments.")]
pub(crate) struct Node {
    /// Address for calls; port 0 picks a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8545")]
    listen: SocketAddr,

    /// Path of a Unix socket that serves calls too; --listen serves HTTP and WebSocket
    #[arg(long, value_name = "PATH")]
    ipc: Option<PathBuf>,

    /// Address of the admin port, which shows the state and enables faults; it has no password
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,

    /// Client software to imitate: ethereum (geth) or harmony
    #[arg(long, value_name = "FAMILY", default_value = "ethereum", value_parser = parse_client)]
    family: Client,

    /// Seed of every value of the chain
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Chain id [default: 424242; with --replay 1]
    #[arg(long, value_name = "N")]
    chain_id: Option<u64>,

    /// Height of the head at the start; with --replay it never changes
    #[arg(long, value_name = "N", default_value_t = 1000)]
    head: u64,

    /// Unix time at which --head is the head, so that nodes started at different times have the
    /// same head [default: now]
    #[arg(long, value_name = "SECONDS", value_parser = parse_unix_time, conflicts_with = "replay")]
    since: Option<SystemTime>,

    /// Time between blocks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    block_time: Duration,

    /// Number of transactions per block
    #[arg(long, value_name = "MIN..MAX", default_value = "4..12", value_parser = parse_range)]
    txs: (u64, u64),

    /// Number of addresses that occur in logs. Their frequencies are as skewed as on a real chain
    /// (300 logs of a mainnet block have about 90 contracts and 330 other topics). 0 uses the few
    /// accounts and contracts of the chain
    #[arg(long, value_name = "N", default_value_t = 0)]
    log_parties: u64,

    /// Number of blocks from the head down to the finalized block
    #[arg(long, value_name = "BLOCKS", default_value_t = 64)]
    finality_depth: u64,

    /// Leave the last of every BLOCKS heights without a block, like a null round of Filecoin
    #[arg(long, value_name = "BLOCKS")]
    skip_every: Option<u64>,

    /// Response for the block at a height without one: null, error or below (the block below)
    #[arg(long, value_name = "RESPONSE", default_value = "null", value_parser = parse_skipped)]
    skipped: SkippedHeight,

    /// Say that the node is syncing
    #[arg(long)]
    syncing: bool,

    /// Replace the last DEPTH blocks after head AT; may be repeated, in rising order
    #[arg(long, value_name = "AT:DEPTH", value_parser = parse_pair)]
    reorg: Vec<(u64, u64)>,

    /// Replace 1 to DEPTH blocks after every BLOCKS blocks
    #[arg(long, value_name = "BLOCKS:DEPTH", value_parser = parse_pair)]
    reorg_every: Option<(u64, u64)>,

    /// Number of blocks by which the node lags behind the chain's head
    #[arg(long, value_name = "BLOCKS", default_value_t = 0)]
    lag: u64,

    /// Latency of each call: one duration, or a range
    #[arg(long, value_name = "DURATION[..DURATION]", value_parser = parse_latency)]
    latency: Option<Latency>,

    /// Number of calls processed at once, and the time of each; further calls wait
    #[arg(long, value_name = "SLOTS:DURATION", value_parser = parse_capacity)]
    capacity: Option<Capacity>,

    /// Maximum rate of a method, or of each method with `*`. Calls above the rate wait (queue),
    /// get no response (hang), or get a JSON-RPC error (error) or status 429. BURST is the size of
    /// the token bucket [default: 1]. May be repeated
    #[arg(long, value_name = "METHOD=PER_SECOND[:queue|error|429|hang[:BURST]]", value_parser = parse_rate)]
    rate: Vec<(String, Rate)>,

    /// File of recorded requests and responses, or a folder of them; may be repeated
    #[arg(long, value_name = "PATH")]
    replay: Vec<PathBuf>,
}

impl Node {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut stop = StopSignals::new()?;
            let started = tokio::select! {
                started = self.start() => started,
                () = stop.next() => return Ok(ExitCode::SUCCESS),
            };
            let (server, _admin) = match started {
                Ok(started) => started,
                Err(StartFault::Argument(message)) => {
                    eprintln!("weir node: {message}");
                    return Ok(ExitCode::from(EXIT_FAULTY));
                }
                Err(StartFault::Start(error)) => return Err(error.into()),
            };
            let _ipc = match &self.ipc {
                None => None,
                Some(path) => Some(
                    listen_ipc(server.node(), path)
                        .with_context(|| format!("cannot listen on {}", path.display()))?,
                ),
            };
            stop.next().await;
            Ok(ExitCode::SUCCESS)
        })
    }

    async fn start(&self) -> Result<Started, StartFault> {
        if self.replay.is_empty() { self.start_chain().await } else { self.start_replay().await }
    }

    /// Starts a node on a simulated chain.
    async fn start_chain(&self) -> Result<Started, StartFault> {
        let start_instant = Instant::now();
        let chain_id = self.chain_id.unwrap_or(WorldOptions::default().chain_id);
        let reorg = |&(at_height, depth): &(u64, u64)| Reorg { at_height, depth };
        let world = WorldOptions {
            seed: self.seed,
            chain_id,
            height_start: self.head,
            block_time: self.block_time,
            finality_depth: self.finality_depth,
            transactions_min: self.txs.0,
            transactions_max: self.txs.1,
            log_parties: self.log_parties,
            skip_every: self.skip_every,
            reorgs: self.reorg.iter().map(reorg).collect(),
            reorg_every: self
                .reorg_every
                .map(|(blocks, depth_max)| ReorgEvery { blocks, depth_max }),
            ..WorldOptions::default()
        };
        let chain_age = self.since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
        let options = NodeOptions {
            name: "node".to_owned(),
            world,
            origin: start_instant.checked_sub(chain_age).unwrap_or(start_instant),
            settings: self.settings(),
            listen: self.listen,
            admin: self.admin,
        };
        let mut last_report = start_instant;
        let on_progress = |block, head| {
            if last_report.elapsed() >= PROGRESS_INTERVAL {
                last_report = Instant::now();
                eprintln!("weir node: building the chain: block {block} of {head}");
            }
        };
        let running = simnode::serve(options, on_progress).await?;
        let (head, block_time, seed) = (self.head, self.block_time, self.seed);
        let description = format!(
            "a simulated chain: id {chain_id}, head {head}, a block every {block_time:?}, seed {seed}"
        );
        announce(&description, &running.server, running.admin.as_ref());
        Ok((running.server, running.admin))
    }

    /// Starts a node that replays recorded responses.
    async fn start_replay(&self) -> Result<Started, StartFault> {
        let mut recording = Recording::new(Some(FixedHead {
            chain_id: self.chain_id.unwrap_or(1),
            number: self.head,
            // No recorded response contains these hashes, so any constants work.
            hash: [0xfe; 32].into(),
            parent: [0xfd; 32].into(),
            finalized: self.head,
        }));
        for path in &self.replay {
            match path.is_dir() {
                true => recording.add_pairs_folder(path)?,
                false => recording.add_pairs(path)?,
            };
        }
        let description =
            format!("{} recorded responses, fixed head {}", recording.len(), self.head);
        let node = simnode::node::Node::replaying("node", Arc::new(recording));
        node.set(|settings| *settings = self.settings()).map_err(StartError::from)?;
        let listen_error = |addr| move |source| StartError::Listen { addr, source };
        let server = Arc::new(node.listen(self.listen).map_err(listen_error(self.listen))?);
        let admin = match self.admin {
            None => None,
            Some(addr) => {
                Some(Admin::listen(addr, Arc::clone(&server)).await.map_err(listen_error(addr))?)
            }
        };
        announce(&description, &server, admin.as_ref());
        Ok((server, admin))
    }

    fn settings(&self) -> Settings {
        Settings {
            lag_blocks: self.lag,
            latency: self.latency.unwrap_or_default(),
            capacity: self.capacity,
            rates: self.rate.iter().cloned().collect(),
            keeping: Retention {
                client: self.family,
                skipped_heights: self.skipped,
                syncing: self.syncing,
                ..Retention::default()
            },
            ..Settings::default()
        }
    }
}

/// The running servers. Dropping them stops the node.
type Started = (Arc<NodeServer>, Option<Admin>);

/// The reason why the node does not start.
enum StartFault {
    /// The arguments are invalid.
    Argument(String),
    /// The node cannot listen on an address.
    Start(StartError),
}

impl From<StartError> for StartFault {
    fn from(fault: StartError) -> StartFault {
        match fault {
            StartError::Listen { .. } => StartFault::Start(fault),
            StartError::World(_) | StartError::Settings(_) => {
                StartFault::Argument(fault.to_string())
            }
        }
    }
}

impl From<RecordingError> for StartFault {
    fn from(fault: RecordingError) -> StartFault {
        StartFault::Argument(fault.to_string())
    }
}

/// Prints the description of the chain, the addresses, and commands to try.
fn announce(description: &str, server: &NodeServer, admin: Option<&Admin>) {
    let address = server.addr();
    let mut text = format!("{description}\nweir node listens on http://{address}\n");
    if let Some(admin) = admin {
        let _ = writeln!(text, "admin on http://{} (GET /state, POST /faults)", admin.addr());
    }
    let _ = write!(
        text,
        "try:\n  curl -s http://{address} -H 'content-type: application/json' \\\n    \
         -d '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_blockNumber\",\"params\":[]}}'\n  \
         weir serve --upstream http://{address}\n"
    );
    // The node runs even if standard output is closed.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn parse_client(text: &str) -> Result<Client, String> {
    match text {
        "ethereum" => Ok(Client::Geth),
        "harmony" => Ok(Client::Harmony),
        _ => Err("a family is ethereum or harmony".to_owned()),
    }
}

fn parse_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a whole number"))
}

/// Parses two numbers with a colon between them.
fn parse_pair(text: &str) -> Result<(u64, u64), String> {
    let (left, right) = text.split_once(':').ok_or("two numbers with : between them are needed")?;
    Ok((parse_number(left)?, parse_number(right)?))
}

fn parse_skipped(text: &str) -> Result<SkippedHeight, String> {
    match text {
        "null" => Ok(SkippedHeight::Null),
        "error" => Ok(SkippedHeight::Error),
        "below" => Ok(SkippedHeight::BlockBelow),
        _ => Err("null, error or below is needed".to_owned()),
    }
}

/// Parses a Unix time between 1970 and now.
fn parse_unix_time(text: &str) -> Result<SystemTime, String> {
    let seconds: f64 = text.parse().map_err(|_| "seconds since 1970 are needed".to_owned())?;
    let time =
        Duration::try_from_secs_f64(seconds).ok().and_then(|age| UNIX_EPOCH.checked_add(age));
    time.filter(|time| *time <= SystemTime::now())
        .ok_or_else(|| "a time since 1970 and not after now is needed".to_owned())
}

/// Parses `MIN..MAX`. A single number is both bounds.
fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    Ok((parse_number(low)?, parse_number(high)?))
}

/// Parses a constant latency, or the bounds of a uniform distribution.
fn parse_latency(text: &str) -> Result<Latency, String> {
    let ms = |text: &str| Ok::<_, String>(parse_duration(text)?.as_secs_f64() * 1000.0);
    match text.split_once("..") {
        None => Ok(Latency::Constant { ms: ms(text)? }),
        Some((low, high)) => Ok(Latency::Uniform { low_ms: ms(low)?, high_ms: ms(high)? }),
    }
}

/// Parses a number of slots, and the time that a slot spends on a call.
fn parse_capacity(text: &str) -> Result<Capacity, String> {
    let (slots, service) =
        text.split_once(':').ok_or("a number and a duration with : between them are needed")?;
    let slots = slots.parse().map_err(|_| format!("{slots:?} is not a number of slots"))?;
    Ok(Capacity { slots, service: parse_duration(service)?, queue_max: QUEUE_MAX })
}

/// Parses `METHOD=PER_SECOND[:ACTION[:BURST]]`. The default action is `queue`.
fn parse_rate(text: &str) -> Result<(String, Rate), String> {
    let (method, limit) = text.split_once('=').ok_or("a method and a rate with = are needed")?;
    let (number, action_and_burst) = limit.split_once(':').unwrap_or((limit, "queue"));
    let (action_name, burst) = action_and_burst.split_once(':').unwrap_or((action_and_burst, "1"));
    let burst = burst.parse().map_err(|_| format!("{burst:?} is not a number of calls at once"))?;
    let per_second: f64 =
        number.parse().map_err(|_| format!("{number:?} is not a number of calls per second"))?;
    let action = match action_name {
        "queue" => RateLimitAction::Queue,
        "error" => RateLimitAction::Error { code: LIMIT_EXCEEDED },
        "429" => RateLimitAction::TooManyRequests { retry_after_s: 1 },
        "hang" => RateLimitAction::Hang,
        other => return Err(format!("{other:?} is none of queue, error, 429 and hang")),
    };
    Ok((method.to_owned(), Rate { per_second, burst, over: action }))
}
