//! Fuzzing without coverage feedback. A run tries random edits of the seeds, or each file on the
//! command line once.
//!
//! The program accepts libFuzzer's options `-max_total_time=SECONDS`, `-runs=INPUTS` and
//! `-seed=NUMBER`. Without a limit it tries a fixed number of inputs, about two seconds of work.
//! `-write_seeds=FOLDER` only writes the seeds, as the corpus of a run with libFuzzer.

use std::time::Instant;

/// The entry points of a fuzz target.
pub struct Target {
    /// Number of inputs of a run without limits.
    pub inputs: u64,
    /// Runs one input; panics if an invariant is violated.
    pub run_input: fn(&[u8]),
    /// Returns the inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Runs random edits of the seeds while the callback returns true, and returns the number of
    /// inputs. The first argument seeds the random numbers; the callback receives the number of
    /// inputs so far.
    pub mutate: fn(u64, &mut dyn FnMut(u64) -> bool) -> u64,
}

/// Parses the arguments, then runs files, writes seeds, or mutates seeds.
pub fn run(target: &Target) {
    let (mut seconds_max, mut inputs_max) = (None, None);
    let mut seed = std::process::id().into();
    let mut files = Vec::new();
    for argument in std::env::args().skip(1) {
        if let Some(text) = argument.strip_prefix("-max_total_time=") {
            let seconds = text.parse().expect("-max_total_time is a whole number of seconds");
            seconds_max = Some(seconds);
        } else if let Some(text) = argument.strip_prefix("-runs=") {
            inputs_max = Some(text.parse().expect("-runs is a whole number of inputs"));
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
        (target.run_input)(&std::fs::read(file).expect("arguments are files to try"));
    }
    if !files.is_empty() {
        println!("tried {} files, nothing found", files.len());
        return;
    }
    println!("blind run, again with -seed={seed}");
    let start = Instant::now();
    let inputs_max = inputs_max.or(seconds_max.is_none().then_some(target.inputs));
    let inputs = (target.mutate)(seed, &mut |inputs| {
        let has_time = seconds_max.is_none_or(|seconds| start.elapsed().as_secs() < seconds);
        has_time && inputs_max.is_none_or(|inputs_max| inputs < inputs_max)
    });
    println!("tried {inputs} inputs in {:.1} s, nothing found", start.elapsed().as_secs_f64());
}
