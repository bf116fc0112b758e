//! Fuzzes the parser of HTTP/1.1 requests: of their header sections and bodies. `Cargo.toml`
//! documents how to run it.
//!
//! The invariants are in `crates/gateway/src/downstream/fuzz.rs`. This target compiles the
//! gateway's files separately, with stubs for types that they only pass through.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // Only the gateway uses some items.

#[path = "../../crates/gateway/src/io/chunked.rs"]
mod chunked;
#[path = "../../crates/gateway/src/downstream/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/downstream/head.rs"]
mod head;
#[path = "../../crates/gateway/src/policy/trace_context.rs"]
mod trace_context;

/// Stubs of the gateway's types for optional header fields. They store no fields.
mod access {
    pub(crate) mod caller {
        use smallvec::SmallVec;

        pub(crate) type HeaderValues = SmallVec<[Option<SmallVec<[u8; 24]>>; 1]>;

        #[derive(Default)]
        pub(crate) struct HeadFields {
            pub(crate) hash_header: Option<String>,
            pub(crate) limit_headers: Vec<http::HeaderName>,
            pub(crate) access_fields: Option<()>,
        }

        #[derive(Debug, PartialEq, Eq)]
        pub(crate) struct AccessValues;

        impl AccessValues {
            pub(crate) fn new((): &()) -> AccessValues {
                AccessValues
            }

            pub(crate) fn add_header(&mut self, _: &str, _: &[u8], (): &()) {}

            pub(crate) fn set_target(&mut self, _: &str, _: &str, (): &()) {}
        }
    }
}

mod forwarded_header {
    use std::net::IpAddr;

    #[derive(Clone, Copy)]
    pub(crate) struct ForwardedHeader<'a> {
        pub(crate) name: &'a str,
    }

    impl ForwardedHeader<'_> {
        pub(crate) fn find_client<'v>(
            &self,
            _: impl DoubleEndedIterator<Item = &'v [u8]>,
        ) -> Option<IpAddr> {
            None
        }
    }
}

/// The parsers, at the paths that the gateway's files import them from.
mod io {
    pub(crate) use crate::chunked;
}
mod policy {
    pub(crate) use crate::trace_context;
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http1(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 160_000, run_input: fuzz::http1, seeds: fuzz::seeds, mutate: fuzz::mutate });
}
