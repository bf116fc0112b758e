//! How quickly logs are found: through the gateway with an index, against geth with the same chain,
//! against a scan of the table, in ranges of other lengths, and against the gateway without the
//! index; there blocks too.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::Connection as Sqlite;
use serde::Deserialize;

use super::super::Bench;
use super::super::http::Connection;
use super::super::row::{Row, Subject};
use super::super::server::{Server, free_ports, scratch};
use crate::shell;

/// Blocks of the chain.
const BLOCKS: u64 = 100_000;
/// Ours may take so much of geth's time.
const GETH_RATIO_MAX: f64 = 1.0 / 20.0;
/// Blocks through the index may take so much of the time that they take through nodes.
const BLOCKS_RATIO_MAX: f64 = 1.0 / 10.0;
const WITHOUT: &str = "the gateway without the index";
/// A hundred times the range may cost so much more where the answer is the same.
const RANGE_RATIO_MAX: f64 = 1.5;
/// Questions of a kind in one repetition. In rows against others each is asked once, so that nobody
/// has kept its answer.
const QUESTIONS: usize = 100;
/// How long geth may take to index the logs of the chain.
const INDEXED_LIMIT: Duration = Duration::from_secs(900);
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
/// `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// Against geth, against a scan, and against ourselves in a shorter range.
///
/// # Errors
/// If something does not run, or an answer is not geth's.
pub(crate) fn query(bench: &Bench) -> Result<Vec<Row>> {
    let chain = chain(bench)?;
    let geth = geth(bench, &chain)?;
    let file = sync_index(bench, &geth, &chain)?;
    let with = gateway(bench, &geth, &tier(&file, "0B"))?;
    let mapped = gateway(bench, &geth, &tier(&file, "1GiB"))?;
    let without = gateway(bench, &geth, "")?;
    let mut queries = Queries {
        ours: with.address,
        mapped: mapped.address,
        geth: geth.address,
        without: without.address,
        parties: serde_json::from_slice(&fs::read(chain.join("parties.json"))?)?,
        next_question: 0,
    };
    let mut rows = Vec::new();
    for kind in [Kind::Address, Kind::AddressAndTopic, Kind::Wide] {
        rows.extend(queries.against(bench, kind, Peer::Geth)?);
        rows.extend(queries.against(bench, kind, Peer::GethMapped)?);
    }
    rows.push(queries.against_scan(bench, &file)?);
    rows.push(queries.against_range(bench)?);
    for kind in [Kind::Mix, Kind::Blocks] {
        rows.extend(queries.against(bench, kind, Peer::Without)?);
    }
    Ok(rows)
}

/// The folder of a chain, made once.
fn chain(bench: &Bench) -> Result<PathBuf> {
    let folder = bench.folder.join(format!("chain-{BLOCKS}"));
    if folder.join("imported").is_file() {
        return Ok(folder);
    }
    bench
        .print_progress(&format!("query: a chain of {BLOCKS} blocks is made, which takes minutes"));
    fs::create_dir_all(&folder)?;
    let geth = shell::find("geth").context("geth is missing: run cargo xtask check")?;
    let mut make = Command::new("go");
    make.args(["run", ".", "-blocks", &BLOCKS.to_string(), "-out"]).arg(&folder);
    let mut init = with_datadir(&geth, &folder);
    init.arg("init").arg(folder.join("genesis.json"));
    let mut import = with_datadir(&geth, &folder);
    import.args(["--gcmode", "archive", "import"]).arg(folder.join("chain.rlp"));
    for command in [make.current_dir(shell::root().join("xtask/chain")), &mut init, &mut import] {
        let output = command.stdin(Stdio::null()).output().context("cannot run")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(folder.join("imported"), "")?;
    Ok(folder)
}

fn with_datadir(geth: &Path, folder: &Path) -> Command {
    let mut command = Command::new(geth);
    command.arg("--datadir").arg(folder.join("geth")).args(["--state.scheme", "hash"]);
    command
}

/// A geth with all cores, once it has indexed the logs of the chain.
fn geth(bench: &Bench, folder: &Path) -> Result<Server> {
    let program = shell::find("geth").context("geth is missing: run cargo xtask check")?;
    let ports = free_ports(2)?;
    let (port, auth) = (ports[0].port().to_string(), ports[1].port().to_string());
    let mut command = with_datadir(&program, folder);
    command
        .args(["--gcmode", "archive", "--syncmode", "full", "--nodiscover", "--maxpeers", "0"])
        .args(["--port", "0", "--authrpc.port", &auth, "--ipcdisable", "--verbosity", "3"])
        .args(["--history.logs", "0", "--http", "--http.port", &port, "--http.vhosts", "*"]);
    let own = scratch("geth")?;
    let log = own.join("out.log");
    let server = Server::spawn("geth", command, ports[0].port(), own, CALL)?;
    let done = folder.join("indexed");
    if done.is_file() {
        return Ok(server);
    }
    bench.print_progress("query: geth indexes its logs, which takes minutes");
    let since = Instant::now();
    loop {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.contains(INDEXED) {
            fs::write(done, "")?;
            return Ok(server);
        }
        ensure!(since.elapsed() < INDEXED_LIMIT, "geth has not indexed its logs: {text}");
        shell::pause(Duration::from_millis(500));
    }
}

/// What geth says once its index of logs is whole; it says nothing when it was so before.
const INDEXED: &str = "Log index head rendering finished";

fn sync_index(bench: &Bench, geth: &Server, folder: &Path) -> Result<PathBuf> {
    let file = folder.join("index.db");
    // Made by this build, not by one before.
    for end in ["", "-wal", "-shm"] {
        let old = folder.join(format!("index.db{end}"));
        if old.exists() {
            fs::remove_file(old)?;
        }
    }
    bench.print_progress("query: weir index sync, which takes minutes");
    let status = Command::new(&bench.weir)
        .args(["index", "sync", "--quiet", "--verify", "full", "--end", &BLOCKS.to_string()])
        .args(["--from", &format!("http://{}", geth.address), "--db"])
        .arg(&file)
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "weir index sync ended with {status}");
    Ok(file)
}

/// The part of the configuration that is about the index.
fn tier(file: &Path, mmap: &str) -> String {
    format!("[index]\ndb = \"{}\"\nmmap = \"{mmap}\"\n", file.display())
}

/// The gateway in front of this geth, with this tier, and all of the chain final.
fn gateway(bench: &Bench, geth: &Server, tier: &str) -> Result<Server> {
    let folder = scratch("weir")?;
    let port = free_ports(1)?[0].port();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nadmin = \"off\"\nthreads = 1\n\
         [chain.main]\nfinality_depth = 0\n\
         [[upstream]]\nname = \"geth\"\nurl = \"http://{}\"\n{tier}",
        geth.address,
    );
    let path = folder.join("weir.toml");
    fs::write(&path, text)?;
    let mut command = Command::new(&bench.weir);
    command.arg("serve").arg(path);
    Server::spawn("weir", command, port, folder, CALL)
}

/// What is asked.
#[derive(Clone, Copy)]
enum Kind {
    /// All logs of one address.
    Address,
    /// Those of them with two topics.
    AddressAndTopic,
    /// All transfers of some blocks.
    Wide,
    /// The three in turn.
    Mix,
    /// A batch of calls for blocks with their transactions.
    Blocks,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Address => "getLogs, one address, 10^5 blocks",
            Kind::AddressAndTopic => "getLogs, address and topics, 10^5 blocks",
            Kind::Wide => "getLogs, all transfers of 100 blocks",
            Kind::Mix => "getLogs, the three in turn",
            Kind::Blocks => "100 blocks in a batch",
        }
    }
}

/// With whom we are compared.
#[derive(Clone, Copy)]
enum Peer {
    Geth,
    /// The same, with the file mapped on our side.
    GethMapped,
    /// The gateway without the index.
    Without,
}

struct Queries {
    ours: SocketAddr,
    /// Ours that maps the file.
    mapped: SocketAddr,
    geth: SocketAddr,
    without: SocketAddr,
    parties: Parties,
    /// Questions so far.
    next_question: usize,
}

/// Who is told of in the chain, the most frequent first.
#[derive(Deserialize)]
struct Parties {
    contracts: Vec<String>,
    /// As topics.
    holders: Vec<String>,
}

/// Times in microseconds, ours and theirs.
type Times = [Vec<f64>; 2];

impl Queries {
    /// Medians and 99th percentiles of ours and theirs, every answer compared.
    fn against(&mut self, bench: &Bench, kind: Kind, peer: Peer) -> Result<Vec<Row>> {
        let mut figures = [Times::default(), Times::default()];
        for repetition in 1..=bench.repetitions {
            let (own, other) = match peer {
                Peer::Geth => (self.ours, self.geth),
                Peer::GethMapped => (self.mapped, self.geth),
                Peer::Without => (self.ours, self.without),
            };
            let bodies: Vec<String> = (0..QUESTIONS).map(|_| self.question(kind)).collect();
            // One after the other, not in turn: what geth does after an answer is not to disturb us.
            let (theirs, theirs_took) = all(other, &bodies)?;
            let (ours, ours_took) = all(own, &bodies)?;
            let mut times = [ours_took, theirs_took];
            let mut found = 0;
            for ((ours, theirs), body) in ours.iter().zip(&theirs).zip(&bodies) {
                ensure!(ours == theirs, "another answer than geth's to {body}");
                found += count(ours, "\"transactionIndex\"");
            }
            ensure!(found > 0, "no question of {} has an answer", kind.name());
            for (whose, times) in times.iter_mut().enumerate() {
                times.sort_by(f64::total_cmp);
                figures[0][whose].push(times[times.len() / 2]);
                figures[1][whose].push(times[times.len() * 99 / 100]);
            }
            let last = |of: &Times| (of[0][repetition - 1], of[1][repetition - 1]);
            let ((p50, their_p50), (p99, their_p99)) = (last(&figures[0]), last(&figures[1]));
            bench.print_progress(&format!(
                "query {repetition}/{}: {:<42} p50 {p50:>8.0} us, p99 {p99:>8.0} us; theirs {their_p50:>8.0} us, \
                 {their_p99:>8.0} us; {} logs or transactions in the mean",
                bench.repetitions,
                kind.name(),
                found / QUESTIONS
            ));
        }
        let rows = ["p50", "p99"].into_iter().zip(&figures).map(|(what, [ours, theirs])| {
            let mapped = if matches!(peer, Peer::GethMapped) { ", mapped" } else { "" };
            let case = format!("{}{mapped}, {what}", kind.name());
            let (peer, target) = match (peer, kind) {
                (Peer::Geth | Peer::GethMapped, _) => ("geth", Some(GETH_RATIO_MAX)),
                (Peer::Without, Kind::Blocks) => (WITHOUT, Some(BLOCKS_RATIO_MAX)),
                (Peer::Without, _) => (WITHOUT, None),
            };
            let subject = Subject { case: &case, unit: "us", peer, target };
            Row::of(&subject, ours, theirs, Vec::new())
        });
        Ok(rows.collect())
    }

    /// One that was not asked before.
    fn question(&mut self, kind: Kind) -> String {
        let next_question = self.next_question;
        self.next_question += 1;
        let Parties { contracts, holders } = &self.parties;
        match kind {
            Kind::Mix => {
                let kinds = [Kind::Address, Kind::AddressAndTopic, Kind::Wide];
                self.question(kinds[next_question % kinds.len()])
            }
            Kind::Blocks => {
                let first = next_question as u64 % (BLOCKS / 100) * 100;
                let calls: Vec<String> = (first..first + 100)
                    .map(|number| {
                        format!(
                            r#"{{"jsonrpc":"2.0","id":{number},"method":"eth_getBlockByNumber","params":["{number:#x}",true]}}"#
                        )
                    })
                    .collect();
                format!("[{}]", calls.join(","))
            }
            // Some hundred logs each.
            Kind::Address => filter(0, BLOCKS, &contracts[511 + next_question % 512], ""),
            // Of some five hundred, each twentieth.
            Kind::AddressAndTopic => {
                let (contract, holder) =
                    (&contracts[127 + next_question % 128], next_question / 128 % holders.len());
                let topics = format!(r#","topics":["{TRANSFER}","{}"]"#, holders[holder]);
                filter(0, BLOCKS, contract, &topics)
            }
            Kind::Wide => {
                let from = next_question as u64 % (BLOCKS / 100) * 100;
                call(&format!(
                    r#"{{"fromBlock":"{from:#x}","toBlock":"{:#x}","topics":["{TRANSFER}"]}}"#,
                    from + 99
                ))
            }
        }
    }

    /// One address against reading all rows that have logs, which any scan must.
    fn against_scan(&mut self, bench: &Bench, file: &Path) -> Result<Row> {
        let source = Sqlite::open(file)?;
        let [mut ours, mut theirs] = Times::default();
        for _ in 0..bench.repetitions {
            let mut times = Vec::new();
            let mut connection = Connection::open(self.ours)?;
            for _ in 0..QUESTIONS {
                let body = self.question(Kind::Address);
                times.push(timed(&mut connection, &body)?.1);
            }
            times.sort_by(f64::total_cmp);
            ours.push(times[times.len() / 2]);
            let since = Instant::now();
            let sql = "SELECT count(*) FROM transactions WHERE instr(receipt, x'00ff00ff00ff')";
            let _rows: i64 = source.query_row(sql, [], |row| row.get(0))?;
            theirs.push(since.elapsed().as_secs_f64() * 1e6);
        }
        let subject = Subject {
            case: "getLogs, one address, 10^5 blocks, p50",
            unit: "us",
            peer: "reading all packed receipts",
            target: None,
        };
        Ok(Row::of(&subject, &ours, &theirs, Vec::new()))
    }

    /// The same answer from a hundred times as many blocks.
    fn against_range(&mut self, bench: &Bench) -> Result<Row> {
        let [mut ours, mut theirs] = Times::default();
        for _ in 0..bench.repetitions {
            let mut times = Times::default();
            let mut connection = Connection::open(self.ours)?;
            for _ in 0..QUESTIONS {
                self.next_question += 1;
                // Nobody's: the answer is empty.
                let address = format!("0x{:040x}", self.next_question + 1_000);
                for (place, from) in [(0, 0), (1, BLOCKS - BLOCKS / 100)] {
                    times[place]
                        .push(timed(&mut connection, &filter(from, BLOCKS, &address, ""))?.1);
                }
            }
            for (times, medians) in times.iter_mut().zip([&mut ours, &mut theirs]) {
                times.sort_by(f64::total_cmp);
                medians.push(times[times.len() / 2]);
            }
        }
        let subject = Subject {
            case: "getLogs, an address without logs, 10^5 blocks, p50",
            unit: "us",
            peer: "ourselves in 10^3 blocks",
            target: Some(RANGE_RATIO_MAX),
        };
        Ok(Row::of(&subject, &ours, &theirs, Vec::new()))
    }
}

fn filter(from: u64, to: u64, address: &str, extra: &str) -> String {
    call(&format!(
        r#"{{"fromBlock":"{from:#x}","toBlock":"{to:#x}","address":"{address}"{extra}}}"#
    ))
}

fn call(filter: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{filter}]}}"#)
}

/// The answers to all of these, and the microseconds of each.
fn all(address: SocketAddr, bodies: &[String]) -> Result<(Vec<Vec<u8>>, Vec<f64>)> {
    let mut connection = Connection::open(address)?;
    let answers: Result<Vec<_>> = bodies.iter().map(|body| timed(&mut connection, body)).collect();
    Ok(answers?.into_iter().unzip())
}

/// The body of the answer, and microseconds.
fn timed(connection: &mut Connection, body: &str) -> Result<(Vec<u8>, f64)> {
    let since = Instant::now();
    let reply = connection.post(body)?;
    let took = since.elapsed().as_secs_f64() * 1e6;
    ensure!(reply.status == 200, "status {} to {body}", reply.status);
    Ok((reply.body.trim_ascii_end().to_vec(), took))
}

fn count(text: &[u8], word: &str) -> usize {
    text.windows(word.len()).filter(|part| *part == word.as_bytes()).count()
}
