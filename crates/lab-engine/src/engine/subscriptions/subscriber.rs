//! One connection with its subscription, from the connect to the end of the connection.
//!
//! Times are nanoseconds since the start of the run.

use std::net::TcpStream;

use lab_model::plan::SubscriptionKind;
use lab_model::record::Traffic;

use super::MESSAGE_BYTES_MAX;
use super::heads::HeadTracker;
use super::logs::LogTracker;
use crate::engine::connection::Connection;
use crate::engine::websocket::{Decoder, Event, Handshake, HandshakeState, Masking, Opcode};

/// Maximum capacity of a message buffer that is reused for the next message, in bytes.
const REUSED_BUFFER_MAX: usize = 16 << 10;

/// State of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// Not dialed yet.
    NotDialed,
    /// The TCP connect or the TLS handshake is in progress.
    Connecting,
    /// The handshake of the WebSocket is in progress.
    Opening(Handshake),
    /// The call that subscribes was sent and has no response yet.
    Subscribing,
    /// The subscription is confirmed with this id.
    Subscribed(String),
    /// The connection failed or has ended.
    Ended,
}

/// The blocks or logs that the connection received.
#[derive(Debug)]
pub(super) enum Tracker {
    Heads(Box<HeadTracker>),
    Logs(LogTracker),
}

/// Counts of one connection after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Number of valid notifications.
    pub(super) notifications: u64,
    /// Number of notifications of a block or log that the connection had received before.
    pub(super) duplicates: u64,
    /// Number of blocks or logs that did not arrive although the server should have sent them.
    pub(super) missing: u64,
    /// Number of blocks that arrived after a higher block.
    pub(super) out_of_order: u64,
    /// Number of blocks that replaced another block, or of logs that a reorg withdrew.
    pub(super) reorged: u64,
    /// Number of messages that are no valid notifications.
    pub(super) unreadable: u64,
}

/// One connection with its subscription.
pub(super) struct Subscriber {
    /// Index of the subscription in the plan, which is also the index of its group.
    pub(super) group_index: usize,
    pub(super) state: State,
    pub(super) connection: Option<Connection<TcpStream>>,
    /// Number of the server's addresses that were tried so far.
    pub(super) tried: usize,
    /// Time at which the connect started.
    pub(super) started: u64,
    /// Time at which the current step of the set-up times out.
    pub(super) deadline: u64,
    /// True if the connection is queued because it has more to read.
    pub(super) is_queued: bool,
    decoder: Decoder,
    /// The message that is being read.
    message: Vec<u8>,
    pub(super) tracker: Tracker,
    pub(super) counts: Counts,
    /// True once the server has confirmed the subscription.
    pub(super) was_subscribed: bool,
}

/// The result of [`Subscriber::feed`].
#[derive(Debug, PartialEq)]
pub(super) enum Received {
    /// More bytes are needed.
    Nothing,
    /// The WebSocket is open. Holds the bytes that followed the handshake.
    Opened(Vec<u8>),
    /// A message is complete. Holds the number of bytes consumed.
    Message(usize),
    /// The connection must be closed for this reason.
    End(String),
}

impl Subscriber {
    pub(super) fn new(group_index: usize, kind: SubscriptionKind) -> Subscriber {
        Subscriber {
            group_index,
            state: State::NotDialed,
            connection: None,
            tried: 0,
            started: 0,
            deadline: 0,
            is_queued: false,
            decoder: Decoder::default(),
            message: Vec::new(),
            tracker: match kind {
                SubscriptionKind::Heads => Tracker::Heads(Box::default()),
                SubscriptionKind::Logs => Tracker::Logs(LogTracker::default()),
            },
            counts: Counts::default(),
            was_subscribed: false,
        }
    }

    /// Returns true if the set-up of the connection is in progress.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.state, State::Connecting | State::Opening(_) | State::Subscribing)
    }

    /// Decodes the next bytes up to the end of a message. Replies to pings.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        masking: &mut Masking,
        traffic: &mut Traffic,
    ) -> Received {
        if let State::Opening(handshake) = &mut self.state {
            return match handshake.feed(bytes) {
                HandshakeState::Incomplete => Received::Nothing,
                HandshakeState::Open { frames } => Received::Opened(frames),
                HandshakeState::Refused { status, .. } => {
                    Received::End(format!("handshake refused: HTTP {status}"))
                }
                HandshakeState::Invalid => Received::End("handshake invalid".to_owned()),
            };
        }
        let mut offset = 0;
        loop {
            let event = match self.decoder.next(&bytes[offset..]) {
                Ok((used, event)) => {
                    offset += used;
                    event
                }
                Err(_) => return Received::End("invalid frame".to_owned()),
            };
            match event {
                None if offset >= bytes.len() => return Received::Nothing,
                None | Some(Event::Pong) => {}
                Some(Event::Piece { bytes: piece, is_last }) => {
                    if self.message.len() + piece.len() > MESSAGE_BYTES_MAX {
                        return Received::End("message too long".to_owned());
                    }
                    self.message.extend_from_slice(piece);
                    if is_last {
                        return Received::Message(offset);
                    }
                }
                Some(Event::Ping(payload)) => {
                    let mut frame = Vec::new();
                    masking.encode(&mut frame, Opcode::Pong, payload);
                    let connection = self.connection.as_mut();
                    let sent = connection.map(|connection| connection.send(&frame, traffic));
                    // The connection ends, because a server that sends pings but does not read
                    // would fill the buffer of unsent bytes.
                    let has_unsent =
                        self.connection.as_ref().is_some_and(|connection| !connection.sent_all());
                    if has_unsent || sent.is_none_or(|sent| sent.is_err()) {
                        return Received::End("server does not read".to_owned());
                    }
                }
                Some(Event::Close(code)) => {
                    return Received::End(match code {
                        Some(code) => format!("closed by the server: code {code}"),
                        None => "closed by the server: no code".to_owned(),
                    });
                }
            }
        }
    }

    /// Takes the complete message. Return its buffer with [`Subscriber::give_back`].
    pub(super) fn take_message(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.message)
    }

    /// Takes back the buffer of a handled message, to reuse it for the next message.
    pub(super) fn give_back(&mut self, mut message: Vec<u8>) {
        if message.capacity() <= REUSED_BUFFER_MAX {
            message.clear();
            self.message = message;
        }
    }
}
