//! Goal: settings become what they name, or a message that says what is allowed.

use lab_model::plan::{HttpVersion, Tls, TlsVersion};
use rustls::crypto::aws_lc_rs;

use super::{config, iana, openssl, provider};

#[test]
fn suites_are_known_by_both_names() {
    let names: Vec<(String, String)> = aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .map(|suite| (iana(suite.suite()), openssl(&iana(suite.suite()))))
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
fn a_suite_of_another_version_is_refused() {
    let ciphers = vec!["ECDHE-RSA-AES128-GCM-SHA256".to_owned()];
    let mut settings = Tls { ciphers, version: Some(TlsVersion::Tls12), ..Tls::default() };
    assert_eq!(provider(&settings).unwrap().cipher_suites.len(), 1);
    settings.version = Some(TlsVersion::Tls13);
    let said = provider(&settings).unwrap_err().to_string();
    assert_eq!(
        said,
        "cipher suite \"ECDHE-RSA-AES128-GCM-SHA256\" is not one of TLS_AES_256_GCM_SHA384, \
         TLS_AES_128_GCM_SHA256, TLS_CHACHA20_POLY1305_SHA256"
    );
}

#[test]
fn anchors_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    let settings = Tls { ca: Some(path.clone()), ..Tls::default() };
    let said = |settings| config(settings, HttpVersion::Http1).unwrap_err().to_string();
    assert!(
        said(&settings).starts_with(&format!("cannot use the trust anchors in {}", path.display()))
    );
    std::fs::write(&path, "hello").unwrap();
    assert!(said(&settings).ends_with("there is no certificate in it"));
}
