//! Selects the recorded calls that are safe to send to two servers and whose responses can be
//! compared. Replaces block tags, such as `latest`, with the number of a block that both servers
//! have.

use std::collections::{BTreeMap, HashSet};

use lab_model::plan::RecordedRequest;
use lab_model::results::equal::{SkipReason, SkippedCalls};
use wire::block::{BlockRef, BlockTag};
use wire::block_param::write_params_at;
use wire::call::{self, Body, Call, Limits};
use wire::effect::{Effect, effect_of};
use wire::family::Family;
use wire::method::{Method, Repeat, Validity, methods_of};

use super::{ComparedCall, Options, Selected};
use crate::reference::names_its_block;

/// Returns the calls to send, without repetitions, and the number of calls that must not be sent,
/// by method and reason.
pub(super) fn select_calls<'a>(
    requests: impl Iterator<Item = &'a RecordedRequest>,
    family: Family,
    block: Option<u64>,
    options: &Options,
) -> Selected {
    let mut selected = Vec::new();
    let mut selected_set = HashSet::new();
    let mut skipped: BTreeMap<(String, SkipReason), u64> = BTreeMap::new();
    for request in requests {
        // The body was checked when its file was read, so no call is skipped here in practice.
        let decoded = match call::decode(&request.body, &Limits::DEFAULT) {
            Ok(Body::Single(call)) => vec![call],
            Ok(Body::Batch(calls)) => calls,
            Err(_) => continue,
        };
        for call in decoded.into_iter().flatten() {
            // The row is the method's entry in the method table of the family; `None` for an
            // unknown method.
            let row = methods_of(family).method(&call.method);
            if let Some(reason) = find_skip_reason(family, &call.method, row, options.all_methods) {
                *skipped.entry((call.method.into_owned(), reason)).or_default() += 1;
                continue;
            }
            let block = block.filter(|_| !options.keep_tags);
            let call = replace_tag(&call, row, block);
            if selected.len() < options.calls_max && selected_set.insert(call.clone()) {
                selected.push(call);
            }
        }
    }
    let skipped = skipped
        .into_iter()
        .map(|((method, reason), calls)| SkippedCalls { method, reason, calls })
        .collect();
    (selected, skipped)
}

/// Returns the reason why calls of a method are not sent; `None` if they are sent.
fn find_skip_reason(
    family: Family,
    name: &str,
    row: Option<&Method>,
    all_methods: bool,
) -> Option<SkipReason> {
    if effect_of(family, name) != Effect::Read {
        return Some(SkipReason::Unsafe);
    }
    match row {
        None => (!all_methods).then_some(SkipReason::Unknown),
        // A call is unsafe if it or its repetition has an effect, or if later calls must go to the
        // same server (`sticky`).
        Some(row) if row.repeat != Repeat::Safe || row.sticky || row.write => {
            Some(SkipReason::Unsafe)
        }
        // The response depends on the node's transaction pool, or on something else than the chain.
        Some(row) if matches!(row.validity, Validity::Mempool | Validity::Never) => {
            (!all_methods).then_some(SkipReason::NodeSpecific)
        }
        Some(_) => None,
    }
}

/// Returns the call, with the number `block` in place of a block tag such as `latest`. The tag
/// `earliest` stays, because its block never changes. Without `block` the call is unchanged.
fn replace_tag(call: &Call<'_>, row: Option<&Method>, block: Option<u64>) -> ComparedCall {
    let mut params = call.params.raw().map(<[u8]>::to_vec);
    if let (Some(row), Some(number)) = (row, block)
        && let Some(parameter) = row.block
        && let Ok(Some((BlockRef::Tag(tag), span))) = parameter.read(&call.params)
        && tag != BlockTag::Earliest
    {
        let mut new_params = Vec::new();
        write_params_at(&mut new_params, &call.params, span, parameter.format, number);
        params = Some(new_params);
    }
    let mut call = ComparedCall { method: call.method.to_string(), params, names_its_block: false };
    call.names_its_block = names_its_block(&call.body());
    call
}
