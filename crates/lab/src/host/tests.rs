//! Goal: samples come in time and the watcher ends. Method: this host is watched for a moment.

use super::*;

fn watch() -> Watch {
    Watch { interval: Duration::from_millis(100), pids: Vec::new(), node_exporter: None }
}

/// Samples of `host` until `enough` says so; none after ten seconds.
fn until(watcher: &mut Watcher, enough: impl Fn(&[HostSample]) -> bool) -> Vec<HostSample> {
    let start = Instant::now();
    let mut samples = Vec::new();
    while !enough(&samples) {
        assert!(start.elapsed() < Duration::from_secs(10), "{samples:?}");
        samples.extend(watcher.take());
        thread::park_timeout(Duration::from_millis(5));
    }
    samples
}

#[test]
fn samples_come_before_the_start_and_after_it() {
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
fn an_interval_out_of_range_is_refused() {
    let watch = Watch { interval: Duration::from_millis(50), ..watch() };
    let fault = Watcher::start(&watch, None, Instant::now()).unwrap_err();
    assert_eq!(fault.to_string(), "the interval of watching is 50ms; allowed are 100 ms to 1 s");
}

#[test]
fn which_addresses_are_local() {
    assert!(is_local("127.0.0.1:1".parse().unwrap()));
    assert!(is_local("[::1]:1".parse().unwrap()));
    // TEST-NET-3 of RFC 5737 belongs to nobody.
    assert!(!is_local("203.0.113.9:80".parse().unwrap()));
}
