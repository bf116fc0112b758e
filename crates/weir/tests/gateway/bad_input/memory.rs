//! Clients and an upstream that make the gateway buffer bytes: memory stays within
//! `server.memory_max`, and other clients are still served.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};

use super::floods::{DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, frame};
use super::wicked::{Deed, STRUCK, Then, Wicked, whole};
use super::{CALL, Client, RIGHT, Running, post, told};
use test_support::running::Weir;

const BUDGET: u64 = 128 << 20;
/// Beyond the budget: what each connection takes by itself, and what is copied at the moment, and
/// what the allocator gives back late. 140 MB were seen at most.
const PER_CONNECTION: u64 = 16 << 10;
const BESIDE: u64 = 192 << 20;
/// Bytes of one response that is not read, and of one body that does not end.
const RESPONSE_BYTES: usize = 4 << 20;
const BODY_BYTES: usize = 5 << 20;
/// Open files for everything else in this process: the other tests run at the same time.
const FILES_BESIDE: u64 = 2_000;
/// How long the gateway is watched while the bytes are held.
const WATCHED: Duration = Duration::from_secs(6);

/// A chunk of a body: 32 bytes.
const CHUNK: &[u8] = b"20\r\n0123456789abcdef0123456789abcdef\r\n";

/// A gateway with one upstream that sends long responses, and one whose responses never end.
fn gateway() -> (Running, [Wicked; 2], Running) {
    let honest = Weir::node().start();
    let [long, endless] = [(); 2].map(|()| Wicked::start(&honest.address));
    long.shall(&Deed {
        say: |id| {
            let result = "a".repeat(RESPONSE_BYTES);
            whole(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"{result}"}}"#))
        },
        then: Then::Serve,
    });
    endless.shall(&Deed {
        say: |_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec(),
        then: Then::Repeat(CHUNK),
    });
    let gateway = Weir::serve()
        .config(&format!(
            "[server]\nthreads = 2\nmemory_max = \"{BUDGET}B\"\n[downstream]\nconnections_max = 100000\n\
         write_timeout = \"2m\"\nbody_timeout = \"2m\"\nidle_timeout = \"2m\"\n[cache]\n\
         bytes_max = \"8MiB\"\n\
         [chain.long]\npaths = [\"/long\"]\n[chain.endless]\npaths = [\"/endless\"]\n\
         [chain.honest]\npaths = [\"/\"]\ndefault = true\n\
         [[upstream]]\nchain = \"long\"\nurl = \"{}\"\n[[upstream]]\nchain = \"endless\"\nurl = \"{}\"\n\
         [[upstream]]\nchain = \"honest\"\nurl = \"{}\"\n",
            long.url,
            endless.url,
            honest.url()
        ))
        .start();
    (honest, [long, endless], gateway)
}

/// A call that no other one shares.
fn fresh(number: usize) -> Vec<u8> {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{STRUCK}","params":["0x{number:040x}","latest"]}}"#
    )
    .into_bytes()
}

/// One HTTP/2 connection whose windows are shut, with 100 calls for long responses.
fn shut_windows(address: &str) -> Vec<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    // POST, http, and literals for path, authority and content-type.
    let mut head = vec![0x83, 0x86, 0x04, 5];
    head.extend(b"/long\x41\x01a\x0f\x10\x10application/json");
    for number in 0..100_u32 {
        let own = 2 * number + 1;
        bytes.extend(frame(HEADERS, END_HEADERS, own, &head));
        bytes.extend(frame(DATA, END_STREAM, own, &fresh(number as usize)));
    }
    stream.write_all(&bytes).unwrap();
    vec![stream]
}

/// Clients that ask for long responses and do not read them.
fn unread(address: &str) -> Vec<Client> {
    let client = |number: usize| {
        let mut client = Client::with_small_receive_buffer(address);
        client.send(&post("/long", &fresh(1000 + number)));
        // What comes back is held by the gateway, once it is there.
        // Sleeps: the responses arrive one after the other.
        std::thread::park_timeout(Duration::from_millis(5));
        client
    };
    (0..100).map(client).collect()
}

/// Requests whose last byte does not come.
fn unfinished(address: &str) -> Vec<TcpStream> {
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

/// Calls to the upstream whose responses never end.
fn endless(address: &str) -> Vec<Client> {
    let client = |number: usize| {
        let mut client = Client::connect(address);
        client.send(&post("/endless", &fresh(2000 + number)));
        client
    };
    (0..100).map(client).collect()
}

/// The response to another client under this load.
#[derive(Debug, Default)]
struct Others {
    small: usize,
    large: usize,
    large_refused: usize,
    slowest: Duration,
}

impl Others {
    /// Asks for something small and something that counts against the budget, over new connections
    /// and until the time is over.
    fn ask(address: &str, until: Instant) -> Others {
        let calls: Vec<String> = (1..60)
            .map(|number| {
                format!(
                    r#"{{"id":{number},"method":"eth_getBlockByNumber","params":["0x{number:x}",true]}}"#
                )
            })
            .collect();
        let large = format!("[{}]", calls.join(","));
        let mut others = Others::default();
        while Instant::now() < until {
            let began = Instant::now();
            let mut client = Client::connect(address);
            assert_eq!(told(&client.call("/", CALL.as_bytes())), RIGHT);
            others.small += 1;
            let answer = client.call("/", large.as_bytes());
            if answer.status == 200 {
                assert!(answer.body.len() > 20_000, "{}", answer.body.len());
                others.large += 1;
            } else {
                assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
                others.large_refused += 1;
            }
            others.slowest = others.slowest.max(began.elapsed());
        }
        others
    }
}

/// Runs a shape of load while it samples memory and checks other clients.
fn hold<T>(name: &str, gateway: &mut Running, idle: usize, shape: impl FnOnce(&str) -> T) {
    let address = gateway.address.clone();
    let _idle: Vec<TcpStream> = (0..idle).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let before = gateway.memory().0;
    let asking = {
        let address = address.clone();
        let until = Instant::now() + WATCHED;
        std::thread::spawn(move || Others::ask(&address, until))
    };
    let held = shape(&address);
    let others = asking.join().unwrap();
    let (now, most) = gateway.memory();
    drop(held);
    println!("{name}: {before} bytes before, {now} after, {most} at most; {others:?}");
    gateway.assert_sound();
    let bound = before + BUDGET + BESIDE + idle as u64 * PER_CONNECTION;
    assert!(most < bound, "{name}: {most} bytes, at most {bound} are allowed");
    assert!(others.large >= 9 * others.large_refused, "{name}: others are refused: {others:?}");
    assert!(others.slowest < Duration::from_secs(10), "{name}: {others:?}");
}

type Held = Vec<Box<dyn std::any::Any>>;

fn boxed<T: 'static>(held: Vec<T>) -> Held {
    held.into_iter().map(|one| Box::new(one) as Box<dyn std::any::Any>).collect()
}

#[test]
fn held_bytes_stay_within_the_budget() {
    type Shape = fn(&str) -> Held;
    let shapes: [(&str, Shape); 4] = [
        ("shut windows", |address| boxed(shut_windows(address))),
        ("unread responses", |address| boxed(unread(address))),
        ("unfinished bodies", |address| boxed(unfinished(address))),
        ("endless upstream", |address| boxed(endless(address))),
    ];
    for (name, shape) in shapes {
        let (_honest, _upstreams, mut gateway) = gateway();
        hold(name, &mut gateway, 300, shape);
    }
}

/// All shapes at once, beside 20,000 connections or as many as the limit of open files leaves.
#[test]
fn held_bytes_stay_within_the_budget_with_many_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // The gateway, which is started now, inherits it.
    setrlimit(Resource::Nofile, limit).unwrap();
    let files = limit.current.unwrap_or(u64::MAX);
    let idle = files.saturating_sub(FILES_BESIDE).min(20_000) as usize;
    println!("{idle} connections");
    let (_honest, _upstreams, mut gateway) = gateway();
    hold("all of them", &mut gateway, idle, |address| {
        let mut held = boxed(shut_windows(address));
        held.extend(boxed(endless(address)));
        held.extend(boxed(unfinished(address)));
        held.extend(boxed(unread(address)));
        held
    });
}
