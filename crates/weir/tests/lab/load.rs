//! Goal: the output, files and exit codes of `weir load` are correct. Method: the real binary
//! against simulated nodes with known behaviour, and against servers that are not nodes.
//!
//! Plans here allow any scheduling delay: tests share their machine and do not test the engine's
//! timing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use test_support::running::Weir;

/// A plan for a target, with what a test wants to say of it.
fn plan(folder: &TempDir, url: &str, rest: &str) -> String {
    let text = format!(
        "[target]\nurl = \"{url}\"\ntimeout = \"1s\"\n[validity]\nscheduling_delay_p99_max = \"10m\"\n\
         waited_share_max = 1\n{rest}"
    );
    let path = folder.path().join("plan.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const BLOCK_NUMBER: &str = "\n[[mix.own.calls]]\nmethod = \"eth_blockNumber\"\n";

/// 50 calls of one method per second for three seconds.
fn steady() -> String {
    let scenario = "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 20\n\
                    stages = [{ name = \"steady\", duration = \"3s\", rate = 50 }]\n";
    format!("{scenario}{BLOCK_NUMBER}")
}

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("load").args(arguments).stdin(Stdio::null());
    command
}

/// Exit code, standard output and standard error.
fn load(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = weir(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Runs a load and returns its result as JSON.
fn result(arguments: &[&str]) -> (i32, Value) {
    let (code, out, err) = load(&[arguments, &["--json", "-", "--quiet"]].concat());
    let result = serde_json::from_str(&out).unwrap_or_else(|_| panic!("exit {code}: {out}{err}"));
    (code, result)
}

fn reasons(result: &Value) -> String {
    result["verdict"].to_string()
}

#[test]
fn each_warning_of_a_plan_is_printed_once() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    // A mix that no scenario uses is a warning.
    let unused = "\n[[mix.unused.calls]]\nmethod = \"eth_chainId\"\n";
    let plan = plan(&folder, &node.url(), &(steady() + unused));
    let warning = "no scenario names the mix unused";
    let (code, out, err) = load(&[&plan, "--plain"]);
    assert_eq!(code, 0, "{out}{err}");
    assert_eq!((out.matches(warning).count(), err.matches(warning).count()), (0, 1), "{out}{err}");
    let (_, out, err) = load(&[&plan, "--quiet"]);
    assert_eq!((out.matches(warning).count(), err.matches(warning).count()), (1, 0), "{out}{err}");
    let (_, result) = result(&[&plan]);
    assert!(result["warnings"].to_string().contains(warning), "{result}");
}

#[test]
fn a_target_that_meets_the_thresholds_passes() {
    let (node, folder) =
        (Weir::node().args(&["--latency", "5ms"]).start(), TempDir::new().unwrap());
    let thresholds = "[thresholds]\n\"failed\" = \"rate<0.01\"\n\"latency\" = \"p(95)<900\"\n";
    let plan = plan(&folder, &node.url(), &(steady() + thresholds));
    let (code, result) = result(&[&plan]);
    assert_eq!(
        (code, &result["verdict"]["outcome"]),
        (0, &Value::from("pass")),
        "{}",
        reasons(&result)
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
    let kept = result["thresholds"].as_array().unwrap().iter().filter(|t| t["kept"] == true);
    assert_eq!(kept.count(), 2);
}

#[test]
fn one_line_is_enough_and_the_family_is_found() {
    let node = Weir::node().start();
    let (_, result) = result(&[&node.url(), "-c", "4", "-n", "200"]);
    assert_eq!(result["generator"]["iterations"]["started"], 200);
    assert_eq!(result["target"]["family"], "ethereum");
    assert_eq!(result["overall"]["failed_share"], 0.0);
    assert!(result["methods"].as_array().unwrap().len() > 3, "the usual mix has several methods");
}

#[test]
fn a_broken_threshold_fails_and_says_which_and_when() {
    let (node, folder) =
        (Weir::node().args(&["--latency", "50ms"]).start(), TempDir::new().unwrap());
    let plan =
        plan(&folder, &node.url(), &(steady() + "[thresholds]\n\"latency\" = \"p(95)<20\"\n"));
    let (code, out, err) = load(&[&plan, "--plain"]);
    assert_eq!(code, 3, "{out}{err}");
    assert!(out.starts_with("FAIL"), "{out}");
    assert!(out.contains("p(95)<20") && out.contains("first at 0.0 s"), "{out}");
    assert!(err.contains("BROKEN"), "lines of progress tell it at once: {err}");
}

#[test]
fn calls_that_the_node_refuses_fail_the_run_without_any_threshold() {
    let node = Weir::node().start();
    let (code, result) = result(&[&node.url(), "-r", "50", "-d", "2s", "--method", "eth_nothing"]);
    assert_eq!(code, 3, "{}", reasons(&result));
    assert!(reasons(&result).contains("every call of eth_nothing"), "{}", reasons(&result));
    assert_eq!(result["overall"]["codes"][0][0], -32_601);
}

#[test]
fn a_method_that_begins_to_hang_is_named_with_its_time_and_rate() {
    let (mut node, folder) =
        (Weir::node().admin().args(&["--latency", "2ms"]).start(), TempDir::new().unwrap());
    // One call in a hundred is of the method that will hang: 1 % of all, which no threshold sees.
    let scenario = "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 200\n\
                    stages = [{ name = \"steady\", duration = \"10s\", rate = 300 }]\n\
                    [thresholds]\n\"failed\" = \"rate<0.05\"\n";
    let calls = "\n[[mix.own.calls]]\nmethod = \"eth_blockNumber\"\nweight = 98\n\
                 \n[[mix.own.calls]]\nmethod = \"eth_gasPrice\"\nweight = 2\n";
    let plan = plan(&folder, &node.url(), &format!("{scenario}{calls}"));
    let load = weir(&[&plan, "--json", "-", "--plain"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut load = Ended(load);
    // Figures are told after five seconds: then the fault begins.
    load.until("planned");
    let fault = r#"{"faults":[{"fault":{"kind":"hang"},"method":"eth_gasPrice"}]}"#;
    node.set(fault);
    let mut out = String::new();
    load.0.stdout.as_mut().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(load.0.wait().unwrap().code(), Some(3), "{out}");
    let result: Value = serde_json::from_str(&out).unwrap();
    let told = reasons(&result);
    assert!(told.contains("every call of eth_gasPrice scheduled since "), "{told}");
    assert!(told.contains("mostly timeout") && told.contains("iterations/s"), "{told}");
    let (_, rest) = told.split_once("scheduled since ").unwrap();
    let since: f64 = rest.split(' ').next().unwrap().parse().unwrap();
    assert!((4.0..=8.0).contains(&since), "{told}");
    assert_eq!(result["thresholds"][0]["kept"], true, "{told}");
    node.assert_sound();
}

#[test]
fn pauses_that_bound_the_rate_are_reported_as_the_limit() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let scenario = "[[scenario]]\nname = \"workers\"\nmodel = \"closed\"\nmix = \"own\"\n\
                    pause = \"100ms\"\n\
                    stages = [{ name = \"steady\", duration = \"3s\", workers = 10 }]\n";
    let plan = plan(&folder, &node.url(), &format!("{scenario}{BLOCK_NUMBER}"));
    let (code, result) = result(&[&plan]);
    assert_eq!(code, 5, "{}", reasons(&result));
    assert_eq!(result["verdict"]["outcome"], "client-limited");
    assert!(
        reasons(&result).contains("the plan's own pacing allows at most 100/s (10 workers"),
        "{}",
        reasons(&result)
    );
}

#[test]
fn ctrl_c_keeps_the_measurements_and_marks_them_as_partial() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let out = folder.path().join("out");
    let arguments =
        [&node.url(), "-c", "2", "-d", "60s", "--plain", "--out", out.to_str().unwrap()];
    let load = weir(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut load = Ended(load);
    load.until("planned");
    let id = load.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let mut told = String::new();
    load.0.stdout.as_mut().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(load.0.wait().unwrap().code(), Some(6), "{told}");
    assert!(told.contains("stopped by the user"), "{told}");
    let text = std::fs::read_to_string(out.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["partial"], true);
    assert!(result["duration"].as_f64().unwrap() < 30.0);
}

#[test]
fn wrong_targets_are_reported_with_their_response() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, out, err) = load(&[&format!("http://{closed}")]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("the connection was refused"), "{err}");

    let web = serving(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html>hello<");
    let (code, _, err) = load(&[&web]);
    assert_eq!(code, 1);
    assert!(err.contains("it is not a JSON-RPC server") && err.contains("<html>hello<"), "{err}");

    let ssh = serving(b"SSH-2.0-OpenSSH_9.6\r\n");
    let (code, _, err) = load(&[&ssh]);
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
    let faulty = plan(&folder, "http://127.0.0.1:1", "[[scenario]]\nnaem = \"load\"\n");
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
    // A folder that cannot be made is found before anything is sent.
    let (code, out, err) = load(&[&url, "-n", "20", "--out", "/proc/nowhere"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("cannot make the folder /proc/nowhere"), "{err}");
}

#[test]
fn all_outputs_are_written() {
    let (node, folder) = (Weir::node().start(), TempDir::new().unwrap());
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (out, csv, k6, json) = (place("out"), place("s.csv"), place("k6.json"), place("r.json"));
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

/// The text of the first element of a page that stands after this heading.
fn after<'p>(page: &'p str, heading: &str, element: &str) -> &'p str {
    let (_, rest) = page.split_once(heading).unwrap();
    let (_, rest) = rest.split_once(&format!("<{element}>")).unwrap();
    rest.split_once(&format!("</{element}>")).unwrap().0
}

#[test]
fn the_line_that_repeats_a_run_repeats_it() {
    let node = Weir::node().start();
    let other = Weir::node().start();
    let folder = TempDir::new().unwrap();
    let comment = "# TARGET=http://elsewhere:1 (see http://pages.example/rpc, and b)\n";
    let file = plan(&folder, &other.url(), &steady());
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{comment}{text}")).unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    let (code, told, complaints) =
        load(&[&file, "--target", &node.url(), "--seed", "7", "--insecure", "--out", out]);
    assert!([0, 4, 5].contains(&code), "{told}{complaints}");
    let read = |folder: &str| -> Value {
        let file = Path::new(folder).join("result.json");
        serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    let first = read(out);
    assert!(first["plan"]["text"].as_str().unwrap().starts_with(comment), "{}", first["plan"]);
    let page = std::fs::read_to_string(Path::new(out).join("report.html")).unwrap();
    let line = after(&page, "Repeat this run", "pre");
    assert!(line.contains(&node.url()) && line.contains("--seed 7 --insecure"), "{line}");

    std::fs::write(folder.path().join("plan.toml"), first["plan"]["text"].as_str().unwrap())
        .unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let again = Command::new("sh")
        .args(["-c", &format!("{line} --out again")])
        .env("PATH", path)
        .current_dir(folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!([Some(0), Some(4), Some(5)].contains(&again.status.code()), "{said}");
    let second = read(folder.path().join("again").to_str().unwrap());
    for key in ["text", "hash", "seed", "insecure", "threads", "http", "connections"] {
        assert_eq!(first["plan"][key], second["plan"][key], "{key}");
    }
    assert_eq!(first["target"]["url"], second["target"]["url"]);
    let begun = |result: &Value| result["overall"]["calls"].as_f64().unwrap();
    assert!((begun(&first) - begun(&second)).abs() < 0.1 * begun(&first));
}

#[test]
fn responses_that_differ_from_the_reference_fail_the_run() {
    // Two chains of different seeds: equal heads, other balances and blocks.
    let (node, other) =
        (Weir::node().args(&["--seed", "1"]).start(), Weir::node().args(&["--seed", "2"]).start());
    let folder = TempDir::new().unwrap();
    let text = format!(
        "[[scenario]]\nname = \"load\"\nmix = \"own\"\nworkers_max = 20\n\
         stages = [{{ name = \"steady\", duration = \"3s\", rate = 20 }}]\n\
         [[mix.own.calls]]\nmethod = \"eth_getBlockByNumber\"\nparams = [\"0x64\", false]\n\
         [reference]\nurl = \"{}\"\nshare = 1\n",
        other.url()
    );
    let plan = plan(&folder, &node.url(), &text);
    let (code, result) = result(&[&plan]);
    assert_eq!(code, 3, "{}", reasons(&result));
    assert!(reasons(&result).contains("compared responses of eth_getBlockByNumber differ"));
    assert!(result["compared"]["wrong"].as_u64().unwrap() > 10, "{}", result["compared"]);
    assert_eq!(result["compared"]["examples"].as_array().unwrap().len(), 5);
}

/// A program that ends with the test.
struct Ended(std::process::Child);

impl Ended {
    /// Reads its lines of progress until one has this word.
    fn until(&mut self, word: &str) {
        let mut lines = BufReader::new(self.0.stderr.as_mut().unwrap()).lines();
        let found = lines.any(|line| line.unwrap().contains(word));
        assert!(found, "it ended before it said {word:?}");
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself, which the test has seen.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server with a constant response; returns its URL.
fn serving(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let _read = stream.read(&mut [0; 4096]);
            let _written = stream.write_all(answer);
        }
    });
    format!("http://{address}")
}
