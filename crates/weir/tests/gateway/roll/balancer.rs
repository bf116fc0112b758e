//! A real HAProxy in front of the replicas. It has the role of a Kubernetes Service with probes.

use std::fs;
use std::process::{Child, Stdio};

use tempfile::TempDir;

use super::SLOTS;
use super::replicas::Address;
use test_support::port::ReservedPort;
use test_support::programs;
use test_support::raw;
use test_support::running::{command_killed_with_test, spawn};
use test_support::wait::wait_until;

/// A running HAProxy.
pub(super) struct Balancer {
    child: Child,
    /// Address for clients.
    pub(super) address: String,
    /// Address of HAProxy's statistics.
    statistics: String,
    _folder: TempDir,
    _ports: [ReservedPort; 2],
}

impl Balancer {
    /// Starts HAProxy. Returns `None` and records a skip if the program is missing. HAProxy probes
    /// as the chart does, but ten times as often. It retries a call only if no replica has received
    /// the call.
    pub(super) fn start(replicas: &[Address; SLOTS]) -> Option<Balancer> {
        let program = programs::require("haproxy")?;
        let ports = [ReservedPort::new(), ReservedPort::new()];
        let [address, statistics] = ports.each_ref().map(|port| port.address.to_string());
        let mut config = format!(
            "global\n  nbthread 1\n  maxconn 1000\n\
             defaults\n  mode http\n  option http-keep-alive\n  option redispatch 1\n  retries 3\n\
             \x20 timeout connect 1s\n  timeout check 1s\n  timeout client 60s\n\
             \x20 timeout server 30s\n\
             listen statistics\n  bind {statistics}\n  stats enable\n  stats uri /\n\
             listen calls\n  bind {address}\n  balance roundrobin\n\
             \x20 option httpchk GET /readyz\n  http-check expect status 200\n\
             \x20 default-server check inter 200ms fall 2 rise 1\n"
        );
        for (slot, Address { calls, health }) in replicas.iter().enumerate() {
            config.push_str(&format!("  server r{slot} {calls} port {}\n", health.port()));
        }
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, config).unwrap();
        let mut command = command_killed_with_test(&program);
        command.arg("-db").arg("-f").arg(&file).stdin(Stdio::null());
        let log = fs::File::create(folder.path().join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let child = spawn(command).unwrap();
        let balancer = Balancer { child, address, statistics, _folder: folder, _ports: ports };
        wait_until("haproxy listens", || std::net::TcpStream::connect(&balancer.address).is_ok());
        Some(balancer)
    }

    /// Waits until exactly these replicas get calls.
    pub(super) fn wait_for(&self, replicas: &[usize]) {
        wait_until(&format!("haproxy uses {replicas:?}"), || {
            // The state of a server: "UP", "UP 1/2" or "DOWN".
            let states = self.column(17);
            (0..SLOTS).all(|slot| (states[slot] == "UP") == replicas.contains(&slot))
        });
    }

    /// Returns the number of response errors of each replica. HAProxy does not count all calls that
    /// it lost on keep-alive connections.
    pub(super) fn response_errors(&self) -> [u64; SLOTS] {
        self.column(14).map(|errors| errors.parse().unwrap())
    }

    /// Returns a column of HAProxy's statistics for each replica.
    fn column(&self, column: usize) -> [String; SLOTS] {
        let mut client = raw::Client::connect(&self.statistics);
        client.send(b"GET /;csv HTTP/1.1\r\nHost: haproxy\r\nConnection: close\r\n\r\n");
        let answer = client.read_response().unwrap();
        std::array::from_fn(|slot| {
            let name = format!("calls,r{slot},");
            let line = answer.text().lines().find(|line| line.starts_with(&name));
            line.and_then(|line| line.split(',').nth(column)).unwrap().to_owned()
        })
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // An error means that HAProxy has ended already. Then calls have failed, which the test
        // reports.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
