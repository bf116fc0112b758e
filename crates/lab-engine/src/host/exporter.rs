//! The target's host through a prometheus-node-exporter, under the same metric names as this host's
//! own samples: `GET /metrics` every second, over plain HTTP.

mod counters;
mod parse;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use lab_model::plan::NodeUrl;
use parking_lot::Mutex;

use super::values::Values;
use super::{Waiting, push, since};

use counters::Counters;

/// Time between two questions; the exporter works some milliseconds for each.
const INTERVAL: Duration = Duration::from_secs(1);
/// The exporter's default port.
const PORT: u16 = 9_100;
/// Time for connecting, and for each wait of an answer.
const WAIT_MAX: Duration = Duration::from_secs(3);
/// A page of a host with many devices has some 500 kB.
const PAGE_BYTES_MAX: u64 = 16 << 20;

/// Where an exporter is asked.
#[derive(Clone, Debug)]
pub(super) struct Exporter {
    url: NodeUrl,
    port: u16,
}

/// Why an exporter told nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// Not `http://HOST[:PORT][/PATH]`.
    #[error("allowed is http://HOST:PORT/metrics")]
    Url,
    /// No connection, or it broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Another status than 200.
    #[error("it answered with HTTP status {0}")]
    Status(u16),
    /// Not HTTP.
    #[error("it did not answer in HTTP")]
    NotHttp,
    /// No metrics of a host in it.
    #[error("the page has no metric node_cpu_seconds_total")]
    NotMetrics,
}

/// How polling went.
#[derive(Debug, Default)]
pub(super) struct Polls {
    pub(super) asked: u64,
    pub(super) failed: u64,
    pub(super) last_fault: Option<String>,
}

impl Exporter {
    /// Checks the URL. The default port is 9100, the default path `/metrics`.
    ///
    /// # Errors
    /// If the URL is not plain HTTP, or has a user part.
    pub(super) fn at(url: &NodeUrl) -> Result<Exporter, Fault> {
        if url.tls() || url.authorization().is_some() {
            return Err(Fault::Url);
        }
        let has_port = url.authority().ends_with(&format!(":{}", url.port()));
        let port = if has_port { url.port() } else { PORT };
        Ok(Exporter { url: url.clone(), port })
    }

    /// Asks once.
    ///
    /// # Errors
    /// If nothing came, or something that is no page of metrics.
    pub(super) fn ask(&self) -> Result<Counters, Fault> {
        let path = if self.url.target() == "/" { "/metrics" } else { self.url.target() };
        let mut addresses = (self.url.host(), self.port).to_socket_addrs()?;
        let address = addresses.next().ok_or(io::ErrorKind::NotFound).map_err(io::Error::from)?;
        let mut stream = TcpStream::connect_timeout(&address, WAIT_MAX)?;
        stream.set_read_timeout(Some(WAIT_MAX))?;
        stream.set_write_timeout(Some(WAIT_MAX))?;
        // HTTP/1.0: the page comes unchunked, and its end is that of the connection.
        let head = format!(
            "GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: text/plain;version=0.0.4\r\n\r\n",
            self.url.authority()
        );
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(PAGE_BYTES_MAX).read_to_end(&mut answer)?;
        let counters = Counters::read(page(&answer)?);
        if counters.cores == 0.0 { Err(Fault::NotMetrics) } else { Ok(counters) }
    }

    /// Asks until told to stop; samples go to `waiting`.
    pub(super) fn run(
        &self,
        origin: Instant,
        first: (Instant, Counters),
        waiting: &Arc<Waiting>,
        stop: &Receiver<()>,
        polls: &Mutex<Polls>,
    ) {
        let mut before = first;
        let mut due = Instant::now();
        loop {
            due = (due + INTERVAL).max(Instant::now());
            match stop.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            let answer = self.ask();
            let now = Instant::now();
            polls.lock().asked += 1;
            match answer {
                Ok(counters) => {
                    let mut values = Values::default();
                    let time = now.saturating_duration_since(before.0);
                    counters.put(&before.1, time, &mut values);
                    push(waiting, values.sample(since(origin, now), "target"));
                    before = (now, counters);
                }
                Err(fault) => {
                    let mut polls = polls.lock();
                    polls.failed += 1;
                    polls.last_fault = Some(fault.to_string());
                }
            }
        }
    }
}

/// The body of an answer with status 200.
fn page(answer: &[u8]) -> Result<&str, Fault> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(length)) = head.parse(answer) else {
        return Err(Fault::NotHttp);
    };
    match head.code {
        Some(200) => std::str::from_utf8(&answer[length..]).map_err(|_| Fault::NotMetrics),
        Some(status) => Err(Fault::Status(status)),
        None => Err(Fault::NotHttp),
    }
}

#[cfg(test)]
mod tests;
