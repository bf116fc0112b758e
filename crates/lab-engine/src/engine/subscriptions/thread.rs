//! The thread that opens and reads all subscribed connections, and closes them at the end.
//!
//! The set-up of a connection has four steps: TCP connect, TLS handshake, WebSocket handshake, and
//! the call that subscribes. Times of type `u64` are nanoseconds since the start of the run.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lab_model::plan::Plan;
use lab_model::record::{GAP_MIN_NS, Traffic};
use lab_model::results::subscription::SubscriptionRow;
use rustix::event::epoll;

use super::counter::Counter;
use super::group::Group;
use super::message::{Message, parse};
use super::subscriber::{Received, State, Subscriber};
use crate::engine::EngineFault;
use crate::engine::connection::{Connection, PIECE_BYTES, Phase, ReadResult};
use crate::engine::time::nanos;
use crate::engine::websocket::{Masking, NORMAL_CLOSURE, Opcode};
use crate::engine::world::{Socket as _, System, WAKEUP, World as _};

/// Maximum number of connections that are set up at the same time.
const STARTING_MAX: usize = 128;
/// Maximum number of events that one pass of the loop handles.
const EVENTS_MAX: usize = 256;
/// Maximum time of one wait for events. The thread checks the timeouts of the set-up at least this
/// often.
const WAIT_MAX_NS: u64 = 100_000_000;
/// Maximum number of reads from one connection before the thread serves other connections. Each
/// read takes up to [`PIECE_BYTES`].
const PIECES_MAX: usize = 4;

/// The thread that opens and reads all connections.
pub(super) struct SubscriptionThread {
    world: System,
    /// True if the thread must stop.
    stop: Arc<AtomicBool>,
    counter: Counter,
    groups: Vec<Group>,
    /// All connections of the plan's subscriptions.
    subscribers: Vec<Subscriber>,
    /// Indexes of the subscribers whose set-up is in progress.
    starting: Vec<usize>,
    /// Index of the next subscriber to dial.
    next_index: usize,
    /// Indexes of subscribers whose connection has more to read.
    read_queue: VecDeque<usize>,
    masking: Masking,
    /// Traffic of all connections. The result does not report it.
    traffic: Traffic,
    read_buffer: Vec<u8>,
    /// Time of the last look at the sockets, in nanoseconds since the start of the run.
    polled_at: u64,
    /// Longest time, after the warm-up, by which the thread looked at its sockets too late.
    longest_gap_ns: u64,
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
        let (mut groups, mut subscribers) = (Vec::new(), Vec::new());
        // A log table (`logs.rs`) has the recent logs of all connections that send the same call,
        // even if they belong to different subscriptions.
        let mut calls = Vec::new();
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
            next_index: 0,
            read_queue: VecDeque::new(),
            masking: Masking::default(),
            traffic: Traffic::default(),
            read_buffer: vec![0; PIECE_BYTES],
            polled_at: 0,
            longest_gap_ns: 0,
        })
    }

    /// Opens and reads the connections until the run stops. Returns the rows of the result.
    ///
    /// # Errors
    /// Fails if the system's wait for events fails.
    pub(super) fn run(mut self) -> Result<Vec<SubscriptionRow>, EngineFault> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        self.polled_at = self.world.now();
        while !self.stop.load(Ordering::Acquire) {
            let until_start = self.world.until_start();
            if until_start == 0 {
                self.dial_next();
                self.end_expired();
            }
            let has_unread = !self.read_queue.is_empty();
            let timeout = match until_start {
                _ if has_unread => 0,
                0 => WAIT_MAX_NS,
                _ => until_start.min(WAIT_MAX_NS),
            };
            let wait_started = self.world.now();
            self.world.wait(&mut events, timeout)?;
            self.end_wait(wait_started, timeout);
            for event in events.drain(..) {
                self.handle_event(event);
            }
            for _ in 0..self.read_queue.len() {
                if let Some(index) = self.read_queue.pop_front() {
                    self.subscribers[index].is_queued = false;
                    self.read(index);
                }
            }
        }
        Ok(self.finish())
    }

    /// Measures how late the thread looks at its sockets: the time that it worked since its last look,
    /// and the time by which the wait was longer than intended.
    fn end_wait(&mut self, wait_started: u64, timeout: u64) {
        let now = self.world.now();
        let worked_ns = wait_started.saturating_sub(self.polled_at);
        let late_ns = worked_ns + now.saturating_sub(wait_started + timeout);
        self.polled_at = now;
        if late_ns >= GAP_MIN_NS && self.counter.is_measured(now) {
            self.longest_gap_ns = self.longest_gap_ns.max(late_ns);
        }
    }

    /// Dials further connections, up to the limit of concurrent set-ups.
    fn dial_next(&mut self) {
        let subscribers = &self.subscribers;
        self.starting.retain(|&index| subscribers[index].is_starting());
        while self.starting.len() < STARTING_MAX && self.next_index < self.subscribers.len() {
            let index = self.next_index;
            self.next_index += 1;
            self.starting.push(index);
            let now = self.world.now();
            let subscriber = &mut self.subscribers[index];
            subscriber.started = now;
            subscriber.deadline = now + self.groups[subscriber.group_index].connect_timeout_ns;
            subscriber.state = State::Connecting;
            self.dial(index);
        }
    }

    /// Starts a connect to the next address of the subscriber's server. Ends the connection if no
    /// address is left.
    fn dial(&mut self, index: usize) {
        let subscriber = &mut self.subscribers[index];
        let addresses = &self.groups[subscriber.group_index].addresses;
        while let Some(&address) = addresses.get(subscriber.tried) {
            subscriber.tried += 1;
            let Ok(socket) = self.world.connect(address) else { continue };
            if self.world.watch(&socket, index as u64).is_ok() {
                subscriber.connection = Some(Connection::new(socket, subscriber.started));
                return;
            }
        }
        self.end_connection(index, "connect failed".to_owned());
    }

    /// Ends the connections whose current step of the set-up has timed out. A response that arrived
    /// while the thread was stopped is read first.
    fn end_expired(&mut self) {
        let now = self.polled_at;
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
                State::NotDialed | State::Subscribed(_) | State::Ended => continue,
            };
            self.end_connection(index, reason.to_owned());
        }
    }

    /// Handles a socket event: continues the set-up, sends pending bytes, and reads.
    fn handle_event(&mut self, event: epoll::Event) {
        let (flags, token) = (event.flags, event.data.u64());
        if token == WAKEUP {
            return self.world.clear_wakeup();
        }
        let index = token as usize;
        let subscriber = &mut self.subscribers[index];
        let group = &self.groups[subscriber.group_index];
        let Some(connection) = &mut subscriber.connection else { return };
        if connection.phase == Phase::Connecting {
            if connection.socket().connect_fault().is_some() {
                subscriber.connection = None;
                return self.dial(index);
            }
            if connection.start_tls(&group.peer, self.world.now()).is_err() {
                return self.end_connection(index, "TLS handshake failed".to_owned());
            }
        }
        if connection.phase == Phase::Handshaking
            && connection.handshake(&mut self.traffic).is_err()
        {
            return self.end_connection(index, "TLS handshake failed".to_owned());
        }
        if connection.phase != Phase::Open {
            return;
        }
        if matches!(subscriber.state, State::Connecting) {
            let (request, handshake) = group.opener.open();
            subscriber.state = State::Opening(handshake);
            if connection.send(&request, &mut self.traffic).is_err() {
                return self.end_connection(index, "connection lost".to_owned());
            }
        } else if flags.contains(epoll::EventFlags::OUT) {
            // After a write error, the next read reports the end of the connection.
            let _ignored = connection.flush(&mut self.traffic);
        }
        // A queued connection is read later, from the queue.
        if !subscriber.is_queued {
            self.read(index);
        }
    }

    /// Reads from a connection until it has no more data or [`PIECES_MAX`] is reached. In the
    /// latter case, queues the connection.
    fn read(&mut self, index: usize) {
        let mut input = std::mem::take(&mut self.read_buffer);
        for _ in 0..PIECES_MAX {
            let Some(connection) = &mut self.subscribers[index].connection else { break };
            match connection.receive(&mut input, &mut self.traffic) {
                ReadResult::Bytes { count, .. } => self.feed(index, &input[..count]),
                ReadResult::Nothing => {
                    self.read_buffer = input;
                    return;
                }
                ReadResult::End => self.end_connection(index, "connection lost".to_owned()),
            }
        }
        self.read_buffer = input;
        let subscriber = &mut self.subscribers[index];
        if subscriber.connection.is_some() {
            subscriber.is_queued = true;
            self.read_queue.push_back(index);
        }
    }

    /// Handles received bytes.
    fn feed(&mut self, index: usize, mut bytes: &[u8]) {
        let now = self.world.now();
        // The bytes that followed the WebSocket handshake. The code after the loop runs only if the
        // handshake has ended in it.
        let frames;
        loop {
            let subscriber = &mut self.subscribers[index];
            match subscriber.feed(bytes, &mut self.masking, &mut self.traffic) {
                Received::Nothing => return,
                Received::End(reason) => return self.end_connection(index, reason),
                Received::Opened(frames_after_handshake) => {
                    self.subscribe(index, now);
                    frames = frames_after_handshake;
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
        if !frames.is_empty() && self.subscribers[index].connection.is_some() {
            self.feed(index, &frames);
        }
    }

    /// Sends the call that subscribes.
    fn subscribe(&mut self, index: usize, now: u64) {
        let subscriber = &mut self.subscribers[index];
        let group = &self.groups[subscriber.group_index];
        let mut frame = Vec::new();
        self.masking.encode(&mut frame, Opcode::Text, group.call.as_bytes());
        subscriber.state = State::Subscribing;
        subscriber.deadline = now + group.call_timeout_ns;
        let connection = subscriber.connection.as_mut();
        let sent = connection.map(|connection| connection.send(&frame, &mut self.traffic));
        if sent.is_none_or(|sent| sent.is_err()) {
            self.end_connection(index, "connection lost".to_owned());
        }
    }

    /// Handles a complete message: the response to the call that subscribes, or a notification.
    fn handle_message(&mut self, index: usize, message: &[u8], now: u64) {
        let subscriber = &mut self.subscribers[index];
        let result = match (&subscriber.state, parse(message)) {
            (State::Subscribing, Some(Message::Confirmed(id))) => {
                subscriber.state = State::Subscribed(id.into_owned());
                subscriber.was_subscribed = true;
                return self.groups[subscriber.group_index]
                    .record_subscribe_time(now - subscriber.started);
            }
            (State::Subscribing, Some(Message::Refused(code))) => {
                return self.end_connection(index, format!("subscription refused: code {code}"));
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

    /// Closes a connection and counts its end under this reason.
    fn end_connection(&mut self, index: usize, reason: String) {
        let subscriber = &mut self.subscribers[index];
        subscriber.connection = None;
        subscriber.state = State::Ended;
        self.groups[subscriber.group_index].count_end(reason);
    }

    /// Closes all connections and returns the rows of the result.
    fn finish(mut self) -> Vec<SubscriptionRow> {
        let mut close_frame = Vec::new();
        self.masking.encode(&mut close_frame, Opcode::Close, &NORMAL_CLOSURE.to_be_bytes());
        for subscriber in &mut self.subscribers {
            match &subscriber.state {
                State::Subscribed(_) | State::Ended => {}
                State::NotDialed => {
                    self.groups[subscriber.group_index].count_end("not dialed".to_owned())
                }
                _ => self.groups[subscriber.group_index]
                    .count_end("not set up at the end".to_owned()),
            }
            if let Some(connection) = &mut subscriber.connection
                && connection.phase == Phase::Open
            {
                // The connection is closed in any case.
                let _ignored = connection.send(&close_frame, &mut self.traffic);
            }
        }
        self.counter.finish(&mut self.subscribers, &self.groups);
        let SubscriptionThread { groups, subscribers, longest_gap_ns, .. } = self;
        // Number of connections whose logs can be compared, by log table.
        let mut table_members = vec![0; groups.len()];
        for subscriber in subscribers.iter().filter(|subscriber| subscriber.was_subscribed) {
            table_members[groups[subscriber.group_index].log_table] += 1;
        }
        let row = |(index, group): (usize, Group)| {
            let members = subscribers.iter().filter(|subscriber| subscriber.group_index == index);
            let has_comparable_logs = table_members[group.log_table] > 1;
            SubscriptionRow {
                generator_gap_ms: longest_gap_ns as f64 / 1e6,
                ..group.into_row(&members.collect::<Vec<_>>(), has_comparable_logs)
            }
        };
        groups.into_iter().enumerate().map(row).collect()
    }
}
