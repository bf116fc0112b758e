//! Goal: a load generator that is stopped, or that has no core, never blames the target and never
//! calls its numbers valid, whatever the command and the model of the load. Method: the real binary
//! against a simulated node. Its process is stopped and continued by signals, or busy processes share
//! its only core.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use test_support::running::Weir;
use test_support::wait::wait_until;

/// Time for which the generator is stopped.
const STOP: Duration = Duration::from_secs(2);

/// Starts a command of `weir` with the plain progress, which is a line per second on standard error.
fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).args(["--plain", "--json", "-"]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a line of progress that has this text, stops the process for [`STOP`], and returns its
/// result.
fn result_after_stop(mut child: Child, is_running: impl Fn(&str) -> bool) -> Value {
    let mut progress = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !is_running(&line) {
        line.clear();
        assert!(progress.read_line(&mut line).unwrap() > 0, "the run ended before the stop");
    }
    stop_and_continue(&child);
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        progress.read_to_string(&mut rest).unwrap();
        rest
    });
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    child.wait().unwrap();
    let rest = reader.join().unwrap();
    serde_json::from_str(&output).unwrap_or_else(|_| panic!("{output}{rest}"))
}

/// Stops a process for [`STOP`].
fn stop_and_continue(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::park_timeout(STOP); // Sleeps: the planted stop.
    kill_process(pid, Signal::CONT).unwrap();
}

/// Returns all sentences of a run's result.
fn sentences(result: &Value) -> String {
    [&result["verdict"]["reasons"], &result["warnings"], &result["findings"], &result["bottleneck"]]
        .map(Value::to_string)
        .join("\n")
}

/// Checks the result of a run whose generator was stopped. The node responds within a millisecond.
fn check(name: &str, result: &Value) {
    let (outcome, told) = (&result["verdict"]["outcome"], sentences(result));
    assert!(
        told.contains("the generator itself stood still for up to"),
        "{name}: {outcome} {told}"
    );
    assert_ne!(outcome, "fail", "{name}: {told}");
    for blame in ["the target stalled", "did not keep up", "the target changed", "of its software"]
    {
        assert!(!told.contains(blame), "{name}: {told}");
    }
    let gap_ms = result["generator"]["gaps"]["max_ms"].as_f64().unwrap();
    assert!(gap_ms >= 0.95 * STOP.as_secs_f64() * 1e3, "{name}: {gap_ms}");
    let (latency, least) = (&result["overall"]["latency"], &result["overall"]["latency_least"]);
    assert!(latency["max_ms"].as_f64().unwrap() > 1_900.0, "{name}: {latency}");
    assert!(least["max_ms"].as_f64().unwrap() < 1_000.0, "{name}: {least}");
}

#[test]
fn a_stopped_generator_is_not_the_targets_fault_in_any_model() {
    let models = [
        ("closed", "http://", ["-c", "4"]),
        ("open", "http://", ["-r", "200"]),
        ("WebSockets", "ws://", ["-c", "4"]),
        ("a rate over WebSockets", "ws://", ["-r", "200"]),
    ];
    std::thread::scope(|scope| {
        for (name, scheme, model) in models {
            scope.spawn(move || {
                // The loads do not share a node, because each sends a burst after its stop.
                let node = Weir::node().start();
                let url = node.url().replace("http://", scheme);
                let settings = ["load", &url, "-d", "8s", "--method", "eth_blockNumber"];
                let child = start(&[&settings[..], &model].concat());
                let result = result_after_stop(child, |line| line.contains("stage "));
                check(name, &result);
                let outcome = &result["verdict"]["outcome"];
                // A quarter of the time is missing in the rate of a closed load, and a quarter of
                // the calls of an open load waited for the generator. On a busy machine, an open
                // load is limited by the generator too.
                let is_expected =
                    outcome == "client-limited" || (model[0] == "-r" && outcome == "invalid");
                assert!(is_expected, "{name}: {outcome} {}", sentences(&result));
            });
        }
    });
}

/// The latency is above its limit only because the generator was stopped.
#[test]
fn a_threshold_that_only_the_stop_breaks_does_not_fail_the_run() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let path = folder.path().join("plan.toml");
    let plan = format!(
        "[target]\nurl = \"{}\"\ntimeout = \"1s\"\n[thresholds]\nlatency = \"p(95)<900\"\n\
         failed = \"rate<0.01\"\n[[scenario]]\nmix = \"own\"\nworkers_max = 500\n\
         stages = [{{ duration = \"8s\", rate = 200 }}]\n[[mix.own.calls]]\n\
         method = \"eth_blockNumber\"\n",
        node.url()
    );
    std::fs::write(&path, plan).unwrap();
    let child = start(&["load", path.to_str().unwrap()]);
    let result = result_after_stop(child, |line| line.contains("stage "));
    check("a threshold", &result);
    let outcome = &result["verdict"]["outcome"];
    // On a busy machine, the load is limited by the generator too.
    assert!(outcome == "invalid" || outcome == "client-limited", "{}", sentences(&result));
    // The responses arrived in time, although the generator read them after their timeout.
    assert_eq!(result["overall"]["failed_share"], 0.0, "{result}");
}

/// The notifications of two seconds are read late.
#[test]
fn a_stopped_reader_of_subscriptions_reports_its_gap() {
    let (node, folder) =
        (Weir::node().args(&["--block-time", "200ms"]).start(), TempDir::new().unwrap());
    let path = folder.path().join("plan.toml");
    let plan = format!(
        "[target]\nurl = \"{}\"\n[[scenario]]\nmix = \"own\"\nworkers_max = 1\n\
         stages = [{{ duration = \"6s\", rate = 5 }}]\n[[mix.own.calls]]\n\
         method = \"eth_blockNumber\"\n[[subscription]]\nname = \"heads\"\nurl = \"{}\"\n\
         connections = 4\nended_max = 0\nmissing_max = 0\n",
        node.url(),
        node.url().replace("http://", "ws://")
    );
    std::fs::write(&path, plan).unwrap();
    let child = start(&["load", path.to_str().unwrap()]);
    let result = result_after_stop(child, |line| line.contains("stage "));
    let (row, told) = (&result["subscriptions"][0], sentences(&result));
    assert!(row["generator_gap_ms"].as_f64().unwrap() >= 1_900.0, "{row}");
    assert!(told.contains("read notifications of the subscription heads up to"), "{told}");
    assert!(!told.contains("waited for the target"), "{told}");
    assert_ne!(result["verdict"]["outcome"], "fail", "{told}");
}

/// A study makes its loads itself. A round whose run was disturbed is left out.
#[test]
fn a_study_leaves_out_the_run_in_which_it_was_stopped() {
    let (node, folder) = (Weir::node().admin().start(), TempDir::new().unwrap());
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "plan.toml",
        "[target]\nurl = \"http://127.0.0.1:1\"\n[thresholds]\nlatency = \"p(95)<900\"\n\
         [[scenario]]\nmix = \"own\"\nworkers_max = 500\n\
         stages = [{ duration = \"4s\", rate = 100 }]\n\
         [[mix.own.calls]]\nmethod = \"eth_blockNumber\"\n",
    );
    let url = node.url();
    write(
        "study.toml",
        &format!(
            "study = \"load\"\nname = \"stop\"\nplans = [\"plan.toml\"]\ncontrol = false\n\
             warm_up_rounds = 0\nrounds_min = 1\nrounds_max = 1\n\
             [[variant]]\nname = \"a\"\ntarget = \"{url}\"\n\
             [[variant]]\nname = \"b\"\ntarget = \"{url}\"\n"
        ),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["study", "load", "study.toml", "--out", "result", "--quiet"]);
    let mut child = command.current_dir(folder.path()).stdout(Stdio::null()).spawn().unwrap();
    // The calls before the load are fewer.
    wait_until("the first load", || crate::probe::calls(&node) > 50);
    stop_and_continue(&child);
    child.wait().unwrap();
    let text = std::fs::read_to_string(folder.path().join("result/study.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    let first = &result["rounds"][0]["runs"][0];
    assert_eq!(first["variant"], "a", "{first}");
    assert!(first["outcome"] == "invalid" || first["outcome"] == "client-limited", "{first}");
    assert!(first["left_out"].is_string(), "{first}");
    assert!(result["plans"][0]["left_out"].to_string().contains("round 1: a: "), "{text}");
}

/// Eight busy processes share the only core of the generator. All nine have the lowest priority, so
/// they leave the core to other programs. The check runs this test alone: beside other tests, the
/// generator would hardly get any time.
#[test]
fn a_generator_without_a_core_does_not_measure_the_target() {
    let node = Weir::node().args(&["--latency", "2ms"]).start();
    let pinned = |program: &str| {
        let mut command = Command::new("nice");
        command.args(["-n", "19", "taskset", "--cpu-list", "0", program]);
        command
    };
    // The kernel kills the busy processes with this test's process.
    let busy: Vec<Child> = (0..8)
        .map(|_| {
            let mut command = pinned("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "sh", "-c", "while :; do :; done"]);
            test_support::running::spawn(command).unwrap()
        })
        .collect();
    let url = node.url();
    for model in [["-c", "4"], ["-r", "200"]] {
        let mut command = pinned(env!("CARGO_BIN_EXE_weir"));
        command.args(["load", &url, "-d", "6s", "--method", "eth_blockNumber", "--quiet"]);
        let output = command.args(model).args(["--json", "-"]).output().unwrap();
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (outcome, told) = (&result["verdict"]["outcome"], sentences(&result));
        let waited = result["generator"]["run_delay"].as_f64().unwrap() / 6.0;
        // A thread that sleeps most of the time may get its core at once.
        let is_starved = model[0] == "-c" || waited >= 0.5;
        let is_rejected = outcome == "invalid" || outcome == "client-limited";
        assert!(is_rejected || !is_starved, "{model:?}: waited {waited}, {outcome} {told}");
        assert_ne!(outcome, "fail", "{told}");
        assert!(!told.contains("the target stalled"), "{told}");
    }
    for mut child in busy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
