//! `weir serve`: runs the gateway until an operator stops it.
//!
//! `gateway::runtime` implements the gateway. This file prints the listen addresses and sets up the
//! log. It handles the operator's requests (`serve/signals.rs`): to stop, to reload the
//! configuration, or to hand over to a new process (`serve/handover.rs`).

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::{AddrParseError, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::log::{Level, Log, LogFormat};
use gateway::config::{AdminOverride, Config, Overrides};
use gateway::runtime::{Gateway, Sockets};
use settings::Diagnostics;
use tracing_subscriber::EnvFilter;

use crate::exit_code::EXIT_FAULTY;
use crate::source::{self, ConfigSource};

mod handover;
mod index;
mod notify;
mod signals;

use handover::OldProcess;
use index::Follower;
use signals::{OperatorRequest, OperatorRequests};

/// Run the gateway
///
/// With --upstream it needs no file: one chain, cached and balanced, with default limits. A
/// configuration file sets everything else.
///
/// SIGINT or SIGTERM stops it gracefully: it reports that it is not ready, accepts no new
/// connections, and completes the requests in flight. A second signal stops it at once. SIGHUP
/// reloads the file, as `weir reload` does; with a faulty file the old configuration stays in use.
/// SIGUSR2 hands the listening sockets to a new process of the program on disk, as `weir upgrade`
/// does.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir serve --upstream http://127.0.0.1:8545
  weir serve --upstream http://10.0.0.1:8545 --upstream http://10.0.0.2:8545 --listen 0.0.0.0:8645
  weir serve gateway.toml
  PROVIDER_KEY=secret weir serve examples/backup.toml

Then:
  curl -s http://127.0.0.1:8645 -H 'content-type: application/json' \\
    -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_blockNumber\",\"params\":[]}'

Exit codes: 0 stopped by a signal; 1 an address is taken or a thread failed; 2 faulty configuration
or arguments.")]
pub(crate) struct Serve {
    #[command(flatten)]
    source: ConfigSource,

    /// Address for clients; :8645 is port 8645 of all IPv4 addresses [default: 127.0.0.1:8645, or the file's server.listen]
    #[arg(long, value_name = "[IP]:PORT", value_parser = parse_address)]
    listen: Option<SocketAddr>,

    /// Address of metrics and status, or off [default: 127.0.0.1:8646, or the file's server.admin]
    #[arg(long, value_name = "IP:PORT|off")]
    admin: Option<OptionalAddress>,

    /// Serving threads [default: the number of cores, or the file's server.threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Send every call to an upstream: no cache, no coalescing of equal calls
    #[arg(long)]
    no_cache: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let old_process = OldProcess::connect().context("cannot take over from another process")?;
        let config = match self.read_config() {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                if let Some(old_process) = old_process {
                    old_process.report_failure(&format!("the configuration is faulty\n{faults}"));
                }
                return Ok(ExitCode::from(EXIT_FAULTY));
            }
        };
        init_log(&config.log);
        let program =
            handover::program_path().context("cannot find the path of the running program")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The signal handlers are installed before the gateway starts, so that no signal is lost.
        let requests = runtime.block_on(async { OperatorRequests::new(self.source.file()) })?;
        let (gateway, follower) = match start(config, old_process.as_ref()) {
            Ok(started) => started,
            Err(error) => {
                if let Some(old_process) = old_process {
                    old_process.report_failure(&format!("{error:#}"));
                }
                return Err(error);
            }
        };
        match old_process {
            // The old process notifies the service manager, which knows only that process.
            Some(old_process) => old_process.report_ready(),
            None => notify::send("READY=1"),
        }
        let server = Server { serve: self, runtime, requests, gateway, follower, program };
        Ok(server.run())
    }

    /// Reads the configuration and overrides it with the command-line arguments.
    fn read_config(&self) -> Result<Config, Diagnostics> {
        let config = self.source.read()?;
        Ok(config.with_overrides(&Overrides {
            listen: self.listen,
            admin: match self.admin {
                None => AdminOverride::Keep,
                Some(OptionalAddress::Off) => AdminOverride::Off,
                Some(OptionalAddress::Listen(address)) => AdminOverride::Listen(address),
            },
            threads: self.threads.map(usize::from),
            no_cache: self.no_cache,
        }))
    }
}

/// Starts the gateway and its index. Uses the listening sockets of the old process, if this process
/// replaces one.
fn start(config: Config, old_process: Option<&OldProcess>) -> Result<(Gateway, Option<Follower>)> {
    log_warnings(&config);
    let sockets = match old_process {
        Some(old_process) => {
            old_process.receive_sockets().context("cannot take over the listening sockets")?
        }
        None => Sockets::default(),
    };
    let (summary, threads) = (source::summarize(&config), config.server.threads);
    let (readers, follower) = match index::start(&config)? {
        Some((readers, follower)) => (Some(readers as Arc<dyn gateway::index::Index>), follower),
        None => (None, None),
    };
    let gateway = Gateway::start_on(config, sockets, readers)?;
    announce(&gateway, threads, &summary);
    Ok((gateway, follower))
}

fn has_expired_certificate(config: &Config) -> bool {
    config.listen_tls.as_ref().is_some_and(|tls| tls.has_expired)
}

fn log_warnings(config: &Config) {
    for warning in &config.warnings.list {
        tracing::warn!(key = warning.key, "{}", warning.message);
    }
}

/// A running gateway with the operator's requests to it.
struct Server {
    serve: Serve,
    runtime: tokio::runtime::Runtime,
    requests: OperatorRequests,
    gateway: Gateway,
    /// The thread that syncs the index. `None` if `index.follow` is off or there is no index.
    follower: Option<Follower>,
    /// The path of the program that an upgrade starts.
    program: PathBuf,
}

impl Server {
    /// Handles the operator's requests until the gateway stops.
    fn run(mut self) -> ExitCode {
        loop {
            let config = self.gateway.config();
            self.requests.watch_files(&config.files);
            let reload_on_change = config.server.reload_on_change;
            match self.runtime.block_on(self.requests.next(reload_on_change)) {
                OperatorRequest::Reload => self.reload(),
                OperatorRequest::Upgrade => {
                    if self.upgrade() {
                        return self.stop(Gateway::stop_replaced);
                    }
                }
                OperatorRequest::Stop => {
                    notify::send("STOPPING=1");
                    tracing::info!("stopping: requests in flight are completed");
                    return self.stop(Gateway::stop);
                }
            }
        }
    }

    fn reload(&mut self) {
        if self.serve.source.file().is_none() {
            let reason = "there is no file to reload: the upstreams were given as arguments";
            tracing::warn!("{reason}");
            return self.gateway.refuse_reload(reason);
        }
        // The gateway records the state of the files before it reads them. So a change during the
        // read causes another reload.
        self.requests.record_file_states();
        match self.serve.read_config() {
            // A certificate that was already expired before the reload does not prevent the reload.
            Ok(config)
                if has_expired_certificate(&config)
                    && !has_expired_certificate(&self.gateway.config()) =>
            {
                let reason = "a certificate in it has expired, and clients would refuse it";
                self.gateway.refuse_reload(reason);
                tracing::error!("the old configuration stays in use: {reason}");
            }
            Ok(config) => {
                log_warnings(&config);
                let changes = self.gateway.reload(config);
                tracing::info!(changes = changes.len(), "the new configuration is in use");
                for change in &changes {
                    tracing::info!("{change}");
                }
            }
            Err(faults) => {
                self.gateway.refuse_reload(&faults.to_string());
                tracing::error!(
                    "the new configuration is faulty; the old one stays in use\n{faults}"
                );
            }
        }
    }

    /// Starts a new process of the program. Returns true if the new process serves.
    fn upgrade(&self) -> bool {
        let program: &Path = &self.program;
        tracing::info!(program = %program.display(), "handing over to a new process");
        let sockets = self.gateway.sockets().map_err(|error| error.to_string());
        match sockets.and_then(|sockets| handover::hand_over(program, &sockets)) {
            Ok(id) => {
                // Without MAINPID, systemd would end the service together with this process.
                notify::send(&format!("MAINPID={id}\nREADY=1"));
                tracing::info!(process = id, "a new process serves; this one ends");
                true
            }
            Err(reason) => {
                self.gateway.refuse_upgrade(&reason);
                tracing::error!("no new process could take over; this one continues\n{reason}");
                false
            }
        }
    }

    /// Stops the gateway with `stop_gateway`, and waits until it has stopped. A second stop signal
    /// ends this wait at once.
    fn stop(self, stop_gateway: impl FnOnce(Gateway) + Send + 'static) -> ExitCode {
        let Server { runtime, mut requests, gateway, follower, .. } = self;
        let (stopped_tx, stopped_rx) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // The follower stops while the gateway stops, because the follower may be waiting for
            // an upstream that does not respond.
            if let Some(follower) = &follower {
                follower.stop();
            }
            stop_gateway(gateway);
            drop(follower);
            // The send fails if a second signal has already ended the wait.
            let _ = stopped_tx.send(());
        });
        let reload_on_change = false;
        let second_signal =
            async { while requests.next(reload_on_change).await != OperatorRequest::Stop {} };
        runtime.block_on(async {
            tokio::select! {
                _ = stopped_rx => ExitCode::SUCCESS,
                () = second_signal => ExitCode::FAILURE,
            }
        })
    }
}

/// Parses an address to listen on. Without an IP address it is the port of all IPv4 addresses.
fn parse_address(text: &str) -> Result<SocketAddr, AddrParseError> {
    match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}").parse(),
        None => text.parse(),
    }
}

/// The value of an option: an address to listen on, or `off`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OptionalAddress {
    Off,
    Listen(SocketAddr),
}

impl FromStr for OptionalAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<OptionalAddress, &'static str> {
        if text == "off" {
            return Ok(OptionalAddress::Off);
        }
        let address =
            parse_address(text).map_err(|_| "neither an ip address with a port nor off")?;
        Ok(OptionalAddress::Listen(address))
    }
}

fn announce(gateway: &Gateway, threads: usize, summary: &str) {
    let plural = if threads == 1 { "" } else { "s" };
    let mut text = String::new();
    if gateway.listen_tls != Some(gateway.listen) {
        let _ =
            writeln!(text, "weir listens on http://{} ({threads} thread{plural})", gateway.listen);
    }
    if let Some(listen) = gateway.listen_tls {
        let _ = writeln!(text, "weir listens on https://{listen} ({threads} thread{plural})");
    }
    if let Some(admin) = gateway.admin {
        let _ = writeln!(text, "status page and metrics on http://{admin}");
    }
    if let Some(health) = gateway.health {
        let _ = writeln!(text, "health, readiness and metrics on http://{health}");
    }
    text.push_str(summary);
    for reason in gateway.unready_reasons() {
        let _ = writeln!(text, "not ready: {reason}");
    }
    // The gateway serves even if standard output is closed.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Sets up the log, which is written to standard error.
fn init_log(log: &Log) {
    // The logs of these libraries are off, because the gateway reports the same events itself. It
    // logs each state change of Redis once. It counts failed TLS handshakes in a metric, but rustls
    // would log every malformed handshake.
    let filter = EnvFilter::new(format!("{},fred=off,rustls=off", Level::name_of(log.level)));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // `try_init` fails only on a second call, and `run` calls this function once.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
