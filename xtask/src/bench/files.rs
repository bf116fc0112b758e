//! Lists the gateway's source files that execute during a cached call and during a miss, with the
//! instructions that Valgrind counts in each file. Inlined code counts for the file that contains
//! its source.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::http::Connection;
use super::server::{Server, create_scratch_folder, find_free_ports};
use crate::shell;

/// Number of warm-up calls, which is also the number of measured calls.
const CALLS: u64 = 500;
/// Height of the simulated chain; each miss requests another block.
const HEAD: u64 = 4_000;
/// Request whose response shows that a server has started.
const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}"#;
/// Smallest share of the gateway's instructions with which a file counts as a step of a call's
/// path. Files with a smaller share only read a clock, a counter or a label.
const STEP_SHARE: f64 = 0.01;

/// Whether the cache serves the measured calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Hit,
    Miss,
}

impl CallKind {
    /// Returns the value of the response's `x-weir-cache`.
    fn as_str(self) -> &'static str {
        match self {
            CallKind::Hit => "hit",
            CallKind::Miss => "miss",
        }
    }
}

/// Prints the files of both kinds of calls, hits and misses. `binary` is a `weir` with debug
/// information; `None` makes and uses the debug build.
///
/// # Errors
/// Fails if Valgrind is missing, or if a call is not the expected hit or miss.
pub(crate) fn run(binary: Option<&Path>) -> Result<()> {
    let built = shell::root().join("target/debug/weir");
    if binary.is_none() {
        shell::run_cargo(&["build", "--package", "weir"])?;
    }
    let binary = binary.unwrap_or(&built);
    for kind in [CallKind::Hit, CallKind::Miss] {
        let files = count_instructions(binary, kind)?;
        let total: f64 = files.values().sum();
        let mut files: Vec<_> = files.into_iter().filter(|(_, count)| *count >= 1.0).collect();
        files.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let steps = files.iter().filter(|(_, count)| *count >= total * STEP_SHARE).count();
        println!(
            "{}: {steps} files of the gateway with at least 1 % of its {total:.0} instructions, {} with \
             any",
            kind.as_str(),
            files.len()
        );
        for (file, count) in files {
            println!("  {count:>7.0}  {file}");
        }
    }
    Ok(())
}

/// Returns the number of instructions per call, by file of the crate `gateway`.
fn count_instructions(binary: &Path, kind: CallKind) -> Result<BTreeMap<String, f64>> {
    let node = find_free_ports(1)?[0];
    let mut command = Command::new(binary);
    command.args(["node", "--listen", &node.to_string(), "--head", &HEAD.to_string()]);
    let _node = Server::spawn(
        "the node",
        command,
        node.port(),
        create_scratch_folder("files-node")?,
        PROBE,
    )?;
    let port = find_free_ports(1)?[0].port();
    let folder = create_scratch_folder("files")?;
    let (config, out) = (folder.join("weir.toml"), folder.join("callgrind"));
    fs::write(
        &config,
        format!(
            "[server]\nlisten = \"127.0.0.1:{port}\"\nadmin = \"off\"\nthreads = 1\n\
             [chain.main]\nfamily = \"ethereum\"\n[[upstream]]\nurl = \"http://{node}\"\n"
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
    (0..CALLS).try_for_each(|index| request_block(block(index)))?;
    let control = |option: &str| {
        shell::run(Command::new("callgrind_control").args([option, &gateway.group().to_string()]))
    };
    // Sets all counters to zero.
    control("--zero")?;
    (CALLS..2 * CALLS).try_for_each(|index| request_block(block(index)))?;
    // Writes the counters to a file, whose name gets the number of the dump.
    control("--dump")?;
    let dump = format!("{}.1", out.display());
    let text = fs::read_to_string(&dump).with_context(|| format!("cannot read {dump}"))?;
    let files = sum_by_file(&text);
    ensure!(!files.is_empty(), "{} has no debug information", binary.display());
    Ok(files.into_iter().map(|(file, sum)| (file, sum as f64 / CALLS as f64)).collect())
}

/// Sums the instructions of a dump by file of the crate `gateway`. The instructions of called
/// functions count only for their own files. The Valgrind manual has the format ("Callgrind Format
/// Specification").
fn sum_by_file(dump: &str) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    let mut file = None;
    let mut is_cost_of_callee = false;
    // `fl=`, `fi=` and `fe=` name the file of the next cost lines. A cost line has a line number
    // and a number of instructions.
    for line in dump.lines() {
        let names_file = ["fl=", "fi=", "fe="].iter().find_map(|key| line.strip_prefix(key));
        if let Some(path) = names_file {
            file = path.split_once("crates/gateway/src/").map(|(_, file)| file.to_owned());
        } else if line.starts_with("calls=") {
            // The next line is the inclusive cost of the callee.
            is_cost_of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let count = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
            if let (Some(file), Some(count), false) = (&file, count, is_cost_of_callee) {
                *files.entry(file.clone()).or_default() += count;
            }
            is_cost_of_callee = false;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::sum_by_file;

    #[test]
    fn own_instructions_are_summed_by_file_and_those_of_callees_are_not() {
        let dump = "fl=/w/crates/gateway/src/path.rs\nfn=serve\n10 3\nfi=/w/crates/wire/src/key.rs\n\
                    7 100\nfe=/w/crates/gateway/src/path.rs\n11 4\ncfn=fill\ncalls=2 20\n12 900\n13 1\n";
        assert_eq!(sum_by_file(dump), [("path.rs".to_owned(), 8)].into());
    }
}
