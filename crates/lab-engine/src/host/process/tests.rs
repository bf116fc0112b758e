//! Goal: the usage of a process is counted exactly once, even after the process has ended. Method:
//! this process, and child processes that use a whole core.

use std::process::{Child, Command, Stdio};

use test_support::wait::WAIT_TIMEOUT;

use super::*;

fn spin() -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
    command.spawn().unwrap()
}

/// Takes samples until `enough` returns true, for at most [`WAIT_TIMEOUT`].
fn sample(
    processes: &mut Processes,
    enough: impl Fn(&[(String, f64)]) -> bool,
) -> Vec<(String, f64)> {
    let start = Instant::now();
    loop {
        let mut values = Values::default();
        processes.sample(Instant::now(), &mut values);
        let values = values.sample(0.0, "x").values;
        if enough(&values) {
            return values;
        }
        assert!(start.elapsed() < WAIT_TIMEOUT, "{values:?}");
        // Sleeps: between two looks; the kernel counts CPU in ticks.
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Returns the value of a metric, or -1 if the metric is absent.
fn get(values: &[(String, f64)], name: &str) -> f64 {
    values.iter().find(|(known, _)| known == name).map_or(-1.0, |(_, value)| *value)
}

#[test]
fn a_busy_child_and_its_end_are_seen() {
    let (mut first, mut second) = (spin(), spin());
    let mut processes = Processes::new();
    assert!(processes.add(first.id(), ProcessRole::Target));
    assert!(processes.add(second.id(), ProcessRole::Target));
    assert!(!processes.add(second.id(), ProcessRole::Target), "only once");
    let values = sample(&mut processes, |values| get(values, "process.sh.cpu") > 0.3);
    assert_eq!(get(&values, "process.sh.threads"), 2.0, "{values:?}");
    assert!(get(&values, "process.sh.memory_bytes") > 0.0);
    // Threads are read at their own interval, so their first value may need more samples.
    sample(&mut processes, |values| get(values, "process.sh.thread_max") > 0.0);
    first.kill().unwrap();
    first.wait().unwrap();
    sample(&mut processes, |values| get(values, "process.sh.threads") == 1.0);
    let facts = processes.facts();
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(facts[0].pids, [second.id()]);
    assert!(facts[0].restarted);
    assert!(facts[0].cpu > 0.0 && facts[0].memory_bytes_max > 0.0, "{facts:?}");
    let cpu = facts[0].cpu;
    processes.start_run();
    assert!(processes.facts()[0].cpu < cpu, "what was before the run does not count");
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn usage_before_a_process_is_watched_is_not_counted() {
    let (mut first, mut second) = (spin(), spin());
    let mut processes = Processes::new();
    assert!(processes.add(first.id(), ProcessRole::Target));
    sample(&mut processes, |values| get(values, "process.sh.thread_max") > 0.0);
    assert!(processes.add(second.id(), ProcessRole::Target));
    let mut thread_max: f64 = 0.0;
    for _ in 0..2 {
        // The first sample after the process was added, and the next one.
        let values = sample(&mut processes, |values| get(values, "process.sh.thread_max") > 0.0);
        thread_max = thread_max.max(get(&values, "process.sh.thread_max"));
    }
    assert!(thread_max < 2.0, "{thread_max} cores of one thread");
    assert!(!processes.facts()[0].restarted);
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn this_process_may_be_generator_and_target() {
    let mut processes = Processes::new();
    let own_id = std::process::id();
    assert!(processes.add(own_id, ProcessRole::Generator));
    assert!(processes.add(own_id, ProcessRole::Target));
    assert!(!processes.add(own_id, ProcessRole::Watched));
    let facts = processes.facts();
    assert_eq!(facts[0].name, "generator");
    assert_eq!(facts[1].role, ProcessRole::Target);
    assert!(processes.target_cores().unwrap() >= 1.0);
}

#[test]
fn programs_of_one_name_in_two_roles_have_two_names() {
    let (mut first, mut second) = (spin(), spin());
    let mut processes = Processes::new();
    processes.add(first.id(), ProcessRole::Target);
    processes.add(second.id(), ProcessRole::Upstream);
    let facts = processes.facts();
    assert_eq!((facts[0].name.as_str(), facts[1].name.as_str()), ("sh", "sh-2"));
    assert_eq!(processes.name(second.id()), Some("sh-2"));
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_group_has_only_processes_of_the_same_name() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("sh-worker");
    std::os::unix::fs::symlink("/bin/sh", &script).unwrap();
    let mut first = Command::new(&script)
        .args(["-c", "while :; do :; done"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut second = spin();
    let mut processes = Processes::new();
    assert!(processes.add(first.id(), ProcessRole::Target));
    assert!(processes.add(second.id(), ProcessRole::Target));
    let names: Vec<String> = processes.facts().into_iter().map(|process| process.name).collect();
    for child in [&mut first, &mut second] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(names, ["sh-worker", "sh"]);
}

#[test]
fn a_missing_process_is_rejected() {
    assert!(!Processes::new().add(u32::MAX, ProcessRole::Watched));
}
