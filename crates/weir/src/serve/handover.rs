//! Passes the gateway's listening sockets to a new process of the program on disk, which replaces
//! this one.
//!
//! The new process gets the same arguments. Its standard input is one end of a socket pair. The old
//! process sends the listening sockets over it (SCM_RIGHTS, unix(7)), so that no connection in an
//! accept queue is lost. The new process sends `ready`, or the reason why it cannot serve. The old
//! process serves until it receives `ready`, and continues if it receives a reason.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gateway::runtime::Sockets;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::Socket;

/// Environment variable that tells a new process to replace the process that started it.
const TAKEOVER_VARIABLE: &str = "WEIR_TAKES_OVER";
/// Tag of a listening socket for clients in plain text.
const TAG_CLIENTS: u8 = b'c';
/// Tag of a listening socket for clients over TLS.
const TAG_TLS: u8 = b't';
/// Tag of the listening socket of the admin address.
const TAG_ADMIN: u8 = b'a';
/// Tag of the listening socket of the health address.
const TAG_HEALTH: u8 = b'h';
/// Byte that ends the list of sockets.
const TAG_END: u8 = b'.';
/// Maximum number of messages that the new process receives: one per socket, and the end of the
/// list. A gateway sends at most two sockets per thread and one each for the admin and health
/// addresses.
const SOCKETS_MAX: usize = 1 << 12;
/// Timeout for the new process to become ready. The new process itself waits at most 2 s for the
/// heads of its upstreams.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a failed new process to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of a failure reason that are read from the new process.
const REASON_BYTES_MAX: u64 = 64 * 1024;
/// Message of a new process that serves.
const READY: &str = "ready";

/// Returns the path of the program for a new process. Prefers the path with which this process was
/// started: that path may be a symbolic link, which may now point to a newer version.
pub(super) fn program_path() -> io::Result<PathBuf> {
    let invoked_path = std::env::args_os().next().map(PathBuf::from);
    match invoked_path {
        Some(path) if path.components().count() > 1 && path.exists() => std::path::absolute(path),
        // A name without a folder was found in `PATH`, which may have changed since.
        _ => std::env::current_exe(),
    }
}

/// Starts a process that takes over these sockets, and returns its id once it serves.
///
/// # Errors
/// Returns the reason why the new process does not serve.
pub(super) fn hand_over(program: &Path, sockets: &Sockets) -> Result<u32, String> {
    let (our_end, child_end) =
        UnixStream::pair().map_err(|error| format!("cannot make a pair of sockets: {error}"))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1).collect::<Vec<OsString>>())
        .env(TAKEOVER_VARIABLE, "1")
        .stdin(Stdio::from(OwnedFd::from(child_end)))
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let reply = send_sockets(&our_end, sockets).and_then(|()| read_message(&our_end));
    match reply {
        Ok(message) if message == READY => Ok(child.id()),
        Ok(reason) if !reason.is_empty() => {
            reap(&mut child);
            Err(reason)
        }
        // For example a timeout: the new process is alive but has reported nothing.
        Err(error) if !is_disconnect(&error) => {
            reap(&mut child);
            Err(format!("the new process did not report that it is ready: {error}"))
        }
        Ok(_) | Err(_) => Err(format!("the new process exited: {}", reap(&mut child))),
    }
}

/// Returns true if the peer closed the connection; false for a timeout.
fn is_disconnect(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Waits for a process to exit, kills it after [`EXIT_TIMEOUT`], and returns its exit status.
fn reap(child: &mut Child) -> String {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return status.to_string();
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    // `kill` fails only if the process has just exited.
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// Sends each listening socket with its tag, then the end of the list.
fn send_sockets(stream: &UnixStream, sockets: &Sockets) -> io::Result<()> {
    stream.set_write_timeout(Some(READY_TIMEOUT))?;
    let clients = sockets.clients.iter().map(|socket| (TAG_CLIENTS, socket));
    let tls = sockets.tls.iter().map(|socket| (TAG_TLS, socket));
    let admin = sockets.admin.iter().map(|socket| (TAG_ADMIN, socket));
    let health = sockets.health.iter().map(|socket| (TAG_HEALTH, socket));
    for (tag, socket) in clients.chain(tls).chain(admin).chain(health) {
        let fds = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        sendmsg(stream, &[IoSlice::new(&[tag])], &mut control, SendFlags::NOSIGNAL)?;
    }
    let mut writer = stream;
    writer.write_all(&[TAG_END])
}

/// Reads one message of the new process. A message ends at a zero byte, at [`REASON_BYTES_MAX`], or
/// when the process exits. An empty message means that the process exited without sending one.
fn read_message(stream: &UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(READY_TIMEOUT))?;
    let mut message = Vec::new();
    let mut byte = [0; 1];
    let mut reader = stream.take(REASON_BYTES_MAX);
    // End of file means that the new process has exited: its standard input is the other end.
    while reader.read(&mut byte)? == 1 && byte[0] != 0 {
        message.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&message).trim().to_owned())
}

/// Connection to the old process, which this process replaces.
pub(super) struct OldProcess {
    stream: UnixStream,
}

impl OldProcess {
    /// Returns the connection to the old process, or `None` if there is no process to replace.
    ///
    /// # Errors
    /// Fails if the environment variable is set, but the standard input is not a socket.
    pub(super) fn connect() -> io::Result<Option<OldProcess>> {
        if std::env::var_os(TAKEOVER_VARIABLE).is_none() {
            return Ok(None);
        }
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // The variable may be exported by hand. Then the standard input is not a socket, and this
        // call fails.
        stream.local_addr()?;
        Ok(Some(OldProcess { stream }))
    }

    /// Receives the listening sockets.
    pub(super) fn receive_sockets(&self) -> io::Result<Sockets> {
        self.stream.set_read_timeout(Some(READY_TIMEOUT))?;
        let mut sockets = Sockets::default();
        for _ in 0..SOCKETS_MAX {
            let mut tag = [0; 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let buffers = &mut [IoSliceMut::new(&mut tag)];
            let received = recvmsg(&self.stream, buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut fds = control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            });
            match (tag[0], fds.next().map(Socket::from)) {
                (TAG_CLIENTS, Some(socket)) => sockets.clients.push(socket),
                (TAG_TLS, Some(socket)) => sockets.tls.push(socket),
                (TAG_ADMIN, Some(socket)) => sockets.admin = Some(socket),
                (TAG_HEALTH, Some(socket)) => sockets.health = Some(socket),
                (TAG_END, None) => return Ok(sockets),
                _ => break,
            }
        }
        Err(io::Error::other("the standard input did not send the sockets of a gateway"))
    }

    /// Reports that this process serves. The old process then shuts down.
    pub(super) fn report_ready(self) {
        self.send(READY);
    }

    /// Reports why this process cannot serve.
    pub(super) fn report_failure(self, reason: &str) {
        self.send(reason);
    }

    fn send(mut self, text: &str) {
        let mut message = text.replace('\0', " ").into_bytes();
        message.push(0);
        // The write fails only if the old process has exited. Then no process needs the message.
        let _ = self.stream.write_all(&message);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: sockets arrive with their roles, and other input is rejected.

    use std::net::TcpListener;

    use super::*;

    fn listening() -> (Socket, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener.into(), address)
    }

    fn address(socket: &Socket) -> std::net::SocketAddr {
        socket.local_addr().unwrap().as_socket().unwrap()
    }

    #[test]
    fn sockets_arrive_with_their_roles() {
        let (our_end, child_end) = UnixStream::pair().unwrap();
        let (first_client, first_address) = listening();
        let (second_client, second_address) = listening();
        let (admin, admin_address) = listening();
        let (health, health_address) = listening();
        let (tls, tls_address) = listening();
        let clients = vec![first_client, second_client];
        let sockets = Sockets { clients, tls: vec![tls], admin: Some(admin), health: Some(health) };
        send_sockets(&our_end, &sockets).unwrap();
        let old_process = OldProcess { stream: child_end };
        let sockets = old_process.receive_sockets().unwrap();
        let addresses = |sockets: &[Socket]| sockets.iter().map(address).collect::<Vec<_>>();
        assert_eq!(addresses(&sockets.clients), [first_address, second_address]);
        assert_eq!(address(sockets.admin.as_ref().unwrap()), admin_address);
        assert_eq!(address(sockets.health.as_ref().unwrap()), health_address);
        assert_eq!(addresses(&sockets.tls), [tls_address]);
        old_process.report_ready();
        assert_eq!(read_message(&our_end).unwrap(), READY);
    }

    #[test]
    fn end_of_file_and_other_bytes_are_rejected() {
        for bytes in [&b""[..], b"c", b"hello", b"\0"] {
            let (mut our_end, child_end) = UnixStream::pair().unwrap();
            our_end.write_all(bytes).unwrap();
            drop(our_end);
            assert!(OldProcess { stream: child_end }.receive_sockets().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_reason_arrives_whole_and_end_of_file_is_empty() {
        let (our_end, child_end) = UnixStream::pair().unwrap();
        OldProcess { stream: child_end }.report_failure("two\nlines \0 and a zero");
        assert_eq!(read_message(&our_end).unwrap(), "two\nlines   and a zero");
        let (our_end, child_end) = UnixStream::pair().unwrap();
        drop(child_end);
        assert_eq!(read_message(&our_end).unwrap(), "");
    }
}
