//! The folder of a result: which files, and that each is there whole or not at all.
//!
//! What stands in them is made by the neighbours.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::json::json;
use super::{ReportFault, hlog, html, markdown, table};
use crate::record::Totals;
use crate::results::run::RunResult;

/// See [`super::write_folder`].
pub(super) fn write(
    dir: &Path,
    result: &RunResult,
    totals: &Totals,
    methods: &[Box<str>],
) -> Result<Vec<PathBuf>, ReportFault> {
    make(dir)?;
    let mut written = Vec::new();
    let mut put = |name: &str, bytes: &[u8]| -> Result<(), ReportFault> {
        written.push(put_file(dir, name, bytes)?);
        Ok(())
    };
    // The result comes first: if the disk fills up, it is what must be kept.
    put("result.json", &json("result.json", result)?)?;
    put("latency.hlog", &hlog::log(result, totals, methods)?)?;
    put("series.csv", &table::series(result)?)?;
    put("methods.csv", &table::methods(result)?)?;
    put("report.html", html::page(result, totals, methods).as_bytes())?;
    put("report.md", markdown::markdown(result).as_bytes())?;
    Ok(written)
}

/// Makes the folder and those above it if need be.
pub(super) fn make(dir: &Path) -> Result<(), ReportFault> {
    fs::create_dir_all(dir)
        .map_err(|source| ReportFault::Folder { path: dir.to_path_buf(), source })
}

/// Writes one file by way of a temporary one in the same folder, so that the move is atomic.
pub(super) fn put_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, ReportFault> {
    let path = dir.join(name);
    let part = dir.join(format!(".{name}.part"));
    let outcome = fill(&part, bytes).and_then(|()| fs::rename(&part, &path));
    outcome.map(|()| path.clone()).map_err(|source| {
        // What is left of the attempt would only take up space; the first fault is the one to tell.
        let _ = fs::remove_file(&part);
        fault(path, bytes.len(), source)
    })
}

fn fill(part: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(part)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn fault(path: PathBuf, bytes: usize, source: io::Error) -> ReportFault {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ReportFault::Full { path, bytes }
        }
        _ => ReportFault::Write { path, bytes, source },
    }
}
