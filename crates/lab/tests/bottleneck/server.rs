//! The planted targets: a small JSON-RPC server over HTTP/1.1 with a thread for each connection,
//! whose limit is the mode that it is started with. It answers every call with the same result.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use test_support::raw::read_request;

/// Variable that holds the mode.
pub(crate) const MODE: &str = "WEIR_TEST_TARGET";
/// Variable that holds the folder for the file of mode disk.
pub(crate) const FOLDER: &str = "WEIR_TEST_FOLDER";

/// What limits the target.
enum Limit {
    /// So many calls at a time, each of which takes so long and uses nothing.
    Slots(Mutex<Receiver<()>>, SyncSender<()>, Duration),
    /// One call at a time, as long as the lock is held.
    Lock(Mutex<()>, Duration),
    /// One thread that computes for so long for each call.
    Thread(SyncSender<SyncSender<()>>),
    /// Each connection's thread computes for so long.
    Work(Duration),
    /// Each call reads so many bytes from a disk, past the page cache.
    Disk(File, usize),
    /// None but the number of connections.
    Free,
}

const FILE_BYTES: u64 = 64 << 20;
/// `O_DIRECT` of Linux on x86-64 and most others.
const DIRECT: i32 = 0o40000;
/// What direct reads must be aligned to.
const ALIGNED: usize = 4_096;

/// Serves until the process is killed; tells its port on standard output.
pub(crate) fn serve(mode: &str) {
    let mut parts = mode.split(':');
    let kind = parts.next().unwrap();
    let mut number = || parts.next().unwrap().parse::<u64>().unwrap();
    let mut accepted_max = usize::MAX;
    let limit = match kind {
        "slots" => {
            let slots = usize::try_from(number()).unwrap();
            let (free, taken) = sync_channel(slots);
            (0..slots).for_each(|_| free.send(()).unwrap());
            Limit::Slots(Mutex::new(taken), free, Duration::from_millis(number()))
        }
        "lock" => Limit::Lock(Mutex::new(()), Duration::from_millis(number())),
        "thread" => Limit::Thread(worker(Duration::from_millis(number()))),
        "work" => Limit::Work(Duration::from_millis(number())),
        "burn" => {
            for _ in 0..number() {
                thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            Limit::Free
        }
        "disk" => Limit::Disk(file(), usize::try_from(number()).unwrap() << 10),
        "accept" => {
            accepted_max = usize::try_from(number()).unwrap();
            Limit::Free
        }
        _ => panic!("unknown mode {mode:?}"),
    };
    let limit = Arc::new(limit);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nport {}", listener.local_addr().unwrap().port());
    for stream in listener.incoming().take(accepted_max) {
        let limit = Arc::clone(&limit);
        thread::spawn(move || connection(&stream.unwrap(), &limit));
    }
    // The listener stays open: further connections wait to be accepted.
    loop {
        thread::park();
    }
}

/// The thread that does all work, one call after the other.
fn worker(time: Duration) -> SyncSender<SyncSender<()>> {
    let (sender, receiver) = sync_channel::<SyncSender<()>>(1_024);
    let thread = thread::Builder::new().name("the-one".to_owned());
    let work = move || {
        for done in receiver {
            compute(time);
            let _ = done.send(());
        }
    };
    thread.spawn(work).unwrap();
    sender
}

fn file() -> File {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let path = folder.join("blocks");
    let mut file = File::create(&path).unwrap();
    let part = vec![7; 1 << 20];
    (0..FILE_BYTES >> 20).for_each(|_| file.write_all(&part).unwrap());
    file.sync_all().unwrap();
    OpenOptions::new().read(true).custom_flags(DIRECT).open(&path).unwrap()
}

/// Uses a core for this long, by the thread's own CPU time: under a quota or beside others it takes
/// longer, as real work does.
fn compute(time: Duration) {
    // A step takes some microseconds; how many make up the time is found once per process.
    static STEPS: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    let rate = STEPS.get_or_init(|| {
        // The fastest of some tries: in the others something else ran.
        let tries = (0..20).map(|_| {
            let start = Instant::now();
            step(2_000);
            2_000.0 / start.elapsed().as_secs_f64()
        });
        tries.fold(0.0, f64::max)
    });
    step((rate * time.as_secs_f64()) as u64);
}

fn step(count: u64) {
    let mut value = 1_u64;
    for index in 0..count * 100 {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ index);
    }
}

#[expect(clippy::disallowed_methods)]
fn wait(time: Duration) {
    // Sleeps: the planted service time must really pass.
    thread::sleep(time);
}

fn work(limit: &Limit) {
    match limit {
        Limit::Slots(taken, free, time) => {
            taken.lock().recv().unwrap();
            wait(*time);
            free.send(()).unwrap();
        }
        Limit::Lock(lock, time) => {
            let _held = lock.lock();
            wait(*time);
        }
        Limit::Thread(worker) => {
            let (done, finished) = sync_channel(1);
            worker.send(done).unwrap();
            finished.recv().unwrap();
        }
        Limit::Work(time) => compute(*time),
        Limit::Disk(file, bytes) => read(file, *bytes),
        Limit::Free => {}
    }
}

/// Reads from a place that changes with each call.
fn read(file: &File, bytes: usize) {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let place = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).wrapping_mul(7_919);
    let places = FILE_BYTES / bytes as u64;
    let mut buffer = vec![0; bytes + ALIGNED];
    let from = buffer.as_ptr().align_offset(ALIGNED);
    file.read_exact_at(&mut buffer[from..from + bytes], place % places * bytes as u64).unwrap();
}

/// Answers the calls of one connection, one at a time.
fn connection(stream: &TcpStream, limit: &Limit) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some(body) = read_request(&mut reader) {
        work(limit);
        let call: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":"0x64"}}"#, call["id"]);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        let whole = format!("{head} {}\r\n\r\n{answer}", answer.len());
        let mut stream = stream;
        if stream.write_all(whole.as_bytes()).is_err() {
            return;
        }
    }
}
