//! One test per bug that a user met. Each test was written before the fix.
//!
//! A test's name holds the number of the issue and the wrong behaviour:
//! `r123_a_reload_loses_limits`. The test asserts the right behaviour in few steps.
