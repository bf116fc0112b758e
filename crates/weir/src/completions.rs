//! `weir completions`: prints a script that completes commands and options in a shell.

use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;

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
    /// Prints the script for `program`, the whole command line of weir.
    pub(crate) fn run(self, program: &mut Command) -> ExitCode {
        // clap_complete panics if standard output is closed, so the script is first written to
        // memory.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, program, "weir", &mut script);
        print!("{}", String::from_utf8_lossy(&script));
        ExitCode::SUCCESS
    }
}
