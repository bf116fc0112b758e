//! nginx with limits on locations that answer at once, ended with the test.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;

use test_support::port::ReservedPort;
use test_support::programs;
use test_support::wait::{pause, wait_until};

/// One at a time: what is compared by its timing must not compete with the next test's load.
static ONE: Mutex<()> = Mutex::new(());

/// A running nginx.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: TempDir,
    _port: ReservedPort,
    _one: MutexGuard<'static, ()>,
}

/// How long a connection may be idle, in its log; no delay of a test is as long.
pub(crate) const KEEP_ALIVE_MS: u64 = 75_000;

impl Nginx {
    /// With these zones, and locations by name with their lines. `level` is that of its error log.
    /// None if there is no nginx.
    pub(crate) fn start(zones: &str, locations: &[(&str, &str)], level: &str) -> Option<Nginx> {
        let program = programs::require("nginx")?;
        let one = ONE.lock();
        let folder = TempDir::new().unwrap();
        let at = folder.path().display();
        let port = ReservedPort::new();
        let address = port.address;
        let locations: String = locations
            .iter()
            .map(|(name, lines)| format!("location = /{name} {{ {lines} empty_gif; }}\n"))
            .collect();
        // The module for empty pictures answers in the phase after limits; `return` would be
        // before.
        let config = format!(
            "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log {level};\n\
             events {{ worker_connections 8192; }}\n\
             http {{ access_log off; client_body_temp_path {at}/a; proxy_temp_path {at}/b;\n\
             fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;\n\
             limit_req_status 429; limit_req_log_level info; keepalive_timeout {KEEP_ALIVE_MS}ms;\n\
             {zones}\nserver {{ listen {address}; keepalive_requests 100000000;\n{locations} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let nginx = Nginx { child, address, folder, _port: port, _one: one };
        wait_until("nginx listens", || TcpStream::connect(address).is_ok());
        Some(nginx)
    }

    /// Its log, once nothing more comes.
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
        // Its worker ends with it only if it may tell it.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
