//! Finds the outside programs that some tests need (geth, nginx, haproxy, wrk, openssl,
//! redis-server, postgres, chromium, prometheus, actionlint, helm, kube-apiserver, etcd, otelcol,
//! lintian, rpmlint, runc, umoci).
//!
//! `cargo xtask check` installs these programs; this module only finds them. A missing program
//! skips the test. The skip is recorded in the file that `WEIR_SKIP_LOG` names, so that the check
//! can count skips. With `WEIR_REQUIRE_PROGRAMS=1`, which the check sets in CI, a missing program
//! fails the test instead, unless it is in [`FULL_CHECK_ONLY`]. With `WEIR_REQUIRE_PROGRAMS=all`,
//! which `cargo xtask check --full` sets, every missing program fails the test.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use crate::wait::wait_until;

/// Programs, and a folder of one, that only `cargo xtask check --full` builds, because each takes
/// minutes to build.
pub const FULL_CHECK_ONLY: [&str; 3] = ["kube-apiserver", "otelcol", "grafana"];

/// Finds `program` in the folder of `cargo xtask check`, in `PATH`, or else in the folders where
/// `go install`, `cargo install` and Debian install programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let home = env::var_os("HOME").map(PathBuf::from);
    let from_path = env::var_os("PATH");
    // The check installs the versions of programs whose output the tests expect.
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin")];
    folders.extend(from_path.iter().flat_map(env::split_paths));
    folders.extend(env::var_os("GOBIN").map(PathBuf::from));
    folders.extend(env::var_os("GOPATH").map(|path| PathBuf::from(path).join("bin")));
    folders.extend(home.iter().flat_map(|home| [home.join("go/bin"), home.join(".cargo/bin")]));
    // Debian installs servers in this folder, which the `PATH` of a normal user lacks.
    folders.push(PathBuf::from("/usr/sbin"));
    // Debian installs each version of PostgreSQL in its own folder.
    let version_folders = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut postgres_folders: Vec<PathBuf> =
        version_folders.map(|version| version.path().join("bin")).collect();
    postgres_folders.sort_unstable();
    folders.extend(postgres_folders.into_iter().rev());
    folders.into_iter().map(|folder| folder.join(program)).find(|path| is_executable(path))
}

/// Finds `program` like [`find`]. If it is missing, records a skip and returns `None`. Then the
/// test must return at once.
///
/// # Panics
/// Panics if the program is missing and `WEIR_REQUIRE_PROGRAMS` requires it.
pub fn require(program: &str) -> Option<PathBuf> {
    let path = find(program);
    if path.is_none() {
        skip_missing(program);
    }
    path
}

/// Records a skip because a dependency, such as a program, is missing. The test must return
/// afterwards.
///
/// # Panics
/// Panics if `WEIR_REQUIRE_PROGRAMS` requires the dependency.
pub fn skip_missing(dependency: &str) {
    let required = env::var("WEIR_REQUIRE_PROGRAMS").unwrap_or_default();
    let is_left_to_full = FULL_CHECK_ONLY.iter().any(|name| dependency.ends_with(name));
    let is_required = required == "all" || (required == "1" && !is_left_to_full);
    assert!(
        !is_required,
        "{dependency} is missing and WEIR_REQUIRE_PROGRAMS={required}: run cargo xtask check"
    );
    let full = if is_left_to_full { ", left to cargo xtask check --full" } else { "" };
    skip(&format!("needs {dependency}{full}"));
}

/// Returns true if a folder that `cargo xtask check` fills exists. Otherwise records a skip.
///
/// # Panics
/// Panics if the folder is missing and `WEIR_REQUIRE_PROGRAMS` requires it.
pub fn require_folder(folder: &Path) -> bool {
    let exists = folder.is_dir();
    if !exists {
        skip_missing(&folder.display().to_string());
    }
    exists
}

/// Waits until a program that was started with port 0 logs its address after `prefix`, and returns
/// the address.
///
/// # Panics
/// Panics if the program ends before it logs its address.
pub fn wait_for_address(program: &mut Child, log: &Path, prefix: &str) -> String {
    let mut address = String::new();
    wait_until(&format!("a log with {prefix}"), || {
        let text = std::fs::read_to_string(log).expect("the program's log is text");
        let status = program.try_wait().expect("the program is our child");
        assert!(status.is_none(), "the program ended with {status:?}: {text}");
        let after_prefix = text.split_once(prefix).map(|(_, after_prefix)| after_prefix);
        let logged = after_prefix.and_then(|text| text.split_once([' ', '\n']));
        logged.is_some_and(|(logged_address, _)| {
            logged_address.clone_into(&mut address);
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
