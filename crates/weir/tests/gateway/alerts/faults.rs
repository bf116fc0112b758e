//! Gateways in the test's process, each with a fault of its upstreams, clients or files. Each
//! function starts one gateway; its comment names the fault that `cause_fault` causes.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use simnode::node::settings::{Fault, FaultRule};
use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;

use test_support::raw::post;
use test_support::wait::pause;

use super::FaultyGateway;
use super::clients::{Clients, read};
use crate::support::disconnecting_proxy::DisconnectingProxy;
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, SimNode, TestGateway, body, chain_polled_often, upstream_toml,
};

const SECRETS: [&str; 2] = ["0123456789abcdef", "fedcba9876543210"];

/// A gateway with two nodes and light traffic.
pub(crate) fn healthy(runtime: &NodeRuntime) -> (TestGateway, [SimNode; 2], Clients) {
    let world = world(Duration::from_secs(1), Vec::new());
    let nodes = ["a", "b"].map(|name| runtime.node(name, &world));
    let gateway = TestGateway::in_front_of(&[&nodes[0], &nodes[1]], &chain_polled_often(""));
    let clients = Clients::start_readers(&gateway.address, 1);
    (gateway, nodes, clients)
}

/// Every gateway of this file.
pub(crate) fn all(runtime: &NodeRuntime) -> Vec<FaultyGateway> {
    vec![
        dead(runtime),
        frozen(runtime),
        foreign(runtime),
        behind(runtime),
        rate_limited(runtime),
        slow(runtime),
        flapping(runtime),
        lost_connections(runtime),
        reorganised(runtime),
        overloaded(runtime),
        limited(runtime),
        keys(runtime),
        memory(runtime),
        connections(runtime),
        access_log(runtime),
    ]
}

/// A chain that makes a block every 50 ms, with these reorgs.
fn fast_world(reorgs: Vec<Reorg>) -> Arc<World> {
    world(Duration::from_millis(50), reorgs)
}

fn world(block_time: Duration, reorgs: Vec<Reorg>) -> Arc<World> {
    let options = WorldOptions { height_start: 100, block_time, reorgs, ..WorldOptions::default() };
    Arc::new(World::new(options).unwrap())
}

/// All nodes die.
fn dead(runtime: &NodeRuntime) -> FaultyGateway {
    let world = fast_world(Vec::new());
    let nodes = ["a", "b"].map(|name| runtime.node(name, &world));
    let gateway = TestGateway::in_front_of(&[&nodes[0], &nodes[1]], &chain_polled_often(""));
    let clients = Clients::start_readers(&gateway.address, 2);
    let admin = gateway.admin.clone();
    let alerts = &[
        "WeirUpstreamEjected",
        "WeirGroupWithoutUpstreams",
        "WeirCallsFailing",
        "WeirMethodFailing",
    ];
    FaultyGateway::new("dead", &admin, alerts, move |_| {
        let _kept = (&gateway, &clients);
        nodes.iter().for_each(SimNode::stop_listening);
    })
}

/// The node responds, but its newest block stays the same. A dead node would not do, because the
/// gateway would then have no newest block whose age it could report.
fn frozen(runtime: &NodeRuntime) -> FaultyGateway {
    let node = runtime.node("a", &world(Duration::from_hours(1), Vec::new()));
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_often(""));
    let admin = gateway.admin.clone();
    FaultyGateway::new("frozen", &admin, &["WeirHeadStale"], move |_| {
        let _kept = (&gateway, &node);
    })
}

/// The nodes have another chain id than configured.
fn foreign(runtime: &NodeRuntime) -> FaultyGateway {
    let nodes = runtime.nodes(["a"]);
    let chain = chain_polled_often("id = 7\n");
    let gateway = TestGateway::start(&format!("{chain}{}", nodes[0].to_toml("")));
    let admin = gateway.admin.clone();
    FaultyGateway::new("foreign", &admin, &["WeirUpstreamForeign", "WeirNoHead"], move |_| {
        let _kept = (&gateway, &nodes);
    })
}

/// A node falls behind.
fn behind(runtime: &NodeRuntime) -> FaultyGateway {
    let world = fast_world(Vec::new());
    let nodes = ["a", "b"].map(|name| runtime.node(name, &world));
    let gateway = TestGateway::in_front_of(&[&nodes[0], &nodes[1]], &chain_polled_often(""));
    let admin = gateway.admin.clone();
    FaultyGateway::new("behind", &admin, &["WeirUpstreamLagging"], move |_| {
        let _kept = &gateway;
        nodes[1].set(|settings| settings.lag_blocks = 90);
    })
}

/// A node refuses half of the calls with HTTP 429.
fn rate_limited(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_often(""));
    let clients = Clients::start_readers(&gateway.address, 2);
    let admin = gateway.admin.clone();
    FaultyGateway::new("rate limited", &admin, &["WeirUpstreamRateLimited"], move |_| {
        let _kept = (&gateway, &clients);
        let fault = Fault::TooManyRequests { retry_after_s: 0 };
        let method = Some(GET_BALANCE.to_owned());
        node.set_fault(FaultRule { share: 0.5, method, ..FaultRule::always(fault) });
    })
}

/// A method takes 2.5 seconds.
fn slow(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let text = format!("{}[call]\nhedge = false\n", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let clients = Clients::start_readers(&gateway.address, 8);
    let admin = gateway.admin.clone();
    FaultyGateway::new("slow", &admin, &["WeirUpstreamSlow", "WeirLatencyHigh"], move |_| {
        let _kept = (&gateway, &clients);
        node.set_latency(GET_BALANCE, 2_500.0);
    })
}

/// A node fails half of the calls, so the gateway ejects it. It does not fail the gateway's probes,
/// so the gateway uses it again.
fn flapping(runtime: &NodeRuntime) -> FaultyGateway {
    let nodes = runtime.nodes(["a", "b"]);
    let health = "[health]\nfailures_max = 1\nbackoff_min = \"10ms\"\nbackoff_max = \"100ms\"\n";
    let text = format!("{health}{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&nodes[0], &nodes[1]], &text);
    let clients = Clients::start_readers(&gateway.address, 4);
    let admin = gateway.admin.clone();
    let alerts = &["WeirUpstreamFlapping", "WeirUpstreamFailing"];
    FaultyGateway::new("flapping", &admin, alerts, move |_| {
        let _kept = (&gateway, &clients);
        let method = Some(GET_BALANCE.to_owned());
        nodes[1].set_fault(FaultRule { share: 0.5, method, ..FaultRule::always(Fault::Close) });
    })
}

/// WebSocket connections to a node are closed again and again.
fn lost_connections(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    node.set_latency(GET_BALANCE, 50.0);
    let proxy = DisconnectingProxy::in_front_of(&node.address.to_string());
    let upstream = upstream_toml("a", &format!("ws://{}", proxy.address), "");
    let gateway = TestGateway::start(&format!("{}{upstream}", chain_polled_often("")));
    gateway.wait_for_candidates(&["a"]);
    let clients = Clients::start_readers(&gateway.address, 4);
    let admin = gateway.admin.clone();
    FaultyGateway::new("lost connections", &admin, &["WeirUpstreamConnectionsLost"], move |_| {
        let _kept = (&gateway, &clients, &node);
        for _ in 0..12 {
            drop(TcpStream::connect(&proxy.disconnect_address).unwrap());
            pause(Duration::from_millis(300)); // Sleeps: a new connection is opened and used.
        }
    })
}

/// Reorgs, each deeper than the one before.
fn reorganised(runtime: &NodeRuntime) -> FaultyGateway {
    let reorgs = (0..30).map(|step| Reorg { at_height: 200 + 80 * step, depth: 12 + step });
    let node = runtime.node("a", &fast_world(reorgs.collect()));
    let gateway = TestGateway::in_front_of(&[&node], &chain_polled_often(""));
    let admin = gateway.admin.clone();
    FaultyGateway::new("reorganised", &admin, &["WeirDeepReorg"], move |_| {
        let _kept = (&gateway, &node);
    })
}

/// The gateway may send only one call at a time to the node. Clients send many calls, of the high
/// and the normal priority class.
fn overloaded(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    node.set_latency(GET_BALANCE, 200.0);
    let [gold, _] = SECRETS;
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nqueue_max = 2\n\
             high_tiers = [\"gold\"]\n[access]\nrequired = false\n\
             [[key]]\nname = \"paid\"\nsecret = \"{gold}\"\ntier = \"gold\"\n",
            chain_polled_often("")
        ),
    );
    let admin = gateway.admin.clone();
    let mut clients = Vec::new();
    let alerts = &["WeirQueueNeverEmpty", "WeirCallsShed", "WeirHighClassShed"];
    FaultyGateway::new("overloaded", &admin, alerts, move |_| {
        let _kept = &node;
        for lines in [String::new(), format!("x-api-key: {gold}\r\n")] {
            let request = move |number| read(number, &lines);
            clients.push(Clients::start(&gateway.address, 6, Duration::from_millis(20), request));
        }
    })
}

/// A client exceeds its rate limit, and there are more tenants than their limit zone has memory
/// for. A zone holds the counters of a limit, one for each key.
fn limited(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[zone.clients]\nkey = [\"client\"]\nrate = \"5r/s\"\n\
             [zone.tenants]\nkey = [\"header:x-tenant\"]\nrate = \"1r/s\"\nbytes = \"32KiB\"\n\
             [[limit]]\nzone = \"clients\"\nmethods = [\"eth_chainId\"]\nnodelay = true\n\
             [[limit]]\nzone = \"tenants\"\nmethods = [\"{GET_BALANCE}\"]\nnodelay = true\n",
            chain_polled_often("")
        ),
    );
    let admin = gateway.admin.clone();
    let mut clients = Vec::new();
    FaultyGateway::new("limited", &admin, &["WeirLimitRejecting", "WeirZoneEvicting"], move |_| {
        let _kept = &node;
        let fast = Duration::from_millis(10);
        let chain_id = |_| post("/", &body("eth_chainId", "[]"));
        let tenant = |number| read(number % 1_000, &format!("x-tenant: {number}\r\n"));
        clients.push(Clients::start(&gateway.address, 1, fast, chain_id));
        clients.push(Clients::start(&gateway.address, 4, fast, tenant));
    })
}

/// Clients use up a key's quota, the gateway cannot write the file of quotas, and a client has a
/// wrong key.
fn keys(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let folder = tempfile::tempdir().unwrap();
    let quotas = folder.path().join("quotas");
    std::fs::create_dir(&quotas).unwrap();
    let [small, large] = SECRETS;
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[[key]]\nname = \"small\"\nsecret = \"{small}\"\nquota = 100\n\
             [[key]]\nname = \"large\"\nsecret = \"{large}\"\nquota = 100000000\n\
             [quota]\nfile = \"{}\"\ncost = \"call\"\n",
            chain_polled_often(""),
            quotas.join("quota.json").display()
        ),
    );
    let admin = gateway.admin.clone();
    let mut clients = Vec::new();
    let alerts = &["WeirQuotaNearlyUsed", "WeirQuotaNotWritten", "WeirKeysRejected"];
    FaultyGateway::new("keys", &admin, alerts, move |_| {
        let _kept = (&node, &folder);
        // A file replaces the folder. Missing permissions would not stop a test that runs as root.
        std::fs::remove_dir_all(&quotas).unwrap();
        std::fs::write(&quotas, "").unwrap();
        let request = |number: u64| {
            let key = [SECRETS[0], SECRETS[1], "wrong-wrong-wrong"][(number % 3) as usize];
            read(number, &format!("x-api-key: {key}\r\n"))
        };
        let interval = Duration::from_millis(20);
        clients.push(Clients::start(&gateway.address, 2, interval, request));
    })
}

/// Clients send long request bodies without their last byte, so the gateway must buffer them.
fn memory(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let server =
        "[server]\ndrain_deadline = \"1s\"\ndrain_linger = \"0s\"\nmemory_max = \"16MiB\"\n";
    let downstream = "[downstream]\nbody_timeout = \"5m\"\n[cache]\nbytes_max = \"1MiB\"\n";
    let text = format!("{downstream}{}{}", chain_polled_often(""), node.to_toml(""));
    let gateway = TestGateway::with_server_table(server, &text);
    let admin = gateway.admin.clone();
    let mut held = Vec::new();
    FaultyGateway::new(
        "memory",
        &admin,
        &["WeirMemoryNearlyFull", "WeirMemoryRefusing"],
        move |_| {
            let _kept = &node;
            // Above its bound of 5.25 MiB the gateway frees memory down to 4.5 MiB. The alert needs
            // 4.2 MiB, so the bodies are small.
            let whole = post("/", &vec![b' '; 1 << 17]);
            for _ in 0..100 {
                let mut stream = TcpStream::connect(&gateway.address).unwrap();
                stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
                // The gateway may refuse the request before its end.
                let _refused = stream.write_all(&whole[..whole.len() - 1]);
                held.push(stream);
            }
        },
    )
}

/// More clients connect than are allowed.
fn connections(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let text = format!("[downstream]\nconnections_max = 2\n{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let admin = gateway.admin.clone();
    let mut clients = Vec::new();
    FaultyGateway::new("connections", &admin, &["WeirConnectionsRefused"], move |_| {
        let _kept = &node;
        clients.push(Clients::start_readers(&gateway.address, 5));
    })
}

/// The gateway cannot write the file of the access log.
fn access_log(runtime: &NodeRuntime) -> FaultyGateway {
    let [node] = runtime.nodes(["a"]);
    let text = format!("[access_log]\nfile = \"/dev/full\"\n{}", chain_polled_often(""));
    let gateway = TestGateway::in_front_of(&[&node], &text);
    let admin = gateway.admin.clone();
    let mut clients = Vec::new();
    FaultyGateway::new("access log", &admin, &["WeirAccessLogDropped"], move |_| {
        let _kept = &node;
        clients.push(Clients::start_readers(&gateway.address, 2));
    })
}
