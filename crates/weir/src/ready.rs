//! `weir ready`: its exit code reports whether a running gateway is ready. Containers without a
//! shell or curl use the command as their health check.

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::control::{DEFAULT_ADMIN, get};

/// Check whether a running gateway is ready to serve calls
///
/// Requests `/readyz` once and prints the response. A gateway is not ready while it starts or stops,
/// and while a chain has no usable upstream.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir ready
  weir ready --admin 127.0.0.1:9646

Exit codes: 0 the gateway is ready; 1 it is not ready, or no gateway was found; 2 faulty arguments.")]
pub(crate) struct Ready {
    /// Admin or health address of the gateway
    #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,
}

impl Ready {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let admin = self.admin;
        let (status_line, body) = get(admin, "/readyz").with_context(|| {
            format!("no gateway responds at {admin}; set its admin address with --admin")
        })?;
        match (status_line.split(' ').nth(1), body.as_str()) {
            (Some("200"), "ready\n") => {
                print!("{body}");
                Ok(ExitCode::SUCCESS)
            }
            (Some("503"), _) => {
                eprint!("{body}");
                Ok(ExitCode::FAILURE)
            }
            _ => bail!("no gateway responds at {admin}: the response is {status_line}"),
        }
    }
}
