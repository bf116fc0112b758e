//! Deadlines and scratch space for sockets: what a connection to a client and one to an upstream
//! share.
//!
//! A request that is answered in time must not pay for a timer. So each connection keeps one timer
//! that is armed once and moved only when it fires too early; a deadline is a plain value. And a
//! connection that waits holds no buffer: reads go through one scratch buffer per thread.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Size of the scratch buffer; also the most that one read takes, so that one connection with much
/// to say cannot keep the others waiting.
const SCRATCH_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[MaybeUninit<u8>]>> =
        RefCell::new(vec![MaybeUninit::uninit(); SCRATCH_BYTES].into_boxed_slice());
}

/// A lazily moved timer.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Watchdog {
    /// Ready once `deadline` has passed. To be polled last, after the thing that is waited for.
    pub(crate) fn poll_passed(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        // The timer may stand at an earlier deadline of the same connection; it must never stand
        // at a later one.
        if timer.deadline() > deadline {
            timer.as_mut().reset(deadline);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

/// How waiting for bytes ended.
#[derive(Debug)]
pub(crate) enum Filled<T> {
    /// Bytes came; what the closure made of them.
    Bytes(T),
    /// The other side has closed its direction.
    End,
    /// The deadline passed.
    Late,
}

/// Waits for bytes from `stream` until `deadline` and hands them to `take` once.
///
/// # Errors
/// What the system says of the socket.
pub(crate) async fn fill<S, T>(
    stream: &mut S,
    watchdog: &mut Watchdog,
    deadline: Instant,
    mut take: impl FnMut(&[u8]) -> T,
) -> io::Result<Filled<T>>
where
    S: AsyncRead + Unpin,
{
    std::future::poll_fn(|cx| {
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::uninit(scratch);
            match Pin::new(&mut *stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if buf.filled().is_empty() => Poll::Ready(Ok(Filled::End)),
                Poll::Ready(Ok(())) => Poll::Ready(Ok(Filled::Bytes(take(buf.filled())))),
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Pending => Poll::Pending,
            }
        });
        if read.is_pending() && watchdog.poll_passed(cx, deadline).is_ready() {
            return Poll::Ready(Ok(Filled::Late));
        }
        read
    })
    .await
}

/// Reads what is there and hands it to `take`; how many bytes that were, 0 at the end.
///
/// # Errors
/// What the system says of the socket.
pub(crate) fn poll_read<S>(
    stream: &mut S,
    cx: &mut Context<'_>,
    take: impl FnOnce(&[u8]),
) -> Poll<io::Result<usize>>
where
    S: AsyncRead + Unpin,
{
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buf = ReadBuf::uninit(scratch);
        match Pin::new(stream).poll_read(cx, &mut buf) {
            Poll::Ready(Ok(())) => {
                take(buf.filled());
                Poll::Ready(Ok(buf.filled().len()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    })
}

/// Writes all `parts`, one after the other, giving up when nothing moves for `patience`.
///
/// # Errors
/// What the system says of the socket; `TimedOut` when the other side does not read.
pub(crate) async fn write<S>(
    stream: &mut S,
    watchdog: &mut Watchdog,
    patience: Duration,
    parts: [&[u8]; 3],
) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    let whole: usize = parts.iter().map(|part| part.len()).sum();
    let mut written = 0;
    let mut deadline: Option<Instant> = None;
    std::future::poll_fn(|cx| {
        while written < whole {
            match poll_write_from(Pin::new(&mut *stream), cx, &parts, written) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    written += bytes;
                    deadline = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return poll_patience(watchdog, cx, &mut deadline, patience),
            }
        }
        // A stream that encrypts has taken the bytes, and may still hold them.
        match Pin::new(&mut *stream).poll_flush(cx) {
            Poll::Pending => poll_patience(watchdog, cx, &mut deadline, patience),
            done => done,
        }
    })
    .await
}

/// Waits on, until the other side has taken nothing for `patience`.
fn poll_patience(
    watchdog: &mut Watchdog,
    cx: &mut Context<'_>,
    deadline: &mut Option<Instant>,
    patience: Duration,
) -> Poll<io::Result<()>> {
    let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
    watchdog.poll_passed(cx, deadline).map(|()| Err(io::ErrorKind::TimedOut.into()))
}

/// Writes what it can of `parts` behind their first `written` bytes.
fn poll_write_from<S: AsyncWrite>(
    stream: Pin<&mut S>,
    cx: &mut Context<'_>,
    parts: &[&[u8]; 3],
    mut written: usize,
) -> Poll<io::Result<usize>> {
    let mut slices = [io::IoSlice::new(&[]); 3];
    let mut count = 0;
    for part in parts {
        let skip = written.min(part.len());
        written -= skip;
        if skip < part.len() {
            slices[count] = io::IoSlice::new(&part[skip..]);
            count += 1;
        }
    }
    match &slices[..count] {
        // A plain write is a cheaper system call than a gathered one.
        [one] => stream.poll_write(cx, one),
        several => stream.poll_write_vectored(cx, several),
    }
}
