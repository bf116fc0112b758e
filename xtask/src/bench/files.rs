//! Lists the gateway's source files that execute during a cached call and during a miss, with the
//! instructions that Valgrind counts in each file. Inlined code counts for the file that contains
//! its source.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};

use super::instructions::{self, CallKind};
use crate::shell;

/// Number of measured calls.
const CALLS: u64 = 500;
/// A file counts as a step of a call's path if it has at least this share of the gateway's
/// instructions. Files with a smaller share only read a clock, a counter or a label.
const STEP_SHARE: f64 = 0.01;

/// Prints the files of both kinds of calls, hits and misses. `binary` is a `weir` with debug
/// information; `None` makes and uses the debug build.
///
/// # Errors
/// Fails if Valgrind is missing, or if a call is not the expected hit or miss.
pub(crate) fn run(binary: Option<&Path>) -> Result<()> {
    let built = shell::root().join("target/debug/weir");
    if binary.is_none() {
        shell::run_cargo(&["build", "--package", "weir"])?;
    }
    let binary = binary.unwrap_or(&built);
    for kind in [CallKind::Hit, CallKind::Miss] {
        let files = count_by_file(binary, kind)?;
        let total: f64 = files.values().sum();
        let mut files: Vec<_> = files.into_iter().filter(|(_, count)| *count >= 1.0).collect();
        files.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let steps = files.iter().filter(|(_, count)| *count >= total * STEP_SHARE).count();
        println!(
            "{}: {steps} files of the gateway with at least 1 % of its {total:.0} instructions, {} with \
             any",
            kind.as_str(),
            files.len()
        );
        for (file, count) in files {
            println!("  {count:>7.0}  {file}");
        }
    }
    Ok(())
}

/// Returns the number of instructions per call, by file of the crate `gateway`.
fn count_by_file(binary: &Path, kind: CallKind) -> Result<BTreeMap<String, f64>> {
    let files = sum_by_file(&instructions::profile_calls(binary, kind, CALLS, "")?);
    ensure!(!files.is_empty(), "{} has no debug information", binary.display());
    Ok(files.into_iter().map(|(file, sum)| (file, sum as f64 / CALLS as f64)).collect())
}

/// Sums the instructions of a dump by file of the crate `gateway`. The instructions of called
/// functions count only for their own files. The Valgrind manual describes the format of a dump
/// ("Callgrind Format Specification").
fn sum_by_file(dump: &str) -> BTreeMap<String, u64> {
    let mut files = BTreeMap::new();
    let mut file = None;
    let mut is_cost_of_callee = false;
    // `fl=`, `fi=` and `fe=` name the file of the next cost lines. A cost line has a line number
    // and a number of instructions.
    for line in dump.lines() {
        let names_file = ["fl=", "fi=", "fe="].iter().find_map(|key| line.strip_prefix(key));
        if let Some(path) = names_file {
            file = path.split_once("crates/gateway/src/").map(|(_, file)| file.to_owned());
        } else if line.starts_with("calls=") {
            // The next line is the inclusive cost of the callee.
            is_cost_of_callee = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let count = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
            if let (Some(file), Some(count), false) = (&file, count, is_cost_of_callee) {
                *files.entry(file.clone()).or_default() += count;
            }
            is_cost_of_callee = false;
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::sum_by_file;

    #[test]
    fn own_instructions_are_summed_by_file_and_those_of_callees_are_not() {
        let dump = "fl=/w/crates/gateway/src/path.rs\nfn=serve\n10 3\nfi=/w/crates/wire/src/key.rs\n\
                    7 100\nfe=/w/crates/gateway/src/path.rs\n11 4\ncfn=fill\ncalls=2 20\n12 900\n13 1\n";
        assert_eq!(sum_by_file(dump), [("path.rs".to_owned(), 8)].into());
    }
}
