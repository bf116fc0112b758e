//! A PostgreSQL server of a test: made anew on a free port in a folder of its own, ended with it.
//!
//! The server refuses to run as root: then it runs as the user `postgres`. A shell starts it and
//! ends it as soon as its own input closes, so that nothing is left running however the test ends.

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

/// How long the server may take from its start until it answers, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Starts the server, waits for the end of its own input, and ends it.
const SHELL: &str = r#"
    "$0" "$@" >> "$DATA/log" 2>&1 &
    cat > /dev/null
    kill -TERM $! 2> /dev/null # in time, for QUIT is ignored until the server has begun
    kill -QUIT $! 2> /dev/null
    wait
    if [ -n "$REMOVE" ]; then rm -rf "$DATA"; fi
"#;
/// Everybody is let in, but `guest` has to know a password, and `sealed` to speak TLS.
const ACCESS: &str = "hostnossl all sealed 127.0.0.1/32 reject\nhost all guest 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n\
                      local all all trust\n";

/// A `postgres` process with its children.
pub struct Postgres {
    shell: Child,
    programs: PathBuf,
    folder: TempDir,
    /// The port of 127.0.0.1 at which it listens.
    pub port: u16,
    _reserved: ReservedPort,
    /// Removed by the shell: a server that lives as long as the process is never dropped.
    remove: bool,
}

impl Postgres {
    /// A new server; none where the program is missing, which is noted.
    pub fn start() -> Option<Postgres> {
        Postgres::made(false)
    }

    /// One that is never dropped, but ends with the process.
    pub fn for_all() -> Option<Postgres> {
        Postgres::made(true)
    }

    fn made(remove: bool) -> Option<Postgres> {
        let program = programs::require("postgres")?.canonicalize().unwrap();
        // The others stand beside it; in PATH may be a link to this one alone.
        let programs = program.parent().unwrap().to_owned();
        let folder = TempDir::new().unwrap();
        if let Some((user, group)) = user() {
            std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let made = as_user(&programs.join("initdb"))
            .args(["--username", "weir", "--auth", "trust", "--no-sync", "--encoding", "UTF8"])
            .args(["--locale", "C", "--pgdata"])
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        std::fs::write(folder.path().join("pg_hba.conf"), ACCESS).unwrap();
        let reserved = ReservedPort::new();
        let port = reserved.address.port();
        let shell = spawn(&programs, folder.path(), port, remove);
        let postgres = Postgres { shell, programs, folder, port, _reserved: reserved, remove };
        postgres.wait();
        Some(postgres)
    }

    /// Where an index in this schema is.
    pub fn url(&self, schema: &str) -> String {
        self.url_at(self.port, schema)
    }

    /// The same by way of another port, as that of a proxy.
    pub fn url_at(&self, port: u16, schema: &str) -> String {
        format!("postgres://weir@127.0.0.1:{port}/postgres?schema={schema}")
    }

    /// The folder of its local socket.
    pub fn socket(&self) -> &Path {
        self.folder.path()
    }

    /// Has it speak TLS with this certificate and key, in PEM, where it is asked to.
    pub fn seal(&self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            if let Some((user, group)) = user() {
                std::os::unix::fs::chown(&path, Some(user), Some(group)).unwrap();
            }
        }
        self.sql("ALTER SYSTEM SET ssl = on");
        self.sql("SELECT pg_reload_conf()");
    }

    /// What `psql` prints for some SQL.
    pub fn sql(&self, sql: &str) -> String {
        let said = self.psql(sql);
        assert!(said.status.success(), "{sql}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8(said.stdout).unwrap().trim_end().to_owned()
    }

    fn psql(&self, sql: &str) -> std::process::Output {
        Command::new(self.programs.join("psql"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "weir", "-X", "-q"])
            .args(["-v", "ON_ERROR_STOP=1", "-tA", "-c", sql, "postgres"])
            .output()
            .unwrap()
    }

    /// Sends the first of its processes a signal, as `-STOP`.
    pub fn signal(&self, signal: &str) {
        let file = std::fs::read_to_string(self.folder.path().join("postmaster.pid")).unwrap();
        let id = file.lines().next().unwrap();
        assert!(Command::new("kill").args([signal, id]).status().unwrap().success());
    }

    /// The same for those that serve connections of the index.
    pub fn signal_sessions(&self, signal: &str) {
        let ids = self
            .sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'weir' ORDER BY pid");
        for id in ids.lines() {
            // It may have ended meanwhile.
            let _sent = Command::new("kill").args([signal, id]).stderr(Stdio::null()).status();
        }
    }

    /// The first of its processes and its children, which serve connections.
    fn processes(&self) -> Vec<String> {
        let file = std::fs::read_to_string(self.folder.path().join("postmaster.pid")).unwrap();
        let first = file.lines().next().unwrap();
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let children = children.unwrap();
        children.split_whitespace().chain([first]).map(str::to_owned).collect()
    }

    /// As when its machine loses power, but for what the system has of its files.
    pub fn kill(&mut self) {
        let all = self.processes();
        let sent = Command::new("kill").arg("-KILL").args(&all).stderr(Stdio::null()).status();
        // A child may have ended by itself, the first process has not.
        sent.expect("kill runs");
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap();
        wait_until("no process of the server is left", || all.iter().all(|id| is_over(id)));
    }

    /// Starts it again with what it had.
    pub fn start_again(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.shell = spawn(&self.programs, self.folder.path(), self.port, self.remove);
            if self.comes_up(Duration::from_secs(10)) {
                return;
            }
            // Processes of the one before are there still.
            assert!(Instant::now() < deadline, "{}", self.log());
            drop(self.shell.stdin.take());
            self.shell.wait().unwrap();
        }
    }

    fn wait(&self) {
        assert!(self.comes_up(PATIENCE), "{}", self.log());
    }

    fn comes_up(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while !self.psql("SELECT 1").status.success() {
            if Instant::now() > deadline {
                return false;
            }
            // Sleeps: between two looks at another program's start.
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
        // It may have ended by itself, which a test that cares has noticed.
        let _ = self.shell.wait();
    }
}

/// Whether a process has ended; nobody may have asked yet how.
fn is_over(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
    stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
}

fn spawn(programs: &Path, data: &Path, port: u16, remove: bool) -> Child {
    let sockets = format!("unix_socket_directories={}", data.display());
    as_user(Path::new("sh"))
        .args(["-c", SHELL])
        .arg(programs.join("postgres"))
        .arg("-D")
        .arg(data)
        .args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-c", &sockets])
        // Nothing here outlives its machine.
        .args(["-c", "fsync=off", "-c", "shared_buffers=32MB"])
        .env("DATA", data)
        .env("REMOVE", if remove { "1" } else { "" })
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// A command as a user that the server lets run it.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = user() {
        command.uid(user).gid(group);
    }
    command.current_dir("/");
    command
}

/// Number and group of the user `postgres`; none if we are no root.
fn user() -> Option<(u32, u32)> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    if own.split_whitespace().nth(1) != Some("0") {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("a user postgres");
    let numbers: Vec<u32> = line.split(':').skip(2).take(2).flat_map(str::parse).collect();
    Some((numbers[0], numbers[1]))
}
