//! What a comparison ends with: `weir compare A B`, as text, Markdown and JSON.
//!
//! Arms are results of our own or of other tools (`import.rs`). Whether they may be compared is
//! decided in `analysis/sameness.rs`, what a difference means in `analysis/compare.rs`. Nothing here
//! measures.

mod find;
mod judge;

pub use find::{arm_of, arms_at};
pub use judge::{Options, compare};

#[cfg(test)]
pub(crate) mod tests;
