//! Calls over a Unix socket. A node writes its responses to the socket as JSON values, one after
//! the other.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use wire::json::splitter::{Split, Splitter};

use super::{CallError, EXCHANGE_TIMEOUT, MESSAGE_BYTES_MAX};

/// Maximum number of bytes of one read.
const CHUNK_BYTES: usize = 256 << 10;

/// A connected Unix socket.
pub(super) struct IpcConnection {
    stream: UnixStream,
}

/// Maps an error of the socket.
fn transport_error(error: std::io::Error) -> CallError {
    CallError::Transport(match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timeout".to_owned(),
        _ => error.to_string(),
    })
}

impl IpcConnection {
    /// Connects to the socket with this path.
    pub(super) fn connect(path: &Path) -> Result<IpcConnection, CallError> {
        let stream = UnixStream::connect(path).map_err(transport_error)?;
        stream.set_read_timeout(Some(EXCHANGE_TIMEOUT)).map_err(transport_error)?;
        stream.set_write_timeout(Some(EXCHANGE_TIMEOUT)).map_err(transport_error)?;
        Ok(IpcConnection { stream })
    }

    /// Sends a request, and reads one JSON value as the response.
    pub(super) fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, CallError> {
        let started = Instant::now();
        self.stream.write_all(message).map_err(transport_error)?;
        let mut body = Vec::new();
        let mut splitter = Splitter::default();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            if started.elapsed() > EXCHANGE_TIMEOUT {
                return Err(CallError::Transport("timeout".to_owned()));
            }
            let read_bytes = self.stream.read(&mut buffer).map_err(transport_error)?;
            if read_bytes == 0 {
                return Err(CallError::Transport("the node closed the socket".to_owned()));
            }
            let to_malformed = |_| CallError::Malformed("not json".to_owned());
            match splitter.next(&buffer[..read_bytes]).map_err(to_malformed)? {
                Split::End(end) => {
                    body.extend_from_slice(&buffer[..end]);
                    return Ok(body);
                }
                Split::Incomplete => body.extend_from_slice(&buffer[..read_bytes]),
                Split::Whitespace => {}
            }
            if body.len() as u64 > MESSAGE_BYTES_MAX {
                return Err(CallError::Malformed(format!("more than {MESSAGE_BYTES_MAX} bytes")));
            }
        }
    }
}
