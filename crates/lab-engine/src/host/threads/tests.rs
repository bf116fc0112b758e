//! Goal: the busiest thread has its name in the metrics. Method: a thread of this test uses a core.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use test_support::wait::WAIT_TIMEOUT;

use super::*;

#[test]
fn the_busy_thread_is_named() {
    let stop = Arc::new(AtomicBool::new(false));
    let stop_flag = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("spins here".to_owned());
    let spinning = thread
        .spawn(move || {
            while !stop_flag.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
    let mut threads = Threads::default();
    let start = Instant::now();
    let busiest = loop {
        let mut values = Values::default();
        let pids = [std::process::id()].into_iter();
        threads.sample(Instant::now(), "me", pids, &mut values);
        let values = values.sample(0.0, "x").values;
        let named = |name: &str| name.contains(".thread.spins_here-") && name.ends_with(".cpu");
        // The number of blocked threads is unknown if a thread ends while they are counted.
        let counts_blocked = values.iter().any(|(name, _)| name == "process.me.threads_blocked");
        if let Some((_, cpu)) = values.iter().find(|(name, _)| named(name))
            && counts_blocked
        {
            break (*cpu, values);
        }
        assert!(start.elapsed() < WAIT_TIMEOUT, "{values:?}");
        // Sleeps: between two looks; the kernel counts CPU in ticks.
        std::thread::park_timeout(Duration::from_millis(50));
    };
    stop.store(true, Ordering::Relaxed);
    spinning.join().unwrap();
    let (busiest_cpu, values) = busiest;
    let get =
        |metric: &str| values.iter().find(|(name, _)| name == metric).map(|(_, value)| *value);
    assert!(busiest_cpu > SERIES_SHARE_MIN && busiest_cpu < 1.5, "{busiest_cpu} {values:?}");
    assert!(get("process.me.thread_max").unwrap() >= busiest_cpu);
    assert!(get("process.me.run_delay").is_some());
}

#[test]
fn a_new_thread_counts_from_zero_and_an_ended_one_is_forgotten() {
    let thread =
        |cpu, delay| Counters { cpu, delay, voluntary_switches: 0.0, involuntary_switches: 0.0 };
    let before = BTreeMap::from([((1, 1), thread(5.0, 1.0)), ((1, 2), thread(9.0, 0.0))]);
    let now = BTreeMap::from([((1, 1), thread(5.5, 1.25)), ((1, 3), thread(0.25, 0.0))]);
    let usages = compute_usages(&before, &now, Duration::from_millis(500));
    assert_eq!(
        usages,
        [
            Usage { thread: (1, 1), cpu: 1.0, delay: 0.5 },
            Usage { thread: (1, 3), cpu: 0.5, delay: 0.0 },
        ]
    );
}

#[test]
fn names_are_valid_in_metrics() {
    assert_eq!(metric_name_part("tokio-runtime w\n"), "tokio-runtime_w");
    assert_eq!(metric_name_part("kworker/0:1"), "kworker_0_1");
    assert_eq!(metric_name_part("a.b\""), "a_b_");
}
