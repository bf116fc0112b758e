//! `weir diff`: prints the changes that a new configuration would make.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use gateway::config::Config;

use crate::exit_code::EXIT_FAULTY;

/// Exit code for two configurations that differ.
const EXIT_DIFFERENT: u8 = 1;

/// Show what a new configuration would change
///
/// Compares two files key by key. Order and comments do not matter, and a key set to its default
/// equals an absent key. A changed secret is listed but not printed. Keys that a reload cannot
/// change, such as addresses, are marked.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir diff gateway.toml new.toml
  git show HEAD:gateway.toml > old.toml; weir diff old.toml gateway.toml

Output:
  ~ key = old -> new
  + key = value    of a new upstream, chain or group, or of a key without a default
  - key = value    of a removed one

Exit codes: 0 no difference; 1 the files differ; 2 a file is faulty or not readable.")]
pub(crate) struct Diff {
    /// Current configuration
    #[arg(value_name = "OLD.TOML")]
    old: PathBuf,

    /// New configuration
    #[arg(value_name = "NEW.TOML")]
    new: PathBuf,
}

impl Diff {
    pub(crate) fn run(self) -> ExitCode {
        let configs = [&self.old, &self.new].map(|file| Config::from_file(file));
        for faults in configs.iter().filter_map(|config| config.as_ref().err()) {
            eprint!("{faults}");
        }
        let [Ok(old), Ok(new)] = configs else { return ExitCode::from(EXIT_FAULTY) };
        let changes = old.changes_to(&new);
        if changes.is_empty() {
            println!("no difference");
        }
        changes.iter().for_each(|change| println!("{change}"));
        if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DIFFERENT) }
    }
}
