//! One connection with its subscription, from the connect to its end.

use std::net::TcpStream;

use lab_model::plan::SubscriptionKind;
use lab_model::record::Traffic;

use super::MESSAGE_BYTES_MAX;
use super::heads::HeadTracker;
use super::logs::LogTracker;
use crate::engine::connection::Connection;
use crate::engine::websocket::{Decoder, Event, Handshake, HandshakeState, Masking, Opcode};

/// Maximum number of bytes of a message buffer that is kept for the next message.
const KEPT_BUFFER_MAX: usize = 16 << 10;

/// State of a connection.
#[derive(Debug)]
pub(super) enum State {
    /// Not dialed yet.
    Waiting,
    /// The TCP connect or the TLS handshake is in progress.
    Connecting,
    /// The handshake of the WebSocket is in progress.
    Opening(Handshake),
    /// The call that subscribes has no response yet.
    Subscribing,
    /// The subscription is confirmed with this id.
    Subscribed(String),
    /// The connection failed or has ended.
    Ended,
}

/// What the connection received of its subscription.
#[derive(Debug)]
pub(super) enum Tracker {
    Heads(Box<HeadTracker>),
    Logs(LogTracker),
}

/// Counts of one connection after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) notifications: u64,
    pub(super) duplicates: u64,
    pub(super) missing: u64,
    pub(super) out_of_order: u64,
    pub(super) reorged: u64,
    pub(super) unreadable: u64,
}

/// One connection with its subscription.
pub(super) struct Subscriber {
    /// Index of its subscription.
    pub(super) group: usize,
    pub(super) state: State,
    pub(super) connection: Option<Connection<TcpStream>>,
    /// Number of the server's addresses that were tried.
    pub(super) tried: usize,
    /// When the connect started.
    pub(super) started: u64,
    /// When the current step of the set-up times out.
    pub(super) deadline: u64,
    /// True if the thread has not read all data of the connection yet.
    pub(super) is_unread: bool,
    decoder: Decoder,
    /// The message that is being read.
    message: Vec<u8>,
    pub(super) tracker: Tracker,
    pub(super) counts: Counts,
    /// True if the server confirmed the subscription.
    pub(super) was_subscribed: bool,
}

/// The result of received bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Received {
    /// More bytes are needed.
    Nothing,
    /// The WebSocket is open. Holds the bytes that followed the handshake.
    Opened(Vec<u8>),
    /// A complete message, of which this many bytes of the input were the last.
    Message(usize),
    /// The connection ends for this reason.
    End(String),
}

impl Subscriber {
    pub(super) fn new(group: usize, kind: SubscriptionKind) -> Subscriber {
        Subscriber {
            group,
            state: State::Waiting,
            connection: None,
            tried: 0,
            started: 0,
            deadline: 0,
            is_unread: false,
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

    /// Returns true while the connection is set up.
    pub(super) fn is_starting(&self) -> bool {
        matches!(self.state, State::Connecting | State::Opening(_) | State::Subscribing)
    }

    /// Interprets the next bytes up to the end of a message. Replies to pings.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        masking: &mut Masking,
        traffic: &mut Traffic,
    ) -> Received {
        if let State::Opening(handshake) = &mut self.state {
            return match handshake.feed(bytes) {
                HandshakeState::Incomplete => Received::Nothing,
                HandshakeState::Open { rest } => Received::Opened(rest),
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
                    // A server that pings without reading would fill the buffer of unsent bytes.
                    let is_full = self.connection.as_ref().is_some_and(|c| !c.sent_all());
                    if is_full || sent.is_none_or(|sent| sent.is_err()) {
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

    /// Returns a message's buffer for the next message.
    pub(super) fn give_back(&mut self, mut message: Vec<u8>) {
        if message.capacity() <= KEPT_BUFFER_MAX {
            message.clear();
            self.message = message;
        }
    }
}
