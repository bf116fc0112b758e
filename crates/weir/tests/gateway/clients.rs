//! Goal: common client libraries work through the gateway unchanged: calls, batches, events by
//! filters and by subscriptions, over HTTP and WebSocket, and reconnects. Method: one program per
//! library in `clients/`, against a simulated node with new blocks, each library at a fixed
//! version.
//!
//! `cargo xtask check` installs the libraries into `target/clients`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::relay::Relay;
use test_support::programs;
use test_support::running::Weir;

/// Where the libraries are.
fn fetched() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

/// Runs a program of `clients/` with an interpreter, beside its libraries.
fn run(interpreter: &Path, program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/clients").join(program);
    // Node.js looks for libraries beside the program.
    let copy = fetched().join(program);
    std::fs::copy(source, &copy).unwrap();
    works(Command::new(interpreter).arg(&copy));
}

/// Runs a program against a gateway and a node with new blocks. Its arguments are the URLs to call
/// and the address whose connections cut all others.
fn works(program: &mut Command) {
    let node = Weir::node().args(&["--block-time", "400ms"]).start();
    // Calls, subscriptions and what wakes the polls over one WebSocket address.
    let url = node.url().replace("http://", "ws://");
    let toml =
        format!("[downstream]\nwebsocket_compression = true\n[[upstream]]\nurl = \"{url}\"\n");
    let mut gateway = Weir::serve().config(&toml).start();
    let relay = Relay::before(&gateway.address);
    let told = program.args([&relay.address, &relay.cutter]).stdin(Stdio::null());
    let output = told.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&said));
    gateway.assert_sound();
}

fn run_in_node(program: &str) {
    let Some(node) = programs::require("node") else { return };
    if programs::require_folder(&fetched().join("node_modules")) {
        run(&node, program);
    }
}

#[test]
fn ethers_works_unchanged() {
    run_in_node("ethers.mjs");
}

#[test]
fn viem_works_unchanged() {
    run_in_node("viem.mjs");
}

#[test]
fn ws_with_packed_messages_works_unchanged() {
    run_in_node("ws.mjs");
}

#[test]
fn alloy_works_unchanged() {
    let folder = fetched().join("alloy");
    if programs::require_folder(&folder) {
        works(&mut Command::new(folder.join("debug/alloy-client")));
    }
}

#[test]
fn web3_py_works_unchanged() {
    let python = fetched().join("python/bin/python3");
    if programs::require_folder(&fetched().join("python")) {
        run(&python, "web3_py.py");
    }
}
