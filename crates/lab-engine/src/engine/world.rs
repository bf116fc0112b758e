//! What an engine thread needs from the world, as values: a clock, sockets, and waiting for both.
//!
//! [`System`] is the kernel's. `engine/simulated.rs` has a made-up one, in which a whole run replays
//! from a seed. The loop is compiled for each, so that neither costs the other anything.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, connect, ipproto, send, socket_with, sockopt,
};

use super::EngineFault;
use super::thread::pace;

/// Token of the event that ends a run early.
pub(crate) const BELL: u64 = u64::MAX;

/// A clock, and sockets that never block.
pub(crate) trait World {
    /// A connection's socket.
    type Socket: Socket;

    /// Nanoseconds since the start of the run; 0 before it.
    fn now(&mut self) -> u64;

    /// Nanoseconds until the start of the run.
    fn until_start(&mut self) -> u64;

    /// Begins to connect.
    ///
    /// # Errors
    /// What the system says, such as that there is no local port left.
    fn connect(&mut self, address: SocketAddr) -> io::Result<Self::Socket>;

    /// Reports what happens to a socket, by its token, whenever there is news.
    ///
    /// # Errors
    /// If the system refuses to.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// Reports nothing of a socket any more.
    ///
    /// # Errors
    /// If the system refuses to.
    fn unwatch(&mut self, socket: &Self::Socket) -> io::Result<()>;

    /// Waits for events for at most so many nanoseconds.
    ///
    /// # Errors
    /// If the system refuses to.
    fn wait(&mut self, events: &mut Vec<Event>, left: u64) -> Result<(), EngineFault>;

    /// A spinning thread leaves the core to whoever needs it: the target may be on it.
    fn yield_now(&mut self);

    /// Takes note of the bell, whose event was [`BELL`].
    fn rung(&mut self);
}

/// A socket that never blocks.
pub(crate) trait Socket: Unpin {
    /// Reads what is there; 0 bytes are the end.
    ///
    /// # Errors
    /// `WouldBlock` if there is nothing now; another if the connection is broken.
    fn read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room now; another if the connection is broken.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Why connecting failed, if it did.
    fn connect_fault(&self) -> Option<io::Error>;
}

/// A socket as TLS reads and writes it.
pub(crate) struct Plain<'a, S>(pub(crate) &'a S);

impl<S: Socket> io::Read for Plain<'_, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl<S: Socket> io::Write for Plain<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The kernel's clock and sockets.
pub(crate) struct System {
    origin: Instant,
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
}

impl System {
    /// Times count from `origin`; `bell` interrupts a wait.
    ///
    /// # Errors
    /// If the system has no epoll.
    pub(crate) fn new(origin: Instant, bell: &Arc<OwnedFd>) -> Result<System, EngineFault> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(wait_fault)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN).map_err(wait_fault)?;
        Ok(System { origin, epoll, bell: Arc::clone(bell) })
    }
}

impl World for System {
    type Socket = TcpStream;

    fn now(&mut self) -> u64 {
        pace::nanos(Instant::now().saturating_duration_since(self.origin))
    }

    fn until_start(&mut self) -> u64 {
        pace::nanos(self.origin.saturating_duration_since(Instant::now()))
    }

    fn connect(&mut self, address: SocketAddr) -> io::Result<TcpStream> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn watch(&mut self, socket: &TcpStream, token: u64) -> io::Result<()> {
        let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), wanted)?)
    }

    fn unwatch(&mut self, socket: &TcpStream) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    fn wait(&mut self, events: &mut Vec<Event>, left: u64) -> Result<(), EngineFault> {
        let timeout = Timespec {
            tv_sec: (left / 1_000_000_000).cast_signed(),
            tv_nsec: (left % 1_000_000_000).cast_signed(),
        };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(wait_fault(errno)),
        }
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }

    fn rung(&mut self) {
        // The stop mark itself is looked at in every turn.
        let _rung = rustix::io::read(&self.bell, &mut [0; 8]);
    }
}

impl Socket for TcpStream {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        // The bare system call: libc's is a point where threads may be cancelled, which costs.
        Ok(rustix::io::read(self, into)?)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    fn connect_fault(&self) -> Option<io::Error> {
        self.take_error().unwrap_or_else(Some)
    }
}

fn wait_fault(errno: Errno) -> EngineFault {
    EngineFault::Wait(errno.into())
}
