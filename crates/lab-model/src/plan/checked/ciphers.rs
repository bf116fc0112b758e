//! Cipher suites by name: which exist, and whether they fit the TLS version.

use super::super::TlsVersion;
use super::super::fault::Report;
use super::super::file::Entry;
use super::super::nearest::not_found;

/// The suites of rustls with its aws-lc-rs provider
/// (<https://docs.rs/rustls/0.23/rustls/crypto/aws_lc_rs/cipher_suite/>): IANA name, OpenSSL name,
/// TLS version.
const SUITES: [(&str, &str, TlsVersion); 9] = [
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384", TlsVersion::Tls13),
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256", TlsVersion::Tls13),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256", TlsVersion::Tls13),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384", TlsVersion::Tls12),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256", TlsVersion::Tls12),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        TlsVersion::Tls12,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384", TlsVersion::Tls12),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256", TlsVersion::Tls12),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "ECDHE-RSA-CHACHA20-POLY1305",
        TlsVersion::Tls12,
    ),
];

/// The suites of `connections.ciphers` by their IANA names.
pub(super) fn check(
    entry: &Entry,
    version: Option<TlsVersion>,
    report: &mut Report<'_>,
) -> Vec<String> {
    let mut ciphers = Vec::new();
    for name in entry.value("ciphers").texts() {
        let found = SUITES.iter().find(|(iana, openssl, _)| *iana == name || *openssl == name);
        match found {
            Some((_, _, needed)) if version.is_some_and(|version| version != *needed) => {
                let message = format!("{name} belongs to another TLS version than tls_version");
                super::refuse(report, entry, "ciphers", &message, "suites of that version");
            }
            Some((iana, _, _)) => ciphers.push((*iana).to_owned()),
            None => {
                let known: Vec<_> = SUITES.iter().map(|(_, openssl, _)| *openssl).collect();
                let (message, allowed) = not_found("cipher suite here", &name, &known);
                super::refuse(report, entry, "ciphers", &format!("{name}: {message}"), &allowed);
            }
        }
    }
    ciphers
}
