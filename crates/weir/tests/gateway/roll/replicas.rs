//! Gateway processes with the arguments and the `[server]` table of the Helm chart.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use super::{BURST, RATE, SLOTS};
use crate::support::redis_server::Redis;
use test_support::port::ReservedPort;
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The manifests that the chart renders from only the required values.
const CHART: &str = include_str!("../chart/rendered/least.expected");
/// Maximum time of a stop: the drain delay, the drain deadline, and time for a busy machine.
const STOP_MAX: Duration = Duration::from_secs(15);

/// The addresses of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    pub(super) calls: SocketAddr,
    pub(super) health: SocketAddr,
}

/// The address and the configuration of a replica, with or without a running process.
struct Slot {
    /// The ports for calls and for health checks.
    ports: [ReservedPort; 2],
    file: PathBuf,
    running: Option<Running>,
}

/// All replicas, and the nodes behind them.
pub(super) struct Replicas {
    slots: [Slot; SLOTS],
    /// Number of calls that stopped replicas have decided by their local shares, without Redis.
    decided_by_shares: f64,
    /// Number of configuration changes so far.
    reloads: u64,
    upstreams: String,
    redis_url: String,
    _nodes: [Running; 2],
    _folder: TempDir,
}

impl Replicas {
    pub(super) fn new(redis: &Redis) -> Replicas {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64().to_string();
        let options = ["--block-time", "1s", "--since", &since];
        let nodes = [(); 2].map(|()| Weir::node().args(&options).start());
        let upstreams = nodes.iter().enumerate().map(|(index, node)| {
            format!("[[upstream]]\nname = \"n{index}\"\nurl = \"{}\"\n", node.url())
        });
        let folder = TempDir::new().unwrap();
        let slots = std::array::from_fn(|index| Slot {
            ports: [ReservedPort::new(), ReservedPort::new()],
            file: folder.path().join(format!("gateway-{index}.toml")),
            running: None,
        });
        let replicas = Replicas {
            slots,
            decided_by_shares: 0.0,
            reloads: 0,
            upstreams: upstreams.collect(),
            redis_url: redis.url(),
            _nodes: nodes,
            _folder: folder,
        };
        replicas.write_files();
        replicas
    }

    pub(super) fn addresses(&self) -> [Address; SLOTS] {
        self.slots.each_ref().map(Slot::address)
    }

    /// Writes the configuration file of each slot, as the kubelet does for a pod.
    fn write_files(&self) {
        for slot in &self.slots {
            let server = server_table(slot.address());
            let text = format!(
                "{server}{}[redis]\nurl = \"{}\"\nresponses = false\ntimeout = \"500ms\"\n\
                 gateways_assumed = {SLOTS}\n\
                 [health]\nfailure_share_max = 0.{}\n\
                 [zone.tenants]\nkey = [\"header:x-tenant\"]\nrate = \"{RATE}r/s\"\nshared = true\n\
                 [[limit]]\nzone = \"tenants\"\nburst = {BURST}\nnodelay = true\n",
                self.upstreams,
                self.redis_url,
                50 + self.reloads
            );
            replace(&slot.file, &text);
        }
    }

    /// Starts a replica and waits until it is ready.
    pub(super) fn start(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        let args = CHART.lines().find_map(|line| line.trim().strip_prefix("args: "));
        assert_eq!(args, Some(r#"["serve", "/etc/weir/gateway.toml"]"#), "the chart's arguments");
        let weir = Weir::serve().listen_as_configured().admin().file(&slot.file);
        slot.running = Some(weir.start());
        let health = slot.ports[1].address.to_string();
        wait_until("the replica is ready", || get(&health, "/readyz").status == 200);
    }

    /// Stops replicas at the same time, as Kubernetes does, and waits until they have ended.
    pub(super) fn stop(&mut self, slots: &[usize]) {
        let began = std::time::Instant::now();
        for slot in slots {
            let running = self.slots[*slot].running.as_ref().unwrap();
            self.decided_by_shares += decided_calls(running, "share");
            running.signal("-TERM");
        }
        for slot in slots {
            let mut running = self.slots[*slot].running.take().unwrap();
            assert!(running.wait_for_exit().success(), "{}", running.log());
            assert!(!running.log().contains("drain deadline passed"), "{}", running.log());
        }
        assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
    }

    /// Kills a replica and waits until its process has ended.
    pub(super) fn kill(&mut self, slot: usize) {
        let mut running = self.slots[slot].running.take().unwrap();
        running.signal("-KILL");
        running.wait_for_exit();
    }

    /// Changes the configuration and waits until each replica has reloaded it.
    pub(super) fn reconfigure(&mut self) {
        self.reloads += 1;
        self.write_files();
        wait_until("each replica has reloaded its file", || {
            self.running().all(|running| {
                let config = &status(running)["config"];
                assert_eq!(config["reloads_refused"], 0, "{config}");
                config["reloads_applied"] == self.reloads
            })
        });
    }

    /// Waits until each replica has counted this number of gateways.
    pub(super) fn wait_for_count(&self, gateways: u64) {
        wait_until(&format!("each replica counts {gateways} gateways"), || {
            self.running().all(|running| {
                let known = &status(running)["gateways"];
                known["count"] == gateways && known["source"] == "counted"
            })
        });
    }

    /// Waits until Redis has decided about a call of each replica.
    pub(super) fn wait_until_redis_decides(&self) {
        wait_until("Redis judges calls of each replica", || {
            self.running().all(|running| decided_calls(running, "redis") > 0.0)
        });
    }

    /// Returns the number of calls that replicas have decided by their local shares, without Redis.
    pub(super) fn decided_by_shares(&self) -> f64 {
        let running = self.running().map(|running| decided_calls(running, "share"));
        self.decided_by_shares + running.sum::<f64>()
    }

    /// Asserts that no replica has ended without the test's order.
    pub(super) fn assert_sound(&mut self) {
        let running = self.slots.iter_mut().filter_map(|slot| slot.running.as_mut());
        running.for_each(Running::assert_sound);
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.slots.iter().filter_map(|slot| slot.running.as_ref())
    }
}

impl Slot {
    fn address(&self) -> Address {
        let [calls, health] = self.ports.each_ref().map(|port| port.address);
        Address { calls, health }
    }
}

/// Returns the chart's `[server]` table with other addresses and shorter times.
fn server_table(address: Address) -> String {
    let lines = CHART.lines().map(str::trim).skip_while(|line| *line != "[server]");
    let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let with = |line: &str| match line.split_once(" = ") {
        Some(("listen", _)) => format!("listen = \"{}\"\n", address.calls),
        Some(("health", _)) => format!("health = \"{}\"\n", address.health),
        Some(("drain_delay", _)) => "drain_delay = \"1500ms\"\n".to_owned(),
        Some(("drain_deadline", _)) => "drain_deadline = \"10s\"\n".to_owned(),
        _ => format!("{line}\n"),
    };
    assert!(lines.contains(&"reload_on_change = true"), "{lines:?}");
    lines.into_iter().map(with).collect::<String>() + "threads = 1\n"
}

/// Replaces a file by a rename, so that no reader gets a part of it.
fn replace(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, file).unwrap();
}

fn get(address: &str, path: &str) -> raw::Response {
    let mut client = raw::Client::connect(address);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    client.send(request.as_bytes());
    client.read_response().unwrap()
}

fn status(running: &Running) -> Value {
    serde_json::from_str(get(running.admin.as_ref().unwrap(), "/status").text()).unwrap()
}

/// Returns the number of a replica's calls that the shared limit has decided by `redis`, or by the
/// local `share`.
fn decided_calls(running: &Running, by: &str) -> f64 {
    let answer = get(running.admin.as_ref().unwrap(), "/metrics");
    let name = format!("weir_limit_shared_calls_total{{by=\"{by}\"}} ");
    answer.text().lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap()
}
