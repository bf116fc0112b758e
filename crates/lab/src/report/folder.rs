//! Writes the files of a result into a folder. Each file is written completely or not at all.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::ReportFault;

/// A file's name, and the function that returns its bytes.
pub(crate) type File<'a> = (&'a str, &'a dyn Fn() -> Result<Vec<u8>, ReportFault>);

/// Writes files into a folder. Creates the folder if it is missing. See [`super::write_folder`].
pub(super) fn write(dir: &Path, files: &[File<'_>]) -> Result<Vec<PathBuf>, ReportFault> {
    let fault = |source| ReportFault::Folder { path: dir.to_path_buf(), source };
    fs::create_dir_all(dir).map_err(fault)?;
    debug_assert!(files.iter().all(|(name, _)| super::RESULT_FILES.contains(name)));
    files.iter().map(|(name, make_bytes)| write_file(dir, name, &make_bytes()?)).collect()
}

/// Writes a temporary file in the same folder and then renames it. The rename is atomic.
fn write_file(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, ReportFault> {
    let path = dir.join(name);
    let temporary = dir.join(format!(".{name}.part"));
    let outcome = write_and_sync(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
    outcome.map(|()| path.clone()).map_err(|source| {
        // The caller gets the first error. If the removal fails too, the file only takes up space.
        let _ = fs::remove_file(&temporary);
        write_fault(path, bytes.len(), source)
    })
}

/// Writes a file, and waits until its bytes are on the disk.
fn write_and_sync(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns the fault of a file that could not be written.
fn write_fault(path: PathBuf, bytes: usize, source: io::Error) -> ReportFault {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ReportFault::Full { path, bytes }
        }
        _ => ReportFault::Write { path, bytes, source },
    }
}
