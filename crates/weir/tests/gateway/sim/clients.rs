//! Simulated clients. Each sends one request after the other over its own connection: single calls
//! and batches. Some clients call at each new block. Rarely, a client disconnects before the
//! response.

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
use super::checker::{Checker, Sent};
use super::connection::Connection;
use super::failures::Cluster;

/// Maximum number of calls of a batch.
const BATCH_MAX: usize = 10;
/// Maximum delay of a chain follower's call after a new block. The gateway discovers the block
/// within this time.
const FOLLOW_MS: u64 = 150;

/// State that all clients share.
pub(crate) struct ClientContext {
    pub(crate) checker: Checker,
    pub(crate) cluster: Cluster,
    /// Number of calls that are still to be sent.
    pub(crate) calls_left: Cell<u64>,
    /// The longest time between two requests of one client.
    pub(crate) pause: Duration,
}

/// The behavior of one client.
#[derive(Clone, Copy)]
pub(crate) struct Behavior {
    /// The client's number.
    pub(crate) client: u64,
    pub(crate) seed: u64,
    /// True if it calls at each new block.
    pub(crate) follows: bool,
}

/// Sends requests until no calls are left.
pub(crate) async fn run<S, F>(
    context: Rc<ClientContext>,
    behavior: Behavior,
    connect: impl Fn() -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<S>>,
{
    let mut rng = SmallRng::seed_from_u64(behavior.seed);
    let mut connection = None;
    let mut next_id = 0;
    while context.calls_left.get() > 0 {
        context.wait_for_turn(behavior, &mut rng).await;
        let sent = context.random_request(behavior, &mut rng, &mut next_id);
        let body = body_of(&sent);
        if connection.is_none() {
            connection = Some(Connection::new(connect().await.expect("the gateway is up")));
        }
        let Some(open) = &mut connection else { continue };
        let response = match open.send(&body).await {
            // The client sometimes disconnects; coalesced callers must still get their responses.
            Ok(()) if rng.random_bool(0.01) => {
                // Sleeps: virtual time.
                tokio::time::sleep(Duration::from_millis(rng.random_range(0..10))).await;
                context.checker.tally.borrow_mut().disconnected += 1;
                connection = None;
                continue;
            }
            Ok(()) => open.receive().await,
            Err(error) => Err(error),
        };
        if response.is_err() {
            connection = None;
        }
        context.checker.judge(&context.cluster, &sent, response);
    }
}

impl ClientContext {
    /// Waits until the client's next request.
    async fn wait_for_turn(&self, behavior: Behavior, rng: &mut SmallRng) {
        if !behavior.follows {
            let micros = rng.random_range(0..=self.pause.as_micros() as u64);
            return tokio::time::sleep(Duration::from_micros(micros)).await; // Sleeps: virtual time.
        }
        let world = &self.checker.world;
        let next = world.instant_of(world.height_at(Instant::now()) + 1);
        let after = Duration::from_millis(rng.random_range(0..FOLLOW_MS));
        tokio::time::sleep_until(next + after).await;
    }

    /// Returns a random request: a call or a batch.
    fn random_request(&self, behavior: Behavior, rng: &mut SmallRng, next_id: &mut u64) -> Sent {
        let batch = rng.random_bool(0.1);
        let count = if batch { rng.random_range(1..=BATCH_MAX) } else { 1 };
        let calls = (0..count).map(|_| {
            *next_id += 1;
            let call = if behavior.follows {
                calls::random_head_call(&self.checker.world, rng)
            } else {
                calls::random_call(&self.checker.world, rng)
            };
            (random_id(behavior.client, *next_id, rng), call)
        });
        let calls: Vec<_> = calls.collect();
        self.calls_left.set(self.calls_left.get().saturating_sub(count as u64));
        Sent { client: behavior.client, calls, batch, at: Instant::now() }
    }
}

/// Returns a request id as raw JSON, in a random form.
fn random_id(client: u64, number: u64, rng: &mut SmallRng) -> String {
    match rng.random_range(0..4) {
        0 => number.to_string(),
        1 => format!("\"{client}-{number}\""),
        // A double cannot represent this number.
        2 => format!("9007199254740993{number}"),
        _ => format!("\"\\u0063 {number}\""),
    }
}

/// Returns the JSON body of a request.
fn body_of(sent: &Sent) -> Vec<u8> {
    let call_text = |(id, call): &(String, calls::Call)| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\",\"params\":{}}}",
            call.method, call.params
        )
    };
    let calls: Vec<String> = sent.calls.iter().map(call_text).collect();
    if sent.batch { format!("[{}]", calls.join(",")) } else { calls.concat() }.into_bytes()
}
