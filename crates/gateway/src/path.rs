//! What happens to a request, step by step. This file alone knows the order.
//!
//! ```text
//! decode → limit → direct → permit → quota → (subscribe) → route → plan → cache → coalesce → redis → index →
//! place → fetch (choose → send ⟲ retry) → fill → answer
//! ```
//!
//! Each step lives elsewhere: decoding in `wire`, decisions in `rules`, asking nodes in
//! `nodes/fetch.rs`, what is kept in `cache.rs`, the form of answers in `front/answer.rs`.
//! A range of logs goes through the same steps once per part: `path/logs.rs`.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use wire::block::{block_ref, named_blocks, write_params_at};
use wire::call::{Body, Call, Params, Refusal, decode};
use wire::key::{KeyParts, Resolved, write_key};
use wire::method::{AnswerBlock, Bound, Method};
use wire::quantity;

use crate::access_log::pending::CallRecords;
use crate::cache::Entry;
use crate::call::cache_status::CacheStatus;
use crate::coalesce::{Boarding, Flight};
use crate::config::group::{Balance, HashKey};
use crate::error::{Failure, Kind};
use crate::front::answer::{Answered, Content, Payload, Reply};
use crate::front::caller::{Caller, Extra};
use crate::front::head::KeyHeader;
use crate::index::{self, Found};
use crate::limits::shared::Question;
use crate::limits::{Ahead, Charge, Counted, Limits};
use crate::memory::{Full, Hold};
use crate::nodes::fetch::fetch;
use crate::nodes::overload;
use crate::quota::unix_seconds;
use crate::rules::access::is_subscription;
use crate::rules::blocks;
use crate::rules::cacheable::{
    self, Admit, AnswerFacts, AnswerKind, CacheRule, Caching, Stamp, decide, usable,
};
use crate::rules::choose::hash64;
use crate::rules::complete::{self, BRIEF, Keep, Trust};
use crate::rules::heads::ChainView;
use crate::rules::memory::Purpose;
use crate::rules::overload::Class;
use crate::rules::overload::shares::Flow;
use crate::shared::NO_NODE;
use crate::subscribe::subscriber::Asking;
use crate::subscribe::{self, Outcome};
use crate::worker::Worker;

mod admit;
mod inquire;
mod logs;
mod record;

pub(crate) use admit::{rewritten, still_permitted};
pub(crate) use inquire::{Inquiry, inquire};
use record::record;

/// Calls of one batch that are under way at a time. More would let one client take all connections
/// to the nodes; fewer would make large batches slow.
const BATCH_CONCURRENCY: usize = 64;

/// One HTTP request or one WebSocket message, whole.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Index of the chain that its path leads to.
    pub(crate) chain: usize,
    pub(crate) body: &'a [u8],
    pub(crate) caller: &'a Caller,
    /// Its path, without a key.
    pub(crate) path: &'a str,
    /// The group that a rule has chosen, if one has.
    pub(crate) group: Option<usize>,
    /// What rules look at in its head; none while nothing does.
    pub(crate) extra: Option<&'a Extra>,
    /// Where the access log wants to hear of each call; none while it is off.
    pub(crate) calls: Option<&'a CallRecords>,
    /// Value of the header that a group balances by, if one does.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// Values of the headers that keys of limits are made of.
    pub(crate) limit_headers: &'a [KeyHeader],
    /// Its key in the first of its limits, where that is the same for all its calls.
    pub(crate) ahead: Option<Ahead>,
    /// How many of its calls wait for their turn by a limit.
    pub(crate) waiting: &'a Cell<usize>,
    /// Who may be told of what is to come; none where the connection can carry only answers.
    pub(crate) subscribing: Option<&'a Asking>,
}

/// One call on its way to a node.
#[derive(Debug, Clone)]
pub(crate) struct Ask<'a> {
    pub(crate) chain: usize,
    pub(crate) group: usize,
    pub(crate) name: Cow<'a, str>,
    /// The method's row; none for methods that no table knows.
    pub(crate) method: Option<&'static Method>,
    /// And its place in the table.
    pub(crate) place: Option<usize>,
    /// Who goes first where nodes have no room for all.
    pub(crate) class: Class,
    /// With whose calls it shares places there.
    pub(crate) flow: Flow,
    /// The raw parameters, with a tag resolved to a number where that is exact.
    pub(crate) params: Option<Cow<'a, [u8]>>,
    /// What its answer would be bound to, and the height that a node must have reached.
    pub(crate) caching: Caching,
    /// Whether equal calls under way may share one answer.
    pub(crate) join: bool,
    pub(crate) balance_key: u64,
    pub(crate) deadline: Instant,
    /// How many calls of its request wait for something that is no node: whether its client is still
    /// there is looked at meanwhile.
    pub(crate) waiting: Option<&'a Cell<usize>>,
}

impl Ask<'_> {
    fn into_owned(self) -> Ask<'static> {
        Ask {
            name: Cow::Owned(self.name.into_owned()),
            params: self.params.map(|params| Cow::Owned(params.into_owned())),
            chain: self.chain,
            group: self.group,
            method: self.method,
            place: self.place,
            class: self.class,
            flow: self.flow,
            caching: self.caching,
            join: self.join,
            balance_key: self.balance_key,
            deadline: self.deadline,
            // Its clients wait for the flight.
            waiting: None,
        }
    }
}

/// What came of asking; shared by everyone who asked the same.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    pub(crate) payload: Payload,
    /// Index of the node that answered.
    pub(crate) node: Option<usize>,
    /// An error that every node would repeat for the same block.
    pub(crate) settled: bool,
    /// It comes from a tier of the cache that is looked up like a node.
    pub(crate) from_tier: bool,
    /// How much it is trusted to lack nothing.
    pub(crate) trust: Trust,
}

impl Fetched {
    /// A response that no node gave.
    pub(crate) fn of(payload: Payload) -> Fetched {
        let (settled, from_tier, trust) = (false, false, Trust::Whole);
        Fetched { payload, node: None, settled, from_tier, trust }
    }

    pub(crate) fn failed(failure: Failure) -> Fetched {
        Fetched::of(Payload::Failed(failure))
    }
}

/// Answers one request.
pub(crate) async fn answer<'a>(worker: &Rc<Worker>, request: &Request<'a>) -> Reply<'a> {
    worker.counters.requests.add(1);
    // Fetched while the body is decoded.
    let limits = worker.shared.limits.as_ref();
    let ahead = limits.and_then(|limits| limits.look_ahead(&counted(worker, request, "", None)));
    let request = &Request { ahead, ..*request };
    match decode(request.body, &worker.shared.config.call_limits) {
        Err(refusal) => {
            answer_item(worker, request, Err(refusal)).await.map_or(Reply::Nothing, Reply::One)
        }
        Ok(Body::Single(item)) => {
            answer_item(worker, request, item).await.map_or(Reply::Nothing, Reply::One)
        }
        Ok(Body::Batch(items)) => Box::pin(answer_batch(worker, request, items)).await,
    }
}

async fn answer_batch<'a>(
    worker: &Rc<Worker>,
    request: &Request<'a>,
    items: Vec<Result<Call<'a>, Refusal<'a>>>,
) -> Reply<'a> {
    worker.counters.batches.add(1);
    let left = Cell::new(worker.shared.config.front.batch_answer_bytes_max);
    // What waits for the other calls of the batch.
    let hold = Hold::new(&worker.shared.lineage.memory, Purpose::Response);
    let gathered = RefCell::new((hold, 0));
    let answers: Vec<_> = futures_util::stream::iter(items)
        .map(async |item| {
            let mut answered = answer_item(worker, request, item).await?;
            // What has no room is not kept until all are there.
            let bytes = answered.payload.bytes();
            let counted = match left.get().checked_sub(bytes) {
                None => Err(Kind::BatchTooLarge),
                Some(rest) => {
                    left.set(rest);
                    let (hold, sum) = &mut *gathered.borrow_mut();
                    hold.set(*sum + bytes).map(|()| *sum += bytes).map_err(|Full| Kind::Memory)
                }
            };
            if let Err(kind) = counted {
                answered.payload = Content::Payload(Payload::Failed(Failure::ours(kind)));
            }
            Some(answered)
        })
        .buffered(BATCH_CONCURRENCY)
        .filter_map(std::future::ready)
        .collect()
        .await;
    if answers.is_empty() { Reply::Nothing } else { Reply::Batch(answers) }
}

fn refused<'a>(worker: &Worker, request: &Request<'_>, refusal: Refusal<'a>) -> Answered<'a> {
    worker.counters.calls_refused.add(1);
    let id = refusal.id.unwrap_or(b"null");
    let answered = Answered { id, payload: Content::Refused(refusal), mark: None, node: None };
    record(worker, request, None, "", &answered, Duration::ZERO);
    answered
}

/// Answers one call of a body; none for a notification.
async fn answer_item<'a>(
    worker: &Rc<Worker>,
    request: &Request<'a>,
    item: Result<Call<'a>, Refusal<'a>>,
) -> Option<Answered<'a>> {
    let mut now = worker.tick();
    let mut _entered = None;
    let row = |chain: usize, call: &Call<'_>| worker.shared.chains[chain].family.find(&call.method);
    let asked = request.chain;
    let mut found = item.as_ref().ok().and_then(|call| row(asked, call));
    // A method spelt in another case is counted as what it may be to a node.
    let weighed = |chain: usize, found: Option<(usize, &'static Method)>, name: &str| {
        let known = found.map(|(_, method)| method);
        known.or_else(|| worker.shared.chains[chain].family.in_any_case(name))
    };
    if let Some(limits) = &worker.shared.limits {
        let name = name_of(&item);
        let method = weighed(asked, found, name);
        let mut charge = limits.charge(
            &counted(worker, request, name, method),
            worker.now_ms(),
            &worker.counters,
        );
        if let Charge::Ask(question) = charge {
            let caller = counted(worker, request, name, method);
            charge = Box::pin(judged(worker, limits, &question, &caller)).await;
            now = worker.tick();
        }
        let wait = match charge {
            // Nothing more is asked once that was.
            Charge::Pass | Charge::Ask(_) => None,
            Charge::Wait(wait) => Some(wait),
            Charge::Refuse(failure) => return limited(worker, request, &item, failure),
        };
        if let Some(wait) = wait {
            Box::pin(wait_turn(worker, request, wait)).await;
            now = worker.tick();
        }
        match limits.enter(&counted(worker, request, name, method), &worker.counters) {
            Ok(entered) => _entered = entered,
            Err(failure) => return limited(worker, request, &item, failure),
        }
    }
    let call = match item {
        Ok(call) => call,
        Err(refusal) => return Some(refused(worker, request, refusal)),
    };
    if let Some(grant) = &request.caller.grant {
        worker.counters.keys[grant.index].calls.add(1);
    }
    let began = worker.now();
    let place = request.calls.map_or(0, CallRecords::begin);
    let request = match admit::directed(worker, request, &call) {
        Ok(directed) => directed,
        Err(kind) => return denied(worker, request, &call, Failure::ours(kind), place),
    };
    if request.chain != asked {
        found = row(request.chain, &call);
    }
    let method = found.map(|(_, method)| method);
    if let Err(kind) = admit::permitted(worker, &request, &call, method) {
        return denied(worker, &request, &call, Failure::ours(kind), place);
    }
    if let (Some(quotas), Some(grant)) = (&worker.shared.quotas, &request.caller.grant)
        && let Err(failure) =
            quotas.charge(grant, weighed(request.chain, found, &call.method), unix_seconds())
    {
        return denied(worker, &request, &call, failure, place);
    }
    let sticky = method.map_or_else(|| is_subscription(&call.method), |method| method.sticky);
    let (fetched, mark) = if sticky {
        Box::pin(answer_sticky(worker, &request, &call, found, now)).await
    } else {
        answer_call(worker, &request, &call, found, now).await
    };
    let counts = worker.counters.method(request.chain, found.map(|(place, _)| place));
    counts.answered(mark, worker.now().saturating_sub(began));
    match &fetched.payload {
        Payload::Result(_) => {}
        Payload::Error(_) => counts.errors.add(1),
        Payload::Failed(failure) => {
            counts.failed.add(1);
            tracing::debug!(method = &*call.method, %failure, "call failed");
        }
    }
    let (payload, node) = (Content::Payload(fetched.payload), fetched.node);
    let answered = Answered { id: b"", payload, mark: Some(mark), node };
    told(worker, &request, &call, answered, began, place)
}

/// A call that nobody is asked for.
fn denied<'a>(
    worker: &Worker,
    request: &Request<'_>,
    call: &Call<'a>,
    failure: Failure,
    place: usize,
) -> Option<Answered<'a>> {
    let payload = Content::Payload(Payload::Failed(failure));
    let began = worker.now();
    let answered = Answered { id: b"", payload, mark: None, node: None };
    told(worker, request, call, answered, began, place)
}

/// The answer under the call's id, noted for the access log; none for a notification.
fn told<'a>(
    worker: &Worker,
    request: &Request<'_>,
    call: &Call<'a>,
    answered: Answered<'a>,
    began: Duration,
    place: usize,
) -> Option<Answered<'a>> {
    let took = worker.now().saturating_sub(began);
    record(worker, request, Some(place), &call.method, &answered, took);
    let Some(id) = call.id.raw() else {
        worker.counters.notifications.add(1);
        return None;
    };
    Some(Answered { id, ..answered })
}

/// The method's name; empty where there is no call.
fn name_of<'a>(item: &'a Result<Call<'_>, Refusal<'_>>) -> &'a str {
    item.as_ref().map_or("", |call| &*call.method)
}

/// What limits need to know of a call.
fn counted<'a>(
    worker: &'a Worker,
    request: &Request<'a>,
    name: &'a str,
    method: Option<&'static Method>,
) -> Counted<'a> {
    Counted {
        client: request.caller.address,
        chain: request.chain,
        chain_name: &worker.shared.chains[request.chain].name,
        name,
        method,
        headers: request.limit_headers,
        grant: request.caller.grant.as_deref(),
        ahead: request.ahead,
    }
}

/// What becomes of a call in zones that gateways share.
async fn judged(
    worker: &Worker,
    limits: &Limits,
    question: &Question,
    caller: &Counted<'_>,
) -> Charge {
    let verdict = match &worker.judge {
        Some(judge) => judge.ask(question).await,
        None => None,
    };
    worker.tick();
    limits.settle(question, verdict.as_ref(), caller, worker.now_ms(), &worker.counters)
}

/// Waits until a call's turn has come, holding nothing but the request.
async fn wait_turn(worker: &Worker, request: &Request<'_>, wait: Duration) {
    let _waiting = Waiting::begin(worker, request.waiting);
    tokio::time::sleep(wait).await;
}

/// Counts a call that waits for its turn, until it is dropped.
struct Waiting<'a> {
    worker: &'a Worker,
    of_request: &'a Cell<usize>,
}

impl<'a> Waiting<'a> {
    fn begin(worker: &'a Worker, of_request: &'a Cell<usize>) -> Waiting<'a> {
        of_request.set(of_request.get() + 1);
        worker.counters.calls_waiting.add(1);
        Waiting { worker, of_request }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.of_request.set(self.of_request.get() - 1);
        self.worker.counters.calls_waiting.subtract_one();
    }
}

/// The answer to a call that a limit refused. A notification is told too if it came alone: its HTTP
/// status has to say so, and no answer of it can be mistaken for another's.
fn limited<'a>(
    worker: &Worker,
    request: &Request<'a>,
    item: &Result<Call<'a>, Refusal<'a>>,
    failure: Failure,
) -> Option<Answered<'a>> {
    let payload = Content::Payload(Payload::Failed(failure));
    let answered = Answered { id: b"null", payload, mark: None, node: None };
    let name = item.as_ref().map_or("", |call| &*call.method);
    record(worker, request, None, name, &answered, Duration::ZERO);
    let id = match item {
        Ok(call) => call.id.raw(),
        Err(refusal) => Some(refusal.id.unwrap_or(b"null")),
    };
    let alone = request.body.trim_ascii_start().first() != Some(&b'[');
    let id = id.or(alone.then_some(b"null"))?;
    Some(Answered { id, ..answered })
}

/// One call through every step.
async fn answer_call(
    worker: &Rc<Worker>,
    request: &Request<'_>,
    call: &Call<'_>,
    found: Option<(usize, &'static Method)>,
    now: Instant,
) -> (Fetched, CacheStatus) {
    let view = worker.shared.chains[request.chain].view.load();
    let mut ask = route(worker, request, call, found, &view, now);
    let Some((_, method)) = found else {
        drop(view);
        ask.flow = flow(request, None);
        return (Box::pin(place_and_fetch(worker, &ask, None)).await, CacheStatus::Bypass);
    };
    if method.bound == Bound::Logs {
        drop(view);
        ask.flow = flow(request, Some(method));
        return Box::pin(logs::answer(worker, ask, call, method)).await;
    }
    let block = block_ref(method, &call.params).ok().flatten();
    let caching = decide(method, block.as_ref().map(|(block, _)| block), &view);
    let mut ask = Ask { caching: allowed(worker, caching), ..ask };
    if ask.caching.from_view
        && let Some(head) = view.head
    {
        return (head_value(&call.method, head.number), CacheStatus::Hit);
    }
    let mut key = worker.spare.take();
    let resolved = ask.caching.resolved.map(Resolved::Number);
    let keyed = write_call_key(worker, &mut key, &ask, method, &call.params, resolved);
    if keyed && let Some(fetched) = kept(worker, &key, &view) {
        worker.spare.give(key);
        return (fetched, CacheStatus::Hit);
    }
    drop(view);
    if let (Some(number), Some((_, span)), Some(at)) = (ask.caching.resolved, block, method.block) {
        let mut params = Vec::new();
        write_params_at(&mut params, &call.params, span, at.form, number);
        ask.params = Some(Cow::Owned(params));
    }
    ask.flow = flow(request, Some(method));
    let answered = answer_ask(worker, ask, keyed.then_some(&key[..])).await;
    worker.spare.give(key);
    answered
}

/// One call about what is to come: the gateway's own to answer, unless only a node can.
async fn answer_sticky(
    worker: &Rc<Worker>,
    request: &Request<'_>,
    call: &Call<'_>,
    found: Option<(usize, &'static Method)>,
    now: Instant,
) -> (Fetched, CacheStatus) {
    match subscribe::answer(worker, request, call).await {
        Outcome::Payload(payload) => (Fetched::of(payload), CacheStatus::Bypass),
        Outcome::Logs(filter) => {
            let params = [b"[", &*filter, b"]"].concat();
            let method = Cow::Borrowed("eth_getLogs");
            let call = Call { method, params: Params::Array(&params), ..call.clone() };
            let found = worker.shared.chains[request.chain].family.find(&call.method);
            // The rules have seen only the filter's id.
            match admit::directed(worker, request, &call) {
                Ok(directed) if directed.chain == request.chain => {
                    answer_call(worker, &directed, &call, found, now).await
                }
                Ok(_) => (Fetched::failed(Failure::ours(Kind::Forbidden)), CacheStatus::Bypass),
                Err(kind) => (Fetched::failed(Failure::ours(kind)), CacheStatus::Bypass),
            }
        }
        Outcome::Node => answer_call(worker, request, call, found, now).await,
    }
}

/// Adapts a decision to what is turned on. Without the cache every call reaches a node as it came.
fn allowed(worker: &Worker, caching: Caching) -> Caching {
    if worker.shared.cache.is_some() {
        return caching;
    }
    Caching { rule: CacheRule::Never, resolved: None, from_view: false, ..caching }
}

/// The answer to a call for the head's number, in the form of the method's namespace: harmony's
/// second version writes numbers, all others quantities.
fn head_value(method: &str, number: u64) -> Fetched {
    let mut result = Vec::with_capacity(20);
    if method.starts_with("eth_") || method.starts_with("hmy_") {
        result.push(b'"');
        quantity::write(&mut result, number);
        result.push(b'"');
    } else {
        quantity::write_decimal(&mut result, number);
    }
    Fetched::of(Payload::Result(result.into()))
}

/// The call with its group, its deadline and what its group balances by.
fn route<'a>(
    worker: &Worker,
    request: &Request<'a>,
    call: &'a Call<'a>,
    found: Option<(usize, &'static Method)>,
    view: &ChainView,
    now: Instant,
) -> Ask<'a> {
    let shared = &worker.shared;
    let (place, method) = found.unzip();
    let group = request.group.unwrap_or_else(|| shared.router.group(request.chain, &call.method));
    let config = &shared.config.groups[group];
    let sticky = method.is_some_and(|method| method.sticky);
    let balance_key = match &config.balance {
        _ if sticky => request.caller.address_hash(),
        Balance::Hash { key, .. } => balance_key(request, call, key),
        Balance::LeastLoaded | Balance::Weighted => 0,
    };
    Ask {
        chain: request.chain,
        group,
        name: Cow::Borrowed(&*call.method),
        method,
        place,
        class: class(worker, request, method),
        // Worked out once the call is known to need a node.
        flow: Flow::default(),
        params: call.params.raw().map(Cow::Borrowed),
        caching: Caching {
            rule: CacheRule::Never,
            resolved: None,
            min_head: 0,
            behind_head: 0,
            from_view: false,
            stamp: Stamp::of(view),
        },
        join: method.is_some_and(|method| method.coalesce) && shared.config.cache.coalesce,
        balance_key,
        deadline: now + config.deadline,
        waiting: Some(request.waiting),
    }
}

/// Who goes first where nodes have no room for all.
fn class(worker: &Worker, request: &Request<'_>, method: Option<&'static Method>) -> Class {
    let weight = method.map_or(1, |method| method.weight);
    let overload = worker.shared.config.overload.as_ref();
    let class = overload.map(|own| own.priorities.class(request.caller.tier(), weight));
    class.unwrap_or(Class::Normal)
}

/// With whose calls a call shares places at nodes.
fn flow(request: &Request<'_>, method: Option<&'static Method>) -> Flow {
    Flow::of(request.caller.hash(), method.map_or(1, |method| method.weight))
}

fn balance_key(request: &Request<'_>, call: &Call<'_>, key: &HashKey) -> u64 {
    match key {
        HashKey::Call => {
            let params = hash64(call.params.raw().unwrap_or(b""));
            hash64(call.method.as_bytes()) ^ params.rotate_left(1)
        }
        HashKey::Header(_) => {
            request.hash_header.map_or_else(|| request.caller.address_hash(), hash64)
        }
        HashKey::Client => request.caller.address_hash(),
    }
}

/// Writes the key of a call that may be kept or joined; whether it has one.
fn write_call_key(
    worker: &Worker,
    key: &mut Vec<u8>,
    ask: &Ask<'_>,
    method: &Method,
    params: &Params<'_>,
    block: Option<Resolved>,
) -> bool {
    if ask.caching.rule == CacheRule::Never && !ask.join {
        return false;
    }
    let chain = &worker.shared.chains[ask.chain].key;
    write_key(key, &KeyParts { chain, method, params, block }).is_ok()
}

/// A kept answer that still holds.
fn kept(worker: &Worker, key: &[u8], view: &ChainView) -> Option<Fetched> {
    let cache = worker.shared.cache.as_ref()?;
    let entry = cache.get(key)?;
    let in_time = entry.until.is_none_or(|until| worker.now() < until);
    let usable = usable(&entry.kept, view);
    if in_time && usable {
        let node = worker.shared.node_of_number(entry.node);
        let settled = entry.is_error;
        Some(Fetched { node, settled, ..Fetched::of(entry.payload()) })
    } else {
        // What is kept briefly is compared with what nodes say next.
        if !usable || entry.doubted_since.is_none() {
            cache.drop_stale(key);
        }
        None
    }
}

/// Asks the nodes, together with whoever asks the same, and keeps what may be kept.
///
/// Apart from the connection's own state, which would otherwise carry room for it while it waits.
fn answer_ask<'a>(
    worker: &'a Rc<Worker>,
    ask: Ask<'a>,
    key: Option<&'a [u8]>,
) -> Pin<Box<dyn Future<Output = (Fetched, CacheStatus)> + 'a>> {
    Box::pin(async move {
        let mark = if ask.caching.rule == CacheRule::Never {
            CacheStatus::Bypass
        } else {
            CacheStatus::Miss
        };
        while let Some((flight, joined)) = key.and_then(|key| board(worker, &ask, key)) {
            let crowded = overload::is_crowded(worker, &ask);
            let leaving = ask.waiting.filter(|_| crowded).map(MayLeave::begin);
            let fetched = flight.wait(ask.deadline).await;
            drop(leaving);
            let fetched = fetched.unwrap_or_else(|| Fetched::failed(Failure::ours(Kind::Deadline)));
            if joined && let Payload::Failed(failure) = &fetched.payload {
                let now = worker.tick();
                let outclassed = matches!(failure.kind, Kind::Overloaded { .. })
                    && flight.is_worse_than(ask.class);
                if (flight.is_out_of_time(now) || outclassed) && now < ask.deadline {
                    continue;
                }
            }
            return marked(fetched, if joined { CacheStatus::Coalesced } else { mark });
        }
        marked(obtain(worker, &ask, key, None).await, mark)
    })
}

/// A call that a tier has answered is a hit, but for who joined another's.
fn marked(fetched: Fetched, mark: CacheStatus) -> (Fetched, CacheStatus) {
    let hit = fetched.from_tier && mark != CacheStatus::Coalesced;
    (fetched, if hit { CacheStatus::Hit } else { mark })
}

/// What Redis or the index has, where they are on, or else what a node says, which is kept.
async fn obtain(
    worker: &Rc<Worker>,
    ask: &Ask<'_>,
    key: Option<&[u8]>,
    flight: Option<&Flight>,
) -> Fetched {
    if let (Some(redis), Some(key)) = (&worker.redis, key)
        && let Some(fetched) = Box::pin(redis.recall(worker, ask, key)).await
    {
        return fetched;
    }
    // Ranges of logs have been asked for whole.
    let once = !matches!(ask.caching.rule, CacheRule::Never | CacheRule::AtRange { .. });
    let found = match &ask.params {
        Some(params) if once => index::recall(worker, ask, params).await,
        _ => None,
    };
    let fetched = match found {
        Some(Found::Whole(result)) => index::fetched(result),
        Some(Found::Part { to, listed, .. }) => {
            Box::pin(complete(worker, ask, flight, to, &listed)).await
        }
        Some(Found::Nothing) | None => place_and_fetch(worker, ask, flight).await,
    };
    fill(worker, ask, key, &fetched);
    fetched
}

/// The blocks up to `to` that the index has, and those after it that a node has. Where these do not
/// follow, the node has another branch: the whole is its then.
async fn complete(
    worker: &Rc<Worker>,
    ask: &Ask<'_>,
    flight: Option<&Flight>,
    to: u64,
    held: &[u8],
) -> Fetched {
    if let Some(params) = ask.params.as_deref().and_then(|params| blocks::rest(params, to + 1)) {
        let rest = Ask { params: Some(Cow::Owned(params)), ..ask.clone() };
        let fetched = place_and_fetch(worker, &rest, flight).await;
        let Payload::Result(after) = &fetched.payload else { return fetched };
        if let Some(whole) = blocks::join(held, after) {
            return Fetched { payload: Payload::Result(whole.into()), ..fetched };
        }
    }
    place_and_fetch(worker, ask, flight).await
}

/// What a node says, once there is room for the call at the nodes.
async fn place_and_fetch(worker: &Rc<Worker>, ask: &Ask<'_>, flight: Option<&Flight>) -> Fetched {
    let place = match overload::place(worker, ask) {
        Some(place) => Ok(place),
        None => Box::pin(wait_for_place(worker, ask, flight)).await,
    };
    match place {
        Ok(_place) => fetch(worker, ask).await,
        Err(failure) => Fetched::failed(failure),
    }
}

/// A place, unless nobody wants it any more.
async fn wait_for_place<'a>(
    worker: &'a Worker,
    ask: &Ask<'_>,
    flight: Option<&Flight>,
) -> Result<overload::Place<'a>, Failure> {
    let _leaving = ask.waiting.map(MayLeave::begin);
    let Some(flight) = flight else { return overload::wait(worker, ask).await };
    tokio::select! {
        place = overload::wait(worker, ask) => place,
        () = flight.abandoned() => Err(Failure::ours(Kind::Stopping)),
    }
}

/// A call whose client may leave meanwhile, until this is dropped.
struct MayLeave<'a>(&'a Cell<usize>);

impl<'a> MayLeave<'a> {
    fn begin(waiting: &'a Cell<usize>) -> MayLeave<'a> {
        waiting.set(waiting.get() + 1);
        MayLeave(waiting)
    }
}

impl Drop for MayLeave<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The flight of everyone who asks the same, and whether it was under way before; none where a call
/// is not to be shared.
fn board(worker: &Rc<Worker>, ask: &Ask<'_>, key: &[u8]) -> Option<(Rc<Flight>, bool)> {
    if !ask.join {
        return None;
    }
    // Only calls that began under the same view may share an answer.
    let mut flight_key = Vec::with_capacity(key.len() + 24);
    flight_key.extend_from_slice(key);
    flight_key.extend_from_slice(&ask.caching.stamp.generation.to_le_bytes());
    flight_key.extend_from_slice(&ask.caching.stamp.head_seq.to_le_bytes());
    // Nor what other nodes said: what they refuse, ours may have.
    flight_key.extend_from_slice(&ask.group.to_le_bytes());
    match worker.flights.board(&flight_key, ask.deadline, ask.class) {
        Boarding::Alone => None,
        Boarding::Join(flight) => Some((flight, true)),
        Boarding::Lead(landing) => {
            let flight = landing.flight();
            let (leader, ask) = (Rc::clone(worker), ask.clone().into_owned());
            let key_bytes = key.len();
            tokio::task::spawn_local(async move {
                let (key, flight) = (&landing.key()[..key_bytes], landing.flight());
                let fetched = obtain(&leader, &ask, Some(key), Some(&flight)).await;
                landing.land(fetched);
            });
            Some((flight, false))
        }
    }
}

/// Keeps an answer if the rules admit it.
fn fill(worker: &Worker, ask: &Ask<'_>, key: Option<&[u8]>, fetched: &Fetched) {
    let (Some(cache), Some(key)) = (&worker.shared.cache, key) else { return };
    let (Payload::Result(bytes) | Payload::Error(bytes)) = &fetched.payload else { return };
    if ask.caching.rule == CacheRule::Never {
        return;
    }
    let view = worker.shared.chains[ask.chain].view.load();
    let facts = facts(ask, &fetched.payload, fetched.settled);
    let same = |entry: &Entry| entry.bytes == *bytes && usable(&entry.kept, &view);
    let same_since = match fetched.trust {
        Trust::Unopposed => cache.get(key).filter(same).and_then(|entry| entry.doubted_since),
        _ => None,
    };
    let keep = complete::keep(fetched.trust, same_since, worker.now());
    let stored = match (cacheable::admit(&ask.caching, &facts, &view), keep) {
        (Admit::No(_), _) | (_, Keep::No) => false,
        (Admit::Store(kept), keep) => {
            let is_error = facts.kind == AnswerKind::DeterministicError;
            let node = fetched.node.map_or(NO_NODE, |node| worker.shared.nodes[node].number);
            let age_max = cache.age_max(is_error, &kept).map(|age| worker.now() + age);
            let (until, doubted_since) = match keep {
                Keep::Briefly { since } => (Some(worker.now() + BRIEF), Some(since)),
                _ => (age_max, None),
            };
            if let Some(redis) = &worker.redis
                && doubted_since.is_none()
                && !fetched.from_tier
            {
                redis.keep(ask, key, fetched, kept, &facts, &view);
            }
            let bytes = bytes.clone();
            cache.put(key, Entry { bytes, is_error, node, kept, until, doubted_since })
        }
    };
    let counters = &worker.counters;
    if stored { counters.fills.add(1) } else { counters.fills_refused.add(1) }
}

/// What the rules need to know of an answer.
pub(crate) fn facts(ask: &Ask<'_>, payload: &Payload, settled: bool) -> AnswerFacts {
    let answer_block = ask.method.map_or(AnswerBlock::None, |method| method.answer_block);
    let (kind, named) = match payload {
        Payload::Result(result) if &**result == b"null" => (AnswerKind::Null, None),
        Payload::Result(result) => (AnswerKind::Value, named_blocks(answer_block, result)),
        Payload::Error(_) if settled => (AnswerKind::DeterministicError, None),
        Payload::Error(_) | Payload::Failed(_) => (AnswerKind::Error, None),
    };
    AnswerFacts { kind, answer_block, named }
}
