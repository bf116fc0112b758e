//! The trait [`World`]: the clock and the sockets of an engine thread.
//!
//! [`System`] uses the clock and the sockets of the kernel. `engine/simulated.rs` simulates both,
//! so that a run can be replayed from its seed. The engine's loop is generic over the trait.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, connect, ipproto, send, socket_with, sockopt,
};

use super::EngineFault;
use super::time::nanos;

/// Event token of the [`Wakeup`].
pub(crate) const WAKEUP: u64 = u64::MAX;

/// A clock, non-blocking sockets, and a way to wait for both.
pub(crate) trait World {
    /// Socket of a connection.
    type Socket: Socket;

    /// Returns nanoseconds since the start of the run, or 0 before it.
    fn now(&mut self) -> u64;

    /// Returns nanoseconds until the start of the run, or 0 once it has started.
    fn until_start(&mut self) -> u64;

    /// Starts a non-blocking connect.
    ///
    /// # Errors
    /// Fails with the system's error, such as no free local port.
    fn connect(&mut self, address: SocketAddr) -> io::Result<Self::Socket>;

    /// Registers a socket for edge-triggered events. Each event holds `token`.
    ///
    /// # Errors
    /// Fails if the system call fails.
    fn watch(&mut self, socket: &Self::Socket, token: u64) -> io::Result<()>;

    /// Stops the events of a socket.
    ///
    /// # Errors
    /// Fails if the system call fails.
    fn unwatch(&mut self, socket: &Self::Socket) -> io::Result<()>;

    /// Waits up to `timeout_ns` nanoseconds for events, and appends them to `events`.
    ///
    /// # Errors
    /// Fails if the system call fails.
    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: u64) -> Result<(), EngineFault>;

    /// Yields the core to other threads while this thread spins. The target may run on the same
    /// core.
    fn yield_now(&mut self);

    /// Clears the wake-up signal. Must be called after an event with the token [`WAKEUP`].
    fn clear_wakeup(&mut self);
}

/// A non-blocking socket.
pub(crate) trait Socket: Unpin {
    /// Reads available data. Returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if there is no data, and with another error if the connection is
    /// broken.
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as many bytes as the send buffer takes, and returns their number.
    ///
    /// # Errors
    /// Fails with `WouldBlock` if the buffer is full, and with another error if the connection is
    /// broken.
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Returns the error of a failed connect, or `None` if the connect succeeded.
    fn connect_fault(&self) -> Option<io::Error>;
}

/// Adapts a socket to `Read` and `Write`, which rustls needs.
pub(crate) struct Plain<'a, S>(pub(crate) &'a S);

impl<S: Socket> io::Read for Plain<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
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

/// Interrupts the wait of a [`System`] from another thread. It holds an eventfd, which all clones
/// share.
#[derive(Clone)]
pub(crate) struct Wakeup(Arc<OwnedFd>);

impl Wakeup {
    /// Creates the eventfd.
    ///
    /// # Errors
    /// Fails if the system has no eventfd.
    pub(crate) fn new() -> Result<Wakeup, EngineFault> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Wakeup(Arc::new(eventfd(0, flags).map_err(wait_fault)?)))
    }

    /// Wakes the thread that waits.
    pub(crate) fn wake(&self) {
        // The write fails only if a wake-up is pending already.
        let _ignored = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// The kernel's clock and sockets.
pub(crate) struct System {
    /// Start of the run.
    origin: Instant,
    epoll: OwnedFd,
    wakeup: Wakeup,
}

impl System {
    /// Creates the epoll instance, and registers `wakeup` there. Times count from `origin`.
    ///
    /// # Errors
    /// Fails if the system has no epoll.
    pub(crate) fn new(origin: Instant, wakeup: Wakeup) -> Result<System, EngineFault> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(wait_fault)?;
        epoll::add(&epoll, &wakeup.0, EventData::new_u64(WAKEUP), EventFlags::IN)
            .map_err(wait_fault)?;
        Ok(System { origin, epoll, wakeup })
    }
}

impl World for System {
    type Socket = TcpStream;

    fn now(&mut self) -> u64 {
        nanos(Instant::now().saturating_duration_since(self.origin))
    }

    fn until_start(&mut self) -> u64 {
        nanos(self.origin.saturating_duration_since(Instant::now()))
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
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    fn unwatch(&mut self, socket: &TcpStream) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: u64) -> Result<(), EngineFault> {
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000).cast_signed(),
            tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
        };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(wait_fault(errno)),
        }
    }

    fn yield_now(&mut self) {
        std::thread::yield_now();
    }

    fn clear_wakeup(&mut self) {
        // Every pass of the loop checks the stop flag, so it is enough to read the eventfd.
        let _ignored = rustix::io::read(&self.wakeup.0, &mut [0; 8]);
    }
}

impl Socket for TcpStream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        // rustix makes the system call directly. The wrapper of libc costs time, because it is a
        // thread cancellation point.
        Ok(rustix::io::read(self, buffer)?)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self, bytes, SendFlags::NOSIGNAL)?)
    }

    fn connect_fault(&self) -> Option<io::Error> {
        // If the kernel cannot report the socket's error, the error of the query takes its place.
        self.take_error().unwrap_or_else(Some)
    }
}

fn wait_fault(errno: Errno) -> EngineFault {
    EngineFault::Wait(errno.into())
}
