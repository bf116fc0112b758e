//! Processes of the planted cases, and their limits: target processes that end with the test,
//! cgroups (version 2, else version 1), nginx, and a load generator without enough CPU.

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

/// Environment variable with the port of the starved generator's target.
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

/// Builds a command that runs this program again, with only the ignored test of that name.
/// `prefix` is a command line to run it under, such as `taskset -c 0`; it may be empty.
fn rerun_test(test: &str, prefix: &[String]) -> Command {
    let program_path = std::env::current_exe().unwrap();
    let mut command = match prefix.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(program_path);
            command
        }
        None => Command::new(program_path),
    };
    command.args([test, "--exact", "--ignored", "--nocapture"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Reads the child's output up to the first line with this prefix; returns the rest of the line.
/// `None` if the output ends before. The output after the line may be lost.
fn read_line_after(child: &mut Child, prefix: &str) -> Option<String> {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    lines.map_while(Result::ok).find_map(|line| line.strip_prefix(prefix).map(str::to_owned))
}

impl Program {
    /// A planted target in this mode.
    pub(crate) fn target(mode: &str) -> Program {
        Program::start(mode, &[])
    }

    /// A planted target that may use one core only.
    pub(crate) fn target_on_core(mode: &str, core: usize) -> Result<Program, String> {
        let prefix = ["taskset".to_owned(), "-c".to_owned(), core.to_string()];
        require_program("taskset", "--version")?;
        if std::thread::available_parallelism().unwrap().get() < 2 {
            return Err("it needs two cores".to_owned());
        }
        Ok(Program::start(mode, &prefix))
    }

    fn start(mode: &str, prefix: &[String]) -> Program {
        // The folder is not in /tmp, because that may be a file system in memory.
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut command = rerun_test("planted_target", prefix);
        command.env(MODE, mode).env(FOLDER, folder.path());
        let mut child = command.spawn().unwrap();
        let port = read_line_after(&mut child, "port ").expect("the target tells its port");
        Program { child, port: port.parse().unwrap(), _folder: folder }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time that the process has used, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        // Fields 14 and 15 of the line: user and system time, in ticks of 10 ms.
        let ticks = fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
        ticks.sum::<f64>() / 100.0
    }
}

/// Returns an error if the program cannot be started, for example because it is not installed.
fn require_program(program: &str, argument: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().map(|_| ()).map_err(|fault| format!("{program}: {fault}"))
}

/// A cgroup of the test's own, removed when it ends.
pub(crate) struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The processes in the cgroup have been killed, but may need a moment to end.
        let start = Instant::now();
        while fs::remove_dir(&self.0).is_err() && start.elapsed() < Duration::from_secs(5) {
            std::thread::park_timeout(Duration::from_millis(20)); // Sleeps: between two tries.
        }
    }
}

impl Cgroup {
    /// Creates a cgroup with a CPU quota of this many cores.
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

    /// Creates a cgroup that may read this many bytes per second from the disk of the test's
    /// folder.
    pub(crate) fn disk(bytes: u64) -> Result<Cgroup, String> {
        let device = find_disk(Path::new(env!("CARGO_TARGET_TMPDIR")))?;
        let (cgroup, version) = Cgroup::new("io", "blkio")?;
        if version == 2 {
            cgroup.write("io.max", &format!("{device} rbps={bytes}"))?;
        } else {
            cgroup.write("blkio.throttle.read_bps_device", &format!("{device} {bytes}"))?;
        }
        Ok(cgroup)
    }

    /// Creates a cgroup for a controller and returns it with the version of its hierarchy, 2 or 1.
    /// The controller has a name in each version.
    fn new(name_v2: &str, name_v1: &str) -> Result<(Cgroup, u8), String> {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        let (parent, version) = if controllers.split_whitespace().any(|name| name == name_v2) {
            // In version 2 the root must enable the controller for its children.
            let enabled = fs::write(root.join("cgroup.subtree_control"), format!("+{name_v2}"));
            enabled.map_err(|fault| format!("cgroup.subtree_control: {fault}"))?;
            (root.to_owned(), 2)
        } else if root.join(name_v1).join("cgroup.procs").exists() {
            (root.join(name_v1), 1)
        } else {
            return Err(format!("no cgroup controller {name_v2} (or {name_v1} of version 1)"));
        };
        let path = parent.join(format!("weir-test-{}-{name_v2}", std::process::id()));
        fs::create_dir(&path).map_err(|fault| format!("{}: {fault}", path.display()))?;
        Ok((Cgroup(path), version))
    }

    /// Moves a process into the cgroup.
    pub(crate) fn add(&self, pid: u32) -> Result<(), String> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        fs::write(self.0.join(file), text).map_err(|fault| format!("{file} = {text}: {fault}"))
    }
}

/// Returns the device number, such as `8:0`, of the disk that holds a folder. For a partition it
/// returns the number of the whole disk.
fn find_disk(folder: &Path) -> Result<String, String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|fault| fault.to_string())?;
    // The length of a mount point that contains the folder, and its device number.
    let parse_mount = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let device = words.next()?.to_owned();
        let mount_point = PathBuf::from(words.nth(1)?);
        folder.starts_with(&mount_point).then(|| (mount_point.as_os_str().len(), device))
    };
    let innermost = mounts.lines().filter_map(parse_mount).max();
    let (_, device) = innermost.ok_or("no mount for the test's folder")?;
    let block_device = Path::new("/sys/dev/block").join(&device);
    if !block_device.exists() {
        return Err(format!("the test's folder is on {device}, which is no disk"));
    }
    // Limits are set for whole disks only.
    if block_device.join("partition").exists() {
        let partition = fs::canonicalize(block_device).map_err(|fault| fault.to_string())?;
        let whole_disk = fs::read_to_string(partition.parent().unwrap().join("dev"));
        return whole_disk.map(|text| text.trim().to_owned()).map_err(|fault| fault.to_string());
    }
    Ok(device)
}

/// An nginx proxy in front of a planted target.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) port: u16,
    _reserved: ReservedPort,
    _folder: TempDir,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM lets nginx end its worker processes; SIGKILL would leave them running.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

impl Nginx {
    /// Starts nginx as a proxy to a local port. `directives` are added to its `location`.
    pub(crate) fn start(upstream_port: u16, directives: &str) -> Result<Nginx, String> {
        require_program("nginx", "-v")?;
        let folder = TempDir::new().unwrap();
        let reserved = ReservedPort::new();
        let port = reserved.address.port();
        let dir = folder.path().display();
        let config = format!(
            "daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n access_log off; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;\n\
             fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n\
             limit_req_zone $server_addr zone=all:1m rate=200r/s; limit_req_status 429;\n\
             upstream behind {{ server 127.0.0.1:{upstream_port}; keepalive 256; }}\n\
             server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000;\n\
             location / {{ {directives} proxy_pass http://behind; proxy_http_version 1.1;\n\
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
            // Sleeps: between two attempts to connect.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Ok(nginx)
    }
}

/// Measures for 500 ms how many cores other processes use, while this test is idle. Time that the
/// hypervisor withholds counts as used.
pub(crate) fn measure_other_cores() -> f64 {
    // Ticks of 10 ms, summed over all cores: idle time including waits for disks, and total time.
    let read_ticks = || {
        let text = fs::read_to_string("/proc/stat").unwrap();
        let line = text.lines().next().unwrap();
        let states: Vec<f64> =
            line.split_whitespace().skip(1).take(8).map(|ticks| ticks.parse().unwrap()).collect();
        // The fourth state is idle, the fifth is iowait.
        (states[3] + states[4], states.iter().sum::<f64>())
    };
    let (idle_before, total_before) = read_ticks();
    let start = Instant::now();
    while let Some(remaining) = Duration::from_millis(500).checked_sub(start.elapsed()) {
        std::thread::park_timeout(remaining); // Sleeps: the time over which CPU is measured.
    }
    let (idle, total) = (read_ticks().0 - idle_before, read_ticks().1 - total_before);
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    (1.0 - idle / total.max(1.0)) * cores
}

/// Runs a load generator on the same core as two busy loops of higher priority; returns its
/// finding.
pub(crate) fn run_starved_generator(target: u16) -> Result<Option<Finding>, String> {
    require_program("taskset", "--version")?;
    require_program("nice", "--version")?;
    let split_words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let mut hogs: Vec<Child> = (0..2)
        .map(|_| {
            let mut command = Command::new("taskset");
            command.args(["-c", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().unwrap()
        })
        .collect();
    let mut command = rerun_test("starved_generator", &split_words("taskset -c 0 nice -n 15"));
    let mut generator = command.env(PORT, target.to_string()).spawn().unwrap();
    let finding = read_line_after(&mut generator, "finding ");
    let exit_status = generator.wait();
    for hog in &mut hogs {
        let _ = hog.kill();
        let _ = hog.wait();
    }
    let finding =
        finding.ok_or(format!("the generator printed no finding; exit: {exit_status:?}"))?;
    Ok(serde_json::from_str(&finding).unwrap())
}
