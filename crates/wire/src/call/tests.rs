//! Goal and method: see the cases below.
