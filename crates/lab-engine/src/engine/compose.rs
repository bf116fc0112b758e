//! The bytes of requests: everything that stays is made once, so that a request is copied pieces,
//! drawn numbers and its length.
//!
//! A request depends on the plan, the chain's facts, the scenario, the iteration's number and its
//! step, and on nothing else: the same request can be made again when its connection has come, and a
//! run with the same seed sends the same bytes. Sending is `crates/lab-engine/src/engine/thread.rs`.

use std::sync::Arc;

use lab_model::plan::{Draw, Piece, Plan, Recorded, Reuse, Step, Target, Template};
use wire::json::string;
use wire::quantity::{write, write_decimal};

use super::EngineFault;
use super::dice::Dice;
use crate::chain::ChainFacts;

#[cfg(test)]
mod tests;

/// Digits of the longest content-length.
const LENGTH_DIGITS_MAX: usize = 20;

/// What an answer must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// One call with a number of ours as id.
    Single {
        /// Index into the plan's methods.
        method: u16,
        /// Its id.
        id: u64,
    },
    /// Several calls, whose methods are in the worker's list.
    Batch {
        /// Id of the first.
        first: u64,
        /// From one id to the next.
        stride: u64,
    },
    /// A recorded body.
    Recorded {
        /// Index into the plan's methods.
        method: u16,
        /// Index into the step's list.
        index: u32,
    },
}

/// Which request is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Which {
    /// Index into the plan's scenarios.
    pub(crate) scenario: u16,
    /// The iteration's number in the scenario, from 1.
    pub(crate) iteration: u64,
    /// Index into the mix's steps.
    pub(crate) step: u16,
}

/// A request, ready to be sent.
pub(crate) struct Composed {
    /// What its answer must fit.
    pub(crate) asked: Asked,
    /// Calls in it, at least 1.
    pub(crate) calls: usize,
    /// Whether it is to be kept for comparison with the reference.
    pub(crate) sampled: bool,
}

/// Makes requests for one thread.
pub(crate) struct Composer {
    seed: u64,
    sample_share: f64,
    /// Up to and with `content-length: `.
    head: Vec<u8>,
    scenarios: Vec<Course>,
    facts: Facts,
    /// The last request; it begins at `begin`.
    bytes: Vec<u8>,
    begin: usize,
    body: usize,
}

/// What a scenario sends.
struct Course {
    steps: Vec<Making>,
    batch: Option<(f64, usize)>,
    /// Ids of an iteration, from the first to the first of the next.
    ids: u64,
}

enum Making {
    Choose {
        /// Sums of weights, up to 1.
        until: Vec<f64>,
        calls: Vec<Call>,
    },
    Replay(Vec<Recorded>),
}

struct Call {
    method: u16,
    /// What follows the id.
    pieces: Vec<Piece>,
}

/// The chain's facts and how numbers are written.
struct Facts {
    chain: Arc<ChainFacts>,
}

impl Composer {
    /// Checks that whatever the plan draws is known of the chain.
    ///
    /// # Errors
    /// If a draw has nothing to draw from, or a header cannot be sent.
    pub(crate) fn new(plan: &Plan, chain: &Arc<ChainFacts>) -> Result<Composer, EngineFault> {
        let closing = matches!(plan.connections.reuse, Reuse::Never);
        let facts = Facts { chain: Arc::clone(chain) };
        let mut scenarios = Vec::new();
        for scenario in &plan.scenarios {
            let mix = &plan.mixes[scenario.mix];
            let steps: Result<Vec<Making>, EngineFault> =
                mix.steps.iter().map(|step| facts.making(plan, &mix.name, step)).collect();
            let batch = scenario.batch.map(|batch| (batch.probability, batch.size.max(1)));
            scenarios.push(Course {
                ids: (mix.steps.len() * batch.map_or(1, |(_, size)| size)) as u64,
                steps: steps?,
                batch,
            });
        }
        Ok(Composer {
            seed: plan.seed,
            sample_share: plan.reference.as_ref().map_or(0.0, |reference| reference.share),
            head: head(&plan.target, closing)?,
            scenarios,
            facts,
            bytes: Vec::with_capacity(4096),
            begin: 0,
            body: 0,
        })
    }

    /// How many requests an iteration of a scenario makes.
    pub(crate) fn steps(&self, scenario: u16) -> u16 {
        self.scenarios[usize::from(scenario)].steps.len() as u16
    }

    /// Makes a request; it stays until the next is made. The methods of a batch go to `methods`.
    pub(crate) fn compose(&mut self, which: Which, methods: &mut Vec<u16>) -> Composed {
        let Which { scenario, iteration, step } = which;
        let course = &self.scenarios[usize::from(scenario)];
        let mut dice = Dice::new(self.seed, u64::from(scenario), iteration, u64::from(step));
        let room = self.head.len() + LENGTH_DIGITS_MAX + 4;
        self.bytes.clear();
        self.bytes.resize(room, 0);
        let stride = self.scenarios.len() as u64;
        let size = course.ids / course.steps.len() as u64;
        let number = iteration.wrapping_mul(course.ids).wrapping_add(u64::from(step) * size);
        let id = number.wrapping_mul(stride).wrapping_add(u64::from(scenario));
        let mut calls = 1;
        let asked = match &course.steps[usize::from(step)] {
            Making::Replay(bodies) => {
                let index = ((iteration - 1) % bodies.len() as u64) as usize;
                self.bytes.extend_from_slice(&bodies[index].body);
                calls = bodies[index].calls.max(1);
                Asked::Recorded { method: bodies[index].method as u16, index: index as u32 }
            }
            Making::Choose { until, calls: known } => match course.batch {
                Some((probability, size)) if dice.unit() < probability => {
                    methods.clear();
                    calls = size;
                    for nth in 0..size as u64 {
                        self.bytes.push(if nth == 0 { b'[' } else { b',' });
                        let call = choose(until, known, &mut dice);
                        methods.push(call.method);
                        let id = id.wrapping_add(nth * stride);
                        self.facts.write_call(&mut self.bytes, call, id, &mut dice);
                    }
                    self.bytes.push(b']');
                    Asked::Batch { first: id, stride }
                }
                _ => {
                    let call = choose(until, known, &mut dice);
                    self.facts.write_call(&mut self.bytes, call, id, &mut dice);
                    Asked::Single { method: call.method, id }
                }
            },
        };
        self.body = room;
        self.put_head();
        let single = !matches!(asked, Asked::Batch { .. });
        let sampled = self.sample_share > 0.0 && single && dice.unit() < self.sample_share;
        Composed { asked, calls, sampled }
    }

    /// Writes head and length before the body, backwards from where it begins.
    fn put_head(&mut self) {
        let mut at = self.body - 4;
        self.bytes[at..self.body].copy_from_slice(b"\r\n\r\n");
        let mut length = self.bytes.len() - self.body;
        loop {
            at -= 1;
            self.bytes[at] = b'0' + (length % 10) as u8;
            length /= 10;
            if length == 0 {
                break;
            }
        }
        self.begin = at - self.head.len();
        self.bytes[self.begin..at].copy_from_slice(&self.head);
    }

    /// The last request: head and body.
    pub(crate) fn request(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// Body of the last request.
    pub(crate) fn request_body(&self) -> &[u8] {
        &self.bytes[self.body..]
    }

    /// The recorded body that an [`Asked::Recorded`] names.
    pub(crate) fn recorded(&self, which: Which, index: u32) -> Option<&Recorded> {
        let course = &self.scenarios[usize::from(which.scenario)];
        match &course.steps[usize::from(which.step)] {
            Making::Replay(bodies) => bodies.get(index as usize),
            Making::Choose { .. } => None,
        }
    }
}

fn choose<'a>(until: &[f64], calls: &'a [Call], dice: &mut Dice) -> &'a Call {
    if let [only] = calls {
        return only;
    }
    let drawn = dice.unit();
    &calls[until.partition_point(|&until| until <= drawn).min(calls.len() - 1)]
}

/// The head of every request, up to the value of its content-length.
fn head(target: &Target, closing: bool) -> Result<Vec<u8>, EngineFault> {
    let own = |name: &str| target.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let mut head = format!("POST {} HTTP/1.1\r\n", target.url.target());
    if !own("host") {
        head += &format!("Host: {}\r\n", authority(target));
    }
    for (name, value) in [
        ("Content-Type", "application/json"),
        ("Accept", "application/json"),
        ("User-Agent", AGENT),
    ] {
        if !own(name) {
            head += &format!("{name}: {value}\r\n");
        }
    }
    for (name, value) in &target.headers {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let clean = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        let ours = ["content-length", "transfer-encoding", "connection"];
        if name.is_empty()
            || !name.bytes().all(token)
            || !value.bytes().all(clean)
            || ours.iter().any(|ours| name.eq_ignore_ascii_case(ours))
        {
            return Err(EngineFault::Header { name: name.clone() });
        }
        head += &format!("{name}: {value}\r\n");
    }
    if closing {
        head += "Connection: close\r\n";
    }
    Ok((head + "Content-Length: ").into_bytes())
}

/// What the engine calls itself.
pub(crate) const AGENT: &str = concat!("weir-lab/", env!("CARGO_PKG_VERSION"));

/// The Host header: name and port, without a usual port.
pub(crate) fn authority(target: &Target) -> String {
    let usual = if target.url.tls() { ":443" } else { ":80" };
    let authority = target.url.authority();
    authority.strip_suffix(usual).unwrap_or(authority).to_owned()
}

impl Facts {
    fn making(&self, plan: &Plan, mix: &str, step: &Step) -> Result<Making, EngineFault> {
        let weighted = match step {
            Step::Replay(bodies) if bodies.is_empty() => {
                return Err(EngineFault::Nothing { mix: mix.to_owned(), what: "recorded bodies" });
            }
            Step::Replay(bodies) => return Ok(Making::Replay(bodies.clone())),
            Step::Choose(weighted) => weighted,
        };
        if weighted.is_empty() {
            return Err(EngineFault::Nothing { mix: mix.to_owned(), what: "calls" });
        }
        let sum: f64 = weighted.iter().map(|one| one.weight).sum();
        let mut until = Vec::new();
        let mut calls = Vec::new();
        for one in weighted {
            until.push(until.last().copied().unwrap_or(0.0) + one.weight / sum);
            calls.push(self.call(plan, mix, &one.template)?);
        }
        Ok(Making::Choose { until, calls })
    }

    fn call(&self, plan: &Plan, mix: &str, template: &Template) -> Result<Call, EngineFault> {
        let mut lead = br#","method":"#.to_vec();
        string::write(&mut lead, &plan.methods[template.method]);
        if !template.params.is_empty() {
            lead.extend_from_slice(br#","params":"#);
        }
        let mut pieces = Vec::new();
        for piece in &template.params {
            match piece {
                Piece::Text(more) => lead.extend_from_slice(more),
                Piece::Draw(draw) => {
                    self.knows(mix, draw)?;
                    pieces.push(Piece::Text(std::mem::take(&mut lead).into()));
                    pieces.push(Piece::Draw(draw.clone()));
                }
            }
        }
        lead.push(b'}');
        pieces.push(Piece::Text(lead.into()));
        Ok(Call { method: template.method as u16, pieces })
    }

    fn knows(&self, mix: &str, draw: &Draw) -> Result<(), EngineFault> {
        let what = match draw {
            Draw::BlockHash if self.chain.block_hashes.is_empty() => "block hashes",
            Draw::TransactionHash if self.chain.transaction_hashes.is_empty() => {
                "transaction hashes"
            }
            Draw::Address(own) if own.is_empty() && self.chain.addresses.is_empty() => "addresses",
            Draw::OneOf(texts) if texts.is_empty() => "texts",
            _ => return Ok(()),
        };
        Err(EngineFault::Nothing { mix: mix.to_owned(), what })
    }

    fn write_call(&self, out: &mut Vec<u8>, call: &Call, id: u64, dice: &mut Dice) {
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        write_decimal(out, id);
        for piece in &call.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Draw(draw) => self.write_draw(out, draw, dice),
            }
        }
    }

    fn write_draw(&self, out: &mut Vec<u8>, draw: &Draw, dice: &mut Dice) {
        let head = self.chain.head;
        match draw {
            Draw::BlockBehind { behind } => {
                self.write_block(out, head.saturating_sub(dice.between(behind.0, behind.1)));
            }
            Draw::LogRange { blocks, behind } => {
                let to = head.saturating_sub(dice.between(behind.0, behind.1));
                out.extend_from_slice(br#""fromBlock":"#);
                self.write_block(out, to.saturating_sub(blocks.saturating_sub(1)));
                out.extend_from_slice(br#","toBlock":"#);
                self.write_block(out, to);
            }
            Draw::BlockHash => quote(out, one_of(&self.chain.block_hashes, dice).as_bytes()),
            Draw::TransactionHash => {
                quote(out, one_of(&self.chain.transaction_hashes, dice).as_bytes());
            }
            Draw::Address(own) => {
                let from = if own.is_empty() { &self.chain.addresses } else { own };
                quote(out, one_of(from, dice).as_bytes());
            }
            Draw::RandomBytes(count) => write_random(out, *count, dice),
            Draw::OneOf(texts) => out.extend_from_slice(&one_of::<Box<[u8]>>(texts, dice)[..]),
        }
    }

    fn write_block(&self, out: &mut Vec<u8>, number: u64) {
        if self.chain.decimal {
            write_decimal(out, number);
        } else {
            out.push(b'"');
            write(out, number);
            out.push(b'"');
        }
    }
}

fn one_of<'a, T>(list: &'a [T], dice: &mut Dice) -> &'a T {
    &list[dice.between(0, list.len() as u64 - 1) as usize]
}

fn quote(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
}

fn write_random(out: &mut Vec<u8>, count: usize, dice: &mut Dice) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\"0x");
    let mut bits = 0;
    for index in 0..count {
        if index % 8 == 0 {
            bits = dice.next();
        }
        out.extend_from_slice(&[DIGITS[(bits >> 4) as usize & 15], DIGITS[bits as usize & 15]]);
        bits >>= 8;
    }
    out.push(b'"');
}
