//! Hands the listening sockets of a gateway to a new process of the program on disk, which takes its
//! place.
//!
//! The new process is started with the same arguments. Its standard input is one end of a pair of
//! sockets: over it come the listening sockets themselves (SCM_RIGHTS, unix(7)), so that no
//! connection that waits in them is lost, and over it the new process says that it serves, or why
//! it cannot. Until then the old one goes on as before.

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

/// Set in the environment of a process that is started to take another one's place.
const VARIABLE: &str = "WEIR_TAKES_OVER";
/// What comes with each socket, and what ends them.
const CLIENTS: u8 = b'c';
const TLS: u8 = b't';
const ADMIN: u8 = b'a';
const END: u8 = b'.';
/// Sockets of one hand-over: two per thread and the admin one. More are not ours.
const SOCKETS_MAX: usize = 1 << 12;
/// How long a new process may take until it serves. It waits two seconds for heads at most.
const READY_WAIT: Duration = Duration::from_secs(60);
/// And how long one that said that it cannot may take to end.
const END_WAIT: Duration = Duration::from_secs(2);
/// Longest reason that is taken from it.
const REASON_BYTES_MAX: u64 = 64 * 1024;
const READY: &str = "ready";

/// The program that a later process is started from: as this one was called, so that a link which
/// leads to another version by then leads there.
pub(super) fn program() -> io::Result<PathBuf> {
    let called = std::env::args_os().next().map(PathBuf::from);
    match called {
        Some(called) if called.components().count() > 1 && called.exists() => {
            std::path::absolute(called)
        }
        // Found along the search path, which may change.
        _ => std::env::current_exe(),
    }
}

/// Starts a process that takes over these sockets, and gives its id once it serves.
///
/// # Errors
/// Why there is none, in words.
pub(super) fn hand_over(program: &Path, sockets: &Sockets) -> Result<u32, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    let (ours, theirs) = UnixStream::pair().map_err(failed("cannot make a pair of sockets"))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1).collect::<Vec<OsString>>())
        .env(VARIABLE, "1")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let heard = give(&ours, sockets).and_then(|()| hear(&ours));
    match heard {
        Ok(said) if said == READY => Ok(child.id()),
        Ok(said) if !said.is_empty() => {
            end(&mut child);
            Err(said)
        }
        Err(error) if !is_end(&error) => {
            end(&mut child);
            Err(format!("the new process was not heard of: {error}"))
        }
        Ok(_) | Err(_) => Err(format!("the new process ended: {}", end(&mut child))),
    }
}

/// Whether the other side has ended, rather than being silent.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Waits a little for a process to end, makes it, and says how it did.
fn end(child: &mut Child) -> String {
    let give_up = Instant::now() + END_WAIT;
    while Instant::now() < give_up {
        if let Ok(Some(status)) = child.try_wait() {
            return status.to_string();
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    // It fails only where it has just ended.
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn give(to: &UnixStream, sockets: &Sockets) -> io::Result<()> {
    to.set_write_timeout(Some(READY_WAIT))?;
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

/// What the new process says of itself; nothing if it ends instead.
fn hear(from: &UnixStream) -> io::Result<String> {
    from.set_read_timeout(Some(READY_WAIT))?;
    let mut said = Vec::new();
    let mut one = [0; 1];
    let mut from = from.take(REASON_BYTES_MAX);
    // To the first zero byte: the new process keeps its end open as long as it lives.
    while from.read(&mut one)? == 1 && one[0] != 0 {
        said.push(one[0]);
    }
    Ok(String::from_utf8_lossy(&said).trim().to_owned())
}

/// The process whose place this one takes, if it was started to take one's.
pub(super) struct Former {
    stream: UnixStream,
}

impl Former {
    /// # Errors
    /// When it was started so, but without the sockets.
    pub(super) fn find() -> io::Result<Option<Former>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        // Who exports the variable by hand has no such socket.
        stream.local_addr()?;
        Ok(Some(Former { stream }))
    }

    /// Its listening sockets.
    pub(super) fn sockets(&self) -> io::Result<Sockets> {
        self.stream.set_read_timeout(Some(READY_WAIT))?;
        let mut sockets = Sockets::default();
        for _ in 0..SOCKETS_MAX {
            let mut role = [0; 1];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut role)];
            let heard = recvmsg(&self.stream, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            if heard.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut given = control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
                _ => Vec::new(),
            });
            match (role[0], given.next().map(Socket::from)) {
                (CLIENTS, Some(socket)) => sockets.clients.push(socket),
                (TLS, Some(socket)) => sockets.tls.push(socket),
                (ADMIN, Some(socket)) => sockets.admin = Some(socket),
                (END, None) => return Ok(sockets),
                _ => break,
            }
        }
        Err(io::Error::other("what came over the standard input are not sockets of a gateway"))
    }

    /// Tells it that this process serves, upon which it ends.
    pub(super) fn ready(self) {
        self.say(READY);
    }

    /// Tells it why this process cannot serve.
    pub(super) fn failed(self, why: &str) {
        self.say(why);
    }

    fn say(mut self, text: &str) {
        let mut said = text.replace('\0', " ").into_bytes();
        said.push(0);
        // If it is gone, there is nobody to be told, and nothing to do about it.
        let _ = self.stream.write_all(&said);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: sockets arrive as what they are, and nothing else is taken for them.

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
        give(&ours, &sockets).unwrap();
        let former = Former { stream: theirs };
        let sockets = former.sockets().unwrap();
        assert_eq!(sockets.clients.iter().map(address).collect::<Vec<_>>(), [first, second]);
        assert_eq!(address(sockets.admin.as_ref().unwrap()), third);
        assert_eq!(sockets.tls.iter().map(address).collect::<Vec<_>>(), [fourth]);
        former.ready();
        assert_eq!(hear(&ours).unwrap(), READY);
    }

    #[test]
    fn an_end_or_other_bytes_are_no_sockets() {
        for bytes in [&b""[..], b"c", b"hello", b"\0"] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(bytes).unwrap();
            drop(ours);
            assert!(Former { stream: theirs }.sockets().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_reason_is_heard_whole_and_silence_is_no_reason() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Former { stream: theirs }.failed("two\nlines \0 and a zero");
        assert_eq!(hear(&ours).unwrap(), "two\nlines   and a zero");
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert_eq!(hear(&ours).unwrap(), "");
    }
}
