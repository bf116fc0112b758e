//! Certificates for one test: authorities, server certificates on disk, and client identities.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// A certificate authority of one test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// The algorithm of a private key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    Ecdsa,
    Rsa,
}

/// A client certificate and its private key, for mutual TLS.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key_pkcs8: Vec<u8>,
}

impl Identity {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key_pkcs8.clone()).into()
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }

    /// Issues a valid client certificate. `name` is its common name.
    pub(crate) fn issue_client(&self, name: &str) -> Identity {
        self.issue_identity(name, 4000)
    }

    /// Issues a client certificate that expired in 2001.
    pub(crate) fn issue_expired_client(&self, name: &str) -> Identity {
        self.issue_identity(name, 2001)
    }

    fn issue_identity(&self, name: &str, until_year: i32) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { chain: vec![certificate.der().clone()], key_pkcs8: key.serialize_der() }
    }
}

/// A temporary folder with the files that a gateway's configuration refers to.
pub(crate) struct ConfigFiles {
    folder: TempDir,
    /// Each written server certificate and the name of its file.
    certificates: Vec<(String, CertificateDer<'static>)>,
}

impl ConfigFiles {
    pub(crate) fn new() -> ConfigFiles {
        ConfigFiles { folder: tempfile::tempdir().unwrap(), certificates: Vec::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&mut self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Issues a server certificate for these host names, and writes it as `NAME.pem` and
    /// `NAME.key`.
    pub(crate) fn write_certificate(
        &mut self,
        name: &str,
        issuer: &Authority,
        key_type: KeyType,
        hosts: &[&str],
    ) {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let params = CertificateParams::new(hosts).unwrap();
        let key = match key_type {
            KeyType::Ecdsa => KeyPair::generate().unwrap(),
            KeyType::Rsa => KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap(),
        };
        let certificate = params.signed_by(&key, &issuer.issuer).unwrap();
        self.write(&format!("{name}.pem"), certificate.pem().as_bytes());
        self.write(&format!("{name}.key"), key.serialize_pem().as_bytes());
        self.certificates.push((name.to_owned(), certificate.der().clone()));
    }

    /// The name that this certificate had in [`ConfigFiles::write_certificate`].
    pub(crate) fn certificate_name(&self, certificate: &CertificateDer<'_>) -> String {
        let found = self.certificates.iter().find(|(_, written)| written == certificate);
        found.expect("the server presents one of the written certificates").0.clone()
    }
}
