//! Goal: the processes of `deploy/quickstart` work together: two gateways share Redis and an index
//! in PostgreSQL, a load run succeeds, and Prometheus has data for every panel.
//!
//! Method: the test runs the same processes without containers. It uses the commands, mounts and
//! files of `compose.yaml` and its folder, and replaces only addresses, folders and intervals.
//!
//! The test does not start Grafana, because no package registry has its server. It compares
//! `compose.yaml` with the files that it mounts for Grafana. Needs redis-server, postgres and
//! prometheus. `test_support::programs` says what happens if one is missing.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use test_support::dashboard::{read_queries, wait_for_data};
use test_support::port::ReservedPort;
use test_support::postgres::Postgres;
use test_support::prometheus::Prometheus;
use test_support::running::{Running, Weir, command_killed_with_test, spawn, weir};
use test_support::wait::wait_until;

use crate::support::redis_server::Redis;

/// Accepted exit codes of `weir load`: PASS, INVALID and CLIENT-LIMITED. On a busy machine, a run
/// may be INVALID or CLIENT-LIMITED even if no call fails.
const VERDICTS: &[i32] = &[0, 4, 5];
/// Panels of the gateway's dashboard that may lack data: no call has to wait, there is no TLS,
/// requests are not traced, and the nodes have all data and refuse no range of logs.
const EMPTY_GATEWAY: &[&str] = &[
    "p99 of the wait for a permit",
    "Time until certificates expire",
    "weir_trace_spans_total",
    "weir_upstream_history_blocks",
    "weir_upstream_log_range_max_blocks",
];
/// Panels of the load run's dashboard that may lack data: no call fails, there is no TLS and no
/// WebSocket, and no signed transaction is sent.
const EMPTY_LAB: &[&str] = &[
    "JSON-RPC errors by code",
    "p50 of Retry-After",
    "weir_lab_handshake_seconds",
    "weir_lab_inclusion_seconds",
    "weir_lab_transactions_included_total",
    "weir_lab_upgrade_seconds",
    "weir_lab_websocket_closes_total",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/quickstart")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A service of `compose.yaml`, or a part that several services share.
struct Service {
    lines: Vec<String>,
}

impl Service {
    /// Finds the service or the shared part that begins with this line.
    fn find(compose: &str, first_line: &str) -> Service {
        let mut lines = compose.lines().skip_while(|line| *line != first_line);
        let first = lines.next().unwrap_or_else(|| panic!("compose.yaml has no {first_line}"));
        let depth = |line: &str| line.len() - line.trim_start().len();
        let inner = lines.take_while(|line| line.is_empty() || depth(line) > depth(first));
        Service { lines: inner.map(|line| line.trim().to_owned()).collect() }
    }

    /// Returns the command without the name of the program.
    fn command(&self) -> Vec<String> {
        let list = self.lines.iter().find_map(|line| line.strip_prefix("command: "));
        serde_json::from_str(list.expect("the service has a command")).unwrap()
    }

    /// Returns the mounted files and folders with their paths in the container.
    fn mounts(&self) -> Vec<(&str, &str)> {
        let mounts = self.lines.iter().filter_map(|line| line.strip_prefix("- "));
        let mounts = mounts.filter_map(|mount| mount.strip_suffix(":ro"));
        mounts.map(|mount| mount.split_once(':').unwrap()).collect()
    }
}

/// Texts in the files for containers, and their replacements in this test.
#[derive(Clone, Default)]
struct Replacements(Vec<(String, String)>);

impl Replacements {
    fn add(&mut self, text: &str, local: impl Into<String>) {
        self.0.push((text.to_owned(), local.into()));
    }

    fn apply(&self, text: &str) -> String {
        let replace = |text: String, (from, to): &(String, String)| text.replace(from, to);
        self.0.iter().fold(text.to_owned(), replace)
    }

    fn apply_all(&self, arguments: &[String]) -> Vec<String> {
        arguments.iter().map(|argument| self.apply(argument)).collect()
    }

    /// Copies the folder that a service mounts to `copy`, and replaces texts in its files. Later
    /// replacements also replace the path of the mount by the path of the copy.
    fn mount(&mut self, service: &Service, copy: &Path) {
        let [(".", target)] = service.mounts()[..] else { panic!("{:?}", service.mounts()) };
        for entry in std::fs::read_dir(folder()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            std::fs::write(copy.join(&name), self.apply(&read(&name))).unwrap();
        }
        self.add(target, copy.to_str().unwrap());
    }
}

/// Starts the simulated node.
fn start_node(compose: &str) -> Running {
    let command = Service::find(compose, "  node:").command();
    let [node, listen, address, options @ ..] = &command[..] else { panic!("{command:?}") };
    assert_eq!([node, listen, address], ["node", "--listen", "0.0.0.0:8545"]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Weir::node().args(&options).start()
}

/// Starts a gateway and waits until it is ready. `health` reserves the port of its health address.
fn start_gateway(
    compose: &str,
    name: &str,
    replacements: &Replacements,
    health: &ReservedPort,
) -> (Running, tempfile::TempDir) {
    // The gateways' services differ only in their ports.
    let service = Service::find(compose, &format!("  {name}:"));
    assert_eq!(service.lines[0], "<<: *gateway");
    let shared = Service::find(compose, "x-gateway: &gateway");
    let state = tempfile::tempdir().unwrap();
    let path = |name: &str| state.path().join(name).display().to_string();
    let mut replacements = replacements.clone();
    replacements.add("0.0.0.0:8647", health.address.to_string());
    replacements.add("/var/lib/weir/quota.json", path("quota.json"));
    replacements.add("file = \"-\"", format!("file = \"{}\"", path("access.log")));
    replacements.mount(&shared, state.path());
    let command = replacements.apply_all(&shared.command());
    let [serve, file] = &command[..] else { panic!("{command:?}") };
    assert_eq!(serve, "serve");
    let gateway = Weir::serve().admin().file(Path::new(file)).start();
    // The container's health check uses the default admin address. The test passes another one.
    assert!(shared.lines.contains(&r#"test: ["CMD", "weir", "ready"]"#.to_owned()));
    let is_ready = || {
        let mut ready = Command::new(weir());
        ready.args(["ready", "--admin", gateway.admin.as_deref().unwrap()]);
        ready.stdin(Stdio::null()).output().unwrap().status.success()
    };
    wait_until("the gateway is ready", is_ready);
    (gateway, state)
}

/// A child process. Dropping it kills the process.
struct Process(Child);

impl Process {
    fn start(arguments: &[String], stdout: Stdio) -> Process {
        let mut command = command_killed_with_test(&weir());
        command.args(arguments).env_remove("PGPASSWORD");
        command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
        Process(spawn(command).unwrap())
    }

    fn assert_runs(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the process ended too early");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the load of `compose.yaml` for a few seconds, and checks that no call failed.
fn assert_load_succeeds(arguments: &[String], folder: &Path) {
    let out = folder.join("load.txt");
    let arguments = [arguments, &["--set".to_owned(), "seconds=10".to_owned()]].concat();
    let mut load = Process::start(&arguments, std::fs::File::create(&out).unwrap().into());
    let status = load.0.wait().unwrap();
    let report = std::fs::read_to_string(&out).unwrap();
    assert!(status.code().is_some_and(|code| VERDICTS.contains(&code)), "{status}: {report}");
    let row = report.lines().find(|line| line.starts_with("all ")).expect(&report);
    assert!(row.matches("100 %").count() >= 2, "calls failed: {report}");
}

#[test]
fn the_processes_of_the_quickstart_work_together() {
    let compose = read("compose.yaml");
    let Some(redis) = Redis::start(&[]) else { return };
    let Some(postgres) = Postgres::start() else { return };
    postgres.sql("CREATE DATABASE weir");
    let node = start_node(&compose);
    let mut replacements = Replacements::default();
    replacements.add("node:8545", &node.address);
    replacements.add("redis:6379", format!("127.0.0.1:{}", redis.port));
    replacements.add("postgres:5432", format!("127.0.0.1:{}", postgres.port));

    let ports = [ReservedPort::new(), ReservedPort::new()];
    let (mut first, _first_state) = start_gateway(&compose, "gateway-1", &replacements, &ports[0]);
    let (mut second, _second_state) =
        start_gateway(&compose, "gateway-2", &replacements, &ports[1]);
    replacements.add("gateway-1:8647", ports[0].address.to_string());
    replacements.add("gateway-2:8647", ports[1].address.to_string());
    // The test would wait for minutes with the interval of the file.
    replacements.add("_interval: 5s", "_interval: 1s");
    let rules = read("../prometheus/weir.rules.yml");
    let config = replacements.apply(&read("prometheus.yml"));
    let Some(prometheus) = Prometheus::with_config(&config, &rules) else { return };
    // The first reload creates the metrics about reloads.
    first.signal("-HUP");

    replacements.add("gateway-1:8645", &first.address);
    replacements.add("http://prometheus:9090/api/v1/write", prometheus.write_url());
    let files = tempfile::tempdir().unwrap();
    let service = Service::find(&compose, "  load:");
    replacements.mount(&service, files.path());
    let command = replacements.apply_all(&service.command());
    // A second run uses the other gateway, and lasts until the test has read the panels.
    replacements.add("testid=quickstart", "testid=second");
    let mut long = replacements.apply_all(&command);
    long.extend(["--set", "seconds=600", "--target", &second.url()].map(str::to_owned));
    let mut long = Process::start(&long, Stdio::null());
    assert_load_succeeds(&command, files.path());

    let variables = [("__rate_interval", "15s"), ("instance", ".*"), ("chain", ".*")];
    let dashboard = |name: &str| read_queries(&folder().join("../grafana/dashboards").join(name));
    wait_for_data(&prometheus, &dashboard("weir-gateway.json"), &variables, EMPTY_GATEWAY);
    let variables = [("__rate_interval", "30s"), ("testid", "second")];
    wait_for_data(&prometheus, &dashboard("weir-lab.json"), &variables, EMPTY_LAB);
    long.assert_runs();
    for query in [
        "count(up{job=\"weir\"} == 1) == 2",
        "sum(weir_index_lookups_total{outcome=\"hit\"}) > 0",
        "sum(weir_redis_lookups_total{outcome=\"hit\"}) > 0",
        "chain:weir_calls:rate5m > 0",
        "weir_quota_used_units{key=\"quickstart\"} > 0",
    ] {
        wait_until(query, || !prometheus.values(query).is_empty());
    }
    let firing = prometheus.series("ALERTS{alertstate=\"firing\"}");
    assert!(firing.is_empty(), "alerts fire: {firing:?}");
    first.assert_sound();
    second.assert_sound();
}

#[test]
fn the_files_of_the_quickstart_are_consistent() {
    let compose = read("compose.yaml");
    let mounted: Vec<&str> = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- .")?.strip_suffix(":ro")?.split(':').next())
        .collect();
    assert!(mounted.len() >= 6, "only {mounted:?} are mounted");
    for source in mounted {
        let path = folder().join(format!(".{source}"));
        assert!(path.exists(), "{} does not exist", path.display());
    }
    assert!(compose.contains("image: weir:quickstart\n  build:\n    context: ../..\n"));

    // The documentation page lists the services, and addresses on this machine.
    let page = std::fs::read_to_string(folder().join("../../docs/quickstart.md")).unwrap();
    for service in ["node", "redis", "postgres", "prometheus", "grafana", "load"] {
        assert!(!Service::find(&compose, &format!("  {service}:")).lines.is_empty());
        assert!(page.contains(&format!("| `{service}` |")), "the page does not explain {service}");
    }
    let addresses = page.split("http://").skip(1);
    let addresses = addresses.map(|rest| rest.split(['`', '/', ' ']).next().unwrap());
    let local: Vec<&str> = addresses.filter(|address| address.starts_with("127.")).collect();
    assert!(local.len() >= 4, "the page names only {local:?}");
    for address in local {
        assert!(compose.contains(&format!("ports: [\"{address}:")), "no port is {address}");
    }
    // The PostgreSQL server and its clients have the same password.
    let password = "POSTGRES_PASSWORD: quickstart";
    assert!(Service::find(&compose, "  postgres:").lines.concat().contains(password));
    let gateway = Service::find(&compose, "x-gateway: &gateway").lines;
    assert!(gateway.contains(&"environment: { PGPASSWORD: quickstart }".to_owned()));

    // Grafana's provisioning files have the paths of the mounted dashboards and the address of
    // Prometheus.
    let grafana = Service::find(&compose, "  grafana:");
    let provider = read("../grafana/provisioning/dashboards/weir.yml");
    let path = provider.lines().find_map(|line| line.trim().strip_prefix("path: ")).unwrap();
    let mounts = grafana.mounts();
    assert!(mounts.contains(&("../grafana/dashboards", path)), "{mounts:?}");
    assert!(mounts.contains(&("../grafana/provisioning", "/etc/grafana/provisioning")));
    let source = read("../grafana/provisioning/datasources/weir.yml");
    assert!(source.contains("url: ${PROMETHEUS_URL}"));
    assert!(grafana.lines.contains(&"PROMETHEUS_URL: http://prometheus:9090".to_owned()));
}
