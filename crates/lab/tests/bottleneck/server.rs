//! The planted target: a small JSON-RPC server over HTTP/1.1 with a thread per connection. It
//! returns the same result for every call. Its mode plants the bottleneck.

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

/// Environment variable with the mode: a kind of limit and its numbers. For example, `slots:4:10`
/// allows four concurrent calls of 10 ms each.
pub(crate) const MODE: &str = "WEIR_TEST_TARGET";
/// Environment variable with the folder for the file of mode `disk`.
pub(crate) const FOLDER: &str = "WEIR_TEST_FOLDER";

/// The bottleneck of the target.
enum Limit {
    /// A fixed number of concurrent calls. A call takes a token from the receiver, sleeps for the
    /// duration, and returns the token to the sender.
    Slots(Mutex<Receiver<()>>, SyncSender<()>, Duration),
    /// One call at a time: each holds the lock for the duration.
    Lock(Mutex<()>, Duration),
    /// One thread computes for all calls. A call sends it the channel to signal completion on.
    Thread(SyncSender<SyncSender<()>>),
    /// The connection's own thread computes for the duration.
    Work(Duration),
    /// Each call reads this many bytes from a disk, past the page cache.
    Disk(File, usize),
    /// No limit, except possibly on the number of connections.
    Unlimited,
}

/// Size of the file that mode `disk` reads.
const FILE_BYTES: u64 = 64 << 20;
/// The open flag `O_DIRECT` on Linux for x86-64 and most other architectures.
const O_DIRECT: i32 = 0o40000;
/// Alignment of buffers and offsets that `O_DIRECT` requires.
const ALIGNMENT_BYTES: usize = 4_096;

/// Serves until the process is killed. Prints the port on standard output.
pub(crate) fn serve(mode: &str) {
    let mut mode_parts = mode.split(':');
    let kind = mode_parts.next().unwrap();
    let mut next_number = || mode_parts.next().unwrap().parse::<u64>().unwrap();
    let mut accepted_max = usize::MAX;
    let limit = match kind {
        "slots" => {
            let slots = usize::try_from(next_number()).unwrap();
            let (released, available) = sync_channel(slots);
            (0..slots).for_each(|_| released.send(()).unwrap());
            Limit::Slots(Mutex::new(available), released, Duration::from_millis(next_number()))
        }
        "lock" => Limit::Lock(Mutex::new(()), Duration::from_millis(next_number())),
        "thread" => Limit::Thread(start_worker(Duration::from_millis(next_number()))),
        "work" => Limit::Work(Duration::from_millis(next_number())),
        "burn" => {
            for _ in 0..next_number() {
                thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            Limit::Unlimited
        }
        "disk" => Limit::Disk(create_file(), usize::try_from(next_number()).unwrap() << 10),
        "accept" => {
            accepted_max = usize::try_from(next_number()).unwrap();
            Limit::Unlimited
        }
        _ => panic!("unknown mode {mode:?}"),
    };
    let limit = Arc::new(limit);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nport {}", listener.local_addr().unwrap().port());
    for stream in listener.incoming().take(accepted_max) {
        let limit = Arc::clone(&limit);
        thread::spawn(move || serve_connection(&stream.unwrap(), &limit));
    }
    // The listener stays open: further connections remain in its backlog.
    loop {
        thread::park();
    }
}

/// Starts the thread that computes for all calls, one after the other; each takes `cpu_time`.
fn start_worker(cpu_time: Duration) -> SyncSender<SyncSender<()>> {
    let (sender, receiver) = sync_channel::<SyncSender<()>>(1_024);
    let thread = thread::Builder::new().name("the-one".to_owned());
    let process_calls = move || {
        for completion in receiver {
            compute(cpu_time);
            let _ = completion.send(());
        }
    };
    thread.spawn(process_calls).unwrap();
    sender
}

/// Creates the file of mode `disk` and opens it for reads past the page cache.
fn create_file() -> File {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let path = folder.join("blocks");
    let mut file = File::create(&path).unwrap();
    let megabyte = vec![7; 1 << 20];
    (0..FILE_BYTES >> 20).for_each(|_| file.write_all(&megabyte).unwrap());
    file.sync_all().unwrap();
    OpenOptions::new().read(true).custom_flags(O_DIRECT).open(&path).unwrap()
}

/// Computes for about this much CPU time. Under a CPU quota, or next to other busy threads, the
/// call takes longer, as real work does.
fn compute(cpu_time: Duration) {
    // Measured once per process.
    static STEPS_PER_SECOND: std::sync::OnceLock<f64> = std::sync::OnceLock::new();
    let steps_per_second = STEPS_PER_SECOND.get_or_init(|| {
        // Other processes slow some of the tries down, so the fastest one counts.
        let tries = (0..20).map(|_| {
            let start = Instant::now();
            compute_steps(2_000);
            2_000.0 / start.elapsed().as_secs_f64()
        });
        tries.fold(0.0, f64::max)
    });
    compute_steps((steps_per_second * cpu_time.as_secs_f64()) as u64);
}

/// Computes this many steps of 100 multiplications each.
fn compute_steps(steps: u64) {
    let mut value = 1_u64;
    for index in 0..steps * 100 {
        value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ index);
    }
}

#[expect(clippy::disallowed_methods)]
fn take_service_time(service_time: Duration) {
    // Sleeps: the planted service time must really pass.
    thread::sleep(service_time);
}

/// Does the work of one call within the limit.
fn run_call(limit: &Limit) {
    match limit {
        Limit::Slots(available, released, service_time) => {
            available.lock().recv().unwrap();
            take_service_time(*service_time);
            released.send(()).unwrap();
        }
        Limit::Lock(lock, service_time) => {
            let _guard = lock.lock();
            take_service_time(*service_time);
        }
        Limit::Thread(worker) => {
            let (completion, completed) = sync_channel(1);
            worker.send(completion).unwrap();
            completed.recv().unwrap();
        }
        Limit::Work(cpu_time) => compute(*cpu_time),
        Limit::Disk(file, bytes) => read_block(file, *bytes),
        Limit::Unlimited => {}
    }
}

/// Reads `bytes` from an offset that changes with each call.
fn read_block(file: &File, bytes: usize) {
    static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    // The prime 7,919 keeps successive calls far apart in the file.
    let call = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed).wrapping_mul(7_919);
    let blocks = FILE_BYTES / bytes as u64;
    let offset = call % blocks * bytes as u64;
    let mut buffer = vec![0; bytes + ALIGNMENT_BYTES];
    let aligned_start = buffer.as_ptr().align_offset(ALIGNMENT_BYTES);
    file.read_exact_at(&mut buffer[aligned_start..aligned_start + bytes], offset).unwrap();
}

/// Answers the calls of one connection, one at a time.
fn serve_connection(stream: &TcpStream, limit: &Limit) {
    let _ = stream.set_nodelay(true);
    let mut reader = BufReader::new(stream);
    while let Some(body) = read_request(&mut reader) {
        run_call(limit);
        let call: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let response_body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":"0x64"}}"#, call["id"]);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        let response = format!("{head} {}\r\n\r\n{response_body}", response_body.len());
        let mut stream = stream;
        if stream.write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}
