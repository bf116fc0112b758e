//! The repository own tool.
fn main() {}
