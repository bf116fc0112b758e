//! Redis servers of a test: started on free ports, ended with it; and a proxy that delays them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use test_support::port::ReservedPort;
use test_support::programs;
use test_support::wait::{pause, wait_until};

/// A `redis-server` process.
pub(crate) struct Redis {
    child: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
    /// What `redis-cli` needs to be let in.
    access: Vec<String>,
    _folder: TempDir,
    _reserved: [ReservedPort; 2],
}

impl Redis {
    /// A server that keeps nothing on disk; none where the program is missing, which is noted.
    pub(crate) fn start(more: &[&str]) -> Option<Redis> {
        Redis::start_with("--port", more, &[])
    }

    /// One that speaks TLS only, with these options for it; `access` is for `redis-cli`.
    pub(crate) fn start_tls(more: &[&str], access: &[&str]) -> Option<Redis> {
        Redis::start_with("--tls-port", &[&["--port", "0"], more].concat(), access)
    }

    /// Starts a server with a password; `access` has the options for `redis-cli`.
    pub(crate) fn start_closed(more: &[&str], access: &[&str]) -> Option<Redis> {
        Redis::start_with("--port", more, access)
    }

    fn start_with(listen: &str, more: &[&str], access: &[&str]) -> Option<Redis> {
        let program = programs::require("redis-server")?;
        let folder = TempDir::new().unwrap();
        let reserved = reserve();
        let port = reserved[0].address.port();
        let mut arguments: Vec<String> = Vec::new();
        let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
        arguments.extend(usual.map(str::to_owned));
        arguments.push(folder.path().to_str().unwrap().to_owned());
        arguments.extend(more.iter().map(|more| (*more).to_owned()));
        arguments.extend([listen.to_owned(), port.to_string()]);
        let child = spawn(program, &arguments);
        let access = access.iter().map(|access| (*access).to_owned()).collect();
        let redis = Redis { child, port, arguments, access, _folder: folder, _reserved: reserved };
        redis.wait();
        Some(redis)
    }

    /// A sentinel that watches a server as `main`.
    pub(crate) fn sentinel(of: &Redis) -> Option<Redis> {
        let program = programs::require("redis-server")?;
        let folder = TempDir::new().unwrap();
        let reserved = reserve();
        let port = reserved[0].address.port();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n",
            of.port
        );
        std::fs::write(&file, text).unwrap();
        let arguments = vec![file.to_str().unwrap().to_owned(), "--sentinel".to_owned()];
        let child = spawn(program, &arguments);
        let redis = Redis {
            child,
            port,
            arguments,
            access: Vec::new(),
            _folder: folder,
            _reserved: reserved,
        };
        redis.wait();
        Some(redis)
    }

    /// A cluster of three.
    pub(crate) fn cluster() -> Option<[Redis; 3]> {
        let on = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
        let nodes = [Redis::start(&on)?, Redis::start(&on)?, Redis::start(&on)?];
        let [a, b, c] = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port));
        let create = ["--cluster", "create", &a, &b, &c];
        let made =
            nodes[0].cli(&[&create[..], &["--cluster-replicas", "0", "--cluster-yes"]].concat());
        assert!(made.contains("All 16384 slots covered"), "{made}");
        wait_until("the cluster is up", || {
            nodes.iter().all(|node| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"))
        });
        Some(nodes)
    }

    /// The address of a cluster, by two of its nodes.
    pub(crate) fn cluster_url([a, b, _]: &[Redis; 3]) -> String {
        format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", a.port, b.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` prints for a command.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let mut command = Command::new("redis-cli");
        let said = command.args(["-p", &port]).args(&self.access).args(arguments).output().unwrap();
        String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
    }

    /// Keys of the stored responses.
    pub(crate) fn answers(&self) -> Vec<String> {
        let keys = self.cli(&["KEYS", "weir:sim:*:*"]);
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// As when its machine loses power.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again where it was, empty.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(programs::find("redis-server").unwrap(), &self.arguments);
        self.wait();
    }

    fn wait(&self) {
        wait_until("redis answers", || self.cli(&["PING"]) == "PONG");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended by itself, which a test that cares has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: PathBuf, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A port and its cluster port, which is 10,000 above it.
fn reserve() -> [ReservedPort; 2] {
    loop {
        let port = ReservedPort::new();
        let cluster = port.address.port().checked_add(10_000).map(ReservedPort::at);
        if let Some(Ok(cluster)) = cluster {
            return [port, cluster];
        }
    }
}

/// Passes bytes between clients and a server, late or not at all.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    delay_ms: Arc<AtomicU64>,
    held: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap().port();
        let (delay_ms, held) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let settings = (Arc::clone(&delay_ms), Arc::clone(&held));
        // It ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let both = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back) = (settings.clone(), settings.clone());
                std::thread::spawn(move || pass(client, server, &there));
                std::thread::spawn(move || pass(both.1, both.0, &back));
            }
        });
        Proxy { port: own, delay_ms, held }
    }

    /// Every piece comes so much later, each way.
    pub(crate) fn delay(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// Nothing comes through while it is held.
    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, settings: &(Arc<AtomicU64>, Arc<AtomicBool>)) {
    let mut piece = [0; 16 * 1024];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        while settings.1.load(Ordering::Relaxed) {
            pause(Duration::from_millis(5)); // Sleeps: between two looks.
        }
        // Sleeps: the delay of the link.
        pause(Duration::from_millis(settings.0.load(Ordering::Relaxed)));
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
