//! Validates and reads JSON as bytes, without a tree and without copies.
//!
//! Text from outside is validated first. `scanner.rs` validates a text that is completely in
//! memory, and `envelope.rs` a text that arrives in chunks. Validated text is read with `walk.rs`
//! and `cursor.rs`.

pub mod cursor;
pub mod envelope;
mod fast_scanner;
mod scanner;
mod simd;
pub mod splitter;
pub mod string;
mod syntax_error;
pub mod walk;

pub use self::scanner::{DEPTH_CEILING, Scanner, validate};
pub use self::syntax_error::{SyntaxError, SyntaxErrorKind};
