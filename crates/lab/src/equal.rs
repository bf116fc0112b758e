//! Compares the responses of two servers to the same calls, without load: `weir equal A B`.
//!
//! Steps: identify both servers, choose a block that both have, choose the calls, send each call to
//! both servers (`send.rs`), and group the differences (`groups.rs`). The calls are the default
//! calls of the servers' family of methods (`calls.rs`) or recorded calls (`recorded.rs`).
//!
//! `analysis/json_compare/all.rs` finds the differences. `analysis/habits.rs` has the *habits*:
//! known differences between the responses of correct node programs, such as geth and Erigon.

mod calls;
mod groups;
mod recorded;
mod send;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lab_model::plan::{Plan, Step};
use lab_model::results::TargetFacts;
use lab_model::results::equal::{EqualResult, EqualVerdict, SCHEMA, ServerFacts, SkippedCalls};
use parking_lot::Mutex;
use wire::family::Family;

use crate::analysis::calendar::rfc3339;
use crate::run::unix_now;
use crate::target;
use crate::target::{Client, DifferentChains, TargetFault};
use crate::wording::equal as wording;
use groups::Groups;
use send::{Outcome, Pair};

#[cfg(test)]
mod tests;

/// Options of a comparison.
#[derive(Clone, Debug)]
pub struct Options {
    /// True if the plans hold recorded requests, which are sent instead of the default calls.
    pub recorded: bool,
    /// Maximum number of different recorded calls.
    pub calls_max: usize,
    /// Number of the newest block that the calls name; `None` for the newest final block that both
    /// servers have.
    pub block: Option<u64>,
    /// Number of blocks that the default calls name: the newest one, and the blocks below it.
    pub blocks: u64,
    /// True to send block tags of recorded calls, such as `latest`, unchanged. False to replace
    /// them by the number of `block`.
    pub keep_tags: bool,
    /// True if recorded calls of unknown methods, and of methods whose responses depend on the
    /// node, are also sent.
    pub all_methods: bool,
    /// True if known habits of clients count as differences.
    pub strict: bool,
    /// Patterns of JSON pointers, relative to the response. Differences at these pointers are
    /// allowed.
    pub ignore: Vec<String>,
    /// Maximum number of calls that are in flight at the same time.
    pub concurrency: usize,
}

/// Why the servers could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum EqualFault {
    /// A server cannot be used.
    #[error(transparent)]
    Target(#[from] TargetFault),
    /// The servers have different families of methods.
    #[error("{a} has the methods of {family_a}, and {b} those of {family_b}")]
    Families {
        /// URL of the first server.
        a: String,
        /// Family of the first server.
        family_a: &'static str,
        /// URL of the second server.
        b: String,
        /// Family of the second server.
        family_b: &'static str,
    },
    /// The servers have different chains.
    #[error(transparent)]
    Chains(#[from] DifferentChains),
    /// A server does not return its head (the number of its newest block), which the calls need.
    #[error(
        "{url} does not return the number of its head, which the default calls need; set --requests"
    )]
    NoHead {
        /// URL of the server.
        url: String,
    },
    /// The requested block is above the head of a server.
    #[error("block {block} is above the lower head of the two servers, {head}")]
    AboveHead {
        /// The requested block.
        block: u64,
        /// The lower one of the two servers' heads.
        head: u64,
    },
}

/// One of the two servers.
struct Server {
    client: Client,
    facts: TargetFacts,
    family: Family,
}

impl Server {
    /// Identifies the target of a plan.
    fn connect(plan: &Plan) -> Result<Server, TargetFault> {
        let (client, facts, family) = target::identify(&plan.target, &plan.connections.tls)?;
        Ok(Server { client, facts, family })
    }

    /// Returns the facts about the server for the result.
    fn facts(&self) -> ServerFacts {
        ServerFacts {
            url: self.facts.url.clone(),
            client: self.facts.client.clone(),
            chain_id: self.facts.chain_id.clone(),
            head: self.facts.head_start,
        }
    }
}

/// Sends the same calls to the targets of two plans and compares the responses. Recorded requests
/// come from the first plan. `on_progress` gets two numbers: finished calls, and all calls.
///
/// # Errors
/// Fails if a server cannot be used, the servers have different families or chains, the set block
/// is above a server's head, or the default calls need a head that a server does not return.
pub fn run(
    plans: [&Plan; 2],
    options: &Options,
    on_progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<EqualResult, EqualFault> {
    let start = Instant::now();
    let started_unix = unix_now();
    let (a, b) = (Server::connect(plans[0])?, Server::connect(plans[1])?);
    check_chains(&a, &b)?;
    let family = a.family;
    let block = choose_block(&a, &b, options)?;
    let mut warnings = Vec::new();
    let (calls, skipped) = if options.recorded {
        let steps = plans[0].mixes.iter().flat_map(|mix| &mix.steps);
        let requests = steps.filter_map(|step| match step {
            Step::Replay(requests) => Some(requests),
            Step::Choose(_) | Step::Transactions(_) => None,
        });
        recorded::select_calls(requests.flatten(), family, block, options)
    } else {
        let block = block.ok_or_else(|| EqualFault::NoHead { url: url_without_head(&a, &b) })?;
        let (calls, missing_blocks) =
            calls::default_calls(&a.client, family, block, options.blocks);
        warnings.extend(missing_blocks.iter().map(|block| wording::no_block(*block, &a.facts.url)));
        (calls, Vec::new())
    };
    let pair = Pair { a: &a.client, b: &b.client, family };
    let outcomes = send_all(&pair, &calls, options.concurrency, on_progress);

    let (facts_a, facts_b) = (a.facts(), b.facts());
    // Servers with the same client version must agree, so no habit excuses their differences.
    let habits_apply = match (&facts_a.client, &facts_b.client) {
        (Some(a), Some(b)) => a != b,
        _ => true,
    };
    let clients = [facts_a.client.as_deref(), facts_b.client.as_deref()];
    let mut groups = Groups::new(options, clients, habits_apply);
    for (call, outcome) in calls.iter().zip(&outcomes) {
        groups.add(call, outcome);
    }
    let groups = groups.finish();
    let unanswered: u64 = groups.methods.iter().map(|row| row.unanswered).sum();
    let unstable = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Unstable)).count();
    warnings.extend(wording::warnings(unanswered, unstable as u64, &skipped));
    let verdict = match () {
        () if groups.methods.iter().any(|row| row.different > 0) => EqualVerdict::Different,
        () if groups.methods.iter().any(|row| row.unsteady > 0) => EqualVerdict::Unsteady,
        () if unanswered > 0 || calls.is_empty() => EqualVerdict::CannotTell,
        () => EqualVerdict::Equal,
    };
    Ok(EqualResult {
        schema: SCHEMA.to_owned(),
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        started: rfc3339(started_unix),
        duration: start.elapsed().as_secs_f64(),
        verdict,
        strict: options.strict,
        habits_apply,
        a: facts_a,
        b: facts_b,
        family: family.as_str().to_owned(),
        block,
        calls: calls.len() as u64,
        skipped,
        methods: groups.methods,
        differences: groups.differences,
        differences_more: groups.omitted,
        warnings,
    })
}

/// A call that is sent to both servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ComparedCall {
    /// Name of the method.
    method: String,
    /// Parameters as JSON; `None` if the call has none.
    params: Option<Vec<u8>>,
    /// True if the call names its block by hash or number, or needs none. Its response then does
    /// not depend on the heads of the servers.
    names_its_block: bool,
}

impl ComparedCall {
    /// The raw id of every call.
    const ID: &'static [u8] = b"1";

    /// Returns the body of the request.
    fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        wire::call::write_call(&mut body, Self::ID, &self.method, self.params.as_deref());
        body
    }
}

/// Returns the URL of the first server without a head.
fn url_without_head(a: &Server, b: &Server) -> String {
    let server = if a.facts.head_start.is_none() { a } else { b };
    server.facts.url.clone()
}

/// Fails if the servers have different families or chains.
fn check_chains(a: &Server, b: &Server) -> Result<(), EqualFault> {
    let url = |server: &Server| server.facts.url.clone();
    if a.family != b.family {
        return Err(EqualFault::Families {
            a: url(a),
            family_a: a.family.as_str(),
            b: url(b),
            family_b: b.family.as_str(),
        });
    }
    let [server_a, server_b] = [a, b].map(|server| (&server.client, server.facts.url.as_str()));
    Ok(target::check_same_chain(server_a, server_b, a.family)?)
}

/// Returns the number of blocks below the head that a reorg may replace, for servers that report no
/// finalized block.
fn reorg_depth(family: Family) -> u64 {
    match family {
        // Two epochs of 32 slots. Ethereum normally finalizes a block after this time.
        Family::Ethereum => 64,
        // A block is final once it is signed. The next block contains its signatures.
        Family::Harmony => 1,
        // The usual number of confirmations.
        Family::Bitcoin => 6,
    }
}

/// Returns the block that the options set, or else the newest final block that both servers have.
/// `None` if a server returns no head.
fn choose_block(a: &Server, b: &Server, options: &Options) -> Result<Option<u64>, EqualFault> {
    let (Some(head_a), Some(head_b)) = (a.facts.head_start, b.facts.head_start) else {
        return Ok(None);
    };
    let head = head_a.min(head_b);
    if let Some(block) = options.block {
        if block > head {
            return Err(EqualFault::AboveHead { block, head });
        }
        return Ok(Some(block));
    }
    let finalized = match a.family {
        Family::Ethereum => calls::find_finalized(&a.client).zip(calls::find_finalized(&b.client)),
        Family::Harmony | Family::Bitcoin => None,
    };
    let depth = reorg_depth(a.family);
    Ok(Some(match finalized {
        Some((block_a, block_b)) if block_a.min(block_b) > 0 => block_a.min(block_b).min(head),
        // The chain is not longer than `depth` blocks.
        _ if head <= depth => head,
        _ => head - depth,
    }))
}

/// Sends all calls to both servers, at most `concurrency` at once. Returns the outcomes in order.
fn send_all(
    pair: &Pair<'_>,
    calls: &[ComparedCall],
    concurrency: usize,
    on_progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<Outcome> {
    let (next_index, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes = Mutex::new(Vec::with_capacity(calls.len()));
    let send_next_calls = || {
        loop {
            let index = next_index.fetch_add(1, Ordering::Relaxed);
            let Some(call) = calls.get(index) else { return };
            let outcome = pair.compare(call);
            outcomes.lock().push((index, outcome));
            on_progress(finished.fetch_add(1, Ordering::Relaxed) + 1, calls.len());
        }
    };
    std::thread::scope(|scope| {
        let threads = concurrency.clamp(1, calls.len().max(1));
        (0..threads).for_each(|_| _ = scope.spawn(send_next_calls));
    });
    let mut outcomes = outcomes.into_inner();
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The calls to send, and the recorded calls that are not sent.
type Selected = (Vec<ComparedCall>, Vec<SkippedCalls>);
