//! Goal: the container image works with a read-only root file system, as user 65532, and without a
//! shell. Method: umoci unpacks the image that `cargo xtask check` writes, and runc runs it. Its
//! upstream is another gateway with TLS, whose name only a DNS server of this test resolves. The
//! container shares the network of the machine.

mod dns;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use test_support::programs;
use test_support::proxy::start_proxy;
use test_support::raw::{Client, post};
use test_support::running::{Running, Weir, command_killed_with_test, spawn};
use test_support::wait::wait_until;

use crate::packages::release_file;
use crate::support::authority::{Authority, ConfigFiles, KeyType};

/// Maximum size of the program in a release, in bytes. A debug build is larger.
const PROGRAM_BYTES_MAX: u64 = 45_000_000;
/// The user id of the image.
const USER: u32 = 65532;
/// Timeout of a call, above its duration on a busy machine.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A host name that only the DNS server of the test resolves.
const UPSTREAM: &str = "upstream.test";
const CHAIN_ID: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
const BALANCE: &str = r#"{"jsonrpc":"2.0","id":2,"method":"eth_getBalance","params":["0x0000000000000000000000000000000000000001","latest"]}"#;

/// A running container.
struct Container {
    runc: PathBuf,
    name: String,
    process: Child,
    address: String,
}

impl Container {
    /// Starts the container of an OCI bundle and waits until it prints its address.
    fn start(runc: &Path, bundle: &Path) -> Container {
        let name = format!("weir-test-{}", std::process::id());
        let mut command = command_killed_with_test(runc);
        command.args(["run", "--bundle"]).arg(bundle).arg(&name);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = spawn(command).unwrap();
        let stdout = process.stdout.take().unwrap();
        let mut container =
            Container { runc: runc.to_owned(), name, process, address: String::new() };
        for line in BufReader::new(stdout).lines() {
            if let Some((_, address)) = line.unwrap().split_once("listens on http://") {
                let end = address.find([' ', ',', '/']).unwrap_or(address.len());
                container.address = address[..end].to_owned();
                return container;
            }
        }
        panic!("the container ended before it listened");
    }

    /// Returns the value of a line of /proc/PID/status.
    fn process_status(&self, key: &str) -> String {
        let state = Command::new(&self.runc).args(["state", &self.name]).output().unwrap();
        let state: Value = serde_json::from_slice(&state.stdout).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/status", state["pid"])).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().to_owned()
    }

    fn kill(&self, signal: &str) {
        let status = Command::new(&self.runc).args(["kill", &self.name, signal]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut command = Command::new(&self.runc);
        // A container that has ended by itself does not exist any more.
        let _ = command.args(["delete", "--force", &self.name]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}

/// Unpacks the image. Returns `None` and records a skip if a program, the image or the rights of
/// root are missing.
fn unpack_image() -> Option<TempDir> {
    let (umoci, archive) = (programs::require("umoci")?, release_file(".tar")?);
    if !rustix::process::geteuid().is_root() {
        programs::skip_missing("root, to run a container");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("image");
    std::fs::create_dir(&layout).unwrap();
    let mut command = Command::new("tar");
    command.arg("--extract").arg("--file").arg(archive).arg("--directory").arg(&layout);
    assert!(command.status().unwrap().success());
    let image = format!("{}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    let mut command = Command::new(umoci);
    command.args(["unpack", "--image", &image]).arg(folder.path().join("bundle"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(folder)
}

/// Makes the root file system read-only, and binds files of the machine into the container.
fn configure(bundle: &Path, binds: &[(&Path, &str)]) {
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(config["process"]["user"]["uid"], USER);
    let command = json!(["/usr/bin/weir", "serve", "/etc/weir/gateway.toml"]);
    assert_eq!(config["process"]["args"], command);
    config["root"]["readonly"] = json!(true);
    config["process"]["terminal"] = json!(false);
    config["process"]["capabilities"] = json!({});
    config["process"]["noNewPrivileges"] = json!(true);
    let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
    namespaces.retain(|namespace| namespace["type"] != "network");
    let mounts = config["mounts"].as_array_mut().unwrap();
    let bound: Vec<_> = binds.iter().map(|(_, path)| json!(path)).collect();
    mounts.retain(|mount| !bound.contains(&mount["destination"]));
    for (source, destination) in binds {
        mounts.push(json!({
            "source": source, "destination": destination, "type": "bind",
            "options": ["bind", "ro", "nosuid", "nodev", "noexec"],
        }));
    }
    std::fs::write(path, config.to_string()).unwrap();
}

/// Starts a gateway with TLS, whose upstream has this URL. Returns the gateway, the folder with its
/// files, and the certificate of its authority.
fn start_upstream(url: &str) -> (Running, ConfigFiles, String) {
    let (authority, mut files) = (Authority::new("test"), ConfigFiles::new());
    files.write_certificate("upstream", &authority, KeyType::Ecdsa, &[UPSTREAM]);
    let text = format!(
        "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n[cache]\nenabled = false\n[[certificate]]\n\
         chain_file = \"upstream.pem\"\nkey_file = \"upstream.key\"\n[[upstream]]\nurl = \"{url}\"\n"
    );
    let path = files.write("upstream.toml", text.as_bytes());
    let gateway = Weir::serve().listen_as_configured().file(&path).start();
    (gateway, files, authority.pem())
}

#[test]
fn it_resolves_and_verifies_its_upstream_and_drains() {
    let Some(runc) = programs::require("runc") else { return };
    let Some(folder) = unpack_image() else { return };
    let node = Weir::node().args(&["--block-time", "1h"]).start();
    let (received, slow) = sync_channel(1);
    let (release, released) = sync_channel(1);
    let released = Arc::new(Mutex::new(released));
    // The proxy holds back the response to one call until the test releases it.
    let proxy = start_proxy(&node.address, move |request, response| {
        if request.contains("eth_getBalance") {
            // These operations fail only after the end of the test.
            let _ = received.send(());
            let _ = released.lock().recv();
        }
        response
    });
    let (upstream, _files, authority) = start_upstream(&proxy);
    let Some(dns) = dns::Server::start(UPSTREAM, Ipv4Addr::LOCALHOST) else {
        return programs::skip_missing("a free port 53 of a loopback address");
    };

    let configuration = folder.path().join("configuration");
    std::fs::create_dir(&configuration).unwrap();
    let port = upstream.address.rsplit_once(':').unwrap().1;
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"off\"\ndrain_deadline = \"20s\"\n\
         [cache]\nenabled = false\n[[upstream]]\nurl = \"https://{UPSTREAM}:{port}\"\n\
         tls_ca = \"authority.pem\"\n"
    );
    std::fs::write(configuration.join("gateway.toml"), text).unwrap();
    std::fs::write(configuration.join("authority.pem"), authority).unwrap();
    let resolver = folder.path().join("resolv.conf");
    std::fs::write(&resolver, format!("nameserver {}\n", dns.address)).unwrap();
    let bundle = folder.path().join("bundle");
    configure(&bundle, &[(&configuration, "/etc/weir"), (&resolver, "/etc/resolv.conf")]);

    let started = Instant::now();
    let mut container = Container::start(&runc, &bundle);
    let expected = [USER; 4].map(|user| user.to_string()).join("\t");
    assert_eq!(container.process_status("Uid:"), expected);
    assert_eq!(container.process_status("CapEff:"), "0000000000000000");
    let mut client = Client::connect(&container.address);
    let response = client.call("/", CHAIN_ID.as_bytes());
    println!("the container started and responded within {:?}", started.elapsed());
    assert!(response.text().contains("\"result\":\"0x"), "{}", response.text());
    assert!(dns.questions() > 0, "the name was not resolved");

    // After SIGTERM the call in flight gets its response, then the container exits with code 0.
    client.send(&post("/", BALANCE.as_bytes()));
    slow.recv_timeout(CALL_TIMEOUT).expect("the node has received the call");
    container.kill("TERM");
    // When the drain begins, the gateway closes its listener.
    wait_until("new connections are refused", || TcpStream::connect(&container.address).is_err());
    release.send(()).unwrap();
    let response = client.read_response().expect("the call in flight gets its response");
    assert!(response.text().contains("\"result\":\"0x"), "{}", response.text());
    drop(client);
    assert!(container.process.wait().unwrap().success());
}

#[test]
fn it_contains_the_program_and_three_files() {
    let Some(folder) = unpack_image() else { return };
    let root = folder.path().join("bundle/rootfs");
    let list = Command::new("find").arg(&root).args(["-type", "f", "-printf", "%m %P\n"]).output();
    let list = String::from_utf8(list.unwrap().stdout).unwrap();
    let mut files: Vec<_> = list.lines().collect();
    files.sort_unstable();
    let expected = ["644 etc/group", "644 etc/nsswitch.conf", "644 etc/passwd", "755 usr/bin/weir"];
    assert_eq!(files, expected);
    let size = root.join("usr/bin/weir").metadata().unwrap().len();
    println!("the program has {size} bytes");
    if std::env::var_os("WEIR_RELEASE_FILES").is_some() {
        assert!(size <= PROGRAM_BYTES_MAX, "the program of the release has {size} bytes");
    }
}
