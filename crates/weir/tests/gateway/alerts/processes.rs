//! Gateways that lose Redis or the database of their index, and gateways that run as processes.

use std::fs::File;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use test_support::port::ReservedPort;
use test_support::postgres::Postgres;
use test_support::prometheus::Prometheus;
use test_support::raw::post;
use test_support::running::{Weir, command_killed_with_test, spawn, weir};
use test_support::wait::wait_until;

use super::FaultyGateway;
use super::clients::{Clients, read};
use crate::support::harness::{
    GET_BALANCE, NodeRuntime, TestGateway, balance_params, body, chain_polled_often,
};
use crate::support::redis_server::{DelayProxy, Redis};

const SECRET: &str = "0123456789abcdef";

/// Every gateway of this file. Returns `None` if a program is missing.
pub(crate) fn all(runtime: &NodeRuntime) -> Option<Vec<FaultyGateway>> {
    Some(vec![
        lost_redis(runtime)?,
        slow_redis(runtime)?,
        lost_index()?,
        handshakes(),
        refused_reload(),
        down(),
        restarting(),
    ])
}

/// Redis dies while the gateway uses it for the cache, for the counters of a limit, and for quotas.
fn lost_redis(runtime: &NodeRuntime) -> Option<FaultyGateway> {
    let mut redis = Redis::start(&[])?;
    let [node] = runtime.nodes(["a"]);
    let folder = tempfile::tempdir().unwrap();
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[redis]\nurl = \"{}\"\ntimeout = \"50ms\"\ngateways = 2\nbackoff = \"100ms\"\n\
             [zone.clients]\nkey = [\"client\"]\nrate = \"1000r/s\"\nshared = true\n\
             [[limit]]\nzone = \"clients\"\nburst = 1000\nnodelay = true\n\
             [[key]]\nname = \"alice\"\nsecret = \"{SECRET}\"\nquota = 100000000\n\
             [quota]\nfile = \"{}\"\nshared = true\n",
            chain_polled_often(""),
            redis.url(),
            folder.path().join("quota.json").display()
        ),
    );
    let request = |number| read(number, &format!("x-api-key: {SECRET}\r\n"));
    let clients = Clients::start(&gateway.address, 2, Duration::from_millis(20), request);
    let admin = gateway.admin.clone();
    let alerts = &["WeirRedisUnavailable", "WeirLimitsLocalOnly", "WeirQuotaLocalOnly"];
    Some(FaultyGateway::new("lost redis", &admin, alerts, move |_| {
        let _kept = (&node, &folder, &gateway, &clients);
        redis.kill();
    }))
}

/// Redis responds too late, but the circuit breaker stays closed.
fn slow_redis(runtime: &NodeRuntime) -> Option<FaultyGateway> {
    let redis = Redis::start(&[])?;
    let [node] = runtime.nodes(["a"]);
    let proxy = DelayProxy::in_front_of(redis.port);
    let gateway = TestGateway::in_front_of(
        &[&node],
        &format!(
            "{}[redis]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"20ms\"\nfailures_max = 1000\n",
            chain_polled_often(""),
            proxy.port
        ),
    );
    let request = |number| post("/", &body(GET_BALANCE, &balance_params(number, "0x10")));
    let clients = Clients::start(&gateway.address, 2, Duration::from_millis(50), request);
    let admin = gateway.admin.clone();
    Some(FaultyGateway::new("slow redis", &admin, &["WeirRedisFailing"], move |_| {
        let _kept = (&node, &redis, &gateway, &clients);
        proxy.set_delay_ms(50);
    }))
}

/// The database of the index dies.
fn lost_index() -> Option<FaultyGateway> {
    let mut server = Postgres::start()?;
    let url = server.url("chain");
    let node = Weir::node().args(&["--head", "300", "--block-time", "1h"]).start();
    let mut sync = Command::new(weir());
    sync.args(["index", "sync", "--quiet", "--from", &node.url(), "--end", "50", "--db", &url]);
    let synced = sync.output().unwrap();
    assert!(synced.status.success(), "{}", String::from_utf8_lossy(&synced.stderr));
    let gateway = Weir::serve().admin().config(&format!(
        "[[upstream]]\nname = \"a\"\nurl = \"{}\"\n[index]\ndb = \"{url}\"\n",
        node.url()
    ));
    let gateway = gateway.start();
    let request = |number| {
        // Each call has another address, so the memory cache never has the response.
        let range = "\"fromBlock\":\"0x1\",\"toBlock\":\"0x20\"";
        post("/", &body("eth_getLogs", &format!("[{{{range},\"address\":\"0x{number:040x}\"}}]")))
    };
    let clients = Clients::start(&gateway.address, 2, Duration::from_millis(50), request);
    let admin = gateway.admin.clone().unwrap();
    Some(FaultyGateway::new("lost index", &admin, &["WeirIndexFailing"], move |_| {
        let _kept = (&node, &gateway, &clients);
        server.kill();
    }))
}

/// The gateway's certificate has expired, and clients that do not speak TLS connect to a TLS port.
fn handshakes() -> FaultyGateway {
    let node = Weir::node().start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (chain, key) = (path("cert.pem"), path("key.pem"));
    let mut certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    certificate.not_before = date_time_ymd(2000, 1, 1);
    certificate.not_after = date_time_ymd(2001, 1, 1);
    let pair = KeyPair::generate().unwrap();
    std::fs::write(&chain, certificate.self_signed(&pair).unwrap().pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    let gateway = Weir::serve().admin().listen_as_configured().config(&format!(
        "[server]\nlisten = \"off\"\nlisten_tls = \"127.0.0.1:0\"\n\
         [[certificate]]\nchain_file = \"{chain}\"\nkey_file = \"{key}\"\n\
         [[upstream]]\nname = \"a\"\nurl = \"{}\"\n",
        node.url()
    ));
    let gateway = gateway.start();
    let admin = gateway.admin.clone().unwrap();
    let mut clients = Vec::new();
    let alerts = &["WeirTlsHandshakesFailing", "WeirCertificateExpires"];
    FaultyGateway::new("handshakes", &admin, alerts, move |_| {
        let _kept = (&node, &folder);
        let interval = Duration::from_millis(100);
        clients.push(Clients::start(&gateway.address, 2, interval, |number| read(number, "")));
    })
}

/// The configuration file has an error when the gateway reloads it.
fn refused_reload() -> FaultyGateway {
    let node = Weir::node().start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, format!("[[upstream]]\nname = \"a\"\nurl = \"{}\"\n", node.url()))
        .unwrap();
    let gateway = Weir::serve().admin().file(&file).start();
    let admin = gateway.admin.clone().unwrap();
    FaultyGateway::new("refused reload", &admin, &["WeirReloadFailed"], move |_| {
        let _kept = (&node, &folder);
        std::fs::write(&file, "nonsense = 1\n").unwrap();
        gateway.signal("-HUP");
    })
}

/// The gateway is killed.
fn down() -> FaultyGateway {
    let node = Weir::node().start();
    let gateway = Weir::serve().admin().upstreams(&[node.url()]).start();
    let admin = gateway.admin.clone().unwrap();
    FaultyGateway::new("down", &admin, &["WeirDown"], move |_| {
        let _kept = &node;
        gateway.signal("-KILL");
    })
}

/// The gateway is killed and started again, three times.
fn restarting() -> FaultyGateway {
    let node = Weir::node().start();
    let port = ReservedPort::new();
    let admin = port.address.to_string();
    let url = node.url();
    let start = {
        let admin = admin.clone();
        move || {
            let mut command = command_killed_with_test(&weir());
            command.args(["serve", "--listen", "127.0.0.1:0", "--admin", &admin]);
            command.args(["--upstream", &url]);
            let null = || File::create("/dev/null").unwrap();
            command.stdin(Stdio::null()).stdout(null()).stderr(null());
            let child = spawn(command).unwrap();
            wait_until("the admin address accepts connections", || {
                TcpStream::connect(&admin).is_ok()
            });
            child
        }
    };
    let mut gateway = start();
    let instance = admin.clone();
    FaultyGateway::new("restarting", &admin, &["WeirRestarting"], move |prometheus: &Prometheus| {
        let _kept = (&node, &port);
        let uptime = format!("weir_uptime_seconds{{instance=\"{instance}\"}}");
        for restarts in 1..=3 {
            // Prometheus counts a restart as a drop of the uptime. So the uptime must grow before
            // the next restart.
            let old = format!("{uptime} > 2");
            wait_until("the uptime is scraped", || !prometheus.values(&old).is_empty());
            gateway.kill().unwrap();
            gateway.wait().unwrap();
            gateway = start();
            let counted = format!("resets({uptime}[5m]) >= {restarts}");
            wait_until("the restart is scraped", || !prometheus.values(&counted).is_empty());
        }
    })
}
