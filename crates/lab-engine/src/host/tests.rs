//! Goal: samples arrive in time and the watcher ends. Method: this host is watched for a short
//! time.

use lab_model::metrics::host::HostMetric;
use test_support::wait::WAIT_TIMEOUT;

use super::*;

fn watch() -> Watch {
    Watch { interval: Duration::from_millis(100), pids: Vec::new(), node_exporter: None }
}

/// Collects samples until `enough` returns true. Panics after [`WAIT_TIMEOUT`].
fn until(watcher: &mut Watcher, enough: impl Fn(&[HostSample]) -> bool) -> Vec<HostSample> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while !enough(&samples) {
        assert!(start.elapsed() < WAIT_TIMEOUT, "{samples:?}");
        samples.extend(watcher.take());
        thread::park_timeout(Duration::from_millis(5)); // Sleeps: between two looks.
    }
    samples
}

#[test]
fn samples_arrive_before_and_after_the_start() {
    let origin = Instant::now() + Duration::from_millis(250);
    let mut watcher = Watcher::start(&watch(), None, origin).unwrap();
    let samples = until(&mut watcher, |samples| samples.len() >= 5);
    assert!(samples[0].at < 0.0, "{samples:?}");
    assert!(samples[4].at > 0.0, "{samples:?}");
    assert!(samples[0].values.iter().any(|(name, _)| name == "cpu_busy"), "{samples:?}");
    let facts = watcher.finish();
    assert!(facts.cores >= 1.0);
    assert!(facts.cost > 0.0 && facts.cost < 0.5, "{}", facts.cost);
    assert!(!facts.target_local);
}

#[test]
fn an_interval_out_of_range_is_rejected() {
    let watch = Watch { interval: Duration::from_millis(50), ..watch() };
    let fault = Watcher::start(&watch, None, Instant::now()).unwrap_err();
    assert_eq!(fault.to_string(), "the interval of watching is 50ms; allowed: 100 ms to 1 s");
}

/// The test watches threads as if they were processes, because `/proc` also has an entry for each
/// thread id.
#[test]
fn too_many_processes_are_reported_as_such() {
    let (end, waits) = std::sync::mpsc::sync_channel::<()>(1);
    let waits = Arc::new(Mutex::new(waits));
    let (send_id, ids) = std::sync::mpsc::sync_channel(PROCESSES_MAX);
    thread::scope(|scope| {
        for _ in 0..PROCESSES_MAX {
            let (send_id, waits) = (send_id.clone(), Arc::clone(&waits));
            scope.spawn(move || {
                send_id
                    .send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
                    .unwrap();
                let _ = waits.lock().recv();
            });
        }
        let pids = ids.iter().take(PROCESSES_MAX).collect();
        let watch = Watch { pids, ..watch() };
        let fault = Watcher::start(&watch, None, Instant::now()).unwrap_err();
        drop(end);
        let expected = ": 256 processes are watched already";
        assert!(fault.to_string().ends_with(expected), "{fault}");
    });
}

#[test]
fn which_addresses_are_local() {
    assert!(is_local("127.0.0.1:1".parse().unwrap()));
    assert!(is_local("[::1]:1".parse().unwrap()));
    // TEST-NET-3 of RFC 5737 belongs to nobody.
    assert!(!is_local("203.0.113.9:80".parse().unwrap()));
}

#[test]
fn the_listener_is_found_and_every_metric_is_documented() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let _client = std::net::TcpStream::connect(target).unwrap();
    let mut watcher = Watcher::start(&watch(), Some(target), Instant::now()).unwrap();
    let has_metric = |samples: &[HostSample], metric: &str| {
        samples.iter().flat_map(|sample| &sample.values).any(|(name, _)| name == metric)
    };
    let samples = until(&mut watcher, |samples| {
        samples.len() >= 4 && has_metric(samples, "target.accept_queue")
    });
    let mut names: Vec<&str> = Vec::new();
    for (name, value) in samples.iter().flat_map(|sample| &sample.values) {
        assert!(HostMetric::of_sample(name).is_some(), "{name}");
        assert!(value.is_finite(), "{name}");
        names.push(name);
    }
    for metric in ["process.generator.cpu", "target.accept_queue", "ports_used"] {
        assert!(names.contains(&metric), "{metric}: {names:?}");
    }
    let mut facts = watcher.finish();
    assert!(facts.target_local && facts.missing.is_empty(), "{:?}", facts.missing);
    let target = facts.processes.iter().find(|process| process.role == ProcessRole::Target);
    assert_eq!(target.unwrap().pids, [std::process::id()]);
    assert!(facts.target_cores.unwrap() >= 0.01);
    facts.set_cpu_per_request(0);
    assert_eq!(facts.processes[0].cpu_ms_per_request, None, "of no requests there is no share");
    facts.processes[0].cpu = 2.0;
    facts.set_cpu_per_request(1_000);
    assert_eq!(facts.processes[0].cpu_ms_per_request, Some(2.0));
}

#[test]
fn errors_of_a_watch_are_reported_before_the_run() {
    let fault =
        |watch: Watch| Watcher::start(&watch, None, Instant::now()).unwrap_err().to_string();
    let nobody = Watch { pids: vec![u32::MAX], ..watch() };
    assert_eq!(fault(nobody), "cannot watch process 4294967295: it does not exist");
    let at = |url: &str| Some(lab_model::plan::NodeUrl::parse_http(url).unwrap());
    assert_eq!(
        fault(Watch { node_exporter: at("https://h:9100/metrics"), ..watch() }),
        "cannot use the node-exporter at https://h:9100/metrics: use http://HOST:PORT/metrics"
    );
    // A port that was free a moment ago.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = fault(Watch { node_exporter: at(&format!("http://{closed}")), ..watch() });
    assert!(refused.contains("refused"), "{refused}");
}

/// Sampling this process with many connections every 250 ms takes about 1 % of a core in an
/// unoptimised build. It takes several times as much if other tests use the same cores and caches.
/// Every result reports the cost of its run as `watch_cost`.
#[test]
fn watching_is_cheap() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let _clients: Vec<_> =
        (0..100).map(|_| std::net::TcpStream::connect(target).unwrap()).collect();
    let watch = Watch { interval: Duration::from_millis(250), ..watch() };
    let mut watcher = Watcher::start(&watch, Some(target), Instant::now()).unwrap();
    until(&mut watcher, |samples| samples.len() >= 8);
    let facts = watcher.finish();
    eprintln!("watching takes {:.3} % of a core", facts.cost * 100.0);
    assert!(facts.cost < 0.05, "{}", facts.cost);
}
