//! Fuzzes the gateway's parsers of client addresses: the PROXY header, `X-Forwarded-For` and
//! `Forwarded`. `Cargo.toml` documents how to run it.
//!
//! The invariants are in the function `run_input`. This target compiles the parsers' files
//! separately: the rest of the gateway takes minutes to build with the fuzzer's flags.
#![cfg_attr(fuzzing, no_main)]

#[allow(dead_code)] // Only the gateway uses some items.
#[path = "../../crates/gateway/src/policy/client.rs"]
mod client;
#[path = "../../crates/gateway/src/policy/proxy.rs"]
mod proxy;

use client::{AddressSource, Networks};

/// Parses the bytes as a PROXY header, and each of their lines as a value of `X-Forwarded-For` and
/// of `Forwarded`.
///
/// # Panics
/// If an invariant is violated.
fn run_input(bytes: &[u8]) {
    if let Ok(Some(proxied)) = proxy::parse(bytes) {
        assert!(
            proxied.bytes <= bytes.len().min(proxy::HEADER_BYTES_MAX),
            "the header is longer than the input"
        );
        let header = &bytes[..proxied.bytes];
        assert_eq!(proxy::parse(header), Ok(Some(proxied)), "bytes after the header change it");
        let incomplete = &header[..header.len() - 1];
        assert_eq!(proxy::parse(incomplete), Ok(None), "an incomplete header is accepted");
    }
    let trusted = Networks(vec!["10.0.0.0/8".parse().expect("it is a network")]);
    for (source, proxy_value) in
        [(AddressSource::XForwardedFor, "192.0.2.1"), (AddressSource::Forwarded, "for=192.0.2.1")]
    {
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let client = client::find_client(source, lines.iter().copied(), &trusted);
        assert!(
            client.is_none_or(|address| address == address.to_canonical()),
            "the address is not canonical"
        );
        // The client controls the value before the address that the proxy appends. The appended
        // address must win.
        let appended = [bytes, b", ", proxy_value.as_bytes()].concat();
        let client = client::find_client(source, std::iter::once(&appended[..]), &trusted);
        assert_eq!(client, "192.0.2.1".parse().ok(), "a client has chosen its address");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run_input(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target {
        inputs: 600_000, run_input, seeds, mutate });
}

#[cfg(not(fuzzing))]
fn seeds() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 8] = [
        b"PROXY TCP4 1.1.1.1 10.0.0.1 5678 443\r\nPOST / HTTP/1.1\r\n",
        b"PROXY TCP6 2a00::1 ::ffff:10.0.0.1 5678 443\r\n",
        b"PROXY UNKNOWN what ever\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x01\x01\x01\x01\x0a\0\0\x01\x16\x2e\x01\xbb",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x2a\x2a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\
          \x2a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\x16\x2e\x01\xbb\x04\0\x03abc",
        b"9.9.9.9, [2a00::1]:443, ::ffff:10.0.0.2\n1.1.1.1:80, 10.0.0.3",
        b"for=\"[2a00::1]:_port\";proto=https;host=\"a,\\\"b;c\", for=10.0.0.2\nFor=_hidden",
        b"for=\"9.9.9.9, for=unknown;by=\"",
    ];
    texts.map(<[u8]>::to_vec).into()
}

/// Runs random edits of the seeds: replaces, flips, truncates or inserts bytes, or splices in bytes
/// of another seed. Returns the number of inputs.
#[cfg(not(fuzzing))]
fn mutate(seed: u64, should_continue: &mut dyn FnMut(u64) -> bool) -> u64 {
    // xorshift64* (Vigna 2016). The state 0 would never change, so `| 1` makes the state odd.
    let mut state = seed | 1;
    let mut random_below = move |below: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    };
    const SPECIAL: &[u8] = b"\"\\,;=[]:. \r\n\0\x20\x21\xff0129afPROXY";
    let seeds = seeds();
    let mut inputs = 0;
    while should_continue(inputs) {
        let mut bytes = seeds[random_below(seeds.len())].clone();
        for _ in 0..=random_below(8) {
            let position = random_below(bytes.len());
            match random_below(5) {
                0 if !bytes.is_empty() => bytes[position] = SPECIAL[random_below(SPECIAL.len())],
                1 if !bytes.is_empty() => bytes[position] ^= 1 << random_below(8),
                2 => bytes.truncate(position),
                3 => bytes.insert(position, SPECIAL[random_below(SPECIAL.len())]),
                _ => {
                    let other = &seeds[random_below(seeds.len())];
                    let from = random_below(other.len());
                    let tail = other[from..].to_vec();
                    bytes.splice(position.min(bytes.len()).., tail);
                }
            }
        }
        run_input(&bytes);
        inputs += 1;
    }
    inputs
}
