//! Typical use of alloy, over HTTP and over a WebSocket: reads, batches, and events from filters or
//! subscriptions. alloy reopens a lost WebSocket and subscribes again.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use alloy_provider::{Provider, ProviderBuilder, WsConnect};
use alloy_rpc_client::BatchRequest;
use alloy_rpc_types_eth::Filter;
use futures_util::StreamExt;
use serde_json::Value;

/// The longest time for the whole program, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// Interval of alloy's polls of a filter.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (address, disconnect_address) = (arguments.next().unwrap(), arguments.next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let both = async {
        over_http(&address, &disconnect_address).await;
        over_a_websocket(&address, &disconnect_address).await;
    };
    runtime.block_on(async { tokio::time::timeout(PATIENCE, both).await }).expect("in time");
}

async fn over_http(address: &str, disconnect_address: &str) {
    let provider =
        ProviderBuilder::new().connect_http(format!("http://{address}").parse().unwrap());
    let number = provider.get_block_number().await.unwrap();
    let block = provider.get_block(number.into()).await.unwrap().unwrap();
    assert_eq!(block.header.number, number);
    assert!(provider.get_chain_id().await.unwrap() > 0);
    let filter = Filter::new().from_block(number - 10).to_block(number - 1);
    assert!(!provider.get_logs(&filter).await.unwrap().is_empty());

    let mut batch = BatchRequest::new(provider.client());
    let mut add = |number: u64| {
        let params = (format!("{number:#x}"), false);
        batch.add_call::<_, Value>("eth_getBlockByNumber", &params).unwrap()
    };
    let (block, parent) = (add(number), add(number - 1));
    batch.send().await.unwrap();
    assert_eq!(block.await.unwrap()["parentHash"], parent.await.unwrap()["hash"]);

    // A call on a closed connection may fail. The next call opens another connection.
    disconnect(disconnect_address);
    while provider.get_chain_id().await.is_err() {}
    let blocks = provider.watch_blocks().await.unwrap().with_poll_interval(POLL_INTERVAL);
    let (mut blocks, mut hashes) = (blocks.into_stream(), Vec::new());
    while hashes.len() < 3 {
        hashes.extend(blocks.next().await.unwrap());
    }
    let mut parents = Vec::new();
    for hash in &hashes {
        let block = provider.get_block_by_hash(*hash).await.unwrap().unwrap();
        parents.push(block.header.parent_hash);
    }
    assert_eq!(parents[1..], hashes[..hashes.len() - 1]);
    let logs = provider.watch_logs(&Filter::new()).await.unwrap().with_poll_interval(POLL_INTERVAL);
    let mut logs = logs.into_stream();
    while logs.next().await.unwrap().is_empty() {}
}

async fn over_a_websocket(address: &str, disconnect_address: &str) {
    let connect = WsConnect::new(format!("ws://{address}"));
    let provider = ProviderBuilder::new().connect_ws(connect).await.unwrap();
    let number = provider.get_block_number().await.unwrap();
    let mut heads = provider.subscribe_blocks().await.unwrap().into_stream();
    let first = heads.next().await.unwrap();
    let second = heads.next().await.unwrap();
    assert_eq!((second.number, second.parent_hash), (first.number + 1, first.hash));
    let mut logs = provider.subscribe_logs(&Filter::new()).await.unwrap().into_stream();
    assert!(logs.next().await.unwrap().block_number.unwrap() > number);

    disconnect(disconnect_address);
    let after = loop {
        if let Ok(number) = provider.get_block_number().await {
            break number;
        }
    };
    // Skip events that the gateway sent before the connections were closed.
    while heads.next().await.unwrap().number <= after {}
    while logs.next().await.unwrap().block_number.unwrap() <= after {}
}

/// Makes the proxy between this program and the gateway close all connections. Returns once it has
/// done so: it then closes this connection too.
fn disconnect(disconnect_address: &str) {
    let mut stream = TcpStream::connect(disconnect_address).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
