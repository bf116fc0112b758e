//! Validates and reads JSON as bytes, without a tree and without copies.
//!
//! Text from outside is validated first. `scanner.rs` validates a text that is completely in
//! memory, and `envelope.rs` a text that arrives in chunks. Validated text is read with `walk.rs`
//! and `cursor.rs`.

mod simd;

pub mod string;

mod fast_scanner;

pub mod walk;

pub mod splitter;

mod scanner;

pub mod cursor;

pub mod envelope;

pub use self::scanner::{DEPTH_CEILING, Scanner, SyntaxError, SyntaxErrorKind, validate};
