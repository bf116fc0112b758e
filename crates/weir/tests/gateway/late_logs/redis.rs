//! The test of `late_logs` in real time, with two gateways that share a cache in Redis.

use std::rc::Rc;
use std::time::Duration;

use gateway::runtime::Gateway;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{CLIENTS, SharedState, config, runtime, world};
use crate::sim::connection::Connection;
use crate::support::redis_server::Redis;

/// How long the nodes misbehave.
const REAL_TIME: Duration = Duration::from_secs(6);
/// Time without trouble at the start and at the end. It is longer than a few polls, and longer than
/// the gateway caches a response about a new block.
const CALM: Duration = Duration::from_secs(1);
/// More calls than the clients can send in [`REAL_TIME`].
const CALLS: u64 = 1_000_000;

#[test]
fn gateways_share_nothing_that_lacks_logs() {
    let Some(redis) = Redis::start(&[]) else { return };
    let seed = 3;
    runtime(false).block_on(async {
        let world = world(seed);
        let mut rng = SmallRng::seed_from_u64(seed);
        let state = SharedState::new(&world, CALLS, &mut rng);
        let any = "127.0.0.1:0".parse().unwrap();
        let ports: Vec<_> =
            state.nodes.nodes.iter().map(|node| node.listen(any).unwrap()).collect();
        let urls: Vec<_> = ports.iter().map(|port| format!("http://{}", port.addr())).collect();
        let more = format!("[redis]\nurl = \"{}\"\ntimeout = \"500ms\"", redis.url());
        let start = || {
            let config = config(&urls, &more);
            tokio::task::spawn_blocking(move || Gateway::start(config).unwrap())
        };
        let gateways = [start().await.unwrap(), start().await.unwrap()];
        // Sleeps: real time until the first heads. Connections to Redis have no virtual time.
        sleep(CALM).await;
        let connect = |client: u64| {
            let address = gateways[client as usize % 2].listen;
            move || TcpStream::connect(address)
        };
        let phases = Rc::clone(&state);
        let phases =
            tokio::task::spawn_local(async move { phases.nodes.run_random_phases(rng).await });
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let state = Rc::clone(&state);
                tokio::task::spawn_local(state.run_client(seed * 1_000 + client, connect(client)))
            })
            .collect();
        sleep(REAL_TIME).await; // Sleeps: how long the test lasts.
        state.calls_left.set(0);
        for client in clients {
            client.await.unwrap();
        }
        phases.abort();
        let during = state.results();
        state.nodes.make_healthy();
        sleep(CALM).await; // Sleeps: what is cached briefly expires.
        for client in 0..2 {
            state.repeat_calls(&mut Connection::new(connect(client)().await.unwrap())).await;
        }
        let results = state.results();
        println!("{during}\n  after: {results}");
        for gateway in gateways {
            tokio::task::spawn_blocking(move || gateway.stop()).await.unwrap();
        }
        assert!(results.findings.is_empty(), "{results}\n{}", results.findings.join("\n"));
        assert!(during.lacking_early > 0, "no node was late: nothing is tested");
        assert!(!redis.response_keys().is_empty(), "Redis has no response");
    });
}
