//! Tests for bugs that users reported, one for each bug. Each is written before the fix.
//!
//! The name of a test has the number of the issue and describes the bug, such as
//! `r123_a_reload_loses_limits`. The test asserts the correct behaviour with the least setup.

mod unknown_errors;
