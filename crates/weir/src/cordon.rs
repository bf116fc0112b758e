//! `weir cordon` and `weir uncordon`: take an upstream of a running gateway out of rotation, and
//! return it.
//!
//! The status at the admin address names the control socket of the gateway. The command goes to
//! that socket, which accepts only the gateway's user and root.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use gateway::admin::control::{Command, Reply};
use gateway::policy::cordon;
use settings::value::{format_duration, parse_duration};

use crate::control::{DEFAULT_ADMIN, read_status_of_gateway};
use crate::exit_code::EXIT_FAULTY;

/// Timeout of a command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a reply. A reply may list the names of all upstreams.
const REPLY_BYTES_MAX: u64 = 4 << 20;

/// Take an upstream of a running gateway out of rotation
///
/// The upstream gets no new calls, and the gateway ignores its head. Calls in flight end as usual,
/// and the gateway continues to poll the upstream. It returns to rotation at the end of the
/// duration, or with `weir uncordon`. A second cordon replaces the first. A cordon survives a
/// reload of the configuration, but not a restart or `weir upgrade`. Must run on the same machine
/// or in the same container as the gateway, as the same user or root.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir cordon node-b --reason 'upgrade to v1.16'
  weir cordon node-b --for 30m --admin 127.0.0.1:9646

Exit codes: 0 the upstream is cordoned; 1 no gateway was found, or it refused the command; 2 faulty
arguments.")]
pub(crate) struct Cordon {
    /// Name of the upstream
    upstream: String,

    /// Reason, which the status shows
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Time after which the upstream returns to rotation, at most 30d
    #[arg(long = "for", value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    duration: Duration,

    /// Cordon the upstream even if it is the last usable one of a group
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    gateway: Gateway,
}

/// Return a cordoned upstream of a running gateway to rotation
///
/// Must run on the same machine or in the same container as the gateway, as the same user or root.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir uncordon node-b

Exit codes: 0 the upstream is not cordoned any more; 1 no gateway was found, or it refused the
command; 2 faulty arguments.")]
pub(crate) struct Uncordon {
    /// Name of the upstream
    upstream: String,

    #[command(flatten)]
    gateway: Gateway,
}

/// The gateway that carries out the command.
#[derive(Args)]
struct Gateway {
    /// Admin address of the gateway
    #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
}

impl Cordon {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(fault) = cordon::check(self.reason.as_deref(), self.duration) {
            eprintln!("weir: {fault}");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let command = Command::Cordon {
            upstream: self.upstream.clone(),
            reason: self.reason,
            seconds: self.duration.as_secs_f64(),
            force: self.force,
        };
        let (_, in_flight) = self.gateway.send(&command)?;
        let calls = if in_flight == 1 { "call" } else { "calls" };
        println!(
            "{} is cordoned for {}; {in_flight} {calls} in flight",
            self.upstream,
            format_duration(self.duration)
        );
        Ok(ExitCode::SUCCESS)
    }
}

impl Uncordon {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let command = Command::Uncordon { upstream: self.upstream.clone() };
        let (was_cordoned, _) = self.gateway.send(&command)?;
        if was_cordoned {
            println!("{} is in rotation", self.upstream);
        } else {
            println!("{} was not cordoned", self.upstream);
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Gateway {
    /// Sends a command. Returns true if the upstream was cordoned before the command, and its
    /// number of calls in flight.
    fn send(&self, command: &Command) -> Result<(bool, u64)> {
        let status = read_status_of_gateway(self.admin)?;
        let name = status["process"]["control_socket"].as_str().with_context(|| {
            format!("the gateway at {} has no control socket; see its log", self.admin)
        })?;
        match exchange(name, command) {
            Ok(Reply::Done { was_cordoned, in_flight }) => Ok((was_cordoned, in_flight)),
            Ok(Reply::Refused { reason }) => bail!("{reason}"),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "cannot reach the control socket of the gateway at {}; run the command on its \
                     machine or in its container",
                    self.admin
                )
            }),
        }
    }
}

/// Sends a command to a control socket and returns the reply.
fn exchange(name: &str, command: &Command) -> Result<Reply> {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let mut stream = UnixStream::connect_addr(&address)?;
    stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
    stream.set_write_timeout(Some(COMMAND_TIMEOUT))?;
    // A gateway that refuses the user replies and closes the connection without reading the
    // command. So this write may fail although a reply arrives.
    let sent = stream
        .write_all(&serde_json::to_vec(command)?)
        .and_then(|()| stream.shutdown(Shutdown::Write));
    let mut line = String::new();
    BufReader::new(stream.take(REPLY_BYTES_MAX)).read_line(&mut line)?;
    if line.is_empty() {
        sent?;
        bail!("it closed the connection");
    }
    serde_json::from_str(&line).context("its reply is not understood")
}
