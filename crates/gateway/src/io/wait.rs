//! Socket reads and writes with deadlines, for client and upstream connections.
//!
//! A new timer for each request would be too expensive. So each connection has one lazy timer
//! ([`Watchdog`]), and deadlines are plain values. An idle connection holds no buffer, because all
//! reads use one scratch buffer per thread.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Size of the scratch buffer, and therefore the maximum bytes of one read. The maximum keeps a
/// busy connection from delaying the other connections.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    // The scratch buffer of this thread.
    static SCRATCH: RefCell<Box<[MaybeUninit<u8>]>> =
        RefCell::new(vec![MaybeUninit::uninit(); SCRATCH_BYTES].into_boxed_slice());
}

/// A lazy timer for changing deadlines. A later deadline does not move the timer at once. When the
/// timer fires before the current deadline, it is set to that deadline.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    /// `None` before the first deadline.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watchdog {
    /// Returns `Ready` once `deadline` has passed. Callers poll the awaited operation first, so
    /// that a finished operation wins over a passed deadline.
    pub(crate) fn poll_passed(&mut self, task: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // The timer may fire early, but must never fire after the deadline.
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(task).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// The outcome of a read with a deadline.
#[derive(Debug)]
pub(crate) enum ReadOutcome<T> {
    /// Bytes were read; holds the closure's return value.
    Bytes(T),
    /// The peer has closed its side of the stream.
    End,
    /// The deadline passed before any byte arrived.
    TimedOut,
}

/// Reads from `stream` once and passes the bytes to `consume`. Waits for bytes until `deadline`.
///
/// # Errors
/// The socket's error.
pub(crate) async fn fill<S, T>(
    stream: &mut S,
    watchdog: &mut Watchdog,
    deadline: Instant,
    mut consume: impl FnMut(&[u8]) -> T,
) -> io::Result<ReadOutcome<T>>
where
    S: AsyncRead + Unpin,
{
    std::future::poll_fn(|task| {
        let read = poll_read(&mut *stream, task, &mut consume);
        if read.is_pending() && watchdog.poll_passed(task, deadline).is_ready() {
            return Poll::Ready(Ok(ReadOutcome::TimedOut));
        }
        read.map_ok(|consumed| consumed.map_or(ReadOutcome::End, ReadOutcome::Bytes))
    })
    .await
}

/// Reads the available bytes, passes them to `consume` and returns its result. Returns `None` at
/// the end of the stream.
///
/// # Errors
/// The socket's error.
pub(crate) fn poll_read<S, T>(
    stream: &mut S,
    task: &mut Context<'_>,
    consume: impl FnOnce(&[u8]) -> T,
) -> Poll<io::Result<Option<T>>>
where
    S: AsyncRead + Unpin,
{
    SCRATCH.with_borrow_mut(|scratch| -> Poll<io::Result<Option<T>>> {
        let mut buf = ReadBuf::uninit(scratch);
        ready!(Pin::new(stream).poll_read(task, &mut buf))?;
        let bytes = buf.filled();
        Poll::Ready(Ok((!bytes.is_empty()).then(|| consume(bytes))))
    })
}

/// Writes all `parts` in order; a part may be empty. Fails if the peer accepts no byte for
/// `timeout`.
///
/// # Errors
/// The socket's error; `TimedOut` if the peer does not read.
pub(crate) async fn write<S>(
    stream: &mut S,
    watchdog: &mut Watchdog,
    timeout: Duration,
    parts: [&[u8]; 3],
) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let mut written = 0;
    let mut deadline: Option<Instant> = None;
    std::future::poll_fn(|task| {
        while written < total {
            let parts = parts.iter().copied();
            match poll_write_parts::<_, 3>(Pin::new(&mut *stream), task, parts, written) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    written += bytes;
                    deadline = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return poll_timeout(watchdog, task, &mut deadline, timeout),
            }
        }
        // An encrypting stream may have accepted the bytes without sending them.
        match Pin::new(&mut *stream).poll_flush(task) {
            Poll::Pending => poll_timeout(watchdog, task, &mut deadline, timeout),
            flushed => flushed,
        }
    })
    .await
}

/// Returns a `TimedOut` error if the peer has accepted nothing for `timeout`. `deadline` is `None`
/// if the peer has just accepted bytes; the timeout then starts.
fn poll_timeout(
    watchdog: &mut Watchdog,
    task: &mut Context<'_>,
    deadline: &mut Option<Instant>,
    timeout: Duration,
) -> Poll<io::Result<()>> {
    let deadline = *deadline.get_or_insert_with(|| Instant::now() + timeout);
    watchdog.poll_passed(task, deadline).map(|()| Err(io::ErrorKind::TimedOut.into()))
}

/// Makes one write of all `parts` together. Skips the first `written` bytes, which were written
/// before. There must be at most `PARTS_MAX` parts. Returns the number of bytes written.
pub(crate) fn poll_write_parts<'p, S: AsyncWrite, const PARTS_MAX: usize>(
    stream: Pin<&mut S>,
    task: &mut Context<'_>,
    parts: impl Iterator<Item = &'p [u8]>,
    written: usize,
) -> Poll<io::Result<usize>> {
    let mut slices = [io::IoSlice::new(&[]); PARTS_MAX];
    let mut slice_count = 0;
    let mut bytes_to_skip = written;
    for part in parts {
        let skipped = bytes_to_skip.min(part.len());
        bytes_to_skip -= skipped;
        if skipped < part.len() {
            slices[slice_count] = io::IoSlice::new(&part[skipped..]);
            slice_count += 1;
        }
    }
    match &slices[..slice_count] {
        // A plain write is a cheaper system call than a vectored one.
        [slice] => stream.poll_write(task, slice),
        slices => stream.poll_write_vectored(task, slices),
    }
}
