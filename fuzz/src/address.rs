//! Fuzzes the gateway's parsers of client addresses: the PROXY header, `X-Forwarded-For` and
//! `Forwarded`. `Cargo.toml` documents how to run it.
//!
//! The invariants are in [`address`]. This target compiles the parsers' files separately: the rest
//! of the gateway takes minutes to build with other flags.
#![cfg_attr(fuzzing, no_main)]

#[allow(dead_code)] // Only the gateway uses some items.
#[path = "../../crates/gateway/src/policy/client.rs"]
mod client;
#[path = "../../crates/gateway/src/policy/proxy.rs"]
mod proxy;

use client::{AddressSource, Networks};

/// Parses bytes as a PROXY header, and each line as a value of both headers.
///
/// # Panics
/// If an invariant is violated.
fn address(bytes: &[u8]) {
    if let Ok(Some(proxied)) = proxy::parse(bytes) {
        assert!(proxied.bytes <= bytes.len().min(proxy::HEADER_BYTES_MAX), "longer than it is");
        let header = &bytes[..proxied.bytes];
        assert_eq!(proxy::parse(header), Ok(Some(proxied)), "what follows belongs to the client");
        let cut = &header[..header.len() - 1];
        assert_eq!(proxy::parse(cut), Ok(None), "all but the last byte is waited for");
    }
    let trusted = Networks(vec!["10.0.0.0/8".parse().expect("it is a network")]);
    for (source, own) in
        [(AddressSource::XForwardedFor, "192.0.2.1"), (AddressSource::Forwarded, "for=192.0.2.1")]
    {
        let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        let found = client::find_client(source, lines.iter().copied(), &trusted);
        assert!(found.is_none_or(|found| found == found.to_canonical()), "two forms of one address");
        // The address that the proxy appends counts, whatever the client sent before it.
        let appended = [bytes, b", ", own.as_bytes()].concat();
        let found = client::find_client(source, std::iter::once(&appended[..]), &trusted);
        assert_eq!(found, "192.0.2.1".parse().ok(), "a client has chosen its address");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| address(bytes));

#[cfg(not(fuzzing))]
mod blind;

#[cfg(not(fuzzing))]
fn main() {
    blind::run(&blind::Target { try_one: address, seeds, mutate });
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

/// Edits seeds at random places: changes, truncates, inserts, or splices bytes of another seed.
#[cfg(not(fuzzing))]
fn mutate(seed: u64, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
    // xorshift64* (Vigna 2016). An odd state is never 0, its fixed point.
    let mut state = seed | 1;
    let mut random = move |below: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below.max(1)
    };
    const SPECIAL: &[u8] = b"\"\\,;=[]:. \r\n\0\x20\x21\xff0129afPROXY";
    let seeds = seeds();
    let mut tried = 0;
    while go_on(tried) {
        let mut bytes = seeds[random(seeds.len())].clone();
        for _ in 0..=random(8) {
            let at = random(bytes.len());
            match random(5) {
                0 if !bytes.is_empty() => bytes[at] = SPECIAL[random(SPECIAL.len())],
                1 if !bytes.is_empty() => bytes[at] ^= 1 << random(8),
                2 => bytes.truncate(at),
                3 => bytes.insert(at, SPECIAL[random(SPECIAL.len())]),
                _ => {
                    let other = &seeds[random(seeds.len())];
                    let from = random(other.len());
                    let part = other[from..].to_vec();
                    bytes.splice(at.min(bytes.len()).., part);
                }
            }
        }
        address(&bytes);
        tried += 1;
    }
    tried
}
