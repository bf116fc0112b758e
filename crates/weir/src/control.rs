//! `weir reload` and `weir upgrade`: signal a running gateway and report the outcome.
//!
//! The command reads the process id from the admin address, and verifies that this process runs on
//! the same machine. Then it sends a signal to the process, and polls `/status` until the outcome
//! is known.
//!
//! The kernel accepts signals only from the process's user and root. The admin address is
//! read-only, because every user of the machine can reach it, and so can every page in a browser on
//! the machine. `weir cordon` (`cordon.rs`) sends its command to a socket that also accepts only
//! these users.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gateway::admin::process::start_ticks;
use gateway::config::Config;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::exit_code::EXIT_FAULTY;

/// Default admin address of a gateway.
pub(crate) const DEFAULT_ADMIN: &str = "127.0.0.1:8646";
/// Timeout of one request for the status.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two requests for the status.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum size of a status. A status has a few hundred bytes per upstream, and a gateway may have
/// thousands of upstreams.
const STATUS_BYTES_MAX: u64 = 64 << 20;

/// Reload the configuration of a running gateway
///
/// Checks the file if you name one, signals the gateway at the admin address, waits until the new
/// configuration is in use, and prints the changes. If the file is faulty, the errors are printed
/// and the old configuration stays in use. Must run on the same machine, as the same user or root:
/// it sends SIGHUP to the process that the admin address reports.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir reload
  weir reload gateway.toml
  weir reload --admin 127.0.0.1:9646

Exit codes: 0 the new configuration is in use; 1 no gateway was found, or it does not respond; 2 the
configuration is faulty, and the old one stays in use.")]
pub(crate) struct Reload {
    #[command(flatten)]
    target: Target,
}

/// Replace a running gateway by a new process of the program on disk
///
/// The new process inherits the listening sockets, so that no connection is refused. Once it
/// serves, the old process completes its requests in flight and ends. If the new process cannot
/// serve, the old one continues. Must run on the same machine, as the same user or root: it sends
/// SIGUSR2 to the process that the admin address reports.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  install weir /usr/local/bin/weir && weir upgrade
  weir upgrade --admin 127.0.0.1:9646

Exit codes: 0 a new process serves; 1 no gateway was found, or the new process could not start and
the old one continues; 2 the configuration is faulty.")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    target: Target,
}

/// The gateway to signal.
#[derive(Args)]
struct Target {
    /// Configuration file, to check first and to read the admin address from
    #[arg(value_name = "GATEWAY.TOML")]
    file: Option<PathBuf>,

    /// Admin address of the gateway [default: 127.0.0.1:8646, or the file's server.admin]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,

    /// Timeout in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: u64,
}

impl Reload {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(gateway) = self.target.find()? else { return Ok(ExitCode::from(EXIT_FAULTY)) };
        gateway.send(Signal::HUP)?;
        let reload_count = |status: &Value| {
            let config = &status["config"];
            count(&config["reloads_applied"]) + count(&config["reloads_refused"])
        };
        let old_count = reload_count(&gateway.status);
        let status =
            gateway.wait_for(self.target.wait, |status| reload_count(status) > old_count)?;
        let reload = &status["config"]["last_reload"];
        if reload["applied"] != true {
            eprintln!("{}", reload["why"].as_str().unwrap_or_default().trim_end());
            eprintln!("refused: the old configuration stays in use");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        for change in reload["changes"].as_array().into_iter().flatten() {
            println!("{}", change.as_str().unwrap_or_default());
        }
        println!("in use: configuration {}", count(&status["config"]["generation"]));
        Ok(ExitCode::SUCCESS)
    }
}

impl Upgrade {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(gateway) = self.target.find()? else { return Ok(ExitCode::from(EXIT_FAULTY)) };
        gateway.send(Signal::USR2)?;
        let failures = |status: &Value| count(&status["config"]["upgrades_failed"]);
        let old_failures = failures(&gateway.status);
        let is_new_process = |status: &Value| status["process"] != gateway.status["process"];
        let status = gateway.wait_for(self.target.wait, |status| {
            is_new_process(status) || failures(status) > old_failures
        })?;
        if !is_new_process(&status) {
            eprintln!("{}", status["config"]["upgrade_fault"].as_str().unwrap_or_default());
            eprintln!("the old process continues");
            return Ok(ExitCode::FAILURE);
        }
        let version = status["version"].as_str().unwrap_or_default();
        println!("process {} serves, version {version}", count(&status["process"]["id"]));
        Ok(ExitCode::SUCCESS)
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A gateway that responds at its admin address.
struct RunningGateway {
    admin: SocketAddr,
    /// The status before the signal.
    status: Value,
}

impl Target {
    /// Finds the gateway. Returns `None` if the configuration file is faulty, after printing its
    /// errors.
    fn find(&self) -> Result<Option<RunningGateway>> {
        let mut configured_admin = DEFAULT_ADMIN.parse().ok();
        if let Some(file) = &self.file {
            match Config::from_file(file) {
                Ok(config) => configured_admin = config.server.admin,
                Err(faults) => {
                    eprint!("{faults}");
                    return Ok(None);
                }
            }
        }
        let admin = self.admin.or(configured_admin).context(
            "the file turns the admin address off; send the signal to the process yourself",
        )?;
        let status = read_status_of_gateway(admin)?;
        Ok(Some(RunningGateway { admin, status }))
    }
}

impl RunningGateway {
    /// Sends the signal to the process that responds at the admin address. Fails if the process
    /// with the same id on this machine is not the gateway's.
    fn send(&self, signal: Signal) -> Result<()> {
        let id = count(&self.status["process"]["id"]);
        let reported_start = self.status["process"]["start_ticks"].as_u64();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let on_other_machine = || {
            format!(
                "the gateway at {} is process {id} of another machine or container; \
                 send the signal there",
                self.admin
            )
        };
        let pid = pid.with_context(on_other_machine)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).with_context(on_other_machine)?;
        // The descriptor refers to one process even if its id is reused. So the start time is
        // compared after the descriptor is open.
        let local_start = u32::try_from(id).ok().and_then(start_ticks);
        ensure!(local_start.is_some() && local_start == reported_start, on_other_machine());
        pidfd_send_signal(&process, signal)
            .with_context(|| format!("cannot send a signal to process {id}"))
    }

    /// Polls the status until the condition holds, and returns that status.
    fn wait_for(&self, seconds: u64, condition: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            // A request may fail while the new process replaces the old one.
            if let Ok(status) = read_status(self.admin)
                && condition(&status)
            {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!("the gateway has not acted on the signal within {seconds} s; see its log");
            }
            std::thread::park_timeout(POLL_INTERVAL);
        }
    }
}

/// Requests `/status` from the admin address. The error message names the option that sets the
/// address.
pub(crate) fn read_status_of_gateway(admin: SocketAddr) -> Result<Value> {
    read_status(admin).with_context(|| {
        format!("no gateway responds at {admin}; set its admin address with --admin")
    })
}

/// Requests `/status` from the admin address.
pub(crate) fn read_status(admin: SocketAddr) -> Result<Value> {
    let (status_line, body) = get(admin, "/status")?;
    ensure!(status_line.starts_with("HTTP/1.1 200"), "it responds {status_line}");
    let status: Value = serde_json::from_str(&body).context("its status is not JSON")?;
    ensure!(
        status["process"]["id"].is_u64(),
        "it is not a gateway, or a gateway of an older version"
    );
    Ok(status)
}

/// Requests a page from the admin or health address. Returns the status line and the body.
pub(crate) fn get(address: SocketAddr, path: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect_timeout(&address, STATUS_TIMEOUT)?;
    stream.set_read_timeout(Some(STATUS_TIMEOUT))?;
    stream.set_write_timeout(Some(STATUS_TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut response = String::new();
    stream.take(STATUS_BYTES_MAX).read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").context("not an HTTP response")?;
    Ok((head.lines().next().unwrap_or("").to_owned(), body.to_owned()))
}
