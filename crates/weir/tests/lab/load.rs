//! Goal: the output, files and exit codes of `weir load` are correct. Method: the real binary
//! against simulated nodes with known behaviour, and against servers that are not nodes.
//!
//! The plans of these tests allow any scheduling delay: the tests share their machine and do not
//! check the engine's timing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use test_support::proxy::{start_proxy, start_proxy_with_status};
use test_support::running::Weir;

/// Writes a plan for a target, with the test's own `sections`. Returns the plan's path.
fn write_plan(folder: &TempDir, url: &str, sections: &str) -> String {
    let text = format!(
        "[target]\nurl = \"{url}\"\ntimeout = \"1s\"\n[validity]\nscheduling_delay_p99_max = \"10m\"\n\
         waited_share_max = 1\n{sections}"
    );
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const BLOCK_NUMBER: &str = "\n[[mix.own.calls]]\nmethod = \"eth_blockNumber\"\n";

/// A scenario with 50 calls of one method per second for three seconds.
fn steady_scenario() -> String {
    let scenario = "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 20\n\
                    stages = [{ name = \"steady\", duration = \"3s\", rate = 50 }]\n";
    format!("{scenario}{BLOCK_NUMBER}")
}

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("load").args(arguments).stdin(Stdio::null());
    command
}

/// Runs `weir load`. Returns its exit code, standard output and standard error.
fn load(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = weir(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Runs `weir load`. Returns its exit code and its result as JSON.
fn load_result(arguments: &[&str]) -> (i32, Value) {
    let (code, out, err) = load(&[arguments, &["--json", "-", "--quiet"]].concat());
    let result = serde_json::from_str(&out).unwrap_or_else(|_| panic!("exit {code}: {out}{err}"));
    (code, result)
}

fn verdict_text(result: &Value) -> String {
    result["verdict"].to_string()
}

#[test]
fn results_of_a_wrong_type_are_counted_and_can_fail_a_run() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    // Every second block number is null.
    let proxy = start_proxy(&node.address, move |request, response| {
        let is_second = request.contains("eth_blockNumber")
            && calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 1;
        match response.split_once("\"result\":") {
            Some((start, _)) if is_second => format!("{start}\"result\":null}}"),
            _ => response,
        }
    });
    let thresholds = "\n[thresholds]\n\"null{method:eth_blockNumber}\" = [\"rate<0.9\"]\n\
                      wrong_type = [\"rate<0.1\"]\n";
    let plan = write_plan(&folder, &proxy, &(steady_scenario() + thresholds));
    let (code, result) = load_result(&[&plan]);
    assert_eq!(code, 3, "{}", verdict_text(&result));
    let row = &result["methods"][0];
    for share in [&row["null_share"], &row["wrong_type_share"], &result["overall"]["null_share"]] {
        assert!((0.4..0.6).contains(&share.as_f64().unwrap()), "{row}");
    }
    assert_eq!(row["failed_share"], 0.0);
    let findings = result["findings"].to_string();
    assert!(findings.contains("of the results of eth_blockNumber have another JSON type"));
    let kept = |index: usize| result["thresholds"][index]["kept"].as_bool().unwrap();
    assert_ne!(kept(0), kept(1), "{}", result["thresholds"]);
}

#[test]
fn an_earlier_result_and_a_url_are_no_output_folder() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let plan = write_plan(&folder, &node.url(), &steady_scenario());
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("result.json"), "{}").unwrap();
    let out = out.to_str().unwrap();
    let (code, _, err) = load(&[&plan, "--out", out]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("already has result.json") && err.contains("--force"), "{err}");
    let (code, _, err) = load(&[&plan, "--quiet", "--out", out, "--force"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = load(&[&plan, "--out", "s3://bucket/x"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("local folders only"), "{err}");
}

#[test]
fn each_warning_of_a_plan_is_printed_once() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    // A mix that no scenario uses is a warning.
    let unused = "\n[[mix.unused.calls]]\nmethod = \"eth_chainId\"\n";
    let plan = write_plan(&folder, &node.url(), &(steady_scenario() + unused));
    let warning = "no scenario names the mix unused";
    let (code, out, err) = load(&[&plan, "--plain"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!((out.matches(warning).count(), err.matches(warning).count()), (0, 1), "{out}{err}");
    let (_, out, err) = load(&[&plan, "--quiet"]);
    assert_eq!((out.matches(warning).count(), err.matches(warning).count()), (1, 0), "{out}{err}");
    let (_, result) = load_result(&[&plan]);
    assert!(result["warnings"].to_string().contains(warning), "{result}");
}

#[test]
fn a_target_that_meets_the_thresholds_passes() {
    let (node, folder) =
        (Weir::node().args(&["--latency", "5ms"]).start(), TempDir::new().unwrap());
    let thresholds = "[thresholds]\n\"failed\" = \"rate<0.01\"\n\"latency\" = \"p(95)<900\"\n";
    let plan = write_plan(&folder, &node.url(), &(steady_scenario() + thresholds));
    let (code, result) = load_result(&[&plan]);
    assert_eq!(
        (code, &result["verdict"]["outcome"]),
        (0, &Value::from("pass")),
        "{}",
        verdict_text(&result)
    );
    assert_eq!(result["partial"], false);
    assert_eq!(result["target"]["family"], "ethereum");
    assert!(result["target"]["head_end"].as_u64() >= result["target"]["head_start"].as_u64());
    let generator = &result["generator"];
    assert_eq!(generator["iterations"]["scheduled"], 150);
    assert_eq!(result["overall"]["calls"], 150);
    assert_eq!(result["overall"]["classes"][0]["class"], "ok");
    assert_eq!(result["series"].as_array().unwrap().len(), 3);
    assert_eq!(result["stages"][0]["rate_started"], 50.0);
    assert!(result["overall"]["service"]["min_ms"].as_f64().unwrap() >= 5.0);
    let thresholds = result["thresholds"].as_array().unwrap();
    assert_eq!(thresholds.iter().filter(|threshold| threshold["kept"] == true).count(), 2);
}

#[test]
fn one_line_is_enough_and_the_family_is_found() {
    let node = Weir::node().start();
    let (_, result) = load_result(&[&node.url(), "-c", "4", "-n", "200"]);
    assert_eq!(result["generator"]["iterations"]["started"], 200);
    assert_eq!(result["target"]["family"], "ethereum");
    assert_eq!(result["overall"]["failed_share"], 0.0);
    assert!(result["methods"].as_array().unwrap().len() > 3, "the usual mix has several methods");
}

#[test]
fn a_broken_threshold_fails_and_says_which_and_when() {
    let (node, folder) =
        (Weir::node().args(&["--latency", "50ms"]).start(), TempDir::new().unwrap());
    let plan = write_plan(
        &folder,
        &node.url(),
        &(steady_scenario() + "[thresholds]\n\"latency\" = \"p(95)<20\"\n"),
    );
    let (code, out, err) = load(&[&plan, "--plain"]);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.starts_with("FAIL"), "{out}");
    assert!(out.contains("p(95)<20") && out.contains("first at 0.0 s"), "{out}");
    assert!(err.contains("BROKEN"), "lines of progress tell it at once: {err}");
}

/// A quota is used up in the middle of a run. The words of the first 429 are a finding, without the
/// key of the target.
#[test]
fn the_first_rejection_of_a_run_is_quoted() {
    let node = Weir::node().args(&["--rate", "eth_blockNumber=20:429"]).start();
    let url = start_proxy_with_status(&node.address, |_, response| {
        match response.contains("\"result\"") {
            true => (200, response),
            false => (429, r#"{"error":"the quota of sekrit-key-17 is used up"}"#.to_owned()),
        }
    });
    let folder = TempDir::new().unwrap();
    let plan = write_plan(&folder, &format!("{url}/?key=sekrit-key-17"), &steady_scenario());
    let (_, result) = load_result(&[&plan]);
    assert!(result["overall"]["limited_share"].as_f64() > Some(0.1), "{result}");
    let quote = "the first response with status 429 said: \\\"the quota of *** is used up\\\"";
    assert!(result["findings"].to_string().contains(quote), "{}", result["findings"]);
}

#[test]
fn calls_that_the_node_refuses_fail_the_run_without_any_threshold() {
    let node = Weir::node().start();
    let (code, result) =
        load_result(&[&node.url(), "-r", "50", "-d", "2s", "--method", "eth_nothing"]);
    assert_eq!(code, 3, "{}", verdict_text(&result));
    assert!(
        verdict_text(&result).contains("every call of eth_nothing"),
        "{}",
        verdict_text(&result)
    );
    assert_eq!(result["overall"]["codes"][0][0], -32_601);
}

#[test]
fn a_method_that_begins_to_hang_is_named_with_its_time_and_rate() {
    let (mut node, folder) =
        (Weir::node().admin().args(&["--latency", "2ms"]).start(), TempDir::new().unwrap());
    // 2 % of the calls are of the method that will hang: too few to break the threshold.
    let scenario = "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 200\n\
                    stages = [{ name = \"steady\", duration = \"10s\", rate = 300 }]\n\
                    [thresholds]\n\"failed\" = \"rate<0.05\"\n";
    let calls = "\n[[mix.own.calls]]\nmethod = \"eth_blockNumber\"\nweight = 98\n\
                 \n[[mix.own.calls]]\nmethod = \"eth_gasPrice\"\nweight = 2\n";
    let plan = write_plan(&folder, &node.url(), &format!("{scenario}{calls}"));
    let load = weir(&[&plan, "--json", "-", "--plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut load = KilledOnDrop(load);
    // The first line of progress comes after five seconds. Then the fault begins.
    load.wait_for_line("planned");
    let fault = r#"{"faults":[{"fault":{"kind":"hang"},"method":"eth_gasPrice"}]}"#;
    node.set_node_settings(fault);
    let mut out = String::new();
    load.0.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(load.0.wait().unwrap().code(), Some(3), "{out}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let verdict = verdict_text(&result);
    assert!(verdict.contains("every call of eth_gasPrice scheduled since "), "{verdict}");
    assert!(verdict.contains("mostly timeout") && verdict.contains("iterations/s"), "{verdict}");
    let (_, after_since) = verdict.split_once("scheduled since ").unwrap();
    let since: f64 = after_since.split(' ').next().unwrap().parse().unwrap();
    assert!((4.0..=8.0).contains(&since), "{verdict}");
    assert_eq!(result["thresholds"][0]["kept"], true, "{verdict}");
    node.assert_sound();
}

#[test]
fn pauses_that_bound_the_rate_are_reported_as_the_limit() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let scenario = "[[scenario]]\nname = \"workers\"\nmodel = \"closed\"\nmix = \"own\"\n\
                    pause = \"100ms\"\n\
                    stages = [{ name = \"steady\", duration = \"3s\", workers = 10 }]\n";
    let plan = write_plan(&folder, &node.url(), &format!("{scenario}{BLOCK_NUMBER}"));
    let (code, result) = load_result(&[&plan]);
    assert_eq!(code, 5, "{}", verdict_text(&result));
    assert_eq!(result["verdict"]["outcome"], "client-limited");
    assert!(
        verdict_text(&result).contains("the plan's own pacing allows at most 100/s (10 workers"),
        "{}",
        verdict_text(&result)
    );
}

#[test]
fn ctrl_c_keeps_the_measurements_and_marks_them_as_partial() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let out = folder.path().join("out");
    let arguments =
        [&node.url(), "-c", "2", "-d", "60s", "--plain", "--out", out.to_str().unwrap()];
    let load = weir(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut load = KilledOnDrop(load);
    load.wait_for_line("planned");
    let id = load.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut output = String::new();
    load.0.stdout.as_mut().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!(load.0.wait().unwrap().code(), Some(6), "{output}");
    assert!(output.contains("stopped by the user"), "{output}");
    let text = std::fs::read_to_string(out.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["partial"], true);
    assert!(result["duration"].as_f64().unwrap() < 30.0);
}

#[test]
fn wrong_targets_are_reported_with_their_response() {
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, out, err) = load(&[&format!("http://{closed_port}")]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("the connection was refused"), "{err}");

    let web_server =
        start_constant_server(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html>hello<");
    let (code, _, err) = load(&[&web_server]);
    assert_eq!(code, 1);
    assert!(err.contains("it is not a JSON-RPC server") && err.contains("<html>hello<"), "{err}");

    let ssh_server = start_constant_server(b"SSH-2.0-OpenSSH_9.6\r\n");
    let (code, _, err) = load(&[&ssh_server]);
    assert_eq!(code, 1);
    assert!(err.contains("does not speak HTTP; its response begins with \"SSH-2.0"), "{err}");
}

#[test]
fn faulty_arguments_and_plans_end_with_2_and_send_nothing() {
    let check = |arguments: &[&str], expected: &str| {
        let (code, out, err) = load(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(expected), "{err}");
    };
    check(&["http://127.0.0.1:1", "-d", "soon"], "-d");
    check(&["http://127.0.0.1:1", "--threshold", "latency p(95)"], "--threshold");
    check(&["http://127.0.0.1:1", "--set", "a=1"], "--set cannot be used with a URL");
    check(&["http://127.0.0.1:1", "--family", "klingon"], "ethereum, harmony, bitcoin");
    check(&["http://127.0.0.1:1", "--method", "a", "--body", "{}"], "--body");
    check(&["no-such-plan.toml"], "cannot read the plan no-such-plan.toml");
    check(&["no-such-plan.toml", "-c", "5"], "-c cannot be used with a plan");
    let folder = TempDir::new().unwrap();
    let faulty = write_plan(&folder, "http://127.0.0.1:1", "[[scenario]]\nnaem = \"load\"\n");
    check(&[&faulty], "naem");
}

#[test]
fn a_failed_write_is_reported_and_the_result_is_printed() {
    let node = Weir::node().start();
    let url = node.url();
    let (code, out, err) = load(&[&url, "-n", "20", "-c", "2", "--quiet", "--json", "/dev/full"]);
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("eth_"), "{out}");
    assert!(err.contains("cannot write /dev/full") && err.contains("No space left"), "{err}");
    // A folder that cannot be created is reported before the first request.
    let (code, out, err) = load(&[&url, "-n", "20", "--out", "/proc/nowhere"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("cannot make the folder /proc/nowhere"), "{err}");
}

#[test]
fn all_outputs_are_written() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let path_of = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (out, csv, k6, json) =
        (path_of("out"), path_of("s.csv"), path_of("k6.json"), path_of("r.json"));
    let (_, printed, err) = load(&[
        &node.url(),
        "-n",
        "50",
        "-c",
        "2",
        "--plain",
        "--out",
        &out,
        "--csv",
        &csv,
        "--k6-summary",
        &k6,
        "--json",
        &json,
    ]);
    assert!(printed.contains("eth_"), "{printed}{err}");
    for file in ["out/result.json", "out/latency.hlog", "out/report.md", "s.csv", "k6.json"] {
        let path = folder.path().join(file);
        assert!(path.metadata().is_ok_and(|file| file.len() > 100), "{file}: {err}");
    }
    let read =
        |path: &str| serde_json::from_slice::<Value>(&std::fs::read(Path::new(path)).unwrap());
    assert_eq!(read(&json).unwrap()["schema"], "weir.run/1");
    assert!(read(&k6).unwrap()["metrics"]["http_reqs"].is_object());
}

/// Returns the content of the first HTML element of this name after a heading of a page.
fn element_after<'p>(page: &'p str, heading: &str, element: &str) -> &'p str {
    let (_, page_part) = page.split_once(heading).unwrap();
    let (_, page_part) = page_part.split_once(&format!("<{element}>")).unwrap();
    page_part.split_once(&format!("</{element}>")).unwrap().0
}

#[test]
fn the_printed_command_repeats_the_run() {
    let node = Weir::node().start();
    let other = Weir::node().start();
    let folder = TempDir::new().unwrap();
    let comment = "# TARGET=http://elsewhere:1 (see http://pages.example/rpc, and b)\n";
    let file = write_plan(&folder, &other.url(), &steady_scenario());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{comment}{text}")).unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let (code, out_text, stderr) =
        load(&[&file, "--target", &node.url(), "--seed", "7", "--insecure", "--out", out]);
    assert!([0, 4, 5].contains(&code), "{out_text}{stderr}");
    let read = |folder: &str| -> Value {
        let file = Path::new(folder).join("result.json");
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let first = read(out);
    assert!(first["plan"]["text"].as_str().unwrap().starts_with(comment), "{}", first["plan"]);
    let page = std::fs::read_to_string(Path::new(out).join("report.html")).unwrap();
    let command = element_after(&page, "Repeat this run", "pre");
    assert!(command.contains(&node.url()) && command.contains("--seed 7 --insecure"), "{command}");

    std::fs::write(folder.path().join("plan.toml"), first["plan"]["text"].as_str().unwrap())
        .unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let repeated = Command::new("sh")
        .args(["-c", &format!("{command} --out again")])
        .env("PATH", path)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let repeated_stderr = String::from_utf8_lossy(&repeated.stderr);
    assert!([Some(0), Some(4), Some(5)].contains(&repeated.status.code()), "{repeated_stderr}");
    let second = read(folder.path().join("again").to_str().unwrap());
    for key in ["text", "hash", "seed", "insecure", "threads", "http", "connections"] {
        assert_eq!(first["plan"][key], second["plan"][key], "{key}");
    }
    assert_eq!(first["target"]["url"], second["target"]["url"]);
    let calls = |result: &Value| result["overall"]["calls"].as_f64().unwrap();
    assert!((calls(&first) - calls(&second)).abs() < 0.1 * calls(&first));
}

#[test]
fn responses_that_differ_from_the_reference_fail_the_run() {
    // The reference is the same chain, but for the size of one block.
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let other = start_proxy(&node.address, |request, response| {
        let is_changed = request.contains("\"0x64\"");
        if is_changed { response.replace("\"size\":\"0x", "\"size\":\"0x1") } else { response }
    });
    let text = format!(
        "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 20\n\
         stages = [{{ name = \"steady\", duration = \"3s\", rate = 20 }}]\n\
         [[mix.own.calls]]\nmethod = \"eth_getBlockByNumber\"\nparams = [\"0x64\", false]\n\
         [reference]\nurl = \"{}\"\nshare = 1\n",
        other
    );
    let plan = write_plan(&folder, &node.url(), &text);
    let (code, result) = load_result(&[&plan]);
    assert_eq!(code, 3, "{}", verdict_text(&result));
    assert!(verdict_text(&result).contains("compared responses of eth_getBlockByNumber differ"));
    assert!(result["compared"]["wrong"].as_u64().unwrap() > 10, "{}", result["compared"]);
    assert_eq!(result["compared"]["examples"].as_array().unwrap().len(), 5);
}

/// A process that ends with the test.
struct KilledOnDrop(std::process::Child);

impl KilledOnDrop {
    /// Reads lines from standard error until one contains the word.
    fn wait_for_line(&mut self, word: &str) {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines();
        let found = lines.any(|line| line.unwrap().contains(word));
        assert!(found, "the process ended before it printed {word:?}");
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have ended already, so errors are ignored.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that sends the same bytes to each client; returns its URL.
fn start_constant_server(response: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _read = stream.read(&mut [0; 4096]);
            let _written = stream.write_all(response);
        }
    });
    format!("http://{address}")
}
