//! Goal: no more connections than allowed, and no fewer than are of use; large answers keep to
//! themselves; a way that fails is left alone longer and longer; who waits is told. Method: streams
//! in memory that nobody answers, in virtual time.

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
use crate::policy::cacheable::{CacheRule, Caching, Stamp};
use crate::policy::heads::ChainView;
use crate::policy::overload::Class;
use crate::policy::overload::shares::Flow;

const DEADLINE: Duration = Duration::from_secs(30);
const ALONE: &str = "url = \"ipc:/node.ipc\"";
const BESIDE_HTTP: &str = "url = \"http://node.local:1\"\nws_url = \"ipc:/node.ipc\"";

/// The upstream's side: what it has taken, and whether it takes more.
#[derive(Default)]
struct Upstream {
    taken: Mutex<Vec<DuplexStream>>,
    down: AtomicBool,
}

impl Upstream {
    fn taken(&self) -> usize {
        self.taken.lock().len()
    }

    /// Ends all connections.
    fn hang_up(&self) {
        self.taken.lock().clear();
    }

    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
    }
}

struct Scene {
    multiplex: Rc<Multiplex>,
    upstream: Arc<Upstream>,
    counts: Arc<UpstreamCounters>,
}

fn scene(keys: &str) -> Scene {
    let text = format!("[server]\nthreads = 1\n[[upstream]]\nname = \"n\"\n{keys}\n");
    let config = Config::from_text("test", &text, Path::new("/"), &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{faults}"));
    let upstream = Arc::new(Upstream::default());
    let far = Arc::clone(&upstream);
    let dial = Dial::Memory(Arc::new(move || {
        if far.down.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        far.taken.lock().push(theirs);
        Ok(ours)
    }));
    let counts = Arc::<UpstreamCounters>::default();
    let methods = methods_of(Family::Ethereum).count();
    let multiplex = Multiplex::new(&config, &config.upstreams[0], &dial, methods, &counts);
    Scene { multiplex: multiplex.expect("the upstream has such an address"), upstream, counts }
}

fn ask(name: &'static str) -> UpstreamRequest<'static> {
    let (place, method): (usize, &'static Method) =
        methods_of(Family::Ethereum).find(name).expect("it is known");
    UpstreamRequest {
        chain: 0,
        group: 0,
        name: Cow::Borrowed(name),
        method: Some(method),
        row: Some(place),
        class: Class::Normal,
        flow: Flow::default(),
        params: Some(Cow::Borrowed(b"[]")),
        caching: Caching {
            rule: CacheRule::Never,
            resolved: None,
            min_head: 0,
            behind_head: 0,
            from_view: false,
            stamp: Stamp::of(&ChainView::default()),
        },
        coalesce: false,
        balance_key: 0,
        deadline: Instant::now() + DEADLINE,
        waiting: None,
    }
}

fn light() -> UpstreamRequest<'static> {
    ask("eth_getBalance")
}

fn heavy() -> UpstreamRequest<'static> {
    ask("debug_traceBlockByNumber")
}

impl Scene {
    fn trunk(&self, ask: &UpstreamRequest<'_>) -> Option<Rc<Trunk>> {
        self.multiplex.trunk(ask, Instant::now())
    }

    /// A trunk that the call would take, after one was opened if that is allowed.
    async fn opened(&self, ask: &UpstreamRequest<'_>) -> Option<Rc<Trunk>> {
        if let Some(trunk) = self.trunk(ask) {
            return Some(trunk);
        }
        settled().await;
        self.trunk(ask)
    }

    async fn call(&self, ask: &UpstreamRequest<'_>) -> crate::upstream::trunk::Call {
        let trunk = self.opened(ask).await.expect("there is room");
        let now = Instant::now();
        trunk.call(&ask.name, ask.params.as_deref(), now, now + DEADLINE).expect("it takes calls")
    }

    /// How long after a failure none is tried.
    async fn rest(&self) -> Duration {
        let began = Instant::now();
        let connects = self.counts.connections_opened.get();
        while self.counts.connections_opened.get() == connects {
            tokio::time::advance(Duration::from_millis(1)).await;
            self.trunk(&light());
            assert!(began.elapsed() < Duration::from_secs(60), "it is never tried again");
        }
        let rest = began.elapsed();
        settled().await;
        rest
    }
}

/// Lets other tasks run until nothing is left to do but to wait.
async fn settled() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn a_full_connection_gets_a_second_up_to_the_bound() {
    run(async {
        let scene = scene(&format!("{ALONE}\ncalls_per_connection_max = 2\nconnections_max = 2"));
        assert!(scene.trunk(&light()).is_none(), "nothing is open yet");
        assert!(scene.trunk(&light()).is_none(), "and one is on its way already");
        settled().await;
        assert_eq!(scene.upstream.taken(), 1);
        let mut calls = Vec::new();
        for _ in 0..4 {
            calls.push(scene.call(&light()).await);
        }
        assert_eq!(scene.upstream.taken(), 2);
        assert!(scene.opened(&light()).await.is_none(), "both are full");
        assert_eq!(scene.upstream.taken(), 2);
        // The other lane has its first whatever the bound.
        assert!(scene.opened(&heavy()).await.is_some());
        assert_eq!((scene.upstream.taken(), scene.counts.multiplexed_open.get()), (3, 3));
        drop(calls.pop());
        assert!(scene.trunk(&light()).is_some(), "a call has left");
    });
}

#[test]
fn large_answers_keep_to_themselves() {
    run(async {
        let scene = scene(ALONE);
        let small = scene.opened(&light()).await.unwrap();
        let large = scene.opened(&heavy()).await.unwrap();
        assert!(!Rc::ptr_eq(&small, &large));
        let lane = || scene.trunk(&light()).unwrap();
        scene.multiplex.answered(&light(), LARGE_BYTES - 1);
        assert!(Rc::ptr_eq(&lane(), &small));
        scene.multiplex.answered(&light(), LARGE_BYTES);
        for _ in 0..LARGE_REMEMBERED {
            assert!(Rc::ptr_eq(&lane(), &large));
            scene.multiplex.answered(&light(), 10);
        }
        assert!(Rc::ptr_eq(&lane(), &small), "it was one large answer among many small ones");
        let unknown = UpstreamRequest { method: None, row: None, ..light() };
        scene.multiplex.answered(&unknown, LARGE_BYTES);
        assert!(Rc::ptr_eq(&scene.trunk(&unknown).unwrap(), &large));
        assert!(Rc::ptr_eq(&lane(), &small), "what no table knows speaks for itself");
    });
}

#[test]
fn a_way_that_fails_is_left_alone_longer_each_time() {
    let ms = Duration::from_millis;
    for (keys, [first, second, longest]) in
        [(BESIDE_HTTP, [ms(50), ms(100), ms(10_000)]), (ALONE, [ms(0), ms(50), ms(1000)])]
    {
        run(async move {
            let scene = scene(keys);
            scene.upstream.set_down(true);
            assert!(scene.trunk(&light()).is_none());
            settled().await;
            let mut rests = Vec::new();
            for _ in 0..12 {
                rests.push(scene.rest().await);
            }
            let near = |rest: Duration, wanted: Duration| {
                rest >= wanted && rest <= wanted + Duration::from_millis(2)
            };
            assert!(near(rests[0], first) && near(rests[1], second), "{keys}: {rests:?}");
            let steps = rests[1..].windows(2);
            let doubles = |step: &[Duration]| near(step[1], (step[0] * 2).min(longest));
            assert!(steps.clone().take(3).all(doubles), "{keys}: {rests:?}");
            assert!(near(rests[11], longest), "{keys}: {rests:?}");
            // An answer ends the row.
            scene.upstream.set_down(false);
            scene.rest().await;
            assert!(scene.trunk(&light()).is_some());
            scene.multiplex.answered(&light(), 10);
            scene.upstream.hang_up();
            settled().await;
            assert_eq!(scene.counts.multiplexed_lost.get(), 1);
            let rest = scene.rest().await;
            assert!(near(rest, first), "{keys}: {rest:?}");
        });
    }
}

#[test]
fn who_waits_is_told() {
    run(async {
        let scene = scene(&format!("{ALONE}\ncalls_per_connection_max = 1\nconnections_max = 1"));
        let wait = |deadline: Duration| {
            let (multiplex, ask) = (Rc::clone(&scene.multiplex), light());
            let deadline = Instant::now() + deadline;
            tokio::task::spawn_local(async move { multiplex.wait(&ask, deadline).await })
        };
        // For the first to be opened.
        assert!(wait(DEADLINE).await.unwrap().is_ok());
        let call = scene.call(&light()).await;
        // For nothing.
        let began = Instant::now();
        assert_eq!(wait(Duration::from_secs(3)).await.unwrap().err(), Some(NoTrunk));
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        // For another call to end.
        let waiting = wait(DEADLINE);
        settled().await;
        assert!(!waiting.is_finished());
        drop(call);
        drop(scene.multiplex.leaving());
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), Duration::from_secs(3), "at once");
        // For one that cannot be opened.
        scene.upstream.set_down(true);
        scene.upstream.hang_up();
        settled().await;
        assert_eq!(wait(DEADLINE).await.unwrap().err(), Some(NoTrunk));
        assert_eq!(began.elapsed(), Duration::from_secs(3), "nobody waits for a failure");
    });
}

#[test]
fn who_waits_for_a_small_place_is_told_though_another_waits_for_a_large_one() {
    run(async {
        let scene = scene(&format!("{ALONE}\ncalls_per_connection_max = 1\nconnections_max = 1"));
        let (small, _large) = (scene.call(&light()).await, scene.call(&heavy()).await);
        let wait = |ask: UpstreamRequest<'static>| {
            let (multiplex, deadline) = (Rc::clone(&scene.multiplex), Instant::now() + DEADLINE);
            tokio::task::spawn_local(async move { multiplex.wait(&ask, deadline).await })
        };
        let began = Instant::now();
        let (for_large, for_small) = (wait(heavy()), wait(light()));
        settled().await;
        let leaving = scene.multiplex.leaving();
        drop(small);
        drop(leaving);
        assert!(for_small.await.unwrap().is_ok());
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert!(!for_large.is_finished());
    });
}

#[test]
fn what_is_idle_is_closed_but_for_the_first() {
    run(async {
        let scene =
            scene(&format!("{ALONE}\ncalls_per_connection_max = 1\nidle_timeout = \"10s\""));
        let calls = [scene.call(&light()).await, scene.call(&light()).await];
        scene.call(&heavy()).await;
        drop(calls);
        scene.multiplex.sweep(Instant::now() + Duration::from_secs(9));
        settled().await;
        assert_eq!(scene.counts.multiplexed_open.get(), 3);
        scene.multiplex.sweep(Instant::now() + Duration::from_secs(11));
        settled().await;
        assert_eq!(scene.counts.multiplexed_open.get(), 2, "one of each lane is left");
        assert_eq!(scene.counts.multiplexed_lost.get(), 0, "we closed it");
        assert!(scene.trunk(&light()).is_some(), "and nothing rests for it");
        scene.multiplex.close();
        settled().await;
        assert_eq!(scene.counts.multiplexed_open.get(), 0);
        assert!(scene.opened(&light()).await.is_none(), "none is opened any more");
    });
}

#[test]
fn long_calls_are_not_for_it() {
    run(async {
        let scene = scene(&format!("{ALONE}\nmessage_bytes_max = 1024"));
        let long = |bytes: usize| UpstreamRequest {
            params: Some(Cow::Owned(vec![b' '; bytes])),
            ..light()
        };
        let envelope = call_bytes(LONGEST_ID, "eth_getBalance", Some(b""));
        assert!(scene.multiplex.takes(&long(1024 - envelope)));
        assert!(!scene.multiplex.takes(&long(1025 - envelope)));
    });
}
