//! Gateways on threads of the test, each with a fault of its upstreams, clients or files.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use simnode::node::settings::{Fault, FaultRule};
use simnode::schedule::{Reorg, WorldOptions};
use simnode::world::World;

use test_support::raw::post;
use test_support::wait::pause;

use super::Faulty;
use super::clients::{Clients, read};
use crate::support::relay::Relay;
use crate::support::scene::{READ, Scene, Served, SimNode, body, entry, polled_often};

const SECRETS: [&str; 2] = ["0123456789abcdef", "fedcba9876543210"];

/// A gateway with two nodes and light traffic.
pub(crate) fn healthy(scene: &Scene) -> (Served, [SimNode; 2], Clients) {
    let world = world(Duration::from_secs(1), Vec::new());
    let nodes = ["a", "b"].map(|name| scene.node(name, &world));
    let served = Served::before(&[&nodes[0], &nodes[1]], &polled_often(""));
    let clients = Clients::readers(&served.address, 1);
    (served, nodes, clients)
}

/// Every gateway of this file.
pub(crate) fn all(scene: &Scene) -> Vec<Faulty> {
    vec![
        dead(scene),
        frozen(scene),
        foreign(scene),
        behind(scene),
        rate_limited(scene),
        slow(scene),
        flapping(scene),
        lost_connections(scene),
        reorganised(scene),
        overloaded(scene),
        limited(scene),
        keys(scene),
        memory(scene),
        connections(scene),
        access_log(scene),
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
fn dead(scene: &Scene) -> Faulty {
    let world = fast_world(Vec::new());
    let nodes = ["a", "b"].map(|name| scene.node(name, &world));
    let served = Served::before(&[&nodes[0], &nodes[1]], &polled_often(""));
    let clients = Clients::readers(&served.address, 2);
    let admin = served.admin.clone();
    let alerts = &[
        "WeirUpstreamEjected",
        "WeirGroupWithoutUpstreams",
        "WeirCallsFailing",
        "WeirMethodFailing",
    ];
    Faulty::new("dead", &admin, alerts, move |_| {
        let _kept = (&served, &clients);
        nodes.iter().for_each(SimNode::down);
    })
}

/// The node responds, but its head does not move. (If all nodes were dead, the gateway would have
/// no head, and so no age of its head.)
fn frozen(scene: &Scene) -> Faulty {
    let node = scene.node("a", &world(Duration::from_hours(1), Vec::new()));
    let served = Served::before(&[&node], &polled_often(""));
    let admin = served.admin.clone();
    Faulty::new("frozen", &admin, &["WeirHeadStale"], move |_| {
        let _kept = (&served, &node);
    })
}

/// The nodes have another chain id than configured.
fn foreign(scene: &Scene) -> Faulty {
    let nodes = scene.nodes(["a"]);
    let served = Served::start(&format!("{}{}", polled_often("id = 7\n"), nodes[0].entry("")));
    let admin = served.admin.clone();
    Faulty::new("foreign", &admin, &["WeirUpstreamForeign", "WeirNoHead"], move |_| {
        let _kept = (&served, &nodes);
    })
}

/// A node falls behind.
fn behind(scene: &Scene) -> Faulty {
    let world = fast_world(Vec::new());
    let nodes = ["a", "b"].map(|name| scene.node(name, &world));
    let served = Served::before(&[&nodes[0], &nodes[1]], &polled_often(""));
    let admin = served.admin.clone();
    Faulty::new("behind", &admin, &["WeirUpstreamLagging"], move |_| {
        let _kept = &served;
        nodes[1].set(|settings| settings.lag_blocks = 90);
    })
}

/// A node refuses half of the calls with HTTP 429.
fn rate_limited(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let served = Served::before(&[&node], &polled_often(""));
    let clients = Clients::readers(&served.address, 2);
    let admin = served.admin.clone();
    Faulty::new("rate limited", &admin, &["WeirUpstreamRateLimited"], move |_| {
        let _kept = (&served, &clients);
        let fault = Fault::TooManyRequests { retry_after_s: 0 };
        let method = Some(READ.to_owned());
        node.fail(FaultRule { share: 0.5, method, ..FaultRule::always(fault) });
    })
}

/// A method takes 2.5 seconds.
fn slow(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let served = Served::before(&[&node], &format!("{}[call]\nhedge = false\n", polled_often("")));
    let clients = Clients::readers(&served.address, 8);
    let admin = served.admin.clone();
    Faulty::new("slow", &admin, &["WeirUpstreamSlow", "WeirLatencyHigh"], move |_| {
        let _kept = (&served, &clients);
        node.slow(READ, 2_500.0);
    })
}

/// A node fails half of the calls, is ejected, and works when it is probed.
fn flapping(scene: &Scene) -> Faulty {
    let nodes = scene.nodes(["a", "b"]);
    let health = "[health]\nfailures_max = 1\nbackoff_min = \"10ms\"\nbackoff_max = \"100ms\"\n";
    let served = Served::before(&[&nodes[0], &nodes[1]], &format!("{health}{}", polled_often("")));
    let clients = Clients::readers(&served.address, 4);
    let admin = served.admin.clone();
    Faulty::new("flapping", &admin, &["WeirUpstreamFlapping", "WeirUpstreamFailing"], move |_| {
        let _kept = (&served, &clients);
        let method = Some(READ.to_owned());
        nodes[1].fail(FaultRule { share: 0.5, method, ..FaultRule::always(Fault::Close) });
    })
}

/// WebSockets to a node are cut again and again.
fn lost_connections(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    node.slow(READ, 50.0);
    let relay = Relay::before(&node.address.to_string());
    let upstream = entry("a", &format!("ws://{}", relay.address), "");
    let served = Served::start(&format!("{}{upstream}", polled_often("")));
    served.wait_for_candidates(&["a"]);
    let clients = Clients::readers(&served.address, 4);
    let admin = served.admin.clone();
    Faulty::new("lost connections", &admin, &["WeirUpstreamConnectionsLost"], move |_| {
        let _kept = (&served, &clients, &node);
        for _ in 0..12 {
            drop(TcpStream::connect(&relay.cutter).unwrap());
            pause(Duration::from_millis(300)); // Sleeps: a new connection is opened and used.
        }
    })
}

/// Reorgs, each deeper than the one before.
fn reorganised(scene: &Scene) -> Faulty {
    let reorgs = (0..30).map(|step| Reorg { at_height: 200 + 80 * step, depth: 12 + step });
    let node = scene.node("a", &fast_world(reorgs.collect()));
    let served = Served::before(&[&node], &polled_often(""));
    let admin = served.admin.clone();
    Faulty::new("reorganised", &admin, &["WeirDeepReorg"], move |_| {
        let _kept = (&served, &node);
    })
}

/// A node that works on one call at a time gets many, of two classes.
fn overloaded(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    node.slow(READ, 200.0);
    let [gold, _] = SECRETS;
    let served = Served::before(
        &[&node],
        &format!(
            "{}[overload]\nin_flight_min = 1\nin_flight_max = 1\nqueue_max = 2\n\
             high_tiers = [\"gold\"]\n[access]\nrequired = false\n\
             [[key]]\nname = \"paid\"\nsecret = \"{gold}\"\ntier = \"gold\"\n",
            polled_often("")
        ),
    );
    let admin = served.admin.clone();
    let mut clients = Vec::new();
    let alerts = &["WeirQueueNeverEmpty", "WeirCallsShed", "WeirHighClassShed"];
    Faulty::new("overloaded", &admin, alerts, move |_| {
        let _kept = &node;
        for lines in [String::new(), format!("x-api-key: {gold}\r\n")] {
            let request = move |number| read(number, &lines);
            clients.push(Clients::start(&served.address, 6, Duration::from_millis(20), request));
        }
    })
}

/// A client exceeds its rate, and the tenants have more keys than their zone has memory for.
fn limited(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let served = Served::before(
        &[&node],
        &format!(
            "{}[zone.clients]\nkey = [\"client\"]\nrate = \"5r/s\"\n\
             [zone.tenants]\nkey = [\"header:x-tenant\"]\nrate = \"1r/s\"\nbytes = \"32KiB\"\n\
             [[limit]]\nzone = \"clients\"\nmethods = [\"eth_chainId\"]\nnodelay = true\n\
             [[limit]]\nzone = \"tenants\"\nmethods = [\"{READ}\"]\nnodelay = true\n",
            polled_often("")
        ),
    );
    let admin = served.admin.clone();
    let mut clients = Vec::new();
    Faulty::new("limited", &admin, &["WeirLimitRejecting", "WeirZoneEvicting"], move |_| {
        let _kept = &node;
        let fast = Duration::from_millis(10);
        let chain_id = |_| post("/", &body("eth_chainId", "[]"));
        let tenant = |number| read(number % 1_000, &format!("x-tenant: {number}\r\n"));
        clients.push(Clients::start(&served.address, 1, fast, chain_id));
        clients.push(Clients::start(&served.address, 4, fast, tenant));
    })
}

/// A key uses up its quota, the file of quotas cannot be written, and a client has a wrong key.
fn keys(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let folder = tempfile::tempdir().unwrap();
    let quotas = folder.path().join("quotas");
    std::fs::create_dir(&quotas).unwrap();
    let [small, large] = SECRETS;
    let served = Served::before(
        &[&node],
        &format!(
            "{}[[key]]\nname = \"small\"\nsecret = \"{small}\"\nquota = 100\n\
             [[key]]\nname = \"large\"\nsecret = \"{large}\"\nquota = 100000000\n\
             [quota]\nfile = \"{}\"\ncost = \"call\"\n",
            polled_often(""),
            quotas.join("quota.json").display()
        ),
    );
    let admin = served.admin.clone();
    let mut clients = Vec::new();
    let alerts = &["WeirQuotaNearlyUsed", "WeirQuotaNotWritten", "WeirKeysRejected"];
    Faulty::new("keys", &admin, alerts, move |_| {
        let _kept = (&node, &folder);
        // A file replaces the folder. Missing permissions would not stop a test that runs as root.
        std::fs::remove_dir_all(&quotas).unwrap();
        std::fs::write(&quotas, "").unwrap();
        let request = |number: u64| {
            let key = [SECRETS[0], SECRETS[1], "wrong-wrong-wrong"][(number % 3) as usize];
            read(number, &format!("x-api-key: {key}\r\n"))
        };
        let interval = Duration::from_millis(20);
        clients.push(Clients::start(&served.address, 2, interval, request));
    })
}

/// Clients send long bodies without their last byte.
fn memory(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let server =
        "[server]\ndrain_deadline = \"1s\"\ndrain_linger = \"0s\"\nmemory_max = \"16MiB\"\n";
    let downstream = "[downstream]\nbody_timeout = \"5m\"\n[cache]\nbytes_max = \"1MiB\"\n";
    let text = format!("{downstream}{}{}", polled_often(""), node.entry(""));
    let served = Served::with_server(server, &text);
    let admin = served.admin.clone();
    let mut held = Vec::new();
    Faulty::new("memory", &admin, &["WeirMemoryNearlyFull", "WeirMemoryRefusing"], move |_| {
        let _kept = &node;
        let whole = post("/", &vec![b' '; 1 << 20]);
        for _ in 0..40 {
            let mut stream = TcpStream::connect(&served.address).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            // The gateway may refuse the request before its end.
            let _refused = stream.write_all(&whole[..whole.len() - 1]);
            held.push(stream);
        }
    })
}

/// More clients connect than are allowed.
fn connections(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let text = format!("[downstream]\nconnections_max = 2\n{}", polled_often(""));
    let served = Served::before(&[&node], &text);
    let admin = served.admin.clone();
    let mut clients = Vec::new();
    Faulty::new("connections", &admin, &["WeirConnectionsRefused"], move |_| {
        let _kept = &node;
        clients.push(Clients::readers(&served.address, 5));
    })
}

/// The file of the access log cannot be written.
fn access_log(scene: &Scene) -> Faulty {
    let [node] = scene.nodes(["a"]);
    let text = format!("[access_log]\nfile = \"/dev/full\"\n{}", polled_often(""));
    let served = Served::before(&[&node], &text);
    let admin = served.admin.clone();
    let mut clients = Vec::new();
    Faulty::new("access log", &admin, &["WeirAccessLogDropped"], move |_| {
        let _kept = &node;
        clients.push(Clients::readers(&served.address, 2));
    })
}
