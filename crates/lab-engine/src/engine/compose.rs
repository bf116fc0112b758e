//! Builds the bytes of requests. `crates/lab-engine/src/engine/thread.rs` sends them.
//!
//! A mix is a list of steps, and an iteration sends one request per step. A step has one or more
//! calls to choose from. The parameters of a call consist of pieces: constant text, and draws,
//! which are random values. The [`Composer`] prepares all constant parts once. Then it builds each
//! request from these parts, random values and the length of the body. A request depends only on
//! the plan, the chain's facts, and its [`RequestKey`]. So a run with the same seed sends the same
//! bytes.

use std::sync::Arc;

use lab_model::plan::transactions::Transactions;
use lab_model::plan::{Batch, Draw, Piece, Plan, RecordedRequest, Reuse, Step, Target, Template};
use wire::json::string;
use wire::quantity;

use super::EngineFault;
use super::rng::Rng;
use super::transactions::TransactionLog;
use crate::chain::ChainFacts;

#[cfg(test)]
mod tests;

/// Maximum number of digits of Content-Length: the decimal digits of the largest `u64`.
const LENGTH_DIGITS_MAX: usize = 20;
/// The end of the last header field, and the empty line between the head and the body.
const HEAD_END: &[u8; 4] = b"\r\n\r\n";

/// The kind of a request. It determines how responses are matched to calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// One call. The engine chose its id.
    Single {
        /// Index into the plan's methods.
        method: u16,
        /// JSON-RPC id of the call.
        id: u64,
    },
    /// A batch of calls. [`Composer::compose`] returns their methods separately.
    Batch {
        /// Id of the first call.
        first_id: u64,
        /// Difference between consecutive ids.
        stride: u64,
    },
    /// A body from a file: a recorded request, or a signed transaction.
    Recorded {
        /// Index into the plan's methods.
        method: u16,
        /// Index into the step's recorded requests or transactions.
        index: u32,
    },
}

impl RequestKind {
    /// Returns the method's index into the plan's methods, or `None` for a batch.
    pub(crate) fn method(self) -> Option<u16> {
        match self {
            RequestKind::Single { method, .. } | RequestKind::Recorded { method, .. } => {
                Some(method)
            }
            RequestKind::Batch { .. } => None,
        }
    }
}

/// Identifies a request of the run by its scenario, its iteration and its step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestKey {
    /// Index into the plan's scenarios.
    pub(crate) scenario: u16,
    /// Number of the iteration in the scenario, from 1. In a scenario with transactions, the
    /// number of the transaction.
    pub(crate) iteration: u64,
    /// Index into the mix's steps.
    pub(crate) step: u16,
}

/// The current request of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) key: RequestKey,
    /// Index of the stage among all stages of the plan.
    pub(crate) stage: u16,
    pub(crate) kind: RequestKind,
    /// Number of calls, at least 1.
    pub(crate) calls: usize,
}

impl RequestKey {
    /// Returns the index of the transaction, in a scenario with transactions.
    pub(crate) fn transaction(self) -> u32 {
        u32::try_from(self.iteration.saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

/// A request that is ready to be sent.
pub(crate) struct Composed {
    /// Kind of the request.
    pub(crate) kind: RequestKind,
    /// Number of calls, at least 1.
    pub(crate) calls: usize,
    /// True if the response is compared with the response of the reference node.
    pub(crate) sampled: bool,
}

/// Builds the requests of one thread.
pub(crate) struct Composer {
    seed: u64,
    /// Share of calls that are compared with the reference node, from 0 to 1.
    sample_share: f64,
    /// Request line and header fields of every request. The last field is Content-Length, without
    /// its value.
    head: Vec<u8>,
    /// The requests of each scenario, in the order of the plan.
    scenarios: Vec<ScenarioRequests>,
    writer: CallWriter,
    /// States of the plan's transactions; `None` if the plan has no transactions.
    transaction_log: Option<Arc<TransactionLog>>,
    /// Buffer with the last request.
    bytes: Vec<u8>,
    /// Offset of the request's head in `bytes`.
    head_start: usize,
    /// Offset of the request's body in `bytes`.
    body_start: usize,
}

/// The requests of one scenario.
struct ScenarioRequests {
    /// One source per step of the scenario's mix.
    steps: Vec<StepSource>,
    /// How calls are sent as batches; `None` if every request is a single call.
    batch: Option<Batch>,
    /// Maximum number of JSON-RPC ids that an iteration uses.
    ids_per_iteration: u64,
}

/// The source of a step's requests.
enum StepSource {
    /// Each request is one of these calls, drawn by weight.
    Choose {
        /// For each call: the sum of the weights up to and including this call. The last sum is 1.
        cumulative_weights: Vec<f64>,
        calls: Vec<Call>,
    },
    /// Iterations send the recorded requests in order, again and again.
    Replay(Vec<RecordedRequest>),
    /// Iteration n sends the n-th transaction.
    Transactions(Arc<Transactions>),
}

/// A call that can be drawn.
struct Call {
    /// Index into the plan's methods.
    method: u16,
    /// The parts of the call after its id: constant text and random values.
    pieces: Vec<Piece>,
}

/// Prepares calls, and writes them with random values of the chain.
struct CallWriter {
    chain: Arc<ChainFacts>,
}

impl Composer {
    /// Creates a composer. Checks that the chain has all values that the plan draws.
    ///
    /// # Errors
    /// Fails if a draw has no values, or if a header cannot be sent.
    pub(crate) fn new(plan: &Plan, chain: &Arc<ChainFacts>) -> Result<Composer, EngineFault> {
        let closes_connections = matches!(plan.connections.reuse, Reuse::Never);
        let writer = CallWriter { chain: Arc::clone(chain) };
        let mut scenarios = Vec::new();
        for scenario in &plan.scenarios {
            let mix = &plan.mixes[scenario.mix];
            let steps: Result<Vec<StepSource>, EngineFault> =
                mix.steps.iter().map(|step| writer.prepare_step(plan, &mix.name, step)).collect();
            scenarios.push(ScenarioRequests {
                ids_per_iteration: (mix.steps.len() * scenario.batch.map_or(1, |batch| batch.size))
                    as u64,
                steps: steps?,
                batch: scenario.batch,
            });
        }
        Ok(Composer {
            seed: plan.seed,
            sample_share: plan.reference.as_ref().map_or(0.0, |reference| reference.share),
            head: build_head(&plan.target, closes_connections)?,
            scenarios,
            writer,
            transaction_log: None,
            bytes: Vec::with_capacity(4096),
            head_start: 0,
            body_start: 0,
        })
    }

    /// Returns the number of requests in an iteration of the scenario.
    pub(crate) fn step_count(&self, scenario: u16) -> u16 {
        self.scenarios[usize::from(scenario)].steps.len() as u16
    }

    /// Builds a request in the composer's buffer, in place of the previous request. If the new
    /// request is a batch, writes the methods of its calls to `methods`.
    pub(crate) fn compose(&mut self, key: RequestKey, methods: &mut Vec<u16>) -> Composed {
        let RequestKey { scenario, iteration, step } = key;
        let requests = &self.scenarios[usize::from(scenario)];
        let mut rng = Rng::new(self.seed, u64::from(scenario), iteration, u64::from(step));
        // The space before the body has room for the longest head. The head is written last,
        // because it contains the length of the body.
        let body_start = self.head.len() + LENGTH_DIGITS_MAX + HEAD_END.len();
        self.bytes.clear();
        self.bytes.resize(body_start, 0);
        // Ids are unique in the run. Each scenario numbers its calls. With n scenarios, the ids of
        // scenario s are s, s + n, s + 2n and so on.
        let stride = self.scenarios.len() as u64;
        let ids_per_step = requests.ids_per_iteration / requests.steps.len() as u64;
        let call_number = iteration
            .wrapping_mul(requests.ids_per_iteration)
            .wrapping_add(u64::from(step) * ids_per_step);
        let id = call_number.wrapping_mul(stride).wrapping_add(u64::from(scenario));
        let mut calls = 1;
        let kind = match &requests.steps[usize::from(step)] {
            StepSource::Replay(bodies) => {
                let index = ((iteration - 1) % bodies.len() as u64) as usize;
                self.bytes.extend_from_slice(&bodies[index].body);
                calls = bodies[index].calls.max(1);
                RequestKind::Recorded { method: bodies[index].method as u16, index: index as u32 }
            }
            StepSource::Transactions(transactions) => {
                let index = (iteration - 1) as usize;
                self.bytes.extend_from_slice(&transactions.requests[index].body);
                RequestKind::Recorded { method: transactions.method as u16, index: index as u32 }
            }
            StepSource::Choose { cumulative_weights, calls: choices } => match requests.batch {
                Some(Batch { probability, size }) if rng.unit() < probability => {
                    methods.clear();
                    calls = size;
                    for index in 0..size as u64 {
                        self.bytes.push(if index == 0 { b'[' } else { b',' });
                        let call = choose(cumulative_weights, choices, &mut rng);
                        methods.push(call.method);
                        let id = id.wrapping_add(index * stride);
                        self.writer.write_call(&mut self.bytes, call, id, &mut rng);
                    }
                    self.bytes.push(b']');
                    RequestKind::Batch { first_id: id, stride }
                }
                _ => {
                    let call = choose(cumulative_weights, choices, &mut rng);
                    self.writer.write_call(&mut self.bytes, call, id, &mut rng);
                    RequestKind::Single { method: call.method, id }
                }
            },
        };
        // Batches are not compared. Transactions must not be sent to the reference node.
        let can_be_compared = !matches!(kind, RequestKind::Batch { .. })
            && !matches!(requests.steps[usize::from(step)], StepSource::Transactions(_));
        self.body_start = body_start;
        self.write_head();
        let sampled = self.sample_share > 0.0 && can_be_compared && rng.unit() < self.sample_share;
        Composed { kind, calls, sampled }
    }

    /// Writes the head in front of the body. The number of digits of the length varies, so the head
    /// is written from its end to its start.
    fn write_head(&mut self) {
        let mut offset = self.body_start - HEAD_END.len();
        self.bytes[offset..self.body_start].copy_from_slice(HEAD_END);
        let mut length = self.bytes.len() - self.body_start;
        loop {
            offset -= 1;
            self.bytes[offset] = b'0' + (length % 10) as u8;
            length /= 10;
            if length == 0 {
                break;
            }
        }
        self.head_start = offset - self.head.len();
        self.bytes[self.head_start..offset].copy_from_slice(&self.head);
    }

    /// Returns the last request: head and body.
    pub(crate) fn request(&self) -> &[u8] {
        &self.bytes[self.head_start..]
    }

    /// Returns the body of the last request.
    pub(crate) fn request_body(&self) -> &[u8] {
        &self.bytes[self.body_start..]
    }

    /// Returns the recorded request with the index of a [`RequestKind::Recorded`]. Returns `None`
    /// if the key belongs to a step without recorded requests.
    pub(crate) fn recorded(&self, key: RequestKey, index: u32) -> Option<&RecordedRequest> {
        let requests = &self.scenarios[usize::from(key.scenario)];
        match &requests.steps[usize::from(key.step)] {
            StepSource::Replay(bodies) => bodies.get(index as usize),
            StepSource::Transactions(transactions) => transactions.requests.get(index as usize),
            StepSource::Choose { .. } => None,
        }
    }

    /// Sets the log of the plan's transactions.
    pub(crate) fn log_transactions(&mut self, log: Option<&Arc<TransactionLog>>) {
        self.transaction_log = log.cloned();
    }

    /// Returns the log of the plan's transactions if the request is a transaction.
    pub(crate) fn transaction_log(&self, key: RequestKey) -> Option<&TransactionLog> {
        let requests = &self.scenarios[usize::from(key.scenario)];
        let is_transaction =
            matches!(requests.steps[usize::from(key.step)], StepSource::Transactions(_));
        self.transaction_log.as_deref().filter(|_| is_transaction)
    }
}

/// Draws a call by weight.
fn choose<'a>(cumulative_weights: &[f64], calls: &'a [Call], rng: &mut Rng) -> &'a Call {
    if let [only_call] = calls {
        return only_call;
    }
    let drawn = rng.unit();
    let index = cumulative_weights.partition_point(|&weight| weight <= drawn);
    // Rounding can leave the last sum below 1. A number at or above this sum draws the last call.
    &calls[index.min(calls.len() - 1)]
}

/// Returns the request line and the header fields of every request. The last field is
/// Content-Length, without its value. `closes_connections` is true if each request asks the server
/// to close the connection.
fn build_head(target: &Target, closes_connections: bool) -> Result<Vec<u8>, EngineFault> {
    let defaults = [
        ("Content-Type", "application/json"),
        ("Accept", "application/json"),
        ("User-Agent", AGENT),
    ];
    let reserved = ["content-length", "transfer-encoding", "connection"];
    let fields = header_fields(target, &defaults, &reserved)?;
    let mut head = format!("POST {} HTTP/1.1\r\n{fields}", target.url.target());
    if closes_connections {
        head += "Connection: close\r\n";
    }
    Ok((head + "Content-Length: ").into_bytes())
}

/// Returns the header fields of a request as text: the host, the fields of the target, and the
/// `defaults`. A field of the target replaces the default of the same name. `reserved` has the
/// names of the fields that the engine sets itself.
///
/// # Errors
/// Fails if a field of the target is malformed, or if its name is in `reserved`.
pub(crate) fn header_fields(
    target: &Target,
    defaults: &[(&str, &str)],
    reserved: &[&str],
) -> Result<String, EngineFault> {
    let is_set =
        |name: &str| target.headers.iter().any(|(set_name, _)| set_name.eq_ignore_ascii_case(name));
    let mut fields = String::new();
    if !is_set("host") {
        fields += &format!("Host: {}\r\n", host_header(target));
    }
    for (name, value) in defaults {
        if !is_set(name) {
            fields += &format!("{name}: {value}\r\n");
        }
    }
    for (name, value) in &target.headers {
        let is_token =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let is_value_byte = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        if name.is_empty()
            || !name.bytes().all(is_token)
            || !value.bytes().all(is_value_byte)
            || reserved.iter().any(|reserved| name.eq_ignore_ascii_case(reserved))
        {
            return Err(EngineFault::Header { name: name.clone() });
        }
        fields += &format!("{name}: {value}\r\n");
    }
    Ok(fields)
}

/// Value of the User-Agent header of all requests. The plan may replace it.
pub const AGENT: &str = concat!("weir-lab/", env!("CARGO_PKG_VERSION"));

/// Returns the Host header: the host, and the port if it is not the default.
pub(crate) fn host_header(target: &Target) -> String {
    let default_port = if target.url.tls() { ":443" } else { ":80" };
    let authority = target.url.authority();
    authority.strip_suffix(default_port).unwrap_or(authority).to_owned()
}

impl CallWriter {
    /// Prepares the requests of a step of the mix with this name.
    fn prepare_step(&self, plan: &Plan, mix: &str, step: &Step) -> Result<StepSource, EngineFault> {
        let fault = |missing| EngineFault::MissingValues { mix: mix.to_owned(), missing };
        let weighted = match step {
            Step::Replay(bodies) if bodies.is_empty() => return Err(fault("recorded bodies")),
            Step::Replay(bodies) => return Ok(StepSource::Replay(bodies.clone())),
            Step::Transactions(transactions) => {
                return Ok(StepSource::Transactions(Arc::clone(transactions)));
            }
            Step::Choose(weighted) if weighted.is_empty() => return Err(fault("calls")),
            Step::Choose(weighted) => weighted,
        };
        let weight_sum: f64 = weighted.iter().map(|call| call.weight).sum();
        let mut cumulative_weights = Vec::new();
        let mut calls = Vec::new();
        for call in weighted {
            let previous: f64 = cumulative_weights.last().copied().unwrap_or(0.0);
            cumulative_weights.push(previous + call.weight / weight_sum);
            calls.push(self.prepare_call(plan, mix, &call.template)?);
        }
        Ok(StepSource::Choose { cumulative_weights, calls })
    }

    /// Joins the constant parts of a call into as few pieces as possible.
    fn prepare_call(
        &self,
        plan: &Plan,
        mix: &str,
        template: &Template,
    ) -> Result<Call, EngineFault> {
        let mut constant_text = br#","method":"#.to_vec();
        string::write(&mut constant_text, &plan.methods[template.method]);
        if !template.params.is_empty() {
            constant_text.extend_from_slice(br#","params":"#);
        }
        let mut pieces = Vec::new();
        for piece in &template.params {
            match piece {
                Piece::Text(text) => constant_text.extend_from_slice(text),
                Piece::Draw(draw) => {
                    self.check_values(mix, draw)?;
                    pieces.push(Piece::Text(std::mem::take(&mut constant_text).into()));
                    pieces.push(Piece::Draw(draw.clone()));
                }
            }
        }
        constant_text.push(b'}');
        pieces.push(Piece::Text(constant_text.into()));
        Ok(Call { method: template.method as u16, pieces })
    }

    /// Checks that there is at least one value to draw from.
    fn check_values(&self, mix: &str, draw: &Draw) -> Result<(), EngineFault> {
        let missing = match draw {
            Draw::OneOf(texts) if texts.is_empty() => Some("texts"),
            _ => self.chain.missing_values(draw),
        };
        match missing {
            Some(missing) => Err(EngineFault::MissingValues { mix: mix.to_owned(), missing }),
            None => Ok(()),
        }
    }

    /// Writes a call with this id and random parameters.
    fn write_call(&self, out: &mut Vec<u8>, call: &Call, id: u64, rng: &mut Rng) {
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        quantity::write_decimal(out, id);
        for piece in &call.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Draw(draw) => self.write_draw(out, draw, rng),
            }
        }
    }

    /// Writes a random value.
    fn write_draw(&self, out: &mut Vec<u8>, draw: &Draw, rng: &mut Rng) {
        let newest_block = self.chain.head;
        match draw {
            Draw::BlockBehind { behind: (nearest, farthest) } => {
                let number = newest_block.saturating_sub(rng.between(*nearest, *farthest));
                self.write_block(out, number);
            }
            Draw::LogRange { blocks, behind: (nearest, farthest) } => {
                let last_block = newest_block.saturating_sub(rng.between(*nearest, *farthest));
                let first_block = last_block.saturating_sub(blocks.saturating_sub(1));
                out.extend_from_slice(br#""fromBlock":"#);
                self.write_block(out, first_block);
                out.extend_from_slice(br#","toBlock":"#);
                self.write_block(out, last_block);
            }
            Draw::BlockHash => write_quoted(out, pick::<Box<str>>(&self.chain.block_hashes, rng)),
            Draw::TransactionHash => {
                write_quoted(out, pick::<Box<str>>(&self.chain.transaction_hashes, rng))
            }
            Draw::Address(listed) => {
                let addresses = if listed.is_empty() { &self.chain.addresses } else { listed };
                write_quoted(out, pick::<Box<str>>(addresses, rng));
            }
            Draw::RandomBytes(count) => write_random(out, *count, rng),
            Draw::OneOf(texts) => out.extend_from_slice(&pick::<Box<[u8]>>(texts, rng)[..]),
        }
    }

    /// Writes a block number in the form that the chain uses.
    fn write_block(&self, out: &mut Vec<u8>, number: u64) {
        if self.chain.has_decimal_numbers {
            quantity::write_decimal(out, number);
        } else {
            out.push(b'"');
            quantity::write(out, number);
            out.push(b'"');
        }
    }
}

/// Draws one element of a list, which must not be empty.
fn pick<'a, T>(list: &'a [T], rng: &mut Rng) -> &'a T {
    &list[rng.between(0, list.len() as u64 - 1) as usize]
}

fn write_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Writes `count` random bytes as quoted hexadecimal text.
fn write_random(out: &mut Vec<u8>, count: usize, rng: &mut Rng) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\"0x");
    // One random number yields eight bytes.
    let mut random_bits = 0;
    for index in 0..count {
        if index % 8 == 0 {
            random_bits = rng.next();
        }
        let high_digit = DIGITS[(random_bits >> 4) as usize & 15];
        let low_digit = DIGITS[random_bits as usize & 15];
        out.extend_from_slice(&[high_digit, low_digit]);
        random_bits >>= 8;
    }
    out.push(b'"');
}
