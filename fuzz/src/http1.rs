//! Tries the reader of HTTP/1.1 requests, heads and bodies, on made-up bytes; `Cargo.toml` tells
//! how.
//!
//! What must hold is in `crates/gateway/src/downstream/fuzz.rs`. The gateway's own files are
//! compiled here by themselves, with stand-ins for what they only hand on.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // A part of it is for the gateway only.

#[path = "../../crates/gateway/src/io/chunked.rs"]
mod chunked;
#[path = "../../crates/gateway/src/downstream/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/downstream/head.rs"]
mod head;

/// Where the files above look for what they hand on: nothing more of a head is wanted here.
mod access {
    pub(crate) mod caller {
        use smallvec::SmallVec;

        pub(crate) type KeptHeaders = SmallVec<[Option<SmallVec<[u8; 24]>>; 1]>;

        #[derive(Default)]
        pub(crate) struct Wanted {
            pub(crate) hash_header: Option<String>,
            pub(crate) limits: Vec<http::HeaderName>,
            pub(crate) extra: Option<()>,
        }

        #[derive(Debug, PartialEq, Eq)]
        pub(crate) struct Extra;

        impl Extra {
            pub(crate) fn new((): &()) -> Extra {
                Extra
            }

            pub(crate) fn note(&mut self, _: &str, _: &[u8], (): &()) {}

            pub(crate) fn note_target(&mut self, _: &str, _: &str, (): &()) {}
        }
    }
}

mod peer {
    use std::net::IpAddr;

    #[derive(Clone, Copy)]
    pub(crate) struct Said<'a>(&'a str);

    impl Said<'_> {
        pub(crate) fn header(&self) -> &str {
            self.0
        }

        pub(crate) fn client<'v>(
            &self,
            _: impl DoubleEndedIterator<Item = &'v [u8]>,
        ) -> Option<IpAddr> {
            None
        }
    }
}

/// The readers under the names that they have in the gateway.
mod io {
    pub(crate) use crate::chunked;
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http1(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { try_one: fuzz::http1, seeds: fuzz::seeds, mutate: fuzz::mutate });
}
