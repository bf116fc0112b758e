//! The state of one serving thread under one configuration.
//!
//! Threads share state only through [`Snapshot`], so a context needs no locks. A request uses one
//! context from its first byte to its response, even if a reload replaces the context meanwhile.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::access::token::Tokens;
use crate::cache::coalesce::InFlightCalls;
use crate::cache::redis::RedisTier;
use crate::cache::redis::zones::SharedLimitClient;
use crate::io::random::Random;
use crate::metrics::thread::Counters;
use crate::state::snapshot::Snapshot;
use crate::upstream::thread::Upstreams;

/// The clock of request limits has this value at the start of the process, in milliseconds (about
/// 35 years). So times before the start are positive too.
const LIMITS_CLOCK_START_MS: u64 = 1 << 40;

/// Length of an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
const HTTP_DATE_BYTES: usize = 29;

/// The state of one serving thread under one configuration.
pub(crate) struct ThreadContext {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The state of this thread for calling upstreams, such as connections.
    pub(crate) upstreams: Rc<Upstreams>,
    pub(crate) counters: Arc<Counters>,
    /// The calls in flight that an equal call can join instead of calling an upstream itself.
    pub(crate) in_flight_calls: InFlightCalls,
    /// The Redis tier of the cache; `None` if it is off.
    pub(crate) redis: Option<Rc<RedisTier>>,
    /// The client for shared request-limit zones; `None` if no zone is shared.
    pub(crate) shared_limits: Option<Rc<SharedLimitClient>>,
    /// The cache of verified tokens; `None` if tokens are not accepted.
    pub(crate) tokens: Option<RefCell<Tokens>>,
    /// The thread's index among the serving threads.
    pub(crate) index: usize,
    /// The value of the `date` header of responses.
    date: RefCell<Date>,
}

/// The current HTTP date, formatted at most once per second.
struct Date {
    /// When the text must be formatted again; `None` before the first time.
    outdated_at: Option<Instant>,
    text: [u8; HTTP_DATE_BYTES],
}

/// The context that the new requests of a thread use. A reload replaces it. A request in flight
/// keeps its context.
pub(crate) struct CurrentContext(RefCell<Rc<ThreadContext>>);

impl fmt::Debug for CurrentContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentContext").field("index", &self.get().index).finish_non_exhaustive()
    }
}

impl CurrentContext {
    /// Returns the first context of a thread. `index` is less than `config.server.threads`. `seed`
    /// is the seed of random numbers, which all threads share.
    pub(crate) fn new(snapshot: Arc<Snapshot>, index: usize, seed: u64) -> Rc<CurrentContext> {
        Rc::new(CurrentContext(RefCell::new(ThreadContext::new(snapshot, index, seed))))
    }

    /// Returns the context for a request that starts now.
    pub(crate) fn get(&self) -> Rc<ThreadContext> {
        Rc::clone(&self.0.borrow())
    }

    /// Uses this snapshot for all new requests.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) {
        let context = self.get().reload(snapshot);
        self.0.replace(context);
    }
}

impl ThreadContext {
    /// Returns the context of a thread. `index` is less than `config.server.threads`.
    pub(crate) fn new(snapshot: Arc<Snapshot>, index: usize, seed: u64) -> Rc<ThreadContext> {
        let (topology, counters) = (&snapshot.topology, &snapshot.counters[index]);
        let random = Random::new(seed, index);
        let upstreams = Upstreams::new(Arc::clone(topology), Arc::clone(counters), random);
        ThreadContext::build(snapshot, upstreams, index, None)
    }

    /// Returns the context under a new configuration.
    pub(crate) fn reload(&self, snapshot: Arc<Snapshot>) -> Rc<ThreadContext> {
        let (topology, counters) = (&snapshot.topology, &snapshot.counters[self.index]);
        let upstreams = self.upstreams.reload(Arc::clone(topology), Arc::clone(counters));
        ThreadContext::build(snapshot, upstreams, self.index, self.shared_limits.as_deref())
    }

    /// Builds a context. `shared_limits` is the client of the previous context, if any.
    fn build(
        snapshot: Arc<Snapshot>,
        upstreams: Rc<Upstreams>,
        index: usize,
        shared_limits: Option<&SharedLimitClient>,
    ) -> Rc<ThreadContext> {
        let counters = Arc::clone(&snapshot.counters[index]);
        let redis = snapshot.redis.as_ref();
        Rc::new(ThreadContext {
            upstreams,
            in_flight_calls: InFlightCalls::default(),
            redis: redis.and_then(|redis| {
                RedisTier::start(redis, &snapshot.topology, snapshot.cache.as_ref(), &counters)
            }),
            shared_limits: SharedLimitClient::start(&snapshot.topology, &counters, shared_limits),
            // The cache starts empty, because the issuers' verification keys may have changed.
            tokens: Tokens::new(&snapshot.config).map(RefCell::new),
            index,
            date: RefCell::new(Date { outdated_at: None, text: [b' '; HTTP_DATE_BYTES] }),
            counters,
            snapshot,
        })
    }

    /// Reads the clock and returns the current time. Must be called after each wait, because
    /// `instant` and `now` return the time of the last tick. See [`Upstreams::tick`].
    pub(crate) fn tick(&self) -> Instant {
        self.upstreams.tick()
    }

    /// Returns the time of the last tick. See [`Upstreams::instant`].
    pub(crate) fn instant(&self) -> Instant {
        self.upstreams.instant()
    }

    /// Returns the time of the last tick, counted from the start of the process. See
    /// [`Upstreams::now`].
    pub(crate) fn now(&self) -> Duration {
        self.upstreams.now()
    }

    /// Returns the time of the clock of request limits in ms: [`ThreadContext::now`] plus
    /// [`LIMITS_CLOCK_START_MS`]. Without that offset, a time that Redis reports from before the
    /// start of this process would be negative.
    pub(crate) fn now_ms(&self) -> u64 {
        LIMITS_CLOCK_START_MS + self.now().as_millis() as u64
    }

    /// Returns the current time as an HTTP date.
    pub(crate) fn date(&self) -> [u8; HTTP_DATE_BYTES] {
        let now = self.instant();
        let mut date = self.date.borrow_mut();
        if date.outdated_at.is_none_or(|outdated_at| now >= outdated_at) {
            date.outdated_at = Some(now + Duration::from_secs(1));
            let text = httpdate::fmt_http_date(std::time::SystemTime::now());
            date.text.copy_from_slice(&text.as_bytes()[..HTTP_DATE_BYTES]);
        }
        date.text
    }

    /// Closes upstream connections that have been idle for too long, and updates a gauge. Called
    /// each second.
    pub(crate) fn sweep(&self) {
        self.upstreams.sweep();
        self.counters.calls_in_flight.set(self.in_flight_calls.len() as u64);
    }
}
