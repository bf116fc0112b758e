//! Tries the reader of HTTP/1.1 requests, heads and bodies, on made-up bytes; `Cargo.toml` tells how.
//!
//! What must hold is in `crates/gateway/src/front/fuzz.rs`. The gateway's own files are compiled here
//! by themselves, with stand-ins for what they only hand on.
#![cfg_attr(fuzzing, no_main)]
#![allow(dead_code)] // A part of it is for the gateway only.

#[path = "../../crates/gateway/src/front/body.rs"]
mod body;
#[path = "../../crates/gateway/src/front/fuzz.rs"]
mod fuzz;
#[path = "../../crates/gateway/src/front/head.rs"]
mod head;

/// Where the files above look for what they hand on: nothing more of a head is wanted here.
mod front {
    pub(crate) mod caller {
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

    pub(crate) mod peer {
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
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http1(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { try_one: fuzz::http1, seeds: fuzz::seeds, mutate: fuzz::mutate });
}
