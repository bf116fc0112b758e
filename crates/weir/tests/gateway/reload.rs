//! Goal: a running gateway reloads its configuration, stops, and is upgraded to a new process
//! without one failed call; an invalid configuration changes nothing. Method: simulated nodes and
//! gateways, each in its own process; open-loop calls over keep-alive connections; the commands and
//! signals of operators.

mod following;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::open_loop::{Load, under_load};
use test_support::port::ReservedPort;
use test_support::raw;
use test_support::running::{Running, Weir};
use test_support::wait::{pause, wait_until};

/// The issue's plan.
const LOAD: Load = Load { connections: 50, calls_per_second: 2_000 };
const RELOADS: u64 = 20;

/// Nodes of one chain, and a file that a gateway reads.
struct Scene {
    nodes: Vec<Running>,
    folder: TempDir,
}

impl Scene {
    fn new(nodes: usize) -> Scene {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let since = since.to_string();
        let more = ["--block-time", "250ms", "--since", &since];
        let nodes = (0..nodes).map(|_| Weir::node().admin().args(&more).start()).collect();
        Scene { nodes, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("gateway.toml")
    }

    /// Writes a configuration with these nodes, as a deployment would: whole, by renaming.
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
    fn gateway(&self) -> Running {
        let gateway = Weir::serve().admin().file(&self.file()).start();
        wait_until("ready", || look(admin(&gateway), "/readyz").status == 200);
        gateway
    }
}

fn write(file: &Path, text: &str) {
    let beside = file.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(beside, file).unwrap();
}

fn admin(gateway: &Running) -> &str {
    gateway.admin.as_deref().unwrap()
}

fn look(admin: &str, path: &str) -> raw::Answer {
    let mut client = raw::Client::connect(admin);
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    client.send(request.as_bytes());
    client.answer().unwrap()
}

fn status(admin: &str) -> Value {
    serde_json::from_str(look(admin, "/status").text()).unwrap()
}

/// Runs a command of the binary to its end.
fn weir(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A process that took another one's place, which ends with the test.
struct Successor(u64);

impl Drop for Successor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = Command::new("kill").args(["-KILL", &self.0.to_string()]).status();
    }
}

fn process(admin: &str) -> u64 {
    status(admin)["process"]["id"].as_u64().unwrap()
}

#[test]
fn reloads_a_drain_and_an_upgrade_cost_no_call() {
    let scene = Scene::new(3);
    let more = "[server]\nthreads = 2\ndrain_delay = \"500ms\"\n[health]\nfailures_max = 5\n";
    scene.write(&[0, 1, 2], more);
    let mut first = scene.gateway();
    let mut second = scene.gateway();
    let target = Mutex::new(first.address.clone());
    let mut successor = None;
    let seen = under_load(LOAD, &target, || {
        for turn in 1..=RELOADS {
            // Every set of nodes is followed by one that shares a node with it, or none.
            let nodes: &[usize] = [&[0, 1][..], &[2], &[0], &[1, 2], &[2, 1, 0]][turn as usize % 5];
            scene.write(nodes, &format!("{more}failure_share_max = 0.{}\n", 50 + turn));
            first.signal("-HUP");
            wait_until("the reload is counted", || {
                let status = status(admin(&first));
                assert_eq!(status["config"]["reloads_refused"], 0, "{status:#}");
                status["config"]["reloads_applied"] == turn
            });
            pause(Duration::from_millis(100)); // Sleeps: calls go on between two reloads.
        }
        // A load balancer that looks at readiness sends new connections elsewhere.
        first.signal("-TERM");
        wait_until("not ready", || look(admin(&first), "/readyz").status == 503);
        *target.lock() = second.address.clone();
        assert!(first.ended().success(), "{}", first.log());
        pause(Duration::from_millis(500)); // Sleeps: all clients have gone over.

        let before = process(admin(&second));
        second.signal("-USR2");
        assert!(second.ended().success(), "{}", second.log());
        let after = process(admin(&second));
        successor = Some(Successor(after));
        assert_ne!(after, before);
        pause(Duration::from_millis(500)); // Sleeps: the new process serves alone.
    });
    println!("{} calls, {} connections opened anew", seen.calls, seen.reconnects);
    let few: Vec<&String> = seen.faults.iter().take(5).collect();
    assert!(seen.faults.is_empty(), "{} of {}: {few:#?}", seen.faults.len(), seen.calls);
    assert!(seen.calls > 5_000, "hardly any calls: {}", seen.calls);
    let moved = 2 * u64::from(LOAD.connections);
    assert!(seen.reconnects >= moved, "all went over twice: {}", seen.reconnects);
}

#[test]
fn a_faulty_file_leaves_the_old_configuration_in_use_and_says_why() {
    let scene = Scene::new(1);
    scene.write(&[0], "");
    let gateway = scene.gateway();
    let file = scene.file();
    let secret = "sekrit-in-the-url-0123456789abcdef";
    let faulty = format!(
        "[server]\nthreds = 1\n[call]\ndeadline = \"soon\"\n\
         [[upstream]]\nurl = \"https://node.example/v3/{secret}\"\nweight = 0\n"
    );
    write(&file, &faulty);
    gateway.signal("-HUP");
    let refused = |count: u64| status(admin(&gateway))["config"]["reloads_refused"] == count;
    wait_until("the first is refused", || refused(1));
    let shown = status(admin(&gateway));
    let why = shown["config"]["last_reload"]["why"].as_str().unwrap();
    for key in ["server.threds", "call.deadline", "upstream.weight"] {
        assert!(why.contains(key), "{key} is not in {why}");
        assert!(gateway.log().contains(key), "{key} is not in the log: {}", gateway.log());
    }
    assert_eq!(shown["config"]["generation"], 1);
    assert_eq!(shown["chains"][0]["upstreams"][0]["name"], "n0");

    // The command tells before it asks; without the file it hears it from the gateway.
    let path = file.to_str().unwrap();
    let told = weir(&["reload", path, "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(2));
    assert!(text(&told.stderr).contains("call.deadline"), "{}", text(&told.stderr));
    assert!(refused(1), "a file that is known to be faulty is not sent");
    let told = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(2));
    assert!(text(&told.stderr).contains("the old configuration stays"), "{}", text(&told.stderr));
    assert!(refused(2));
    assert!(look(admin(&gateway), "/metrics").text().contains("weir_reload_last_applied 0\n"));
    let upgraded = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(upgraded.status.code(), Some(1));
    assert!(text(&upgraded.stderr).contains("call.deadline"), "{}", text(&upgraded.stderr));
    let answer = raw::Client::connect(&gateway.address)
        .call("/", br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#);
    assert_eq!(answer.status, 200, "it goes on");
    let seen = [gateway.log(), look(admin(&gateway), "/status").text().to_owned()].concat();
    assert!(!seen.contains(secret), "a secret is shown");

    scene.write(&[0], "[cache]\nbytes_max = \"1MiB\"\n");
    let told = weir(&["reload", path, "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    assert!(text(&told.stdout).contains("cache.bytes_max"), "{}", text(&told.stdout));
    assert!(text(&told.stdout).ends_with("in use: configuration 2\n"), "{}", text(&told.stdout));
}

#[test]
fn a_certificate_that_has_ended_does_not_replace_a_good_one() {
    let scene = Scene::new(1);
    let certificate = |until_year| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(until_year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(scene.folder.path().join("own.pem"), certificate.pem()).unwrap();
        std::fs::write(scene.folder.path().join("own.key"), key.serialize_pem()).unwrap();
    };
    certificate(4000);
    let tls = "[server]\nlisten_tls = \"127.0.0.1:0\"\n\
               [[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n";
    scene.write(&[0], tls);
    let gateway = scene.gateway();
    certificate(2001);
    let told = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(2), "{}", text(&told.stdout));
    let told = text(&told.stderr);
    assert!(told.contains("certificate") && told.contains("has expired"), "{told}");
    assert_eq!(status(admin(&gateway))["config"]["generation"], 1);
    certificate(4001);
    let told = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
}

#[test]
fn a_changed_file_is_taken_by_itself_once_it_is_at_rest_and_right() {
    let scene = Scene::new(2);
    let follow = "[server]\nreload_on_change = true\n";
    scene.write(&[0], follow);
    let gateway = scene.gateway();
    let generation = || status(admin(&gateway))["config"]["generation"].as_u64().unwrap();
    scene.write(&[1], follow);
    wait_until("the renamed file is in use", || generation() == 2);
    assert_eq!(status(admin(&gateway))["chains"][0]["upstreams"][0]["name"], "n1");
    // Half of a file is a fault.
    let whole = std::fs::read_to_string(scene.file()).unwrap();
    write(&scene.file(), &whole[..whole.len() - 4]);
    wait_until("half of a file is refused", || {
        status(admin(&gateway))["config"]["reloads_refused"] == 1
    });
    assert_eq!(generation(), 2);
    // A file that it names is followed as it is.
    let keys = scene.file().with_file_name("keys.toml");
    let key =
        |name: &str| format!("[[key]]\nname = \"{name}\"\nsecret = \"{name}-0123456789abcdef\"\n");
    write(&keys, &key("one"));
    scene.write(&[1], &format!("{follow}[access]\nkeys_file = \"keys.toml\"\n"));
    wait_until("the file of keys is in use", || generation() == 3);
    write(&keys, &[key("one"), key("two")].concat());
    wait_until("the new key is in use", || generation() == 4);
    // And what is not to be followed is not.
    scene.write(&[0], "");
    wait_until("the last change is in use", || generation() == 5);
    scene.write(&[1], "");
    pause(Duration::from_millis(2_500)); // Sleeps: two looks, had it looked.
    assert_eq!(generation(), 5);
}

/// A folder that Kubernetes mounts for a ConfigMap: each file is a link into `..data`, which is a
/// link to a folder with all files of one version. An update replaces `..data` by a rename and then
/// removes the folder of the previous version.
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
    let scene = Scene::new(2);
    let key =
        |name: &str| format!("[[key]]\nname = \"{name}\"\nsecret = \"{name}-0123456789abcdef\"\n");
    let more = "[server]\nreload_on_change = true\n[access]\nkeys_file = \"keys.toml\"\n";
    let files = |node: usize, name: &str| {
        [("gateway.toml", scene.text(&[node], more)), ("keys.toml", key(name))]
    };
    let mut volume = None;
    let mut update = |node: usize, name: &str| {
        let files = files(node, name);
        let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
        match &mut volume {
            None => volume = Some(ConfigMapVolume::new(scene.folder.path().join("etc"), &files)),
            Some(volume) => volume.update(&files),
        }
    };
    update(0, "one");
    let gateway = Weir::serve().admin().file(&scene.folder.path().join("etc/gateway.toml")).start();
    let call = |key: &str| {
        let lines = format!("Authorization: Bearer {key}-0123456789abcdef\r\n");
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
        let mut client = raw::Client::connect(&gateway.address);
        client.send(&raw::post_with("/", &lines, body));
        client.answer().unwrap().status
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
    let scene = Scene::new(1);
    let port = ReservedPort::new();
    let health = port.address.to_string();
    let with_health = format!("[server]\nhealth = \"{health}\"\ndrain_delay = \"2s\"\n");
    scene.write(&[0], &with_health);
    let mut gateway = scene.gateway();
    let check = || {
        let pages = [("/healthz", 200), ("/readyz", 200), ("/metrics", 200)];
        for (path, status) in pages.into_iter().chain([("/status", 404), ("/", 404)]) {
            assert_eq!(look(&health, path).status, status, "{path}");
        }
    };
    check();
    // Only a new process changes the address.
    scene.write(&[0], "[server]\ndrain_delay = \"2s\"\n");
    let reloaded = weir(&["reload", "--admin", admin(&gateway)]);
    assert_eq!(reloaded.status.code(), Some(0), "{}", text(&reloaded.stderr));
    assert!(text(&reloaded.stdout).contains("server.health"), "{}", text(&reloaded.stdout));
    check();
    scene.write(&[0], &with_health);
    // The old process listens until the new one serves, so the new one must inherit the socket.
    let upgraded = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(upgraded.status.code(), Some(0), "{}", text(&upgraded.stderr));
    assert!(gateway.ended().success(), "{}", gateway.log());
    let successor = process(admin(&gateway));
    let _successor = Successor(successor);
    wait_until("the new process is ready", || look(&health, "/readyz").status == 200);
    check();
    let signalled = Command::new("kill").args(["-TERM", &successor.to_string()]).status().unwrap();
    assert!(signalled.success());
    wait_until("the stop is reported", || look(&health, "/readyz").status == 503);
    assert_eq!(
        look(&health, "/healthz").status,
        200,
        "a probe must not kill a gateway that drains"
    );
}

#[test]
fn a_program_that_cannot_start_leaves_the_old_process_in_place() {
    let scene = Scene::new(1);
    scene.write(&[0], "");
    // Started under a name of its own, behind which another program is put.
    let program = scene.folder.path().join("weir");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    let gateway = Weir::serve().program(&program).admin().file(&scene.file()).start();
    for broken in ["#!/bin/sh\nexit 3\n", "no program at all"] {
        let beside = scene.folder.path().join("beside");
        std::fs::write(&beside, broken).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&beside, mode).unwrap();
        std::fs::rename(&beside, &program).unwrap();
        let told = weir(&["upgrade", "--admin", admin(&gateway)]);
        assert_eq!(told.status.code(), Some(1), "{}", text(&told.stdout));
        assert!(text(&told.stderr).contains("the old process continues"), "{}", text(&told.stderr));
    }
    assert!(gateway.log().contains("exit status: 3"), "{}", gateway.log());
    let right = scene.folder.path().join("right");
    std::fs::copy(env!("CARGO_BIN_EXE_weir"), &right).unwrap();
    std::fs::rename(&right, &program).unwrap();
    let told = weir(&["upgrade", "--admin", admin(&gateway)]);
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    let _successor = Successor(process(admin(&gateway)));
}

#[test]
fn a_signal_goes_to_no_other_process_of_the_same_number() {
    // An admin address that names this very test, as one that lives in a container might.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let own = std::process::id();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1024];
        let _ = std::io::Read::read(&mut stream, &mut head).unwrap();
        let body = format!("{{\"process\":{{\"id\":{own},\"start_ticks\":1}}}}");
        let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
        std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
    });
    let told = weir(&["reload", "--admin", &admin]);
    serving.join().unwrap();
    assert_eq!(told.status.code(), Some(1));
    assert!(text(&told.stderr).contains("another machine or container"), "{}", text(&told.stderr));
}
