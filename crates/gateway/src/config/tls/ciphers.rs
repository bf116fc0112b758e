//! The supported cipher suites, and their names.
//!
//! A suite has two names. nginx, HAProxy and most guides use OpenSSL's name, and the RFCs use
//! IANA's name. The names differ only for suites of TLS 1.2. All suites have forward secrecy and
//! authenticated encryption.

use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES;

/// Returns OpenSSL's names, in rustls's order of preference.
pub(crate) fn names() -> impl Iterator<Item = String> {
    ALL_CIPHER_SUITES.iter().map(openssl_spelling)
}

/// Returns the suite with this OpenSSL or IANA name, in any letter case. Returns `None` for an
/// unknown name.
pub(crate) fn find(name: &str) -> Option<SupportedCipherSuite> {
    let has_name = |suite: &&SupportedCipherSuite| {
        let names = [openssl_spelling(suite), iana_spelling(suite), rustls_name(suite)];
        names.iter().any(|suite_name| suite_name.eq_ignore_ascii_case(name))
    };
    ALL_CIPHER_SUITES.iter().find(has_name).copied()
}

/// Returns true if a suite belongs to TLS 1.3.
pub(crate) fn is_tls13(suite: &SupportedCipherSuite) -> bool {
    suite.tls13().is_some()
}

/// Returns rustls's name. For a suite of TLS 1.2, it equals IANA's name. For a suite of TLS 1.3, it
/// begins with `TLS13_`.
fn rustls_name(suite: &SupportedCipherSuite) -> String {
    suite.suite().as_str().unwrap_or_default().to_owned()
}

fn iana_spelling(suite: &SupportedCipherSuite) -> String {
    rustls_name(suite).replace("TLS13_", "TLS_")
}

/// Translates IANA's name to OpenSSL's, such as `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` to
/// `ECDHE-RSA-AES256-GCM-SHA384`. A name that ends in `CHACHA20_POLY1305_SHA256` loses the hash,
/// and names of TLS 1.3 do not change.
fn openssl_spelling(suite: &SupportedCipherSuite) -> String {
    let name = iana_spelling(suite);
    if is_tls13(suite) {
        return name;
    }
    let openssl_name = name.trim_start_matches("TLS_").replace("_WITH", "").replace("AES_", "AES");
    let openssl_name = openssl_name.replace('_', "-");
    match openssl_name.strip_suffix("POLY1305-SHA256") {
        Some(start) => format!("{start}POLY1305"),
        None => openssl_name,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every suite is found by both of its names, and OpenSSL's names are the ones that other
    //! programs use.

    use super::*;

    #[test]
    fn names_are_those_of_openssl() {
        let names: Vec<_> = names().collect();
        expect_test::expect![[r#"
            TLS_AES_256_GCM_SHA384
            TLS_AES_128_GCM_SHA256
            TLS_CHACHA20_POLY1305_SHA256
            ECDHE-ECDSA-AES256-GCM-SHA384
            ECDHE-ECDSA-AES128-GCM-SHA256
            ECDHE-ECDSA-CHACHA20-POLY1305
            ECDHE-RSA-AES256-GCM-SHA384
            ECDHE-RSA-AES128-GCM-SHA256
            ECDHE-RSA-CHACHA20-POLY1305"#]]
        .assert_eq(&names.join("\n"));
    }

    #[test]
    fn every_spelling_finds_the_suite() {
        for suite in ALL_CIPHER_SUITES {
            for name in [openssl_spelling(suite), iana_spelling(suite), rustls_name(suite)] {
                let suite_found = find(&name.to_lowercase()).map(|found| found.suite());
                assert_eq!(suite_found, Some(suite.suite()), "{name}");
            }
        }
        assert!(find("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384").is_some());
        for unknown in ["", "AES256-SHA", "ECDHE-RSA-AES256-SHA384", "ALL", "TLS13"] {
            assert!(find(unknown).is_none(), "{unknown}");
        }
    }
}
