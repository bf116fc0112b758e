//! Progress of a running load test: a full screen on a terminal, lines of text elsewhere.
//!
//! Both get a [`Progress`](crate::run::Progress) at the end of each second, and neither affects the
//! run. The only exception is that a key of the screen stops the run. `export` sends progress to
//! other programs, such as Prometheus, and `report` writes the results.

/// Draws the screen as a pure function of its state.
mod draw;
/// Switches the terminal to a full screen.
pub mod full_screen;
/// Prints lines of text for output that is not a terminal.
pub mod plain;
/// The state of a run, for tests of this folder and of `export`.
#[cfg(test)]
pub(crate) mod scene;
/// The terminal in full-screen mode.
pub mod screen;
/// The data that the screen shows.
mod state;
