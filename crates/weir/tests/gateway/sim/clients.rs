//! Clients: each sends one request after the other over its own connection, some alone, some in
//! batches. Some follow the chain, all of them at each new block; some leave before the answer.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::calls;
use super::connection::Connection;
use super::court::{Court, Sent};
use super::trouble::Cluster;

/// Calls of a batch.
const BATCH_MAX: usize = 10;
/// Delay of chain followers after a block; the gateway detects the block within it.
const FOLLOW_MS: u64 = 150;

/// What clients have in common.
pub(crate) struct Crowd {
    pub(crate) court: Court,
    pub(crate) cluster: Cluster,
    /// Calls that are still to be made.
    pub(crate) calls_left: Cell<u64>,
    /// The longest time between two requests of one client.
    pub(crate) pause: Duration,
}

/// How one of them behaves.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    /// Its number.
    pub(crate) client: u64,
    pub(crate) seed: u64,
    /// True if it calls at each new block.
    pub(crate) follows: bool,
}

/// Sends requests until no calls are left.
pub(crate) async fn run<S, F>(crowd: Rc<Crowd>, manner: Manner, connect: impl Fn() -> F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<S>>,
{
    let mut rng = SmallRng::seed_from_u64(manner.seed);
    let mut connection = None;
    let mut next_id = 0;
    while crowd.calls_left.get() > 0 {
        crowd.wait(manner, &mut rng).await;
        let sent = crowd.request(manner, &mut rng, &mut next_id);
        let body = body_of(&sent);
        if connection.is_none() {
            connection = Some(Connection::new(connect().await.expect("the gateway is up")));
        }
        let Some(open) = &mut connection else { continue };
        let came = match open.send(&body).await {
            // Sometimes it disconnects; coalesced callers must still get their responses.
            Ok(()) if rng.random_bool(0.01) => {
                // Sleeps: virtual time.
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..10))).await;
                crowd.court.account.borrow_mut().left += 1;
                connection = None;
                continue;
            }
            Ok(()) => open.receive().await,
            Err(error) => Err(error),
        };
        if came.is_err() {
            connection = None;
        }
        crowd.court.judge(&crowd.cluster, &sent, came);
    }
}

impl Crowd {
    async fn wait(&self, manner: Manner, rng: &mut SmallRng) {
        if !manner.follows {
            let micros = rng.random_range(0..=self.pause.as_micros() as u64);
            return tokio::time::sleep(Duration::from_micros(micros)).await; // Sleeps: virtual time.
        }
        let world = &self.court.world;
        let next = world.instant_of(world.height_at(Instant::now()) + 1);
        let after = Duration::from_millis(rng.random_range(0..FOLLOW_MS));
        tokio::time::sleep_until(next + after).await;
    }

    fn request(&self, manner: Manner, rng: &mut SmallRng, next_id: &mut u64) -> Sent {
        let batch = rng.random_bool(0.1);
        let count = if batch { rng.random_range(1..=BATCH_MAX) } else { 1 };
        let calls = (0..count).map(|_| {
            *next_id += 1;
            let call = if manner.follows {
                calls::draw_of_head(&self.court.world, rng)
            } else {
                calls::draw(&self.court.world, rng)
            };
            (id(manner.client, *next_id, rng), call)
        });
        let calls: Vec<_> = calls.collect();
        self.calls_left.set(self.calls_left.get().saturating_sub(count as u64));
        Sent { client: manner.client, calls, batch, at: Instant::now() }
    }
}

/// A raw id of one of the allowed forms.
fn id(client: u64, number: u64, rng: &mut SmallRng) -> String {
    match rng.random_range(0..4) {
        0 => number.to_string(),
        1 => format!("\"{client}-{number}\""),
        // Beyond what a float holds.
        2 => format!("9007199254740993{number}"),
        _ => format!("\"\\u0063 {number}\""),
    }
}

fn body_of(sent: &Sent) -> Vec<u8> {
    let one = |(id, call): &(String, calls::Call)| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\",\"params\":{}}}",
            call.method, call.params
        )
    };
    let all: Vec<String> = sent.calls.iter().map(one).collect();
    if sent.batch { format!("[{}]", all.join(",")) } else { all.concat() }.into_bytes()
}
