//! Finds TLS cipher suites by their IANA or OpenSSL names.

use settings::not_found_message;

use crate::plan::TlsVersion;

/// A cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Suite {
    /// IANA name.
    pub(in crate::plan) name: &'static str,
    /// TLS version of the suite.
    pub(in crate::plan) version: TlsVersion,
}

/// The suites of rustls with the aws-lc-rs provider
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

/// Finds a suite by its IANA or OpenSSL name.
///
/// # Errors
/// Fails if the name is unknown. The message suggests the nearest known name.
pub(super) fn find(name: &str) -> Result<Suite, String> {
    let suite = SUITES.iter().find(|(iana, openssl, _)| *iana == name || *openssl == name);
    match suite {
        Some((name, _, version)) => Ok(Suite { name, version: *version }),
        None => Err(not_found_message("cipher suite", name, &names()).0),
    }
}

/// Returns the OpenSSL names of all suites.
pub(super) fn names() -> Vec<&'static str> {
    SUITES.iter().map(|(_, openssl, _)| *openssl).collect()
}
