//! A `weir` process for a test: starts it, checks that it has not panicked, measures its memory,
//! and kills it.
//!
//! `weir` runs as a separate process, so that the test can detect its panics, aborts and leaks, and
//! measure its memory.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use tempfile::NamedTempFile;

/// Returns a command whose process the kernel kills when the test process ends, even if the test
/// process is killed. Start the command with [`spawn`].
pub fn command_killed_with_test(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts a process from a thread that runs as long as the test process.
///
/// The kernel kills a process of [`command_killed_with_test`] when the thread that started it ends.
/// The thread of a single test may end too early.
pub fn spawn(command: Command) -> io::Result<Child> {
    /// A command, and the channel for its started process.
    type Request = (Command, SyncSender<io::Result<Child>>);
    static STARTER: LazyLock<SyncSender<Request>> = LazyLock::new(|| {
        let (sender, requests) = sync_channel::<Request>(1);
        std::thread::spawn(move || {
            for (mut command, reply) in requests {
                // The send cannot fail, because the caller below waits for this reply.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, child) = sync_channel(1);
    STARTER.send((command, reply)).expect("the starter's thread runs");
    child.recv().expect("the starter's thread runs")
}

/// Returns the path of the `weir` that cargo built for the running test.
///
/// # Panics
/// Panics if the test is not a test of the crate `weir`. Cargo sets the path only for that crate.
pub fn weir() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_weir").expect("a test of the crate weir runs").into()
}

/// The options of a `weir serve`, `weir node` or `weir probe` to start. By default it listens on a
/// free port of 127.0.0.1 and has no admin listener.
pub struct Weir {
    program: PathBuf,
    /// The subcommand, such as `serve`.
    command: &'static str,
    /// `None` if the process listens as configured.
    listen: Option<String>,
    /// True if the process has an admin listener.
    admin: bool,
    options: Vec<String>,
    /// Configuration file. It is removed once the process listens, because `weir` has then read it.
    config: Option<NamedTempFile>,
}

impl Weir {
    /// Returns the options of a gateway.
    pub fn serve() -> Weir {
        Weir::new("serve")
    }

    /// Returns the options of a simulated node.
    pub fn node() -> Weir {
        Weir::new("node")
    }

    /// Returns the options of a probe, which sends a small load to nodes and measures them. It
    /// listens for scrapes.
    pub fn probe() -> Weir {
        Weir::new("probe")
    }

    fn new(command: &'static str) -> Weir {
        Weir {
            program: weir(),
            command,
            listen: Some("127.0.0.1:0".to_owned()),
            admin: false,
            options: Vec::new(),
            config: None,
        }
    }

    /// Uses another program file, such as a copy.
    pub fn program(mut self, program: &Path) -> Weir {
        program.clone_into(&mut self.program);
        self
    }

    /// Listens on this address.
    pub fn listen(mut self, address: &str) -> Weir {
        self.listen = Some(address.to_owned());
        self
    }

    /// Listens as configured. A gateway that listens only with TLS needs this.
    pub fn listen_as_configured(mut self) -> Weir {
        self.listen = None;
        self
    }

    /// Enables the admin listener.
    pub fn admin(mut self) -> Weir {
        self.admin = true;
        self
    }

    /// Passes further arguments.
    pub fn args(mut self, arguments: &[&str]) -> Weir {
        self.options.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Uses the upstreams at these URLs.
    pub fn upstreams(self, urls: &[String]) -> Weir {
        urls.iter().fold(self, |weir, url| weir.args(&["--upstream", url]))
    }

    /// Uses a configuration file with this text.
    pub fn config(self, toml: &str) -> Weir {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
        file.write_all(toml.as_bytes()).expect("the file is writable");
        let mut weir = self.file(file.path());
        weir.config = Some(file);
        weir
    }

    /// Uses a configuration file of the test.
    pub fn file(self, file: &Path) -> Weir {
        self.args(&[file.to_str().expect("the file's name is text")])
    }

    /// Starts the process and waits until it prints its listen addresses.
    ///
    /// # Panics
    /// Panics if the process ends before it listens.
    pub fn start(self) -> Running {
        let log = NamedTempFile::new().expect("a file for the log");
        let mut command = command_killed_with_test(&self.program);
        command.arg(self.command);
        if let Some(address) = &self.listen {
            command.args(["--listen", address]);
        }
        match (self.admin, self.command) {
            (true, _) => drop(command.args(["--admin", "127.0.0.1:0"])),
            (false, "serve") => drop(command.args(["--admin", "off"])),
            (false, _) => {}
        }
        command
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().expect("the log opens twice"));
        let mut child = spawn(command).expect("weir starts");
        let stdout = child.stdout.take().expect("standard output is piped");
        let mut running = Running { child, log, address: String::new(), admin: None };
        let address_at_start =
            |text: &str| text[..text.find([' ', ',', '/']).unwrap_or(text.len())].to_owned();
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("weir prints text");
            let http = line.split_once("listens on http://");
            let listens = http.or_else(|| line.split_once("listens on https://"));
            if let Some((_, after_scheme)) = listens {
                running.address = address_at_start(after_scheme);
            } else if let Some((_, after_scheme)) = line.split_once(" on http://") {
                running.admin = Some(address_at_start(after_scheme));
            }
            if !running.address.is_empty() && (running.admin.is_some() || !self.admin) {
                return running;
            }
        }
        panic!(
            "weir {} {:?} ended before it listened: {}",
            self.command,
            self.options,
            running.log()
        );
    }
}

/// A running `weir serve`, `weir node` or `weir probe`. Dropping this value kills the process.
pub struct Running {
    child: Child,
    log: NamedTempFile,
    /// Address for calls, or for scrapes of a probe, as `127.0.0.1:PORT`.
    pub address: String,
    /// Admin address. `None` without an admin listener.
    pub admin: Option<String>,
}

impl Running {
    /// Sends the process a signal such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.id().to_string();
        let status = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(status.success(), "kill {signal} {id}");
    }

    /// Waits until the process ends by itself, and returns its exit status.
    pub fn wait_for_exit(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("the process is our child")
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Changes the settings of a simulated node with an admin listener.
    pub fn set_node_settings(&self, settings: &str) {
        let address = self.admin.as_ref().expect("the node has an admin address");
        let mut stream = TcpStream::connect(address).expect("the node listens there");
        let length = settings.len();
        let request = format!(
            "POST /faults HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{settings}"
        );
        stream.write_all(request.as_bytes()).expect("the node reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("the node responds");
        assert!(response.starts_with("HTTP/1.1 2"), "{response}");
    }

    /// Returns the URL for calls.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the log so far: the standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("the log is text")
    }

    /// Fails the test if the process has ended or a thread has panicked.
    pub fn assert_sound(&mut self) {
        let status = self.child.try_wait().expect("the process is our child");
        let log = self.log();
        assert!(status.is_none(), "weir ended with {status:?}: {log}");
        assert!(!log.contains("panicked"), "a thread of weir panicked: {log}");
    }

    /// Returns the resident memory in bytes: current and peak.
    pub fn memory(&self) -> (u64, u64) {
        let path = Path::new("/proc").join(self.child.id().to_string()).join("status");
        let text = std::fs::read_to_string(path).expect("the process runs");
        let field_bytes = |name: &str| {
            let line =
                text.lines().find(|line| line.starts_with(name)).expect("Linux has the field");
            let kib = line.split_whitespace().nth(1).expect("a value follows");
            kib.parse::<u64>().expect("the value is a number") * 1024
        };
        (field_bytes("VmRSS:"), field_bytes("VmHWM:"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // This fails if the process has ended by itself. Then a test that needs the process has
        // failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
