//! Passes the gateway's listening sockets to a new process of the program on disk, which replaces
//! this one.
//!
//! The new process gets the same arguments. Its standard input is one end of a socket pair. The old
//! process sends the listening sockets over it (SCM_RIGHTS, unix(7)), so that no connection in an
//! accept queue is lost. The new process sends "ready", or the reason why it cannot serve. The old
//! process serves until then.

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

/// Environment variable of a process that is started to replace another one.
const VARIABLE: &str = "WEIR_TAKES_OVER";
/// Tag byte of each socket, and the byte that ends the list.
const CLIENTS: u8 = b'c';
const TLS: u8 = b't';
const ADMIN: u8 = b'a';
const END: u8 = b'.';
/// Maximum number of sockets of one hand-over. A gateway sends two per thread and one for admin.
const SOCKETS_MAX: usize = 1 << 12;
/// Timeout for the new process to become ready. It waits at most 2 s for heads.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for a failed new process to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest failure reason that is read from the new process.
const REASON_BYTES_MAX: u64 = 64 * 1024;
const READY: &str = "ready";

/// Returns the path of the program for the new process. It is the path that this process was
/// started with. So a symbolic link to a newer version is followed.
pub(super) fn program() -> io::Result<PathBuf> {
    let called = std::env::args_os().next().map(PathBuf::from);
    match called {
        Some(called) if called.components().count() > 1 && called.exists() => {
            std::path::absolute(called)
        }
        // The program was found in `PATH`, which may change.
        _ => std::env::current_exe(),
    }
}

/// Starts a process that takes over these sockets, and returns its id once it serves.
///
/// # Errors
/// The reason why the new process does not serve.
pub(super) fn hand_over(program: &Path, sockets: &Sockets) -> Result<u32, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(failed("cannot make a pair of sockets"))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1).collect::<Vec<OsString>>())
        .env(VARIABLE, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let reply = send_sockets(&ours, sockets).and_then(|()| read_message(&ours));
    match reply {
        Ok(message) if message == READY => Ok(child.id()),
        Ok(reason) if !reason.is_empty() => {
            reap(&mut child);
            Err(reason)
        }
        Err(error) if !is_disconnect(&error) => {
            reap(&mut child);
            Err(format!("the new process was not heard of: {error}"))
        }
        Ok(_) | Err(_) => Err(format!("the new process ended: {}", reap(&mut child))),
    }
}

/// Returns true if the peer closed the connection, in contrast to a timeout.
fn is_disconnect(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Waits for a process to exit, kills it after [`EXIT_TIMEOUT`], and returns its exit status.
fn reap(child: &mut Child) -> String {
    let give_up = Instant::now() + EXIT_TIMEOUT;
    while Instant::now() < give_up {
        if let Ok(Some(status)) = child.try_wait() {
            return status.to_string();
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    // This fails only if the process has just exited.
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn send_sockets(to: &UnixStream, sockets: &Sockets) -> io::Result<()> {
    to.set_write_timeout(Some(READY_TIMEOUT))?;
    let clients = sockets.clients.iter().map(|socket| (CLIENTS, socket));
    let tls = sockets.tls.iter().map(|socket| (TLS, socket));
    for (role, socket) in
        clients.chain(tls).chain(sockets.admin.iter().map(|socket| (ADMIN, socket)))
    {
        let fds = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        sendmsg(to, &[IoSlice::new(&[role])], &mut control, SendFlags::NOSIGNAL)?;
    }
    let mut to = to;
    to.write_all(&[END])
}

/// Reads one zero-terminated message of the new process; empty if the process exits first.
fn read_message(from: &UnixStream) -> io::Result<String> {
    from.set_read_timeout(Some(READY_TIMEOUT))?;
    let mut message = Vec::new();
    let mut byte = [0; 1];
    let mut from = from.take(REASON_BYTES_MAX);
    // There is no end of file before the new process exits, because it keeps its end open.
    while from.read(&mut byte)? == 1 && byte[0] != 0 {
        message.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&message).trim().to_owned())
}

/// Connection to the process that this one replaces.
pub(super) struct Former {
    stream: UnixStream,
}

impl Former {
    /// Returns the old process, or `None` if this process replaces no other one.
    ///
    /// # Errors
    /// The environment variable is set, but the standard input is not a socket.
    pub(super) fn find() -> io::Result<Option<Former>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // The variable may be exported by hand, without a socket.
        stream.local_addr()?;
        Ok(Some(Former { stream }))
    }

    /// Receives the listening sockets.
    pub(super) fn sockets(&self) -> io::Result<Sockets> {
        self.stream.set_read_timeout(Some(READY_TIMEOUT))?;
        let mut sockets = Sockets::default();
        for _ in 0..SOCKETS_MAX {
            let mut role = [0; 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut role)];
            let received = recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut fds = control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            });
            match (role[0], fds.next().map(Socket::from)) {
                (CLIENTS, Some(socket)) => sockets.clients.push(socket),
                (TLS, Some(socket)) => sockets.tls.push(socket),
                (ADMIN, Some(socket)) => sockets.admin = Some(socket),
                (END, None) => return Ok(sockets),
                _ => break,
            }
        }
        Err(io::Error::other("what came over the standard input are not sockets of a gateway"))
    }

    /// Reports that this process serves. The old process then shuts down.
    pub(super) fn ready(self) {
        self.send(READY);
    }

    /// Reports why this process cannot serve.
    pub(super) fn failed(self, why: &str) {
        self.send(why);
    }

    fn send(mut self, text: &str) {
        let mut message = text.replace('\0', " ").into_bytes();
        message.push(0);
        // This fails only if the old process has exited, and then nobody needs the message.
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
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ((one, first), (two, second), (admin, third)) = (listening(), listening(), listening());
        let (tls, fourth) = listening();
        let sockets = Sockets { clients: vec![one, two], tls: vec![tls], admin: Some(admin) };
        send_sockets(&ours, &sockets).unwrap();
        let former = Former { stream: theirs };
        let sockets = former.sockets().unwrap();
        assert_eq!(sockets.clients.iter().map(address).collect::<Vec<_>>(), [first, second]);
        assert_eq!(address(sockets.admin.as_ref().unwrap()), third);
        assert_eq!(sockets.tls.iter().map(address).collect::<Vec<_>>(), [fourth]);
        former.ready();
        assert_eq!(read_message(&ours).unwrap(), READY);
    }

    #[test]
    fn end_of_file_and_other_bytes_are_rejected() {
        for bytes in [&b""[..], b"c", b"hello", b"\0"] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(Former { stream: theirs }.sockets().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_reason_arrives_whole_and_end_of_file_is_empty() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Former { stream: theirs }.failed("two\nlines \0 and a zero");
        assert_eq!(read_message(&ours).unwrap(), "two\nlines   and a zero");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(read_message(&ours).unwrap(), "");
    }
}
