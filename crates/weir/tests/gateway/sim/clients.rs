//! Simulated clients. Each client sends requests one after the other over its own connection:
//! single calls and batches. Some clients follow the chain: they send a request at each new block.
//! In one of 100 cases, a client disconnects before the response.

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
use super::checker::{Checker, SentRequest};
use super::connection::Connection;
use super::failures::Cluster;

/// Maximum number of calls of a batch.
const BATCH_MAX: usize = 10;
/// Maximum time between a new block and the request of a client that follows the chain, in ms. The
/// gateway discovers the block within this time.
const FOLLOW_MS: u64 = 150;

/// State that all clients share.
pub(crate) struct ClientContext {
    pub(crate) checker: Checker,
    pub(crate) cluster: Cluster,
    /// Number of calls that the clients still have to send.
    pub(crate) calls_left: Cell<u64>,
    /// The longest time between two requests of one client.
    pub(crate) pause: Duration,
}

/// The behavior of one client.
#[derive(Clone, Copy)]
pub(crate) struct Behavior {
    /// The client's number, from 0.
    pub(crate) client: u64,
    pub(crate) seed: u64,
    /// True if the client sends a request at each new block.
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
        let request = context.random_request(behavior, &mut rng, &mut next_id);
        let body = body_of(&request);
        if connection.is_none() {
            connection = Some(Connection::new(connect().await.expect("the gateway is up")));
        }
        let Some(open) = &mut connection else { continue };
        let response = match open.send(&body).await {
            // The client disconnects. Other clients, whose calls the gateway coalesced with this
            // client's call, must still get their responses.
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
        context.checker.judge(&context.cluster, &request, response);
    }
}

impl ClientContext {
    /// Waits until the time of the client's next request.
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

    /// Returns a random request, which is a call or a batch.
    fn random_request(
        &self,
        behavior: Behavior,
        rng: &mut SmallRng,
        next_id: &mut u64,
    ) -> SentRequest {
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
        SentRequest { client: behavior.client, calls, batch, sent_at: Instant::now() }
    }
}

/// Returns a request id as raw JSON, in a random form.
fn random_id(client: u64, number: u64, rng: &mut SmallRng) -> String {
    match rng.random_range(0..4) {
        0 => number.to_string(),
        1 => format!("\"{client}-{number}\""),
        // A 64-bit floating-point number cannot represent this id exactly.
        2 => format!("9007199254740993{number}"),
        _ => format!("\"\\u0063 {number}\""),
    }
}

/// Returns the JSON body of a request.
fn body_of(request: &SentRequest) -> Vec<u8> {
    let call_text = |(id, call): &(String, calls::Call)| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{}\",\"params\":{}}}",
            call.method, call.params
        )
    };
    let calls: Vec<String> = request.calls.iter().map(call_text).collect();
    if request.batch { format!("[{}]", calls.join(",")) } else { calls.concat() }.into_bytes()
}
