//! CPU cost of TLS: full and resumed handshakes, and requests on keep-alive connections. The peer
//! is nginx with the same certificate, key, version and cipher.
//!
//! Both answer the call of the case `hit` with the same bytes: Weir from its cache, nginx by
//! `return`. `weir load` runs on the other core, with one request per connection where handshakes
//! are measured. Its result proves that the handshakes were full or resumed as intended. The cost
//! is the CPU time of the server's processes during the load, divided by handshakes or requests.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cost::{BLOCK_CALL, Figures, Measured, interleave, rows_with_unit};
use super::load::{Round, Summary};
use super::row::Row;
use super::server::{
    Contender, Folder, LOAD_CORE, SERVER_CORE, Server, free_ports, pinned, scratch,
};
use super::{Bench, CONNECTIONS, http, machine};
use crate::shell;

/// Number of concurrent connections if each carries one request. A rustls client stores 8 tickets
/// per server. With more connections, some would find no ticket for resumption.
const SHORT_CONNECTIONS: usize = 8;
/// Minimum share of handshakes of the measured kind. It is below 1, because the first handshakes
/// are always full.
const KIND_SHARE_MIN: f64 = 0.98;

/// TLS settings of one measurement.
#[derive(Debug, Clone, Copy)]
struct Mode {
    name: &'static str,
    version: &'static str,
    cipher: &'static str,
    key: Key,
    /// True if each connection resumes a session, false if each makes a full handshake. In both
    /// cases a connection carries one request. `None` keeps connections alive.
    resume: Option<bool>,
    /// Largest ratio of our CPU time to nginx's. It is [`HANDSHAKE_RATIO_MAX`] if handshakes are
    /// measured.
    target: f64,
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Rsa,
    P256,
}

const CIPHER_TLS12: &str = "ECDHE-RSA-AES256-GCM-SHA384";
const CIPHER_TLS13: &str = "TLS_AES_256_GCM_SHA384";
/// The target of 1.2 times as many handshakes per CPU second, as a ratio of CPU times.
const HANDSHAKE_RATIO_MAX: f64 = 1.0 / 1.2;

const MODES: [Mode; 5] = [
    Mode {
        name: "1.2 RSA-2048, full",
        version: "1.2",
        cipher: CIPHER_TLS12,
        key: Key::Rsa,
        resume: Some(false),
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.2 RSA-2048, resumed",
        version: "1.2",
        cipher: CIPHER_TLS12,
        key: Key::Rsa,
        resume: Some(true),
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, full",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        resume: Some(false),
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, resumed",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        resume: Some(true),
        target: HANDSHAKE_RATIO_MAX,
    },
    Mode {
        name: "1.3 P-256, kept",
        version: "1.3",
        cipher: CIPHER_TLS13,
        key: Key::P256,
        resume: None,
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
    let answer = String::from_utf8(http::post(backend.address, BLOCK_CALL)?.body)?;
    let files = Folder(scratch("tls")?);
    for (name, kind) in [("rsa", "rsa:2048"), ("p256", "ec")] {
        certificate(&files.0, name, kind)?;
    }
    let mut rows = Vec::new();
    for mode in &MODES {
        let name = match mode.key {
            Key::Rsa => "rsa",
            Key::P256 => "p256",
        };
        let tls = || -> Result<TlsSettings> {
            Ok(TlsSettings {
                port: free_ports(1)?[0].port(),
                version: mode.version,
                cipher: mode.cipher,
                chain: files.0.join(format!("{name}.pem")),
                key: files.0.join(format!("{name}.key")),
            })
        };
        let contenders = [
            Contender::WeirTls { program: bench.weir.clone(), nodes: nodes.clone(), tls: tls()? },
            Contender::NginxTls { answer: answer.clone(), tls: tls()? },
        ];
        let figures: Vec<Figures> = interleave(bench, mode.name, &contenders, |contender| {
            let server = Server::start(contender, BLOCK_CALL)?;
            measure_round(bench, mode, contender, &server, &answer)
        })?;
        let unit = if mode.resume.is_some() { "CPU us/handshake" } else { "CPU us/request" };
        rows.extend(rows_with_unit(mode.name, unit, &figures, &[Some(mode.target)]));
    }
    Ok(rows)
}

fn certificate(folder: &Path, name: &str, kind: &str) -> Result<()> {
    ensure!(shell::find("openssl").is_some(), "openssl is missing: it makes the certificates");
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=bench"]);
    command.args(["-addext", "subjectAltName=DNS:bench.test", "-newkey", kind]);
    if kind == "ec" {
        command.args(["-pkeyopt", "ec_paramgen_curve:P-256"]);
    }
    command.arg("-keyout").arg(folder.join(format!("{name}.key")));
    command.arg("-out").arg(folder.join(format!("{name}.pem")));
    shell::output(&mut command).map(drop)
}

fn measure_round(
    bench: &Bench,
    mode: &Mode,
    contender: &Contender,
    server: &Server,
    answer: &str,
) -> Result<Measured> {
    let tls = contender.tls().context("a contender without TLS")?;
    let target = SocketAddr::from(([127, 0, 0, 1], tls.port));
    let mut problems = Vec::new();
    let reply = http::post(server.address, BLOCK_CALL)?;
    if reply.body != answer.as_bytes() {
        problems.push("the response differs from the node's".to_owned());
    }
    // This load fills caches and pools. It is not measured.
    load(bench, mode, target, 1)?;
    let (core, cpu) = (machine::core_seconds(SERVER_CORE)?, machine::cpu_time(server.group())?);
    let result = load(bench, mode, target, bench.seconds)?;
    let cpu = machine::cpu_time(server.group())?.saturating_sub(cpu);
    let others = machine::core_seconds(SERVER_CORE)? - core - cpu.as_secs_f64();
    let count = match mode.resume {
        None => result.requests,
        Some(resume) => {
            let handshakes = result.full + result.resumed;
            let measured = if resume { result.resumed } else { result.full };
            let share = measured as f64 / handshakes as f64;
            if share < KIND_SHARE_MIN {
                let percent = share * 100.0;
                let kind = if resume { "resumed" } else { "full" };
                problems.push(format!("only {percent:.1} % of the handshakes were {kind}"));
            }
            handshakes
        }
    };
    if result.failed_share > 0.0 {
        problems.push(format!("{:.3} % of the requests failed", result.failed_share * 100.0));
    }
    let summary = Summary { requests: count, bytes: 0, duration: result.duration, errors: [0; 5] };
    let disturbance = others / result.duration.as_secs_f64();
    Ok((Round { cpu, disturbance, summary }, problems))
}

/// The result of a run of `weir load`.
struct LoadResult {
    requests: u64,
    full: u64,
    resumed: u64,
    failed_share: f64,
    duration: Duration,
}

fn load(bench: &Bench, mode: &Mode, target: SocketAddr, seconds: u64) -> Result<LoadResult> {
    let folder = Folder(scratch("tls-load")?);
    let mut command = pinned(LOAD_CORE);
    command.arg(&bench.weir).args(["load", &format!("https://{target}/"), "--insecure"]);
    command.args(["-d", &format!("{seconds}s"), "--body", BLOCK_CALL, "--threads", "1"]);
    command.args(["--tls-version", mode.version, "--ciphers", mode.cipher, "--quiet"]);
    let connections = if mode.resume.is_some() { SHORT_CONNECTIONS } else { CONNECTIONS };
    command.args(["-c", &connections.to_string()]);
    if let Some(resume) = mode.resume {
        let resume = if resume { "on" } else { "off" };
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
