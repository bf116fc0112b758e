//! Goal: `weir check --connect` reports every planted property of an upstream, or marks it unknown,
//! with few calls, and its exit code tells if all servers can be used. Method: simulated nodes,
//! gateways with keys and with TLS as upstreams, a real Redis, and the command.

use std::process::{Command, Stdio};

use gateway::config::Config;
use gateway::runtime::Gateway;
use simnode::node::settings::{Fault, FaultRule};
use simnode::schedule::WorldOptions;
use test_support::port::ReservedPort;
use test_support::postgres::Postgres;

use crate::support::authority::{Authority, ConfigFiles, KeyType};
use crate::support::harness::{
    NEWEST_BLOCK, NodeRuntime, TestGateway, static_world, upstream_toml,
};
use crate::support::redis_server::Redis;

/// Maximum number of calls to an upstream, as the help of the command promises.
const CALLS_MAX: u64 = 25;
/// The chain id of the simulated nodes.
const CHAIN: &str = "[chain.sim]\nid = 424242\n";

/// The output of a check.
struct Checked {
    exit_code: i32,
    /// Standard output.
    text: String,
    /// Standard error.
    errors: String,
}

impl Checked {
    /// Checks a configuration in the folder of these files.
    fn run(files: &mut ConfigFiles, config: &str) -> Checked {
        let path = files.write("gateway.toml", config.as_bytes());
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["check", "--connect"]).arg(path).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text_of = |bytes| String::from_utf8(bytes).unwrap();
        Checked {
            exit_code: output.status.code().unwrap(),
            text: text_of(output.stdout),
            errors: text_of(output.stderr),
        }
    }

    /// Returns the words of the table's line for an upstream.
    fn row(&self, upstream: &str) -> Vec<&str> {
        let is_row = |line: &&str| line.split(' ').next() == Some(upstream);
        let line = self.text.lines().find(is_row);
        line.unwrap_or_else(|| panic!("no line for {upstream}: {}", self.text))
            .split("  ")
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .collect()
    }

    /// Returns the problems, in the order of the output.
    fn problems(&self) -> Vec<&str> {
        let is_problem = |line: &&str| line.starts_with("error: ") || line.starts_with("warning: ");
        self.text.lines().filter(is_problem).collect()
    }
}

const VERSION: &str = "Geth/v1.16.0-stable/linux-amd64/go1.24 (weir simulated node)";

#[test]
fn the_properties_of_good_upstreams_are_printed() {
    let runtime = NodeRuntime::start();
    let [archive, pruned] = runtime.nodes(["archive", "pruned"]);
    pruned.set(|settings| {
        settings.keeping.state_blocks = Some(128);
        settings.unsupported.insert("eth_getBlockReceipts".to_owned());
    });
    let ws_url = format!("ws_url = \"ws://{}\"", archive.address);
    let config = [CHAIN, &archive.to_toml(&ws_url), &pruned.to_toml("")].concat();
    let checked = Checked::run(&mut ConfigFiles::new(), &config);
    let head = NEWEST_BLOCK.to_string();
    let expected = ["archive", "sim", "424242", &head, "0", "all", "receipts", "yes", VERSION];
    assert_eq!(checked.row("archive"), expected);
    let expected =
        ["pruned", "sim", "424242", &head, "0", "last ~128 blocks", "none", "-", VERSION];
    assert_eq!(checked.row("pruned"), expected);
    assert_eq!(
        (checked.problems(), checked.exit_code),
        (Vec::<&str>::new(), 0),
        "{}",
        checked.text
    );
    for node in [archive, pruned] {
        assert!(node.calls() <= CALLS_MAX, "{} got {} calls", node.name, node.calls());
    }
}

#[test]
fn an_upstream_that_is_behind_is_a_warning() {
    let runtime = NodeRuntime::start();
    let [good, late] = runtime.nodes(["good", "late"]);
    late.set(|settings| settings.lag_blocks = 12);
    let config = [CHAIN, &good.to_toml(""), &late.to_toml("")].concat();
    let checked = Checked::run(&mut ConfigFiles::new(), &config);
    let row = checked.row("late");
    assert_eq!((row[3], row[4]), (&*(NEWEST_BLOCK - 12).to_string(), "12"));
    let problems = checked.problems();
    assert_eq!((problems.len(), checked.exit_code), (1, 0), "{}", checked.text);
    let expected =
        "warning: upstream late: it is 12 blocks behind, more than chain.sim.lag_max (2)";
    assert!(problems[0].starts_with(expected), "{problems:?}");
}

#[test]
fn upstreams_that_cannot_be_used_are_errors() {
    let runtime = NodeRuntime::start();
    let [good] = runtime.nodes(["good"]);
    let other_world = static_world(WorldOptions { chain_id: 77, ..WorldOptions::default() });
    let other = runtime.node("other", &other_world);
    let hung = runtime.node("hung", &other_world);
    hung.set_fault(FaultRule::always(Fault::Hang));
    let key = "[[key]]\nname = \"alice\"\nsecret = \"weir_alice_0123456789abcdef\"\n";
    let keyed = TestGateway::start(&format!("{key}{}", good.to_toml("")));
    let refused_key = "weir_wrong_0123456789abcdef";
    let dead = ReservedPort::new();
    let config = [
        CHAIN,
        &good.to_toml(""),
        &other.to_toml(""),
        &hung.to_toml(""),
        &upstream_toml(
            "keyed",
            &format!("http://{}", keyed.address),
            &format!("headers = {{ authorization = \"Bearer {refused_key}\" }}"),
        ),
        &upstream_toml("dead", &format!("http://{}", dead.address), ""),
        &upstream_toml("nowhere", "http://node.invalid:8545", ""),
        &format!("[tracing]\nendpoint = \"http://{}\"\n", dead.address),
        &format!("[index]\ndb = \"postgres://weir@{}/chain\"\n", dead.address),
    ]
    .concat();
    let checked = Checked::run(&mut ConfigFiles::new(), &config);
    let problems = checked.problems();
    let has_problem = |upstream: &str, words: &str| {
        let start = format!("error: upstream {upstream}: ");
        let found = problems.iter().any(|problem| {
            problem.strip_prefix(&start).is_some_and(|reason| reason.contains(words))
        });
        assert!(found, "no {words:?} for {upstream} in {}", checked.text);
    };
    has_problem("other", "its chain id is 77, but chain.sim.id is 424242");
    has_problem("keyed", "it refuses the key or token: HTTP status 401: ");
    has_problem("dead", &format!("nothing listens on port {}", dead.address.port()));
    has_problem("nowhere", "the name \"node.invalid\" has no address");
    has_problem("hung", "it accepts connections, but did not respond within 3s");
    let database = format!("error: index postgres://***@{}/chain: ", dead.address);
    assert!(problems.iter().any(|problem| problem.starts_with(&database)), "{}", checked.text);
    let collector = format!("error: collector http://{}: ", dead.address);
    assert!(problems.iter().any(|problem| problem.starts_with(&collector)), "{}", checked.text);
    assert_eq!((problems.len(), checked.exit_code), (7, 2), "{}", checked.text);
    for text in [&checked.text, &checked.errors] {
        assert!(!text.contains(refused_key), "{text}");
    }
    assert_eq!(checked.row("good")[2], "424242");
}

#[test]
fn problems_of_certificates_are_printed() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let authority = Authority::new("authority");
    let mut files = ConfigFiles::new();
    files.write_certificate("own", &authority, KeyType::Ecdsa, &["localhost"]);
    files.write("ca.pem", authority.pem().as_bytes());
    let text = format!(
        "[server]\nlisten_tls = \"127.0.0.1:0\"\nadmin = \"off\"\nthreads = 1\n\
         drain_deadline = \"5s\"\n\
         [[certificate]]\nchain_file = \"own.pem\"\nkey_file = \"own.key\"\n{}",
        node.to_toml("")
    );
    let config = Config::from_text("test", &text, files.folder(), &|_| None);
    let gateway = Gateway::start(config.unwrap_or_else(|faults| panic!("{faults}"))).unwrap();
    let port = gateway.listen_tls.unwrap().port();
    let url = format!("https://localhost:{port}");
    let config = [
        CHAIN,
        &upstream_toml("untrusted", &url, ""),
        &upstream_toml("trusted", &url, "tls_ca = \"ca.pem\""),
        &upstream_toml("unverified", &format!("https://127.0.0.1:{port}"), "tls_verify = false"),
    ]
    .concat();
    let checked = Checked::run(&mut files, &config);
    let errors: Vec<&str> =
        checked.problems().into_iter().filter(|problem| problem.starts_with("error: ")).collect();
    let expected = "error: upstream untrusted: the TLS handshake failed: the server's certificate \
                    comes from an untrusted authority";
    assert!(matches!(errors[..], [error] if error.starts_with(expected)), "{}", checked.text);
    assert_eq!(checked.row("trusted")[2], "424242");
    assert_eq!(checked.row("unverified")[2], "424242");
    assert_eq!(checked.exit_code, 2);
    gateway.stop();
}

#[test]
fn upstreams_that_are_not_checked_are_warnings() {
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["good"]);
    let mut files = ConfigFiles::new();
    let path = files.folder().join("node.ipc");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let socket = |name: &str, path: &str| upstream_toml(name, &format!("ipc:{path}"), "");
    let config = [CHAIN, &node.to_toml(""), &socket("open", path.to_str().unwrap())].concat();
    let checked = Checked::run(&mut files, &config);
    let expected = "warning: upstream open: the socket accepts connections, but --connect sends no \
                    calls to it";
    assert_eq!((checked.problems(), checked.exit_code), (vec![expected], 0));
    let config = config + &socket("missing", "/no-such-folder/node.ipc");
    let checked = Checked::run(&mut files, &config);
    assert_eq!(checked.exit_code, 2);
    assert!(checked.text.contains("error: upstream missing: cannot connect to the socket: "));
}

#[test]
fn a_redis_is_asked_too() {
    let options = ["--requirepass", "right"];
    let Some(redis) = Redis::start_with_password(&options, &["-a", "right", "--no-auth-warning"])
    else {
        return;
    };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let config = |password: &str| {
        let address = format!("redis://:{password}@127.0.0.1:{}", redis.port);
        let table = format!("[redis]\nurl = \"{address}\"\ntimeout = \"1s\"\n");
        [CHAIN, &node.to_toml(""), &table].concat()
    };
    let checked = Checked::run(&mut ConfigFiles::new(), &config("right"));
    assert_eq!(checked.exit_code, 0, "{}", checked.text);
    assert!(checked.text.contains("a read takes "), "{}", checked.text);
    let checked = Checked::run(&mut ConfigFiles::new(), &config("wrong-password"));
    assert_eq!(checked.exit_code, 2, "{}", checked.text);
    assert!(checked.text.contains("error: redis redis://***@127.0.0.1:"), "{}", checked.text);
    assert!(checked.text.contains("WRONGPASS"), "{}", checked.text);
    assert!(!checked.text.contains("wrong-password"), "{}", checked.text);
}

#[test]
fn a_database_is_asked_too() {
    let Some(postgres) = Postgres::start() else { return };
    let runtime = NodeRuntime::start();
    let [node] = runtime.nodes(["node"]);
    let config = |more: &str| {
        let database = postgres.url("checked");
        [CHAIN, &node.to_toml(""), &format!("[index]\ndb = \"{database}\"\n{more}")].concat()
    };
    let checked = Checked::run(&mut ConfigFiles::new(), &config("follow = true\n"));
    assert_eq!(checked.exit_code, 0, "{}", checked.text);
    assert!(checked.text.contains("weir serve creates the index"), "{}", checked.text);
    let checked = Checked::run(&mut ConfigFiles::new(), &config(""));
    assert_eq!(checked.exit_code, 2, "{}", checked.text);
    assert!(checked.text.contains("there is no index in this schema"), "{}", checked.text);
}

#[test]
fn plans_have_no_upstreams() {
    let mut files = ConfigFiles::new();
    let checked = Checked::run(&mut files, "[target]\nurl = \"http://127.0.0.1:1\"\n");
    assert_eq!(checked.exit_code, 2);
    let message = "--connect is for gateway configurations";
    assert!(checked.errors.contains(message), "{}", checked.errors);
}
