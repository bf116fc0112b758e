//! A simulated network and server for the engine, with virtual time. Only tests and `cargo xtask
//! sim` have it, by the feature `sim`.
//!
//! The engine's real loop runs on this network. A seed determines every byte, delay and fault, so
//! the same seed gives the same run, byte for byte. The server speaks HTTP/1.1 without TLS.
//!
//! The server chooses the outcome of a request when it receives the first byte, and counts the
//! outcome in [`ServerCounts`]. Tests compare these counts with the engine's counts. All bytes of a
//! response arrive well before the timeout, so each fault leads to exactly one outcome class.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lab_model::plan::Plan;
use lab_model::record::Class;
use memchr::memmem;
use rustix::event::epoll::{Event, EventData, EventFlags};

use super::rng::Rng;
use super::thread::{EVENTS_MAX, EngineThread, ThreadArgs};
use super::world::{Socket, World};
use super::{Engine, EngineFault, build_peer};
use crate::chain::ChainFacts;

const MICROSECOND_NS: u64 = 1_000;
/// Size of a socket's send buffer in bytes.
const BUFFER_BYTES: usize = 4 << 10;
/// Maximum time that reading the clock takes.
const CLOCK_READ_MAX_NS: u64 = 2 * MICROSECOND_NS;
/// Maximum wake-up delay on an idle core.
const WAKE_DELAY_MAX_NS: u64 = 60 * MICROSECOND_NS;
/// Maximum wake-up delay while another process occupies the core.
const STALL_DELAY_MAX_NS: u64 = 5_000 * MICROSECOND_NS;

/// Fault probabilities, each in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRates {
    /// Probability that a connect is refused or never completes.
    pub connect: u64,
    /// Probability that a request gets an error, a broken response, or no response.
    pub request: u64,
    /// Probability that a wake-up is delayed because another process has the core.
    pub stall: u64,
}

/// Counts of the simulated server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Number of calls, by the class under which the engine must count them. Failed connects are
    /// not included.
    pub calls: BTreeMap<Class, u64>,
    /// Number of connects that failed or never completed.
    pub unconnected: u64,
    /// Number of connections that were opened.
    pub connections: u64,
    /// Number of bytes that clients wrote.
    pub received: u64,
    /// Number of bytes that clients read.
    pub sent: u64,
}

/// The simulated network. Clones share its state.
#[derive(Clone)]
pub struct Network(Rc<RefCell<NetworkState>>);

impl Network {
    /// Creates a network. `timeout` is the call timeout of the plan.
    pub fn new(seed: u64, timeout: Duration, faults: FaultRates) -> Network {
        Network(Rc::new(RefCell::new(NetworkState {
            now: 0,
            rng: Rng::new(seed, 0, 0, 0),
            timeout_ns: super::time::nanos(timeout),
            faults,
            endpoints: Vec::new(),
            queue: BinaryHeap::new(),
            event_count: 0,
            ready: VecDeque::new(),
            counts: ServerCounts::default(),
            pause: None,
        })))
    }

    /// Stops the engine's thread for `length` once the run has reached `at`. The network and the
    /// server continue meanwhile. `readings` is the number of times that the thread still reads its
    /// clock before the stop; `None` stops it in its next wait.
    pub fn pause_client(&self, at: Duration, readings: Option<u64>, length: Duration) {
        let nanos = super::time::nanos;
        let pause = Pause { at: nanos(at), readings, length: nanos(length) };
        self.0.borrow_mut().pause = Some(pause);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> ServerCounts {
        self.0.borrow().counts.clone()
    }
}

impl Engine {
    /// Starts a simulated run with one thread and virtual time. Each call of [`Engine::next`]
    /// advances the run to its next interval.
    ///
    /// # Errors
    /// Fails if the plan needs something that the engine or the chain's facts lack.
    pub fn simulated(
        plan: Arc<Plan>,
        chain: &Arc<ChainFacts>,
        network: &Network,
    ) -> Result<Engine, EngineFault> {
        let (mut engine, filled_sender, samples_sender) = Engine::new(&plan, 1);
        // The simulated network ignores the address of a connect.
        let ignored_address = SocketAddr::from(([127, 0, 0, 1], 1));
        let args = ThreadArgs {
            plan: &plan,
            chain,
            addresses: &[ignored_address],
            peer: &Arc::new(build_peer(&plan)?),
            shared: &Arc::clone(&engine.shared),
            index: 0,
            threads: 1,
            filled: filled_sender,
            spare: engine.add_spare_channel(&plan, 0),
            samples: samples_sender,
        };
        let mut running = Some(EngineThread::new(args, network.clone())?);
        let mut events = Vec::new();
        engine.step = Some(Box::new(move || {
            let Some(thread) = &mut running else { return false };
            // A simulated wait cannot fail.
            let continues = thread.run_once(&mut events).is_ok_and(|continues| continues);
            // The last pass also hands over the last interval of counts.
            if !continues && let Some(thread) = running.take() {
                thread.end();
            }
            true
        }));
        Ok(engine)
    }
}

struct NetworkState {
    /// The virtual time, in nanoseconds since the start of the run.
    now: u64,
    rng: Rng,
    /// Call timeout of the plan, in nanoseconds.
    timeout_ns: u64,
    faults: FaultRates,
    /// The connections. The index is the connection's number.
    endpoints: Vec<Endpoint>,
    /// Future events, earliest first: time, number of the event, number of the connection, and the
    /// event.
    queue: BinaryHeap<Reverse<(u64, u64, usize, SimEvent)>>,
    /// Number of scheduled events so far. It orders events of the same time.
    event_count: u64,
    /// Numbers of the connections whose events [`World::wait`] must still report.
    ready: VecDeque<usize>,
    counts: ServerCounts,
    /// The pause of the engine's thread that is still to come.
    pause: Option<Pause>,
}

/// A pause of the engine's thread.
struct Pause {
    /// Time at which it is due, in nanoseconds.
    at: u64,
    /// Number of clock readings between `at` and the pause; `None` if it begins in a wait.
    readings: Option<u64>,
    /// Length in nanoseconds.
    length: u64,
}

/// An event on the client's end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimEvent {
    /// The connect succeeds.
    Connected,
    /// The server refuses the connect.
    Refused,
    /// These bytes arrive.
    Bytes(Vec<u8>),
    /// The send buffer takes this many more bytes.
    Writable(usize),
    /// The server closes the connection.
    Closed,
    /// The server closes the connection if no further request has arrived, so that the connection's
    /// number of requests is still this number.
    ClosedIdle(u64),
    /// The server resets the connection.
    Reset,
}

/// The client's end of a connection.
struct Endpoint {
    /// Token of the connection's events; `None` if the client does not watch the connection.
    token: Option<u64>,
    /// Events that were not reported yet.
    flags: EventFlags,
    state: State,
    /// Bytes that have arrived and were not read yet.
    readable_bytes: VecDeque<u8>,
    /// Number of bytes that the send buffer takes.
    writable: usize,
    /// Number of requests so far.
    requests: u64,
    /// The request that is being sent; `None` between requests.
    request: Option<IncomingRequest>,
}

/// A request that the server has not received in full.
struct IncomingRequest {
    /// Number of bytes that are still to be received.
    remaining_bytes: usize,
    /// The server's actions after the request, each with its delay in nanoseconds after the
    /// previous one.
    actions: Vec<(u64, SimEvent)>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// The server has refused the connect.
    Refused,
    Open,
    /// The server has closed the connection. The client can still read earlier data.
    Closed,
    /// The server has reset the connection.
    Reset,
    /// The client has closed the connection.
    Gone,
}

/// A socket of the simulated network.
pub(crate) struct SimSocket {
    net: Rc<RefCell<NetworkState>>,
    /// Index into [`NetworkState::endpoints`].
    number: usize,
}

impl NetworkState {
    /// Returns true with this probability, in thousandths.
    fn draw(&mut self, thousandths: u64) -> bool {
        self.rng.between(0, 999) < thousandths
    }

    /// Schedules an event of the connection with this number.
    fn schedule(&mut self, time: u64, number: usize, event: SimEvent) {
        self.event_count += 1;
        self.queue.push(Reverse((time, self.event_count, number, event)));
    }

    /// Applies all events up to the present virtual time.
    fn apply_due(&mut self) {
        while let Some(Reverse((time, ..))) = self.queue.peek()
            && *time <= self.now
        {
            let Some(Reverse((_, _, number, event))) = self.queue.pop() else { return };
            self.apply(number, event);
        }
    }

    /// Applies an event to the connection with this number.
    fn apply(&mut self, number: usize, event: SimEvent) {
        let endpoint = &mut self.endpoints[number];
        if matches!(endpoint.state, State::Gone | State::Reset) {
            return;
        }
        let flags = match event {
            SimEvent::Connected => {
                endpoint.state = State::Open;
                self.counts.connections += 1;
                EventFlags::OUT
            }
            SimEvent::Refused => {
                endpoint.state = State::Refused;
                EventFlags::ERR | EventFlags::HUP | EventFlags::OUT
            }
            SimEvent::Bytes(bytes) => {
                endpoint.readable_bytes.extend(bytes);
                EventFlags::IN
            }
            SimEvent::Writable(bytes) => {
                endpoint.writable += bytes;
                EventFlags::OUT
            }
            SimEvent::ClosedIdle(requests) if requests != endpoint.requests => return,
            SimEvent::Closed | SimEvent::ClosedIdle(_) => {
                endpoint.state = State::Closed;
                EventFlags::IN | EventFlags::RDHUP
            }
            SimEvent::Reset => {
                endpoint.state = State::Reset;
                endpoint.readable_bytes.clear();
                EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR
            }
        };
        if endpoint.token.is_some() && endpoint.flags.is_empty() {
            self.ready.push_back(number);
        }
        endpoint.flags |= flags;
    }

    /// Chooses and counts the outcome of a request when the client sends its first byte. `request`
    /// is the whole request.
    fn start_request(&mut self, number: usize, request: &[u8]) {
        let ids = find_ids(request);
        self.endpoints[number].requests += 1;
        let (class, actions) = match self.endpoints[number].state {
            // The server has closed and does not receive the request.
            State::Closed | State::Reset => (Class::Reset, Vec::new()),
            _ => self.plan_response(&ids, request, self.endpoints[number].requests),
        };
        *self.counts.calls.entry(class).or_default() += ids.len() as u64;
        self.endpoints[number].request =
            Some(IncomingRequest { remaining_bytes: request.len(), actions });
    }

    /// Chooses a response. Returns the class that the engine must count, and the server's actions
    /// after the request, each with its delay in nanoseconds. `ids` are the ids of the request's
    /// calls, and `requests` is the number of requests on the connection.
    fn plan_response(
        &mut self,
        ids: &[u64],
        request: &[u8],
        requests: u64,
    ) -> (Class, Vec<(u64, SimEvent)>) {
        let is_batch = request.ends_with(b"]");
        let result = r#""result":"0x1""#;
        let error = r#""error":{"code":-32000,"message":"no"}"#;
        // Builds a body in which each call has this outcome. An `id_offset` above 0 makes the ids
        // wrong.
        let respond = |outcome: &str, id_offset: u64| {
            let response =
                |id: &u64| format!(r#"{{"jsonrpc":"2.0","id":{},{outcome}}}"#, id + id_offset);
            let joined = ids.iter().map(response).collect::<Vec<_>>().join(",");
            if is_batch { format!("[{joined}]") } else { joined }
        };
        // 0 means no fault. The numbers 9, and 6 for a batch, cause no fault either.
        let fault = if self.draw(self.faults.request) { self.rng.between(1, 9) } else { 0 };
        let (class, status, body) = match fault {
            1 => (Class::RpcError, 200, respond(error, 0)),
            2 => (Class::Limited, 429, "slow down".to_owned()),
            3 => (Class::Http5xx, 503, "no".to_owned()),
            4 => (Class::Http4xx, 404, "no".to_owned()),
            5 => (Class::Malformed, 200, "<html>".to_owned()),
            6 if !is_batch => (Class::WrongId, 200, respond(result, 1_000_000)),
            7 => (Class::Timeout, 200, respond(result, 0)),
            8 => (Class::Reset, 200, respond(result, 0)),
            _ => (Class::Ok, 200, respond(result, 0)),
        };
        let framing = self.rng.between(0, 9);
        let (mut bytes, closes_after) = encode_response(status, &body, framing);
        let mut actions = Vec::new();
        match class {
            // The server sends no response, or only a part.
            Class::Timeout => bytes.truncate(self.rng.between(0, bytes.len() as u64 - 1) as usize),
            // The server sends only a part of the status line. With a part of the body, the client
            // could not always detect that the rest is missing, because the end of the connection
            // can end a body.
            Class::Reset => bytes.truncate(self.rng.between(0, 12) as usize),
            _ => {}
        }
        // The sum of all delays stays well below the timeout.
        let pieces = self.rng.between(1, 4);
        let longest_delay_ns = (self.timeout_ns / 2 / (pieces + 1)).max(2);
        for remaining_pieces in (1..=pieces).rev() {
            let delay_max_ns = match self.draw(100) {
                true => longest_delay_ns,
                false => longest_delay_ns.min(300 * MICROSECOND_NS),
            };
            let delay_ns = self.rng.between(1, delay_max_ns);
            let unsent = bytes.len() as u64;
            let length = if remaining_pieces == 1 { unsent } else { self.rng.between(0, unsent) };
            let later_bytes = bytes.split_off(length as usize);
            let piece = std::mem::replace(&mut bytes, later_bytes);
            if !piece.is_empty() {
                actions.push((delay_ns, SimEvent::Bytes(piece)));
            }
        }
        let close_delay_ns = self.rng.between(1, 100 * MICROSECOND_NS);
        match class {
            Class::Timeout => {}
            Class::Reset if self.draw(500) => actions.push((close_delay_ns, SimEvent::Reset)),
            Class::Reset => actions.push((close_delay_ns, SimEvent::Closed)),
            _ if closes_after => actions.push((close_delay_ns, SimEvent::Closed)),
            // The server closes an idle connection.
            _ if self.draw(self.faults.request / 4) => {
                let idle_ns = self.rng.between(1, self.timeout_ns);
                actions.push((idle_ns, SimEvent::ClosedIdle(requests)));
            }
            _ => {}
        }
        (class, actions)
    }
}

/// Returns the bytes of a response, and true if the server closes the connection after the
/// response. `framing`, from 0 to 9, selects how the response marks the end of its body.
fn encode_response(status: u16, body: &str, framing: u64) -> (Vec<u8>, bool) {
    let retry = if status == 429 { "retry-after: 1\r\n" } else { "" };
    let length = body.len();
    let (framing_fields, body) = match framing {
        0 => ("connection: close".to_owned(), body.to_owned()),
        1 => (format!("connection: close\r\ncontent-length: {length}"), body.to_owned()),
        2 | 3 => {
            let (first, second) = body.split_at(length / 2);
            let chunk = |part: &str| match part.len() {
                0 => String::new(),
                length => format!("{length:x}\r\n{part}\r\n"),
            };
            let body = format!("{}{}0\r\n\r\n", chunk(first), chunk(second));
            ("transfer-encoding: chunked".to_owned(), body)
        }
        _ => (format!("content-length: {length}"), body.to_owned()),
    };
    let text = format!("HTTP/1.1 {status} x\r\n{retry}{framing_fields}\r\n\r\n{body}");
    (text.into_bytes(), framing < 2)
}

/// Returns the ids of all calls of a request.
fn find_ids(request: &[u8]) -> Vec<u64> {
    let id_member = br#""id":"#;
    let id_at = |offset: usize| {
        let id_text = &request[offset + id_member.len()..];
        let digits = id_text.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |id: u64, digit| id.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    };
    memmem::find_iter(request, id_member).map(id_at).collect()
}

impl World for Network {
    type Socket = SimSocket;

    fn now(&mut self) -> u64 {
        let net = &mut *self.0.borrow_mut();
        net.now += net.rng.between(1, CLOCK_READ_MAX_NS);
        if let Some(Pause { at, readings: Some(readings), length }) = &mut net.pause
            && *at <= net.now
        {
            match readings.checked_sub(1) {
                Some(remaining) => *readings = remaining,
                None => {
                    net.now += *length;
                    net.pause = None;
                }
            }
        }
        net.now
    }

    fn until_start(&mut self) -> u64 {
        0
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<SimSocket> {
        let mut net = self.0.borrow_mut();
        let number = net.endpoints.len();
        net.endpoints.push(Endpoint {
            token: None,
            flags: EventFlags::empty(),
            state: State::Connecting,
            readable_bytes: VecDeque::new(),
            writable: BUFFER_BYTES,
            requests: 0,
            request: None,
        });
        let (now, delay_ns) = (net.now, net.rng.between(1, 500 * MICROSECOND_NS));
        let fault_rate = net.faults.connect;
        if !net.draw(fault_rate) {
            net.schedule(now + delay_ns, number, SimEvent::Connected);
        } else {
            net.counts.unconnected += 1;
            match net.rng.between(0, 3) {
                0 => return Err(io::ErrorKind::ConnectionRefused.into()),
                // The connect never completes.
                1 => {}
                _ => net.schedule(now + delay_ns, number, SimEvent::Refused),
            }
        }
        drop(net);
        Ok(SimSocket { net: Rc::clone(&self.0), number })
    }

    fn watch(&mut self, socket: &SimSocket, token: u64) -> io::Result<()> {
        self.0.borrow_mut().endpoints[socket.number].token = Some(token);
        Ok(())
    }

    fn unwatch(&mut self, socket: &SimSocket) -> io::Result<()> {
        self.0.borrow_mut().endpoints[socket.number].token = None;
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout_ns: u64) -> Result<(), EngineFault> {
        let mut net = self.0.borrow_mut();
        net.apply_due();
        if net.ready.is_empty() && timeout_ns > 0 {
            let wait_end = net.now.saturating_add(timeout_ns);
            let next_event = net.queue.peek().map_or(u64::MAX, |Reverse((time, ..))| *time);
            let stall_rate = net.faults.stall;
            let delay_max_ns =
                if net.draw(stall_rate) { STALL_DELAY_MAX_NS } else { WAKE_DELAY_MAX_NS };
            net.now = wait_end.min(next_event) + net.rng.between(1, delay_max_ns);
            let woken_at = net.now;
            let is_due = |pause: &mut Pause| pause.readings.is_none() && pause.at <= woken_at;
            if let Some(pause) = net.pause.take_if(is_due) {
                net.now += pause.length;
                // The signal that continues a stopped thread interrupts its wait without events.
                return Ok(());
            }
            net.apply_due();
        }
        while events.len() < EVENTS_MAX {
            let Some(number) = net.ready.pop_front() else { break };
            let endpoint = &mut net.endpoints[number];
            let flags = std::mem::replace(&mut endpoint.flags, EventFlags::empty());
            if let Some(token) = endpoint.token {
                events.push(Event { flags, data: EventData::new_u64(token) });
            }
        }
        Ok(())
    }

    fn yield_now(&mut self) {}

    fn clear_wakeup(&mut self) {}
}

impl Socket for SimSocket {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let endpoint = &mut net.endpoints[self.number];
        let count = endpoint.readable_bytes.len().min(buffer.len());
        if count > 0 {
            buffer
                .iter_mut()
                .zip(endpoint.readable_bytes.drain(..count))
                .for_each(|(slot, byte)| *slot = byte);
            net.counts.sent += count as u64;
            return Ok(count);
        }
        match endpoint.state {
            State::Closed => Ok(0),
            State::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let state = net.endpoints[self.number].state;
        if state == State::Reset && net.endpoints[self.number].requests > 0 {
            // The engine repeats the request on another connection.
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if net.endpoints[self.number].request.is_none() {
            net.start_request(self.number, bytes);
        }
        if state != State::Open {
            // The bytes are lost. Like a kernel, the socket accepts them without an error.
            net.counts.received += bytes.len() as u64;
            return Ok(bytes.len());
        }
        let count_max = net.endpoints[self.number].writable.min(bytes.len());
        if count_max == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let is_partial = net.draw(50);
        let count = match is_partial {
            true => net.rng.between(1, count_max as u64) as usize,
            false => count_max,
        };
        let now = net.now;
        let endpoint = &mut net.endpoints[self.number];
        if is_partial {
            // The buffer stays full until the server reads.
            endpoint.writable = 0;
            let delay_ns = net.rng.between(1, 200 * MICROSECOND_NS);
            net.schedule(now + delay_ns, self.number, SimEvent::Writable(BUFFER_BYTES));
        } else {
            endpoint.writable = BUFFER_BYTES;
        }
        net.counts.received += count as u64;
        let endpoint = &mut net.endpoints[self.number];
        if let Some(request) = &mut endpoint.request {
            request.remaining_bytes -= count;
            if request.remaining_bytes == 0
                && let Some(request) = endpoint.request.take()
            {
                let mut time = now;
                for (delay_ns, event) in request.actions {
                    time += delay_ns;
                    net.schedule(time, self.number, event);
                }
            }
        }
        Ok(count)
    }

    fn connect_fault(&self) -> Option<io::Error> {
        let refused = self.net.borrow().endpoints[self.number].state == State::Refused;
        refused.then(|| io::ErrorKind::ConnectionRefused.into())
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let endpoint = &mut self.net.borrow_mut().endpoints[self.number];
        (endpoint.state, endpoint.token) = (State::Gone, None);
        endpoint.readable_bytes = VecDeque::new();
        endpoint.request = None;
    }
}
