//! Clients and an upstream that make the gateway buffer many bytes. Its memory stays within
//! `server.memory_max`, and it still serves other clients.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use super::faulty_node::{BAD_METHOD, FaultyNode, FollowUp, Misbehaviour, ok_response};
use super::floods::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use super::{CALL, CALL_OK, Client, Running, describe, post};
use test_support::running::Weir;
use test_support::wait::wait_until;

/// Usual `server.memory_max` of the gateway, in MiB. The environment variable `WEIR_MEMORY_MAX_MIB`
/// sets another value.
const BUDGET_MIB: u64 = 128;
/// Allowed memory beyond the budget for each connection, in bytes.
const PER_CONNECTION: u64 = 16 << 10;
/// Allowed memory of the whole process beyond the budget and the cache, in bytes. The program itself
/// takes 40 MiB.
const OVERHEAD: u64 = 48 << 20;
/// Limit of the cache, in bytes.
const CACHE_BYTES: u64 = 8 << 20;
/// Allowed memory after a load beyond the memory before it, in bytes.
const KEPT_BYTES_MAX: u64 = 16 << 20;
/// Size of a response that the client does not read, in bytes.
const RESPONSE_BYTES: usize = 4 << 20;
/// Size of a request body that the client does not complete, in bytes.
const BODY_BYTES: usize = 5 << 20;
/// Number of open files that this process needs for other tests, which run at the same time.
const FILES_OF_OTHER_TESTS: u64 = 2_000;
/// Time for which another client sends calls while the gateway buffers the bytes.
const OTHER_CLIENT_TIME: Duration = Duration::from_secs(6);

/// A chunk of a body: 32 bytes.
const CHUNK: &[u8] = b"20\r\n0123456789abcdef0123456789abcdef\r\n";

/// Starts a gateway with three upstreams: one sends long responses, the responses of one never end,
/// and one is honest. Returns the honest upstream, the two others, and the gateway.
fn start_gateway() -> (Running, [FaultyNode; 2], Running) {
    let honest = Weir::node().start();
    let [long, endless] = [(); 2].map(|()| FaultyNode::start(&honest.address));
    long.set_misbehaviour(&Misbehaviour {
        response: |id| {
            let result = "a".repeat(RESPONSE_BYTES);
            ok_response(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{result}"}}"#))
        },
        then: FollowUp::Serve,
    });
    endless.set_misbehaviour(&Misbehaviour {
        response: |_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        then: FollowUp::Repeat(CHUNK),
    });
    let gateway = Weir::serve()
        .config(&format!(
            "[server]\nthreads = 2\nmemory_max = \"{}B\"\n[downstream]\nconnections_max = 100000\n\
         write_timeout = \"2m\"\nbody_timeout = \"2m\"\nidle_timeout = \"2m\"\n[cache]\n\
         bytes_max = \"{CACHE_BYTES}B\"\n\
         [chain.long]\npaths = [\"/long\"]\n[chain.endless]\npaths = [\"/endless\"]\n\
         [chain.honest]\npaths = [\"/\"]\ndefault = true\n\
         [[upstream]]\nchain = \"long\"\nurl = \"{}\"\n[[upstream]]\nchain = \"endless\"\nurl = \"{}\"\n\
         [[upstream]]\nchain = \"honest\"\nurl = \"{}\"\n",
            budget(),
            long.url,
            endless.url,
            honest.url()
        ))
        .start();
    (honest, [long, endless], gateway)
}

/// Returns `server.memory_max` of the gateway, in bytes.
fn budget() -> u64 {
    let mib = std::env::var("WEIR_MEMORY_MAX_MIB").map(|mib| mib.parse().unwrap());
    mib.unwrap_or(BUDGET_MIB) << 20
}

/// A call whose response is not in the cache, because each number is another account.
fn fresh_call(number: usize) -> Vec<u8> {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{BAD_METHOD}","params":["0x{number:040x}","latest"]}}"#
    )
    .into_bytes()
}

/// Opens an HTTP/2 connection with flow-control windows of 0 bytes, and sends 100 calls for long
/// responses.
fn close_windows(address: &str) -> Vec<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    // POST, http, and literals for path, authority and content-type.
    let mut head = vec![0x83, 0x86, 0x04, 5];
    head.extend(b"/long\x41\x01a\x0f\x10\x10application/json");
    for number in 0..100_u32 {
        let stream_id = 2 * number + 1;
        bytes.extend(frame(HEADERS, END_HEADERS, stream_id, &head));
        bytes.extend(frame(DATA, END_STREAM, stream_id, &fresh_call(number as usize)));
    }
    stream.write_all(&bytes).unwrap();
    vec![stream]
}

/// Opens connections of clients that call for long responses and do not read them.
fn leave_responses_unread(address: &str) -> Vec<Client> {
    let client = |number: usize| {
        let mut client = Client::with_small_receive_buffer(address);
        client.send(&post("/long", &fresh_call(1000 + number)));
        // Sleeps: the upstream's responses reach the gateway one after the other.
        std::thread::park_timeout(Duration::from_millis(5));
        client
    };
    (0..100).map(client).collect()
}

/// Opens connections that each send a request without its last byte.
fn leave_bodies_incomplete(address: &str) -> Vec<TcpStream> {
    let whole = post("/", &vec![b' '; BODY_BYTES]);
    let start = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        // The gateway may reject the call.
        let _refused = stream.write_all(&whole[..whole.len() - 1]);
        stream
    };
    (0..200).map(start).collect()
}

/// Opens connections that each call the upstream whose responses never end.
fn call_endless_upstream(address: &str) -> Vec<Client> {
    let client = |number: usize| {
        let mut client = Client::connect(address);
        client.send(&post("/endless", &fresh_call(2000 + number)));
        client
    };
    (0..100).map(client).collect()
}

/// Sends batches of calls for long responses, and reads the responses. Returns the connections.
fn read_large_batches(address: &str) -> Vec<Client> {
    let read = |client_number: usize| {
        let mut client = Client::connect(address);
        for batch in 0..4 {
            let numbers = (0..3).map(|call| 3000 + client_number * 100 + batch * 10 + call);
            let calls: Vec<_> = numbers.map(fresh_call).collect();
            client.send(&post("/long", &[b"[", &*calls.join(&b','), b"]"].concat()));
            // The gateway may refuse the batch, or close the connection of a slow client.
            if client.read_whole_response().is_none() {
                client = Client::connect(address);
            }
        }
        client
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..16).map(|number| scope.spawn(move || read(number))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    })
}

/// The responses that another client gets under this load.
#[derive(Debug, Default)]
struct OtherClient {
    /// Number of small responses.
    small: usize,
    /// Number of large responses. The gateway counts their bytes against the memory budget.
    large: usize,
    /// Number of calls for a large response that were refused with HTTP 503.
    large_refused: usize,
    /// The longest time for a small and a large call together.
    slowest: Duration,
}

impl OtherClient {
    /// Sends a call with a small and a call with a large response, in a loop that ends at `until`.
    /// Each round uses a new connection.
    fn run(address: &str, until: Instant) -> OtherClient {
        let calls: Vec<String> = (1..60)
            .map(|number| {
                format!(
                    r#"{{"id":{number},"method":"eth_getBlockByNumber","params":["0x{number:x}",true]}}"#
                )
            })
            .collect();
        let large = format!("[{}]", calls.join(","));
        let mut result = OtherClient::default();
        while Instant::now() < until {
            let start = Instant::now();
            let mut client = Client::connect(address);
            assert_eq!(describe(&client.call("/", CALL.as_bytes())), CALL_OK);
            result.small += 1;
            let answer = client.call("/", large.as_bytes());
            if answer.status == 200 {
                assert!(answer.body.len() > 20_000, "{}", answer.body.len());
                result.large += 1;
            } else {
                assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
                result.large_refused += 1;
            }
            result.slowest = result.slowest.max(start.elapsed());
        }
        result
    }
}

/// Starts a load beside `idle` connections while another client sends calls. Checks the gateway's
/// peak memory and the responses to the other client. `start_load` returns the open connections of
/// the load.
fn check_memory<T>(
    name: &str,
    gateway: &mut Running,
    idle: usize,
    start_load: impl FnOnce(&str) -> T,
) {
    let address = gateway.address.clone();
    let _idle: Vec<TcpStream> = (0..idle).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let before = gateway.memory().0;
    let other_client = {
        let address = address.clone();
        let until = Instant::now() + OTHER_CLIENT_TIME;
        std::thread::spawn(move || OtherClient::run(&address, until))
    };
    let connections = start_load(&address);
    let others = other_client.join().unwrap();
    let (now, most) = gateway.memory();
    drop(connections);
    println!("{name}: {before} bytes before, {now} after, {most} at most; {others:?}");
    // The cache keeps its bytes.
    let kept_max = before + CACHE_BYTES + idle as u64 * PER_CONNECTION + KEPT_BYTES_MAX;
    wait_until("the memory is given back", || gateway.memory().0 < kept_max);
    gateway.assert_sound();
    let bound = budget() + CACHE_BYTES + OVERHEAD + idle as u64 * PER_CONNECTION;
    assert!(most < bound, "{name}: {most} bytes, at most {bound} are allowed");
    assert!(others.large >= 9 * others.large_refused, "{name}: others are refused: {others:?}");
    assert!(others.slowest < Duration::from_secs(10), "{name}: {others:?}");
}

/// The open connections of a load. The load ends when they are dropped.
type Connections = Vec<Box<dyn std::any::Any>>;

fn boxed<T: 'static>(connections: Vec<T>) -> Connections {
    connections
        .into_iter()
        .map(|connection| Box::new(connection) as Box<dyn std::any::Any>)
        .collect()
}

#[test]
fn held_bytes_stay_within_the_budget() {
    type StartLoad = fn(&str) -> Connections;
    let loads: [(&str, StartLoad); 5] = [
        ("shut windows", |address| boxed(close_windows(address))),
        ("unread responses", |address| boxed(leave_responses_unread(address))),
        ("unfinished bodies", |address| boxed(leave_bodies_incomplete(address))),
        ("endless upstream", |address| boxed(call_endless_upstream(address))),
        ("large batches", |address| boxed(read_large_batches(address))),
    ];
    for (name, start_load) in loads {
        let (_honest, _upstreams, mut gateway) = start_gateway();
        check_memory(name, &mut gateway, 300, start_load);
    }
}

/// All loads at once, beside 20,000 idle connections. There are fewer idle connections if the limit
/// of open files is low.
#[test]
fn held_bytes_stay_within_the_budget_with_many_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The gateway starts after this and inherits the limit.
    setrlimit(Resource::Nofile, limit).unwrap();
    let files = limit.current.unwrap_or(u64::MAX);
    let idle = files.saturating_sub(FILES_OF_OTHER_TESTS).min(20_000) as usize;
    println!("{idle} connections");
    let (_honest, _upstreams, mut gateway) = start_gateway();
    check_memory("all of them", &mut gateway, idle, |address| {
        let mut connections = boxed(close_windows(address));
        connections.extend(boxed(call_endless_upstream(address)));
        connections.extend(boxed(leave_bodies_incomplete(address)));
        connections.extend(boxed(leave_responses_unread(address)));
        connections
    });
}
