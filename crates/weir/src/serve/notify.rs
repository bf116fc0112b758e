//! Tells systemd how far the gateway has come (sd_notify(3)), where it was started by it.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager, if there is one, this state: lines of `NAME=VALUE`.
pub(super) fn tell(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match name.as_encoded_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        _ => SocketAddr::from_pathname(&name),
    };
    let told = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up what it manages.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        tracing::warn!(%error, "cannot tell the service manager how things stand");
    }
}
