//! Colours of terminal output.

use std::fmt::Display;

use crate::terminal::no_color;

/// Colours text, or leaves it plain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    coloured: bool,
}

impl Paint {
    /// Colours text if the output is a terminal and [`no_color`] is false.
    pub(super) fn for_terminal(is_terminal: bool) -> Paint {
        Paint { coloured: is_terminal && !no_color() }
    }

    /// Colours text unconditionally.
    pub(super) fn coloured() -> Paint {
        Paint { coloured: true }
    }

    /// Never colours text.
    #[cfg(test)]
    pub(super) fn plain() -> Paint {
        Paint { coloured: false }
    }

    pub(super) fn bold(self, text: impl Display) -> String {
        self.wrap("1", text)
    }

    pub(super) fn dim(self, text: impl Display) -> String {
        self.wrap("2", text)
    }

    pub(super) fn good(self, text: impl Display) -> String {
        self.wrap("32", text)
    }

    pub(super) fn doubtful(self, text: impl Display) -> String {
        self.wrap("33", text)
    }

    pub(super) fn bad(self, text: impl Display) -> String {
        self.wrap("31", text)
    }

    /// Wraps text in a Select Graphic Rendition sequence (ECMA-48).
    fn wrap(self, code: &str, text: impl Display) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}
