//! JSON as bytes: validation and access without a tree and without copies.
//!
//! Text from outside is validated first, by `scanner.rs` if it is in memory as a whole, by
//! `envelope.rs` if it arrives in chunks. Validated text is read with `walk.rs` and `cursor.rs`.

mod simd;

pub mod string;

mod fast_scanner;

pub mod walk;

pub mod splitter;

mod scanner;

pub mod cursor;

pub mod envelope;

pub use self::scanner::{DEPTH_CEILING, Scanner, SyntaxError, SyntaxErrorKind, validate};
