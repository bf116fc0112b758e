//! The quota file: the usage of each API key in one month, in units. A call costs one unit or more.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::policy::quota::Month;

/// Maximum bytes of the file: enough for some hundred thousand keys.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The usage of all keys in one month.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QuotaUsage {
    pub(crate) month: Month,
    /// Used units by the name of the API key.
    pub(crate) keys: BTreeMap<Arc<str>, u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QuotaFile {
    month: String,
    units: BTreeMap<String, u64>,
}

/// Reads a quota file. If the file does not exist, returns a usage without keys.
///
/// # Errors
///
/// A description of the error if the file cannot be read, or does not have the format of
/// [`write()`].
pub(crate) fn read(path: &Path) -> Result<QuotaUsage, String> {
    let text = match settings::read_text_file(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(QuotaUsage::default()),
        Err(error) => return Err(error.to_string()),
    };
    let contents: QuotaFile = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let month = Month::parse(&contents.month).ok_or("the month is none such as 2026-11")?;
    let keys = contents.units.into_iter().map(|(name, units)| (name.into(), units)).collect();
    Ok(QuotaUsage { month, keys })
}

/// Replaces a quota file atomically, so a reader finds either the old or the new content.
///
/// # Errors
///
/// The error of the operating system.
pub(crate) fn write(path: &Path, usage: &QuotaUsage) -> io::Result<()> {
    let units = usage.keys.iter().map(|(name, units)| (name.to_string(), *units)).collect();
    let contents = QuotaFile { month: usage.month.to_string(), units };
    let text = serde_json::to_string_pretty(&contents)?;
    // The name contains the process id, because two processes write the file during a hand-over.
    let mut temporary_name = path.file_name().unwrap_or_default().to_owned();
    temporary_name.push(format!(".{}.new", std::process::id()));
    let temporary_path = path.with_file_name(temporary_name);
    let mut file = std::fs::File::create(&temporary_path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary_path, path)
}
