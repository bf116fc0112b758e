//! Goal: the thread sends valid requests, retries in order, never blocks the run, ends every
//! series, and shows no secret. Method: a receiver on port 0 that sends planned responses.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use parking_lot::Mutex;
use prost::Message;

use super::*;
use crate::export::proto::{WriteRequest, stale};
use crate::live::scene::Scene;

/// A received request: its header section in lower case, and its decoded body.
type Received = (String, WriteRequest);

struct Receiver {
    url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Starts a receiver that sends these responses, then always status 204. A response is a status
    /// with further headers.
    fn start(responses: &'static [&'static str]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/api/v1/write", listener.local_addr().unwrap());
        let received = Arc::new(Mutex::new(Vec::new()));
        let thread_received = Arc::clone(&received);
        let mut responses = responses.iter();
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut reader = BufReader::new(stream.unwrap());
                while let Some(request) = read(&mut reader) {
                    thread_received.lock().push(request);
                    let head = responses.next().unwrap_or(&"204 No Content\r\n");
                    let response = format!("HTTP/1.1 {head}Content-Length: 0\r\n\r\n");
                    reader.get_mut().write_all(response.as_bytes()).unwrap();
                }
            }
        });
        Receiver { url, received }
    }
}

/// Reads the next request; `None` if the connection is closed.
fn read(reader: &mut impl BufRead) -> Option<Received> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let head = head.to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let bytes = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
    Some((head, WriteRequest::decode(&*bytes).unwrap()))
}

/// Pushes the metrics of a run at these seconds.
fn push_run(settings: &Settings, seconds: &[u64]) -> PushSummary {
    let mut scene = Scene::new();
    let mut remote = RemoteWrite::start(settings).unwrap();
    for second in seconds {
        scene.elapsed = Duration::from_secs(*second);
        remote.update(&scene.progress());
    }
    remote.finish()
}

#[test]
fn a_run_is_pushed_and_every_series_ended() {
    let receiver = Receiver::start(&[]);
    let mut settings = Settings::new(&receiver.url);
    settings.labels = Labels::parse(&["testid=t1"]).unwrap();
    settings.url = settings.url.replace("http://", "http://u:p@");
    // Pushes are due at 1 s, 6 s and 60 s, which is the end.
    let summary = push_run(&settings, &[1, 2, 5, 6, 7, 60]);
    let received = receiver.received.lock();
    assert_eq!(received.len(), 4, "three times, and the end");
    for (head, _) in &*received {
        for line in [
            "post /api/v1/write http/1.1",
            "content-encoding: snappy",
            "content-type: application/x-protobuf",
            "x-prometheus-remote-write-version: 0.1.0",
            "user-agent: weir/",
            "authorization: basic dtpw",
        ] {
            assert!(head.contains(line), "{line}: {head}");
        }
    }
    let all_series = || received.iter().flat_map(|(_, push)| &push.timeseries);
    let is_ended = |series: &&TimeSeries| series.samples[0].value.to_bits() == stale().to_bits();
    let live: BTreeSet<_> =
        all_series().filter(|series| !is_ended(series)).map(TimeSeries::identity).collect();
    let mut ended: Vec<_> = all_series().filter(is_ended).map(TimeSeries::identity).collect();
    ended.sort();
    assert!(live.len() > 100);
    assert!(ended.iter().eq(&live), "each series ends once");
    for series in all_series() {
        assert!(series.labels.iter().any(|label| label.value == "t1"));
    }
    let times: Vec<i64> =
        received.iter().map(|(_, push)| push.timeseries[0].samples[0].timestamp).collect();
    // The pushes may follow within a millisecond, but a receiver rejects two samples with the same
    // time.
    assert!(times.is_sorted_by(|left, right| left < right), "{times:?}");
    assert_eq!(
        summary,
        PushSummary { stored: all_series().count() as u64, ..PushSummary::default() }
    );
}

#[test]
fn a_failed_push_is_retried_before_the_rest() {
    let receiver = Receiver::start(&[
        "500 Internal Server Error\r\n",
        "429 Too Many Requests\r\nRetry-After: 0\r\n",
        "503 Service Unavailable\r\n",
    ]);
    let summary = push_run(&Settings::new(&receiver.url), &[1, 60]);
    let received = receiver.received.lock();
    let first = &received[0].1;
    assert!(received[..4].iter().all(|(_, push)| push == first), "the first is repeated");
    assert_ne!(&received[4].1, first);
    assert_eq!((received.len(), summary.retried, summary.discarded), (6, 3, 0));
}

#[test]
fn a_rejected_push_is_reported_and_not_retried() {
    let receiver = Receiver::start(&["400 Bad Request\r\n"]);
    let summary = push_run(&Settings::new(&receiver.url), &[1, 60]);
    assert_eq!(receiver.received.lock().len(), 3);
    assert_eq!((summary.rejected_status, summary.retried, summary.discarded), (Some(400), 0, 0));
    assert!(summary.rejected > 20 && summary.stored > summary.rejected, "{summary:?}");
}

#[test]
fn a_series_without_samples_ends_at_once() {
    let receiver = Receiver::start(&[]);
    let mut scene = Scene::new();
    let mut remote = RemoteWrite::start(&Settings::new(&receiver.url)).unwrap();
    remote.update(&scene.progress());
    scene.elapsed += INTERVAL;
    scene.host.clear();
    remote.update(&scene.progress());
    remote.finish();
    let received = receiver.received.lock();
    let ended = |push: &WriteRequest| -> Vec<String> {
        let ended = push.timeseries.iter().filter(|series| series.samples[0].value.is_nan());
        ended.map(|series| series.labels[0].value.clone()).collect()
    };
    assert_eq!(ended(&received[0].1), [""; 0]);
    assert_eq!(ended(&received[1].1), ["weir_lab_host"; 3]);
}

#[test]
fn a_silent_receiver_does_not_block_updates() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let mut remote = RemoteWrite::start(&Settings::new(&url)).unwrap();
    let mut scene = Scene::new();
    let begin = Instant::now();
    for second in 0..20 {
        scene.elapsed = Duration::from_secs(second * 5);
        remote.update(&scene.progress());
    }
    assert!(begin.elapsed() < TIMEOUT, "seeing took {:?}", begin.elapsed());
    assert!(remote.skipped > 0, "what does not fit is counted");
}

#[test]
fn invalid_settings_are_rejected_and_secrets_are_masked() {
    let mut bad = Vec::new();
    for url in ["", "127.0.0.1:9090", "ftp://hidden@host/", "http:///x", "https://"] {
        bad.push(Settings::new(url));
    }
    let plain = Settings::new("http://127.0.0.1:9/");
    bad.push(Settings { trends: Trends::Native { schema: 3 }, ..plain.clone() });
    bad.push(Settings { trends: Trends::Native { schema: 9 }, ..plain.clone() });
    bad.push(Settings { trends: Trends::Stats(Vec::new()), ..plain.clone() });
    for settings in bad {
        let fault = RemoteWrite::start(&settings).unwrap_err().to_string();
        assert!(!fault.contains("hid"), "{fault}");
    }
    let settings = Settings::new("http://u:hidden@127.0.0.1:9/x?hidden");
    let shown = format!("{settings:?}");
    assert!(!shown.contains("hidden") && shown.contains("127.0.0.1:9"), "{shown}");
}
