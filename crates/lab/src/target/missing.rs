//! What follows if the chain lacks data that a plan draws from. A chain without transactions has no
//! addresses in its blocks: the node's own accounts replace them, or else the zero address. Calls
//! that draw other missing data are not sent. Each replacement is a warning of the run.

use lab_engine::chain::ChainFacts;
use lab_model::plan::{Piece, Plan, Step, Template};
use wire::family::Family;

use super::Reason;
use super::chain::{NeededData, add_accounts};
use super::client::Client;
use crate::wording::target as wording;

/// The address that exists on every chain of Ethereum's and Harmony's families.
const ZERO_ADDRESS: &str = "0x0000000000000000000000000000000000000000";

/// Replaces missing addresses. Returns a warning if it did.
pub(super) fn replace_addresses(
    client: &Client,
    family: Family,
    needed: NeededData,
    chain: &mut ChainFacts,
) -> Option<String> {
    if !needed.addresses || !chain.addresses.is_empty() || family == Family::Bitcoin {
        return None;
    }
    add_accounts(client, chain);
    if !chain.addresses.is_empty() {
        return Some(wording::accounts_as_addresses(chain.addresses.len()));
    }
    chain.addresses.push(ZERO_ADDRESS.into());
    Some(wording::zero_address())
}

/// Returns a copy of the plan without the calls that draw missing data, and a warning for each mix
/// that lost calls. Returns `None` if no data is missing.
///
/// # Errors
/// Fails if a mix has no call left.
pub(super) fn without_missing(
    plan: &Plan,
    chain: &ChainFacts,
) -> Result<Option<(Plan, Vec<String>)>, Reason> {
    let missing_in = |template: &Template| {
        template.params.iter().find_map(|piece| match piece {
            Piece::Draw(draw) => chain.missing_values(draw),
            Piece::Text(_) => None,
        })
    };
    let is_complete = |step: &Step| match step {
        Step::Choose(calls) => calls.iter().all(|call| missing_in(&call.template).is_none()),
        Step::Replay(_) | Step::Transactions(_) => true,
    };
    if plan.mixes.iter().flat_map(|mix| &mix.steps).all(is_complete) {
        return Ok(None);
    }
    let (mut plan, mut warnings) = (plan.clone(), Vec::new());
    for mix in &mut plan.mixes {
        let (mut missing_values, mut dropped) = (Vec::new(), Vec::new());
        for step in &mut mix.steps {
            let Step::Choose(calls) = step else { continue };
            calls.retain(|call| {
                let Some(missing) = missing_in(&call.template) else { return true };
                let method = &*plan.methods[call.template.method];
                if !missing_values.contains(&missing) {
                    missing_values.push(missing);
                }
                if !dropped.contains(&method) {
                    dropped.push(method);
                }
                false
            });
        }
        mix.steps.retain(|step| !matches!(step, Step::Choose(calls) if calls.is_empty()));
        if dropped.is_empty() {
            continue;
        }
        let missing = missing_values.join(" and ");
        if mix.steps.is_empty() {
            return Err(Reason::NothingToSend { mix: mix.name.clone(), missing });
        }
        warnings.push(wording::dropped_calls(&mix.name, &missing, &dropped));
    }
    Ok(Some((plan, warnings)))
}
