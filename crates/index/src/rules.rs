//! Decisions, without clocks, sockets or files.

pub mod ancestor;
pub mod pace;
pub mod range;
pub mod rest;
