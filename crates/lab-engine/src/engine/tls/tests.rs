//! Goal: valid settings are converted, and messages for invalid settings name the allowed values.

use lab_model::plan::{HttpVersion, Tls, TlsVersion};
use rustls::crypto::aws_lc_rs;

use super::{build_config, build_provider, iana_name, openssl_name};

#[test]
fn suites_are_known_by_both_names() {
    let names: Vec<(String, String)> = aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .map(|suite| (iana_name(suite.suite()), openssl_name(&iana_name(suite.suite()))))
        .collect();
    for (iana, openssl) in [
        ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
    ] {
        assert!(names.contains(&(iana.to_owned(), openssl.to_owned())), "{iana} {openssl}");
    }
}

#[test]
fn a_suite_of_another_version_is_rejected() {
    let ciphers = vec!["ECDHE-RSA-AES128-GCM-SHA256".to_owned()];
    let mut settings = Tls { ciphers, version: Some(TlsVersion::Tls12), ..Tls::default() };
    assert_eq!(build_provider(&settings).unwrap().cipher_suites.len(), 1);
    settings.version = Some(TlsVersion::Tls13);
    let message = build_provider(&settings).unwrap_err().to_string();
    assert_eq!(
        message,
        "cipher suite \"ECDHE-RSA-AES128-GCM-SHA256\" is not one of TLS_AES_256_GCM_SHA384, \
         TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256"
    );
}

#[test]
fn invalid_certificates_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let settings = Tls { ca: Some(path.clone()), ..Tls::default() };
    let message = |settings| build_config(settings, HttpVersion::Http1).unwrap_err().to_string();
    assert!(
        message(&settings)
            .starts_with(&format!("cannot use the trust anchors in {}", path.display()))
    );
    std::fs::write(&path, "hello").unwrap();
    assert!(message(&settings).ends_with("the file contains no certificate"));
}
