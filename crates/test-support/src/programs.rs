//! Finds the outside programs that some tests need (geth, nginx, haproxy, wrk, redis-server,
//! postgres, chromium, prometheus).
//!
//! It installs nothing; `cargo xtask check` does. A missing program skips the test, and the skip is
//! appended to the file named by `WEIR_SKIP_LOG`, so that the check can count it. With
//! `WEIR_REQUIRE_PROGRAMS=1` (set by CI) a missing program fails the test instead.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use crate::wait::wait_until;

/// Finds `program` in `PATH`, then where `go install` and `cargo install` put it.
pub fn find(program: &str) -> Option<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let from_path = env::var_os("PATH");
    let mut folders: Vec<PathBuf> = from_path.iter().flat_map(env::split_paths).collect();
    folders.extend(env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(env::var_os("GOPATH").map(|path| PathBuf::from(path).join("bin")));
    folders.extend(home.iter().flat_map(|home| [home.join("go/bin"), home.join(".cargo/bin")]));
    // Debian installs servers here, and the PATH of a normal user lacks it.
    folders.push(PathBuf::from("/usr/sbin"));
    // Debian installs each version of PostgreSQL in its own folder.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    versions.sort_unstable();
    folders.extend(versions.into_iter().rev());
    folders.into_iter().map(|folder| folder.join(program)).find(|path| is_executable(path))
}

/// As [`find`], but a missing program is a failure under `WEIR_REQUIRE_PROGRAMS=1` and a counted
/// skip otherwise: on `None` the test returns at once.
///
/// # Panics
/// If the program is missing and required.
pub fn require(program: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        missing(program);
    }
    found
}

/// As [`require`], for a missing dependency other than a program. The test must return after it.
///
/// # Panics
/// If it is required.
pub fn missing(what: &str) {
    let required = env::var("WEIR_REQUIRE_PROGRAMS").is_ok_and(|value| value == "1");
    assert!(!required, "{what} is missing and WEIR_REQUIRE_PROGRAMS=1: run cargo xtask check");
    skip(&format!("needs {what}"));
}

/// True if a folder that `cargo xtask check` fills exists; otherwise as [`require`].
///
/// # Panics
/// If the folder is missing and required.
pub fn require_folder(folder: &Path) -> bool {
    let found = folder.is_dir();
    if !found {
        missing(&folder.display().to_string());
    }
    found
}

/// Waits until a program that was started with port 0 logs its address after these words, and
/// returns the address.
///
/// # Panics
/// If the program ends before it.
pub fn listens_at(program: &mut Child, log: &Path, words: &str) -> String {
    let mut address = String::new();
    wait_until(&format!("a log with {words}"), || {
        let text = std::fs::read_to_string(log).expect("its log is text");
        let ended = program.try_wait().expect("it is our child");
        assert!(ended.is_none(), "it ended with {ended:?}: {text}");
        let found = text.split_once(words).and_then(|(_, rest)| rest.split_once([' ', '\n']));
        found.is_some_and(|(found, _)| {
            found.clone_into(&mut address);
            true
        })
    });
    address
}

/// Records that the running test is skipped, with the reason.
pub fn skip(reason: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    println!("SKIPPED: {name}: {reason}");
    let Some(log) = env::var_os("WEIR_SKIP_LOG") else { return };
    let mut file =
        OpenOptions::new().create(true).append(true).open(log).expect("the skip log opens");
    writeln!(file, "{name}: {reason}").expect("the skip log takes a line");
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
