//! Terminal output that the lab's commands share: colours, and progress on standard error.

use std::fmt::Display;
use std::io::{self, IsTerminal as _};

use indicatif::{ProgressBar, ProgressStyle};
use lab::report::Colour;

/// Returns true if the environment variable `NO_COLOR` (no-color.org) turns colours off.
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Returns the colours of standard output. Only a terminal gets colours.
pub(crate) fn stdout_colour() -> Colour {
    if io::stdout().is_terminal() && !no_color() { Colour::Ansi } else { Colour::Plain }
}

/// Progress of a long command: a line for each finished part, and a spinner for the current part.
pub(crate) struct ProgressOutput {
    bar: ProgressBar,
    quiet: bool,
}

impl ProgressOutput {
    pub(crate) fn new(quiet: bool) -> ProgressOutput {
        // indicatif hides the bar if standard error is not a terminal.
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("it is a template"));
        ProgressOutput { bar, quiet }
    }

    /// Prints a line above the spinner.
    pub(crate) fn print_line(&self, text: impl Display) {
        if !self.quiet {
            self.bar.suspend(|| eprintln!("{text}"));
        }
    }

    /// Sets the text of the spinner.
    pub(crate) fn set_message(&self, text: String) {
        self.bar.set_message(text);
        self.bar.tick();
    }

    /// Removes the spinner.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
