//! Helpers of several test modules: servers, clients, proxies and a stall detector.

use serde_json::Value;
use test_support::raw::Client;
use test_support::running::Running;

pub(crate) mod authority;
pub(crate) mod disconnecting_proxy;
pub(crate) mod growing_chain;
pub(crate) mod harness;
pub(crate) mod open_loop;
pub(crate) mod redis_server;
pub(crate) mod stall_detector;
pub(crate) mod tampering_proxy;
pub(crate) mod tls_client;
pub(crate) mod websocket_client;

/// Changes the fault settings of a simulated node.
pub(crate) fn set_faults(node: &Running, settings: &Value) {
    let admin = node.admin.as_deref().unwrap();
    let answer = Client::connect(admin).call("/faults", settings.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
}
