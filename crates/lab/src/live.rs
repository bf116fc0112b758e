//! What is seen of a run while it goes on: a full screen on a terminal, lines of progress elsewhere.
//!
//! Both are given a [`Progress`](crate::run::Progress) at the end of each second and decide nothing; a screen can only ask
//! for an early end. What other programs see of a run, Prometheus above all, is in `export`; what a
//! run leaves behind is in `report`.

/// The screen as a pure function of a state.
mod draw;
/// Lines of progress where there is no terminal.
pub mod plain;
/// A run as tests of this folder and of `export` see it.
#[cfg(test)]
pub(crate) mod scene;
/// The terminal: taken, drawn on, given back.
pub mod screen;
/// What the screen shows, brought up to date each second.
mod state;
