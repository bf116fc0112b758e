//! Calls over a local socket: JSON values one after the other.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use wire::json::split::{Cut, Splitter};

use super::{ANSWER_BYTES_MAX, AskError, TIMEOUT};

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// A connected socket.
pub(super) struct Ipc {
    stream: UnixStream,
}

fn failed(error: std::io::Error) -> AskError {
    AskError::Transport(match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "timeout".to_owned(),
        _ => error.to_string(),
    })
}

impl Ipc {
    pub(super) fn connect(path: &Path) -> Result<Ipc, AskError> {
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        Ok(Ipc { stream })
    }

    pub(super) fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, AskError> {
        let begun = Instant::now();
        self.stream.write_all(message).map_err(failed)?;
        let mut body = Vec::new();
        let mut splitter = Splitter::default();
        let mut piece = vec![0; READ_BYTES];
        loop {
            if begun.elapsed() > TIMEOUT {
                return Err(AskError::Transport("timeout".to_owned()));
            }
            let read = self.stream.read(&mut piece).map_err(failed)?;
            if read == 0 {
                return Err(AskError::Transport("the node closed the socket".to_owned()));
            }
            let cut =
                splitter.next(&piece[..read]).map_err(|_| AskError::Odd("not json".to_owned()))?;
            match cut {
                Cut::Ends(end) => {
                    body.extend_from_slice(&piece[..end]);
                    return Ok(body);
                }
                Cut::Within => body.extend_from_slice(&piece[..read]),
                Cut::Between => {}
            }
            if body.len() as u64 > ANSWER_BYTES_MAX {
                return Err(AskError::Odd(format!("more than {ANSWER_BYTES_MAX} bytes")));
            }
        }
    }
}
