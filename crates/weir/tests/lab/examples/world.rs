//! The nodes, gateways and files that the example commands refer to. A *text* is a help text, page,
//! study or configuration that contains example commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tempfile::TempDir;

use super::find::{files, root};
use super::shell::call;
use test_support::port::ReservedPort;
use test_support::running::{Running, Weir};

/// Newest block of the chain. It is above all block numbers in the examples.
const HEAD: &str = "1300";

/// The environment of all example commands: servers that run until the last example has ended,
/// files, and replacements for addresses.
pub(crate) struct World {
    node: Running,
    /// The other nodes and gateways, kept so that they keep running.
    _others: [Running; 6],
    _ipc: TempDir,
    /// The files that each text's folder is created with.
    template: TempDir,
    /// The parent of the texts' folders.
    folders: TempDir,
    /// The port on which the node of a study listens.
    study_port: ReservedPort,
    /// Texts in the examples, such as addresses, and their replacements.
    replacements: Vec<(String, String)>,
    /// Number of the next folder.
    next_folder: std::sync::atomic::AtomicUsize,
}

impl World {
    pub(crate) fn new() -> World {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let since = now.as_secs().to_string();
        let chain = |id: &'static str| ["--head", HEAD, "--since", &since, "--chain-id", id];
        let ipc = TempDir::new().unwrap();
        let socket = ipc.path().join("geth.ipc");
        let node = Weir::node()
            .admin()
            .args(&[&chain("1")[..], &["--ipc", socket.to_str().unwrap()]].concat())
            .start();
        let harmony = Weir::node()
            .args(&[&chain("1666600000")[..], &["--family", "harmony"]].concat())
            .start();
        let second = Weir::node().args(&chain("1")).start();
        let third = Weir::node().args(&chain("1")).start();
        // Examples may plant faults in this node.
        let faulty = Weir::node().admin().start();
        let gateway = Weir::serve().admin().upstreams(&[node.url()]).start();
        let folders = TempDir::new().unwrap();
        // Serves the node's chain over TLS, with a self-signed certificate.
        let tls_gateway = Weir::serve()
            .listen_as_configured()
            .config(&tls_gateway_config(&node.url(), folders.path()))
            .start();
        let mut replacements = vec![
            ("http://127.0.0.1:8545".to_owned(), node.url()),
            ("http://127.0.0.1:9500".to_owned(), harmony.url()),
            ("http://node:8545".to_owned(), node.url()),
            ("http://node:9500".to_owned(), harmony.url()),
            ("http://gateway/rpc".to_owned(), gateway.url()),
            ("https://gateway/rpc".to_owned(), format!("https://{}", tls_gateway.address)),
            ("https://node.example".to_owned(), format!("https://{}", tls_gateway.address)),
            ("wss://node.example".to_owned(), format!("ws://{}", second.address)),
            ("ws://127.0.0.1:8546".to_owned(), format!("ws://{}", second.address)),
            ("ipc:/var/geth.ipc".to_owned(), format!("ipc:{}", socket.display())),
            ("http://10.0.0.1:8545".to_owned(), second.url()),
            ("http://10.0.0.2:8545".to_owned(), third.url()),
            ("http://127.0.0.1:8645".to_owned(), gateway.url()),
            (
                "http://127.0.0.1:8547".to_owned(),
                format!("http://{}", faulty.admin.as_deref().unwrap()),
            ),
            ("/var/log/nginx/access.log".to_owned(), "nginx.log".to_owned()),
        ];
        replacements.extend(chain_replacements(&node.url()));
        let mut world = World {
            node,
            _others: [harmony, second, third, faulty, gateway, tls_gateway],
            _ipc: ipc,
            template: TempDir::new().unwrap(),
            folders,
            study_port: ReservedPort::new(),
            replacements,
            next_folder: std::sync::atomic::AtomicUsize::new(0),
        };
        world.write_template();
        world
    }

    /// Replaces the addresses in a command or a file by those of this environment, and makes the
    /// changes of the command's row in the table.
    pub(crate) fn localize(&self, text: &str, changes: &[(&str, &str)]) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.replacements {
            text = text.replace(from, to);
        }
        for (from, to) in changes {
            match *from {
                "" => text.push_str(to),
                from => {
                    assert!(text.contains(from), "{from:?} is not in {text:?}");
                    text = text.replace(from, to);
                }
            }
        }
        text
    }

    /// Shortens a shipped study so that it takes seconds.
    fn shorten(&self, name: &str, text: &str) -> String {
        let text = self.localize(text, &[]);
        match name {
            "page-cache.toml" => text
                // Enough blocks for several seconds: the index writes a sample each second.
                .replace("\"5000\"", "\"20000\"")
                .replace("\"6000\"", "\"21000\"")
                .replace("100..200", "4..6")
                .replace("131072", "64")
                .replace("sample = \"1s\"", "sample = \"100ms\"")
                .replace("ready_timeout = \"30s\"", "ready_timeout = \"2m\"")
                .replace("repeats = 6", "repeats = 1")
                .replace("warm_up = true", "warm_up = false")
                .replace("127.0.0.1:18545", &self.study_port.address.to_string()),
            "harmony-methods.toml" => {
                // Without Redis, which `load_study.rs` tests where it is installed.
                let (text, _) = text.split_once("[[variant]]\nname = \"redis\"").unwrap();
                let (before, redis) = text.split_once("[[server]]\nname = \"redis\"").unwrap();
                let (_, after) = redis.split_once("[[variant]]").unwrap();
                format!("{before}[[variant]]{after}")
                    .replace("requests = 2000, seconds = 3.5", "requests = 20, seconds = 0.1")
                    .replace("rounds_min = 6", "warm_up_rounds = 0\npause = \"0s\"\nrounds_min = 1")
                    .replace("rounds_max = 12", "rounds_max = 1")
                    .replace("20ms", "1ms")
            }
            _ => text,
        }
    }

    /// Creates a folder for the commands of one text.
    pub(crate) fn folder(&self) -> PathBuf {
        let number = self.next_folder.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = self.folders.path().join(number.to_string());
        run("cp", &["-R", "--", path(self.template.path()), path(&folder)], Path::new("/"));
        folder
    }

    /// The variable `PATH` for the commands: the folder of the built program comes first.
    pub(crate) fn path(&self) -> String {
        let ours = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
        format!("{}:/usr/sbin:{}", ours.display(), std::env::var("PATH").unwrap())
    }

    /// Writes the files that the examples read.
    fn write_template(&mut self) {
        let root = root().canonicalize().unwrap();
        let path_of = |name: &str| self.template.path().join(name);
        let write = |name: &str, text: &str| {
            let file = path_of(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        for folder in ["studies", "studies/bench", "examples"] {
            for file in files(&root.join(folder), "toml") {
                let text = std::fs::read_to_string(&file).unwrap();
                let name = file.file_name().unwrap().to_str().unwrap();
                write(&format!("{folder}/{name}"), &self.shorten(name, &text));
            }
        }
        run(
            "cp",
            &["-R", path(&root.join("examples/keys")), "examples/keys"],
            self.template.path(),
        );
        std::os::unix::fs::symlink(root.join("testdata"), path_of("testdata")).unwrap();
        // `cp -R` copies the link and not the program, which has 150 MB.
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), path_of("weir")).unwrap();
        std::fs::create_dir(path_of("bin")).unwrap();

        let url = self.node.url();
        let gateway = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"off\"\n\n[[upstream]]\nname = \"one\"\nurl = \"{url}\"\n"
        );
        write("gateway.toml", &gateway);
        write("new.toml", &gateway.replace("\"one\"", "\"two\""));
        write("plan.toml", &PLAN.replace("URL", &url));
        write("access.log", ACCESS_LOG);
        write("access.log.1", ACCESS_LOG);
        let archive = std::fs::File::create(path_of("access.log.2.gz")).unwrap();
        let mut archive = GzEncoder::new(archive, Compression::fast());
        std::io::Write::write_all(&mut archive, ACCESS_LOG.as_bytes()).unwrap();
        archive.finish().unwrap();
        write("nginx.log", NGINX_LOG);
        write(
            "calls.jsonl",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_blockNumber\",\"params\":[]}\n",
        );
        for (number, name) in ["a", "b", "a1", "a2", "b1", "b2"].into_iter().enumerate() {
            let heights =
                (0..60).map(|second| format!("{second},{}\n", second * (9000 + 100 * number)));
            write(
                &format!("{name}.csv"),
                &format!("seconds,height\n{}", heights.collect::<String>()),
            );
        }
        for name in ["a", "b"] {
            let line = |minute: u64| {
                let height = minute * 100;
                format!(
                    "2021-12-13T23:{minute:02}:00Z Statistic for last 60s:\n{{\n \"General\": \
                     {{\n  \"Height\": {height}\n }}\n}}\n"
                )
            };
            write(&format!("{name}/debug.log"), &(0..50).map(line).collect::<String>());
            let line = |second: u64| {
                format!(
                    "INFO [01-31|23:59:{second:02}.000] Imported new potential chain segment \
                     number={} hash=0b0b0b..0b0b0b blocks=1\n",
                    second * 100
                )
            };
            write(&format!("{name}/geth.log"), &(0..50).map(line).collect::<String>());
        }
        let weir =
            |arguments: &[&str]| run(env!("CARGO_BIN_EXE_weir"), arguments, self.template.path());
        weir(&["index", "sync", "--from", &url, "--db", "chain.db", "--end", "1290"]);
        for name in ["a.jsonl", "b.jsonl"] {
            let line = |second: u64| {
                let height = second * 100;
                format!("{{\"time\":\"2026-11-22T15:00:{second:02}Z\",\"height\":{height}}}\n")
            };
            write(name, &(0..50).map(line).collect::<String>());
        }
        for name in [
            "before", "after", "quiet", "results", "old1", "old2", "old3", "old4", "new1", "new2",
            "new3", "new4",
        ] {
            weir_load(&url, name, self.template.path());
        }
        let k6 = root.join("testdata/k6-summaries/summary-export.json");
        std::fs::copy(k6, path_of("k6-summary.json")).unwrap();
        for (file, of) in
            [("silkworm.csv", "13-14-11_silk"), ("rpcdaemon.csv", "15-09-44_rpcdaemon")]
        {
            let all = files(&root.join("testdata/erigon-perf"), "csv");
            let found = all.iter().find(|file| path(file).contains(of)).unwrap();
            std::fs::copy(found, path_of(file)).unwrap();
        }
        let git = |arguments: &[&str]| run("git", arguments, self.template.path());
        git(&["init", "--quiet"]);
        git(&["add", "gateway.toml"]);
        git(&["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "--quiet", "-m", "gateway"]);
    }
}

const PLAN: &str = "\
[target]
url = \"URL\"

[[scenario]]
name = \"load\"
mix = \"ethereum\"
workers_max = 50
stages = [{ name = \"load\", duration = \"1s\", rate = 50 }]

[capacity]
rate_start = 10
rate_max = 20
probe = \"5s\"
probe_warmup = \"1s\"
drain = \"0s\"
soak = \"5s\"
repeats = 1

[thresholds]
failed = \"rate<0.01\"
";

const ACCESS_LOG: &str = "{\"time\":\"2026-11-21T22:04:00.000Z\",\"status\":200,\"method\":\"eth_chainId\",\"client\":\"203.0.113.1\"}\n";
const NGINX_LOG: &str =
    "203.0.113.1 - - [21/Nov/2026:22:04:00 +0000] \"POST / HTTP/1.1\" 200 10 \"-\" \"wrk\"\n";

/// The configuration of a gateway that serves TLS with a self-signed certificate.
fn tls_gateway_config(node: &str, folder: &Path) -> String {
    let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (chain, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&chain, certificate.cert.pem()).unwrap();
    std::fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    format!(
        "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n\
         [[certificate]]\nchain_file = \"{}\"\nkey_file = \"{}\"\n\
         [[upstream]]\nname = \"one\"\nurl = \"{node}\"\n",
        path(&chain),
        path(&key),
    )
}

/// Values of mainnet in the examples, and values of the node's chain that replace them.
fn chain_replacements(node: &str) -> Vec<(String, String)> {
    let params = r#"[{"fromBlock":"0x64","toBlock":"0xc8"}]"#;
    let logs = call(node.trim_start_matches("http://"), "eth_getLogs", params).unwrap();
    let (_, body) = logs.split_once("\r\n\r\n").unwrap();
    let logs: Value = serde_json::from_str(body).unwrap();
    let text = |pointer: &str| logs.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let pairs = [
        ("0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060", "transactionHash"),
        ("0xdac17f958d2ee523a2206206994597c13d831ec7", "address"),
        ("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef", "topics/0"),
    ];
    pairs.map(|(from, field)| (from.to_owned(), text(&format!("/result/0/{field}")))).to_vec()
}

fn weir_load(url: &str, out: &str, folder: &Path) {
    let arguments = ["load", url, "-d", "1s", "-c", "2", "--quiet", "--out", out];
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // The verdict does not matter: a busy machine may make the run invalid.
    assert!(folder.join(out).join("result.json").exists(), "{output:?}");
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn run(program: &str, arguments: &[&str], folder: &Path) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
}
