//! A PostgreSQL server for a test, with a new database in a temporary folder on a free port.
//!
//! The server refuses to run as root. If the test runs as root, the server runs as the user
//! `postgres`. A shell starts the server, and stops it when the shell's input closes. So the server
//! stops even if the test is killed.
//!
//! `weir` stores its index, which is a copy of a chain, in such a database.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::port::ReservedPort;
use crate::programs;
use crate::wait::wait_until;

/// Timeout for the server's first response after its start, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Shell script that starts the server, waits for the end of its input, and stops the server.
const SHELL: &str = r#"
    "$0" "$@" >> "$DATA/log" 2>&1 &
    cat > /dev/null
    kill -TERM $! 2> /dev/null # the server ignores QUIT until it has started
    kill -QUIT $! 2> /dev/null
    wait
    if [ -n "$REMOVE" ]; then rm -rf "$DATA"; fi
"#;
/// `pg_hba.conf`: no authentication, except that `guest` needs a password and `sealed` needs TLS.
const PG_HBA: &str = "hostnossl all sealed 127.0.0.1/32 reject\nhost all guest 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
                      local all all trust\n";

/// A running PostgreSQL server.
pub struct Postgres {
    /// The shell that starts and stops the server.
    shell: Child,
    /// The folder of `psql` and the other programs of the same version.
    programs: PathBuf,
    /// The folder of the data and of the log.
    folder: TempDir,
    /// Port on 127.0.0.1.
    pub port: u16,
    _reserved: ReservedPort,
    /// True if the shell must remove the folder. A value in a static is never dropped, so it cannot
    /// remove the folder itself.
    remove_folder: bool,
}

impl Postgres {
    /// Starts a server. If the program is missing, records a skip and returns `None`.
    pub fn start() -> Option<Postgres> {
        Postgres::start_with(false)
    }

    /// Starts a server for a static variable. The server ends with the test process.
    pub fn start_static() -> Option<Postgres> {
        Postgres::start_with(true)
    }

    /// Starts a server and waits until it responds. `remove_folder` is true if the shell must
    /// remove the folder at the end.
    fn start_with(remove_folder: bool) -> Option<Postgres> {
        let program = programs::require("postgres")?.canonicalize().unwrap();
        // The other programs are beside the real file. `PATH` may have a link to `postgres` only.
        let programs = program.parent().unwrap().to_owned();
        let folder = TempDir::new().unwrap();
        if let Some((user, group)) = postgres_ids() {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let initdb = as_user(&programs.join("initdb"))
            .args(["--username", "weir", "--auth", "trust", "--no-sync", "--encoding", "UTF8"])
            .args(["--locale", "C", "--pgdata"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(initdb.status.success(), "{}", String::from_utf8_lossy(&initdb.stderr));
        std::fs::write(folder.path().join("pg_hba.conf"), PG_HBA).unwrap();
        let reserved = ReservedPort::new();
        let port = reserved.address.port();
        let shell = spawn(&programs, folder.path(), port, remove_folder);
        let postgres =
            Postgres { shell, programs, folder, port, _reserved: reserved, remove_folder };
        postgres.wait_until_ready();
        Some(postgres)
    }

    /// Returns the URL with which `weir` uses its index in this schema.
    pub fn url(&self, schema: &str) -> String {
        self.url_at(self.port, schema)
    }

    /// Returns the URL with which `weir` uses its index in this schema through another port, such
    /// as a proxy's.
    pub fn url_at(&self, port: u16, schema: &str) -> String {
        format!("postgres://weir@127.0.0.1:{port}/postgres?schema={schema}")
    }

    /// Returns the folder of the server's Unix socket.
    pub fn socket(&self) -> &Path {
        self.folder.path()
    }

    /// Enables TLS with this certificate and key in PEM, for clients that request it.
    pub fn enable_tls(&self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            if let Some((user, group)) = postgres_ids() {
                std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
            }
        }
        self.sql("ALTER SYSTEM SET ssl = on");
        self.sql("SELECT pg_reload_conf()");
    }

    /// Runs SQL with `psql` and returns its output.
    pub fn sql(&self, sql: &str) -> String {
        let output = self.psql(sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    fn psql(&self, sql: &str) -> std::process::Output {
        Command::new(self.programs.join("psql"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "weir", "-X", "-q"])
            .args(["-v", "ON_ERROR_STOP=1", "-tA", "-c", sql, "postgres"])
            .output()
            .unwrap()
    }

    /// Sends a signal such as `-STOP` to the postmaster.
    pub fn signal(&self, signal: &str) {
        let file = std::fs::read_to_string(self.folder.path().join("postmaster.pid")).unwrap();
        let id = file.lines().next().unwrap();
        assert!(Command::new("kill").args([signal, id]).status().unwrap().success());
    }

    /// Sends a signal to the server's processes (backends) that serve connections of the index.
    pub fn signal_sessions(&self, signal: &str) {
        let ids = self
            .sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'weir' ORDER BY pid");
        for id in ids.lines() {
            // The backend may have ended already.
            let _sent = Command::new("kill").args([signal, id]).stderr(Stdio::null()).status();
        }
    }

    /// Returns the ids of the postmaster and its children.
    fn process_ids(&self) -> Vec<String> {
        let file = std::fs::read_to_string(self.folder.path().join("postmaster.pid")).unwrap();
        let postmaster = file.lines().next().unwrap();
        let children =
            std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        let children = children.unwrap();
        children.split_whitespace().chain([postmaster]).map(str::to_owned).collect()
    }

    /// Kills all processes at once, like a power failure. Unlike after a power failure, the page
    /// cache survives.
    pub fn kill(&mut self) {
        let ids = self.process_ids();
        let status = Command::new("kill").arg("-KILL").args(&ids).stderr(Stdio::null()).status();
        // A child may have ended by itself, so `kill` may report an error.
        status.expect("kill runs");
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap();
        wait_until("no process of the server is left", || ids.iter().all(|id| has_exited(id)));
    }

    /// Restarts the server with its data.
    pub fn restart(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            self.shell = spawn(&self.programs, self.folder.path(), self.port, self.remove_folder);
            if self.responds_within(Duration::from_secs(10)) {
                return;
            }
            // The start fails while processes of the killed server still exist. Try again.
            assert!(Instant::now() < deadline, "{}", self.log());
            drop(self.shell.stdin.take());
            self.shell.wait().unwrap();
        }
    }

    fn wait_until_ready(&self) {
        assert!(self.responds_within(START_TIMEOUT), "{}", self.log());
    }

    /// Polls the server. Returns true if it responds before the timeout.
    fn responds_within(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while !self.psql("SELECT 1").status.success() {
            if Instant::now() > deadline {
                return false;
            }
            // Sleeps: between two polls of another program's start.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        true
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // This fails if the server has ended by itself. Then a test that needs the server has
        // failed.
        let _ = self.shell.wait();
    }
}

/// Returns true if a process has ended or is a zombie.
fn has_exited(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}

/// Starts the shell that starts the server.
fn spawn(programs: &Path, data: &Path, port: u16, remove_folder: bool) -> Child {
    let sockets = format!("unix_socket_directories={}", data.display());
    as_user(Path::new("sh"))
        .args(["-c", SHELL])
        .arg(programs.join("postgres"))
        .arg("-D")
        .arg(data)
        .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", &sockets])
        // The data need not survive a crash of the machine.
        .args(["-c", "fsync=off", "-c", "shared_buffers=32MB"])
        .env("DATA", data)
        .env("REMOVE", if remove_folder { "1" } else { "" })
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns a command that runs as `postgres` if this process is root.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = postgres_ids() {
        command.uid(user).gid(group);
    }
    command.current_dir("/");
    command
}

/// Returns the user and group id of `postgres`, or `None` if this process is not root.
fn postgres_ids() -> Option<(u32, u32)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let uid_line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    if uid_line.split_whitespace().nth(1) != Some("0") {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let entry = users.lines().find(|line| line.starts_with("postgres:")).expect("a user postgres");
    let ids: Vec<u32> = entry.split(':').skip(2).take(2).flat_map(str::parse).collect();
    Some((ids[0], ids[1]))
}
