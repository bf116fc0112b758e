//! Goal: common client libraries work through the gateway without changes, over HTTP and WebSocket.
//! The tests cover calls, batches, filters, subscriptions and reconnects. Method: `clients/` has
//! one program per library. It runs against a gateway and a simulated node with new blocks. The
//! version of each library is fixed.
//!
//! `cargo xtask check` installs the libraries into `target/clients`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::disconnecting_proxy::DisconnectingProxy;
use test_support::programs;
use test_support::running::Weir;

/// The folder with the installed libraries.
fn libraries_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clients")
}

/// Runs a script of `clients/` with this interpreter.
fn run(interpreter: &Path, program: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/clients").join(program);
    // Node.js looks for libraries in the script's folder, so copy the script there.
    let copy = libraries_folder().join(program);
    std::fs::copy(source, &copy).unwrap();
    assert_succeeds(Command::new(interpreter).arg(&copy));
}

/// Runs a program against a gateway and a node with new blocks. Panics if the program fails. Its
/// two arguments are those of a [`DisconnectingProxy`] in front of the gateway: the address to
/// call, and the address that makes the proxy close all connections.
fn assert_succeeds(program: &mut Command) {
    let node = Weir::node().args(&["--block-time", "400ms"]).start();
    // The gateway uses a WebSocket to the node for calls, subscriptions and new block headers.
    let url = node.url().replace("http://", "ws://");
    let toml =
        format!("[downstream]\nwebsocket_compression = true\n[[upstream]]\nurl = \"{url}\"\n");
    let mut gateway = Weir::serve().config(&toml).start();
    let proxy = DisconnectingProxy::in_front_of(&gateway.address);
    program.args([&proxy.address, &proxy.disconnect_address]).stdin(Stdio::null());
    let output = program.output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program:?}: {}", String::from_utf8_lossy(&printed));
    gateway.assert_sound();
}

fn run_in_node(program: &str) {
    let Some(node) = programs::require("node") else { return };
    if programs::require_folder(&libraries_folder().join("node_modules")) {
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
fn ws_with_compressed_messages_works_unchanged() {
    run_in_node("ws.mjs");
}

#[test]
fn alloy_works_unchanged() {
    let folder = libraries_folder().join("alloy");
    if programs::require_folder(&folder) {
        assert_succeeds(&mut Command::new(folder.join("debug/alloy-client")));
    }
}

#[test]
fn web3_py_works_unchanged() {
    let python = libraries_folder().join("python/bin/python3");
    if programs::require_folder(&libraries_folder().join("python")) {
        run(&python, "web3_py.py");
    }
}
