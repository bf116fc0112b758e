//! Initializes a new index, or prepares an existing one for a further sync. A response form is one
//! way in which nodes write an object. An index records which forms it cannot reproduce.

use super::error::SyncError;
use super::form_trial::FormTrial;
use super::node_pool::NodePool;
use super::observer::Event;
use super::options::Options;
use super::samples::Samples;
use crate::contents::{Chain, Metadata};
use crate::planner::verification;
use crate::store::Store;

#[cfg(test)]
mod tests;

/// Checks that a sync with these options may continue an index.
///
/// # Errors
/// Fails if the index holds other parts of blocks than the options request.
pub(super) fn check_contents(metadata: &Metadata, options: &Options) -> Result<(), SyncError> {
    if metadata.contents == options.contents {
        return Ok(());
    }
    Err(SyncError::Mismatch(format!(
        "the index contains {}, but {} was requested; the contents are fixed when an index is created",
        metadata.contents, options.contents
    )))
}

/// Initializes a new index: samples blocks, trains dictionaries, compares response forms, and
/// writes the metadata. Returns `None` if the sync was stopped.
///
/// # Errors
/// Fails if the nodes fail, or the index cannot be written.
pub(super) fn initialize(
    store: &mut dyn Store,
    chain: Chain,
    options: &Options,
    nodes: &NodePool<'_>,
) -> Result<Option<Metadata>, SyncError> {
    let samples = Samples::fetch(options, nodes)?;
    let dictionaries = samples.train_dictionaries();
    let (level, hmyv2) = (options.verify, options.contents.hmyv2);
    let mut metadata = Metadata {
        verification: verification::initial_record(level, hmyv2, &chain),
        chain,
        contents: options.contents,
        differing_forms: Vec::new(),
        untested_forms: Vec::new(),
    };
    let trial = FormTrial::run(&metadata, &dictionaries, samples.richest.as_ref(), nodes)?;
    (metadata.differing_forms, metadata.untested_forms) = (trial.differing, trial.untested);
    // A stopped sync has an incomplete trial, which must not be recorded in the metadata.
    if nodes.is_stopped() {
        return Ok(None);
    }
    store.initialize(&metadata, &dictionaries)?;
    nodes.observer.on_event(&Event::Initialized {
        chain: metadata.chain.id.clone(),
        differing_forms: metadata.differing_forms.clone(),
        untested_forms: metadata.untested_forms.clone(),
    });
    Ok(Some(metadata))
}

/// Prepares an existing index for a further sync. Records the level of verification if it is lower
/// than before, and compares the response forms that earlier syncs could not compare.
///
/// # Errors
/// Fails if the nodes fail, or the index cannot be written.
pub(super) fn prepare(
    store: &mut dyn Store,
    mut metadata: Metadata,
    options: &Options,
    nodes: &NodePool<'_>,
) -> Result<Metadata, SyncError> {
    if let Some(lower_record) =
        verification::downgraded_record(&metadata.verification, options.verify, &metadata.chain)
    {
        store.set_verification(&lower_record)?;
        metadata.verification = lower_record;
    }
    if metadata.untested_forms.is_empty() {
        return Ok(metadata);
    }
    let samples = Samples::fetch(options, nodes)?;
    let dictionaries = store.dictionaries()?;
    let trial = FormTrial::run(&metadata, &dictionaries, samples.richest.as_ref(), nodes)?;
    let (differing, untested) = combine_trials(&metadata, &trial);
    // The trial is recorded only if it compared a form that no earlier trial could compare.
    if !nodes.is_stopped() && untested.len() < metadata.untested_forms.len() {
        store.set_response_forms(&differing, &untested)?;
        (metadata.differing_forms, metadata.untested_forms) = (differing, untested);
    }
    Ok(metadata)
}

/// Returns the forms that differed in any trial, and the forms that no trial could compare.
fn combine_trials(metadata: &Metadata, trial: &FormTrial) -> (Vec<String>, Vec<String>) {
    let earlier = &metadata.differing_forms;
    let new = trial.differing.iter().filter(|form| !earlier.contains(form));
    let differing = earlier.iter().chain(new).cloned().collect();
    let still_untested = |form: &&String| trial.untested.contains(form);
    let untested = metadata.untested_forms.iter().filter(still_untested).cloned().collect();
    (differing, untested)
}
