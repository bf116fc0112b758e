//! Resolves a call: from the cache, from an equal call in flight, from Redis, from the index, or
//! from an upstream, whose response is then cached if it may be.
//!
//! ```text
//! plan → cache → coalesce → redis → index → permit → fetch (choose → send ⟲ retry) → fill
//! ```
//!
//! A range of logs goes through these steps once per part: `resolve/logs.rs`.

use crate::policy::overload::shares::Flow;
use std::borrow::Cow;
use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use tokio::time::Instant;
use wire::block_param::write_params_at;
use wire::call::{Call, Params};
use wire::key::{KeyParts, ResolvedBlock, write_key};
use wire::method::Method;
use wire::quantity;

use crate::access::caller::Caller;
use crate::cache::coalesce::{Boarding, Flight};
use crate::cache::index;
use crate::cache::index::Found;
use crate::cache::memory::Entry;
use crate::call::cache_status::CacheStatus;
use crate::call::failure::{Failure, Kind};
use crate::call::request::UpstreamRequest;
use crate::call::response::{Judgement, Payload, UpstreamResponse};
use crate::config::group::{Balance, HashKey};
use crate::policy::cacheable::{Admission, CacheRule, Caching, ResponseKind, Stamp, usable};
use crate::policy::choose::hash64;
use crate::policy::complete::{BRIEF, Keep, Trust};
use crate::policy::heads::ChainView;
use crate::policy::overload::Class;
use crate::policy::plan::{Lookup, Plan, Switches, plan};
use crate::policy::{blocks, complete};
use crate::state::context::ThreadContext;
use crate::upstream::fetch::fetch;
use crate::upstream::overload;
use crate::upstream::topology::NO_NODE;

pub(crate) mod internal;
mod logs;

/// A call and its way: where it goes, and what of its request decides how it is resolved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) call: &'a Call<'a>,
    /// The method's row and its index in the table; `None` for methods that no table knows.
    pub(crate) row: Option<(usize, &'static Method)>,
    /// Index of the chain.
    pub(crate) chain: usize,
    /// The group that a rule has chosen, if one has.
    pub(crate) group: Option<usize>,
    pub(crate) caller: &'a Caller,
    /// Value of the header that a group balances by, if one does.
    pub(crate) hash_header: Option<&'a [u8]>,
    /// How many calls of the request wait for something that is no upstream.
    pub(crate) waiting: &'a Cell<usize>,
}

impl<'a> Route<'a> {
    /// The method's row.
    pub(crate) fn method(&self) -> Option<&'static Method> {
        self.row.map(|(_, method)| method)
    }

    /// Index of the group.
    pub(crate) fn group(&self, cx: &ThreadContext) -> usize {
        let router = &cx.snapshot.router;
        self.group.unwrap_or_else(|| router.group(self.chain, &self.call.method))
    }
}

/// Resolves one call.
pub(crate) async fn resolve(
    cx: &Rc<ThreadContext>,
    route: &Route<'_>,
    now: Instant,
) -> (UpstreamResponse, CacheStatus) {
    let view = cx.snapshot.chains[route.chain].view.load();
    let call = route.call;
    let mut ask = request_of(cx, route, &view, now);
    let cache = &cx.snapshot.config.cache;
    let on = Switches { cache: cache.enabled, coalesce: cache.coalesce };
    let lookup = match plan(route.method(), &call.params, &view, on) {
        Plan::Lookup(lookup) => lookup,
        Plan::Head(number) => return (head_value(&call.method, number), CacheStatus::Hit),
        Plan::Logs(method) => {
            drop(view);
            ask.flow = flow(route);
            return Box::pin(logs::answer(cx, ask, call, method)).await;
        }
        Plan::Forward => {
            drop(view);
            ask.flow = flow(route);
            return (Box::pin(place_and_fetch(cx, &ask, None)).await, CacheStatus::Bypass);
        }
    };
    let Lookup { method, caching, block, coalesce } = lookup;
    let mut ask = UpstreamRequest { caching, join: coalesce, ..ask };
    let mut key = cx.upstream.buffers.take();
    let resolved = ask.caching.resolved.map(ResolvedBlock::Number);
    let keyed = write_call_key(cx, &mut key, &ask, method, &call.params, resolved);
    if keyed && let Some(fetched) = kept(cx, &key, &view) {
        cx.upstream.buffers.give(key);
        return (fetched, CacheStatus::Hit);
    }
    drop(view);
    if let (Some(number), Ok(Some((_, span))), Some(at)) =
        (ask.caching.resolved, block, method.block)
    {
        let mut params = Vec::new();
        write_params_at(&mut params, &call.params, span, at.format, number);
        ask.params = Some(Cow::Owned(params));
    }
    ask.flow = flow(route);
    let answered = answer_ask(cx, ask, keyed.then_some(&key[..])).await;
    cx.upstream.buffers.give(key);
    answered
}

/// The answer to a call for the head's number, in the form of the method's namespace: harmony's
/// second version writes numbers, all others quantities.
fn head_value(method: &str, number: u64) -> UpstreamResponse {
    let mut result = Vec::with_capacity(20);
    if method.starts_with("eth_") || method.starts_with("hmy_") {
        result.push(b'"');
        quantity::write(&mut result, number);
        result.push(b'"');
    } else {
        quantity::write_decimal(&mut result, number);
    }
    UpstreamResponse::of(Payload::Result(result.into()))
}

/// The request to an upstream: with the group, the deadline and what the group balances by.
fn request_of<'a>(
    cx: &ThreadContext,
    route: &Route<'a>,
    view: &ChainView,
    now: Instant,
) -> UpstreamRequest<'a> {
    let (snapshot, call) = (&cx.snapshot, route.call);
    let (place, method) = route.row.unzip();
    let group = route.group(cx);
    let config = &snapshot.config.groups[group];
    let sticky = method.is_some_and(|method| method.sticky);
    let balance_key = match &config.balance {
        _ if sticky => route.caller.address_hash(),
        Balance::Hash { key, .. } => balance_key(route, key),
        Balance::LeastLoaded | Balance::Weighted => 0,
    };
    UpstreamRequest {
        chain: route.chain,
        group,
        name: Cow::Borrowed(&*call.method),
        method,
        place,
        class: class(cx, route),
        // Worked out once the call is known to need an upstream.
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
        join: method.is_some_and(|method| method.coalesce) && snapshot.config.cache.coalesce,
        balance_key,
        deadline: now + config.deadline,
        waiting: Some(route.waiting),
    }
}

/// Who goes first where upstreams have no room for all.
fn class(cx: &ThreadContext, route: &Route<'_>) -> Class {
    let weight = route.method().map_or(1, |method| method.weight);
    let overload = cx.snapshot.config.overload.as_ref();
    let class = overload.map(|own| own.priorities.class(route.caller.tier(), weight));
    class.unwrap_or(Class::Normal)
}

/// With whose calls a call shares places at upstreams.
fn flow(route: &Route<'_>) -> Flow {
    Flow::of(route.caller.hash(), route.method().map_or(1, |method| method.weight))
}

fn balance_key(route: &Route<'_>, key: &HashKey) -> u64 {
    let call = route.call;
    match key {
        HashKey::Call => {
            let params = hash64(call.params.raw().unwrap_or(b""));
            hash64(call.method.as_bytes()) ^ params.rotate_left(1)
        }
        HashKey::Header(_) => route.hash_header.map_or_else(|| route.caller.address_hash(), hash64),
        HashKey::Client => route.caller.address_hash(),
    }
}

/// Writes the key of a call that may be kept or joined; whether it has one.
fn write_call_key(
    cx: &ThreadContext,
    key: &mut Vec<u8>,
    ask: &UpstreamRequest<'_>,
    method: &Method,
    params: &Params<'_>,
    block: Option<ResolvedBlock>,
) -> bool {
    if ask.caching.rule == CacheRule::Never && !ask.join {
        return false;
    }
    let chain = &cx.snapshot.chains[ask.chain].key;
    write_key(key, &KeyParts { chain, method, params, block }).is_ok()
}

/// A kept answer that still holds.
fn kept(cx: &ThreadContext, key: &[u8], view: &ChainView) -> Option<UpstreamResponse> {
    let cache = cx.snapshot.cache.as_ref()?;
    let entry = cache.get(key)?;
    let in_time = entry.until.is_none_or(|until| cx.now() < until);
    let usable = usable(&entry.kept, view);
    if in_time && usable {
        let upstream = cx.snapshot.upstream_of_number(entry.upstream);
        Some(UpstreamResponse { upstream, ..UpstreamResponse::of(entry.payload()) })
    } else {
        // What is kept briefly is compared with what upstreams say next.
        if !usable || entry.doubted_since.is_none() {
            cache.drop_stale(key);
        }
        None
    }
}

/// Asks the upstreams, together with whoever asks the same, and keeps what may be kept.
///
/// Apart from the connection's own state, which would otherwise carry room for it while it waits.
fn answer_ask<'a>(
    cx: &'a Rc<ThreadContext>,
    ask: UpstreamRequest<'a>,
    key: Option<&'a [u8]>,
) -> Pin<Box<dyn Future<Output = (UpstreamResponse, CacheStatus)> + 'a>> {
    Box::pin(async move {
        let mark = if ask.caching.rule == CacheRule::Never {
            CacheStatus::Bypass
        } else {
            CacheStatus::Miss
        };
        while let Some((flight, joined)) = key.and_then(|key| board(cx, &ask, key)) {
            let crowded = overload::is_crowded(&cx.upstream, &ask);
            let leaving = ask.waiting.filter(|_| crowded).map(MayLeave::begin);
            let fetched = flight.wait(ask.deadline).await;
            drop(leaving);
            let fetched =
                fetched.unwrap_or_else(|| UpstreamResponse::failed(Failure::ours(Kind::Deadline)));
            if joined && let Payload::Failed(failure) = &fetched.payload {
                let now = cx.tick();
                let outclassed = matches!(failure.kind, Kind::Overloaded { .. })
                    && flight.is_worse_than(ask.class);
                if (flight.is_out_of_time(now) || outclassed) && now < ask.deadline {
                    continue;
                }
            }
            return marked(fetched, if joined { CacheStatus::Coalesced } else { mark });
        }
        marked(obtain(cx, &ask, key, None).await, mark)
    })
}

/// A call that a tier has answered is a hit, but for who joined another's.
fn marked(fetched: UpstreamResponse, mark: CacheStatus) -> (UpstreamResponse, CacheStatus) {
    let hit = fetched.tier.is_some() && mark != CacheStatus::Coalesced;
    (fetched, if hit { CacheStatus::Hit } else { mark })
}

/// What Redis or the index has, where they are on, or else what an upstream says, which is kept.
async fn obtain(
    cx: &Rc<ThreadContext>,
    ask: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    flight: Option<&Flight>,
) -> UpstreamResponse {
    if let (Some(redis), Some(key)) = (&cx.redis, key)
        && let Some(fetched) = Box::pin(redis.recall(&cx.upstream, ask, key)).await
    {
        return fetched;
    }
    // Ranges of logs have been asked for whole.
    let once = !matches!(ask.caching.rule, CacheRule::Never | CacheRule::AtRange { .. });
    let found = match &ask.params {
        Some(params) if once => {
            index::recall(cx.snapshot.process.index(), &cx.upstream, ask, params).await
        }
        _ => None,
    };
    let fetched = match found {
        Some(Found::Whole(result)) => index::fetched(result),
        Some(Found::Part { to, listed, .. }) => {
            Box::pin(complete(cx, ask, flight, to, &listed)).await
        }
        Some(Found::Nothing) | None => place_and_fetch(cx, ask, flight).await,
    };
    fill(cx, ask, key, &fetched);
    fetched
}

/// The blocks up to `to` that the index has, and those after it that an upstream has. Where these
/// do not follow, the upstream has another branch: the whole is its then.
async fn complete(
    cx: &Rc<ThreadContext>,
    ask: &UpstreamRequest<'_>,
    flight: Option<&Flight>,
    to: u64,
    held: &[u8],
) -> UpstreamResponse {
    if let Some(params) =
        ask.params.as_deref().and_then(|params| blocks::rest_params(params, to + 1))
    {
        let rest = UpstreamRequest { params: Some(Cow::Owned(params)), ..ask.clone() };
        let fetched = place_and_fetch(cx, &rest, flight).await;
        let Payload::Result(after) = &fetched.payload else { return fetched };
        if let Some(whole) = blocks::join(held, after) {
            let payload = Payload::Result(whole.into());
            return UpstreamResponse { payload, judgement: None, ..fetched };
        }
    }
    place_and_fetch(cx, ask, flight).await
}

/// What an upstream says, once there is room for the call at the upstreams.
async fn place_and_fetch(
    cx: &Rc<ThreadContext>,
    ask: &UpstreamRequest<'_>,
    flight: Option<&Flight>,
) -> UpstreamResponse {
    let place = match overload::place(&cx.upstream, ask) {
        Some(place) => Ok(place),
        None => Box::pin(wait_for_place(cx, ask, flight)).await,
    };
    match place {
        Ok(_place) => fetch(&cx.upstream, ask).await,
        Err(failure) => UpstreamResponse::failed(failure),
    }
}

/// A place, unless nobody wants it any more.
async fn wait_for_place<'a>(
    cx: &'a ThreadContext,
    ask: &UpstreamRequest<'_>,
    flight: Option<&Flight>,
) -> Result<overload::Place<'a>, Failure> {
    let _leaving = ask.waiting.map(MayLeave::begin);
    let Some(flight) = flight else { return overload::wait(&cx.upstream, ask).await };
    tokio::select! {
        place = overload::wait(&cx.upstream, ask) => place,
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
fn board(
    cx: &Rc<ThreadContext>,
    ask: &UpstreamRequest<'_>,
    key: &[u8],
) -> Option<(Rc<Flight>, bool)> {
    if !ask.join {
        return None;
    }
    // Only calls that began under the same view may share an answer.
    let mut flight_key = Vec::with_capacity(key.len() + 24);
    flight_key.extend_from_slice(key);
    flight_key.extend_from_slice(&ask.caching.stamp.generation.to_le_bytes());
    flight_key.extend_from_slice(&ask.caching.stamp.head_seq.to_le_bytes());
    // Nor what other upstreams said: what they refuse, ours may have.
    flight_key.extend_from_slice(&ask.group.to_le_bytes());
    match cx.flights.board(&flight_key, ask.deadline, ask.class) {
        Boarding::Alone => None,
        Boarding::Join(flight) => Some((flight, true)),
        Boarding::Lead(landing) => {
            let flight = landing.flight();
            let (leader, ask) = (Rc::clone(cx), ask.clone().into_owned());
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

/// Caches a response that may be cached, unless the chain has changed since that was judged.
fn fill(
    cx: &ThreadContext,
    ask: &UpstreamRequest<'_>,
    key: Option<&[u8]>,
    fetched: &UpstreamResponse,
) {
    let (Some(cache), Some(key)) = (&cx.snapshot.cache, key) else { return };
    let (Payload::Result(bytes) | Payload::Error(bytes)) = &fetched.payload else { return };
    if ask.caching.rule == CacheRule::Never {
        return;
    }
    let view = cx.snapshot.chains[ask.chain].view.load();
    // What the index had was not judged yet.
    let judged = fetched.judgement;
    let Judgement { facts, admit } =
        judged.unwrap_or_else(|| Judgement::of(ask, &fetched.payload, false, &view));
    let same = |entry: &Entry| entry.bytes == *bytes && usable(&entry.kept, &view);
    let same_since = match fetched.trust {
        Trust::Unopposed => cache.get(key).filter(same).and_then(|entry| entry.doubted_since),
        _ => None,
    };
    let keep = complete::keep(fetched.trust, same_since, cx.now());
    let stored = match admit {
        Admission::Store(kept) if keep != Keep::No && usable(&kept, &view) => {
            let is_error = facts.kind == ResponseKind::DeterministicError;
            let upstream =
                fetched.upstream.map_or(NO_NODE, |upstream| cx.snapshot.upstreams[upstream].number);
            let age_max = cache.age_max(is_error, &kept).map(|age| cx.now() + age);
            let (until, doubted_since) = match keep {
                Keep::Briefly { since } => (Some(cx.now() + BRIEF), Some(since)),
                _ => (age_max, None),
            };
            if let Some(redis) = &cx.redis
                && doubted_since.is_none()
                && fetched.tier.is_none()
            {
                redis.keep(ask, key, fetched, kept, &facts, &view);
            }
            let bytes = bytes.clone();
            cache.put(key, Entry { bytes, is_error, upstream, kept, until, doubted_since })
        }
        Admission::Store(_) | Admission::No(_) => false,
    };
    let counters = &cx.counters;
    if stored { counters.fills.add(1) } else { counters.fills_refused.add(1) }
}
