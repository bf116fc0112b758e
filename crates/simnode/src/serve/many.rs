//! One connection with many calls at a time: each message is served beside the others, as geth does,
//! and answers go out as they come.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep};

use super::subscribe::Subscriptions;
use crate::node::{Node, Served};

/// Messages of one connection that are served at a time; further ones are not read meanwhile.
pub(super) const SERVED_MAX: usize = 1024;
/// Answers that wait to be written.
pub(super) const ANSWERS_MAX: usize = 64;
/// Bytes written at a time where an answer comes slowly.
const SLOW_PIECE: usize = 64;

/// What is to be written.
pub(super) enum Said {
    Answer(Served),
    /// A whole frame.
    Frame(Vec<u8>),
}

/// How the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Close,
    Reset,
}

/// The messages that are being served.
pub(super) struct Serving {
    node: Arc<Node>,
    tasks: JoinSet<()>,
    subscriptions: Subscriptions,
    answers: mpsc::Sender<Said>,
}

impl Serving {
    pub(super) fn new(node: Arc<Node>, answers: mpsc::Sender<Said>) -> Serving {
        let subscriptions = Subscriptions::default();
        Serving { node, tasks: JoinSet::new(), subscriptions, answers }
    }

    /// Serves a message beside the others; waits while too many are.
    pub(super) async fn begin(&mut self, message: Bytes) {
        while self.tasks.len() >= SERVED_MAX {
            self.tasks.join_next().await;
        }
        while self.tasks.try_join_next().is_some() {}
        if let Some(served) = self.subscriptions.answer(&self.node, &message, &self.answers) {
            let _ = self.answers.send(Said::Answer(served)).await;
            return;
        }
        let (node, answers) = (Arc::clone(&self.node), self.answers.clone());
        self.tasks.spawn(async move {
            let served = node.serve(&message).await;
            // Without a writer the connection has ended.
            let _ = answers.send(Said::Answer(served)).await;
        });
    }
}

/// Writes answers until the connection is to end, or nobody reads. `frame` puts a message into what it
/// is sent in.
pub(super) async fn write<W>(
    mut stream: W,
    mut answers: mpsc::Receiver<Said>,
    frame: impl Fn(&[u8]) -> Vec<u8>,
) -> End
where
    W: AsyncWrite + Unpin,
{
    while let Some(said) = answers.recv().await {
        let written = match said {
            Said::Frame(bytes) => stream.write_all(&bytes).await,
            Said::Answer(Served::Close) => return End::Close,
            Said::Answer(Served::Reset) => return End::Reset,
            // There is no status here; who would have sent one says nothing readable.
            Said::Answer(Served::Whole { body, .. }) if body.is_empty() => Ok(()),
            Said::Answer(Served::Whole { body, .. }) => stream.write_all(&frame(&body)).await,
            Said::Answer(Served::Truncated(body)) => {
                let whole = frame(&body);
                let _ = stream.write_all(&whole[..whole.len() / 2]).await;
                let _ = stream.flush().await;
                return End::Close;
            }
            Said::Answer(Served::Slow { body, bytes_per_second }) => {
                slowly(&mut stream, &frame(&body), bytes_per_second).await
            }
        };
        if written.is_err() || stream.flush().await.is_err() {
            return End::Close;
        }
    }
    End::Close
}

async fn slowly<W>(stream: &mut W, bytes: &[u8], bytes_per_second: u32) -> std::io::Result<()>
where
    W: AsyncWrite + Unpin,
{
    for piece in bytes.chunks(SLOW_PIECE) {
        sleep(Duration::from_secs_f64(piece.len() as f64 / f64::from(bytes_per_second.max(1))))
            .await;
        stream.write_all(piece).await?;
        stream.flush().await?;
    }
    Ok(())
}
