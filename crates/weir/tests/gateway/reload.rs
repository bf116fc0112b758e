//! Goal: a running gateway reloads its configuration, stops, and is replaced by a new process in an
//! upgrade. No call fails. An invalid configuration changes nothing. Method: simulated nodes and
//! gateways, each in its own process, with an open-loop load over keep-alive connections. The tests
//! use the commands and signals of operators.

mod following;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::open_loop::{Load, run_under_load};
use test_support::port::ReservedPort;
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::{pause, wait_until};

/// Load during reloads and upgrades.
const LOAD: Load = Load { connections: 50, calls_per_second: 2_000 };
const RELOADS: u64 = 20;

/// Nodes of one chain, and the folder of the gateway's configuration file.
struct Setup {
    nodes: Vec<Running>,
    folder: TempDir,
}

impl Setup {
    fn new(nodes: usize) -> Setup {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let since = since.to_string();
        let more = ["--block-time", "250ms", "--since", &since];
        let nodes = (0..nodes).map(|_| Weir::node().admin().args(&more).start()).collect();
        Setup { nodes, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// Writes a configuration with these nodes into the gateway's file.
    fn write(&self, nodes: &[usize], more: &str) {
        write(&self.file(), &self.text(nodes, more));
    }

    /// Returns a configuration with these nodes.
    fn text(&self, nodes: &[usize], more: &str) -> String {
        let mut text = format!("{more}\n[chain.sim]\npoll_interval = \"100ms\"\n");
        for node in nodes {
            let url = self.nodes[*node].url();
            text.push_str(&format!("[[upstream]]\nname = \"n{node}\"\nurl = \"{url}\"\n"));
        }
        text
    }

    /// Starts a gateway and waits until it is ready.
    fn start_gateway(&self) -> Running {
        let gateway = Weir::serve().admin().file(&self.file()).start();
        wait_until("ready", || get_admin(admin(&gateway), "/readyz").status == 200);
        gateway
    }
}

/// Replaces a file by a rename, so that no reader gets a part of it.
fn write(file: &Path, text: &str) {
    let temporary = file.with_extension("new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, file).unwrap();
}

/// Returns the admin address.
fn admin(gateway: &Running) -> &str {
    gateway.admin.as_deref().unwrap()
}

/// Sends a GET request to the admin address.
fn get_admin(admin: &str, path: &str) -> raw::Response {
    let mut client = raw::Client::connect(admin);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    client.send(request.as_bytes());
    client.read_response().unwrap()
}

fn status(admin: &str) -> Value {
    serde_json::from_str(get_admin(admin, "/status").text()).unwrap()
}

/// Runs a `weir` command until it exits.
fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The id of a process that replaced another in an upgrade. The process is killed when this is
/// dropped.
struct Successor(u64);

impl Drop for Successor {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).status();
    }
}

/// Returns the id of the gateway's process.
fn process_id(admin: &str) -> u64 {
    status(admin)["process"]["id"].as_u64().unwrap()
}

#[test]
fn reloads_a_drain_and_an_upgrade_cost_no_call() {
    let setup = Setup::new(3);
    let settings = "[server]\nthreads = 2\ndrain_delay = \"500ms\"\n[health]\nfailures_max = 5\n";
    setup.write(&[0, 1, 2], settings);
    let mut first = setup.start_gateway();
    let mut second = setup.start_gateway();
    let target = Mutex::new(first.address.clone());
    let mut successor = None;
    let result = run_under_load(LOAD, &target, || {
        for reload in 1..=RELOADS {
            // Some consecutive reloads share a node, others share none.
            let nodes: &[usize] =
                [&[0, 1][..], &[2], &[0], &[1, 2], &[2, 1, 0]][reload as usize % 5];
            setup.write(nodes, &format!("{settings}failure_share_max = 0.{}\n", 50 + reload));
            first.signal("-HUP");
            wait_until("the reload is counted", || {
                let status = status(admin(&first));
                assert_eq!(status["config"]["reloads_refused"], 0, "{status:#}");
                status["config"]["reloads_applied"] == reload
            });
            pause(Duration::from_millis(100)); // Sleeps: calls go on between two reloads.
        }
        // A load balancer that checks readiness sends new connections to the other gateway.
        first.signal("-TERM");
        wait_until("not ready", || get_admin(admin(&first), "/readyz").status == 503);
        *target.lock() = second.address.clone();
        assert!(first.wait_for_exit().success(), "{}", first.log());
        pause(Duration::from_millis(500)); // Sleeps: all clients reconnect meanwhile.

        let old_process = process_id(admin(&second));
        second.signal("-USR2");
        assert!(second.wait_for_exit().success(), "{}", second.log());
        let new_process = process_id(admin(&second));
        successor = Some(Successor(new_process));
        assert_ne!(new_process, old_process);
        pause(Duration::from_millis(500)); // Sleeps: the new process serves alone.
    });
    println!("{} calls, {} connections opened anew", result.calls, result.reconnects);
    let first_failures: Vec<&String> = result.failures.iter().take(5).collect();
    assert!(
        result.failures.is_empty(),
        "{} of {}: {first_failures:#?}",
        result.failures.len(),
        result.calls
    );
    assert!(result.calls > 5_000, "hardly any calls: {}", result.calls);
    let reconnects_min = 2 * u64::from(LOAD.connections);
    assert!(
        result.reconnects >= reconnects_min,
        "every client must reconnect twice: {}",
        result.reconnects
    );
}

#[test]
fn an_invalid_file_leaves_the_old_configuration_in_use_and_is_explained() {
    let setup = Setup::new(1);
    setup.write(&[0], "");
    let gateway = setup.start_gateway();
    let file = setup.file();
    let secret = "sekrit-in-the-url-0123456789abcdef";
    let invalid = format!(
        "[server]\nthreds = 1\n[call]\ndeadline = \"soon\"\n\
         [[upstream]]\nurl = \"https://node.example/v3/{secret}\"\nweight = 0\n"
    );
    write(&file, &invalid);
    gateway.signal("-HUP");
    let has_refused = |count: u64| status(admin(&gateway))["config"]["reloads_refused"] == count;
    wait_until("the first reload is refused", || has_refused(1));
    let reported = status(admin(&gateway));
    let reason = reported["config"]["last_reload"]["why"].as_str().unwrap();
    for key in ["server.threds", "call.deadline", "upstream.weight"] {
        assert!(reason.contains(key), "{key} is not in {reason}");
        wait_until(&format!("{key} in the log"), || gateway.log().contains(key));
    }
    assert_eq!(reported["config"]["generation"], 1);
    assert_eq!(reported["chains"][0]["upstreams"][0]["name"], "n0");

    // With a path, the command validates the file itself. It does not request a reload of an
    // invalid file. Without a path, the gateway reports the error.
    let path = file.to_str().unwrap();
    let output = weir(&["reload", path, "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("call.deadline"), "{}", text(&output.stderr));
    assert!(has_refused(1), "the command must not request a reload of an invalid file");
    let output = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("the old configuration stays"),
        "{}",
        text(&output.stderr)
    );
    assert!(has_refused(2));
    assert!(get_admin(admin(&gateway), "/metrics").text().contains("weir_reload_last_applied 0\n"));
    let upgraded = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(upgraded.status.code(), Some(1));
    assert!(text(&upgraded.stderr).contains("call.deadline"), "{}", text(&upgraded.stderr));
    let answer = raw::Client::connect(&gateway.address)
        .call("/", br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#);
    assert_eq!(answer.status, 200, "the gateway still serves");
    let log_and_status =
        [gateway.log(), get_admin(admin(&gateway), "/status").text().to_owned()].concat();
    assert!(!log_and_status.contains(secret), "the log or the status shows a secret");

    setup.write(&[0], "[cache]\nbytes_max = \"1MiB\"\n");
    let output = weir(&["reload", path, "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("cache.bytes_max"), "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).ends_with("in use: configuration 2\n"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn an_expired_certificate_does_not_replace_a_valid_one() {
    let setup = Setup::new(1);
    let certificate = |until_year| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(setup.folder.path().join("own.pem"), certificate.pem()).unwrap();
        std::fs::write(setup.folder.path().join("own.key"), key.serialize_pem()).unwrap();
    };
    certificate(4000);
    let tls = "[server]\nlisten_tls = \"127.0.0.1:0\"\n\
               [[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n";
    setup.write(&[0], tls);
    let gateway = setup.start_gateway();
    certificate(2001);
    let output = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let message = text(&output.stderr);
    assert!(message.contains("certificate") && message.contains("has expired"), "{message}");
    assert_eq!(status(admin(&gateway))["config"]["generation"], 1);
    certificate(4001);
    let output = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_changed_file_is_reloaded_automatically_if_it_is_complete_and_valid() {
    let setup = Setup::new(2);
    let watch_enabled = "[server]\nreload_on_change = true\n";
    setup.write(&[0], watch_enabled);
    let gateway = setup.start_gateway();
    let generation = || status(admin(&gateway))["config"]["generation"].as_u64().unwrap();
    setup.write(&[1], watch_enabled);
    wait_until("the renamed file is in use", || generation() == 2);
    assert_eq!(status(admin(&gateway))["chains"][0]["upstreams"][0]["name"], "n1");
    // A truncated file is invalid.
    let complete = std::fs::read_to_string(setup.file()).unwrap();
    write(&setup.file(), &complete[..complete.len() - 4]);
    wait_until("half of a file is refused", || {
        status(admin(&gateway))["config"]["reloads_refused"] == 1
    });
    assert_eq!(generation(), 2);
    // The gateway also watches files that the configuration names.
    let keys_file = setup.file().with_file_name("keys.toml");
    let key =
        |name: &str| format!("[[key]]\nname = \"{name}\"\nsecret = \"{name}-0123456789abcdef\"\n");
    write(&keys_file, &key("one"));
    setup.write(&[1], &format!("{watch_enabled}[access]\nkeys_file = \"keys.toml\"\n"));
    wait_until("the file of keys is in use", || generation() == 3);
    write(&keys_file, &[key("one"), key("two")].concat());
    wait_until("the new key is in use", || generation() == 4);
    // Without `reload_on_change`, the gateway ignores changes.
    setup.write(&[0], "");
    wait_until("the last change is in use", || generation() == 5);
    setup.write(&[1], "");
    pause(Duration::from_millis(2_500)); // Sleeps: two intervals of the file check.
    assert_eq!(generation(), 5);
}

/// A folder that Kubernetes mounts for a ConfigMap. Each file is a link into `..data`. `..data` is
/// itself a link, to a folder with all files of one version. An update replaces `..data` by a
/// rename, and then removes the folder of the previous version.
struct ConfigMapVolume {
    folder: PathBuf,
    version: u32,
}

impl ConfigMapVolume {
    fn new(folder: PathBuf, files: &[(&str, &str)]) -> ConfigMapVolume {
        std::fs::create_dir(&folder).unwrap();
        let mut volume = ConfigMapVolume { folder, version: 0 };
        volume.update(files);
        for (name, _) in files {
            let link = volume.folder.join(name);
            std::os::unix::fs::symlink(Path::new("..data").join(name), link).unwrap();
        }
        volume
    }

    fn update(&mut self, files: &[(&str, &str)]) {
        let previous = self.folder.join(format!("..version_{}", self.version));
        self.version += 1;
        let name = format!("..version_{}", self.version);
        let next = self.folder.join(&name);
        std::fs::create_dir(&next).unwrap();
        for (name, text) in files {
            std::fs::write(next.join(name), text).unwrap();
        }
        let link = self.folder.join("..data_tmp");
        std::os::unix::fs::symlink(name, &link).unwrap();
        std::fs::rename(link, self.folder.join("..data")).unwrap();
        if previous.exists() {
            std::fs::remove_dir_all(previous).unwrap();
        }
    }
}

#[test]
fn an_updated_config_map_is_reloaded() {
    let setup = Setup::new(2);
    let key =
        |name: &str| format!("[[key]]\nname = \"{name}\"\nsecret = \"{name}-0123456789abcdef\"\n");
    let more = "[server]\nreload_on_change = true\n[access]\nkeys_file = \"keys.toml\"\n";
    let files = |node: usize, name: &str| {
        [("gateway.toml", setup.text(&[node], more)), ("keys.toml", key(name))]
    };
    let mut volume = None;
    let mut update = |node: usize, name: &str| {
        let files = files(node, name);
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        match &mut volume {
            None => volume = Some(ConfigMapVolume::new(setup.folder.path().join("etc"), &files)),
            Some(volume) => volume.update(&files),
        }
    };
    update(0, "one");
    let gateway = Weir::serve().admin().file(&setup.folder.path().join("etc/gateway.toml")).start();
    let call = |key: &str| {
        let lines = format!("Authorization: Bearer {key}-0123456789abcdef\r\n");
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
        let mut client = raw::Client::connect(&gateway.address);
        client.send(&raw::post_with("/", &lines, body));
        client.read_response().unwrap().status
    };
    wait_until("the first key is accepted", || call("one") == 200);
    assert_eq!(call("two"), 401);
    for (version, (node, name)) in [(2, (1, "two")), (3, (0, "three")), (4, (0, "four"))] {
        update(node, name);
        wait_until("the update is in use", || {
            status(admin(&gateway))["config"]["generation"] == version
        });
        let upstream = &status(admin(&gateway))["chains"][0]["upstreams"][0]["name"];
        assert_eq!(*upstream, format!("n{node}"));
        assert_eq!(call(name), 200, "the named file is reloaded too");
        assert_eq!(call("one"), 401);
    }
    assert_eq!(status(admin(&gateway))["config"]["reloads_refused"], 0, "{}", gateway.log());
}

#[test]
fn the_health_address_survives_a_reload_and_an_upgrade_and_reports_a_stop() {
    let setup = Setup::new(1);
    let port = ReservedPort::new();
    let health = port.address.to_string();
    let with_health = format!("[server]\nhealth = \"{health}\"\ndrain_delay = \"2s\"\n");
    setup.write(&[0], &with_health);
    let mut gateway = setup.start_gateway();
    let check = || {
        let pages = [("/healthz", 200), ("/readyz", 200), ("/metrics", 200)];
        for (path, status) in pages.into_iter().chain([("/status", 404), ("/", 404)]) {
            assert_eq!(get_admin(&health, path).status, status, "{path}");
        }
    };
    check();
    // A reload does not change the health address. Only a new process can change it.
    setup.write(&[0], "[server]\ndrain_delay = \"2s\"\n");
    let reloaded = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(reloaded.status.code(), Some(0), "{}", text(&reloaded.stderr));
    assert!(text(&reloaded.stdout).contains("server.health"), "{}", text(&reloaded.stdout));
    check();
    setup.write(&[0], &with_health);
    // The old process listens until the new process serves. So the new process must inherit the
    // socket.
    let upgraded = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(upgraded.status.code(), Some(0), "{}", text(&upgraded.stderr));
    assert!(gateway.wait_for_exit().success(), "{}", gateway.log());
    let successor = process_id(admin(&gateway));
    let _successor = Successor(successor);
    wait_until("the new process is ready", || get_admin(&health, "/readyz").status == 200);
    check();
    let signalled = Command::new("kill").args(["-TERM", &successor.to_string()]).status().unwrap();
    assert!(signalled.success());
    wait_until("the stop is reported", || get_admin(&health, "/readyz").status == 503);
    assert_eq!(
        get_admin(&health, "/healthz").status,
        200,
        "a probe must not kill a gateway that drains"
    );
}

#[test]
fn a_program_that_cannot_start_leaves_the_old_process_in_place() {
    let setup = Setup::new(1);
    setup.write(&[0], "");
    // The gateway runs from a copy of the program, which the test replaces.
    let program = setup.folder.path().join("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    let gateway = Weir::serve().program(&program).admin().file(&setup.file()).start();
    for broken in ["#!/bin/sh\nexit 3\n", "no program at all"] {
        let replacement = setup.folder.path().join("beside");
        std::fs::write(&replacement, broken).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&replacement, mode).unwrap();
        std::fs::rename(&replacement, &program).unwrap();
        let output = weir(&["upgrade", "--admin", admin(&gateway)]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
        assert!(
            text(&output.stderr).contains("the old process continues"),
            "{}",
            text(&output.stderr)
        );
    }
    assert!(gateway.log().contains("exit status: 3"), "{}", gateway.log());
    let working = setup.folder.path().join("right");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &working).unwrap();
    std::fs::rename(&working, &program).unwrap();
    let output = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let _successor = Successor(process_id(admin(&gateway)));
}

#[test]
fn a_command_never_signals_another_process_with_the_same_id() {
    // This server reports the process id of the test with a wrong start time. A gateway in a
    // container can also have the same process id as a process outside.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let test_process = std::process::id();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
        let body = format!("{{\"process\":{{\"id\":{test_process},\"start_ticks\":1}}}}");
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
        std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
    });
    let output = weir(&["reload", "--admin", &admin]);
    serving.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("another machine or container"),
        "{}",
        text(&output.stderr)
    );
}
