//! Gateway processes with the chart's arguments and its table `[server]`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use super::{BURST, PLACES, RATE};
use crate::support::redis_server::Redis;
use test_support::port::ReservedPort;
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::wait_until;

/// The manifests that the chart renders from the fewest values.
const CHART: &str = include_str!("../chart/rendered/least.expected");
/// Longest time for a stop: the drain delay, the deadline and a busy machine.
const STOP_MAX: Duration = Duration::from_secs(15);

/// The addresses of a replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address {
    pub(super) calls: SocketAddr,
    pub(super) health: SocketAddr,
}

/// A pod's address and configuration, with or without a running process.
struct Place {
    ports: [ReservedPort; 2],
    file: PathBuf,
    running: Option<Running>,
}

/// All places, with the nodes behind them.
pub(super) struct Replicas {
    places: [Place; PLACES],
    /// Calls that stopped replicas have judged by their shares.
    judged_by_shares: f64,
    /// Number of applied configurations after the first.
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
        let places = std::array::from_fn(|index| Place {
            ports: [ReservedPort::new(), ReservedPort::new()],
            file: folder.path().join(format!("gateway-{index}.toml")),
            running: None,
        });
        let replicas = Replicas {
            places,
            judged_by_shares: 0.0,
            reloads: 0,
            upstreams: upstreams.collect(),
            redis_url: redis.url(),
            _nodes: nodes,
            _folder: folder,
        };
        replicas.write();
        replicas
    }

    pub(super) fn addresses(&self) -> [Address; PLACES] {
        self.places.each_ref().map(Place::address)
    }

    /// Writes the configuration of each place, as the kubelet does.
    fn write(&self) {
        for place in &self.places {
            let server = server_table(place.address());
            let text = format!(
                "{server}{}[redis]\nurl = \"{}\"\nresponses = false\ntimeout = \"500ms\"\n\
                 gateways_assumed = {PLACES}\n\
                 [health]\nfailure_share_max = 0.{}\n\
                 [zone.tenants]\nkey = [\"header:x-tenant\"]\nrate = \"{RATE}r/s\"\nshared = true\n\
                 [[limit]]\nzone = \"tenants\"\nburst = {BURST}\nnodelay = true\n",
                self.upstreams,
                self.redis_url,
                50 + self.reloads
            );
            replace(&place.file, &text);
        }
    }

    /// Starts a replica and waits until it is ready.
    pub(super) fn start(&mut self, place: usize) {
        let place = &mut self.places[place];
        let args = CHART.lines().find_map(|line| line.trim().strip_prefix("args: "));
        assert_eq!(args, Some(r#"["serve", "/etc/weir/gateway.toml"]"#), "the chart's arguments");
        let weir = Weir::serve().listen_as_configured().admin().file(&place.file);
        place.running = Some(weir.start());
        let health = place.ports[1].address.to_string();
        wait_until("the replica is ready", || get(&health, "/readyz").status == 200);
    }

    /// Stops replicas at the same time, as a cluster does, and waits until they have ended.
    pub(super) fn stop(&mut self, places: &[usize]) {
        let began = std::time::Instant::now();
        for place in places {
            let running = self.places[*place].running.as_ref().unwrap();
            self.judged_by_shares += judged_calls(running, "share");
            running.signal("-TERM");
        }
        for place in places {
            let mut running = self.places[*place].running.take().unwrap();
            assert!(running.wait_for_exit().success(), "{}", running.log());
            assert!(!running.log().contains("drain deadline passed"), "{}", running.log());
        }
        assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
    }

    /// Kills a replica and waits until its process has ended.
    pub(super) fn kill(&mut self, place: usize) {
        let mut running = self.places[place].running.take().unwrap();
        running.signal("-KILL");
        running.wait_for_exit();
    }

    /// Changes the configuration and waits until each replica has reloaded it.
    pub(super) fn reconfigure(&mut self) {
        self.reloads += 1;
        self.write();
        wait_until("each replica has reloaded its file", || {
            self.running().all(|running| {
                let config = &status(running)["config"];
                assert_eq!(config["reloads_refused"], 0, "{config}");
                config["reloads_applied"] == self.reloads
            })
        });
    }

    /// Waits until each replica counts this number of gateways.
    pub(super) fn wait_for_count(&self, gateways: u64) {
        wait_until(&format!("each replica counts {gateways} gateways"), || {
            self.running().all(|running| {
                let known = &status(running)["gateways"];
                known["count"] == gateways && known["source"] == "counted"
            })
        });
    }

    /// Waits until each replica has sent a call to Redis for a decision.
    pub(super) fn wait_until_redis_judges(&self) {
        wait_until("Redis judges calls of each replica", || {
            self.running().all(|running| judged_calls(running, "redis") > 0.0)
        });
    }

    /// Returns the number of calls that replicas have judged by their shares, without Redis.
    pub(super) fn judged_by_shares(&self) -> f64 {
        let running = self.running().map(|running| judged_calls(running, "share"));
        self.judged_by_shares + running.sum::<f64>()
    }

    /// Asserts that no replica has ended by itself.
    pub(super) fn assert_sound(&mut self) {
        let running = self.places.iter_mut().filter_map(|place| place.running.as_mut());
        running.for_each(Running::assert_sound);
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.places.iter().filter_map(|place| place.running.as_ref())
    }
}

impl Place {
    fn address(&self) -> Address {
        let [calls, health] = self.ports.each_ref().map(|port| port.address);
        Address { calls, health }
    }
}

/// Returns the chart's table `[server]` with other addresses and a shorter delay.
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

/// Replaces a file by renaming, so that no reader gets a part of it.
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

/// Returns the number of a replica's calls that `judge` has decided: `redis` or `share`.
fn judged_calls(running: &Running, judge: &str) -> f64 {
    let answer = get(running.admin.as_ref().unwrap(), "/metrics");
    let name = format!("weir_limit_shared_calls_total{{by=\"{judge}\"}} ");
    answer.text().lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap()
}
