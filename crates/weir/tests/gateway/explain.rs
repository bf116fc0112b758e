//! Goal: `weir explain` reports what serving does.
//!
//! Method: random configurations with keys, rules, limits and method lists. Each has a gateway in
//! virtual time, in front of simulated nodes, and an explainer. Random requests are explained and
//! then served. The response must be what the explanation says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::config::{AdminOverride, Config, Overrides};
use gateway::explain::{CallExplanation, Explainer, Refusal, Resolution};
use gateway::policy::access::is_subscription_method;
use gateway::policy::cacheable::CacheRule;
use gateway::policy::plan::Plan;
use gateway::runtime::simulated::Simulation;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use simnode::node::Node;
use simnode::world::World;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::{Instant, sleep};

use crate::absence::{connector, world};
use crate::sim::connection::{Connection, HttpResponse};

const CONFIGS: u64 = 200;
const REQUESTS_PER_CONFIG: usize = 8;

/// The longest time of a call that no limit delays. Nodes respond at once.
const UNDELAYED_MAX: Duration = Duration::from_millis(100);

const UPSTREAMS: [&str; 4] = ["main-a", "heavy-a", "main-b", "heavy-b"];
/// Names of the keys, and their secrets.
const KEYS: [(&str, &str); 3] = [
    ("alice", "weir_alice_0123456789abcdef"),
    ("bob", "weir_bob_0123456789abcdef"),
    ("carol", "weir_carol_0123456789abcdef"),
];
const METHODS: [&str; 12] = [
    "eth_chainId",
    "eth_blockNumber",
    "eth_getBalance",
    "eth_getBlockByNumber",
    "eth_getBlockReceipts",
    "eth_getLogs",
    "eth_gasPrice",
    "eth_sendRawTransaction",
    "eth_subscribe",
    "eth_newBlockFilter",
    "admin_peers",
    "foo_bar",
];

/// Random choices.
struct Choices(SmallRng);

impl Choices {
    fn one_in(&mut self, count: u32) -> bool {
        self.0.random_ratio(1, count)
    }

    fn pick<'a, T: ?Sized>(&mut self, values: &[&'a T]) -> &'a T {
        values[self.0.random_range(0..values.len())]
    }

    /// Returns `line` with a line break for one in `count` cases, and else an empty text.
    fn line(&mut self, count: u32, line: &str) -> String {
        if self.one_in(count) { format!("{line}\n") } else { String::new() }
    }

    /// Returns a configuration with `[quota]` in this folder. Limits delay or count calls in
    /// flight only with `single`, because the calls of a batch run at the same time.
    fn config(&mut self, folder: &Path, single: bool) -> String {
        let mut text = String::from("[access]\n");
        text += &self.line(2, "required = false");
        text += &self.line(4, "clients_deny = ['198.51.100.0/24']");
        text += &self.line(4, "methods_deny = ['eth_gasPrice']");
        text += &self.line(6, "methods_allow = ['eth_*', 'admin_*']");
        text += &self.line(3, "node_methods = ['admin_*']");
        text += &self.line(4, "transactions = false");
        for (name, paths) in [("a", "['/', '/a']"), ("b", "['/b']")] {
            text += &format!(
                "[chain.{name}]\npaths = {paths}\ndefault = false\nblock_time = '500ms'\n\
                 poll_interval = '100ms'\n"
            );
            text += &self.line(5, "methods_deny = ['eth_getBalance']");
        }
        for name in UPSTREAMS {
            let chain = &name[name.len() - 1..];
            text += &format!(
                "[[upstream]]\nname = '{name}'\nchain = '{chain}'\nurl = 'http://{name}.example'\n"
            );
            let (group, _) = name.split_once('-').unwrap();
            let methods = if group == "main" { "*" } else { "eth_getBlockRe*" };
            text += &format!(
                "[[group]]\nname = '{group}'\nchain = '{chain}'\nupstreams = ['{name}']\n\
                 methods = ['{methods}']\n"
            );
            text += &self.line(5, "methods_deny = ['eth_getBlock*']");
        }
        if self.one_in(2) {
            text += &format!("[quota]\nfile = '{}'\n", folder.join("quota.json").display());
        }
        let has_quota = text.contains("[quota]");
        for (name, secret) in KEYS {
            text += &format!("[[key]]\nname = '{name}'\nsecret = '{secret}'\n");
            text += &self.line(4, "chains = ['b']");
            text += &self.line(4, "methods_deny = ['eth_getBlockByNumber']");
            text += &self.line(6, "node_methods = ['admin_*']");
            text += &self.line(6, "transactions = true");
            text += &self.line(6, "clients = ['192.0.2.0/24']");
            text += &self.line(12, "expires = '2020-01-01T00:00:00Z'");
            text += &self.line(2, "tier = 'gold'");
            text += &self.line(3, "rate = '2r/s'\nburst = 1");
            if has_quota {
                text += &self.line(2, "quota = 4");
            }
        }
        text += &self.rules();
        text += &self.limits(single);
        text
    }

    fn rules(&mut self) -> String {
        let mut text = String::new();
        for number in 0..self.0.random_range(0..5) {
            text += &format!("[[rule]]\nname = 'rule-{number}'\n");
            text += &self.line(4, "hosts = ['*.example']");
            text += &self.line(4, "headers = ['x-client: mobile*']");
            text += &self.line(5, "keys = ['alice', 'carol']");
            text += &self.line(5, "tiers = ['gold']");
            text += &self.line(4, "methods = ['eth_getB*', 'eth_getFilterLogs']");
            text += &self.line(8, "first_param = '0x10'");
            text += &self.line(4, "share = 0.5");
            text += &self.line(8, "share_of = 'call'");
            text += &match self.0.random_range(0..4) {
                0 => format!("deny = 451\nmessage = 'rule {number}'\n"),
                1 => "path = '/old'\nrewrite = '/b'\n".to_owned(),
                2 => "path = '/a'\nrewrite = '/b'\n".to_owned(),
                _ => format!("group = '{}'\n", self.pick(&["main", "heavy"])),
            };
        }
        text
    }

    fn limits(&mut self, single: bool) -> String {
        let mut text = String::new();
        for number in 0..self.0.random_range(0..4) {
            let key = self.pick(&["client", "key", "method", "chain", "header:x-client"]);
            text += &format!("[zone.zone-{number}]\nkey = ['{key}']\n");
            let concurrent = single && self.one_in(4);
            if !concurrent {
                text += &format!("rate = '{}'\n", self.pick(&["2r/s", "5r/s"]));
                text += &self.line(3, "cost = 'weight'");
            }
            for _ in 0..self.0.random_range(1..3) {
                text += &format!("[[limit]]\nzone = 'zone-{number}'\n");
                text += &self.line(3, "chain = 'a'");
                text += &self.line(4, "methods = ['eth_get*']");
                text += &self.line(4, "status = 503");
                text += &self.line(5, "dry_run = true");
                if concurrent {
                    text += "concurrent = 1\n";
                } else {
                    text += &format!("burst = {}\n", self.pick(&["0", "2", "5", "60"]));
                    text += if single && self.one_in(2) { "" } else { "nodelay = true\n" };
                }
            }
        }
        if self.one_in(4) {
            text += "[zone.guesses]\nkey = ['client']\nrate = '1r/m'\n\
                     [[limit]]\nzone = 'guesses'\nfailures = true\n";
        }
        text
    }

    fn call(&mut self, id: usize) -> Value {
        let method = self.pick(&METHODS);
        let block = format!("{:#x}", self.0.random_range(0x10..0x14));
        let account = format!("0x{:040x}", self.0.random_range(1..4));
        let params = match method {
            "eth_getBalance" => json!([account, self.pick(&["latest", &*block])]),
            "eth_getBlockByNumber" => json!([block, false]),
            "eth_getBlockReceipts" => json!([block]),
            "eth_getLogs" => json!([{ "fromBlock": block, "toBlock": block }]),
            "eth_sendRawTransaction" => json!(["0x00"]),
            "eth_subscribe" => json!(["newHeads"]),
            _ => json!([]),
        };
        if self.one_in(25) {
            return json!(5);
        }
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }

    fn request(&mut self, single: bool) -> TestRequest {
        let key = self.0.random_range(0..8) / 2;
        let mut headers = Vec::new();
        if self.one_in(2) {
            headers.push(format!("x-client: {}", self.pick(&["mobile/2", "desktop"])));
        }
        let is_wrong = key == KEYS.len() && self.one_in(3);
        if is_wrong {
            headers.push("x-api-key: weir_wrong_0123456789abcdef".to_owned());
        }
        let body = match self.0.random_range(0..30) {
            0 => "{".to_owned(),
            number if number < 10 && !single => {
                let count = self.0.random_range(1..4);
                Value::from_iter((0..count).map(|id| self.call(id))).to_string()
            }
            _ => self.call(0).to_string(),
        };
        TestRequest {
            client: self.pick(&["192.0.2.1", "192.0.2.1", "198.51.100.1"]).parse().unwrap(),
            key: (key < KEYS.len()).then_some(key),
            host: self.pick(&["weir", "rpc.example:80"]),
            path: self.pick(&["/", "/a", "/a", "/a", "/b", "/b", "/b", "/old"]),
            headers,
            body,
        }
    }
}

#[derive(Debug)]
struct TestRequest {
    client: IpAddr,
    /// Index of the key in [`KEYS`].
    key: Option<usize>,
    host: &'static str,
    path: &'static str,
    headers: Vec<String>,
    body: String,
}

impl TestRequest {
    /// Returns the head of the request, with these further header lines.
    fn head(&self, lines: &str) -> String {
        let TestRequest { host, path, headers, .. } = self;
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}{lines}\r\n")
    }

    fn explain(&self, explainer: &Explainer) -> Result<Vec<CallExplanation<'_>>, Refusal> {
        explainer.explain(self.client, self.key, &self.head(""), self.body.as_bytes())
    }

    async fn send(&self, gateway: &Simulation) -> HttpResponse {
        let mut connection = Connection::new(gateway.connect(self.client));
        let mut lines =
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", self.body.len());
        if let Some(key) = self.key {
            lines += &format!("x-api-key: {}\r\n", KEYS[key].1);
        }
        let request = self.head(&lines) + &self.body;
        connection.send_raw(request.as_bytes()).await.unwrap();
        connection.receive().await.unwrap()
    }
}

/// Returns the code and message of a JSON-RPC error; `None` for a result.
fn error(response: &Value) -> Option<(i64, &str)> {
    let error = response.get("error")?;
    Some((error["code"].as_i64()?, error["message"].as_str()?))
}

/// Asserts that a response is a refusal with this code and message.
fn check_refusal(refusal: &Refusal, response: &Value) {
    assert_eq!(error(response), Some((refusal.code.0.into(), &*refusal.message)));
    let refused_by = refusal.refused_by.map(|refused_by| refused_by.as_str());
    assert_eq!(response["error"]["data"]["refused_by"].as_str(), refused_by);
}

/// Asserts that a single call is served as explained.
fn check_served(
    config: &Config,
    explanation: &CallExplanation<'_>,
    resolution: &Resolution,
    http: &HttpResponse,
    response: &Value,
) {
    let method = &*explanation.call.as_ref().unwrap().method;
    if resolution.is_sticky && is_subscription_method(method) {
        assert_eq!(error(response), Some((-32601, "notifications not supported")));
        return;
    }
    if resolution.is_sticky && method == "eth_newBlockFilter" {
        assert_eq!((error(response), &*http.node), (None, "-"));
        return;
    }
    match &resolution.plan {
        Plan::Head(_) => {
            assert_eq!((&*http.cache, &*http.node, error(response)), ("hit", "-", None));
            return;
        }
        Plan::Forward => assert_eq!(http.cache, "bypass"),
        Plan::Lookup(lookup) if lookup.caching.rule == CacheRule::Never => {
            assert_eq!(http.cache, "bypass");
        }
        Plan::Lookup(_) | Plan::Logs(_) => {
            assert!(["hit", "miss"].contains(&&*http.cache), "{}", http.cache);
        }
    }
    let group = &config.groups[resolution.group];
    assert_eq!(group.chain, explanation.chain);
    // Another group of the chain may have stored a cached response.
    let upstreams = match &*http.cache {
        "hit" => &config.chains[explanation.chain].upstreams,
        _ => &group.upstreams,
    };
    let names: Vec<&str> = upstreams.iter().map(|index| &*config.upstreams[*index].name).collect();
    let has_none = http.cache == "hit" && http.node == "-";
    assert!(names.contains(&&*http.node) || has_none, "{} is not in {names:?}", http.node);
}

/// Returns the kind of a refusal, so that the test can check that each kind occurs.
fn kind(refusal: &Refusal) -> String {
    match (refusal.code.0, refusal.refused_by) {
        (-32600, _) if refusal.status == 451 => "a rule".to_owned(),
        (_, Some(refused_by)) => refused_by.as_str().to_owned(),
        _ => refusal.message.clone(),
    }
}

/// Serves random requests to one random configuration. Counts the kinds of outcomes.
async fn run(seed: u64, world: &Arc<World>, kinds: &mut BTreeMap<String, usize>) {
    let mut choices = Choices(SmallRng::seed_from_u64(seed));
    let folder = tempfile::tempdir().unwrap();
    let single = choices.one_in(2);
    let text = choices.config(folder.path(), single);
    let config = Config::from_text("explain", &text, folder.path(), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{text}\n{faults}"));
    let config = config.with_overrides(&Overrides {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        admin: AdminOverride::Off,
        threads: Some(1),
        no_cache: false,
    });
    let connectors = UPSTREAMS.map(|name| connector(&Node::new(name, Arc::clone(world))));
    let gateway = Simulation::start(config.clone(), Vec::from(connectors), seed);
    // Sleeps: virtual time until the gateway knows the heads.
    sleep(Duration::from_secs(2)).await;
    let explainer = Explainer::new(config.clone(), gateway.head().unwrap());
    let mut count = |kind: &str| *kinds.entry(kind.to_owned()).or_default() += 1;
    // For each zone, the number of calls that its enforced limits admitted, and of all its calls.
    let mut zone_calls = vec![(0, 0); config.zones.len()];
    for _ in 0..REQUESTS_PER_CONFIG {
        let request = choices.request(single);
        println!("seed {seed}: {request:?}\n{text}");
        let explained = request.explain(&explainer);
        println!("{explained:?}");
        let started = Instant::now();
        let http = request.send(&gateway).await;
        let duration = started.elapsed();
        let response: Value = serde_json::from_slice(&http.body).unwrap();
        println!("{} {} {} {response}", http.status, http.cache, http.node);
        let explanations = match explained {
            Ok(explanations) => explanations,
            Err(refusal) => {
                assert_eq!(http.status, refusal.status);
                check_refusal(&refusal, &response);
                count(&kind(&refusal));
                continue;
            }
        };
        for explanation in &explanations {
            let limited = matches!(&explanation.decision, Err(refusal) if refusal.code.0 == -32005
                && !refusal.message.contains("quota"));
            for applied in &explanation.steps.limits {
                let (admitted, all) = &mut zone_calls[config.limits[applied.index].zone];
                *admitted += u64::from(!limited && !config.limits[applied.index].dry_run);
                *all += 1;
            }
        }
        if let Some(responses) = response.as_array() {
            assert_eq!(responses.len(), explanations.len());
            for (explanation, response) in explanations.iter().zip(responses) {
                match &explanation.decision {
                    Err(refusal) => check_refusal(refusal, response),
                    Ok(_) => assert!(response["error"]["data"]["refused_by"].is_null()),
                }
            }
            count("a batch");
            continue;
        }
        let [explanation] = &*explanations else { panic!("one response, several explanations") };
        match explanation.steps.delay {
            None => assert!(duration < UNDELAYED_MAX, "{duration:?}"),
            Some(delay) => {
                assert!((delay..delay + UNDELAYED_MAX).contains(&duration), "{duration:?}");
                count("delayed");
            }
        }
        match &explanation.decision {
            Err(refusal) => {
                assert_eq!(http.status, refusal.status);
                assert_eq!((&*http.node, &*http.cache), ("-", "-"));
                check_refusal(refusal, &response);
                count(&kind(refusal));
            }
            Ok(resolution) => {
                check_served(&config, explanation, resolution, &http, &response);
                count("served");
            }
        }
    }
    for (zone, (admitted, all)) in gateway.status().zones.iter().zip(zone_calls) {
        let dry_run = zone.delayed_dry_run + zone.rejected_dry_run;
        let counted = zone.passed + zone.delayed + zone.rejected + dry_run;
        let is_guesses = &*zone.name == "guesses";
        assert!(is_guesses || (admitted..=all).contains(&counted), "{}: {counted}", zone.name);
    }
}

#[test]
fn calls_are_served_as_they_are_explained() {
    let mut kinds = BTreeMap::new();
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    let runtime = builder.build_local(LocalOptions::default()).unwrap();
    runtime.block_on(async {
        let world = world();
        for seed in 0..CONFIGS {
            run(seed, &world, &mut kinds).await;
        }
    });
    println!("{kinds:#?}");
    let expected = [
        "served",
        "a batch",
        "delayed",
        "a rule",
        "request rate limit exceeded",
        "the quota of this API key is used up for this month",
        "too many denied requests from this client",
        "an API key or token is required",
        "the API key or token is not valid",
        "the API key or token has expired",
        "this client address is not allowed",
        "the API key or token does not allow this chain",
        "no chain is served at this path",
        "access.node_methods",
        "access.transactions",
        "access.methods_allow",
        "access.methods_deny",
        "chain.methods_deny",
        "group.methods_deny",
        "key.methods_deny",
    ];
    for kind in expected {
        assert!(kinds.contains_key(kind), "no {kind:?} in {kinds:#?}");
    }
}
