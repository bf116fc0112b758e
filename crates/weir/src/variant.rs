//! Arguments that name the variants of a comparison, and the random numbers of its statistics.

use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Splits `NAME=VALUE`. Returns `None` and the whole text if there is no name. An equals sign after
/// a slash is part of a path or URL.
pub(crate) fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !name.contains('/') => (Some(name), value),
        _ => (None, text),
    }
}

/// Default name of a variant: the file name without its extension.
pub(crate) fn variant_name(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "variant".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Parses a list of results with an optional name.
///
/// # Errors
/// Fails if the list is empty.
pub(crate) fn parse_variant(text: &str) -> Result<(Option<String>, Vec<PathBuf>), String> {
    let (name, list) = split_name(text);
    let paths = list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from);
    let paths: Vec<PathBuf> = paths.collect();
    match paths.is_empty() {
        true => Err("not of the form [NAME=]RESULT[,RESULT…]".to_owned()),
        false => Ok((name.map(str::to_owned), paths)),
    }
}

/// Returns the random number generator of the statistical resampling. Its seed is constant, so that
/// the same files give the same verdicts.
pub(crate) fn resampling_source() -> impl FnMut() -> u64 {
    let mut random = StdRng::seed_from_u64(1);
    move || random.random()
}
