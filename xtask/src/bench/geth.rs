//! Measures the CPU cost of a call in geth and in the gateway in front of it, for each transport
//! between the two.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::load::{self, Load};
use super::row::{Row, RowSpec};
use super::server::{
    Contender, LOAD_CORE, Server, create_scratch_folder, find_free_ports, pinned_command,
};
use super::{Bench, CONNECTIONS, machine};
use crate::shell;

/// Requests a block of the chain in `testdata/execution-apis`.
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["0x10",false]}"#;
const WARM_SECONDS: u64 = 1;

/// A transport between the gateway and geth, with the figures of all rounds.
struct Transport {
    /// Name in tables.
    label: &'static str,
    /// URL of geth.
    url: String,
    costs: Vec<Costs>,
    /// Reasons why rounds are invalid.
    problems: Vec<String>,
}

/// CPU microseconds per request in one round.
struct Costs {
    gateway: f64,
    geth: f64,
}

/// Measures the gateway in front of geth over HTTP, WebSocket and IPC.
///
/// # Errors
/// Fails if geth is missing, or a program does not run.
pub(crate) fn measure_transports(bench: &Bench) -> Result<Vec<Row>> {
    let (geth, folder) = start_geth()?;
    let ipc_path = folder.join("geth.ipc");
    let new_transport =
        |label, url| Transport { label, url, costs: Vec::new(), problems: Vec::new() };
    // The most expensive transport is first.
    let mut transports = [
        new_transport("by http", format!("http://{}", geth.address)),
        new_transport("by websocket", format!("ws://{}", geth.address)),
        new_transport("by ipc", format!("ipc:{}", ipc_path.display())),
    ];
    for repetition in 1..=bench.repetitions {
        for transport in &mut transports {
            let Transport { label, url, costs, problems } = transport;
            let (label, program, url) = (*label, bench.weir.clone(), url.clone());
            let ours = Contender::WeirUncached { label, program, url };
            let server = Server::start(&ours, CALL)?;
            let load = Load::Constant(CALL.to_owned());
            load::run(server.address, &load, CONNECTIONS, WARM_SECONDS)?;
            let before = machine::cpu_time(geth.group())?;
            let round = load::measure_round(&server, &load, CONNECTIONS, bench.seconds)?;
            let geth_cpu = machine::cpu_time(geth.group())?.saturating_sub(before);
            let geth_cost = geth_cpu.as_secs_f64() * 1e6 / round.summary.requests as f64;
            eprintln!(
                "geth {repetition}/{}: {label:<14} gateway {:>6.2} us, geth {geth_cost:>6.2} us, {:>6.0}/s",
                bench.repetitions,
                round.cpu_us_per_request(),
                round.requests_per_second()
            );
            problems.extend(round.find_problems());
            costs.push(Costs { gateway: round.cpu_us_per_request(), geth: geth_cost });
        }
    }
    let mut rows = Vec::new();
    // WebSocket and IPC are each compared with HTTP.
    let [http, websocket, ipc] = &transports;
    for transport in [websocket, ipc] {
        type Pick = fn(&Costs) -> f64;
        let figures: [(&str, Pick); 2] =
            [("gateway", |costs| costs.gateway), ("geth", |costs| costs.geth)];
        for (process, pick) in figures {
            let case = format!("{process}, a call to geth {}", transport.label);
            let peer = http.label;
            // The target is the largest allowed ratio of the cost to the cost over HTTP.
            let row_spec = RowSpec { case: &case, unit: "CPU us/request", peer, target: Some(1.0) };
            let figures_of = |costs: &[Costs]| costs.iter().map(pick).collect::<Vec<f64>>();
            let (ours, theirs) = (figures_of(&transport.costs), figures_of(&http.costs));
            let problems = [http.problems.as_slice(), transport.problems.as_slice()].concat();
            rows.push(Row::compare(&row_spec, &ours, &theirs, problems));
        }
    }
    Ok(rows)
}

/// Starts geth on the load's core with `GOMAXPROCS=1`. Returns the server and the folder of its IPC
/// socket.
fn start_geth() -> Result<(Server, PathBuf)> {
    let program = find_geth()?;
    let folder = create_scratch_folder("geth")?;
    import_chain(&program, &folder, &shell::root().join("testdata/execution-apis"))?;
    let ports = find_free_ports(2)?;
    let (port, auth) = (ports[0].port().to_string(), ports[1].port().to_string());
    let mut command = pinned_command(LOAD_CORE);
    command.arg("env").arg("GOMAXPROCS=1").arg(&program);
    let mut command = with_datadir(command, &folder);
    command
        .args(["--gcmode", "archive", "--syncmode", "full", "--nodiscover", "--maxpeers", "0"])
        .args(["--port", "0", "--authrpc.port", &auth, "--verbosity", "1"])
        .args(["--http", "--http.port", &port, "--ws", "--ws.port", &port])
        .args(["--http.vhosts", "*", "--ipcpath"])
        .arg(folder.join("geth.ipc"));
    let server = Server::spawn("geth", command, ports[0].port(), folder.clone(), CALL)?;
    Ok((server, folder))
}

/// Returns the path of geth.
///
/// # Errors
/// Fails if geth is missing.
pub(super) fn find_geth() -> Result<PathBuf> {
    shell::find("geth").context("geth is missing: run cargo xtask check")
}

/// Imports a chain (`genesis.json` and `chain.rlp` in the folder `chain`) into a data folder.
///
/// # Errors
/// Fails if geth fails.
pub(super) fn import_chain(geth: &Path, data_folder: &Path, chain: &Path) -> Result<()> {
    let mut init = with_datadir(Command::new(geth), data_folder);
    init.arg("init").arg(chain.join("genesis.json"));
    let mut import = with_datadir(Command::new(geth), data_folder);
    import.args(["--gcmode", "archive", "import"]).arg(chain.join("chain.rlp"));
    for mut command in [init, import] {
        shell::read_output(command.stdin(Stdio::null()))?;
    }
    Ok(())
}

/// Adds the data folder to a command that runs geth.
pub(super) fn with_datadir(mut command: Command, data_folder: &Path) -> Command {
    command.arg("--datadir").arg(data_folder).args(["--state.scheme", "hash"]);
    command
}
