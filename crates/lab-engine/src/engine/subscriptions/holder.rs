//! The thread that opens and reads all connections.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lab_model::plan::{Plan, SubscriptionKind};
use lab_model::record::{TIME_MAX, Traffic};
use lab_model::results::subscription::SubscriptionRow;
use rustix::event::epoll;

use super::arrivals::Arrivals;
use super::group::Group;
use super::heads::HeadEvent;
use super::logs::{LogEntry, LogTable};
use super::message::{Head, Log, Message, parse, parse_head, parse_log};
use super::subscriber::{Received, State, Subscriber, Tracker};
use crate::engine::EngineFault;
use crate::engine::connection::{Connection, PIECE_BYTES, Phase, ReadResult};
use crate::engine::thread::pace::nanos;
use crate::engine::websocket::{Masking, Opcode};
use crate::engine::world::{System, WAKEUP, World as _};

/// Maximum number of connections that are set up at the same time.
const STARTING_MAX: usize = 128;
/// Maximum number of events that one turn handles.
const EVENTS_MAX: usize = 256;
/// Maximum time of one wait, in nanoseconds. Timeouts of the set-up are checked this often.
const WAIT_MAX: u64 = 100_000_000;
/// Number of pieces that are read from one connection before others are served.
const PIECES_MAX: usize = 4;
/// Payload of a close frame with the code 1000, normal closure.
const NORMAL_CLOSURE: [u8; 2] = 1000u16.to_be_bytes();

/// State of the thread.
pub(super) struct Holder {
    world: System,
    stop: Arc<AtomicBool>,
    /// End of the warm-up.
    measured_from: u64,
    groups: Vec<Group>,
    subscribers: Vec<Subscriber>,
    /// Indexes of connections that are set up.
    starting: Vec<usize>,
    /// Index of the next connection to dial.
    next: usize,
    /// Indexes of connections that have more to read.
    unread: VecDeque<usize>,
    heads: Arrivals,
    log_tables: Vec<LogTable>,
    /// Hashes block hashes to ids.
    hasher: RandomState,
    masking: Masking,
    /// Traffic of subscriptions, which no row of the result has.
    traffic: Traffic,
    input: Vec<u8>,
}

impl Holder {
    /// Creates the thread's state.
    ///
    /// # Errors
    /// Fails if a header or TLS setting cannot be used.
    pub(super) fn new(
        plan: &Plan,
        addresses: Vec<Vec<SocketAddr>>,
        world: System,
        stop: Arc<AtomicBool>,
    ) -> Result<Holder, EngineFault> {
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
        Ok(Holder {
            world,
            stop,
            measured_from: nanos(plan.warmup),
            groups,
            subscribers,
            starting: Vec::new(),
            next: 0,
            unread: VecDeque::new(),
            heads: Arrivals::default(),
            log_tables: calls.iter().map(|_| LogTable::default()).collect(),
            hasher: RandomState::new(),
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
            if connection.connect_fault().is_some() {
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
        self.read(index);
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
        if self.subscribers[index].connection.is_some() {
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
        let is_measured = now >= self.measured_from;
        let subscriber = &mut self.subscribers[index];
        let is_valid = match (&subscriber.state, parse(message)) {
            (State::Subscribing, Some(Message::Confirmed(id))) => {
                subscriber.state = State::Subscribed(id.into_owned());
                subscriber.was_subscribed = true;
                return self.groups[subscriber.group].confirm(now - subscriber.started);
            }
            (State::Subscribing, Some(Message::Refused(code))) => {
                return self.end(index, format!("subscription refused: code {code}"));
            }
            // The first notification may overtake the confirmation.
            (State::Subscribing, Some(Message::Notification { result, .. })) => {
                self.notify(index, result, now)
            }
            (State::Subscribed(id), Some(Message::Notification { subscription, result }))
                if *id == subscription =>
            {
                self.notify(index, result, now)
            }
            _ => false,
        };
        if !is_valid && is_measured {
            self.subscribers[index].counts.unreadable += 1;
        }
    }

    /// Counts a notification. Returns false if it is not valid.
    fn notify(&mut self, index: usize, result: &[u8], now: u64) -> bool {
        match self.groups[self.subscribers[index].group].kind {
            SubscriptionKind::Heads => match parse_head(result) {
                Some(head) => self.head(index, &head, now),
                None => return false,
            },
            SubscriptionKind::Logs => match parse_log(result) {
                Some(log) => self.log(index, &log, now),
                None => return false,
            },
        }
        true
    }

    fn head(&mut self, index: usize, head: &Head<'_>, now: u64) {
        let id = self.hasher.hash_one(&*head.hash);
        let first_arrival = self.heads.first(id, now);
        let is_measured = now >= self.measured_from;
        let subscriber = &mut self.subscribers[index];
        let Tracker::Heads(tracker) = &mut subscriber.tracker else { return };
        let event = tracker.add(head.number, id);
        if !is_measured {
            return;
        }
        let counts = &mut subscriber.counts;
        counts.notifications += 1;
        match event {
            HeadEvent::Duplicate => counts.duplicates += 1,
            HeadEvent::Next(skipped) => counts.missing = counts.missing.saturating_add(skipped),
            HeadEvent::OutOfOrder => {
                counts.out_of_order += 1;
                counts.missing = counts.missing.saturating_sub(1);
            }
            HeadEvent::Reorg => counts.reorged += 1,
        }
        if event == HeadEvent::Duplicate {
            return;
        }
        let group = &mut self.groups[subscriber.group];
        group.delay.saturating_record(now - first_arrival);
        let age = head.timestamp.and_then(age);
        if let Some(age) = age {
            group.age.saturating_record(age);
        }
    }

    fn log(&mut self, index: usize, log: &Log<'_>, now: u64) {
        let id = self.hasher.hash_one((&*log.block_hash, log.index));
        let is_measured = now >= self.measured_from;
        let table_index = self.groups[self.subscribers[index].group].log_table;
        let table = &mut self.log_tables[table_index];
        if log.is_removed {
            table.withdraw(id);
            let counts = &mut self.subscribers[index].counts;
            counts.notifications += u64::from(is_measured);
            counts.reorged += u64::from(is_measured);
            return;
        }
        let (entry, settled) = table.entry(id, log.block, now, is_measured);
        if let Some(settled) = settled {
            self.settle(table_index, &settled);
        }
        let subscriber = &mut self.subscribers[index];
        let Tracker::Logs(tracker) = &mut subscriber.tracker else { return };
        let is_new = tracker.add(&entry);
        if !is_measured {
            return;
        }
        subscriber.counts.notifications += 1;
        subscriber.counts.duplicates += u64::from(!is_new);
        if is_new {
            self.groups[subscriber.group].delay.saturating_record(now - entry.first_arrival);
        }
    }

    /// Counts a log on the connections that lack it.
    fn settle(&mut self, table: usize, entry: &LogEntry) {
        for subscriber in &mut self.subscribers {
            if self.groups[subscriber.group].log_table == table
                && let Tracker::Logs(tracker) = &mut subscriber.tracker
            {
                subscriber.counts.missing += u64::from(tracker.settle(entry));
            }
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
        self.masking.encode(&mut close, Opcode::Close, &NORMAL_CLOSURE);
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
        for table in 0..self.log_tables.len() {
            let entries: Vec<LogEntry> = self.log_tables[table].entries().copied().collect();
            entries.iter().for_each(|entry| self.settle(table, entry));
        }
        let Holder { groups, subscribers, log_tables, .. } = self;
        let mut log_members = vec![0; log_tables.len()];
        for subscriber in subscribers.iter().filter(|subscriber| subscriber.was_subscribed) {
            log_members[groups[subscriber.group].log_table] += 1;
        }
        let row = |(index, group): (usize, Group)| {
            let members = subscribers.iter().filter(|subscriber| subscriber.group == index);
            let has_reference = log_members[group.log_table] > 1;
            group.row(&members.collect::<Vec<_>>(), has_reference)
        };
        groups.into_iter().enumerate().map(row).collect()
    }
}

/// Returns the age of a block by the clock of this host, or `None` if it is negative or longer than
/// histograms record.
fn age(timestamp: u64) -> Option<u64> {
    let created = UNIX_EPOCH.checked_add(Duration::from_secs(timestamp))?;
    let age = SystemTime::now().duration_since(created).ok()?;
    u64::try_from(age.as_nanos()).ok().filter(|age| *age <= TIME_MAX)
}
