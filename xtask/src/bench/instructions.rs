//! Counts the gateway's instructions with Valgrind's tool Callgrind. A count varies far less than
//! CPU time, so it can show a difference of 1 %.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::http::Connection;
use super::server::{Server, create_scratch_folder, find_free_ports};
use crate::shell;

/// Request whose response shows that a server has started.
const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#;
/// Number of blocks of the simulated chain above the highest requested block. With this number, all
/// requested blocks are final.
const BLOCKS_ABOVE: u64 = 3_000;

/// Kind of the measured calls: cache hits or misses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Hit,
    Miss,
}

impl CallKind {
    /// Returns the value of the header `x-weir-cache` in the responses to these calls.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            CallKind::Hit => "hit",
            CallKind::Miss => "miss",
        }
    }
}

/// Returns the number of instructions of the whole gateway per call. `tables` is added to the
/// gateway's configuration.
///
/// # Errors
/// Same as [`profile_calls`].
pub(crate) fn count_instructions(
    binary: &Path,
    kind: CallKind,
    calls: u64,
    tables: &str,
) -> Result<f64> {
    let dump = profile_calls(binary, kind, calls, tables)?;
    let total = read_total(&dump).context("Callgrind's dump has no line `totals:`")?;
    Ok(total as f64 / calls as f64)
}

/// Serves `calls` calls to warm up, then as many under measurement. Returns Callgrind's dump of the
/// measured calls. `tables` is added to the gateway's configuration.
///
/// # Errors
/// Fails if Valgrind is missing, or if a call is not the expected hit or miss.
pub(crate) fn profile_calls(
    binary: &Path,
    kind: CallKind,
    calls: u64,
    tables: &str,
) -> Result<String> {
    let node = find_free_ports(1)?[0];
    let head = 2 * calls + BLOCKS_ABOVE;
    let mut command = Command::new(binary);
    command.args(["node", "--listen", &node.to_string(), "--head", &head.to_string()]);
    let _node = Server::spawn(
        "the node",
        command,
        node.port(),
        create_scratch_folder("instructions-node")?,
        PROBE,
    )?;
    let port = find_free_ports(1)?[0].port();
    let folder = create_scratch_folder("instructions")?;
    let (config, out) = (folder.join("weir.toml"), folder.join("callgrind"));
    fs::write(
        &config,
        format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\nadmin = \"off\"\nthreads = 1\n\
             [chain.main]\nfamily = \"ethereum\"\n[[upstream]]\nurl = \"http://{node}\"\n{tables}"
        ),
    )?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(binary)
        .arg("serve")
        .arg(&config);
    let gateway = Server::spawn("weir under valgrind", command, port, folder, PROBE)?;
    let mut client = Connection::open(gateway.address)?;
    let mut is_first = true;
    let mut request_block = |number: u64| -> Result<()> {
        let reply = client.post(&format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["{number:#x}",false]}}"#
        ))?;
        let status = reply.header("x-weir-cache").unwrap_or_default();
        // The first call is a miss in both cases.
        let expected = if is_first { CallKind::Miss } else { kind }.as_str();
        ensure!(status == expected, "x-weir-cache is {status}, not {expected}");
        is_first = false;
        Ok(())
    };
    // All hits request block 1. Each miss requests another block.
    let block = |index: u64| if kind == CallKind::Hit { 1 } else { 2 + index };
    // The warm-up opens connections and initializes lazy state, so the measured calls do not.
    (0..calls).try_for_each(|index| request_block(block(index)))?;
    // The output of this program is dropped, because standard output is for results.
    let control = |option: &str| {
        let process = gateway.group().to_string();
        shell::read_output(Command::new("callgrind_control").args([option, &process])).map(drop)
    };
    // Sets all counters to zero.
    control("--zero")?;
    (calls..2 * calls).try_for_each(|index| request_block(block(index)))?;
    // Writes the counters to a file, whose name gets the number of the dump.
    control("--dump")?;
    let dump = format!("{}.1", out.display());
    fs::read_to_string(&dump).with_context(|| format!("cannot read {dump}"))
}

/// Returns the sum of all instructions of a dump, which is on its line `totals:`.
fn read_total(dump: &str) -> Option<u64> {
    dump.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::read_total;

    #[test]
    fn the_total_of_a_dump_is_read_from_its_last_line() {
        assert_eq!(read_total("fl=/w/path.rs\nfn=serve\n10 3\ntotals: 3\n"), Some(3));
        assert_eq!(read_total("fl=/w/path.rs\n10 3\n"), None);
    }
}
