//! Compares the CPU cost of two builds. `bench before` saves the present build. `bench after`
//! measures the saved and the new build in alternating rounds. The verdict on the new build is
//! "cheaper", "dearer" or "cannot tell".

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::row::median;
use super::{Bench, cost};

/// Saves the present release build for a later [`compare_builds`].
///
/// # Errors
/// Fails if the build cannot be copied.
pub(crate) fn save_build(bench: &Bench) -> Result<()> {
    let saved = saved_build_path(&bench.folder);
    fs::copy(&bench.weir, &saved).with_context(|| format!("cannot write {}", saved.display()))?;
    println!("saved {}; change something and run: cargo xtask bench after", saved.display());
    Ok(())
}

/// Measures the saved build and the present one in alternation and prints a verdict per case.
///
/// # Errors
/// Fails if no build was saved or a round is invalid.
pub(crate) fn compare_builds(bench: &Bench) -> Result<()> {
    let saved = saved_build_path(&bench.folder);
    ensure!(saved.is_file(), "{} is missing: run cargo xtask bench before", saved.display());
    let old = Bench { weir: saved, ..bench.clone() };
    for builds in cost::measure_builds(bench, &old)? {
        println!("{}: {}", builds.case, Comparison::new(&builds.before, &builds.after));
    }
    Ok(())
}

fn saved_build_path(folder: &Path) -> PathBuf {
    folder.join("weir.before")
}

/// The costs of two builds, compared within each repetition.
struct Comparison {
    /// Median cost of the saved build, in CPU microseconds per request.
    before: f64,
    /// Median cost of the new build.
    after: f64,
    /// Smallest and largest `after / before` of any repetition.
    spread: (f64, f64),
    /// Number of repetitions, each with a cost of both builds.
    pairs: usize,
}

/// Smallest number of pairs for a verdict. If all ratios of 6 pairs are on one side of 1, the
/// difference is significant at 5 % (sign test: 2 × 0.5^5 = 0.06, 2 × 0.5^6 = 0.03).
const PAIRS_MIN: usize = 6;

impl Comparison {
    fn new(before: &[f64], after: &[f64]) -> Self {
        let ratios: Vec<f64> = before.iter().zip(after).map(|(old, new)| new / old).collect();
        let lowest = ratios.iter().copied().fold(f64::NAN, f64::min);
        let highest = ratios.iter().copied().fold(f64::NAN, f64::max);
        let spread = (lowest, highest);
        Self { before: median(before), after: median(after), spread, pairs: ratios.len() }
    }

    fn verdict(&self) -> &'static str {
        match self.spread {
            _ if self.pairs < PAIRS_MIN => "cannot tell: fewer than 6 repetitions",
            (_, highest) if highest < 1.0 => "cheaper",
            (lowest, _) if lowest > 1.0 => "dearer",
            _ => "cannot tell",
        }
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} us before, {:.2} us after, ratio {:.3}-{:.3} over {} pairs: {}",
            self.before,
            self.after,
            self.spread.0,
            self.spread.1,
            self.pairs,
            self.verdict()
        )
    }
}

#[cfg(test)]
mod tests;
