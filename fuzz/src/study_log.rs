//! Fuzzes the parsers of study files (logs, tables, samples); `Cargo.toml` documents how to run it.
//!
//! The invariants are in `crates/lab/src/study/read/fuzz.rs`. This target compiles the lab's files
//! separately: the rest of the lab takes minutes to build.
#![cfg_attr(fuzzing, no_main)]
// Only the lab uses some items, and only there they are public.
#![allow(dead_code, unused_imports, unfulfilled_lint_expectations)]

#[path = "../../crates/lab/src/study"]
mod study {
    mod fault;
    #[path = "read/fuzz.rs"]
    pub(crate) mod fuzz;
    pub(crate) mod read;

    pub(crate) use fault::StudyFault;
}

/// The types that the files above import, at the paths that the lab imports them from.
#[path = "../../crates/lab/src/analysis"]
mod analysis {
    pub(crate) mod calendar;

    #[path = "sync"]
    pub(crate) mod sync {
        mod sample;

        pub(crate) use sample::{Announced, Sample, SyncRun, Timeout};
    }
}

#[path = "../../crates/lab/src/wording"]
mod wording {
    pub(crate) mod number;
}

use study::fuzz;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::study_log(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 3_000,
        run_input: fuzz::study_log,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
