//! nginx as a proxy in front of a node, with TLS or a rate limit. It ends with the test.

use std::fs;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use test_support::port::ReservedPort;
use test_support::programs;

/// Timeout of nginx's start; long enough for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running nginx.
pub(crate) struct NginxProxy {
    child: Child,
    url: String,
    folder: TempDir,
    _port: ReservedPort,
}

impl NginxProxy {
    /// Starts nginx without TLS. `zone` is a directive for its `http` block, `location` directives
    /// for its `location`. Returns `None` if nginx is not installed.
    pub(crate) fn plain(upstream_address: &str, zone: &str, location: &str) -> Option<NginxProxy> {
        let folder = TempDir::new().unwrap();
        NginxProxy::start(folder, "http", upstream_address, zone, "", location)
    }

    /// Starts nginx with TLS and a self-signed certificate. `directives` are added to its `server`.
    /// Returns `None` if nginx is not installed.
    pub(crate) fn secure(upstream_address: &str, directives: &str) -> Option<NginxProxy> {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        let dir = folder.path().display();
        let server = format!(
            "ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; {directives}"
        );
        NginxProxy::start(folder, "https", upstream_address, "", &server, "")
    }

    fn start(
        folder: TempDir,
        scheme: &str,
        upstream_address: &str,
        zone: &str,
        server: &str,
        location: &str,
    ) -> Option<NginxProxy> {
        let program = programs::require("nginx")?;
        let dir = folder.path().display();
        let port = ReservedPort::new();
        let address = port.address;
        let ssl = if scheme == "https" { " ssl" } else { "" };
        // The log line of a connection's first request shows whether its session was resumed.
        let config = format!(
            "daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ log_format h '$connection_requests $ssl_session_reused'; \
             access_log {dir}/log h;\n\
             client_body_temp_path {dir}/a; proxy_temp_path {dir}/b; fastcgi_temp_path {dir}/c;\n\
             uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e; {zone}\n\
             upstream behind {{ server {upstream_address}; keepalive 64; }}\n\
             server {{ listen {address}{ssl}; {server} keepalive_requests 1000000;\n\
             location / {{ {location} proxy_pass http://behind; proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\"; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let nginx = NginxProxy { child, url: format!("{scheme}://{address}"), folder, _port: port };
        let start_time = Instant::now();
        while TcpStream::connect(address).is_err() {
            let log = fs::read_to_string(nginx.folder.path().join("error.log"));
            assert!(start_time.elapsed() < START_TIMEOUT, "nginx does not listen: {log:?}");
            // Sleeps: between two attempts to connect.
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Some(nginx)
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Numbers of full and of resumed handshakes so far, of connections with at least one request.
    pub(crate) fn handshakes(&self) -> (u64, u64) {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        let count = |entry: &str| log.lines().filter(|line| *line == entry).count() as u64;
        (count("1 ."), count("1 r"))
    }
}

impl Drop for NginxProxy {
    fn drop(&mut self) {
        // SIGTERM lets nginx end its worker processes; SIGKILL would leave them running.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
