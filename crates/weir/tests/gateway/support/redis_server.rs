//! Redis servers that run on free ports until the test ends, and a proxy that delays their traffic.

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

/// A `redis-server` process. It is killed when it is dropped.
pub(crate) struct Redis {
    child: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
    /// Options that `redis-cli` needs to connect: credentials or TLS files.
    cli_options: Vec<String>,
    _folder: TempDir,
    _reserved: [ReservedPort; 2],
}

impl Redis {
    /// Starts a server without persistence. `more` has further arguments of `redis-server`. Returns
    /// `None` if `redis-server` is not installed.
    pub(crate) fn start(more: &[&str]) -> Option<Redis> {
        Redis::start_with("--port", more, &[])
    }

    /// Starts a server that accepts only TLS.
    pub(crate) fn start_tls(more: &[&str], cli_options: &[&str]) -> Option<Redis> {
        Redis::start_with("--tls-port", &[&["--port", "0"], more].concat(), cli_options)
    }

    /// Starts a server that requires credentials. `more` must configure them.
    pub(crate) fn start_with_password(more: &[&str], cli_options: &[&str]) -> Option<Redis> {
        Redis::start_with("--port", more, cli_options)
    }

    fn start_with(listen: &str, more: &[&str], cli_options: &[&str]) -> Option<Redis> {
        let program = programs::require("redis-server")?;
        let folder = TempDir::new().unwrap();
        let reserved = reserve_ports();
        let port = reserved[0].address.port();
        let mut arguments: Vec<String> = Vec::new();
        let usual = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
        arguments.extend(usual.map(str::to_owned));
        arguments.push(folder.path().to_str().unwrap().to_owned());
        arguments.extend(more.iter().map(|more| (*more).to_owned()));
        arguments.extend([listen.to_owned(), port.to_string()]);
        let child = spawn(program, &arguments);
        let cli_options = cli_options.iter().map(|option| (*option).to_owned()).collect();
        let redis =
            Redis { child, port, arguments, cli_options, _folder: folder, _reserved: reserved };
        redis.wait_until_it_responds();
        Some(redis)
    }

    /// Starts a Sentinel that monitors a server under the name `main`.
    pub(crate) fn sentinel(monitored: &Redis) -> Option<Redis> {
        let program = programs::require("redis-server")?;
        let folder = TempDir::new().unwrap();
        let reserved = reserve_ports();
        let port = reserved[0].address.port();
        let file = folder.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nsentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n",
            monitored.port
        );
        std::fs::write(&file, text).unwrap();
        let arguments = vec![file.to_str().unwrap().to_owned(), "--sentinel".to_owned()];
        let child = spawn(program, &arguments);
        let redis = Redis {
            child,
            port,
            arguments,
            cli_options: Vec::new(),
            _folder: folder,
            _reserved: reserved,
        };
        redis.wait_until_it_responds();
        Some(redis)
    }

    /// Starts a cluster of three nodes without replicas.
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

    /// The URL of a cluster, with two of its nodes.
    pub(crate) fn cluster_url([a, b, _]: &[Redis; 3]) -> String {
        format!("redis-cluster://127.0.0.1:{}?node=127.0.0.1:{}", a.port, b.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs a command with `redis-cli` and returns its output.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        let port = self.port.to_string();
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port]).args(&self.cli_options).args(arguments);
        let output = command.output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// The Redis keys under which gateways have stored responses of the chain `sim`.
    pub(crate) fn response_keys(&self) -> Vec<String> {
        let keys = self.cli(&["KEYS", "weir:sim:*:*"]);
        keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    /// Sends a signal, such as `-STOP`, to the process.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Kills the process, as a power failure would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again on the same port, without its data.
    pub(crate) fn start_again(&mut self) {
        self.child = spawn(programs::find("redis-server").unwrap(), &self.arguments);
        self.wait_until_it_responds();
    }

    fn wait_until_it_responds(&self) {
        wait_until("redis answers", || self.cli(&["PING"]) == "PONG");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // The process may have ended already, for example by `Redis::kill`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: PathBuf, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Reserves a port and Redis's cluster bus port, which is 10,000 above it.
fn reserve_ports() -> [ReservedPort; 2] {
    loop {
        let port = ReservedPort::new();
        let cluster = port.address.port().checked_add(10_000).map(ReservedPort::at);
        if let Some(Ok(cluster)) = cluster {
            return [port, cluster];
        }
    }
}

/// A TCP proxy that delays or holds back the bytes between clients and a server.
pub(crate) struct DelayProxy {
    /// The port on which the proxy accepts clients.
    pub(crate) port: u16,
    delay_ms: Arc<AtomicU64>,
    /// True if the proxy holds back all bytes.
    held: Arc<AtomicBool>,
}

impl DelayProxy {
    /// Starts a proxy in front of the server on this port.
    pub(crate) fn in_front_of(port: u16) -> DelayProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy_port = listener.local_addr().unwrap().port();
        let (delay_ms, held) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let settings = (Arc::clone(&delay_ms), Arc::clone(&held));
        // The thread runs until the test's process ends.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let (client_copy, server_copy) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (to_server, to_client) = (settings.clone(), settings.clone());
                std::thread::spawn(move || forward_bytes(client, server, &to_server));
                std::thread::spawn(move || forward_bytes(server_copy, client_copy, &to_client));
            }
        });
        DelayProxy { port: proxy_port, delay_ms, held }
    }

    /// Delays the bytes by this many milliseconds in each direction.
    pub(crate) fn set_delay_ms(&self, ms: u64) {
        self.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// Holds back all bytes while `held` is true.
    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Ordering::Relaxed);
    }
}

/// Forwards bytes in one direction. `settings` are the delay in milliseconds and `held`.
fn forward_bytes(
    mut from: TcpStream,
    mut to: TcpStream,
    settings: &(Arc<AtomicU64>, Arc<AtomicBool>),
) {
    let (delay_ms, held) = settings;
    let mut chunk = [0; 16 * 1024];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        while held.load(Ordering::Relaxed) {
            pause(Duration::from_millis(5)); // Sleeps: the interval of polling `held`.
        }
        // Sleeps: the delay of the link.
        pause(Duration::from_millis(delay_ms.load(Ordering::Relaxed)));
        if to.write_all(&chunk[..bytes]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
