//! Messages of cargo are parsed, and processes that a program leaves are found.

use super::*;

fn settings() -> Settings {
    Settings { skip_log: "/dev/null".into(), required_programs: None }
}

/// Runs a script of a shell as a test program.
fn run_script(script: &str, silence_max: Duration) -> TestReport {
    let mut command = Command::new("sh");
    run_command(command.args(["-c", script]), "script", "sh", &settings(), silence_max)
}

#[test]
fn programs_are_read_from_the_messages_of_cargo() {
    let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/weir/Cargo.toml","target":{"kind":["test"],"name":"gateway"},"profile":{"test":true},"executable":"/w/target/debug/deps/gateway-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/lab/Cargo.toml","target":{"kind":["lib"],"name":"lab"},"profile":{"test":true},"executable":"/w/target/debug/deps/lab-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/weir/Cargo.toml","target":{"kind":["bin"],"name":"weir"},"profile":{"test":false},"executable":"/w/target/debug/weir"}
{"reason":"compiler-artifact","manifest_path":"/r/x/Cargo.toml","target":{"kind":["lib"],"name":"x"},"profile":{"test":false},"executable":null}
{"reason":"build-finished","success":true}"#;
    let programs = parse_programs(messages).unwrap();
    let options: Vec<&str> = programs.iter().map(|program| program.options.as_str()).collect();
    assert_eq!(options, ["-p weir --test gateway", "-p lab --lib"]);
    assert_eq!(programs[0].folder, Path::new("/w/crates/weir"));
    assert!(parse_programs("warning: odd").is_err());
}

#[test]
fn a_hanging_program_is_ended_and_reported() {
    let script = "echo 'test result: ok. 3 passed; 0 failed'; sleep 600 & wait";
    let started = Instant::now();
    let report = run_script(script, Duration::from_secs(1));
    assert_eq!((report.counts.passed, report.counts.failed > 0), (3, true), "{report:?}");
    assert!(report.failures[0].contains("killed after 1s without output"), "{report:?}");
    assert!(started.elapsed() < Duration::from_secs(300));
}

#[test]
fn a_process_that_a_program_leaves_is_ended_and_reported() {
    // `setsid` takes the process out of the group and the session of its parent.
    let script = "setsid sleep 612 >/dev/null & echo 'test result: ok. 1 passed; 0 failed'";
    let report = run_script(script, Duration::from_secs(60));
    assert_eq!(report.failures, ["script left a process, which was killed: sleep 612 "]);
    assert_eq!((report.counts.passed, report.counts.failed), (1, 1));
}

#[test]
fn a_program_that_ends_early_is_reported() {
    let report = run_script("exit 3", Duration::from_secs(60));
    assert_eq!(report.failures, ["sh: exit status: 3, although no test failed"]);
    let report = run_script(
        "echo 'test a ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed'; exit 101",
        Duration::from_secs(60),
    );
    assert_eq!((report.counts.failed, report.failures), (1, vec!["sh a".to_owned()]));
}

#[test]
fn a_process_of_a_killed_check_is_ended() {
    let mut ended_check = Command::new("true").spawn().unwrap();
    ended_check.wait().unwrap();
    let start = |check: u32| {
        let mut command = Command::new("sleep");
        command.arg("613").env(MARK, format!("{check}-0")).spawn().unwrap()
    };
    let (mut left, mut running) = (start(ended_check.id()), start(std::process::id()));
    // A started process has its environment once it runs its program.
    let is_ready =
        |child: &Child| list_processes().iter().any(|(id, _)| *id == child.id().to_string());
    while !is_ready(&left) || !is_ready(&running) {
        shell::pause(POLL_INTERVAL);
    }
    end_processes_of_killed_checks();
    assert_eq!(left.wait().unwrap().code(), None, "a signal has ended it");
    assert_eq!(running.try_wait().unwrap(), None);
    running.kill().unwrap();
    running.wait().unwrap();
}
