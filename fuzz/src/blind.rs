//! Fuzzing without coverage: random edits of the seeds for a while, or given files once.
//!
//! Understands libFuzzer's `-max_total_time=SECONDS` and `-seed=NUMBER`, so that both kinds of run
//! are started alike. `-write_seeds=FOLDER` writes the seeds out for a guided run instead.

use std::time::{Duration, Instant};

/// What a decoder offers to fuzzers.
pub struct Target {
    /// Tries one input; panics if a promise is broken.
    pub try_one: fn(&[u8]),
    /// Inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Tries edits of the seeds, from a seed number, for as long as it is told to.
    pub mutate: fn(u64, &mut dyn FnMut(u64) -> bool) -> u64,
}

/// Does what the arguments say: try files, write seeds, or mutate seeds for a while.
pub fn run(target: &Target) {
    let mut seconds = 1;
    let mut seed = std::process::id().into();
    let mut files = Vec::new();
    for argument in std::env::args().skip(1) {
        if let Some(text) = argument.strip_prefix("-max_total_time=") {
            seconds = text.parse().expect("-max_total_time is a whole number of seconds");
        } else if let Some(text) = argument.strip_prefix("-seed=") {
            seed = text.parse().expect("-seed is a whole number");
        } else if let Some(folder) = argument.strip_prefix("-write_seeds=") {
            for (number, seed) in (target.seeds)().iter().enumerate() {
                let file = std::path::Path::new(folder).join(format!("seed-{number}"));
                std::fs::write(file, seed).expect("-write_seeds names a folder to write in");
            }
            return;
        } else {
            files.push(argument);
        }
    }
    for file in &files {
        (target.try_one)(&std::fs::read(file).expect("arguments are files to try"));
    }
    if !files.is_empty() {
        println!("tried {} files, nothing found", files.len());
        return;
    }
    println!("blind run, again with -seed={seed}");
    let start = Instant::now();
    let limit = Duration::from_secs(seconds);
    let tried = (target.mutate)(seed, &mut |_| start.elapsed() < limit);
    println!("tried {tried} inputs in {seconds} s, nothing found");
}
