//! Goal: the commands do what their help and docs/cli.md say, with the exit codes stated there.
//! Method: the real binary runs from the repository's folder, and its output is compared exactly.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use expect_test::{Expect, expect};
use test_support::running::{command_killed_with_test, spawn};
use test_support::wait::wait_until;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command.env("PROVIDER_KEY", "0123456789abcdef0123456789abcdef");
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Runs a command to its end and compares its exit code, standard output and standard error.
fn check(arguments: &[&str], expected: Expect) {
    let Output { status, stdout, stderr } = weir(arguments).output().unwrap();
    let mut actual = format!("exit {}\n{}", status.code().unwrap(), text(&stdout));
    if !stderr.is_empty() {
        actual.push_str("-- stderr\n");
        actual.push_str(text(&stderr));
    }
    expected.assert_eq(&actual);
}

#[test]
fn examples_are_right() {
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "toml") {
            count += 1;
            let output = weir(&["check", file.to_str().unwrap()]).output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty(), "{}", file.display());
        }
    }
    assert!(count >= 3, "only {count} examples");
}

#[test]
fn check_summarizes_a_valid_file() {
    check(
        &["check", "examples/archive.toml"],
        expect![[r#"
            exit 0
            ok: examples/archive.toml
            chain eth (ethereum, id 1) at / /eth and every other path
              upstream light-a http://10.0.0.1:8545, weight 2
              upstream light-b http://10.0.0.2:8545
              upstream archive http://10.0.0.3:8545
              group heavy: debug_* trace_* -> archive, in turn by weight
              group light: * -> light-a light-b, in turn by weight
            cache 256 MiB
        "#]],
    );
}

#[test]
fn check_reports_every_fault_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(
        &file,
        "[downstream]\nbody_max = 1\n[[upstream]]\nurl = 'ftp://h/sekrit0123456789'\n",
    )
    .unwrap();
    let output = weir(&["check", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let printed = text(&output.stderr).replace(folder.path().to_str().unwrap(), "FOLDER");
    assert!(!printed.contains("sekrit"));
    expect![[r#"
        FOLDER/gateway.toml:2:1: downstream.body_max: there is no such key
           2 | body_max = 1
             | ^^^^^^^^
             allowed: connections_max, connections_per_client_max, body_bytes_max, header_bytes_max, batch_calls_max, batch_response_bytes_max, depth_max, method_bytes_max, id_bytes_max, header_timeout, body_timeout, write_timeout, idle_timeout, keep_alive_requests_max, websocket, websocket_compression, websocket_messages_max, websocket_queue_bytes_max, websocket_subscriptions_max, websocket_ping, filters_max, filters_per_client_max, filter_timeout, trusted_proxies, client_address, cors_origins, content_type, compression, compression_bytes_min, answer_headers

        FOLDER/gateway.toml:4:7: upstream.url = "ftp://h/***": the scheme is none of http, https, ws, wss and ipc
           4 | url = "ftp://h/***"
             |       ^^^^^^^^^^^^^
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path

        2 faults
    "#]].assert_eq(&printed);
}

#[test]
fn diff_reports_changes_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let old = file(
        "old.toml",
        "[server]\nthreads = 1\n[chain.main]\nid = 1\n\
         [[upstream]]\nname = \"own\"\nurl = \"http://10.0.0.1:8545\"\n\
         [[upstream]]\nname = \"far\"\nurl = \"https://far.example/v3/0123456789abcdef0123456789abcdef\"\n\
         headers = { x-key = \"sekrit-one\" }\n[cache]\nbytes_max = \"64MiB\"\n",
    );
    let new = file(
        "new.toml",
        "[server]\nthreads = 2\n[cache]\nhead_age_max = \"5s\"\n[chain.main]\nid = 1\n\
         [[upstream]]\nname = \"far\"\nurl = \"https://far.example/v3/fedcba9876543210fedcba9876543210\"\n\
         headers = { x-key = \"sekrit-two\" }\nbackup = true\n\
         [[upstream]]\nname = \"next\"\nurl = \"http://10.0.0.2:8545\"\n",
    );
    check(
        &["diff", &old, &new],
        expect![[r#"
            exit 1
            ~ server.threads = 1 -> 2   (only after a restart)
            - upstream.own.url = "http://10.0.0.1:8545"
            ~ upstream.far.url = "https://far.example/v3/***": the part that is masked has changed
            ~ upstream.far.backup = false (default) -> true
            ~ upstream.far.headers = { x-key = *** }: the part that is masked has changed
            + upstream.next.url = "http://10.0.0.2:8545"
            ~ cache.bytes_max = "64MiB" -> "256MiB" (default)
            ~ cache.head_age_max = "12s" (default) -> "5s"
        "#]],
    );
    check(
        &["diff", &old, &old],
        expect![[r#"
        exit 0
        no difference
    "#]],
    );
    let faulty = file("faulty.toml", "[[upstream]]\nurl = \"ftp://x\"\n");
    let output = weir(&["diff", &old, &faulty]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("upstream.url"), "{}", text(&output.stderr));
}

#[test]
fn warnings_do_not_fail() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, "[[upstream]]\nurl = 'http://127.0.0.1:8545'\n").unwrap();
    let output = weir(&["check", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stderr).contains("warning: chain.ethereum: the chain has a single upstream")
    );
    assert!(text(&output.stdout).starts_with("ok: "));
}

#[test]
fn a_closed_standard_output_does_not_change_the_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let call = r#"{"method":"eth_chainId"}"#;
    let arguments = ["explain", "examples/archive.toml", call];
    let output = weir(&arguments).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    // A full disk is an error.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = weir(&arguments).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = "weir: cannot write to standard output: No space left on device (os error 28)\n";
    assert_eq!(text(&output.stderr), message);
}

#[test]
fn explain_a_read_at_latest() {
    let call = r#"{"method":"eth_getBalance","params":["0x00000000000000000000000000000000000000Aa","latest"]}"#;
    check(
        &["explain", "examples/archive.toml", call],
        expect![[r#"
            exit 0
            method    eth_getBalance (family ethereum)
            chain     eth
            group     light, which serves *
            upstreams chosen: in turn by weight
                      1. light-a http://10.0.0.1:8545, weight 2
                      2. light-b http://10.0.0.2:8545
                      the order is the file's; at run time health, head and load decide
            block     parameter 2 is latest
            sent      with the number 20000000 in place of the tag
            sent to   upstreams whose head is at 20000000 or above
                      upstreams that have the state of block 20000000, if any has
            cached    yes, while block 20000000 stays in the chain; for ever once it is final
            coalesced yes: equal calls in flight at the same time share one response
            key       eth eth_getBalance ["0x00000000000000000000000000000000000000Aa","latest"], with block 20000000
                      01036574680e6574685f67657442616c616e636561732a3078303030303030303030303030303030303030303030303030303030303030303030303030303061614e0000000001312d0065 (75 bytes)
            repeated  yes: a repetition changes nothing
            weight    1
            class     normal
            deadline  30s for the whole call, 10s for each attempt
        "#]],
    );
}

#[test]
fn explain_an_archive_call() {
    let call = r#"{"method":"trace_block","params":["0x10"]}"#;
    check(
        &["explain", "examples/archive.toml", call],
        expect![[r#"
            exit 0
            method    trace_block (family ethereum)
            chain     eth
            group     heavy, which serves debug_* trace_*
            upstreams one
                      1. archive http://10.0.0.3:8545
            block     parameter 1 is the number 16, final
            sent to   upstreams whose head is at 16 or above
                      upstreams that have the traces of block 16, if any has
            cached    yes, for ever: bound to block 16, which is final
            coalesced yes: equal calls in flight at the same time share one response
            key       eth trace_block ["0x10"]
                      01036574680b74726163655f626c6f636b614e000000000000001065 (28 bytes)
            repeated  yes: a repetition changes nothing
            weight    50
            class     low: the first to be shed when upstreams are overloaded
            deadline  120s for the whole call, 60s for each attempt
        "#]],
    );
}

#[test]
fn explain_a_batch_with_backup() {
    let calls = r#"[{"method":"eth_sendRawTransaction","params":["0x00"]},{"method":"foo_bar"},5,
        {"method":"eth_blockNumber"},
        {"method":"eth_getLogs","params":[{"fromBlock":"0x1312000","toBlock":"latest"}]}]"#;
    check(
        &["explain", "examples/backup.toml", calls],
        expect![[r#"
            exit 2
            call 1 of 5
            method    eth_sendRawTransaction (family ethereum)
            chain     eth
            group     all, which serves *
            upstreams chosen: the less loaded of two
                      1. own http://127.0.0.1:8545
                      2. provider https://mainnet.infura.io/v3/***, backup
                      backups only while no other upstream is usable
                      the order is the file's; at run time health, head and load decide
            cached    no: it changes state
            coalesced no: every call is sent to an upstream
            repeated  yes: the chain executes a signed transaction once, and "already known" counts as success
            weight    5
            class     normal
            deadline  30s for the whole call, 10s for each attempt

            call 2 of 5
            method    foo_bar (family ethereum, method unknown)
            chain     eth
            group     all, which serves *
            upstreams chosen: the less loaded of two
                      1. own http://127.0.0.1:8545
                      2. provider https://mainnet.infura.io/v3/***, backup
                      backups only while no other upstream is usable
                      the order is the file's; at run time health, head and load decide
            cached    no: the method is unknown; not coalesced either
            repeated  only if it cannot have reached an upstream
            class     normal
            deadline  30s for the whole call, 10s for each attempt

            call 3 of 5
            refused   the gateway responds -32600: batch member at byte 76 is not an object

            call 4 of 5
            method    eth_blockNumber (family ethereum)
            chain     eth
            group     all, which serves *
            upstreams chosen: the less loaded of two
                      1. own http://127.0.0.1:8545
                      2. provider https://mainnet.infura.io/v3/***, backup
                      backups only while no other upstream is usable
                      the order is the file's; at run time health, head and load decide
            response  the gateway itself returns the number of the head
            cached    not needed
            repeated  yes: a repetition changes nothing
            weight    1
            class     normal
            deadline  30s for the whole call, 10s for each attempt

            call 5 of 5
            method    eth_getLogs (family ethereum)
            chain     eth
            group     all, which serves *
            upstreams chosen: the less loaded of two
                      1. own http://127.0.0.1:8545
                      2. provider https://mainnet.infura.io/v3/***, backup
                      backups only while no other upstream is usable
                      the order is the file's; at run time health, head and load decide
            cached    yes, as 5 separate parts
                      blocks 19996672 to 19996999, for ever: they are final
                      blocks 19997000 to 19997999, for ever: they are final
                      blocks 19998000 to 19998999, for ever: they are final
                      blocks 19999000 to 19999936, for ever: they are final
                      blocks 19999937 to 20000000, while they stay in the chain
            coalesced yes: equal calls in flight at the same time share one response
            repeated  yes: a repetition changes nothing
            weight    10
            class     low: the first to be shed when upstreams are overloaded
            deadline  30s for the whole call, 10s for each attempt
        "#]],
    );
}

#[test]
fn explain_by_path_and_hash() {
    let call = r#"{"method":"hmyv2_getBalanceByBlockNumber","params":["one1abc",5]}"#;
    let path = "/api/v1/hmy/v2";
    check(
        &["explain", "examples/harmony.toml", call, "--path", path],
        expect![[r#"
            exit 0
            method    hmyv2_getBalanceByBlockNumber (family harmony)
            chain     harmony
            group     harmony, which serves *
            upstreams chosen: by hash of method and params, at most 1.25 times the mean load
                      1. harmony-a http://10.0.1.1:9500
                      2. harmony-b http://10.0.1.2:9500
                      the order is the file's; at run time health, head and load decide
            block     parameter 2 is the number 5, final
            sent to   upstreams whose head is at 5 or above
                      upstreams that have the state of block 5, if any has
            cached    yes, for ever: bound to block 5, which is final
            coalesced yes: equal calls in flight at the same time share one response
            key       harmony hmyv2_getBalanceByBlockNumber ["one1abc",5]
                      01076861726d6f6e791d686d7976325f67657442616c616e63654279426c6f636b4e756d6265726173076f6e65316162634e000000000000000565 (59 bytes)
            repeated  yes: a repetition changes nothing
            weight    1
            class     normal
            deadline  30s for the whole call, 10s for each attempt
        "#]],
    );
}

#[test]
fn explain_uses_the_rate_of_the_client_s_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    let upstream = "[[upstream]]\nurl = 'http://127.0.0.1:8545'\n";
    let key = "[[key]]\nname = 'load'\nsecret = '0123456789abcdef0123456789'\nrate = '900r/s'\n";
    let limit = "[zone.each]\nkey = ['key']\nrate = '5r/s'\n[[limit]]\nzone = 'each'\nburst = 10\n";
    std::fs::write(&file, format!("{upstream}{key}{limit}")).unwrap();
    let call = r#"{"method":"eth_chainId"}"#;
    let output =
        weir(&["explain", file.to_str().unwrap(), call, "--key", "load"]).output().unwrap();
    let stdout = text(&output.stdout);
    assert!(stdout.contains("zone each, 900 a second by API key, burst 10"), "{stdout}");
    assert!(stdout.contains("(the key's own)"), "{stdout}");
}

#[test]
fn faulty_arguments_end_with_2() {
    let cases: [&[&str]; 9] = [
        &[],
        &["serve"],
        &["serve", "a.toml", "--upstream", "http://h"],
        &["serve", "--upstream", "h"],
        &["serve", "no-such-file.toml"],
        &["serve", "--upstream", "http://h", "--threads", "0"],
        &["explain", "examples/two-nodes.toml", "{nonsense"],
        &["explain", "{}"],
        &["node", "--block-time", "0s"],
    ];
    for arguments in cases {
        let output = weir(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}\n{}", text(&output.stderr));
        assert!(!output.stderr.is_empty(), "{arguments:?} says nothing");
    }
}

#[test]
fn an_address_that_is_taken_ends_with_1() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve =
        ["serve", "--upstream", "http://127.0.0.1:1", "--admin", "off", "--listen", &address];
    for arguments in [&serve[..], &["node", "--listen", &address]] {
        let output = weir(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(&format!("cannot listen on {address}")), "{stderr}");
    }
}

#[test]
fn a_signal_stops_serving_with_0() {
    let serve = ["serve", "--upstream", "http://127.0.0.1:1/sekrit0123456789"];
    let serve = [&serve[..], &["--listen", "127.0.0.1:0", "--admin", "off"]].concat();
    for arguments in [&serve[..], &["node", "--listen", "127.0.0.1:0"]] {
        let mut child =
            weir(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut printed_lines = lines.map(|line| line.unwrap());
        let listens = printed_lines.find(|line| line.contains("listens on http://127.0.0.1:"));
        assert!(listens.is_some(), "{arguments:?}");
        let id = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(!printed_lines.any(|line| line.contains("sekrit")));
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn a_signal_stops_a_node_that_builds_its_chain() {
    // One block per millisecond since 1970 takes years to build.
    let arguments = ["node", "--listen", "127.0.0.1:0", "--since", "0", "--block-time", "1ms"];
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = command_killed_with_test(Path::new(env!("CARGO_BIN_EXE_weir")));
    command.args(arguments).stderr(log.reopen().unwrap());
    let mut child = spawn(command).unwrap();
    wait_until("the node reports its progress", || {
        std::fs::read_to_string(log.path()).unwrap().contains("building the chain: block ")
    });
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let mut status = None;
    wait_until("the signal stops the node", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}
