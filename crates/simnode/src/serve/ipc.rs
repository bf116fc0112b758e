//! The Unix socket of a node, as geth has it: a sequence of JSON values.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use wire::json::splitter::{Split, Splitter};

use super::dispatch::CallDispatcher;
use super::outgoing::{REPLIES_MAX, write_outgoing};
use super::{BODY_BYTES_MAX, CONNECTIONS_MAX};
use crate::node::Node;

/// The server of a Unix socket. Dropping it closes all connections and removes the file.
pub struct IpcServer {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        self.task.abort();
        // The file may no longer exist.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves the node over a Unix socket on the current tokio runtime.
///
/// # Errors
/// Fails if the path is taken, or the socket's file cannot be created.
pub fn listen_ipc(node: &Arc<Node>, path: &Path) -> io::Result<IpcServer> {
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
                // There is no free descriptor. Continue with the next connection.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    });
    Ok(IpcServer { path: path.to_owned(), task })
}

/// Serves one connection until it ends.
async fn serve(node: Arc<Node>, stream: UnixStream) {
    let (mut read_half, write_half) = stream.into_split();
    let (replies, inbox) = mpsc::channel(REPLIES_MAX);
    let mut dispatcher = CallDispatcher::new(node, replies);
    let append_newline = |message: &[u8]| [message, b"\n"].concat();
    let read_messages = async {
        let (mut splitter, mut chunk, mut message) =
            (Splitter::default(), Vec::with_capacity(16 << 10), Vec::new());
        while read_half.read_buf(&mut chunk).await.is_ok_and(|bytes| bytes > 0) {
            let mut offset = 0;
            while offset < chunk.len() {
                let (length, is_complete) = match splitter.next(&chunk[offset..]) {
                    Ok(Split::End(end)) => (end, true),
                    Ok(Split::Incomplete) => (chunk.len() - offset, false),
                    Ok(Split::Whitespace) => break,
                    Err(_) => return,
                };
                message.extend_from_slice(&chunk[offset..offset + length]);
                offset += length;
                if message.len() > BODY_BYTES_MAX {
                    return;
                }
                if is_complete {
                    dispatcher.start(Bytes::from(std::mem::take(&mut message))).await;
                }
            }
            chunk.clear();
        }
    };
    tokio::select! {
        _ = write_outgoing(write_half, inbox, append_newline) => {}
        () = read_messages => {}
    }
}
