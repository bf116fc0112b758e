//! The write side of a connection with many calls in flight: a queue of responses and WebSocket
//! frames, and the function that writes them.

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Duration, sleep};

use crate::node::Delivery;

/// Maximum number of items in the queue.
pub(super) const REPLIES_MAX: usize = 64;
/// Bytes per write of a slow response.
const SLOW_CHUNK_BYTES: usize = 64;

/// The next item to write.
pub(super) enum Outgoing {
    /// A response. The writer encodes it for the transport.
    Reply(Delivery),
    /// A complete WebSocket frame, such as a pong.
    Frame(Vec<u8>),
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The connection is closed in the orderly way.
    Close,
    /// The connection is reset.
    Reset,
}

/// Writes the items of the queue until a fault or the client ends the connection. `encode` encodes
/// a message for the transport.
pub(super) async fn write_outgoing<W>(
    mut stream: W,
    mut replies: mpsc::Receiver<Outgoing>,
    encode: impl Fn(&[u8]) -> Vec<u8>,
) -> ConnectionEnd
where
    W: AsyncWrite + Unpin,
{
    while let Some(outgoing) = replies.recv().await {
        let write_result = match outgoing {
            Outgoing::Frame(bytes) => stream.write_all(&bytes).await,
            Outgoing::Reply(Delivery::Close) => return ConnectionEnd::Close,
            Outgoing::Reply(Delivery::Reset) => return ConnectionEnd::Reset,
            // A WebSocket or Unix socket has no HTTP status, so a response without a body is not
            // sent.
            Outgoing::Reply(Delivery::Whole { body, .. }) if body.is_empty() => Ok(()),
            Outgoing::Reply(Delivery::Whole { body, .. }) => stream.write_all(&encode(&body)).await,
            Outgoing::Reply(Delivery::Truncated(body)) => {
                let message = encode(&body);
                let _ = stream.write_all(&message[..message.len() / 2]).await;
                let _ = stream.flush().await;
                return ConnectionEnd::Close;
            }
            Outgoing::Reply(Delivery::Slow { body, bytes_per_second }) => {
                write_slowly(&mut stream, &encode(&body), bytes_per_second).await
            }
        };
        if write_result.is_err() || stream.flush().await.is_err() {
            return ConnectionEnd::Close;
        }
    }
    ConnectionEnd::Close
}

/// Writes bytes in small chunks, with a pause before each.
async fn write_slowly<W>(stream: &mut W, bytes: &[u8], bytes_per_second: u32) -> std::io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    for chunk in bytes.chunks(SLOW_CHUNK_BYTES) {
        sleep(Duration::from_secs_f64(chunk.len() as f64 / f64::from(bytes_per_second.max(1))))
            .await;
        stream.write_all(chunk).await?;
        stream.flush().await?;
    }
    Ok(())
}
