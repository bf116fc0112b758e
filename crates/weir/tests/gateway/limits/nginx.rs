//! Runs nginx with limits on locations. The locations respond at once. nginx stops when the test
//! ends.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

use test_support::port::ReservedPort;
use test_support::programs;
use test_support::wait::{pause, wait_until};

/// Only one nginx runs at a time, because the load of another test would distort the timing.
static RUNNING_LOCK: Mutex<()> = Mutex::new(());

/// A running nginx.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: TempDir,
    _port: ReservedPort,
    _running_lock: MutexGuard<'static, ()>,
}

/// `keepalive_timeout` of nginx. It is longer than every delay of a test. So the test can
/// distinguish the keep-alive timer from the timer of a delay in nginx's log.
pub(crate) const KEEP_ALIVE_MS: u64 = 75_000;

impl Nginx {
    /// Starts nginx with these zones and locations. A location is a name and lines of
    /// configuration. `level` is the level of the error log. Returns `None` if nginx is not
    /// installed.
    pub(crate) fn start(zones: &str, locations: &[(&str, &str)], level: &str) -> Option<Nginx> {
        let program = programs::require("nginx")?;
        let running_lock = RUNNING_LOCK.lock();
        let folder = TempDir::new().unwrap();
        let dir = folder.path().display();
        let port = ReservedPort::new();
        let address = port.address;
        let locations: String = locations
            .iter()
            .map(|(name, lines)| format!("location = /{name} {{ {lines} empty_gif; }}\n"))
            .collect();
        // `empty_gif` responds after nginx has applied the limits. `return` would respond before.
        let config = format!(
            "daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log {level};\n\
             events {{ worker_connections 8192; }}\n\
             http {{ access_log off; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;\n\
             fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n\
             limit_req_status 429; limit_req_log_level info; keepalive_timeout {KEEP_ALIVE_MS}ms;\n\
             {zones}\nserver {{ listen {address}; keepalive_requests 100000000;\n{locations} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let nginx = Nginx { child, address, folder, _port: port, _running_lock: running_lock };
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        Some(nginx)
    }

    /// Waits until the error log stops growing, for at most ten seconds. Returns the log.
    pub(crate) fn log(&self) -> String {
        let read = || fs::read_to_string(self.folder.path().join("error.log")).unwrap();
        let mut text = read();
        let begin = Instant::now();
        loop {
            // Sleeps: nginx writes its log at once, but on another core.
            pause(std::time::Duration::from_millis(100));
            let later = read();
            if later.len() == text.len() || begin.elapsed().as_secs() > 10 {
                return later;
            }
            text = later;
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM, unlike SIGKILL, lets the master process stop its worker.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
