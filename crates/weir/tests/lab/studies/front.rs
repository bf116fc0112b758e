//! nginx in front of a node, with TLS or a rate limit, ended with the test.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use test_support::port::ReservedPort;
use test_support::programs;

/// Longer than nginx needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running nginx.
pub(crate) struct Front {
    child: Child,
    url: String,
    folder: TempDir,
    _port: ReservedPort,
}

impl Front {
    /// In clear text, with a zone and lines for its location. None if there is no nginx.
    pub(crate) fn plain(behind: &str, zone: &str, location: &str) -> Option<Front> {
        let folder = TempDir::new().unwrap();
        Front::start(folder, "http", behind, zone, "", location)
    }

    /// With TLS, under a certificate of its own making, and lines for its server.
    pub(crate) fn secure(behind: &str, lines: &str) -> Option<Front> {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let at = folder.path().display();
        let server =
            format!("ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem; {lines}");
        Front::start(folder, "https", behind, "", &server, "")
    }

    fn start(
        folder: TempDir,
        scheme: &str,
        behind: &str,
        zone: &str,
        server: &str,
        location: &str,
    ) -> Option<Front> {
        let program = programs::require("nginx")?;
        let at = folder.path().display();
        let port = ReservedPort::new();
        let address = port.address;
        let ssl = if scheme == "https" { " ssl" } else { "" };
        // A connection's first request tells how its handshake went.
        let config = format!(
            "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ log_format h '$connection_requests $ssl_session_reused'; access_log {at}/log h;\n\
             client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c;\n\
             uwsgi_temp_path {at}/d; scgi_temp_path {at}/e; {zone}\n\
             upstream behind {{ server {behind}; keepalive 64; }}\n\
             server {{ listen {address}{ssl}; {server} keepalive_requests 1000000;\n\
             location / {{ {location} proxy_pass http://behind; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let front = Front { child, url: format!("{scheme}://{address}"), folder, _port: port };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            let log = fs::read_to_string(front.folder.path().join("error.log"));
            assert!(begin.elapsed() < PATIENCE, "nginx does not listen: {log:?}");
            // Sleeps: another program's start cannot be waited for otherwise.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Some(front)
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Full and resumed handshakes so far of the connections on which a request came.
    pub(crate) fn handshakes(&self) -> (u64, u64) {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        let count = |line: &str| log.lines().filter(|found| *found == line).count() as u64;
        (count("1 ."), count("1 r"))
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // Its workers end with it only if it may tell them.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
