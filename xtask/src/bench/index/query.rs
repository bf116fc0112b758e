//! Measures the latency of `eth_getLogs` through the gateway with an index, which is a database of
//! the chain's past. We compare this latency with the latency of geth on the same chain, of a scan
//! of the transactions table, of a search in a shorter range, and of the gateway without the index.
//! Calls for blocks are compared only with the gateway without the index.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rusqlite::Connection as Sqlite;
use serde::Deserialize;

use super::super::Bench;
use super::super::geth::{find_geth, import_chain, with_datadir};
use super::super::http::Connection;
use super::super::row::{Row, RowSpec};
use super::super::server::{Server, create_scratch_folder, find_free_ports};
use crate::shell;

/// Number of blocks of the chain.
const BLOCKS: u64 = 100_000;
/// Largest allowed ratio of our time to geth's.
const GETH_RATIO_MAX: f64 = 1.0 / 20.0;
/// Largest allowed ratio of the time for blocks with the index to the time without the index.
const BLOCKS_RATIO_MAX: f64 = 1.0 / 10.0;
/// Name of [`Peer::Without`] in tables.
const WITHOUT: &str = "the gateway without the index";
/// Largest allowed ratio of our time for a range of blocks to our time for a range that is a
/// hundred times shorter. Both ranges have the same response.
const RANGE_RATIO_MAX: f64 = 1.5;
/// Number of requests per kind and repetition. Each request is sent only once to a peer, so no
/// response comes from a cache.
const REQUESTS: usize = 100;
/// Timeout for geth to index the logs of the chain.
const INDEXING_TIMEOUT: Duration = Duration::from_secs(900);
/// A call that every server under test serves. Its response shows that the server is ready.
const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;
/// Topic of the event `Transfer(address,address,uint256)`.
const TRANSFER: &str = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";

/// Measures `eth_getLogs` against all peers.
///
/// # Errors
/// Fails if a program does not run, or a response differs from geth's.
pub(crate) fn measure_queries(bench: &Bench) -> Result<Vec<Row>> {
    let chain = prepare_chain(bench)?;
    let geth = start_geth(&chain)?;
    let file = sync_index(bench, &geth, &chain)?;
    let with_index = start_gateway(bench, &geth, &index_table(&file, "0B"))?;
    let mapped = start_gateway(bench, &geth, &index_table(&file, "1GiB"))?;
    let without = start_gateway(bench, &geth, "")?;
    let mut queries = Queries {
        ours: with_index.address,
        mapped: mapped.address,
        geth: geth.address,
        without: without.address,
        parties: serde_json::from_slice(&fs::read(chain.join("parties.json"))?)?,
        next_request: 0,
    };
    let mut rows = Vec::new();
    for kind in [Kind::Address, Kind::AddressAndTopic, Kind::Wide] {
        rows.extend(queries.compare_with_peer(bench, kind, Peer::Geth)?);
        rows.extend(queries.compare_with_peer(bench, kind, Peer::GethMapped)?);
    }
    rows.push(queries.compare_with_scan(bench, &file)?);
    rows.push(queries.compare_ranges(bench)?);
    for kind in [Kind::Mix, Kind::Blocks] {
        rows.extend(queries.compare_with_peer(bench, kind, Peer::Without)?);
    }
    Ok(rows)
}

/// Returns the folder of the chain. Generates the chain if an earlier run has not done so.
fn prepare_chain(bench: &Bench) -> Result<PathBuf> {
    let folder = bench.folder.join(format!("chain-{BLOCKS}"));
    if folder.join("imported").is_file() {
        return Ok(folder);
    }
    eprintln!("query: generating a chain of {BLOCKS} blocks, which takes minutes");
    fs::create_dir_all(&folder)?;
    let mut generate = Command::new("go");
    generate.args(["run", ".", "-blocks", &BLOCKS.to_string(), "-out"]).arg(&folder);
    generate.current_dir(shell::root().join("xtask/chain"));
    shell::read_output(generate.stdin(Stdio::null()))?;
    import_chain(&find_geth()?, &folder.join("geth"), &folder)?;
    fs::write(folder.join("imported"), "")?;
    Ok(folder)
}

/// Starts geth on all cores and waits until it has indexed the logs of the chain.
fn start_geth(folder: &Path) -> Result<Server> {
    let ports = find_free_ports(2)?;
    let (port, auth) = (ports[0].port().to_string(), ports[1].port().to_string());
    let mut command = with_datadir(Command::new(find_geth()?), &folder.join("geth"));
    command
        .args(["--gcmode", "archive", "--syncmode", "full", "--nodiscover", "--maxpeers", "0"])
        .args(["--port", "0", "--authrpc.port", &auth, "--ipcdisable", "--verbosity", "3"])
        .args(["--history.logs", "0", "--http", "--http.port", &port, "--http.vhosts", "*"]);
    let server_folder = create_scratch_folder("geth")?;
    let log = server_folder.join("out.log");
    let server = Server::spawn("geth", command, ports[0].port(), server_folder, CALL)?;
    let indexed_mark = folder.join("indexed");
    if indexed_mark.is_file() {
        return Ok(server);
    }
    eprintln!("query: geth indexes its logs, which takes minutes");
    let started = Instant::now();
    loop {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.contains(INDEXED) {
            fs::write(indexed_mark, "")?;
            return Ok(server);
        }
        ensure!(started.elapsed() < INDEXING_TIMEOUT, "geth has not indexed its logs: {text}");
        shell::pause(Duration::from_millis(500));
    }
}

/// The line that geth logs when its log index becomes complete. It logs nothing if the index was
/// complete at the start.
const INDEXED: &str = "Log index head rendering finished";

fn sync_index(bench: &Bench, geth: &Server, folder: &Path) -> Result<PathBuf> {
    let file = folder.join("index.db");
    // The file of an earlier build must not be reused.
    for suffix in ["", "-wal", "-shm"] {
        let old_file = folder.join(format!("index.db{suffix}"));
        if old_file.exists() {
            fs::remove_file(old_file)?;
        }
    }
    eprintln!("query: weir index sync, which takes minutes");
    let status = Command::new(&bench.weir)
        .args(["index", "sync", "--quiet", "--verify", "full", "--end", &BLOCKS.to_string()])
        .args(["--from", &format!("http://{}", geth.address), "--db"])
        .arg(&file)
        .stdin(Stdio::null())
        .status()?;
    ensure!(status.success(), "weir index sync ended with {status}");
    Ok(file)
}

/// Returns the `[index]` table of the configuration. `mmap` is the size of the part of the file
/// that is mapped into memory.
fn index_table(file: &Path, mmap: &str) -> String {
    format!("[index]\ndb = \"{}\"\nmmap = \"{mmap}\"\n", file.display())
}

/// Starts the gateway in front of geth, with this `[index]` table. All blocks of the chain are
/// final.
fn start_gateway(bench: &Bench, geth: &Server, index_table: &str) -> Result<Server> {
    let folder = create_scratch_folder("weir")?;
    let port = find_free_ports(1)?[0].port();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\nadmin = \"off\"\nthreads = 1\n\
         [chain.main]\nfinality_depth = 0\n\
         [[upstream]]\nname = \"geth\"\nurl = \"http://{}\"\n{index_table}",
        geth.address,
    );
    let path = folder.join("weir.toml");
    fs::write(&path, text)?;
    let mut command = Command::new(&bench.weir);
    command.arg("serve").arg(path);
    Server::spawn("weir", command, port, folder, CALL)
}

/// Kinds of requests.
#[derive(Clone, Copy)]
enum Kind {
    /// All logs of one address.
    Address,
    /// The logs of one address with two topics.
    AddressAndTopic,
    /// All transfers in 100 blocks.
    Wide,
    /// `Address`, `AddressAndTopic` and `Wide` in rotation.
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

/// The peer of a comparison.
#[derive(Clone, Copy)]
enum Peer {
    Geth,
    /// geth, compared with our gateway whose index file is mapped into memory.
    GethMapped,
    /// The gateway without the index.
    Without,
}

/// The servers under test, and the state of the request generator.
struct Queries {
    /// Our gateway with the index.
    ours: SocketAddr,
    /// Our gateway with the index file mapped into memory.
    mapped: SocketAddr,
    geth: SocketAddr,
    /// Our gateway without the index.
    without: SocketAddr,
    /// The addresses that requests ask for.
    parties: Parties,
    /// Number of the next request.
    next_request: usize,
}

/// Addresses in the logs of the chain, the most frequent first.
#[derive(Deserialize)]
struct Parties {
    contracts: Vec<String>,
    /// Addresses of holders, encoded as topics.
    holders: Vec<String>,
}

/// Times in microseconds: ours at index 0, the peer's at index 1.
type Times = [Vec<f64>; 2];

impl Queries {
    /// Compares every response with the peer's, and measures medians and 99th percentiles.
    fn compare_with_peer(&mut self, bench: &Bench, kind: Kind, peer: Peer) -> Result<Vec<Row>> {
        // One value per repetition.
        let (mut medians, mut p99s) = (Times::default(), Times::default());
        for repetition in 1..=bench.repetitions {
            let (our_address, peer_address) = match peer {
                Peer::Geth => (self.ours, self.geth),
                Peer::GethMapped => (self.mapped, self.geth),
                Peer::Without => (self.ours, self.without),
            };
            let bodies: Vec<String> =
                (0..REQUESTS).map(|_| self.build_next_request(kind)).collect();
            // All requests go to the peer first. After a response geth continues to work in the
            // background. If requests alternated, this work would disturb our figures.
            let (theirs, their_times) = send_all(peer_address, &bodies)?;
            let (ours, our_times) = send_all(our_address, &bodies)?;
            let mut times = [our_times, their_times];
            let mut logs = 0;
            for ((ours, theirs), body) in ours.iter().zip(&theirs).zip(&bodies) {
                ensure!(ours == theirs, "the response differs from the peer's to {body}");
                logs += count_occurrences(ours, "\"transactionIndex\"");
            }
            ensure!(logs > 0, "no request of {} has a result", kind.name());
            for (side, times) in times.iter_mut().enumerate() {
                times.sort_by(f64::total_cmp);
                medians[side].push(times[times.len() / 2]);
                p99s[side].push(times[times.len() * 99 / 100]);
            }
            let last = |times: &Times| (times[0][repetition - 1], times[1][repetition - 1]);
            let ((p50, their_p50), (p99, their_p99)) = (last(&medians), last(&p99s));
            eprintln!(
                "query {repetition}/{}: {:<42} p50 {p50:>8.0} us, p99 {p99:>8.0} us; theirs {their_p50:>8.0} us, \
                 {their_p99:>8.0} us; {} logs or transactions in the mean",
                bench.repetitions,
                kind.name(),
                logs / REQUESTS
            );
        }
        let figures = [("p50", &medians), ("p99", &p99s)];
        let rows = figures.into_iter().map(|(figure, [ours, theirs])| {
            let mapped = if matches!(peer, Peer::GethMapped) { ", mapped" } else { "" };
            let case = format!("{}{mapped}, {figure}", kind.name());
            let (peer, target) = match (peer, kind) {
                (Peer::Geth | Peer::GethMapped, _) => ("geth", Some(GETH_RATIO_MAX)),
                (Peer::Without, Kind::Blocks) => (WITHOUT, Some(BLOCKS_RATIO_MAX)),
                (Peer::Without, _) => (WITHOUT, None),
            };
            let row_spec = RowSpec { case: &case, unit: "us", peer, target };
            Row::compare(&row_spec, ours, theirs, Vec::new())
        });
        Ok(rows.collect())
    }

    /// Builds the next request. It differs from all earlier ones.
    fn build_next_request(&mut self, kind: Kind) -> String {
        let number = self.next_request;
        self.next_request += 1;
        let Parties { contracts, holders } = &self.parties;
        match kind {
            Kind::Mix => {
                let kinds = [Kind::Address, Kind::AddressAndTopic, Kind::Wide];
                self.build_next_request(kinds[number % kinds.len()])
            }
            Kind::Blocks => {
                let first = number as u64 % (BLOCKS / 100) * 100;
                let calls: Vec<String> = (first..first + 100)
                    .map(|number| {
                        format!(
                            r#"{{"jsonrpc":"2.0","id":{number},"method":"eth_getBlockByNumber","params":["{number:#x}",true]}}"#
                        )
                    })
                    .collect();
                format!("[{}]", calls.join(","))
            }
            // Each of these 512 addresses has some hundred logs.
            Kind::Address => format_logs_call(0, BLOCKS, &contracts[511 + number % 512], ""),
            // Each of these 128 contracts has some five hundred logs. One in twenty of the logs
            // matches.
            Kind::AddressAndTopic => {
                let (contract, holder_index) =
                    (&contracts[127 + number % 128], number / 128 % holders.len());
                let topics = format!(r#","topics":["{TRANSFER}","{}"]"#, holders[holder_index]);
                format_logs_call(0, BLOCKS, contract, &topics)
            }
            Kind::Wide => {
                let from = number as u64 % (BLOCKS / 100) * 100;
                format_call_with_filter(&format!(
                    r#"{{"fromBlock":"{from:#x}","toBlock":"{:#x}","topics":["{TRANSFER}"]}}"#,
                    from + 99
                ))
            }
        }
    }

    /// Compares the search for the logs of one address with a scan of all transaction rows.
    fn compare_with_scan(&mut self, bench: &Bench, file: &Path) -> Result<Row> {
        let source = Sqlite::open(file)?;
        let [mut ours, mut theirs] = Times::default();
        for _ in 0..bench.repetitions {
            let mut times = Vec::new();
            let mut connection = Connection::open(self.ours)?;
            for _ in 0..REQUESTS {
                let body = self.build_next_request(Kind::Address);
                let (_, micros) = send_timed(&mut connection, &body)?;
                times.push(micros);
            }
            times.sort_by(f64::total_cmp);
            ours.push(times[times.len() / 2]);
            let started = Instant::now();
            // To find these bytes, SQLite must read every receipt.
            let sql = "SELECT count(*) FROM transactions WHERE instr(receipt, x'00ff00ff00ff')";
            let _rows: i64 = source.query_row(sql, [], |row| row.get(0))?;
            theirs.push(started.elapsed().as_secs_f64() * 1e6);
        }
        let row_spec = RowSpec {
            case: "getLogs, one address, 10^5 blocks, p50",
            unit: "us",
            peer: "reading all packed receipts",
            target: None,
        };
        Ok(Row::compare(&row_spec, &ours, &theirs, Vec::new()))
    }

    /// Compares ranges of 10^5 and 10^3 blocks that have the same response.
    fn compare_ranges(&mut self, bench: &Bench) -> Result<Row> {
        let [mut ours, mut theirs] = Times::default();
        for _ in 0..bench.repetitions {
            let mut times = Times::default();
            let mut connection = Connection::open(self.ours)?;
            for _ in 0..REQUESTS {
                self.next_request += 1;
                // No log has this address, so the response is empty.
                let address = format!("0x{:040x}", self.next_request + 1_000);
                for (side, from) in [(0, 0), (1, BLOCKS - BLOCKS / 100)] {
                    let call = format_logs_call(from, BLOCKS, &address, "");
                    let (_, micros) = send_timed(&mut connection, &call)?;
                    times[side].push(micros);
                }
            }
            for (times, medians) in times.iter_mut().zip([&mut ours, &mut theirs]) {
                times.sort_by(f64::total_cmp);
                medians.push(times[times.len() / 2]);
            }
        }
        let row_spec = RowSpec {
            case: "getLogs, an address without logs, 10^5 blocks, p50",
            unit: "us",
            peer: "ourselves in 10^3 blocks",
            target: Some(RANGE_RATIO_MAX),
        };
        Ok(Row::compare(&row_spec, &ours, &theirs, Vec::new()))
    }
}

fn format_logs_call(from: u64, to: u64, address: &str, extra: &str) -> String {
    format_call_with_filter(&format!(
        r#"{{"fromBlock":"{from:#x}","toBlock":"{to:#x}","address":"{address}"{extra}}}"#
    ))
}

fn format_call_with_filter(filter: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{filter}]}}"#)
}

/// Sends all requests. Returns their responses, and the time of each in microseconds.
fn send_all(address: SocketAddr, bodies: &[String]) -> Result<(Vec<Vec<u8>>, Vec<f64>)> {
    let mut connection = Connection::open(address)?;
    let responses: Result<Vec<_>> =
        bodies.iter().map(|body| send_timed(&mut connection, body)).collect();
    Ok(responses?.into_iter().unzip())
}

/// Sends one request. Returns the body of its response and the time in microseconds.
fn send_timed(connection: &mut Connection, body: &str) -> Result<(Vec<u8>, f64)> {
    let started = Instant::now();
    let reply = connection.post(body)?;
    let micros = started.elapsed().as_secs_f64() * 1e6;
    ensure!(reply.status == 200, "status {} to {body}", reply.status);
    Ok((reply.body.trim_ascii_end().to_vec(), micros))
}

fn count_occurrences(text: &[u8], word: &str) -> usize {
    text.windows(word.len()).filter(|part| *part == word.as_bytes()).count()
}
