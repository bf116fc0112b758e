//! The control socket: commands that change the state of a running gateway.
//!
//! Every user of the machine, and every web page in a browser on the machine, can reach the admin
//! address. Requests to the admin address therefore change nothing. The control socket is an
//! abstract Unix socket (unix(7)) with a random name, which `/status` publishes. The kernel reports
//! the user who connects. Only the user of the gateway and root may send commands, and a browser
//! cannot connect.
//!
//! A client sends one [`Command`] as JSON and shuts down its side of the connection. The gateway
//! responds with one [`Reply`] as a line of JSON.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use settings::find_nearest_name;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::admin::ACCEPT_PAUSE;
use crate::policy::cordon::{self, Cordon};
use crate::state::snapshot::Snapshot;

/// Maximum bytes of a command. A reason and a name take less than 2 KiB.
const COMMAND_BYTES_MAX: u64 = 16 * 1024;
/// Timeout of one command. Commands are handled one after another.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// A command of an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command", deny_unknown_fields)]
pub enum Command {
    /// Cordon an upstream: take it out of rotation. Replaces an earlier cordon.
    Cordon {
        /// Name of the upstream.
        upstream: String,
        /// Reason that `/status` shows.
        reason: Option<String>,
        /// Duration of the cordon.
        seconds: f64,
        /// True if the last usable upstream of a group may be cordoned.
        force: bool,
    },
    /// Return an upstream to rotation.
    Uncordon {
        /// Name of the upstream.
        upstream: String,
    },
}

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Reply {
    /// The command was carried out.
    Done {
        /// True if the upstream was cordoned before.
        was_cordoned: bool,
        /// Number of calls in flight at the upstream.
        in_flight: u64,
    },
    /// Nothing was changed.
    Refused {
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// The listening control socket.
pub(crate) struct ControlSocket {
    listener: UnixListener,
    name: String,
}

impl ControlSocket {
    /// Opens the socket. Logs an error and returns `None` if that fails.
    pub(crate) fn open() -> Option<ControlSocket> {
        let name = format!("weir-{}", super::generate_nonce());
        let bind = || {
            let address = SocketAddr::from_abstract_name(&name)?;
            let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        match bind() {
            Ok(listener) => Some(ControlSocket { listener, name }),
            Err(error) => {
                tracing::warn!(%error, "cannot open the control socket; upstreams cannot be cordoned");
                None
            }
        }
    }

    /// Returns the abstract name, without the leading zero byte.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Executes commands until the future is dropped.
    pub(crate) async fn serve(self, snapshot: watch::Receiver<Arc<Snapshot>>) {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection on the control socket");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match tokio::time::timeout(COMMAND_TIMEOUT, handle(stream, &snapshot)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a command failed"),
                Err(_) => tracing::debug!("a command was not sent in time"),
            }
        }
    }
}

/// Reads a command, executes it, and writes the reply. If the user may not send commands, refuses
/// without reading the command. So such users cannot delay the commands of operators.
async fn handle(
    mut stream: UnixStream,
    snapshot: &watch::Receiver<Arc<Snapshot>>,
) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    let reply = if may_command(uid) {
        let mut text = Vec::new();
        (&mut stream).take(COMMAND_BYTES_MAX).read_to_end(&mut text).await?;
        match serde_json::from_slice::<Command>(&text) {
            Ok(command) => execute(&command, &Arc::clone(&snapshot.borrow())),
            Err(error) => refuse(format!("the command is not understood: {error}")),
        }
    } else {
        tracing::warn!(uid, "refused a command of another user");
        refuse("only the user of the gateway and root may send commands".to_owned())
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.shutdown().await
}

/// Returns true if a user may send commands: the user of this process and root.
fn may_command(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn refuse(reason: String) -> Reply {
    Reply::Refused { reason }
}

/// Executes a command.
fn execute(command: &Command, snapshot: &Snapshot) -> Reply {
    let (Command::Cordon { upstream, .. } | Command::Uncordon { upstream }) = command;
    let mut upstreams = snapshot.upstreams.iter();
    let Some(index) = upstreams.position(|candidate| *candidate.config.name == **upstream) else {
        return refuse(describe_unknown_upstream(upstream, snapshot));
    };
    let now = snapshot.now();
    let was_cordoned = snapshot.upstreams[index].is_cordoned(now);
    match command {
        Command::Cordon { reason, seconds, force, .. } => {
            let reason = reason.clone().filter(|reason| !reason.is_empty());
            let duration = Duration::try_from_secs_f64(*seconds).unwrap_or_default();
            if let Some(fault) = cordon::check(reason.as_deref(), duration) {
                return refuse(fault.to_owned());
            }
            let emptied_groups = snapshot.groups_without(index);
            if !emptied_groups.is_empty() && !force {
                return refuse(describe_last_upstream(upstream, &emptied_groups, snapshot));
            }
            snapshot.set_cordon(index, Some(Cordon { reason, until: now + duration }));
        }
        Command::Uncordon { .. } if was_cordoned => snapshot.set_cordon(index, None),
        Command::Uncordon { .. } => {}
    }
    let counters = snapshot.counters.iter().map(|thread| thread.upstreams[index].in_flight.get());
    Reply::Done { was_cordoned, in_flight: counters.sum() }
}

/// Returns the refusal of a command that names an unknown upstream. The refusal suggests the most
/// similar name.
fn describe_unknown_upstream(name: &str, snapshot: &Snapshot) -> String {
    let names: Vec<&str> =
        snapshot.upstreams.iter().map(|upstream| &*upstream.config.name).collect();
    let hint = find_nearest_name(name, &names).map(|name| format!("; did you mean {name}?"));
    format!(
        "there is no upstream {name:?}{}\nupstreams: {}",
        hint.unwrap_or_default(),
        names.join(", ")
    )
}

/// Returns the refusal to cordon the last usable upstream of some groups.
fn describe_last_upstream(name: &str, groups: &[usize], snapshot: &Snapshot) -> String {
    let describe = |group: &usize| {
        let group = &snapshot.config.groups[*group];
        format!("group {} of chain {}", group.name, snapshot.config.chains[group.chain].name)
    };
    let groups: Vec<String> = groups.iter().map(describe).collect();
    format!(
        "{name} is the last usable upstream of {}; without it calls fail\n\
         use --force to cordon it nevertheless",
        groups.join(" and ")
    )
}
