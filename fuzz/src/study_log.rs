//! Tries the readers of studies (logs, tables, samples) on made-up files; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/lab/src/study/read/fuzz.rs`. The lab's own files are compiled here
//! by themselves: the rest of the lab would take minutes to build.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code, unused_imports)] // A part of it is for the lab only.

#[path = "../../crates/lab/src/study"]
mod study {
    mod fault;
    #[path = "read/fuzz.rs"]
    pub(crate) mod fuzz;
    pub(crate) mod read;

    pub(crate) use fault::StudyFault;
}

/// Where the files above look for what they use.
#[path = "../../crates/lab/src/analysis"]
mod analysis {
    pub(crate) mod calendar;

    #[path = "sync"]
    pub(crate) mod sync {
        mod sample;

        pub(crate) use sample::{Announced, Course, Sample, Timeout};
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
        try_one: fuzz::study_log,
        seeds: fuzz::seeds,
        mutate: fuzz::mutate,
    });
}
