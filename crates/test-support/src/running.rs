//! A `weir` process for a test: starts it, checks it for panics and memory, and kills it.
//!
//! It is a separate process, so that the test can detect its panics, aborts and leaks, and measure
//! its memory.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use tempfile::NamedTempFile;

/// A command whose process the kernel kills when the test process ends, even if that is killed
/// itself. Start it with [`spawn`].
pub fn bound_command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Starts a process from a thread that lives as long as this process. The kernel kills a process of
/// [`bound_command`] when the thread that started it ends, and a test's thread may end too early.
pub fn spawn(command: Command) -> io::Result<Child> {
    type Start = (Command, SyncSender<io::Result<Child>>);
    static STARTER: LazyLock<SyncSender<Start>> = LazyLock::new(|| {
        let (starter, starts) = sync_channel::<Start>(1);
        std::thread::spawn(move || {
            for (mut command, reply) in starts {
                // The receiver waits for this reply below.
                let _ = reply.send(command.spawn());
            }
        });
        starter
    });
    let (reply, started) = sync_channel(1);
    STARTER.send((command, reply)).expect("its thread runs");
    started.recv().expect("its thread runs")
}

/// The path of the `weir` that cargo built for the running test.
///
/// # Panics
/// Outside the tests of the crate `weir`, because cargo sets the path only for them.
pub fn weir() -> PathBuf {
    std::env::var_os("CARGO_BIN_EXE_weir").expect("a test of the crate weir runs").into()
}

/// The options of a `weir serve` or `weir node` to start. By default it listens on a free port of
/// 127.0.0.1 and has no admin listener.
pub struct Weir {
    program: PathBuf,
    command: &'static str,
    listen: Option<String>,
    admin: bool,
    options: Vec<String>,
    /// Removed when the process listens, because `weir` has read it by then.
    config: Option<NamedTempFile>,
}

impl Weir {
    /// A gateway.
    pub fn serve() -> Weir {
        Weir::of("serve")
    }

    /// A simulated node.
    pub fn node() -> Weir {
        Weir::of("node")
    }

    fn of(command: &'static str) -> Weir {
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

    /// Listens as configured, which a gateway with TLS only requires.
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
        file.write_all(toml.as_bytes()).expect("it takes text");
        let mut weir = self.file(file.path());
        weir.config = Some(file);
        weir
    }

    /// Uses a configuration file of the test.
    pub fn file(self, file: &Path) -> Weir {
        self.args(&[file.to_str().expect("its name is text")])
    }

    /// Starts the process and waits until it prints its listen addresses.
    ///
    /// # Panics
    /// If it ends before it listens.
    pub fn start(self) -> Running {
        let log = NamedTempFile::new().expect("a file for its log");
        let mut command = bound_command(&self.program);
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
            .stderr(log.reopen().expect("its log opens twice"));
        let mut child = spawn(command).expect("weir starts");
        let out = child.stdout.take().expect("it is piped");
        let mut running = Running { child, log, address: String::new(), admin: None };
        let place =
            |rest: &str| rest[..rest.find([' ', ',', '/']).unwrap_or(rest.len())].to_owned();
        for line in BufReader::new(out).lines() {
            let line = line.expect("it prints text");
            let plaintext = line.split_once("listens on http://");
            let listens = plaintext.or_else(|| line.split_once("listens on https://"));
            if let Some((_, rest)) = listens {
                running.address = place(rest);
            } else if let Some((_, rest)) = line.split_once(" on http://") {
                running.admin = Some(place(rest));
            }
            if !running.address.is_empty() && (running.admin.is_some() || !self.admin) {
                return running;
            }
        }
        panic!(
            "weir {} {:?} ended before it listened: {}",
            self.command,
            self.options,
            running.said()
        );
    }
}

/// A running `weir serve` or `weir node`; dropping it kills it.
pub struct Running {
    child: Child,
    log: NamedTempFile,
    /// Its address for calls, as `127.0.0.1:PORT`.
    pub address: String,
    /// Its admin address; `None` without an admin listener.
    pub admin: Option<String>,
}

impl Running {
    /// Sends it a signal such as `-TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success(), "kill {signal} {id}");
    }

    /// Waits until it ends by itself and returns its exit status.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        self.child.wait().expect("it is our child")
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Changes the settings of a simulated node with an admin listener.
    pub fn set(&self, settings: &str) {
        let address = self.admin.as_ref().expect("it has an admin address");
        let mut stream = TcpStream::connect(address).expect("it answers there");
        let length = settings.len();
        let request = format!(
            "POST /faults HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{settings}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
    }

    /// Its URL for calls.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its log so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).expect("its log is text")
    }

    /// Fails the test if the process has ended or a thread has panicked.
    pub fn assert_sound(&mut self) {
        let ended = self.child.try_wait().expect("its state can be read");
        let log = self.said();
        assert!(ended.is_none(), "weir ended with {ended:?}: {log}");
        assert!(!log.contains("panicked"), "a thread of weir panicked: {log}");
    }

    /// Resident memory in bytes: current and peak.
    pub fn memory(&self) -> (u64, u64) {
        let status = Path::new("/proc").join(self.child.id().to_string()).join("status");
        let text = std::fs::read_to_string(status).expect("the process runs");
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("Linux has it");
            let kib = line.split_whitespace().nth(1).expect("a value follows");
            kib.parse::<u64>().expect("it is a number") * 1024
        };
        (field("VmRSS:"), field("VmHWM:"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended by itself; a test that depends on it has failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
