//! A made-up world for the engine: virtual time, and a server whose every byte, delay and fault comes
//! from a seed. The loop is the real one; the same seed gives the same run, byte for byte.
//!
//! The server decides what becomes of a request when its first byte is sent, and writes that down in
//! its [`Account`]: what the engine counts must agree. Faults are such that their class is certain:
//! what comes at all comes well before the timeout. Only HTTP/1.1 without TLS is spoken here.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use lab_model::record::Class;
use memchr::memmem;
use rustix::event::epoll::{Event, EventData, EventFlags};

use super::EngineFault;
use super::dice::Dice;
use super::thread::EngineThread;
use super::world::{Socket, World};

const MICROSECOND: u64 = 1_000;
/// Room of a socket's buffer for what the client writes.
const ROOM: usize = 4 << 10;
/// Reading the clock takes up to so long.
const CLOCK_MAX: u64 = 2 * MICROSECOND;
/// A thread wakes up to so late.
const WAKE_MAX: u64 = 60 * MICROSECOND;
/// Now and then, another process has the core for up to so long.
const HICCUP_MAX: u64 = 5_000 * MICROSECOND;

/// How often what goes wrong: each a chance in a thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Of a connection: it is refused, or never made.
    pub connect: u64,
    /// Of a request: it gets another answer than a result, or none.
    pub request: u64,
    /// Of a wake-up: the core is somebody else's.
    pub hiccup: u64,
}

/// What the server has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Calls by the class that the engine must count them in; those that failed to connect left out.
    pub calls: BTreeMap<Class, u64>,
    /// Attempts to connect that failed or never ended.
    pub unconnected: u64,
    /// Connections made.
    pub connections: u64,
    /// Bytes that clients wrote.
    pub received: u64,
    /// Bytes that clients read.
    pub sent: u64,
}

/// The made-up network: shared by the world of the engine's thread and whoever looks at the account.
#[derive(Clone)]
pub struct Network(Rc<RefCell<Net>>);

impl Network {
    /// A network of a seed, for calls that wait for at most `timeout`.
    pub fn new(seed: u64, timeout: Duration, trouble: Trouble) -> Network {
        Network(Rc::new(RefCell::new(Net {
            now: 0,
            dice: Dice::new(seed, 0, 0, 0),
            timeout: super::thread::pace::nanos(timeout),
            trouble,
            ends: Vec::new(),
            news: BinaryHeap::new(),
            count: 0,
            ready: VecDeque::new(),
            account: Account::default(),
        })))
    }

    /// What the server has done so far.
    pub fn account(&self) -> Account {
        self.0.borrow().account.clone()
    }
}

/// The engine's thread in the network, turn by turn.
pub(crate) struct Stepped {
    thread: Option<EngineThread<Network>>,
    events: Vec<Event>,
}

impl Stepped {
    /// Nothing done yet.
    pub(crate) fn new(thread: EngineThread<Network>) -> Stepped {
        Stepped { thread: Some(thread), events: Vec::new() }
    }

    /// Makes a turn; after the last it hands over what is left. False once there is none to make.
    pub(crate) fn step(&mut self) -> bool {
        let Some(thread) = &mut self.thread else { return false };
        // Waiting cannot fail here.
        let goes_on = thread.turn(&mut self.events).is_ok_and(|goes_on| goes_on);
        if !goes_on && let Some(thread) = self.thread.take() {
            thread.end();
        }
        true
    }
}

struct Net {
    now: u64,
    dice: Dice,
    timeout: u64,
    trouble: Trouble,
    /// The connections, by number.
    ends: Vec<End>,
    news: BinaryHeap<Reverse<(u64, u64, usize, News)>>,
    /// Orders news of the same time.
    count: u64,
    /// Connections with events that were not reported yet.
    ready: VecDeque<usize>,
    account: Account,
}

/// What happens at a connection's end that the client holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    Connected,
    Refused,
    Bytes(Vec<u8>),
    Room(usize),
    Closed,
    /// Closed, unless there were more than so many requests meanwhile.
    ClosedIdle(u64),
    Reset,
}

/// A connection.
struct End {
    token: Option<u64>,
    flags: EventFlags,
    state: State,
    /// What can be read.
    inbox: VecDeque<u8>,
    /// What can be written.
    room: usize,
    /// Requests that were begun.
    requests: u64,
    /// Bytes of the request that the server still waits for, and what it does then.
    awaited: Option<(usize, Vec<(u64, News)>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Refused,
    Open,
    /// The server has closed; what was sent can be read.
    Closed,
    Reset,
    /// The client has given it up.
    Gone,
}

/// A socket of the made-up network.
pub(crate) struct Made {
    net: Rc<RefCell<Net>>,
    number: usize,
}

impl Net {
    fn chance(&mut self, in_thousand: u64) -> bool {
        self.dice.between(0, 999) < in_thousand
    }

    fn later(&mut self, at: u64, number: usize, news: News) {
        self.count += 1;
        self.news.push(Reverse((at, self.count, number, news)));
    }

    /// Lets everything happen whose time has come.
    fn happen(&mut self) {
        while let Some(Reverse((at, ..))) = self.news.peek()
            && *at <= self.now
        {
            let Some(Reverse((_, _, number, news))) = self.news.pop() else { return };
            self.happens(number, news);
        }
    }

    fn happens(&mut self, number: usize, news: News) {
        let end = &mut self.ends[number];
        if matches!(end.state, State::Gone | State::Reset) {
            return;
        }
        let flags = match news {
            News::Connected => {
                end.state = State::Open;
                self.account.connections += 1;
                EventFlags::OUT
            }
            News::Refused => {
                end.state = State::Refused;
                EventFlags::ERR | EventFlags::HUP | EventFlags::OUT
            }
            News::Bytes(bytes) => {
                end.inbox.extend(bytes);
                EventFlags::IN
            }
            News::Room(bytes) => {
                end.room += bytes;
                EventFlags::OUT
            }
            News::ClosedIdle(requests) if requests != end.requests => return,
            News::Closed | News::ClosedIdle(_) => {
                end.state = State::Closed;
                EventFlags::IN | EventFlags::RDHUP
            }
            News::Reset => {
                end.state = State::Reset;
                end.inbox.clear();
                EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR
            }
        };
        if end.token.is_some() && end.flags.is_empty() {
            self.ready.push_back(number);
        }
        end.flags |= flags;
    }

    /// What becomes of a request of so many calls that is about to be sent.
    fn begin(&mut self, number: usize, request: &[u8]) {
        let calls = ids(request);
        self.ends[number].requests += 1;
        let (class, then) = match self.ends[number].state {
            // The server is gone, and does not see it.
            State::Closed | State::Reset => (Class::Reset, Vec::new()),
            _ => self.fate(&calls, request, self.ends[number].requests),
        };
        *self.account.calls.entry(class).or_default() += calls.len() as u64;
        self.ends[number].awaited = Some((request.len(), then));
    }

    /// The class of the calls, and what the server does once it has the request, each with how long
    /// it waits before that.
    fn fate(&mut self, calls: &[u64], request: &[u8], requests: u64) -> (Class, Vec<(u64, News)>) {
        let batch = request.ends_with(b"]");
        let results = |error: bool, shift: u64| {
            let one = |id: &u64| match error {
                true => format!(
                    r#"{{"jsonrpc":"2.0","id":{},"error":{{"code":-32000,"message":"no"}}}}"#,
                    id + shift
                ),
                false => format!(r#"{{"jsonrpc":"2.0","id":{},"result":"0x1"}}"#, id + shift),
            };
            let all = calls.iter().map(one).collect::<Vec<_>>().join(",");
            if batch { format!("[{all}]") } else { all }
        };
        let kind = if self.chance(self.trouble.request) { self.dice.between(1, 9) } else { 0 };
        let (class, status, body) = match kind {
            1 => (Class::RpcError, 200, results(true, 0)),
            2 => (Class::Limited, 429, "slow down".to_owned()),
            3 => (Class::Http5xx, 503, "no".to_owned()),
            4 => (Class::Http4xx, 404, "no".to_owned()),
            5 => (Class::Malformed, 200, "<html>".to_owned()),
            6 if !batch => (Class::WrongId, 200, results(false, 1_000_000)),
            7 => (Class::Timeout, 200, results(false, 0)),
            8 => (Class::Reset, 200, results(false, 0)),
            _ => (Class::Ok, 200, results(false, 0)),
        };
        let way = self.dice.between(0, 9);
        let (mut bytes, closes) = respond(status, &body, way);
        let mut then = Vec::new();
        match class {
            // Nothing, or a part, and then silence.
            Class::Timeout => bytes.truncate(self.dice.between(0, bytes.len() as u64 - 1) as usize),
            // A part of the head: a body that ends with its connection cannot be cut.
            Class::Reset => bytes.truncate(self.dice.between(0, 12) as usize),
            _ => {}
        }
        // All together well before the timeout.
        let pieces = self.dice.between(1, 4);
        let longest = (self.timeout / 2 / (pieces + 1)).max(2);
        for left in (1..=pieces).rev() {
            let longest = if self.chance(100) { longest } else { longest.min(300 * MICROSECOND) };
            let wait = self.dice.between(1, longest);
            let most = bytes.len() as u64;
            let length = if left == 1 { most } else { self.dice.between(0, most) };
            let rest = bytes.split_off(length as usize);
            let piece = std::mem::replace(&mut bytes, rest);
            if !piece.is_empty() {
                then.push((wait, News::Bytes(piece)));
            }
        }
        let after = self.dice.between(1, 100 * MICROSECOND);
        match class {
            Class::Timeout => {}
            Class::Reset if self.chance(500) => then.push((after, News::Reset)),
            Class::Reset => then.push((after, News::Closed)),
            _ if closes => then.push((after, News::Closed)),
            // A server that closes an idle connection without a word.
            _ if self.chance(self.trouble.request / 4) => {
                let idle = self.dice.between(1, self.timeout);
                then.push((idle, News::ClosedIdle(requests)));
            }
            _ => {}
        }
        (class, then)
    }
}

/// A response, and whether its connection ends with it.
fn respond(status: u16, body: &str, way: u64) -> (Vec<u8>, bool) {
    let retry = if status == 429 { "retry-after: 1\r\n" } else { "" };
    let text = match way {
        0 => format!("HTTP/1.1 {status} x\r\n{retry}connection: close\r\n\r\n{body}"),
        1 => {
            let length = body.len();
            format!(
                "HTTP/1.1 {status} x\r\n{retry}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
            )
        }
        2 | 3 => {
            let (first, second) = body.split_at(body.len() / 2);
            let chunk = |part: &str| match part.len() {
                0 => String::new(),
                length => format!("{length:x}\r\n{part}\r\n"),
            };
            let (first, second) = (chunk(first), chunk(second));
            format!(
                "HTTP/1.1 {status} x\r\n{retry}transfer-encoding: chunked\r\n\r\n{first}{second}0\r\n\r\n"
            )
        }
        _ => {
            let length = body.len();
            format!("HTTP/1.1 {status} x\r\n{retry}content-length: {length}\r\n\r\n{body}")
        }
    };
    (text.into_bytes(), way < 2)
}

/// The ids of the calls of a request.
fn ids(request: &[u8]) -> Vec<u64> {
    let name = br#""id":"#;
    let id = |at: usize| {
        let digits = request[at + name.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |id: u64, digit| id.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    };
    memmem::find_iter(request, name).map(id).collect()
}

impl World for Network {
    type Socket = Made;

    fn now(&mut self) -> u64 {
        let mut net = self.0.borrow_mut();
        net.now += net.dice.between(1, CLOCK_MAX);
        net.now
    }

    fn until_start(&mut self) -> u64 {
        0
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<Made> {
        let mut net = self.0.borrow_mut();
        let number = net.ends.len();
        net.ends.push(End {
            token: None,
            flags: EventFlags::empty(),
            state: State::Connecting,
            inbox: VecDeque::new(),
            room: ROOM,
            requests: 0,
            awaited: None,
        });
        let (now, took) = (net.now, net.dice.between(1, 500 * MICROSECOND));
        let trouble = net.trouble.connect;
        if !net.chance(trouble) {
            net.later(now + took, number, News::Connected);
        } else {
            net.account.unconnected += 1;
            match net.dice.between(0, 3) {
                0 => return Err(io::ErrorKind::ConnectionRefused.into()),
                // It never comes.
                1 => {}
                _ => net.later(now + took, number, News::Refused),
            }
        }
        drop(net);
        Ok(Made { net: Rc::clone(&self.0), number })
    }

    fn watch(&mut self, socket: &Made, token: u64) -> io::Result<()> {
        self.0.borrow_mut().ends[socket.number].token = Some(token);
        Ok(())
    }

    fn unwatch(&mut self, socket: &Made) -> io::Result<()> {
        self.0.borrow_mut().ends[socket.number].token = None;
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<Event>, left: u64) -> Result<(), EngineFault> {
        let mut net = self.0.borrow_mut();
        net.happen();
        if net.ready.is_empty() && left > 0 {
            let until = net.now.saturating_add(left);
            let next = net.news.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let trouble = net.trouble.hiccup;
            let most = if net.chance(trouble) { HICCUP_MAX } else { WAKE_MAX };
            net.now = until.min(next) + net.dice.between(1, most);
            net.happen();
        }
        while let Some(number) = net.ready.pop_front() {
            let end = &mut net.ends[number];
            let flags = std::mem::replace(&mut end.flags, EventFlags::empty());
            if let Some(token) = end.token {
                events.push(Event { flags, data: EventData::new_u64(token) });
            }
        }
        Ok(())
    }

    fn yield_now(&mut self) {}

    fn rung(&mut self) {}
}

impl Socket for Made {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let end = &mut net.ends[self.number];
        let count = end.inbox.len().min(into.len());
        if count > 0 {
            into.iter_mut().zip(end.inbox.drain(..count)).for_each(|(into, byte)| *into = byte);
            net.account.sent += count as u64;
            return Ok(count);
        }
        match end.state {
            State::Closed => Ok(0),
            State::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let state = net.ends[self.number].state;
        if state == State::Reset && net.ends[self.number].requests > 0 {
            // The engine sends the request anew on another connection.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if net.ends[self.number].awaited.is_none() {
            net.begin(self.number, bytes);
        }
        if state != State::Open {
            net.account.received += bytes.len() as u64;
            return Ok(bytes.len());
        }
        let room = net.ends[self.number].room;
        let most = room.min(bytes.len());
        if most == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let partly = net.chance(50);
        let count = if partly { net.dice.between(1, most as u64) as usize } else { most };
        let now = net.now;
        let end = &mut net.ends[self.number];
        end.room -= count;
        if partly {
            // The buffer is full until the server has read.
            end.room = 0;
            let (wait, room) = (net.dice.between(1, 200 * MICROSECOND), ROOM);
            net.later(now + wait, self.number, News::Room(room));
        } else {
            end.room = ROOM;
        }
        net.account.received += count as u64;
        let end = &mut net.ends[self.number];
        if let Some((awaited, _)) = &mut end.awaited {
            *awaited -= count;
            if *awaited == 0
                && let Some((_, then)) = end.awaited.take()
            {
                let mut at = now;
                for (wait, news) in then {
                    at += wait;
                    net.later(at, self.number, news);
                }
            }
        }
        Ok(count)
    }

    fn connect_fault(&self) -> Option<io::Error> {
        let refused = self.net.borrow().ends[self.number].state == State::Refused;
        refused.then(|| io::ErrorKind::ConnectionRefused.into())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let end = &mut self.net.borrow_mut().ends[self.number];
        (end.state, end.token) = (State::Gone, None);
        end.inbox = VecDeque::new();
        end.awaited = None;
    }
}
