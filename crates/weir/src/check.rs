//! `weir check`: says whether a configuration file is right, without starting anything.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::{FAULTY, source};

/// Say whether a configuration file is right
///
/// Prints every fault at once, each with its place, the value and what is allowed. What is allowed
/// but looks like a mistake is printed as a warning and does not fail. Secrets are never printed.
/// Nothing is started and no node is asked.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir check gateway.toml
  weir check gateway.toml && systemctl reload weir

Exit codes: 0 right, perhaps with warnings; 2 faulty or not readable.")]
pub(crate) struct Check {
    /// Configuration file (docs/config.md lists all keys)
    #[arg(value_name = "GATEWAY.TOML")]
    file: PathBuf,
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let config = match source::read_file(&self.file) {
            Ok(config) => config,
            Err(faults) => {
                eprint!("{faults}");
                eprintln!("\n{}", counted(faults.list.len(), "fault"));
                return Ok(ExitCode::from(FAULTY));
            }
        };
        let warnings = config.warnings.list.len();
        if warnings > 0 {
            eprintln!("{}", config.warnings);
        }
        let told = if warnings == 0 {
            String::new()
        } else {
            format!(", {}", counted(warnings, "warning"))
        };
        println!("ok: {}{told}", self.file.display());
        print!("{}", source::summary(&config));
        Ok(ExitCode::SUCCESS)
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
