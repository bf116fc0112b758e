//! Goal: metrics of the real exporter are read, and other servers are reported. Method: Debian's
//! prometheus-node-exporter on an unused port, and small servers with other responses.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::thread;

use lab_model::metrics::host::HostMetric;
use tempfile::NamedTempFile;
use test_support::programs;

use super::*;

#[test]
fn urls() {
    let scraped = |url: &str| {
        Exporter::new(&NodeUrl::parse_http(url).unwrap()).ok().map(|exporter| exporter.url)
    };
    for (url, scraped_url) in [
        ("http://db1:9200/m", "http://db1:9200/m"),
        ("http://db1", "http://db1:9100/metrics"),
        ("http://db1:80", "http://db1:80/metrics"),
        ("http://[::1]:9100/metrics", "http://[::1]:9100/metrics"),
        ("http://[::80]", "http://[::80]:9100/metrics"),
    ] {
        assert_eq!(scraped(url).as_deref(), Some(scraped_url));
    }
    for wrong in ["https://db1:9100", "http://u:p@h/", "http://u:p@h:1/"] {
        assert_eq!(scraped(wrong), None, "{wrong}");
    }
}

fn exporter(url: &str) -> Exporter {
    Exporter::new(&NodeUrl::parse_http(url).unwrap()).unwrap()
}

/// Scrapes a server that sends this response, and returns the result.
fn scrape_response(response: &'static [u8]) -> Result<Scrape, ScrapeFault> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let _ = stream.read(&mut [0; 1_024]);
        stream.write_all(response).unwrap();
    });
    let result = exporter(&format!("http://127.0.0.1:{port}")).scrape();
    server.join().unwrap();
    result
}

#[test]
fn responses_of_other_servers_are_rejected() {
    let fault = |response| scrape_response(response).unwrap_err().to_string();
    assert_eq!(fault(b"HTTP/1.1 404 Not Found\r\n\r\n"), "the response has HTTP status 404");
    for not_http in [&b"SSH-2.0-OpenSSH\r\n"[..], b""] {
        assert!(matches!(scrape_response(not_http), Err(ScrapeFault::Http(_))));
    }
    let other = fault(b"HTTP/1.1 200 OK\r\n\r\ngo_goroutines 7\n");
    assert_eq!(other, "the page has no metric node_cpu_seconds_total");
    let page = b"HTTP/1.0 200 OK\r\n\r\nnode_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 9\n";
    assert_eq!(scrape_response(page).unwrap().cores, 1.0);
}

/// The process and the address of the real exporter on an unused port. Dropping this value stops
/// it.
struct Real(Child, String);

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_real() -> Option<Real> {
    let log = NamedTempFile::new().unwrap();
    let child = Command::new(programs::require("prometheus-node-exporter")?)
        .arg("--web.listen-address=127.0.0.1:0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.reopen().unwrap())
        .spawn()
        .unwrap();
    let mut real = Real(child, String::new());
    real.1 = programs::wait_for_address(&mut real.0, log.path(), "\"Listening on\" address=");
    Some(real)
}

#[test]
fn the_real_exporter_is_read() {
    let Some(real) = start_real() else { return };
    let exporter = exporter(&format!("http://{}", real.1));
    let first = exporter.scrape().unwrap();
    assert_eq!(first.cores, crate::host::machine::count_cores());
    let waiting = Arc::new(Waiting::default());
    let (stop, stopped) = sync_channel(1);
    let scrapes = Arc::new(Mutex::new(ScrapeCounts::default()));
    let origin = Instant::now();
    let (sink, counts) = (Arc::clone(&waiting), Arc::clone(&scrapes));
    let thread =
        thread::spawn(move || exporter.run(origin, (origin, first), &sink, &stopped, &counts));
    while waiting.lock().is_empty() {
        assert!(origin.elapsed() < Duration::from_secs(15), "{:?}", scrapes.lock());
        thread::park_timeout(Duration::from_millis(20)); // Sleeps: between two looks.
    }
    drop(stop);
    thread.join().unwrap();
    let sample = waiting.lock().pop_front().unwrap();
    assert_eq!(sample.host, "target");
    assert!(sample.at > 0.5, "{}", sample.at);
    for name in ["cpu_busy", "cpu_user", "load1", "memory_available_share", "tcp_retransmits"] {
        assert!(sample.values.iter().any(|(known, _)| known == name), "{name}: {sample:?}");
    }
    let unknown = sample.values.iter().filter(|(name, _)| HostMetric::of_sample(name).is_none());
    assert_eq!(unknown.count(), 0, "{sample:?}");
    let states = ["cpu_user", "cpu_nice", "cpu_system", "cpu_idle", "cpu_iowait"];
    let more = ["cpu_irq", "cpu_softirq", "cpu_steal"];
    let shares = sample
        .values
        .iter()
        .filter(|(name, _)| states.iter().chain(&more).any(|state| state == name));
    let sum: f64 = shares.map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
}
