//! Starts and ends the servers under test: Weir, its peers and the constant node. Each server is
//! started for its round (one run of load), pinned to a core, and ended with its whole process
//! group. A *contender* is a server that is compared with others.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::http;
use crate::shell;

/// The core of the server under test.
pub(crate) const SERVER_CORE: &str = "0";
/// The core of the load and of the constant node.
pub(crate) const LOAD_CORE: &str = "1";
/// Timeout for a server's first response. Weir probes its nodes before it responds.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// Time from SIGTERM to SIGKILL for a server that does not end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// A call to which each node responds at once. A response shows that a server is ready.
pub(crate) const PROBE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId","params":[]}"#;
/// Limit of client connections of each server. No case opens more connections.
const CONNECTIONS: usize = 12_000;

/// Cache settings of Weir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cache {
    /// The default settings.
    Default,
    /// `--no-cache`.
    Off,
    /// A size limit in bytes.
    Bytes(u64),
}

/// A server that can be measured. `label` is its name in tables, `program` is the path of `weir`,
/// and `node`, `nodes` or `url` are the nodes behind it. `response` is the text of a constant
/// response.
#[derive(Debug, Clone)]
pub(crate) enum Contender {
    /// Weir in front of these nodes.
    Weir { label: &'static str, program: PathBuf, nodes: Vec<SocketAddr>, cache: Cache },
    /// Weir with a cache of 64 MiB, or with none if `cache` is false. Its configuration ends with
    /// the lines `extra`.
    WeirConfigured {
        label: &'static str,
        program: PathBuf,
        nodes: Vec<SocketAddr>,
        cache: bool,
        extra: String,
    },
    /// Weir without a cache, in front of one node at any URL.
    WeirUncached { label: &'static str, program: PathBuf, url: String },
    /// nginx with a constant response.
    NginxReturn { response: String },
    /// nginx with `proxy_cache` on POST.
    NginxCache { node: SocketAddr },
    /// nginx with `proxy_pass` over keep-alive connections.
    NginxProxy { node: SocketAddr },
    /// HAProxy over keep-alive connections.
    Haproxy { node: SocketAddr },
    /// nginx in front of several nodes.
    NginxBalancer { nodes: Vec<SocketAddr> },
    /// HAProxy in front of several nodes.
    HaproxyBalancer { nodes: Vec<SocketAddr> },
}

impl Contender {
    /// Returns the name in tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Weir { label, .. }
            | Self::WeirConfigured { label, .. }
            | Self::WeirUncached { label, .. } => label,
            Self::NginxReturn { .. } => "nginx return",
            Self::NginxCache { .. } => "nginx proxy_cache",
            Self::NginxProxy { .. } => "nginx proxy_pass",
            Self::Haproxy { .. } | Self::HaproxyBalancer { .. } => "haproxy",
            Self::NginxBalancer { .. } => "nginx",
        }
    }

    /// Returns the header, and its value, that marks a response from this server's cache.
    pub(crate) fn cache_hit_header(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Weir { .. } | Self::WeirConfigured { .. } => Some(("x-weir-cache", "hit")),
            Self::NginxCache { .. } => Some(("x-cache", "HIT")),
            _ => None,
        }
    }

    /// Returns the command that serves on `port`, with its files in `folder`. A template is a
    /// configuration file with placeholders such as `@PORT@`.
    fn build_command(&self, port: u16, folder: &Path) -> Result<Command> {
        let write_config =
            |template: &str, name: &str, values: &[(&str, String)]| -> Result<PathBuf> {
                let path = folder.join(name);
                let mut text = template
                    .replace("@PORT@", &port.to_string())
                    .replace("@DIR@", &folder.display().to_string())
                    .replace("@CONNECTIONS@", &CONNECTIONS.to_string())
                    // A connection needs a second file descriptor while its call is at the node.
                    .replace("@FILES@", &(CONNECTIONS * 3 / 2).to_string());
                for (placeholder, value) in values {
                    text = text.replace(placeholder, value);
                }
                fs::write(&path, text)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Ok(path)
            };
        let nginx = |template: &str, values: &[(&str, String)]| -> Result<Command> {
            let mut command = pinned_command(SERVER_CORE);
            command.args(["nginx", "-e"]).arg(folder.join("error.log")).arg("-p").arg(folder);
            command.arg("-c").arg(write_config(template, "nginx.conf", values)?);
            Ok(command)
        };
        let haproxy = |template: &str, values: &[(&str, String)]| -> Result<Command> {
            let mut command = pinned_command(SERVER_CORE);
            command.args(["haproxy", "-q", "-db", "-f"]);
            command.arg(write_config(template, "haproxy.cfg", values)?);
            Ok(command)
        };
        let weir = |program: &Path, template: &str, values: &[(&str, String)]| -> Result<Command> {
            let mut command = pinned_command(SERVER_CORE);
            command.arg(program).arg("serve");
            command.arg(write_config(template, "weir.toml", values)?);
            Ok(command)
        };
        let weir_by_options = |program: &Path, urls: &[String], is_cache_on: bool| {
            let mut command = pinned_command(SERVER_CORE);
            command.arg(program).arg("serve");
            for url in urls {
                command.args(["--upstream", url]);
            }
            let listen = format!("127.0.0.1:{port}");
            command.args(["--listen", &listen, "--admin", "off", "--threads", "1"]);
            if !is_cache_on {
                command.arg("--no-cache");
            }
            command
        };
        match self {
            Self::Weir { program, nodes, cache: Cache::Bytes(bytes), .. } => {
                let (is_cache_on, extra) = (true, "");
                let values = weir_values(nodes, *bytes, is_cache_on, extra);
                weir(program, include_str!("weir.toml"), &values)
            }
            Self::Weir { program, nodes, cache, .. } => {
                let urls: Vec<String> = nodes.iter().map(|node| format!("http://{node}")).collect();
                Ok(weir_by_options(program, &urls, *cache != Cache::Off))
            }
            Self::WeirConfigured { program, nodes, cache, extra, .. } => {
                let values = weir_values(nodes, 64 << 20, *cache, extra);
                weir(program, include_str!("weir.toml"), &values)
            }
            Self::WeirUncached { program, url, .. } => {
                let is_cache_on = false;
                Ok(weir_by_options(program, std::slice::from_ref(url), is_cache_on))
            }
            Self::NginxReturn { response } => {
                nginx(include_str!("nginx_return.conf"), &[("@ANSWER@", response.clone())])
            }
            Self::NginxCache { node } => {
                nginx(include_str!("nginx_cache.conf"), &[("@BACKEND@", node.to_string())])
            }
            Self::NginxProxy { node } => {
                nginx(include_str!("nginx_proxy.conf"), &[("@BACKEND@", node.to_string())])
            }
            Self::Haproxy { node } => {
                haproxy(include_str!("haproxy.cfg"), &[("@BACKEND@", node.to_string())])
            }
            Self::NginxBalancer { nodes } => {
                let server =
                    |node: &SocketAddr| format!("    server {node} max_fails=1 fail_timeout=1s;\n");
                let servers = nodes.iter().map(server).collect();
                nginx(include_str!("nginx_balancer.conf"), &[("@NODES@", servers)])
            }
            Self::HaproxyBalancer { nodes } => {
                let server =
                    |(index, node): (usize, &SocketAddr)| format!("  server n{index} {node}\n");
                let servers = nodes.iter().enumerate().map(server).collect();
                haproxy(include_str!("haproxy_balancer.cfg"), &[("@NODES@", servers)])
            }
        }
    }
}

/// Returns the values of the placeholders in `weir.toml`.
fn weir_values(
    nodes: &[SocketAddr],
    cache_bytes: u64,
    is_cache_on: bool,
    extra: &str,
) -> [(&'static str, String); 4] {
    [
        ("@NODES@", upstream_tables(nodes)),
        ("@BYTES@", cache_bytes.to_string()),
        ("@CACHE@", is_cache_on.to_string()),
        ("@MORE@", extra.to_owned()),
    ]
}

/// Returns the `[[upstream]]` tables of these nodes.
fn upstream_tables(nodes: &[SocketAddr]) -> String {
    let entry = |(index, node): (usize, &SocketAddr)| {
        format!("[[upstream]]\nname = \"n{index}\"\nurl = \"http://{node}\"\n")
    };
    nodes.iter().enumerate().map(entry).collect()
}

/// Returns a command that runs a program on one core. The caller adds the program as the first
/// argument.
pub(crate) fn pinned_command(core: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", core]);
    command
}

/// A running server; dropping it ends its process group and removes its files.
pub(crate) struct Server {
    child: Child,
    /// Listen address of the server.
    pub(crate) address: SocketAddr,
    /// Folder of its files, which is removed at the end.
    folder: PathBuf,
}

impl Server {
    /// Starts `contender` and returns once it responds to `probe`, a JSON-RPC call, with status
    /// 200.
    ///
    /// # Errors
    /// Fails if the server cannot be started or does not respond in time. The message quotes its
    /// output.
    pub(crate) fn start(contender: &Contender, probe: &str) -> Result<Self> {
        let folder = create_scratch_folder(contender.name())?;
        let port = find_free_ports(1)?[0].port();
        let command = contender.build_command(port, &folder)?;
        Self::spawn(contender.name(), command, port, folder, probe)
    }

    /// Starts the constant node on this many ports. Returns the node with its addresses. A gateway
    /// treats each address as a separate node.
    ///
    /// # Errors
    /// Same as [`Server::start`].
    pub(crate) fn start_backend(ports: usize, probe: &str) -> Result<(Self, Vec<SocketAddr>)> {
        Self::start_backend_on(LOAD_CORE, ports, probe)
    }

    /// Starts the constant node like [`Server::start_backend`], but on a given core. A load
    /// generator under test runs on the other core.
    ///
    /// # Errors
    /// Same as [`Server::start`].
    pub(crate) fn start_backend_on(
        core: &str,
        ports: usize,
        probe: &str,
    ) -> Result<(Self, Vec<SocketAddr>)> {
        let addresses = find_free_ports(ports)?;
        let mut command = pinned_command(core);
        command.arg(shell::root().join("target/release/xtask")).arg("backend");
        for address in &addresses {
            command.args(["--listen", &address.to_string()]);
        }
        let port = addresses[0].port();
        let server = Self::spawn(
            "the constant node",
            command,
            port,
            create_scratch_folder("backend")?,
            probe,
        )?;
        Ok((server, addresses))
    }

    /// Starts a simulated node (`weir node`), alone on the server's core. `extra` holds further
    /// arguments.
    ///
    /// # Errors
    /// Same as [`Server::start`].
    pub(crate) fn start_simulated(weir: &Path, extra: &[&str], probe: &str) -> Result<Self> {
        let address = find_free_ports(1)?[0];
        let mut command = pinned_command(SERVER_CORE);
        command.arg(weir).args(["node", "--listen", &address.to_string()]).args(extra);
        let folder = create_scratch_folder("simnode")?;
        Self::spawn("the simulated node", command, address.port(), folder, probe)
    }

    /// Starts a command and returns once it responds to `probe` on this port with status 200.
    /// `folder` holds the files of the server.
    ///
    /// # Errors
    /// Same as [`Server::start`].
    pub(crate) fn spawn(
        name: &str,
        mut command: Command,
        port: u16,
        folder: PathBuf,
        probe: &str,
    ) -> Result<Self> {
        let log = fs::File::create(folder.join("out.log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut server = Self { child, address, folder };
        let started = Instant::now();
        loop {
            let reply = http::post(address, probe);
            if reply.as_ref().is_ok_and(|reply| reply.status == 200) {
                return Ok(server);
            }
            let exited = server.child.try_wait()?;
            if exited.is_some() || started.elapsed() > READY_TIMEOUT {
                let log = fs::read_to_string(server.folder.join("out.log")).unwrap_or_default();
                let response = reply.map_or_else(
                    |error| format!("{error:#}"),
                    |reply| format!("{} {}", reply.status, String::from_utf8_lossy(&reply.body)),
                );
                anyhow::bail!("{name} does not serve ({response}); it printed: {}", log.trim_end());
            }
            shell::pause(Duration::from_millis(20));
        }
    }

    /// Returns the id of the server's process group.
    pub(crate) fn group(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal (`-STOP`, `-CONT`, …) to the whole group.
    pub(crate) fn send_signal(&self, name: &str) {
        let group = format!("-{}", self.child.id());
        // The group may have ended already.
        let _ignored =
            Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.send_signal("-TERM");
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > END_TIMEOUT {
                self.send_signal("-KILL");
                break;
            }
            shell::pause(Duration::from_millis(10));
        }
        let _ignored = self.child.wait();
        let _ignored = fs::remove_dir_all(&self.folder);
    }
}

/// A temporary folder that belongs to no server. Dropping this value removes the folder.
pub(crate) struct ScratchFolder(pub(crate) PathBuf);

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        let _ignored = fs::remove_dir_all(&self.0);
    }
}

/// Creates an empty folder, in memory if possible, so that the speed of a disk does not affect the
/// results.
pub(crate) fn create_scratch_folder(name: &str) -> Result<PathBuf> {
    let memory_folder = Path::new("/dev/shm");
    let base = match memory_folder.is_dir() {
        true => memory_folder.to_owned(),
        false => std::env::temp_dir(),
    };
    let name = name.replace(' ', "-");
    for number in 0..1000 {
        let folder = base.join(format!("weir-bench-{}-{name}-{number}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", folder.display()));
            }
        }
    }
    anyhow::bail!("1000 scratch folders in {} are taken", base.display())
}

/// Returns local addresses with `count` free ports. The ports are still free when the server binds
/// them, because the kernel does not assign a port twice in a row. This holds only if the machine
/// runs nothing but the bench.
pub(crate) fn find_free_ports(count: usize) -> Result<Vec<SocketAddr>> {
    ensure!(count > 0, "count is 0, at least 1 is needed");
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}
