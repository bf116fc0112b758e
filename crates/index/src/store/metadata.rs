//! Converts the properties of an index to rows of the table `facts` and back. Each row has a name
//! and a value.

use std::collections::BTreeMap;

use alloy_primitives::{Keccak256, hex};

use super::error::StoreError;
use crate::compression::{Dictionary, FragmentKind};
use crate::contents::{Chain, Metadata, StoredRange};

// The names of rows that may change after the index is initialized.
pub(super) const VERIFICATION: &str = "verification";
pub(super) const DIFFERING_FORMS: &str = "differing_forms";
pub(super) const UNTESTED_FORMS: &str = "untested_forms";

/// The name of the row with the digest of the dictionaries.
pub(super) const DICTIONARIES: &str = "dictionaries";

/// Returns the digest of all dictionaries: the Keccak-256 of the kind, the length and the bytes of
/// each dictionary.
pub(super) fn digest_dictionaries(dictionaries: &[Dictionary]) -> String {
    let mut hasher = Keccak256::new();
    for dictionary in dictionaries {
        hasher.update([dictionary.kind as u8]);
        hasher.update((dictionary.bytes.len() as u64).to_be_bytes());
        hasher.update(&dictionary.bytes);
    }
    hex::encode(hasher.finalize())
}

/// Reads the properties from their rows. Returns `None` if the index is not initialized.
pub(super) fn from_rows(rows: &BTreeMap<String, String>) -> Result<Option<Metadata>, StoreError> {
    let Some(family) = rows.get("family") else { return Ok(None) };
    let damaged_error =
        |name: &str| StoreError::Damaged(format!("the fact `{name}` is missing or invalid"));
    let required = |name: &str| rows.get(name).cloned().ok_or_else(|| damaged_error(name));
    let mut genesis_hash = [0; 32];
    hex::decode_to_slice(required("genesis")?, &mut genesis_hash)
        .map_err(|_| damaged_error("genesis"))?;
    let list = |name: &str| {
        let forms = rows.get(name).map(String::as_str).unwrap_or_default();
        forms.split_whitespace().map(str::to_owned).collect()
    };
    Ok(Some(Metadata {
        chain: Chain { family: family.clone(), id: required("chain")?, genesis_hash },
        contents: required("contents")?.parse().map_err(|_| damaged_error("contents"))?,
        verification: required(VERIFICATION)?,
        differing_forms: list(DIFFERING_FORMS),
        untested_forms: list(UNTESTED_FORMS),
    }))
}

/// Returns the rows that hold the properties.
pub(super) fn to_rows(metadata: &Metadata) -> [(&'static str, String); 7] {
    [
        ("family", metadata.chain.family.clone()),
        ("chain", metadata.chain.id.clone()),
        ("genesis", hex::encode(metadata.chain.genesis_hash)),
        ("contents", metadata.contents.to_string()),
        (VERIFICATION, metadata.verification.clone()),
        (DIFFERING_FORMS, metadata.differing_forms.join(" ")),
        (UNTESTED_FORMS, metadata.untested_forms.join(" ")),
    ]
}

/// Reads a row of the table `dictionaries`.
pub(super) fn parse_dictionary(kind: i64, bytes: Vec<u8>) -> Result<Dictionary, StoreError> {
    let kind = FragmentKind::ALL.into_iter().find(|variant| *variant as i64 == kind);
    let kind =
        kind.ok_or_else(|| StoreError::Damaged("a dictionary of an unknown kind".to_owned()))?;
    Ok(Dictionary { kind, bytes })
}

/// Returns the range of stored blocks from the values of its columns. `finalized` is `None` if no
/// finalized block was recorded; it counts as block 0.
pub(super) fn parse_stored_range(
    first: i64,
    last: i64,
    last_hash: [u8; 32],
    finalized: Option<i64>,
) -> StoredRange {
    let last = last as u64;
    let finalized = (finalized.unwrap_or(0) as u64).min(last);
    StoredRange { first: first as u64, last, last_hash, finalized }
}
