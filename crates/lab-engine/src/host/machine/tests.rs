//! Goal: the shares of CPU time add up to 1, even if counters of the kernel decrease or overlap.
//! Method: counters made by hand, and the counters of this machine.

use std::time::Duration;

use super::*;

fn cpu_times(states: &[(&str, f64)]) -> CpuTimes {
    let mut times = CpuTimes::default();
    for (state, time) in states {
        times.set(state, *time);
    }
    times
}

/// Returns the shares of CPU time between two readings. The time and the host of the sample do not
/// matter here.
fn values(before: CpuTimes, now: CpuTimes) -> Vec<(String, f64)> {
    let mut values = Values::default();
    now.since(&before).add_values(&mut values);
    values.sample(0.0, "x").values
}

fn get(values: &[(String, f64)], name: &str) -> f64 {
    values.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{name}")).1
}

#[test]
fn states_are_shares_of_all_cores() {
    let before = cpu_times(&[("user", 100.0), ("idle", 1_000.0)]);
    let now = cpu_times(&[("user", 130.0), ("idle", 1_050.0), ("iowait", 20.0)]);
    let values = values(before, now);
    assert_eq!(get(&values, "cpu_user"), 0.3);
    assert_eq!(get(&values, "cpu_iowait"), 0.2);
    assert!((get(&values, "cpu_busy") - 0.3).abs() < 1e-9, "waiting for IO is idle time");
}

#[test]
fn a_decreasing_iowait_is_no_negative_share() {
    let before = cpu_times(&[("iowait", 50.0)]);
    let now = cpu_times(&[("user", 10.0), ("idle", 10.0), ("iowait", 40.0)]);
    let values = values(before, now);
    assert_eq!(get(&values, "cpu_iowait"), 0.0);
    assert_eq!(get(&values, "cpu_busy"), 0.5);
}

#[test]
fn stalls_are_a_share_of_time() {
    let mut values = Values::default();
    let time = Duration::from_millis(250);
    let psi_io = [host!("psi_io_some"), host!("psi_io_full")];
    let now = StallMicros { some: 300_000.0, full: 130_000.0 };
    let previous = StallMicros { some: 200_000.0, full: 130_000.0 };
    add_stalls(&mut values, psi_io, WHOLE_MACHINE, (now, previous), time);
    let values = values.sample(0.0, "x").values;
    assert!((get(&values, "psi_io_some") - 0.4).abs() < 1e-9);
    assert_eq!(get(&values, "psi_io_full"), 0.0);
}

#[test]
fn guest_time_is_not_counted_twice() {
    // user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice. User time includes
    // guest time.
    let line = "cpu  100 0 0 100 0 0 0 0 100 0\n";
    let text = format!(
        "{line}cpu0 100 0 0 100 0 0 0 0 100 0\nintr 1\nctxt 2\nbtime 3\nprocesses 4\nprocs_running 1\nprocs_blocked 0\n"
    );
    let info = procfs::LocalSystemInfo;
    let kernel =
        <KernelStats as procfs::FromBufReadSI>::from_buf_read(text.as_bytes(), &info).unwrap();
    assert_eq!(CpuTimes::of(&kernel.total).busy(), Some(0.5));
}

#[test]
fn metrics_of_this_machine_are_read() {
    let mut machine = Machine::new();
    let start = Instant::now();
    machine.sample(start, &mut Values::default());
    let mut values = Values::default();
    // The kernel counts CPU time in ticks of up to 10 ms. Without several ticks between the two
    // samples, no shares could be computed.
    while start.elapsed() < Duration::from_millis(60) {
        std::hint::spin_loop();
    }
    machine.sample(Instant::now(), &mut values);
    let values = values.sample(0.0, "x").values;
    let names = ["cpu_user", "cpu_nice", "cpu_system", "cpu_idle", "cpu_iowait"];
    let more = ["cpu_irq", "cpu_softirq", "cpu_steal"];
    let sum: f64 = names.iter().chain(&more).map(|name| get(&values, name)).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}: {values:?}");
    assert!(get(&values, "cpu_busy") > 0.0, "{values:?}");
    assert!(get(&values, "memory_available_share") > 0.0);
    assert!(get(&values, "runnable") >= 1.0);
}
