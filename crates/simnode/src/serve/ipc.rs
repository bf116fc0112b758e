//! A local socket in front of a node, as geth has it: JSON values one after the other.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use wire::json::split::{Cut, Splitter};

use super::many::{ANSWERS_MAX, Serving, write};
use super::{BODY_BYTES_MAX, CONNECTIONS_MAX};
use crate::node::Node;

/// A local socket that listens. Dropping it closes it, with all connections, and removes its file.
pub struct IpcListening {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for IpcListening {
    fn drop(&mut self) {
        self.task.abort();
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves the node over a local socket at this path. Runs on the current tokio runtime.
///
/// # Errors
/// The path is taken, or no file can be made there.
pub fn listen_ipc(node: &Arc<Node>, path: &Path) -> io::Result<IpcListening> {
    let listener = UnixListener::bind(path)?;
    let node = Arc::clone(node);
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            while connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            while connections.try_join_next().is_some() {}
            match listener.accept().await {
                Ok((stream, _)) => {
                    connections.spawn(serve(Arc::clone(&node), stream));
                }
                // No free descriptor: the next one.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    Ok(IpcListening { path: path.to_owned(), task })
}

async fn serve(node: Arc<Node>, stream: UnixStream) {
    let (mut read, written) = stream.into_split();
    let (answers, inbox) = mpsc::channel(ANSWERS_MAX);
    let mut serving = Serving::new(node, answers);
    let line = |message: &[u8]| [message, b"\n"].concat();
    let take = async {
        let (mut splitter, mut piece, mut message) =
            (Splitter::default(), Vec::with_capacity(16 << 10), Vec::new());
        while read.read_buf(&mut piece).await.is_ok_and(|bytes| bytes > 0) {
            let mut at = 0;
            while at < piece.len() {
                let (used, ends) = match splitter.next(&piece[at..]) {
                    Ok(Cut::Ends(end)) => (end, true),
                    Ok(Cut::Within) => (piece.len() - at, false),
                    Ok(Cut::Between) => break,
                    Err(_) => return,
                };
                message.extend_from_slice(&piece[at..at + used]);
                at += used;
                if message.len() > BODY_BYTES_MAX {
                    return;
                }
                if ends {
                    serving.begin(Bytes::from(std::mem::take(&mut message))).await;
                }
            }
            piece.clear();
        }
    };
    tokio::select! {
        _ = write(written, inbox, line) => {}
        () = take => {}
    }
}
