//! Processes of the planted cases and what limits them: children that end with the test, cgroups
//! (version 2, else version 1), nginx, and a generator that is starved.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab_model::results::Finding;
use tempfile::TempDir;
use test_support::port::ReservedPort;

use super::server::{FOLDER, MODE};

/// Variable that tells a starved generator its target.
pub(crate) const PORT: &str = "WEIR_TEST_PORT";

/// A process that ends with the test.
pub(crate) struct Program {
    child: Child,
    pub(crate) port: u16,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program as another one: the ignored test of that name and nothing else.
fn again(test: &str, prefix: &[String]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = match prefix.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(own);
            command
        }
        None => Command::new(own),
    };
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// The rest of the first line that begins so. What follows stays unread in the pipe.
fn line(child: &mut Child, first: &str) -> Option<String> {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.map_while(Result::ok).find_map(|line| line.strip_prefix(first).map(str::to_owned))
}

impl Program {
    /// A planted target in this mode.
    pub(crate) fn target(mode: &str) -> Program {
        Program::start(mode, &[])
    }

    /// A planted target that may use one core only.
    pub(crate) fn target_on_core(mode: &str, core: usize) -> Result<Program, String> {
        let prefix = ["taskset".to_owned(), "-c".to_owned(), core.to_string()];
        runs("taskset", "--version")?;
        if std::thread::available_parallelism().unwrap().get() < 2 {
            return Err("it needs two cores".to_owned());
        }
        Ok(Program::start(mode, &prefix))
    }

    fn start(mode: &str, prefix: &[String]) -> Program {
        // Not in /tmp, which may be in memory.
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = again("planted_target", prefix);
        command.env(MODE, mode).env(FOLDER, folder.path());
        let mut child = command.spawn().unwrap();
        let port = line(&mut child, "port ").expect("the target tells its port");
        Program { child, port: port.parse().unwrap(), _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU that it has used, in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // User and system, in ticks of 10 ms.
        let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
        ticks.sum::<f64>() / 100.0
    }
}

fn runs(program: &str, argument: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(|_| ()).map_err(|fault| format!("{program}: {fault}"))
}

/// A cgroup of the test's own, removed when it ends.
pub(crate) struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have been killed, but may be there for a moment more.
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::park_timeout(Duration::from_millis(20)); // Sleeps: between two tries.
        }
    }
}

impl Cgroup {
    /// One with this many cores.
    pub(crate) fn cpu(cores: f64) -> Result<Cgroup, String> {
        let quota = (cores * 100_000.0) as u64;
        let (cgroup, version) = Cgroup::new("cpu", "cpu")?;
        if version == 2 {
            cgroup.write("cpu.max", &format!("{quota} 100000"))?;
        } else {
            cgroup.write("cpu.cfs_period_us", "100000")?;
            cgroup.write("cpu.cfs_quota_us", &quota.to_string())?;
        }
        Ok(cgroup)
    }

    /// One that may read this many bytes a second from the disk below the test's folder.
    pub(crate) fn disk(bytes: u64) -> Result<Cgroup, String> {
        let device = device(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let (cgroup, version) = Cgroup::new("io", "blkio")?;
        if version == 2 {
            cgroup.write("io.max", &format!("{device} rbps={bytes}"))?;
        } else {
            cgroup.write("blkio.throttle.read_bps_device", &format!("{device} {bytes}"))?;
        }
        Ok(cgroup)
    }

    fn new(second: &str, first: &str) -> Result<(Cgroup, u8), String> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let (parent, version) = if controllers.split_whitespace().any(|name| name == second) {
            // In a tree of version 2 the root must hand the controller on.
            let handed = fs::write(root.join("cgroup.subtree_control"), format!("+{second}"));
            handed.map_err(|fault| format!("cgroup.subtree_control: {fault}"))?;
            (root.to_owned(), 2)
        } else if root.join(first).join("cgroup.procs").exists() {
            (root.join(first), 1)
        } else {
            return Err(format!("no cgroup controller {second} (or {first} of version 1)"));
        };
        let path = parent.join(format!("weir-test-{}-{second}", std::process::id()));
        fs::create_dir(&path).map_err(|fault| format!("{}: {fault}", path.display()))?;
        Ok((Cgroup(path), version))
    }

    /// Moves a process into it.
    pub(crate) fn add(&self, pid: u32) -> Result<(), String> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        fs::write(self.0.join(file), text).map_err(|fault| format!("{file} = {text}: {fault}"))
    }
}

/// Numbers of the whole disk that a folder is on.
fn device(folder: &Path) -> Result<String, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|fault| fault.to_string())?;
    let of = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let device = words.next()?.to_owned();
        let at = PathBuf::from(words.nth(1)?);
        folder.starts_with(&at).then(|| (at.as_os_str().len(), device))
    };
    let found = mounts.lines().filter_map(of).max().ok_or("no mount for the test's folder")?.1;
    let block = Path::new("/sys/dev/block").join(&found);
    if !block.exists() {
        return Err(format!("the test's folder is on {found}, which is no disk"));
    }
    // Limits are set for whole disks only.
    if block.join("partition").exists() {
        let parent = fs::canonicalize(block).map_err(|fault| fault.to_string())?;
        let whole = fs::read_to_string(parent.parent().unwrap().join("dev"));
        return whole.map(|text| text.trim().to_owned()).map_err(|fault| fault.to_string());
    }
    Ok(found)
}

/// nginx before a planted target.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) port: u16,
    _reserved: ReservedPort,
    _folder: TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it only if it may tell them.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Nginx {
    /// Proxies to a port, with more lines for its location.
    pub(crate) fn start(behind: u16, lines: &str) -> Result<Nginx, String> {
        runs("nginx", "-v")?;
        let folder = TempDir::new().unwrap();
        let reserved = ReservedPort::new();
        let port = reserved.address.port();
        let at = folder.path().display();
        let config = format!(
            "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n access_log off; client_body_temp_path {at}/a; proxy_temp_path {at}/b;\n\
             fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;\n\
             limit_req_zone $server_addr zone=all:1m rate=200r/s; limit_req_status 429;\n\
             upstream behind {{ server 127.0.0.1:{behind}; keepalive 256; }}\n\
             server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location / {{ {lines} proxy_pass http://behind; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.spawn().map_err(|fault| format!("nginx: {fault}"))?;
        let nginx = Nginx { child, port, _reserved: reserved, _folder: folder };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("nginx does not listen".to_owned());
            }
            // Sleeps: between two looks at another program's start.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(nginx)
    }
}

/// Cores that anything uses now, or that the hypervisor withholds, while this test does nothing.
pub(crate) fn others_now() -> f64 {
    // Ticks of 10 ms, all cores together: idle and waiting for disks, and everything.
    let ticks = || {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().next().unwrap();
        let all: Vec<f64> =
            line.split_whitespace().skip(1).take(8).map(|ticks| ticks.parse().unwrap()).collect();
        (all[3] + all[4], all.iter().sum::<f64>())
    };
    let (idle, all) = ticks();
    let begun = Instant::now();
    while let Some(left) = Duration::from_millis(500).checked_sub(begun.elapsed()) {
        std::thread::park_timeout(left); // Sleeps: the time over which CPU is measured.
    }
    let (idle, all) = (ticks().0 - idle, ticks().1 - all);
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    (1.0 - idle / all.max(1.0)) * cores
}

/// The finding of a generator on the same core as two programs that compute and have precedence.
pub(crate) fn starved(target: u16) -> Result<Option<Finding>, String> {
    runs("taskset", "--version")?;
    runs("nice", "--version")?;
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let mut hogs: Vec<Child> = (0..2)
        .map(|_| {
            let mut command = Command::new("taskset");
            command.args(["-c", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let mut command = again("starved_generator", &words("taskset -c 0 nice -n 15"));
    let mut generator = command.env(PORT, target.to_string()).spawn().unwrap();
    let told = line(&mut generator, "finding ");
    let ended = generator.wait();
    for hog in &mut hogs {
        let _ = hog.kill();
        let _ = hog.wait();
    }
    let told = told.ok_or(format!("the generator told nothing and ended with {ended:?}"))?;
    Ok(serde_json::from_str(&told).unwrap())
}
