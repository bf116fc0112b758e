//! `[server]`: listen addresses, threads and memory of the gateway, and its graceful stop.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::net::{IpAddr, SocketAddr};

use settings::value::{Bool, Duration, Integer, format_duration};
use settings::{Key, Report};

use super::values::{Address, HOUR_MS, MIB, Size};

settings::table! {
    /// Listen addresses, threads and memory of the gateway.
    pub struct ServerTable => pub Server {
        /// Address for clients without TLS. Port 0 selects a free port. The address may be `off` if
        /// `listen_tls` is set.
        listen: Address = "127.0.0.1:8645", at_start;
        /// Address for clients over TLS, in addition to `listen`. It needs at least one
        /// `[[certificate]]`.
        listen_tls: Address = "off", at_start;
        /// Address of `/metrics`, `/healthz`, `/readyz`, `/status` and the status page. It has no
        /// password: keep it off public addresses.
        admin: Address = "127.0.0.1:8646", at_start;
        /// Address of only `/healthz`, `/readyz` and `/metrics`, for the probes of a cluster and
        /// for Prometheus. It has no password either. It shows less than `admin`, but the metrics
        /// name chains, upstreams and methods.
        health: Address = "off", at_start;
        /// Number of serving threads. Each has its own listener and its own connections to the
        /// upstreams.
        threads: Integer<1, 1024, usize> =
            described "the number of cores" => core_count(), at_start;
        /// Maximum memory for request bodies, responses and queues of all connections. Above this
        /// limit requests get 503 with `Retry-After`, and the connections of the slowest clients
        /// are closed. A quarter, but at most 32 MiB, is reserved for memory that is not counted. Of
        /// the rest, requests use at most half, incoming responses of upstreams a quarter, and one
        /// connection an eighth. The cache and the program itself do not count.
        memory_max: Size<{ 16 * MIB }, { 1 << 50 }> =
            described "a quarter of the memory of the machine or control group";
        /// At the start of a graceful stop, the gateway serves as before for this time, but
        /// `/readyz` reports the stop, so that load balancers notice it.
        drain_delay: Duration<0, HOUR_MS> = "0s";
        /// Time for which a graceful stop then keeps idle connections open. A request in that time
        /// is served, and its response closes the connection.
        drain_linger: Duration<0, HOUR_MS> = "1s";
        /// Maximum time for which a graceful stop waits for requests in flight. It includes
        /// `drain_linger`.
        drain_deadline: Duration<0, HOUR_MS> = "10s";
        /// Time from the start of a graceful stop until the service manager kills the process:
        /// `terminationGracePeriodSeconds` of Kubernetes, `TimeoutStopSec` of systemd. The gateway
        /// only uses it for a check: `drain_delay` and `drain_deadline` together must be shorter.
        termination_grace: Duration<0, { 3 * HOUR_MS }> = "30s";
        /// If true, the gateway watches this file and the files that it names (certificates, keys,
        /// `keys_file`, `${file:…}`). When one of them has changed, and has then been stable for a
        /// second, the gateway reloads its configuration.
        reload_on_change: Bool = "false";
    }
}

/// Returns the number of cores that this process may use; 1 if it is unknown.
fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Validates the table: the addresses differ, clients can connect, and a graceful stop ends in
/// time.
pub(super) fn check(server: &ServerTable, report: &mut Report<'_>) -> Server {
    check_addresses(server, report);
    check_drain(server, report);
    if server.threads.is_set() && *server.threads > core_count() {
        let message = "more threads than this machine has cores";
        report.warn(&server.threads, message, "as many as cores");
    }
    server.values()
}

/// Checks that clients can connect and that no two addresses overlap.
fn check_addresses(server: &ServerTable, report: &mut Report<'_>) {
    let ServerTable { listen, listen_tls, admin, health, .. } = server;
    if listen.is_none() && listen_tls.is_none() {
        let allowed = "an address here or in listen_tls";
        report.error(listen, "clients cannot connect anywhere", allowed);
    }
    if overlaps(listen_tls, listen) {
        let message = "clear text and tls cannot share an address";
        report.error(listen_tls, message, "two different ports");
    }
    if overlaps(health, listen) || overlaps(health, listen_tls) {
        let message = "clients and health cannot share an address";
        report.error(health, message, "two different ports");
    } else if overlaps(health, admin) {
        let message = "admin and health cannot share an address";
        report.error(health, message, "two different ports");
    }
    let Some(address) = **admin else { return };
    if overlaps(admin, listen) || overlaps(admin, listen_tls) {
        let message = "clients and admin cannot share an address";
        let key = if admin.is_set() { admin } else { listen };
        report.error(key, message, "two different ports");
    } else if !address.ip().is_loopback() {
        let message = "metrics and status have no password and are open to other machines";
        report.warn(admin, message, "127.0.0.1, or a firewall before it");
    }
}

/// Warns if the process is killed before a graceful stop ends. `drain_linger` is a part of
/// `drain_deadline`.
fn check_drain(server: &ServerTable, report: &mut Report<'_>) {
    let ServerTable { drain_delay, drain_deadline, termination_grace, .. } = server;
    let stop_max = **drain_delay + **drain_deadline;
    if stop_max < **termination_grace {
        return;
    }
    let keys = [drain_deadline, drain_delay, termination_grace];
    let key = keys.into_iter().find(|key| key.is_set()).unwrap_or(drain_deadline);
    let message = format!(
        "a stop takes up to drain_delay + drain_deadline = {}, but the process is killed after {}",
        format_duration(stop_max),
        format_duration(**termination_grace)
    );
    report.warn(key, message, "a longer termination_grace here and at the service manager");
}

/// Returns true if two sockets cannot listen on these addresses at the same time. Addresses with
/// port 0 never overlap, because the system selects a free port.
fn overlaps(left: &Key<Option<SocketAddr>>, right: &Key<Option<SocketAddr>>) -> bool {
    let (Some(left), Some(right)) = (**left, **right) else { return false };
    // A socket on [::] receives connections to IPv4 addresses too.
    let covers = |wildcard: IpAddr, other: IpAddr| {
        wildcard.is_unspecified() && (wildcard.is_ipv6() || other.is_ipv4())
    };
    left.port() == right.port()
        && left.port() != 0
        && (left.ip() == right.ip()
            || covers(left.ip(), right.ip())
            || covers(right.ip(), left.ip()))
}
