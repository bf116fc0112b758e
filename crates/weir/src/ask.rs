//! `weir reload` and `weir upgrade`: ask a running gateway and say what came of it.
//!
//! Who may ask is the system's business: the command finds the process by the admin address, makes
//! sure that it is the one that answers there, and sends it a signal, which the system lets only
//! its user and root do. The admin address itself stays without any request that changes something,
//! since everybody on the machine, and every page in a browser on it, can reach it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use gateway::admin::process::start_ticks;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::{FAULTY, source};

/// Where a gateway's admin address is unless its file says otherwise.
const ADMIN: &str = "127.0.0.1:8646";
/// Time for one look at the status.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest status: one of thousands of nodes has some hundred bytes for each.
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

Exit codes: 0 the new configuration is in use; 1 no gateway was found, or it does not answer; 2 the
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

Exit codes: 0 a new process serves; 1 none does: no gateway was found, or the new process could not
start, and the old one goes on; 2 the configuration is faulty.")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    target: Target,
}

/// Which gateway is asked.
#[derive(Args)]
struct Target {
    /// Configuration file, to check first and to read the admin address from
    #[arg(value_name = "GATEWAY.TOML")]
    file: Option<PathBuf>,

    /// Admin address of the gateway [default: 127.0.0.1:8646, or the file's server.admin]
    #[arg(long, value_name = "IP:PORT")]
    admin: Option<SocketAddr>,

    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: u64,
}

impl Reload {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(gateway) = self.target.find()? else { return Ok(ExitCode::from(FAULTY)) };
        gateway.send(Signal::HUP)?;
        let told = |status: &Value| {
            let config = &status["config"];
            count(&config["reloads_applied"]) + count(&config["reloads_refused"])
        };
        let before = told(&gateway.status);
        let status = gateway.until(self.target.wait, |status| told(status) > before)?;
        let reload = &status["config"]["last_reload"];
        if reload["applied"] != true {
            eprintln!("{}", reload["why"].as_str().unwrap_or_default().trim_end());
            eprintln!("refused: the old configuration stays in use");
            return Ok(ExitCode::from(FAULTY));
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
        let Some(gateway) = self.target.find()? else { return Ok(ExitCode::from(FAULTY)) };
        gateway.send(Signal::USR2)?;
        let failures = |status: &Value| count(&status["config"]["upgrades_failed"]);
        let before = failures(&gateway.status);
        let is_other = |status: &Value| status["process"] != gateway.status["process"];
        let status = gateway
            .until(self.target.wait, |status| is_other(status) || failures(status) > before)?;
        if !is_other(&status) {
            eprintln!("{}", status["config"]["upgrade_fault"].as_str().unwrap_or_default());
            eprintln!("the old process goes on");
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

/// A gateway that was found, as it was then.
struct Found {
    admin: SocketAddr,
    status: Value,
}

impl Target {
    /// The gateway; none if the file that is named is faulty, which has been told.
    fn find(&self) -> Result<Option<Found>> {
        let mut admin = ADMIN.parse().ok();
        if let Some(file) = &self.file {
            match source::read_file(file) {
                Ok(config) => admin = config.server.admin,
                Err(faults) => {
                    eprint!("{faults}");
                    return Ok(None);
                }
            }
        }
        let admin = self.admin.or(admin).context(
            "the file turns the admin address off; send the signal to the process yourself",
        )?;
        let status = look(admin).with_context(|| {
            format!("no gateway answers at {admin}; --admin says where its admin address is")
        })?;
        Ok(Some(Found { admin, status }))
    }
}

impl Found {
    /// Sends the signal to the process that answers at the admin address, and to no other that
    /// merely has its number here.
    fn send(&self, signal: Signal) -> Result<()> {
        let id = count(&self.status["process"]["id"]);
        let started = self.status["process"]["start_ticks"].as_u64();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        let elsewhere = || {
            format!(
                "the gateway at {} is process {id} of another machine or container; \
                 send the signal there",
                self.admin
            )
        };
        let pid = pid.with_context(elsewhere)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).with_context(elsewhere)?;
        // The descriptor names the process from here on; now see that it is the right one.
        let own = u32::try_from(id).ok().and_then(start_ticks);
        ensure!(own.is_some() && own == started, elsewhere());
        pidfd_send_signal(&process, signal)
            .with_context(|| format!("cannot send a signal to process {id}"))
    }

    /// Waits until the status is as wanted.
    fn until(&self, seconds: u64, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let give_up = Instant::now() + Duration::from_secs(seconds);
        loop {
            // Between two processes a look may fail.
            if let Ok(status) = look(self.admin)
                && wanted(&status)
            {
                return Ok(status);
            }
            if Instant::now() >= give_up {
                bail!("the gateway has not answered the signal in {seconds} s; see its log");
            }
            std::thread::park_timeout(LOOK_EVERY);
        }
    }
}

/// What `/status` says.
fn look(admin: SocketAddr) -> Result<Value> {
    let mut stream = TcpStream::connect_timeout(&admin, LOOK_TIMEOUT)?;
    stream.set_read_timeout(Some(LOOK_TIMEOUT))?;
    stream.set_write_timeout(Some(LOOK_TIMEOUT))?;
    let request = format!("GET /status HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(STATUS_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("not an answer in HTTP")?;
    ensure!(head.starts_with("HTTP/1.1 200"), "it answers {}", head.lines().next().unwrap_or(""));
    let status: Value = serde_json::from_str(body).context("its status is not JSON")?;
    ensure!(status["process"]["id"].is_u64(), "it is no gateway, or one of an older version");
    Ok(status)
}
