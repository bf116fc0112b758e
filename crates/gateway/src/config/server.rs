//! `[server]`: where the gateway listens, its threads and its memory.

use settings::value::{Bool, Count, Duration};
use settings::{Key, Report};

use super::values::{Address, HOUR, MIB, Size};

settings::table! {
    /// Listen addresses, threads and memory of the gateway.
    pub struct ServerTable => pub Server {
        /// Address for clients in plain text. Port 0 takes a free one. The address may be `off` if
        /// `listen_tls` is set.
        listen: Address = "127.0.0.1:8645", at_start;
        /// Address for clients over TLS, in addition to `listen`. It needs at least one
        /// `[[certificate]]`.
        listen_tls: Address = "off", at_start;
        /// Address of `/metrics`, `/healthz`, `/readyz`, `/status` and the status page. It has no
        /// password: keep it off public addresses.
        admin: Address = "127.0.0.1:8646", at_start;
        /// Serving threads. Each has its own listener and its own connections to the upstreams.
        threads: Count<1, 1024, usize> = follows "the number of cores" => cores(), at_start;
        /// Memory for request bodies, responses and queues of all connections. Above this limit
        /// requests get 503 with `Retry-After`, and the connections of the slowest clients are
        /// closed. Requests use at most half of the memory, incoming responses of upstreams a
        /// quarter, and one connection an eighth. The cache does not count.
        memory_max: Size<{ 16 * MIB }, { 1 << 50 }> =
            follows "a quarter of the memory of the machine or control group";
        /// Time for which a graceful stop continues as before while `/readyz` reports the stop, so
        /// that load balancers notice it.
        drain_delay: Duration<0, HOUR> = "0s";
        /// Time for which a graceful stop keeps idle connections open. A request in that time is
        /// served, and its response closes the connection.
        drain_linger: Duration<0, HOUR> = "1s";
        /// Maximum time for which a graceful stop waits for requests in flight.
        drain_deadline: Duration<0, HOUR> = "10s";
        /// If true, the gateway reloads its configuration when this file, or a file that it names
        /// (certificates, keys, `keys_file`, `${file:…}`), has changed and has then been stable for
        /// a second.
        reload_on_change: Bool = "false";
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Checks that the addresses differ and that clients can connect.
pub(super) fn check(server: &ServerTable, report: &mut Report<'_>) -> Server {
    check_addresses(server, report);
    if server.threads.is_set() && *server.threads > cores() {
        let message = "more threads than this machine has cores";
        report.warn(&server.threads, message, "as many as cores");
    }
    server.values()
}

fn check_addresses(server: &ServerTable, report: &mut Report<'_>) {
    let ServerTable { listen, listen_tls, admin, .. } = server;
    if listen.is_none() && listen_tls.is_none() {
        let allowed = "an address here or in listen_tls";
        report.error(listen, "clients cannot connect anywhere", allowed);
    }
    if is_same_address(listen, listen_tls) {
        let message = "clear text and tls cannot share an address";
        report.error(listen_tls, message, "two different ports");
    }
    let Some(address) = **admin else { return };
    if is_same_address(admin, listen) || is_same_address(admin, listen_tls) {
        let message = "clients and admin cannot share an address";
        let key = if admin.is_set() { admin } else { listen };
        report.error(key, message, "two different ports");
    } else if !address.ip().is_loopback() {
        let message = "metrics and status have no password and are open to other machines";
        report.warn(admin, message, "127.0.0.1, or a firewall before it");
    }
}

fn is_same_address(
    left: &Key<Option<std::net::SocketAddr>>,
    right: &Key<Option<std::net::SocketAddr>>,
) -> bool {
    left.is_some_and(|address| address.port() != 0 && **right == Some(address))
}
