//! `weir serve`: runs the gateway until it is told to stop.
//!
//! The gateway itself is `gateway::runtime`; this prints what listens where, writes the log and
//! waits for the signal.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use gateway::config::{Log, LogFormat, Overrides};
use gateway::runtime::Gateway;

use crate::FAULTY;
use crate::source::{self, Source};
use crate::stop::StopSignals;

/// Run the gateway
///
/// With URLs it needs no file: one chain, cached, balanced, every limit at its default. A file says
/// everything else. SIGINT or SIGTERM stops it gracefully: new connections are refused, requests
/// that have begun are answered. A second signal stops it at once.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir serve --upstream http://127.0.0.1:8545
  weir serve --upstream http://10.0.0.1:8545 --upstream http://10.0.0.2:8545 --listen 0.0.0.0:8645
  weir serve gateway.toml
  PROVIDER_KEY=... weir serve examples/backup.toml

Then:
  curl -s http://127.0.0.1:8645 -H 'content-type: application/json' \\
    -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_blockNumber\",\"params\":[]}'

Exit codes: 0 stopped by a signal; 1 an address is taken or a thread failed; 2 faulty configuration
or arguments.")]
pub(crate) struct Serve {
    #[command(flatten)]
    source: Source,

    /// Where clients connect [default: 127.0.0.1:8645, or the file's server.listen]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Where metrics and status are served, or off [default: 127.0.0.1:8646, or the file's
    /// server.admin]
    #[arg(long, value_name = "IP:PORT|off", value_parser = admin_address)]
    admin: Option<Admin>,

    /// Serving threads [default: the number of cores, or the file's server.threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Send every call to a node: no cache, no joining of equal calls
    #[arg(long)]
    no_cache: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let config = match self.source.read() {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                return Ok(ExitCode::from(FAULTY));
            }
        };
        let threads = self.threads.map(usize::from);
        let config = config.overridden(&Overrides {
            listen: self.listen,
            admin: self.admin.map(|admin| admin.0),
            threads,
            no_cache: self.no_cache,
        });
        write_log(&config.log);
        for warning in &config.warnings.list {
            tracing::warn!(key = warning.key, "{}", warning.message);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before the gateway starts, so that no signal is lost in between.
        let mut stop = runtime.block_on(async { StopSignals::new() })?;
        let summary = source::summary(&config);
        let threads = config.threads;
        let gateway = Gateway::start(config)?;
        announce(&gateway, threads, &summary);
        runtime.block_on(stop.next());
        tracing::info!("stopping: requests that have begun are answered");
        let (done, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            gateway.stop();
            // Nobody listens if a second signal came first.
            let _ = done.send(());
        });
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => Ok(ExitCode::SUCCESS),
                () = stop.next() => Ok(ExitCode::FAILURE),
            }
        })
    }
}

/// An address, or none for `off`.
#[derive(Clone, Copy)]
struct Admin(Option<SocketAddr>);

fn admin_address(text: &str) -> Result<Admin, String> {
    if text == "off" {
        return Ok(Admin(None));
    }
    let address = text.parse().map_err(|_| "neither an ip address with a port nor off")?;
    Ok(Admin(Some(address)))
}

fn announce(gateway: &Gateway, threads: usize, summary: &str) {
    let plural = if threads == 1 { "" } else { "s" };
    let mut text =
        format!("weir listens on http://{} ({threads} thread{plural})\n", gateway.listen);
    if let Some(admin) = gateway.admin {
        let _ = writeln!(text, "status page and metrics on http://{admin}");
    }
    text.push_str(summary);
    // Whoever started it may not read what it prints; that is no reason to stop.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes events to standard error from here on.
fn write_log(log: &Log) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(log.level)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // Fails only if a log is being written already, and this is called once.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
