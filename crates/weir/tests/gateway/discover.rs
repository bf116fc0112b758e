//! Goal: `weir discover` measures every planted limit, sends no more calls than it announces, and
//! writes a configuration that `weir check` accepts, without a key in it. Method: simulated nodes
//! and the command.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use simnode::schedule::WorldOptions;
use tempfile::TempDir;
use test_support::port::ReservedPort;

use crate::support::harness::{NEWEST_BLOCK, NodeRuntime, static_world};

/// Maximum number of calls to a URL, as the command announces.
const CALLS_MAX: u64 = 320;
/// Maximum number of requests to a URL, as the command announces.
const REQUESTS_MAX: u64 = 60;

/// Runs the command in a folder. Returns its exit code, standard output and standard error.
fn weir(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text_of = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text_of(output.stdout), text_of(output.stderr))
}

fn read(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn limits_are_measured_and_the_file_is_valid() {
    let runtime = NodeRuntime::start();
    let [free, limited] = runtime.nodes(["free", "limited"]);
    limited.set(|settings| {
        settings.lag_blocks = 3;
        settings.keeping.state_blocks = Some(128);
        settings.keeping.logs_range_blocks_max = Some(300);
        settings.keeping.batch_calls_max = Some(10);
        settings.unsupported.insert("eth_getBlockReceipts".to_owned());
    });
    let folder = TempDir::new().unwrap();
    let (free_url, limited_url) = (free.url(), limited.url());
    let (code, output, errors) = weir(folder.path(), &["discover", &free_url, &limited_url]);
    assert_eq!(code, 0, "{output}{errors}");
    let announced = format!(
        "at most {REQUESTS_MAX} requests with {CALLS_MAX} calls are sent to each of 2 URLs"
    );
    assert!(errors.contains(&announced), "{errors}");
    for node in [&free, &limited] {
        let counters = node.node.counters();
        assert!(counters.calls <= CALLS_MAX, "{} got {counters:?}", node.name);
        assert!(counters.requests <= REQUESTS_MAX, "{} got {counters:?}", node.name);
    }
    let text = read(folder.path(), "gateway.toml");
    let upstreams: Vec<&str> = text.split("[[upstream]]\n").collect();
    let blocks = NEWEST_BLOCK + 1;
    let expected = format!(
        "# client: Geth/v1.16.0-stable/linux-amd64/go1.24 (weir simulated node)\n\
         # head: {NEWEST_BLOCK}, 0 blocks behind\n\
         # state: all\n\
         # optional methods: receipts\n\
         # eth_getLogs: {blocks} blocks accepted; more were not tried\n\
         # batches: 100 calls accepted; more were not tried\n\
         url = \"{free_url}\"\n\
         ws_url = \"ws://{}\"\n\
         chain = \"chain-424242\"\n\n",
        free.address
    );
    assert_eq!(upstreams[1], expected);
    for line in [
        "# head: 997, 3 blocks behind\n",
        "# state: last ~128 blocks\n",
        "# optional methods: none\n",
        "# batches: 10 calls accepted, 50 refused: batch too large\n",
    ] {
        assert!(upstreams[2].contains(line), "no {line:?} in {text}");
    }
    let range = upstreams[2].lines().find_map(|line| line.strip_prefix("# eth_getLogs: ")).unwrap();
    let accepted: u64 = range.split(' ').next().unwrap().parse().unwrap();
    assert!((285..=300).contains(&accepted) && range.contains("refused: "), "{range}");
    let (code, output, errors) = weir(folder.path(), &["check", "--connect", "gateway.toml"]);
    // The upstream that lags causes a warning.
    assert_eq!((code, output.contains("error: ")), (0, false), "{output}{errors}");

    // A second run overwrites nothing, and asks nobody.
    let calls = free.calls();
    let (code, _, errors) = weir(folder.path(), &["discover", &free_url]);
    assert_eq!(code, 2);
    assert!(errors.contains("gateway.toml exists and is not overwritten"), "{errors}");
    assert_eq!((free.calls(), read(folder.path(), "gateway.toml")), (calls, text));
}

#[test]
fn keys_are_in_files_of_their_own_and_unusable_urls_are_comments() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let other_world = static_world(WorldOptions { chain_id: 77, ..WorldOptions::default() });
    let other = runtime.node("other", &other_world);
    let dead = ReservedPort::new();
    let folder = TempDir::new().unwrap();
    let key = "84842078b09946638c03157f83405213";
    let keyed_url = format!("http://{}/v3/{key}", node.address);
    let dead_url = format!("http://{}/v3/{key}", dead.address);
    let arguments = ["discover", &keyed_url, &dead_url, &other.url(), "--out", "nodes.toml"];
    let (code, output, errors) = weir(folder.path(), &arguments);
    assert_eq!(code, 2, "one URL cannot be used: {output}{errors}");
    let text = read(folder.path(), "nodes.toml");
    for printed in [&text, &output, &errors] {
        assert!(!printed.contains(key), "{printed}");
    }
    assert!(text.contains(&format!("# Not used: http://{}/v3/***: ", dead.address)), "{text}");
    assert!(text.contains("url = \"${file:upstream-1.url}\"\n"), "{text}");
    assert_eq!(read(folder.path(), "upstream-1.url").trim_end(), keyed_url);
    for name in ["nodes.toml", "upstream-1.url"] {
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    for chain in ["[chain.chain-424242]\n", "[chain.chain-77]\n"] {
        assert!(text.contains(chain), "{text}");
    }
    let (code, output, errors) = weir(folder.path(), &["check", "--connect", "nodes.toml"]);
    assert_eq!(code, 0, "{output}{errors}");
    assert!(!output.contains(key) && !errors.contains(key), "{output}{errors}");
}

#[test]
fn faulty_arguments_are_rejected() {
    let folder = TempDir::new().unwrap();
    for (arguments, message) in [
        (&["discover", "ipc:/run/geth.ipc"][..], "a url begins with http://"),
        (&["discover", "http://a:1", "http://a:1"], "http://a:1 is given twice"),
    ] {
        let (code, _, errors) = weir(folder.path(), arguments);
        assert_eq!(code, 2);
        assert!(errors.contains(message), "{errors}");
    }
    let dead = ReservedPort::new();
    let (code, output, _) = weir(folder.path(), &["discover", &format!("http://{}", dead.address)]);
    assert_eq!((code, output.contains("no file is written")), (2, true), "{output}");
    assert!(!folder.path().join("gateway.toml").exists());
}
