//! `weir completions`: prints a script that completes commands and options in a shell.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Arguments;

/// Print a script that completes commands and options in a shell
///
/// Packages install these scripts. Otherwise write the script to the folder from which the shell
/// loads completions.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir completions bash > ~/.local/share/bash-completion/completions/weir
  weir completions fish > ~/.config/fish/completions/weir.fish
  weir completions zsh > ~/.zfunc/_weir

Exit codes: 0 printed; 2 the shell is not known.")]
pub(crate) struct Completions {
    /// Shell to print the script for
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // clap_complete panics if standard output is closed, so the script is first written to
        // memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Arguments::command(), "weir", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        Ok(ExitCode::SUCCESS)
    }
}
