//! Measures the index, a database of a chain's past: sync speed, file size and the latency of
//! `eth_getLogs`.

mod query;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rusqlite::Connection as Sqlite;
use rusqlite::types::Value as Cell;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Bench;
use super::http;
use super::row::{Row, RowSpec};
use super::server::{ScratchFolder, Server, create_scratch_folder};

pub(crate) use self::query::measure_queries;

/// Number of blocks to sync, each as large as a mainnet block.
const BLOCKS: u64 = 1536;
/// Range of transactions per block, in the syntax of `weir node --txs`: always 150.
const TRANSACTIONS: &str = "150..150";
/// Number of addresses in logs. With this number a block has about as many distinct addresses as a
/// mainnet block.
const PARTIES: &str = "131072";
/// Maximum number of blocks per database transaction, in `weir index sync` and in the baseline.
const COMMIT_BLOCKS: i64 = 256;
/// Largest allowed ratio of our time to the baseline's. At this ratio a sync has 60 % of the
/// baseline's speed.
const SPEED_RATIO_MAX: f64 = 1.0 / 0.6;
/// Largest allowed ratio of the index file's size to the size of the node's JSON.
const SIZE_RATIO_MAX: f64 = 0.25;
/// A call that shows by its response that the node is ready.
const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber"}"#;

/// Measures a sync from a node that serves every response from memory. The baseline is a loop that
/// inserts the same rows from memory, with the same settings and transaction size.
///
/// # Errors
/// Fails if a program does not run.
pub(crate) fn measure_sync(bench: &Bench) -> Result<Vec<Row>> {
    let head = BLOCKS.to_string();
    let extra = [
        "--head",
        &head,
        "--block-time",
        "1h",
        "--txs",
        TRANSACTIONS,
        "--log-parties",
        PARTIES,
        "--finality-depth",
        "0",
    ];
    let node = Server::start_simulated(&bench.weir, &extra, PROBE)?;
    let cached_node = CachedNode::record(node.address)?;
    let json_bytes: usize = cached_node.results.values().map(String::len).sum();
    let address = cached_node.serve()?;
    let folder = ScratchFolder(create_scratch_folder("index")?);
    // By repetition: milliseconds per block of our sync and of the baseline, bytes per block of our
    // file, and milliseconds per block of our sync into PostgreSQL.
    let (mut ours, mut baseline, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    let mut into_database = Vec::new();
    for repetition in 1..=bench.repetitions {
        let file = folder.0.join(format!("sync-{repetition}.db"));
        let sync_time = time_sync(&bench.weir, address, file.as_os_str())?;
        if let Some(url) = &bench.postgres {
            let separator = if url.contains('?') { '&' } else { '?' };
            let schema = format!("{url}{separator}schema=weir_bench_{repetition}");
            let database_time = time_sync(&bench.weir, address, schema.as_ref())?;
            into_database.push(database_time.as_secs_f64() * 1e3 / BLOCKS as f64);
        }
        let (bare_time, rows) =
            time_bare_inserts(&file, &folder.0.join(format!("bare-{repetition}.db")))?;
        let size = file.metadata()?.len();
        eprintln!(
            "index {repetition}/{}: {BLOCKS} blocks, {} logs lists and {} transactions: {:.0} blocks/s; bare \
             inserts {:.0} blocks/s; {} bytes of {json_bytes}",
            bench.repetitions,
            rows.lists,
            rows.transactions,
            BLOCKS as f64 / sync_time.as_secs_f64(),
            BLOCKS as f64 / bare_time.as_secs_f64(),
            size,
        );
        ours.push(sync_time.as_secs_f64() * 1e3 / BLOCKS as f64);
        baseline.push(bare_time.as_secs_f64() * 1e3 / BLOCKS as f64);
        sizes.push(size as f64 / BLOCKS as f64);
    }
    let speed = RowSpec {
        case: "sync, fully verified",
        unit: "ms/block",
        peer: "bare inserts of the same rows",
        target: Some(SPEED_RATIO_MAX),
    };
    let size = RowSpec {
        case: "file",
        unit: "bytes/block",
        peer: "the node's JSON",
        target: Some(SIZE_RATIO_MAX),
    };
    let json = vec![json_bytes as f64 / BLOCKS as f64; sizes.len()];
    let mut rows = vec![
        Row::compare(&speed, &ours, &baseline, Vec::new()),
        Row::compare(&size, &sizes, &json, Vec::new()),
    ];
    if !into_database.is_empty() {
        let database = RowSpec {
            case: "sync into PostgreSQL",
            unit: "ms/block",
            peer: "ourselves into a file",
            target: None,
        };
        rows.push(Row::compare(&database, &into_database, &ours, Vec::new()));
    }
    Ok(rows)
}

/// Returns the time of a sync without the training of compression dictionaries. A first run trains
/// the dictionaries and syncs only block 0. The second run syncs all other blocks and is measured.
fn time_sync(weir: &Path, address: SocketAddr, db: &OsStr) -> Result<Duration> {
    let run = |end: &str| -> Result<Duration> {
        let started = Instant::now();
        let status = Command::new(weir)
            .args([
                "index",
                "sync",
                "--quiet",
                "--from",
                &format!("http://{address}"),
                "--end",
                end,
            ])
            .args(["--concurrency", "4", "--db"])
            .arg(db)
            .stdin(Stdio::null())
            .status()?;
        ensure!(status.success(), "weir index sync ended with {status}");
        Ok(started.elapsed())
    };
    // This run trains the dictionaries on blocks of the whole chain.
    run("0")?;
    run(&BLOCKS.to_string())
}

/// Numbers of rows that the baseline inserts.
struct RowCounts {
    /// Number of lists of log postings. Such a list has the positions of the logs with one key.
    lists: usize,
    transactions: usize,
}

/// A table of the index.
struct Table {
    name: &'static str,
    columns: &'static str,
    /// SQL expression for a row's block number. Rows are grouped into database transactions by this
    /// number. A position holds the block number in its bits from 20 on.
    block: &'static str,
}

/// The tables in the order in which the program fills them.
const TABLES: [Table; 5] = [
    Table { name: "blocks", columns: "number, hash, time, count, body", block: "number" },
    Table { name: "block_hashes", columns: "short, number", block: "number" },
    Table {
        name: "transactions",
        columns: "position, hash, receipt, body",
        block: "position >> 20",
    },
    Table { name: "transaction_hashes", columns: "short, position", block: "position >> 20" },
    Table { name: "log_postings", columns: "key, first, rest", block: "first >> 20" },
];

/// Positions of tables in [`TABLES`].
const BLOCKS_TABLE: usize = 0;
const TRANSACTIONS_TABLE: usize = 2;
const LOG_POSTINGS_TABLE: usize = 4;

/// The rows of a table, grouped by database transaction. A row is a list of cells.
type Batches = Vec<Vec<Vec<Cell>>>;

/// Copies all rows of an index file into another file through memory. Returns the time of the
/// inserts and the numbers of rows.
fn time_bare_inserts(from: &Path, to: &Path) -> Result<(Duration, RowCounts)> {
    let source = Sqlite::open(from)?;
    let tables: Vec<Batches> =
        TABLES.iter().map(|table| read_batches(&source, table)).collect::<Result<_>>()?;
    let schema: String = source.query_row(
        "SELECT group_concat(sql, ';') FROM sqlite_schema WHERE sql IS NOT NULL",
        [],
        |row| row.get(0),
    )?;
    let mut target = Sqlite::open(to)?;
    for (pragma, value) in
        [("journal_mode", "WAL"), ("synchronous", "NORMAL"), ("wal_autocheckpoint", "16384")]
    {
        target.pragma_update(None, pragma, value)?;
    }
    // A negative size is in KiB.
    target.pragma_update(None, "cache_size", -(64 << 10))?;
    target.execute_batch(&schema)?;
    let statements: Vec<String> = TABLES
        .iter()
        .map(|Table { name, columns, .. }| {
            let placeholders = vec!["?"; columns.split(',').count()].join(", ");
            format!("INSERT INTO {name} ({columns}) VALUES ({placeholders})")
        })
        .collect();
    let rows = RowCounts {
        lists: tables[LOG_POSTINGS_TABLE].iter().map(Vec::len).sum(),
        transactions: tables[TRANSACTIONS_TABLE].iter().map(Vec::len).sum(),
    };
    let started = Instant::now();
    for batch in 0..tables[BLOCKS_TABLE].len() {
        let transaction = target.transaction()?;
        for (table, sql) in tables.iter().zip(&statements) {
            let mut insert = transaction.prepare_cached(sql)?;
            for row in table.get(batch).into_iter().flatten() {
                insert.execute(rusqlite::params_from_iter(row))?;
            }
        }
        transaction.commit()?;
    }
    // `close` writes the WAL into the file, as `weir index sync` does at its end.
    target.close().map_err(|(_, error)| error)?;
    Ok((started.elapsed(), rows))
}

/// Reads all rows of a table. The first selected column is the number of the row's batch.
fn read_batches(source: &Sqlite, table: &Table) -> Result<Batches> {
    let Table { name, columns, block } = table;
    let first_column = columns.split(',').next().unwrap_or(columns);
    let sql = format!(
        "SELECT ({block}) / {COMMIT_BLOCKS}, {columns} FROM {name} ORDER BY 1, {first_column}"
    );
    let width = columns.split(',').count();
    let mut statement = source.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut batches: Batches = Vec::new();
    while let Some(row) = rows.next()? {
        let batch = row.get::<_, i64>(0)? as usize;
        if batches.len() <= batch {
            batches.resize_with(batch + 1, Vec::new);
        }
        let cells = (1..=width).map(|column| row.get(column)).collect::<Result<_, _>>()?;
        batches[batch].push(cells);
    }
    Ok(batches)
}

/// A node that serves recorded responses from memory and forwards other calls to `origin`.
struct CachedNode {
    /// Results by method and parameters.
    results: HashMap<String, String>,
    origin: SocketAddr,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: &'a RawValue,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    result: &'a RawValue,
}

/// Returns the result of a call to a node, as raw JSON.
fn fetch(origin: SocketAddr, method: &str, params: &str) -> Result<String> {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
    let reply = http::post(origin, &body)?;
    let response: Response<'_> = serde_json::from_slice(&reply.body)
        .with_context(|| format!("{method} {params} has no result"))?;
    Ok(response.result.get().to_owned())
}

impl CachedNode {
    /// Fetches all blocks and receipts of a node.
    fn record(origin: SocketAddr) -> Result<Arc<CachedNode>> {
        eprintln!("index: the node computes its blocks");
        let mut results = HashMap::new();
        for number in 0..=BLOCKS {
            for (method, params) in [
                ("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#)),
                ("eth_getBlockReceipts", format!(r#"["{number:#x}"]"#)),
            ] {
                let result = fetch(origin, method, &params)?;
                results.insert(format!("{method}{params}"), result);
            }
        }
        Ok(Arc::new(CachedNode { results, origin }))
    }

    /// Serves on a free port until this program ends; returns its address.
    fn serve(self: Arc<CachedNode>) -> Result<SocketAddr> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let node = Arc::clone(&self);
                std::thread::spawn(move || node.serve_connection(stream));
            }
        });
        Ok(address)
    }

    /// Serves one connection until the client closes it.
    fn serve_connection(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line)? == 0 {
                    return Ok(());
                }
                if line.trim().is_empty() {
                    break;
                }
                if let Some((name, value)) = line.split_once(':')
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let response = self.respond(&body)?;
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                response.len()
            );
            reader.get_mut().write_all(head.as_bytes())?;
            reader.get_mut().write_all(response.as_bytes())?;
        }
    }

    /// Returns the response to a call or a batch.
    fn respond(&self, body: &[u8]) -> Result<String> {
        let is_batch = body.first() == Some(&b'[');
        let calls: Vec<Call<'_>> = if is_batch {
            serde_json::from_slice(body)?
        } else {
            vec![serde_json::from_slice(body)?]
        };
        let mut out = String::new();
        for call in &calls {
            out.push(if out.is_empty() { '[' } else { ',' });
            out.push_str(r#"{"jsonrpc":"2.0","id":"#);
            out.push_str(call.id.get());
            out.push_str(r#","result":"#);
            match self.results.get(&format!("{}{}", call.method, call.params.get())) {
                Some(result) => out.push_str(result),
                None => out.push_str(&fetch(self.origin, call.method, call.params.get())?),
            }
            out.push('}');
        }
        if is_batch {
            out.push(']');
            return Ok(out);
        }
        Ok(out.split_off(1))
    }
}
