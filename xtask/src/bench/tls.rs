//! Measures the CPU cost of TLS: full and resumed handshakes, and requests on keep-alive
//! connections. The peer is nginx with the same certificate, key, version and cipher.
//!
//! Both servers send the same response to the call of the case `hit`: Weir from its cache, nginx by
//! `return`. `weir load` runs on the other core. To measure handshakes it sends one request per
//! connection, and its result shows how many handshakes were full and resumed. The cost is the CPU
//! time of the server's processes during the load, divided by handshakes or requests.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cost::{BLOCK_CALL, Figures, MeasuredRound, build_rows_with_unit, interleave};
use super::load::{Round, Summary};
use super::row::Row;
use super::server::{
    Contender, LOAD_CORE, SERVER_CORE, ScratchFolder, Server, create_scratch_folder,
    find_free_ports, pinned_command,
};
use super::{Bench, CONNECTIONS, http, machine};
use crate::shell;

/// Number of concurrent connections if each carries one request. A client needs a ticket to resume
/// a session, and a rustls client stores 8 tickets per server. With more connections, some would
/// find no ticket.
const SHORT_CONNECTIONS: usize = 8;
/// Minimum share of handshakes of the measured kind (full or resumed). It is below 1, because the
/// first handshakes are always full.
const KIND_SHARE_MIN: f64 = 0.98;

/// TLS settings of one measurement.
#[derive(Debug, Clone, Copy)]
struct Mode {
    name: &'static str,
    version: &'static str,
    cipher: &'static str,
    key: Key,
    connections: Connections,
    /// Largest allowed ratio of our CPU time to nginx's. It is [`HANDSHAKE_RATIO_MAX`] if
    /// handshakes are measured.
    target: f64,
}

/// Use of the connections in a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connections {
    /// Each connection makes a full handshake and carries one request.
    Full,
    /// Each connection resumes a session and carries one request.
    Resumed,
    /// Connections are kept alive, so requests are measured instead of handshakes.
    KeptAlive,
}

/// Type of the certificate's key.
#[derive(Debug, Clone, Copy)]
enum Key {
    Rsa,
    P256,
}

const CIPHER_TLS12: &str = "ECDHE-RSA-AES256-GCM-SHA384";
const CIPHER_TLS13: &str = "TLS_AES_256_GCM_SHA384";
/// Largest allowed ratio of our CPU time per handshake to nginx's. The goal is 1.2 times as many
/// handshakes per CPU second as nginx.
const HANDSHAKE_RATIO_MAX: f64 = 1.0 / 1.2;

const MODES: [Mode; 5] = [
    Mode {
        name: "1.2 RSA-2048, full",
        version: "1.2",
        cipher: CIPHER_TLS12,
        key: Key::Rsa,
        connections: Connections::Full,
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.2 RSA-2048, resumed",
        version: "1.2",
        cipher: CIPHER_TLS12,
        key: Key::Rsa,
        connections: Connections::Resumed,
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, full",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        connections: Connections::Full,
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, resumed",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        connections: Connections::Resumed,
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, kept",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        connections: Connections::KeptAlive,
        target: 1.0,
    },
];

/// TLS settings of a contender.
#[derive(Debug, Clone)]
pub(crate) struct TlsSettings {
    pub(crate) port: u16,
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsSettings {
    /// Returns the placeholders of configuration files and their values.
    pub(crate) fn values(&self) -> Vec<(&'static str, String)> {
        vec![
            ("@TLS_PORT@", self.port.to_string()),
            ("@VERSION@", self.version.to_owned()),
            ("@CIPHER@", self.cipher.to_owned()),
            ("@CHAIN@", self.chain.display().to_string()),
            ("@KEY@", self.key.display().to_string()),
        ]
    }
}

/// Measures all five modes.
///
/// # Errors
/// Fails if a server, the load or openssl does not run.
pub(crate) fn measure_modes(bench: &Bench) -> Result<Vec<Row>> {
    let (backend, nodes) = Server::start_backend(1, BLOCK_CALL)?;
    let response = String::from_utf8(http::post(backend.address, BLOCK_CALL)?.body)?;
    let files = ScratchFolder(create_scratch_folder("tls")?);
    for (name, kind) in [("rsa", "rsa:2048"), ("p256", "ec")] {
        create_certificate(&files.0, name, kind)?;
    }
    let mut rows = Vec::new();
    for mode in &MODES {
        let name = match mode.key {
            Key::Rsa => "rsa",
            Key::P256 => "p256",
        };
        let tls = || -> Result<TlsSettings> {
            Ok(TlsSettings {
                port: find_free_ports(1)?[0].port(),
                version: mode.version,
                cipher: mode.cipher,
                chain: files.0.join(format!("{name}.pem")),
                key: files.0.join(format!("{name}.key")),
            })
        };
        let contenders = [
            Contender::WeirTls { program: bench.weir.clone(), nodes: nodes.clone(), tls: tls()? },
            Contender::NginxTls { response: response.clone(), tls: tls()? },
        ];
        let figures: Vec<Figures> = interleave(bench, mode.name, &contenders, |contender| {
            let server = Server::start(contender, BLOCK_CALL)?;
            measure_round(bench, mode, contender, &server, &response)
        })?;
        let unit = match mode.connections {
            Connections::Full | Connections::Resumed => "CPU us/handshake",
            Connections::KeptAlive => "CPU us/request",
        };
        rows.extend(build_rows_with_unit(mode.name, unit, &figures, &[Some(mode.target)]));
    }
    Ok(rows)
}

/// Creates a self-signed certificate and its key with openssl. `kind` is the key's type for
/// `-newkey`.
fn create_certificate(folder: &Path, name: &str, kind: &str) -> Result<()> {
    ensure!(shell::find("openssl").is_some(), "openssl is missing: it makes the certificates");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=bench"]);
    command.args(["-addext", "subjectAltName=DNS:bench.test", "-newkey", kind]);
    if kind == "ec" {
        command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    }
    command.arg("-keyout").arg(folder.join(format!("{name}.key")));
    command.arg("-out").arg(folder.join(format!("{name}.pem")));
    shell::read_output(&mut command).map(drop)
}

fn measure_round(
    bench: &Bench,
    mode: &Mode,
    contender: &Contender,
    server: &Server,
    response: &str,
) -> Result<MeasuredRound> {
    let tls = contender.tls().context("a contender without TLS")?;
    let address = SocketAddr::from(([127, 0, 0, 1], tls.port));
    let mut problems = Vec::new();
    let reply = http::post(server.address, BLOCK_CALL)?;
    if reply.body != response.as_bytes() {
        problems.push("the response differs from the node's".to_owned());
    }
    // One second of load fills caches and pools. It is not measured.
    run_load(bench, mode, address, 1)?;
    let busy_secs_before = machine::core_busy_seconds(SERVER_CORE)?;
    let cpu_before = machine::cpu_time(server.group())?;
    let result = run_load(bench, mode, address, bench.seconds)?;
    let cpu = machine::cpu_time(server.group())?.saturating_sub(cpu_before);
    let busy_secs = machine::core_busy_seconds(SERVER_CORE)? - busy_secs_before;
    let others_secs = busy_secs - cpu.as_secs_f64();
    let handshakes = result.full + result.resumed;
    let mut check_kind = |count: u64, kind: &str| {
        let share = count as f64 / handshakes as f64;
        if share < KIND_SHARE_MIN {
            let percent = share * 100.0;
            problems.push(format!("only {percent:.1} % of the handshakes were {kind}"));
        }
    };
    let count = match mode.connections {
        Connections::Full => {
            check_kind(result.full, "full");
            handshakes
        }
        Connections::Resumed => {
            check_kind(result.resumed, "resumed");
            handshakes
        }
        Connections::KeptAlive => result.requests,
    };
    if result.failed_share > 0.0 {
        problems.push(format!("{:.3} % of the requests failed", result.failed_share * 100.0));
    }
    // Bytes are not counted, and errors are in `problems`.
    let summary = Summary { requests: count, bytes: 0, duration: result.duration, errors: [0; 5] };
    let disturbance = others_secs / result.duration.as_secs_f64();
    Ok((Round { cpu, disturbance, summary }, problems))
}

/// The result of a run of `weir load`.
struct LoadResult {
    requests: u64,
    /// Number of full handshakes.
    full: u64,
    /// Number of resumed handshakes.
    resumed: u64,
    /// Share of requests that failed.
    failed_share: f64,
    duration: Duration,
}

/// Runs `weir load` in this mode against the server at `address`.
fn run_load(bench: &Bench, mode: &Mode, address: SocketAddr, seconds: u64) -> Result<LoadResult> {
    let folder = ScratchFolder(create_scratch_folder("tls-load")?);
    let mut command = pinned_command(LOAD_CORE);
    command.arg(&bench.weir).args(["load", &format!("https://{address}/"), "--insecure"]);
    command.args(["-d", &format!("{seconds}s"), "--body", BLOCK_CALL, "--threads", "1"]);
    command.args(["--tls-version", mode.version, "--ciphers", mode.cipher, "--quiet"]);
    let (connections, resume) = match mode.connections {
        Connections::Full => (SHORT_CONNECTIONS, Some("off")),
        Connections::Resumed => (SHORT_CONNECTIONS, Some("on")),
        Connections::KeptAlive => (CONNECTIONS, None),
    };
    command.args(["-c", &connections.to_string()]);
    if let Some(resume) = resume {
        command.args(["--connections", "close", "--tls-resume", resume]);
    }
    let result = folder.0.join("result");
    let out = command.arg("--out").arg(&result).output().context("cannot run weir load")?;
    let json = fs::read_to_string(result.join("result.json"));
    // The verdict is ignored: the server's CPU time per request is valid even if the client is the
    // bottleneck.
    let json = json.with_context(|| {
        format!("weir load printed {}", String::from_utf8_lossy(&out.stderr).trim_end())
    })?;
    let json: Value = serde_json::from_str(&json)?;
    let number = |pointer: &str| {
        let value = json.pointer(pointer).and_then(Value::as_f64);
        value.with_context(|| format!("no number at {pointer} of result.json"))
    };
    Ok(LoadResult {
        requests: number("/wire/traffic/requests")? as u64,
        full: number("/wire/traffic/handshakes_full")? as u64,
        resumed: number("/wire/traffic/handshakes_resumed")? as u64,
        failed_share: number("/overall/failed_share")?,
        duration: Duration::from_secs(seconds),
    })
}
