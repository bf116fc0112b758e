//! `weir serve`: runs the gateway until it is told to stop.
//!
//! The gateway itself is `gateway::runtime`; this prints what listens where, writes the log, and
//! does what signals ask for (`serve/signals.rs`): stop, read the configuration anew, hand over to
//! a new process (`serve/handover.rs`).

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use gateway::config::log::{Level, Log, LogFormat};
use gateway::config::{Config, Overrides};
use gateway::runtime::{Gateway, Sockets};
use settings::Diagnostics;
use tracing_subscriber::EnvFilter;

use crate::FAULTY;
use crate::source::{self, Source};

mod handover;
mod index;
mod notify;
mod signals;

use handover::Former;
use index::Follower;
use signals::{Wish, Wishes};

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
    source: Source,

    /// Address for clients [default: 127.0.0.1:8645, or the file's server.listen]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Address of metrics and status, or off [default: 127.0.0.1:8646, or the file's server.admin]
    #[arg(long, value_name = "IP:PORT|off", value_parser = admin_address)]
    admin: Option<Admin>,

    /// Serving threads [default: the number of cores, or the file's server.threads]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Send every call to an upstream: no cache, no coalescing of equal calls
    #[arg(long)]
    no_cache: bool,
}

impl Serve {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let former = Former::find().context("cannot take over from another process")?;
        let config = match self.read() {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                if let Some(former) = former {
                    former.failed(&format!("the configuration is faulty\n{faults}"));
                }
                return Ok(ExitCode::from(FAULTY));
            }
        };
        write_log(&config.log);
        let program = handover::program().context("cannot tell which program this is")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before the gateway starts, so that no signal is lost in between.
        let wishes = runtime.block_on(async { Wishes::new(self.source.file()) })?;
        let (gateway, follower) = match start(config, former.as_ref()) {
            Ok(started) => started,
            Err(error) => {
                if let Some(former) = former {
                    former.failed(&format!("{error:#}"));
                }
                return Err(error);
            }
        };
        match former {
            Some(former) => former.ready(),
            // Of one that takes over, the one that the manager knows tells it.
            None => notify::tell("READY=1"),
        }
        let life = Life { serve: self, runtime, wishes, gateway, follower, program };
        Ok(life.run())
    }

    /// The configuration with what the command line says put over it.
    fn read(&self) -> Result<Config, Diagnostics> {
        let config = self.source.read()?;
        Ok(config.overridden(&Overrides {
            listen: self.listen,
            admin: self.admin.map(|admin| admin.0),
            threads: self.threads.map(usize::from),
            no_cache: self.no_cache,
        }))
    }
}

fn start(config: Config, former: Option<&Former>) -> Result<(Gateway, Option<Follower>)> {
    warn(&config);
    let sockets = match former {
        Some(former) => former.sockets().context("cannot take over the listening sockets")?,
        None => Sockets::default(),
    };
    let (summary, threads) = (source::summary(&config), config.server.threads);
    let index = index::start(&config)?;
    let (readers, follower) = index.unzip();
    let readers = readers.map(|readers| readers as Arc<dyn gateway::index::Index>);
    let gateway = Gateway::start_on(config, sockets, readers)?;
    announce(&gateway, threads, &summary);
    Ok((gateway, follower.flatten()))
}

fn has_ended_certificate(config: &Config) -> bool {
    config.listen_tls.as_ref().is_some_and(|tls| tls.ended)
}

fn warn(config: &Config) {
    for warning in &config.warnings.list {
        tracing::warn!(key = warning.key, "{}", warning.message);
    }
}

/// A gateway that serves, and what it takes to do what it is asked for.
struct Life {
    serve: Serve,
    runtime: tokio::runtime::Runtime,
    wishes: Wishes,
    gateway: Gateway,
    /// Syncs the index, where the gateway does.
    follower: Option<Follower>,
    program: PathBuf,
}

impl Life {
    fn run(mut self) -> ExitCode {
        loop {
            let config = self.gateway.config();
            self.wishes.follow(&config.files);
            let follow = config.server.reload_on_change;
            match self.runtime.block_on(self.wishes.next(follow)) {
                Wish::Reload => self.reload(),
                Wish::Upgrade => {
                    if self.upgrade() {
                        return self.stop(Gateway::stop_replaced);
                    }
                }
                Wish::Stop => {
                    notify::tell("STOPPING=1");
                    tracing::info!("stopping: requests that have begun are answered");
                    return self.stop(Gateway::stop);
                }
            }
        }
    }

    fn reload(&mut self) {
        if self.serve.source.file().is_none() {
            let why = "there is no file to read anew: the nodes were given as arguments";
            tracing::warn!("{why}");
            return self.gateway.refuse_reload(why);
        }
        // Before it is read, so that what changes meanwhile is news.
        self.wishes.files_are_read();
        match self.serve.read() {
            Ok(config)
                if has_ended_certificate(&config)
                    && !has_ended_certificate(&self.gateway.config()) =>
            {
                let why = "a certificate in it has ended, and clients would refuse it";
                self.gateway.refuse_reload(why);
                tracing::error!("the old configuration stays: {why}");
            }
            Ok(config) => {
                warn(&config);
                let changes = self.gateway.reload(config);
                tracing::info!(changes = changes.len(), "the new configuration is in use");
                for change in &changes {
                    tracing::info!("{change}");
                }
            }
            Err(faults) => {
                self.gateway.refuse_reload(&faults.to_string());
                tracing::error!("the new configuration is faulty; the old one stays\n{faults}");
            }
        }
    }

    /// Whether another process serves in this one's place.
    fn upgrade(&self) -> bool {
        let program: &Path = &self.program;
        tracing::info!(program = %program.display(), "handing over to a new process");
        let sockets = self.gateway.sockets().map_err(|error| error.to_string());
        match sockets.and_then(|sockets| handover::hand_over(program, &sockets)) {
            Ok(id) => {
                // Under systemd this is the process that it would else take for the whole service.
                notify::tell(&format!("MAINPID={id}\nREADY=1"));
                tracing::info!(process = id, "a new process serves; this one ends");
                true
            }
            Err(why) => {
                self.gateway.refuse_upgrade(&why);
                tracing::error!("no new process could take over; this one goes on\n{why}");
                false
            }
        }
    }

    /// Ends gracefully, or at once at a further signal.
    fn stop(self, end: impl FnOnce(Gateway) + Send + 'static) -> ExitCode {
        let Life { runtime, mut wishes, gateway, follower, .. } = self;
        let (done, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // It ends beside the gateway: its nodes may be silent.
            if let Some(follower) = &follower {
                follower.stop();
            }
            end(gateway);
            drop(follower);
            // Nobody listens if a second signal came first.
            let _ = done.send(());
        });
        let told_again = async { while wishes.next(false).await != Wish::Stop {} };
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => ExitCode::SUCCESS,
                () = told_again => ExitCode::FAILURE,
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
    text.push_str(summary);
    // Whoever started it may not read what it prints; that is no reason to stop.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes events to standard error from here on.
fn write_log(log: &Log) {
    // The gateway reports itself what these libraries log: changes of Redis once, with what follows
    // from them, and TLS handshakes that fail as a metric. rustls writes a line for each malformed
    // one.
    let filter = EnvFilter::new(format!("{},fred=off,rustls=off", Level::word(log.level)));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // Fails only if a log is being written already, and this is called once.
    let _ = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
