//! Goal: the pool opens as many connections as it needs and is allowed. Large responses have
//! separate connections. The backoff doubles with each failure. Waiting calls are notified. Method:
//! streams in memory without responses, in virtual time.

use std::borrow::Cow;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::DuplexStream;
use tokio::task::LocalSet;
use wire::family::Family;
use wire::method::{Method, methods_of};

use super::*;
use crate::policy::cacheable::Caching;
use crate::policy::heads::ChainView;
use crate::policy::overload::Class;
use crate::policy::overload::shares::Flow;

const DEADLINE: Duration = Duration::from_secs(30);
const WITHOUT_HTTP: &str = "url = \"ipc:/node.ipc\"";
const WITH_HTTP: &str = "url = \"http://node.local:1\"\nws_url = \"ipc:/node.ipc\"";

/// The upstream's side of the connections.
#[derive(Default)]
struct Upstream {
    /// The upstream's ends of the accepted streams.
    accepted: Mutex<Vec<DuplexStream>>,
    /// True if the upstream refuses connections.
    down: AtomicBool,
}

impl Upstream {
    /// Returns the number of accepted connections.
    fn accepted(&self) -> usize {
        self.accepted.lock().len()
    }

    /// Ends all connections.
    fn hang_up(&self) {
        self.accepted.lock().clear();
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }
}

/// A pool and its upstream.
struct Fixture {
    pool: Rc<MultiplexedPool>,
    upstream: Arc<Upstream>,
    counts: Arc<UpstreamCounters>,
}

/// Creates a pool for an upstream with these configuration keys.
fn start(keys: &str) -> Fixture {
    let text = format!("[server]\nthreads = 1\n[[upstream]]\nname = \"n\"\n{keys}\n");
    let config = Config::from_text("test", &text, Path::new("/"), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let upstream = Arc::new(Upstream::default());
    let dial_upstream = Arc::clone(&upstream);
    let connector = Connector::Memory(Arc::new(move || {
        if dial_upstream.down.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (gateway_stream, upstream_stream) = tokio::io::duplex(1 << 16);
        dial_upstream.accepted.lock().push(upstream_stream);
        Ok(gateway_stream)
    }));
    let counts = Arc::<UpstreamCounters>::default();
    let methods = methods_of(Family::Ethereum).methods().count();
    let pool = MultiplexedPool::new(&config, &config.upstreams[0], &connector, methods, &counts);
    Fixture { pool: pool.expect("the upstream has such an address"), upstream, counts }
}

fn request_for(name: &'static str) -> UpstreamRequest<'static> {
    let (row_index, method): (usize, &'static Method) =
        methods_of(Family::Ethereum).find(name).expect("it is known");
    UpstreamRequest {
        chain: 0,
        group: 0,
        method_name: Cow::Borrowed(name),
        method_row: Some(method),
        row_index: Some(row_index),
        class: Class::Normal,
        flow: Flow::default(),
        params: Some(Cow::Borrowed(b"[]")),
        caching: Caching::never(&ChainView::default()),
        coalesce: false,
        balance_key: 0,
        deadline: Instant::now() + DEADLINE,
        waiting: None,
        trace: None,
    }
}

fn light_request() -> UpstreamRequest<'static> {
    request_for("eth_getBalance")
}

fn heavy_request() -> UpstreamRequest<'static> {
    request_for("debug_traceBlockByNumber")
}

impl Fixture {
    fn get(&self, request: &UpstreamRequest<'_>) -> Option<Rc<MultiplexedConnection>> {
        self.pool.get(request, Instant::now())
    }

    /// Returns the connection for a call. Opens one if there is none and the pool allows that.
    async fn get_or_open(
        &self,
        request: &UpstreamRequest<'_>,
    ) -> Option<Rc<MultiplexedConnection>> {
        if let Some(connection) = self.get(request) {
            return Some(connection);
        }
        run_other_tasks().await;
        self.get(request)
    }

    async fn call(
        &self,
        request: &UpstreamRequest<'_>,
    ) -> crate::upstream::multiplexed_connection::Call {
        let connection = self.get_or_open(request).await.expect("there is room");
        let now = Instant::now();
        connection
            .call(&request.method_name, request.params.as_deref(), now, now + DEADLINE)
            .expect("it takes calls")
    }

    /// Measures how long no connection is opened after a failure.
    async fn backoff(&self) -> Duration {
        let began = Instant::now();
        let connects = self.counts.connections_opened.get();
        while self.counts.connections_opened.get() == connects {
            tokio::time::advance(Duration::from_millis(1)).await;
            self.get(&light_request());
            assert!(began.elapsed() < Duration::from_secs(60), "the pool never tries again");
        }
        let backoff = began.elapsed();
        run_other_tasks().await;
        backoff
    }
}

/// Lets other tasks run until all of them wait.
async fn run_other_tasks() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn run_in_virtual_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn full_connections_open_more_up_to_the_limit() {
    run_in_virtual_time(async {
        let fixture =
            start(&format!("{WITHOUT_HTTP}\ncalls_per_connection_max = 2\nconnections_max = 2"));
        assert!(fixture.get(&light_request()).is_none(), "no connection is open yet");
        assert!(fixture.get(&light_request()).is_none(), "a connection is already being opened");
        run_other_tasks().await;
        assert_eq!(fixture.upstream.accepted(), 1);
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(fixture.call(&light_request()).await);
        }
        assert_eq!(fixture.upstream.accepted(), 2);
        assert!(fixture.get_or_open(&light_request()).await.is_none(), "both are full");
        assert_eq!(fixture.upstream.accepted(), 2);
        // The other size class opens its first connection despite the limit.
        assert!(fixture.get_or_open(&heavy_request()).await.is_some());
        assert_eq!((fixture.upstream.accepted(), fixture.counts.multiplexed_open.get()), (3, 3));
        drop(calls.pop());
        assert!(fixture.get(&light_request()).is_some(), "a call has ended");
    });
}

#[test]
fn large_responses_have_connections_of_their_own() {
    run_in_virtual_time(async {
        let fixture = start(WITHOUT_HTTP);
        let small = fixture.get_or_open(&light_request()).await.unwrap();
        let large = fixture.get_or_open(&heavy_request()).await.unwrap();
        assert!(!Rc::ptr_eq(&small, &large));
        let light_connection = || fixture.get(&light_request()).unwrap();
        fixture.pool.record_response(&light_request(), LARGE_BYTES - 1);
        assert!(Rc::ptr_eq(&light_connection(), &small));
        fixture.pool.record_response(&light_request(), LARGE_BYTES);
        for _ in 0..LARGE_DECAY {
            assert!(Rc::ptr_eq(&light_connection(), &large));
            fixture.pool.record_response(&light_request(), 10);
        }
        assert!(
            Rc::ptr_eq(&light_connection(), &small),
            "one large response among many small ones does not count"
        );
        let unknown = UpstreamRequest { method_row: None, row_index: None, ..light_request() };
        fixture.pool.record_response(&unknown, LARGE_BYTES);
        assert!(Rc::ptr_eq(&fixture.get(&unknown).unwrap(), &large));
        assert!(Rc::ptr_eq(&light_connection(), &small), "unknown methods are counted separately");
    });
}

#[test]
fn the_backoff_doubles_with_each_failure() {
    let ms = Duration::from_millis;
    for (keys, [first, second, longest_backoff]) in
        [(WITH_HTTP, [ms(50), ms(100), ms(10_000)]), (WITHOUT_HTTP, [ms(0), ms(50), ms(1000)])]
    {
        run_in_virtual_time(async move {
            let fixture = start(keys);
            fixture.upstream.set_down(true);
            assert!(fixture.get(&light_request()).is_none());
            run_other_tasks().await;
            let mut backoffs = Vec::new();
            for _ in 0..12 {
                backoffs.push(fixture.backoff().await);
            }
            let is_about = |backoff: Duration, expected: Duration| {
                backoff >= expected && backoff <= expected + Duration::from_millis(2)
            };
            assert!(
                is_about(backoffs[0], first) && is_about(backoffs[1], second),
                "{keys}: {backoffs:?}"
            );
            let steps = backoffs[1..].windows(2);
            let doubles = |step: &[Duration]| is_about(step[1], (step[0] * 2).min(longest_backoff));
            assert!(steps.clone().take(3).all(doubles), "{keys}: {backoffs:?}");
            assert!(is_about(backoffs[11], longest_backoff), "{keys}: {backoffs:?}");
            // A response resets the failures.
            fixture.upstream.set_down(false);
            fixture.backoff().await;
            assert!(fixture.get(&light_request()).is_some());
            fixture.pool.record_response(&light_request(), 10);
            fixture.upstream.hang_up();
            run_other_tasks().await;
            assert_eq!(fixture.counts.multiplexed_lost.get(), 1);
            let backoff = fixture.backoff().await;
            assert!(is_about(backoff, first), "{keys}: {backoff:?}");
        });
    }
}

#[test]
fn waiting_calls_are_notified() {
    run_in_virtual_time(async {
        let fixture =
            start(&format!("{WITHOUT_HTTP}\ncalls_per_connection_max = 1\nconnections_max = 1"));
        let wait = |deadline: Duration| {
            let (pool, request) = (Rc::clone(&fixture.pool), light_request());
            let deadline = Instant::now() + deadline;
            tokio::task::spawn_local(async move { pool.wait(&request, deadline).await })
        };
        // A call waits for the first connection to be opened.
        assert!(wait(DEADLINE).await.unwrap().is_ok());
        let call = fixture.call(&light_request()).await;
        // A call waits until its deadline.
        let began = Instant::now();
        assert_eq!(wait(Duration::from_secs(3)).await.unwrap().err(), Some(NoConnection));
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        // A call waits for another call to end.
        let waiting = wait(DEADLINE);
        run_other_tasks().await;
        assert!(!waiting.is_finished());
        drop(call);
        drop(fixture.pool.call_guard());
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), Duration::from_secs(3), "at once");
        // A call does not wait for a connection that cannot be opened.
        fixture.upstream.set_down(true);
        fixture.upstream.hang_up();
        run_other_tasks().await;
        assert_eq!(wait(DEADLINE).await.unwrap().err(), Some(NoConnection));
        assert_eq!(began.elapsed(), Duration::from_secs(3), "a call does not wait after a failure");
    });
}

#[test]
fn waiting_calls_of_both_classes_are_notified() {
    run_in_virtual_time(async {
        let fixture =
            start(&format!("{WITHOUT_HTTP}\ncalls_per_connection_max = 1\nconnections_max = 1"));
        let (small, _large) =
            (fixture.call(&light_request()).await, fixture.call(&heavy_request()).await);
        let wait = |request: UpstreamRequest<'static>| {
            let (pool, deadline) = (Rc::clone(&fixture.pool), Instant::now() + DEADLINE);
            tokio::task::spawn_local(async move { pool.wait(&request, deadline).await })
        };
        let began = Instant::now();
        let (for_large, for_small) = (wait(heavy_request()), wait(light_request()));
        run_other_tasks().await;
        let guard = fixture.pool.call_guard();
        drop(small);
        drop(guard);
        assert!(for_small.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(!for_large.is_finished());
    });
}

#[test]
fn idle_connections_are_closed_except_the_first_of_each_class() {
    run_in_virtual_time(async {
        let fixture =
            start(&format!("{WITHOUT_HTTP}\ncalls_per_connection_max = 1\nidle_timeout = \"10s\""));
        let calls = [fixture.call(&light_request()).await, fixture.call(&light_request()).await];
        fixture.call(&heavy_request()).await;
        drop(calls);
        fixture.pool.sweep(Instant::now() + Duration::from_secs(9));
        run_other_tasks().await;
        assert_eq!(fixture.counts.multiplexed_open.get(), 3);
        fixture.pool.sweep(Instant::now() + Duration::from_secs(11));
        run_other_tasks().await;
        assert_eq!(fixture.counts.multiplexed_open.get(), 2, "one of each class is left");
        assert_eq!(fixture.counts.multiplexed_lost.get(), 0, "the gateway closed the connection");
        assert!(fixture.get(&light_request()).is_some(), "there is no backoff");
        fixture.pool.close();
        run_other_tasks().await;
        assert_eq!(fixture.counts.multiplexed_open.get(), 0);
        assert!(
            fixture.get_or_open(&light_request()).await.is_none(),
            "a closed pool opens no connection"
        );
    });
}

#[test]
fn long_calls_are_not_accepted() {
    run_in_virtual_time(async {
        let fixture = start(&format!("{WITHOUT_HTTP}\nmessage_bytes_max = 1024"));
        let long = |bytes: usize| UpstreamRequest {
            params: Some(Cow::Owned(vec![b' '; bytes])),
            ..light_request()
        };
        let envelope = call_bytes(ID_LONGEST, "eth_getBalance", Some(b""));
        assert!(fixture.pool.accepts(&long(1024 - envelope)));
        assert!(!fixture.pool.accepts(&long(1025 - envelope)));
    });
}
