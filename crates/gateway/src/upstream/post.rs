//! One HTTP request to an upstream and its answer: over HTTP/2 where the upstream takes it and that
//! is asked for, over a connection of HTTP/1.1 otherwise.
//!
//! It knows HTTP and bytes. What is sent, one call or several, and what the answer means is for
//! `send.rs` and `gather.rs`.

use tokio::time::Instant;
use wire::quantity::write_decimal;

use crate::call::failure::{Failure, Kind, Sent};
use crate::io::memory::Reservation;
use crate::policy::memory::Purpose;
use crate::upstream::dial::Way;
use crate::upstream::http1::{Connection, ExchangeFault, ExchangeFaultKind, HttpAnswer};
use crate::upstream::thread::UpstreamContext;

/// What is sent.
pub(crate) trait Body {
    /// Its length.
    fn bytes(&self) -> usize;
    /// Appends it.
    fn write(&self, out: &mut Vec<u8>);
}

/// An exchange that came to nothing.
#[derive(Debug, Clone)]
pub(crate) struct Broken {
    pub(crate) failure: Failure,
    /// Whether it failed on a connection that had carried calls before and then closed silently.
    pub(crate) stale_connection: bool,
}

impl Broken {
    pub(crate) fn new(upstream: usize, kind: Kind, sent: Sent) -> Broken {
        Broken { failure: Failure::of_upstream(upstream, kind, sent), stale_connection: false }
    }
}

/// Sends a body to an upstream and reads the answer, by `deadline`; over a new connection if it is
/// to be `fresh`. Of the answer's body at most so many bytes are taken.
///
/// # Errors
/// What broke.
pub(crate) async fn post(
    cx: &UpstreamContext,
    upstream: usize,
    body: &impl Body,
    deadline: Instant,
    fresh: bool,
    response_bytes_max: usize,
) -> Result<HttpAnswer, Broken> {
    if let Some(http2) = &cx.upstreams[upstream].http2 {
        // Apart, so that calls over HTTP/1.1 need no room for it.
        let posted = Box::pin(http2.post(cx, upstream, body, deadline, response_bytes_max)).await;
        if let Some(posted) = posted {
            return posted;
        }
    }
    let state = &cx.topology.upstreams[upstream];
    let pool = &cx.upstreams[upstream].pool;
    let refused = || Broken::new(upstream, Kind::Connect, Sent::No);
    let _lease = pool.lease(deadline).await.ok_or_else(refused)?;
    let reused = if fresh { None } else { pool.reuse(cx.recent()) };
    let mut connection = match reused {
        Some(connection) => connection,
        None => {
            cx.counters.upstreams[upstream].connections_opened.add(1);
            // Apart, because most calls find a connection and need no room for making one.
            let dial = state.dial.connect(&state.config, Way::Http);
            match Box::pin(tokio::time::timeout_at(deadline, dial)).await {
                Ok(Ok(stream)) => Connection::new(stream, pool.heads()),
                Ok(Err(error)) => {
                    tracing::debug!(upstream = &*state.config.name, %error, "cannot connect");
                    return Err(refused());
                }
                Err(_) => return Err(refused()),
            }
        }
    };
    let was_used = connection.used;
    let mut request = cx.buffers.take();
    request.extend_from_slice(&state.request_head);
    write_decimal(&mut request, body.bytes() as u64);
    request.extend_from_slice(b"\r\n\r\n");
    body.write(&mut request);
    let mut hold = Reservation::new(&cx.topology.registry.memory, Purpose::Upstream);
    let exchanged = connection.exchange(&request, deadline, response_bytes_max, &mut hold).await;
    cx.buffers.give(request);
    match exchanged {
        Ok(answer) => {
            if answer.reusable && state.config.keep_alive {
                pool.keep(connection, cx.recent());
            }
            Ok(answer)
        }
        Err(fault) => Err(broken(upstream, fault, was_used)),
    }
}

fn broken(upstream: usize, fault: ExchangeFault, was_used: bool) -> Broken {
    let kind = match fault.kind {
        ExchangeFaultKind::Late => Kind::Deadline,
        ExchangeFaultKind::Closed | ExchangeFaultKind::Io(_) => Kind::Closed,
        ExchangeFaultKind::Malformed => Kind::Malformed,
        ExchangeFaultKind::TooLarge => Kind::TooLarge,
        ExchangeFaultKind::Memory => Kind::Memory,
    };
    let sent = if fault.answered { Sent::Yes } else { Sent::Maybe };
    let stale_connection = was_used && !fault.answered && kind == Kind::Closed;
    Broken { failure: Failure::of_upstream(upstream, kind, sent), stale_connection }
}
