//! Open-loop load of two priority classes at three times a node's capacity.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::stall_detector::StallDetector;
use test_support::running::Weir;

/// Secret of the API key of the higher class.
const KEY: &str = "0123456789abcdef0123";

/// Capacity of the node in responses per second. The node serves 8 calls at a time, and each takes
/// 10 ms.
const CAPACITY: f64 = 800.0;

/// Measurements of one run.
#[derive(Debug)]
struct Measurements {
    /// Successful responses per second of both classes under overload.
    goodput: f64,
    /// Share of the higher class's calls that failed.
    high_failed: f64,
    /// The p99 latency of the higher class before the overload.
    calm_p99_ms: f64,
    /// The p99 latency of the higher class during the overload.
    high_p99_ms: f64,
    /// Resident memory two seconds after the start of the overload, and at its end, in bytes.
    memory_bytes: (u64, u64),
}

/// Starts the load of one priority class. Each class needs its own process, because a target of
/// `weir load` has only one API key.
fn start_load(folder: &TempDir, name: &str, url: &str, rate: u32, seconds: u32) -> Child {
    let key = match name {
        "high" => format!("headers = {{ authorization = \"Bearer {KEY}\" }}\n"),
        _ => String::new(),
    };
    let warmup = seconds / 3;
    let text = format!(
        "[target]\nurl = \"{url}\"\ntimeout = \"10s\"\n{key}\
         [validity]\nscheduling_delay_p99_max = \"10m\"\nwaited_share_max = 1\n\
         [run]\nwarmup = \"{warmup}s\"\n\
         [[scenario]]\nname = \"{name}\"\nmix = \"own\"\nworkers_max = 1000\n\
         stages = [{{ name = \"s\", duration = \"{seconds}s\", rate = {rate} }}]\n\
         [[mix.own.calls]]\nmethod = \"eth_getBalance\"\n\
         params = [{{ draw = \"address\" }}, \"latest\"]\n"
    );
    let plan = folder.path().join(format!("{name}.toml"));
    std::fs::write(&plan, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("load").arg(plan).args(["--json", "-", "--quiet"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits for the end of a load. Returns its goodput, failed share and p99 in milliseconds.
fn load_result(child: Child) -> (f64, f64, f64) {
    let output = child.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let overall = &result["overall"];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{overall}"));
    let classes = overall["classes"].as_array().unwrap();
    let ok = classes.iter().find(|class| class["class"] == "ok");
    let p99 = ok.map_or(f64::INFINITY, |ok| number(&ok["latency"]["p99_ms"]));
    (number(&overall["goodput"]), number(&overall["failed_share"]), p99)
}

/// Measures a gateway with these additional keys of `[overload]`.
fn measure(overload: &str) -> Measurements {
    let folder = TempDir::new().unwrap();
    let node = Weir::node().args(&["--capacity", "8:10ms", "--block-time", "1h"]).start();
    let mut gateway = Weir::serve()
        .config(&format!(
            "[[upstream]]\nurl = \"{}\"\nconnections_max = 1000\n\
         [cache]\nenabled = false\ncoalesce = false\n\
         [overload]\nhigh_tiers = [\"gold\"]\n{overload}\n\
         [access]\nrequired = false\n\
         [[key]]\nname = \"paid\"\nsecret = \"{KEY}\"\ntier = \"gold\"\n",
            node.url()
        ))
        .start();
    let url = gateway.url();
    let run = |high: u32, low: u32, seconds: u32| {
        let high = start_load(&folder, "high", &url, high, seconds);
        (high, start_load(&folder, "low", &url, low, seconds))
    };
    let (high, low) = run(100, 150, 3);
    let calm_p99_ms = load_result(high).2;
    load_result(low);
    let (high, low) = run(200, 2_200, 9);
    // Sleeps: the queue fills and buffers grow.
    test_support::wait::pause(Duration::from_secs(2));
    let memory_before = gateway.memory().0;
    let (high_goodput, high_failed, high_p99_ms) = load_result(high);
    let (low_goodput, ..) = load_result(low);
    let memory_bytes = (memory_before, gateway.memory().0);
    gateway.assert_sound();
    Measurements {
        goodput: high_goodput + low_goodput,
        high_failed,
        calm_p99_ms,
        high_p99_ms,
        memory_bytes,
    }
}

/// Returns the names of the violated thresholds.
fn faults(measured: &Measurements) -> Vec<&'static str> {
    let (before, after) = measured.memory_bytes;
    let checks = [
        (measured.goodput < 0.8 * CAPACITY, "goodput"),
        (measured.high_failed > 0.02, "better calls shed"),
        // The margin is for stalls of the test's machine. Without the limit, the latency would be
        // 20 times as high.
        (measured.high_p99_ms > 5.0 * measured.calm_p99_ms.max(15.0), "better calls late"),
        (after > before + (24 << 20), "memory"),
    ];
    checks.into_iter().filter(|(is_violated, _)| *is_violated).map(|(_, name)| name).collect()
}

#[test]
fn overload_harms_neither_goodput_nor_the_higher_class() {
    // A longer stall of the machine delays calls of the higher class.
    const STALL: Duration = Duration::from_millis(20);
    const TRIES: usize = 3;
    let passed = (0..TRIES).any(|_| {
        let stalls = StallDetector::start();
        let measured = measure("");
        let (faults, stalled) = (faults(&measured), stalls.longest_stall());
        println!("{faults:?} {measured:?}; the machine stalled for {stalled:?} at the worst");
        assert!(faults.is_empty() || stalled >= STALL, "{faults:?} {measured:?}");
        faults.is_empty()
    });
    assert!(passed, "the machine stalls too often to judge: {TRIES} times");
    let measured = measure("enabled = false");
    let faults = faults(&measured);
    assert!(
        faults.contains(&"better calls late"),
        "the test must fail without the limit: {faults:?} {measured:?}"
    );
}
