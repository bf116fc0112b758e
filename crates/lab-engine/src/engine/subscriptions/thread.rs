//! The thread that opens and reads all connections, and closes them at the end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lab_model::plan::Plan;
use lab_model::record::Traffic;
use lab_model::results::subscription::SubscriptionRow;
use rustix::event::epoll;

use super::counter::Counter;
use super::group::Group;
use super::message::{Message, parse};
use super::subscriber::{Received, State, Subscriber};
use crate::engine::EngineFault;
use crate::engine::connection::{Connection, PIECE_BYTES, Phase, ReadResult};
use crate::engine::thread::pace::nanos;
use crate::engine::websocket::{Masking, NORMAL_CLOSURE, Opcode};
use crate::engine::world::{Socket as _, System, WAKEUP, World as _};

/// Maximum number of connections that are set up at the same time.
const STARTING_MAX: usize = 128;
/// Maximum number of events that one turn handles.
const EVENTS_MAX: usize = 256;
/// Maximum time of one wait, in nanoseconds. Timeouts of the set-up are checked this often.
const WAIT_MAX: u64 = 100_000_000;
/// Number of pieces that are read from one connection before others are served.
const PIECES_MAX: usize = 4;

/// The thread that opens and reads all connections.
pub(super) struct SubscriptionThread {
    world: System,
    stop: Arc<AtomicBool>,
    counter: Counter,
    groups: Vec<Group>,
    subscribers: Vec<Subscriber>,
    /// Indexes of connections that are set up.
    starting: Vec<usize>,
    /// Index of the next connection to dial.
    next: usize,
    /// Indexes of connections that have more to read.
    unread: VecDeque<usize>,
    masking: Masking,
    /// Traffic of subscriptions, which no row of the result has.
    traffic: Traffic,
    input: Vec<u8>,
}

impl SubscriptionThread {
    /// Creates the thread's state.
    ///
    /// # Errors
    /// Fails if a header or TLS setting cannot be used.
    pub(super) fn new(
        plan: &Plan,
        addresses: Vec<Vec<SocketAddr>>,
        world: System,
        stop: Arc<AtomicBool>,
    ) -> Result<SubscriptionThread, EngineFault> {
        let (mut groups, mut subscribers, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for (subscription, addresses) in plan.subscriptions.iter().zip(addresses) {
            if addresses.is_empty() {
                return Err(EngineFault::NoAddress);
            }
            let mut group = Group::new(plan, subscription, addresses, calls.len())?;
            match calls.iter().position(|call| *call == group.call) {
                Some(index) => group.log_table = index,
                None => calls.push(group.call.clone()),
            }
            let index = groups.len();
            let new = || Subscriber::new(index, subscription.kind);
            subscribers.extend(std::iter::repeat_with(new).take(subscription.connections));
            groups.push(group);
        }
        Ok(SubscriptionThread {
            world,
            stop,
            counter: Counter::new(nanos(plan.warmup), calls.len()),
            groups,
            subscribers,
            starting: Vec::new(),
            next: 0,
            unread: VecDeque::new(),
            masking: Masking::default(),
            traffic: Traffic::default(),
            input: vec![0; PIECE_BYTES],
        })
    }

    /// Holds the subscriptions until the run stops.
    ///
    /// # Errors
    /// Fails if the system's wait for events fails.
    pub(super) fn run(mut self) -> Result<Vec<SubscriptionRow>, EngineFault> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.stop.load(Ordering::Acquire) {
            let until_start = self.world.until_start();
            if until_start == 0 {
                self.dial_next();
                self.expire();
            }
            let timeout = match self.unread.is_empty() {
                true if until_start > 0 => until_start.min(WAIT_MAX),
                true => WAIT_MAX,
                false => 0,
            };
            self.world.wait(&mut events, timeout)?;
            for event in events.drain(..) {
                self.handle_event(event);
            }
            for _ in 0..self.unread.len() {
                if let Some(index) = self.unread.pop_front() {
                    self.subscribers[index].is_unread = false;
                    self.read(index);
                }
            }
        }
        Ok(self.finish())
    }

    /// Dials further connections, as many as may be set up at the same time.
    fn dial_next(&mut self) {
        let subscribers = &self.subscribers;
        self.starting.retain(|&index| subscribers[index].is_starting());
        while self.starting.len() < STARTING_MAX && self.next < self.subscribers.len() {
            let index = self.next;
            self.next += 1;
            self.starting.push(index);
            let now = self.world.now();
            let subscriber = &mut self.subscribers[index];
            subscriber.started = now;
            subscriber.deadline = now + self.groups[subscriber.group].connect_timeout;
            subscriber.state = State::Connecting;
            self.dial(index);
        }
    }

    /// Connects to the next address of the server.
    fn dial(&mut self, index: usize) {
        let subscriber = &mut self.subscribers[index];
        let addresses = &self.groups[subscriber.group].addresses;
        while let Some(&address) = addresses.get(subscriber.tried) {
            subscriber.tried += 1;
            let Ok(socket) = self.world.connect(address) else { continue };
            if self.world.watch(&socket, index as u64).is_ok() {
                subscriber.connection = Some(Connection::new(socket, subscriber.started));
                return;
            }
        }
        self.end(index, "connect failed".to_owned());
    }

    /// Ends the connections whose set-up takes too long.
    fn expire(&mut self) {
        let now = self.world.now();
        for position in 0..self.starting.len() {
            let index = self.starting[position];
            let subscriber = &self.subscribers[index];
            if subscriber.deadline > now {
                continue;
            }
            let reason = match subscriber.state {
                State::Connecting => "connect timed out",
                State::Opening(_) => "handshake timed out",
                State::Subscribing => "subscription timed out",
                State::Waiting | State::Subscribed(_) | State::Ended => continue,
            };
            self.end(index, reason.to_owned());
        }
    }

    fn handle_event(&mut self, event: epoll::Event) {
        let (flags, token) = (event.flags, event.data.u64());
        if token == WAKEUP {
            return self.world.clear_wakeup();
        }
        let index = token as usize;
        let subscriber = &mut self.subscribers[index];
        let group = &self.groups[subscriber.group];
        let Some(connection) = &mut subscriber.connection else { return };
        if connection.phase == Phase::Connecting {
            if connection.socket().connect_fault().is_some() {
                subscriber.connection = None;
                return self.dial(index);
            }
            if connection.start_tls(&group.peer, self.world.now()).is_err() {
                return self.end(index, "TLS handshake failed".to_owned());
            }
        }
        if connection.phase == Phase::Handshaking
            && connection.handshake(&mut self.traffic).is_err()
        {
            return self.end(index, "TLS handshake failed".to_owned());
        }
        if connection.phase != Phase::Open {
            return;
        }
        if matches!(subscriber.state, State::Connecting) {
            let (request, handshake) = group.opener.open();
            subscriber.state = State::Opening(handshake);
            if connection.send(&request, &mut self.traffic).is_err() {
                return self.end(index, "connection lost".to_owned());
            }
        } else if flags.contains(epoll::EventFlags::OUT) {
            // After a write error, the next read reports the end of the connection.
            let _ignored = connection.flush(&mut self.traffic);
        }
        // An unread connection is read in its turn.
        if !subscriber.is_unread {
            self.read(index);
        }
    }

    /// Reads a connection until it has no more data, or for a few pieces.
    fn read(&mut self, index: usize) {
        let mut input = std::mem::take(&mut self.input);
        for _ in 0..PIECES_MAX {
            let Some(connection) = &mut self.subscribers[index].connection else { break };
            match connection.receive(&mut input, &mut self.traffic) {
                ReadResult::Bytes { count, .. } => self.feed(index, &input[..count]),
                ReadResult::Nothing => {
                    self.input = input;
                    return;
                }
                ReadResult::End => self.end(index, "connection lost".to_owned()),
            }
        }
        self.input = input;
        let subscriber = &mut self.subscribers[index];
        if subscriber.connection.is_some() {
            subscriber.is_unread = true;
            self.unread.push_back(index);
        }
    }

    /// Interprets received bytes.
    fn feed(&mut self, index: usize, mut bytes: &[u8]) {
        let now = self.world.now();
        let opened;
        loop {
            let subscriber = &mut self.subscribers[index];
            match subscriber.feed(bytes, &mut self.masking, &mut self.traffic) {
                Received::Nothing => return,
                Received::End(reason) => return self.end(index, reason),
                Received::Opened(rest) => {
                    self.subscribe(index, now);
                    opened = rest;
                    break;
                }
                Received::Message(used) => {
                    bytes = &bytes[used..];
                    let message = subscriber.take_message();
                    self.handle_message(index, &message, now);
                    let subscriber = &mut self.subscribers[index];
                    subscriber.give_back(message);
                    if subscriber.connection.is_none() || bytes.is_empty() {
                        return;
                    }
                }
            }
        }
        if !opened.is_empty() && self.subscribers[index].connection.is_some() {
            self.feed(index, &opened);
        }
    }

    /// Sends the call that subscribes.
    fn subscribe(&mut self, index: usize, now: u64) {
        let subscriber = &mut self.subscribers[index];
        let group = &self.groups[subscriber.group];
        let mut frame = Vec::new();
        self.masking.encode(&mut frame, Opcode::Text, group.call.as_bytes());
        subscriber.state = State::Subscribing;
        subscriber.deadline = now + group.call_timeout;
        let connection = subscriber.connection.as_mut();
        let sent = connection.map(|connection| connection.send(&frame, &mut self.traffic));
        if sent.is_none_or(|sent| sent.is_err()) {
            self.end(index, "connection lost".to_owned());
        }
    }

    fn handle_message(&mut self, index: usize, message: &[u8], now: u64) {
        let subscriber = &mut self.subscribers[index];
        let result = match (&subscriber.state, parse(message)) {
            (State::Subscribing, Some(Message::Confirmed(id))) => {
                subscriber.state = State::Subscribed(id.into_owned());
                subscriber.was_subscribed = true;
                return self.groups[subscriber.group].confirm(now - subscriber.started);
            }
            (State::Subscribing, Some(Message::Refused(code))) => {
                return self.end(index, format!("subscription refused: code {code}"));
            }
            // The first notification may overtake the confirmation.
            (State::Subscribing, Some(Message::Notification { result, .. })) => Some(result),
            (State::Subscribed(id), Some(Message::Notification { subscription, result })) => {
                (*id == subscription).then_some(result)
            }
            _ => None,
        };
        let (subscribers, groups) = (&mut self.subscribers, &mut self.groups);
        let is_valid = result
            .is_some_and(|result| self.counter.count(subscribers, groups, index, result, now));
        if !is_valid && self.counter.is_measured(now) {
            self.subscribers[index].counts.unreadable += 1;
        }
    }

    /// Ends a connection for this reason.
    fn end(&mut self, index: usize, reason: String) {
        let subscriber = &mut self.subscribers[index];
        subscriber.connection = None;
        subscriber.state = State::Ended;
        self.groups[subscriber.group].end(reason);
    }

    /// Closes all connections and returns the rows of the result.
    fn finish(mut self) -> Vec<SubscriptionRow> {
        let mut close = Vec::new();
        self.masking.encode(&mut close, Opcode::Close, &NORMAL_CLOSURE.to_be_bytes());
        for subscriber in &mut self.subscribers {
            match &subscriber.state {
                State::Subscribed(_) | State::Ended => {}
                State::Waiting => self.groups[subscriber.group].end("not dialed".to_owned()),
                _ => self.groups[subscriber.group].end("not set up at the end".to_owned()),
            }
            if let Some(connection) = &mut subscriber.connection
                && connection.phase == Phase::Open
            {
                // The connection is closed in any case.
                let _ignored = connection.send(&close, &mut self.traffic);
            }
        }
        self.counter.finish(&mut self.subscribers, &self.groups);
        let SubscriptionThread { groups, subscribers, .. } = self;
        // By table: the number of connections that can compare their logs.
        let mut log_members = vec![0; groups.len()];
        for subscriber in subscribers.iter().filter(|subscriber| subscriber.was_subscribed) {
            log_members[groups[subscriber.group].log_table] += 1;
        }
        let row = |(index, group): (usize, Group)| {
            let members = subscribers.iter().filter(|subscriber| subscriber.group == index);
            let has_reference = log_members[group.log_table] > 1;
            group.into_row(&members.collect::<Vec<_>>(), has_reference)
        };
        groups.into_iter().enumerate().map(row).collect()
    }
}
