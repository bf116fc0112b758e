//! The expected outcome of each example command, and the changes to a command that let it run in
//! the test.

use Outcome::{Ends, Loads, NotHere, Serves, Starts, Until, WithGateway};

/// How a command must end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// The command ends with one of these exit codes and prints these texts.
    Ends(&'static [i32], &'static [&'static str]),
    /// The command ends with a verdict, and no call failed. On a busy machine the verdict may be
    /// INVALID or CLIENT-LIMITED.
    Loads,
    /// The command serves. Its response to `eth_chainId` has these texts, and SIGTERM ends it with
    /// exit code 0.
    Serves(&'static [&'static str]),
    /// The command serves until the last command of its text has ended. The list holds the
    /// addresses in the text, in the order in which the command prints its actual addresses.
    Starts(&'static [&'static str]),
    /// The command prints this text and continues; SIGINT ends it with one of these exit codes.
    Until(&'static str, &'static [i32]),
    /// Like `Ends`, while a gateway runs with `gateway.toml`. Its admin address replaces `ADMIN`.
    WithGateway(&'static [i32], &'static [&'static str]),
    /// The command is not run, for this reason. If it is one of weir, its help must be printed.
    NotHere(&'static str),
}

/// Pairs of a text in the command and its replacement. The replacement of "" is appended.
type Changes = &'static [(&'static str, &'static str)];

/// Returns the changes and the expected outcome of an example; `None` if the table has no such
/// command.
pub(crate) fn find_outcome(command: &str) -> Option<(Changes, Outcome)> {
    let row = OUTCOMES.iter().find(|(example, ..)| *example == command);
    row.map(|(_, changes, outcome)| (*changes, *outcome))
}

/// Compares runs that a busy machine made invalid.
const ANYWAY: Changes = &[("", " --anyway")];
/// Shortens a load to one second.
const SHORT: Changes = &[("", " -d 1s")];
/// Shortens a study to one second, or to one second per method.
const SECONDS: Changes = &[("", " --set seconds=1")];
/// Shortens a study, and accepts a self-signed certificate.
const UNSIGNED: Changes = &[("", " --set seconds=1 --insecure")];
/// Starts a gateway on a free port.
const FREE: Changes = &[("", " --listen 127.0.0.1:0 --admin off")];
/// Starts a node on a free port.
const NODE: Changes = &[("", " --listen 127.0.0.1:0")];
/// Starts a gateway on two free ports.
const GATEWAY: Changes = &[("", " --listen 127.0.0.1:0 --admin 127.0.0.1:0")];
/// The gateway's addresses in the texts.
const GATEWAY_ADDRESSES: &[&str] = &["127.0.0.1:8645", "127.0.0.1:8646"];
/// The response of a gateway to `eth_chainId`.
const CHAIN: &[&str] = &["\"result\":\"0x1\""];
/// The response of a node to `eth_chainId`, with the default chain id 424242.
const SIMULATED: &[&str] = &["\"result\":\"0x67932\""];

/// Starts a probe on a free port, at a rate that identifies its targets within a second.
const PROBE: Changes = &[("", " --rate 10 --listen 127.0.0.1:0")];
/// The probe reports that a target responds, and ends without an error.
const PROBES: Outcome = Until(" is up: ", &[0]);

const EQUAL: Outcome = Ends(&[0], &["EQUAL"]);

/// Reason for not running the commands of a recorded result.
const RESULT: &str = "its result is recorded in docs/results/; another test plants the same fault";
const BUILDS: &str = "builds the program or measures for minutes; cargo xtask check parses it";
const POSTGRES: &str = "needs a PostgreSQL server; tests/index/postgres.rs runs the same commands";

const QUICKSTART: &str =
    "needs Docker; tests/gateway/quickstart.rs starts the same processes without containers";
const BACKUP: &str = "tests/index/backup.rs runs it between a writer and readers";

const WEIR_TOML: &str = r#"cat > weir.toml <<'EOF'
[[upstream]]
name = "one"
url = "http://127.0.0.1:8545"

[[upstream]]
name = "two"
url = "http://127.0.0.1:8546"

[zone.clients]
key = ["client"]
rate = "1r/m"

[[limit]]
zone = "clients"
methods = ["eth_getLogs"]
EOF"#;
const INDEX_TOML: &str = r#"cat > index.toml <<'EOF'
[[upstream]]
url = "http://127.0.0.1:8545"

[index]
db = "tutorial.db"
EOF"#;

/// Only plans a study. Other tests run these studies.
const DRY_RUN: Changes = &[("", " --dry-run")];

/// Only plans a study of the bench, on any CPU: the machine of a test may have a single one.
const BENCH_DRY_RUN: Changes = &[("taskset -c 1 ", ""), ("", " --dry-run")];

/// Every example. The order is that of docs/cli.md, then of the pages.
pub(crate) const OUTCOMES: &[(&str, Changes, Outcome)] = &[
    ("weir demo", &[("", " --duration 5s")], Ends(&[0], &["wrong"])),
    ("weir node", NODE, Serves(SIMULATED)),
    ("weir serve --upstream http://127.0.0.1:8545", FREE, Serves(CHAIN)),
    ("weir load http://127.0.0.1:8545", SHORT, Loads),
    ("weir load ws://127.0.0.1:8546", SHORT, Loads),
    ("weir load ws://127.0.0.1:8546 -r 500 -d 1m", &[("1m", "1s")], Loads),
    (
        "weir demo --duration 1m --json demo.json",
        &[("1m", "5s"), ("", " && cat demo.json")],
        Ends(&[0], &["wrong_answers"]),
    ),
    (
        "weir demo --keep --listen 127.0.0.1:8645",
        &[("127.0.0.1:8645", "127.0.0.1:0 --duration 5s")],
        Until("Ctrl-C", &[0]),
    ),
    (
        "weir serve --upstream http://10.0.0.1:8545 --upstream http://10.0.0.2:8545 --listen 0.0.0.0:8645",
        &[("0.0.0.0:8645", "127.0.0.1:0 --admin off")],
        Serves(CHAIN),
    ),
    ("weir serve gateway.toml", FREE, Serves(CHAIN)),
    ("PROVIDER_KEY=secret weir serve examples/backup.toml", FREE, Serves(CHAIN)),
    (
        "curl -s http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_blockNumber\",\"params\":[]}'",
        &[],
        Ends(&[0], &["\"result\":\"0x"]),
    ),
    ("weir check gateway.toml", &[], Ends(&[0], &["gateway.toml"])),
    ("weir check gateway.toml --connect", &[], Ends(&[0, 2], &["UPSTREAM"])),
    (
        "weir discover http://127.0.0.1:8545 http://10.0.0.1:8545",
        &[("", " --out discovered.toml")],
        Ends(&[0, 2], &["CHAIN ID"]),
    ),
    (
        "weir discover http://127.0.0.1:8545 --out nodes.toml && weir check nodes.toml",
        &[],
        Ends(&[0], &["ok: nodes.toml"]),
    ),
    ("./weir check gateway.toml", &[("./", "")], Ends(&[0], &["gateway.toml"])),
    (
        "weir check gateway.toml && weir reload",
        &[("weir reload", "weir reload --admin ADMIN")],
        WithGateway(&[0], &["gateway.toml"]),
    ),
    (
        "weir check studies/somnia.toml --set load_percent=11",
        &[],
        Ends(&[0], &["eth_getLogs", "iterations"]),
    ),
    ("weir chains", &[], Ends(&[0], &["base", "8453", "OP stack"])),
    ("weir chains base", &[], Ends(&[0], &["id = 8453", "block_time = \"2s\""])),
    ("weir chains 42161", &[], Ends(&[0], &["Arbitrum One", "[chain.arbitrum]"])),
    ("weir check studies/page-cache.toml", &[], Ends(&[0], &["2MiB"])),
    ("weir diff gateway.toml new.toml", &[], Ends(&[1], &["two"])),
    (
        "git show HEAD:gateway.toml > old.toml; weir diff old.toml gateway.toml",
        &[],
        Ends(&[0], &[]),
    ),
    ("weir reload", &[("", " --admin ADMIN")], WithGateway(&[0], &["configuration"])),
    ("weir reload gateway.toml", &[("", " --admin ADMIN")], WithGateway(&[0], &["configuration"])),
    (
        "weir reload --admin 127.0.0.1:9646",
        &[("127.0.0.1:9646", "ADMIN")],
        WithGateway(&[0], &["configuration"]),
    ),
    (
        "install weir /usr/local/bin/weir && weir upgrade",
        &[("/usr/local/bin/weir", "./bin/weir"), ("", " --admin ADMIN")],
        WithGateway(&[0], &["serves"]),
    ),
    (
        "weir upgrade --admin 127.0.0.1:9646",
        &[("127.0.0.1:9646", "ADMIN")],
        WithGateway(&[0], &["serves"]),
    ),
    // Sleeps: between two tries; the gateway may still poll its upstream for the first time.
    (
        "weir ready",
        &[("weir ready", "until weir ready --admin ADMIN; do sleep 0.1; done")],
        WithGateway(&[0], &["ready"]),
    ),
    (
        "weir ready --admin 127.0.0.1:9646",
        &[("127.0.0.1:9646", "127.0.0.1:1")],
        Ends(&[1], &["no gateway responds at 127.0.0.1:1"]),
    ),
    ("weir top", &[("", " --admin ADMIN")], WithGateway(&[0], &["calls/s", "one", "all"])),
    (
        "weir top --admin 127.0.0.1:9646",
        &[("127.0.0.1:9646", "ADMIN")],
        WithGateway(&[0], &["calls/s", "one", "all"]),
    ),
    ("weir top --once", &[("", " --admin ADMIN")], WithGateway(&[0], &["calls/s", "one"])),
    (
        "weir cordon node-b --reason 'upgrade to v1.16'",
        &[("node-b", "one --force"), ("", " --admin ADMIN")],
        WithGateway(&[0], &["one is cordoned for 1h"]),
    ),
    (
        "weir cordon node-b --for 30m --admin 127.0.0.1:9646",
        &[("node-b", "one --force"), ("127.0.0.1:9646", "ADMIN")],
        WithGateway(&[0], &["one is cordoned for 30m"]),
    ),
    (
        "weir cordon node-b --reason 'upgrade to v1.16' --for 30m",
        &[("node-b", "one --force"), ("", " --admin ADMIN")],
        WithGateway(&[0], &["one is cordoned for 30m"]),
    ),
    (
        "weir uncordon node-b",
        &[("node-b", "one"), ("", " --admin ADMIN")],
        WithGateway(&[0], &["one was not cordoned"]),
    ),
    ("weir explain examples/archive.toml eth_blockNumber", &[], Ends(&[0], &["eth_blockNumber"])),
    (
        "weir explain examples/archive.toml '{\"method\":\"trace_block\",\"params\":[\"0x10\"]}'",
        &[],
        Ends(&[0], &["archive"]),
    ),
    (
        "weir explain examples/harmony.toml '{\"method\":\"hmyv2_blockNumber\"}' --path /harmony",
        &[],
        Ends(&[0], &["harmony"]),
    ),
    (
        "weir explain '{\"method\":\"eth_gasPrice\"}' --upstream http://127.0.0.1:8545",
        &[],
        Ends(&[0], &["eth_gasPrice"]),
    ),
    (
        "PROVIDER_KEY=secret weir explain examples/backup.toml '[{\"method\":\"eth_chainId\"},{\"method\":\"eth_sendRawTransaction\"}]'",
        &[],
        Ends(&[0], &["eth_chainId", "eth_sendRawTransaction"]),
    ),
    (
        "weir completions bash > ~/.local/share/bash-completion/completions/weir",
        &[("~/.local/share/bash-completion/completions/weir", "script; cat script")],
        Ends(&[0], &["complete -F _weir"]),
    ),
    (
        "weir completions fish > ~/.config/fish/completions/weir.fish",
        &[("~/.config/fish/completions/weir.fish", "script; cat script")],
        Ends(&[0], &["complete -c weir"]),
    ),
    (
        "weir completions zsh > ~/.zfunc/_weir",
        &[("~/.zfunc/_weir", "script; cat script")],
        Ends(&[0], &["#compdef weir"]),
    ),
    ("weir key alice", &[], Ends(&[0], &["[[key]]", "alice"])),
    (
        "weir key alice --toml >> keys.toml",
        &[("", " && grep -c alice keys.toml")],
        Ends(&[0], &["1"]),
    ),
    ("printf %s \"$KEY\" | weir key alice --stdin", &[], Ends(&[0], &["[[key]]"])),
    ("weir logs access.log", &[], Ends(&[0], &["eth_chainId"])),
    (
        "weir logs access.log.2.gz access.log.1 access.log --by minute",
        &[],
        Ends(&[0], &["3 lines", "by minute"]),
    ),
    ("weir logs --format combined /var/log/nginx/access.log", &[], Ends(&[0], &["203.0.113.1"])),
    (
        "tail -n 100000 access.log | weir logs - --since 2026-11-21T22:00:00Z",
        &[],
        Ends(&[0], &["eth_chainId"]),
    ),
    ("weir logs access.log --json | jq .methods", &[], Ends(&[0], &["eth_chainId"])),
    (
        "weir index sync --from http://127.0.0.1:8545 --db chain.db",
        &[],
        Ends(&[0], &["blocks ", " stored; this run: "]),
    ),
    (
        "weir index sync --from http://127.0.0.1:8545 --db chain.db --end follow",
        &[],
        Until("at the end", &[0, 6]),
    ),
    ("weir index stats --db chain.db", &[], Ends(&[0], &["blocks"])),
    ("./weir index stats --db chain.db", &[("./", "")], Ends(&[0], &["blocks"])),
    ("weir index verify --db chain.db", &[], Ends(&[0], &["sound"])),
    (
        "weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7",
        &[],
        Ends(&[0], &["\"topics\""]),
    ),
    (
        "weir index export --db chain.db --out tables --what blocks,transactions,logs",
        &[("", " && ls tables")],
        Ends(&[0], &["blocks.parquet", "transactions.parquet", "logs.parquet"]),
    ),
    ("weir index stats --db postgres://weir@127.0.0.1:5432/chains", &[], NotHere(POSTGRES)),
    (
        "weir index sync --from ipc:/var/geth.ipc --from wss://node.example --db chain.db --end follow",
        &[],
        Until("at the end", &[0, 6]),
    ),
    (
        "weir index sync --from http://127.0.0.1:8545 --db logs.db --start 20000000 --what logs",
        &[("20000000", "1200")],
        Ends(&[0], &["blocks ", " stored; this run: "]),
    ),
    (
        "weir index sync --from http://127.0.0.1:9500 --db one.db --what blocks,receipts,logs,hmyv2",
        &[("", " --start 1200")],
        Ends(&[0], &["blocks ", " stored; this run: "]),
    ),
    (
        "weir index sync --from http://127.0.0.1:8545 -H 'authorization: Bearer TOKEN' --db chain.db",
        &[],
        Ends(&[0], &["blocks ", " stored; this run: "]),
    ),
    (
        "PGPASSWORD=secret weir index sync --from http://127.0.0.1:8545 --db postgres://weir@db.example/chains",
        &[],
        NotHere(POSTGRES),
    ),
    ("weir index stats --db chain.db --json | jq .last", &[], Ends(&[0], &["1290"])),
    (
        "weir index stats --db 'postgres:///chains?host=/run/postgresql&user=weir&schema=mainnet'",
        &[],
        NotHere(POSTGRES),
    ),
    // The simulated chain has made-up signatures, which this finds.
    ("weir index verify --db chain.db --level senders", &[], Ends(&[1], &["by the signature"])),
    ("weir index verify --db chain.db --from http://127.0.0.1:8545", &[], Ends(&[0], &["sound"])),
    (
        "weir index query logs --db chain.db --from 100 --to 200 --csv > logs.csv",
        &[("", " && head -2 logs.csv")],
        Ends(&[0], &["block_number,block_hash", "\n100,0x"]),
    ),
    ("weir index query block --db chain.db 1234", &[], Ends(&[0], &["\"number\":\"0x4d2\""])),
    (
        "weir index query transaction --db chain.db 0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060",
        &[],
        Ends(&[0], &["\"blockHash\""]),
    ),
    (
        "weir index query receipt --db chain.db 0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060",
        &[],
        Ends(&[0], &["\"cumulativeGasUsed\""]),
    ),
    (
        "weir index query logs --db chain.db --address 0xdac17f958d2ee523a2206206994597c13d831ec7 --limit 9",
        &[],
        Ends(&[0], &["\"topics\""]),
    ),
    (
        "weir index query logs --db chain.db --topic0 0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef --topic2 0x0000000000000000000000005a52e96bacdabb82fd05763e25335261b270efcb",
        &[],
        Ends(&[0], &[]),
    ),
    ("weir index query block --db chain.db 1234 | jq .miner", &[], Ends(&[0], &["\"0x"])),
    (
        "weir index query block --db chain.db 1234 --hashes",
        &[],
        Ends(&[0], &["\"transactions\":["]),
    ),
    (
        "weir index query transaction --db chain.db 0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060 | jq .value",
        &[],
        Ends(&[0], &["\"0x"]),
    ),
    (
        "weir index query receipt --db chain.db 0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060 | jq .status",
        &[],
        Ends(&[0], &["\"0x1\""]),
    ),
    (
        "weir index export --db chain.db --out logs --what logs --from 20000000 --to 20009999",
        &[("20000000", "100"), ("20009999", "200")],
        Ends(&[0], &["logs.parquet"]),
    ),
    (
        "duckdb -c \"SELECT address, count(*) FROM 'logs/logs.parquet' GROUP BY 1 ORDER BY 2 DESC LIMIT 9\"",
        &[],
        NotHere("duckdb is no program that this project's checks fetch"),
    ),
    (
        "weir index export --db chain.db --corpus calls.jsonl --count 10000 --seed 7",
        &[("", " && wc -l calls.jsonl")],
        Ends(&[0], &["10000 calls.jsonl"]),
    ),
    ("weir load http://127.0.0.1:8545 --requests calls.jsonl", SHORT, Loads),
    ("weir index vacuum --db chain.db", &[], Ends(&[0], &[])),
    ("weir load http://127.0.0.1:8545 -c 10 -d 30s", &[("30s", "1s")], Loads),
    ("weir load http://127.0.0.1:8545 -r 500 -d 1m", &[("1m", "1s")], Loads),
    (
        "weir load http://127.0.0.1:8545 -n 1000 --method eth_getBalance --params '[{\"draw\":\"address\"},\"latest\"]'",
        &[],
        Loads,
    ),
    (
        "weir load http://127.0.0.1:8545 --mix somnia --threshold 'latency p(95)<300' --threshold 'failed rate<0.01'",
        SHORT,
        Loads,
    ),
    (
        "weir load https://node.example --connections close --tls-resume off",
        &[("", " -d 1s --insecure")],
        Loads,
    ),
    (
        "weir load http://127.0.0.1:8545 --requests calls.jsonl --out results/today",
        &[("", " -d 1s")],
        Loads,
    ),
    (
        "weir load studies/somnia.toml --set load_percent=1",
        &[("load_percent=1", "load_percent=0.2 --set time_percent=1")],
        Loads,
    ),
    // The pauses in this study limit its rate.
    (
        "weir load studies/rpcstest.toml --target http://127.0.0.1:8545 --seed 7",
        SECONDS,
        Ends(&[0, 4, 5], &["seed 7", "eth_blockNumber"]),
    ),
    ("weir capacity plan.toml", &[], Ends(&[0, 4, 5], &["20"])),
    ("weir capacity plan.toml --precision 0.05 --soak 0s --yes", &[], Ends(&[0, 4, 5], &["20"])),
    (
        "weir capacity http://127.0.0.1:8545 --rate-max 20000 --out results/capacity",
        &[("20000", "50"), ("", " --probe 5s --probe-warmup 1s --repeats 1 --drain 0s --soak 0s")],
        Ends(&[0, 4, 5], &["capacity.html"]),
    ),
    (
        "weir capacity http://127.0.0.1:8545 --method eth_getLogs --params '[{\"draw\":\"logs\",\"blocks\":10}]' --threshold 'latency p(95)<500'",
        &[("", " --rate-max 50 --probe 5s --probe-warmup 1s --repeats 1 --drain 0s --soak 0s")],
        Ends(&[0, 4, 5], &["50"]),
    ),
    ("weir compare before/ after/", ANYWAY, Ends(&[0], &["before"])),
    (
        "weir compare old=old1,old2,old3,old4 new=new1,new2,new3,new4",
        ANYWAY,
        Ends(&[0], &["old", "new"]),
    ),
    ("weir compare --same quiet/ before/ after/", ANYWAY, Ends(&[0], &["before"])),
    (
        "weir compare before/ after/ --html > compare.html",
        &[("--html", "--anyway --html"), ("", " && cat compare.html")],
        Ends(&[0], &["<html"]),
    ),
    ("weir compare k6-summary.json results/", ANYWAY, Ends(&[0], &["k6-summary"])),
    (
        "weir compare silkworm.csv rpcdaemon.csv --markdown > eth_call.md",
        &[("", " && cat eth_call.md")],
        Ends(&[0], &["| "]),
    ),
    ("weir report results/", &[], Ends(&[0], &["What may not be concluded:"])),
    (
        "weir report before/ after/ --out report/",
        &[("", " && cat report/report.md")],
        Ends(&[0], &["### Recommendations"]),
    ),
    (
        "weir report old=old1,old2,old3,old4 new=new1,new2,new3,new4 --html > report.html",
        &[("", " && cat report.html")],
        Ends(&[0], &["<html", "old · new"]),
    ),
    (
        "weir report results/ --markdown > report.md",
        &[("", " && cat report.md")],
        Ends(&[0], &["## Report: "]),
    ),
    (
        "weir report old=old1,old2,old3,old4 new=new1,new2,new3,new4 --out report/",
        &[("", " && cat report/report.html")],
        Ends(&[0], &["<html", "old · new"]),
    ),
    // `world.rs` scales the study down to one round, which is too few for a reliable result.
    ("weir check studies/harmony-methods.toml", &[], Ends(&[0], &["the A/A control"])),
    (
        "weir study load studies/harmony-methods.toml --dry-run",
        &[],
        Ends(&[0], &["round 1    direct, proxied, memory"]),
    ),
    (
        "weir study load studies/harmony-methods.toml --out results/harmony",
        &[("", " && ls results/harmony || ls results/harmony")],
        Ends(&[0], &["harmony-methods", "report.html"]),
    ),
    (
        "weir study load studies/harmony-methods.toml --time-max 10m --markdown",
        &[],
        Ends(&[0, 4], &["## Study: harmony-methods"]),
    ),
    (
        "weir study load studies/harmony-methods.toml --out results/harmony --rounds-max 60 --precision 0.02",
        &[("60", "2"), ("0.02", "1")],
        Ends(&[0, 4], &["harmony-methods"]),
    ),
    (
        "weir study load studies/rate-limits.toml --dry-run",
        &[],
        Ends(&[0], &["01 240 burst 60 delay", "round 1    nginx, gateway"]),
    ),
    (
        "weir study load studies/rate-limits.toml --out results/rate-limits",
        DRY_RUN,
        Ends(&[0], &["13 15360 burst 60 pairs"]),
    ),
    (
        "weir study load studies/five-modes.toml --dry-run",
        &[],
        Ends(&[0], &["https resumed 1 CPU", "round 1    nginx, gateway, cached"]),
    ),
    (
        "weir study load studies/five-modes.toml --out results/five-modes",
        DRY_RUN,
        Ends(&[0], &["http kept open 1 CPU"]),
    ),
    (
        "taskset -c 1 weir study load studies/bench/tls.toml --out results/tls",
        BENCH_DRY_RUN,
        Ends(&[0], &["1.3 P-256 kept open 1", "round 1    nginx, gateway, nginx-control"]),
    ),
    (
        "taskset -c 1 weir study load studies/bench/tracing.toml --out results/tracing",
        BENCH_DRY_RUN,
        Ends(&[0], &["traced: ratio of CPU ms/request: 1.01"]),
    ),
    (
        "taskset -c 1 weir study load studies/bench/latency.toml --set rate=2000 --out results/latency",
        BENCH_DRY_RUN,
        Ends(&[0], &["by WebSocket: ratio of latency p99: 1"]),
    ),
    (
        "weir study load studies/batches.toml --dry-run",
        &[],
        Ends(&[0], &["round 1    single, tens, hundreds"]),
    ),
    (
        "weir study load studies/batches.toml --out results/batches",
        DRY_RUN,
        Ends(&[0], &["single"]),
    ),
    ("TARGET=http://node:8545 weir load studies/pairs.toml", SECONDS, Loads),
    (
        "weir compare --paired results/harmony/runs/direct/harmony-plan results/harmony/runs/memory/harmony-plan",
        ANYWAY,
        Ends(&[0], &["B  harmony-plan (2)"]),
    ),
    (
        "weir study sync studies/page-cache.toml --out results/page-cache",
        &[("", " && ls results/page-cache")],
        Ends(&[0], &["report.html"]),
    ),
    (
        "weir study sync --log pocketcoin 5MB=a/debug.log 500MB=b/debug.log",
        &[],
        Ends(&[0], &["5MB", "500MB"]),
    ),
    (
        "weir study sync --log geth pebble=a/geth.log leveldb=b/geth.log",
        &[],
        Ends(&[0], &["pebble", "leveldb"]),
    ),
    (
        "weir study sync --csv 5MB=a1.csv,a2.csv 500MB=b1.csv,b2.csv",
        &[],
        Ends(&[0], &["5MB", "500MB"]),
    ),
    ("weir study sync --samples small=a.jsonl large=b.jsonl", &[], Ends(&[0], &["small", "large"])),
    (
        "weir study sync --csv 5MB=a.csv 50MB=a2.csv --log pocketcoin 500MB=b/debug.log",
        // The log of this folder ends far below the heights of the tables.
        &[("--csv", "--at 2000 --csv")],
        Ends(&[0, 4], &["50MB", "500MB", "from files of different formats"]),
    ),
    (
        "weir study sync --rpc geth=http://127.0.0.1:8545 reth=http://127.0.0.1:8645 --until-height 100000",
        // Both servers are at the chain tip already, so the study measures the chain's growth.
        &[("--until-height 100000", "--duration 5s")],
        Ends(&[0, 4], &["geth against reth"]),
    ),
    (
        "weir study sync --csv a.csv b.csv --at 100000,500000 --bin 50000 --subtract-stalls",
        &[],
        Ends(&[0], &["100,000", "500,000"]),
    ),
    (
        "weir node --block-time 200ms --txs 100..200 --latency 2ms..20ms --capacity 8:1ms",
        NODE,
        Serves(SIMULATED),
    ),
    ("weir node --rate eth_getLogs=50:hang --rate eth_call=200:429", NODE, Serves(SIMULATED)),
    (
        "weir node --reorg 1010:3 --reorg 1050:5 --lag 1 --listen 127.0.0.1:8546",
        &[("127.0.0.1:8546", "127.0.0.1:0")],
        Serves(SIMULATED),
    ),
    (
        "weir node --admin 127.0.0.1:8547",
        &[("127.0.0.1:8547", "127.0.0.1:0 --listen 127.0.0.1:0")],
        Serves(SIMULATED),
    ),
    (
        "weir node --family harmony --chain-id 1666600000 --listen 127.0.0.1:9500",
        &[("127.0.0.1:9500", "127.0.0.1:0")],
        Serves(&["\"result\":\"0x63564c40\""]),
    ),
    ("weir node --replay testdata/mainnet/erigon-rpc-tests --head 25000000", NODE, Serves(CHAIN)),
    ("curl -s http://127.0.0.1:8547/state", &[], Ends(&[0], &["\"head\""])),
    (
        "curl -s http://127.0.0.1:8547/faults -d '{\"faults\":[{\"fault\":{\"kind\":\"html\"},\"share\":0.1}]}'",
        &[],
        Ends(&[0], &["html"]),
    ),
    ("curl -s -X POST http://127.0.0.1:8547/freeze", &[], Ends(&[0], &["frozen"])),
    ("cargo run --release -- demo", &[], NotHere(BUILDS)),
    // The pages in docs/results/ have these. Each ran once, for as long as its page says.
    ("weir node --admin 127.0.0.1:8546", &[], NotHere(RESULT)),
    (
        "curl --data '{\"rates\":{\"eth_getLogs\":{\"per_second\":10,\"burst\":1,\"over\":{\"do\":\"hang\"}}}}' http://127.0.0.1:8546/faults",
        &[],
        NotHere(RESULT),
    ),
    (
        "TARGET=http://127.0.0.1:8545 weir load studies/somnia.toml --set load_percent=1 --out results/somnia",
        &[],
        NotHere(RESULT),
    ),
    ("cargo install --path crates/weir", &[], NotHere(BUILDS)),
    ("cargo install --locked --profile dist --path crates/weir", &[], NotHere(BUILDS)),
    ("CI=true cargo xtask check --full", &[], NotHere(BUILDS)),
    ("cargo xtask release", &[], NotHere(BUILDS)),
    ("cargo xtask image", &[], NotHere(BUILDS)),
    (
        "WEIR_RELEASE_FILES=target/release-files cargo test -p weir --test gateway -- packages:: image:: --nocapture",
        &[],
        NotHere(BUILDS),
    ),
    (
        "weir serve --upstream http://127.0.0.1:8545 --upstream http://10.0.0.2:8545",
        FREE,
        Serves(CHAIN),
    ),
    ("cargo xtask bench gateway", &[], NotHere(BUILDS)),
    ("cargo xtask bench gateway --case geth", &[], NotHere(BUILDS)),
    ("cargo xtask bench load", &[], NotHere(BUILDS)),
    ("cargo xtask bench index", &[], NotHere(BUILDS)),
    ("docker compose -f deploy/quickstart/compose.yaml up --build", &[], NotHere(QUICKSTART)),
    ("docker compose -f deploy/quickstart/compose.yaml run --rm load", &[], NotHere(QUICKSTART)),
    ("docker compose -f deploy/quickstart/compose.yaml ps", &[], NotHere(QUICKSTART)),
    (
        "curl -s http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_chainId\",\"params\":[]}'",
        &[],
        NotHere(QUICKSTART),
    ),
    (
        "docker compose -f deploy/quickstart/compose.yaml restart gateway-1 gateway-2",
        &[],
        NotHere(QUICKSTART),
    ),
    ("docker compose -f deploy/quickstart/compose.yaml down", &[], NotHere(QUICKSTART)),
    ("cp /var/lib/weir/quota.json quota-backup.json", &[], NotHere(BACKUP)),
    ("cp quota-backup.json /var/lib/weir/quota.json", &[], NotHere(BACKUP)),
    ("sqlite3 chain.db \"VACUUM INTO 'chain-backup.db'\"", &[], NotHere(BACKUP)),
    ("weir index verify --db chain-backup.db", &[("-backup", "")], Ends(&[0], &["sound"])),
    ("rm -f chain.db-wal chain.db-shm", &[], NotHere(BACKUP)),
    ("cp chain-backup.db chain.db", &[], NotHere(BACKUP)),
    (
        "pg_dump --format custom --schema weir --file chain.dump postgres://weir@db.example/chains",
        &[],
        NotHere(BACKUP),
    ),
    (
        "psql postgres://weir@db.example/chains --command 'DROP SCHEMA IF EXISTS weir CASCADE'",
        &[],
        NotHere(BACKUP),
    ),
    (
        "pg_restore --exit-on-error --single-transaction --dbname postgres://weir@db.example/chains chain.dump",
        &[],
        NotHere(BACKUP),
    ),
    ("weir index verify --db postgres://weir@db.example/chains", &[], NotHere(BACKUP)),
    ("cargo xtask docs", &[], NotHere("builds the site; cargo xtask check does it as well")),
    ("cargo xtask check", &[], NotHere(BUILDS)),
    ("cargo xtask check --fast", &[], NotHere(BUILDS)),
    ("cargo xtask check --full", &[], NotHere(BUILDS)),
    (
        "weir logs access.log.*.gz access.log --by minute",
        &[],
        Ends(&[0], &["2 lines", "by minute"]),
    ),
    ("weir logs access.log --since 2026-11-21T22:00:00Z --json", &[], Ends(&[0], &["eth_chainId"])),
    (
        "weir index sync --from http://127.0.0.1:9500 --db harmony.db --what blocks,receipts,logs,hmyv2",
        &[("", " --start 1200")],
        Ends(&[0], &["blocks ", " stored; this run: "]),
    ),
    (
        "weir index sync --from http://127.0.0.1:8545 --db postgres://weir@db.example:5432/chains",
        &[],
        NotHere(POSTGRES),
    ),
    ("weir upgrade", &[("", " --admin ADMIN")], WithGateway(&[0], &["serves"])),
    (
        "weir study sync --csv 5MB=a1.csv,a2.csv 500MB=b1.csv,b2.csv --at 100000,500000 --out results/cache",
        &[("", " && ls results/cache")],
        Ends(&[0], &["report.html"]),
    ),
    (
        "weir study sync --csv 5MB=testdata/pocketnet/cache_5mb.csv 500MB=testdata/pocketnet/cache_500mb.csv",
        &[],
        Ends(&[0], &["21:25:57", "one run of each variant"]),
    ),
    (
        "TARGET=http://gateway/rpc weir load studies/connection-modes.toml --set requests_per_connection=1",
        SECONDS,
        Loads,
    ),
    ("TARGET=http://gateway/rpc weir load studies/connection-modes.toml", SECONDS, Loads),
    (
        "TARGET=https://gateway/rpc weir load studies/connection-modes.toml --set requests_per_connection=1 --set resume=0",
        UNSIGNED,
        Loads,
    ),
    (
        "TARGET=https://gateway/rpc weir load studies/connection-modes.toml --set requests_per_connection=1",
        UNSIGNED,
        Loads,
    ),
    ("TARGET=https://gateway/rpc weir load studies/connection-modes.toml", UNSIGNED, Loads),
    ("TARGET=http://node:9500 weir load studies/harmony-plan.toml", SECONDS, Loads),
    (
        "TARGET=http://node:9500 weir load studies/harmony-plan.toml --set requests=20000 --set seconds=120",
        &[("20000", "100"), ("seconds=120", "seconds=1")],
        Loads,
    ),
    // A quarter of the calls fails by design; the thresholds are for the other calls.
    (
        "TARGET=http://node:8545 weir load studies/rpcstest.toml",
        SECONDS,
        Ends(&[0, 4, 5], &["eth_blockNumber"]),
    ),
    (
        "TARGET=http://node:8545 weir load studies/somnia.toml --set load_percent=11",
        &[("load_percent=11", "load_percent=0.2 --set time_percent=1")],
        Loads,
    ),
    (
        "TARGET=http://node:8545 weir load studies/somnia.toml --set load_percent=1 --set time_percent=5",
        &[("load_percent=1 --set time_percent=5", "load_percent=0.2 --set time_percent=1")],
        Loads,
    ),
    ("weir serve examples/archive.toml", FREE, Serves(CHAIN)),
    ("weir serve examples/harmony.toml", FREE, Serves(CHAIN)),
    ("weir serve examples/limits.toml", FREE, Serves(CHAIN)),
    (
        "weir explain examples/limits.toml '{\"method\":\"eth_getLogs\",\"params\":[{}]}'",
        &[],
        Ends(&[0], &["eth_getLogs"]),
    ),
    (
        "weir key alice --toml >> examples/keys/public.toml",
        &[("", " && weir check examples/public.toml")],
        Ends(&[0], &["examples/public.toml"]),
    ),
    ("weir serve examples/public.toml", FREE, Serves(&["401"])),
    (
        "weir explain examples/public.toml '{\"method\":\"debug_traceCall\"}' --key demo",
        &[],
        Ends(&[0], &["traces-are-gold"]),
    ),
    ("weir serve examples/redis.toml", FREE, Serves(CHAIN)),
    ("weir serve examples/two-nodes.toml", FREE, Serves(CHAIN)),
    // The tutorials, whose commands build on each other.
    ("weir node --block-time 12s", NODE, Starts(&["127.0.0.1:8545"])),
    (
        "weir node --block-time 12s --listen 127.0.0.1:8546 --admin 127.0.0.1:8547",
        &[("127.0.0.1:8546", "127.0.0.1:0"), ("127.0.0.1:8547", "127.0.0.1:0")],
        Starts(&["127.0.0.1:8546", "127.0.0.1:8547"]),
    ),
    (
        "weir serve --upstream http://127.0.0.1:8545 --upstream http://127.0.0.1:8546",
        GATEWAY,
        Starts(GATEWAY_ADDRESSES),
    ),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_getBlockByNumber\",\"params\":[\"0x10\",false]}'",
        &[],
        Ends(&[0], &["x-weir-cache: miss", "x-weir-upstream: ", "\"number\":\"0x10\""]),
    ),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"eth_getBlockByNumber\",\"params\":[\"0x10\",false]}' | grep x-weir",
        &[],
        Ends(&[0], &["x-weir-cache: hit"]),
    ),
    (
        "curl -s http://127.0.0.1:8547/faults -d '{\"faults\":[{\"fault\":{\"kind\":\"html\"}}]}'",
        &[],
        Ends(&[0], &["\"html\""]),
    ),
    (
        "curl -s http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"eth_getBalance\",\"params\":[\"0x0000000000000000000000000000000000000001\",\"latest\"]}'",
        &[],
        Ends(&[0], &["\"result\":\"0x"]),
    ),
    (
        "curl -s http://127.0.0.1:8646/status | jq -c '.chains[].upstreams[] | [.name, .state]'",
        // A reader repeats the command until the upstream is ejected, and so does the test.
        &[("curl", "until curl"), ("", " | grep ejected; do :; done")],
        Ends(&[0], &["ejected"]),
    ),
    (
        "curl -s http://127.0.0.1:8547/faults -d '{\"faults\":[]}'",
        &[],
        Ends(&[0], &["\"faults\": []"]),
    ),
    (WEIR_TOML, &[], Ends(&[0], &[])),
    ("weir check weir.toml", &[], Ends(&[0], &["ok: weir.toml", "limit eth_getLogs"])),
    ("weir serve weir.toml", GATEWAY, Starts(GATEWAY_ADDRESSES)),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"eth_getLogs\",\"params\":[{\"fromBlock\":\"0x10\",\"toBlock\":\"0x10\"}]}' | head -1",
        &[],
        Ends(&[0], &["200 OK"]),
    ),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"eth_getLogs\",\"params\":[{\"fromBlock\":\"0x10\",\"toBlock\":\"0x10\"}]}' | grep retry-after",
        &[],
        Ends(&[0], &["retry-after: "]),
    ),
    ("sed -i 's|1r/m|100r/s|' weir.toml", &[], Ends(&[0], &[])),
    (
        "weir reload --admin 127.0.0.1:8646",
        &[],
        Ends(&[0], &["\"1r/m\" -> \"100r/s\"", "configuration 2"]),
    ),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"eth_getLogs\",\"params\":[{\"fromBlock\":\"0x10\",\"toBlock\":\"0x10\"}]}' | head -1",
        &[],
        Ends(&[0], &["200 OK"]),
    ),
    ("weir node --capacity 8:5ms", NODE, Starts(&["127.0.0.1:8545"])),
    (
        "weir load http://127.0.0.1:8545 -r 100 -d 10s --threshold 'latency p(95)<100'",
        &[("10s", "1s"), ("<100", "<10000")],
        Loads,
    ),
    (
        "weir load http://127.0.0.1:8545 -r 3200 -d 10s --threshold 'latency p(95)<100'",
        &[("10s", "2s"), ("<100", "<10")],
        Ends(&[3, 5], &["latency p(95)<10"]),
    ),
    (
        "weir capacity http://127.0.0.1:8545 --rate-max 3200 --threshold 'latency p(95)<100' --probe 5s --probe-warmup 1s --repeats 1 --drain 0s --soak 0s",
        &[("3200", "50"), ("<100", "<10000")],
        Ends(&[0, 4, 5], &["50"]),
    ),
    (
        "weir node --latency 20ms --listen 127.0.0.1:8546",
        &[("127.0.0.1:8546", "127.0.0.1:0")],
        Starts(&["127.0.0.1:8546"]),
    ),
    ("weir load http://127.0.0.1:8545 -r 100 -d 30s --out fast1", &[("30s", "1s")], Loads),
    ("weir load http://127.0.0.1:8546 -r 100 -d 30s --out slow1", &[("30s", "1s")], Loads),
    ("weir load http://127.0.0.1:8546 -r 100 -d 30s --out slow2", &[("30s", "1s")], Loads),
    ("weir load http://127.0.0.1:8545 -r 100 -d 30s --out fast2", &[("30s", "1s")], Loads),
    (
        "weir compare fast=fast1,fast2 slow=slow1,slow2",
        ANYWAY,
        Ends(&[0], &["fast", "slow", "latency p50, ms"]),
    ),
    (
        "weir report fast=fast1,fast2 slow=slow1,slow2 --out report",
        &[("", " && ls report")],
        Ends(&[0], &["report.html", "report.md"]),
    ),
    ("weir equal http://127.0.0.1:8545 http://10.0.0.1:8545", &[], EQUAL),
    ("weir equal http://127.0.0.1:8545 http://127.0.0.1:8645 --strict", &[], EQUAL),
    (
        "weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --requests calls.jsonl --json -",
        &[],
        Ends(&[0], &["weir.equal/1"]),
    ),
    (
        "weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --ignore '/result/*/blockTimestamp'",
        &[],
        EQUAL,
    ),
    (
        "weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --ignore '**/blockTimestamp'",
        &[],
        EQUAL,
    ),
    (
        "weir equal http://127.0.0.1:8545 http://10.0.0.1:8545 --junit equal.xml --summary summary.md",
        &[("", " && cat equal.xml summary.md")],
        Ends(&[0], &["<testsuites", "## EQUAL"]),
    ),
    (
        "weir equal http://127.0.0.1:8545 http://127.0.0.1:8645 --summary summary.md",
        &[("", " && cat summary.md")],
        Ends(&[0], &["## EQUAL"]),
    ),
    ("weir probe http://127.0.0.1:8545", PROBE, PROBES),
    (
        "weir probe http://127.0.0.1:8545 http://10.0.0.1:8545 --rate 0.5 --lag-max 3",
        &[("--rate 0.5", "--rate 10 --listen 127.0.0.1:0")],
        PROBES,
    ),
    (
        "weir probe geth=http://127.0.0.1:8545 gateway=http://127.0.0.1:8645 --listen 127.0.0.1:9100",
        &[("127.0.0.1:9100", "127.0.0.1:0 --rate 10")],
        PROBES,
    ),
    (
        "weir probe http://127.0.0.1:8545 --remote-write http://127.0.0.1:9090/api/v1/write --listen off",
        &[("127.0.0.1:9090", "127.0.0.1:1")],
        Until("remote write failed: ", &[0]),
    ),
    ("weir probe --plan plan.toml", PROBE, PROBES),
    (
        "weir load plan.toml --junit load.xml",
        &[("", "; cat load.xml")],
        Ends(&[0], &["<testcase name=\"verdict\""]),
    ),
    (
        "weir compare before=old1,old2,old3,old4 after=new1,new2,new3,new4 --fail-if-worse --junit compare.xml",
        &[("", " --anyway; cat compare.xml")],
        Ends(&[0], &["classname=\"weir.compare\""]),
    ),
    ("weir node --txs 20..40", NODE, Starts(&["127.0.0.1:8545"])),
    (
        "weir index sync --from http://127.0.0.1:8545 --db tutorial.db",
        &[],
        Ends(&[0], &["created an index of chain 424242", "blocks 0 to "]),
    ),
    ("weir index stats --db tutorial.db", &[], Ends(&[0], &["verified      full"])),
    ("weir index verify --db tutorial.db", &[], Ends(&[0], &["sound (level full)"])),
    ("weir index query block --db tutorial.db 500 | jq .hash", &[], Ends(&[0], &["\"0x"])),
    (
        "weir index query logs --db tutorial.db --from 500 --to 510 --limit 2",
        &[],
        Ends(&[0], &["\"topics\""]),
    ),
    (
        "weir index query logs --db tutorial.db --from 500 --to 510 --csv > logs.csv",
        &[("", " && head -2 logs.csv")],
        Ends(&[0], &["block_number,block_hash", "\n500,0x"]),
    ),
    (
        "weir index export --db tutorial.db --out tables --what logs",
        &[],
        Ends(&[0], &["tables/logs.parquet"]),
    ),
    (INDEX_TOML, &[], Ends(&[0], &[])),
    ("weir serve index.toml", GATEWAY, Starts(GATEWAY_ADDRESSES)),
    (
        "curl -si http://127.0.0.1:8645 -H 'content-type: application/json' -d '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"eth_getLogs\",\"params\":[{\"fromBlock\":\"0x1f4\",\"toBlock\":\"0x1fe\"}]}' | grep x-weir",
        &[],
        Ends(&[0], &["x-weir-cache: hit; tier=index"]),
    ),
];
