//! Hears from a node itself that it has a new head, where it has a connection for that: then it is
//! polled at once, and the served head turns with the block and not with the next poll.
//!
//! The upstream's word moves nothing by itself; what its poll shows is judged as ever. Should it
//! tell nothing more, the polls go on at their interval, and the connection is opened anew.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wire::family::Family;
use wire::response::{Outcome, parse_response};

use crate::config::upstream::Upstream;
use crate::upstream::dial::Dial;
use crate::upstream::multiplex;
use crate::upstream::trunk::{Settings, Trunk};
use crate::upstream::watch::line::Line;

/// A header with many members is some kB, and whatever else an upstream says is not longer.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Nesting of what it says.
const DEPTH_MAX: usize = 32;
/// How long an upstream has to say that it will tell.
const PATIENCE: Duration = Duration::from_secs(5);
/// First and longest rest after a loss.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(30);
/// How long an upstream is left alone that does not know what it is asked for.
const REFUSED_REST: Duration = Duration::from_secs(600);
/// New heads that polls have shown since the upstream last told of one, after which it is doubted.
const UNTOLD_MAX: u32 = 3;

/// What an upstream tells of itself; ends when it is dropped.
pub(super) struct News {
    told: Rc<Told>,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Told {
    head: Notify,
    doubt: Notify,
    /// New heads that it did not tell of.
    untold: Cell<u32>,
}

impl News {
    /// Listens to the upstream of a line, if it can tell anything.
    pub(super) fn of(line: &Line, family: Family) -> News {
        let told = Rc::<Told>::default();
        let own = &line.topology.upstreams[line.upstream];
        let method = match family {
            Family::Ethereum => "eth_subscribe",
            Family::Harmony => "hmy_subscribe",
            Family::Bitcoin => return News { told, task: None },
        };
        if own.config.multiplexed().is_none() {
            return News { told, task: None };
        }
        let (dial, upstream) = (own.dial.clone(), own.config.clone());
        let task = tokio::task::spawn_local(hear(dial, upstream, method, Rc::clone(&told)));
        News { told, task: Some(task.abort_handle()) }
    }

    /// Waits until the upstream tells of a new head.
    pub(super) async fn head(&self) {
        self.told.head.notified().await;
    }

    /// A poll has shown a new head.
    pub(super) fn saw_head(&self) {
        let untold = self.told.untold.get() + 1;
        self.told.untold.set(untold);
        if untold >= UNTOLD_MAX {
            self.told.untold.set(0);
            self.told.doubt.notify_waiters();
        }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Listens, again and again.
async fn hear(dial: Dial, upstream: Upstream, method: &'static str, told: Rc<Told>) {
    let mut rest = REST_MIN;
    loop {
        let began = Instant::now();
        let refused = hear_once(&dial, &upstream, method, &told).await == Some(Refused);
        if refused {
            tracing::debug!(upstream = &*upstream.name, "an upstream does not tell of its heads");
        } else if began.elapsed() > REST_MAX {
            rest = REST_MIN;
        }
        tokio::time::sleep(if refused { REFUSED_REST } else { rest }).await;
        rest = (rest * 2).min(REST_MAX);
    }
}

/// The upstream does not know what it was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Refused;

/// Listens until the connection is lost, or the upstream tells nothing more.
async fn hear_once(
    dial: &Dial,
    upstream: &Upstream,
    method: &str,
    told: &Rc<Told>,
) -> Option<Refused> {
    let (stream, websocket, read) = multiplex::open(dial, upstream).await.ok()?;
    let teller = Rc::clone(told);
    let settings = Settings {
        response_bytes_max: MESSAGE_BYTES_MAX,
        ping_interval: upstream.ping_interval,
        notice: Rc::new(move |_| {
            teller.untold.set(0);
            teller.head.notify_one();
        }),
    };
    let (trunk, driver) = Trunk::new(stream, websocket, read, settings);
    let mut driver = std::pin::pin!(driver);
    let now = Instant::now();
    let call = trunk.call(method, Some(b"[\"newHeads\"]"), now, now + PATIENCE)?;
    let answered = tokio::select! {
        _ = &mut driver => return None,
        answered = call => answered.ok()?,
    };
    match parse_response(&answered.1, DEPTH_MAX).map(|answer| answer.outcome) {
        Ok(Outcome::Result(_)) => {}
        _ => return Some(Refused),
    }
    tokio::select! {
        _ = driver => {}
        () = told.doubt.notified() => {}
    }
    None
}
