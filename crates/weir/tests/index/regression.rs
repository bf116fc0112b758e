//! Bugs that users met once, a test for each, written before its fix.
//!
//! A test is named by the number of its issue and what went wrong: `r123_a_reload_loses_limits`. It
//! asserts what is right, by the shortest way to it.
