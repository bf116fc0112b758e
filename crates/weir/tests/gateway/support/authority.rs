//! Certificates made for one test: authorities, files for the gateway, identities of clients.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// An authority of our own.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A kind of key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ecdsa,
    Rsa,
}

/// What a client shows.
pub(crate) struct Identity {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

impl Identity {
    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.clone()).into()
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

    pub(crate) fn client(&self, name: &str) -> Identity {
        self.identity(name, 4000)
    }

    /// One whose certificate has ended long ago.
    pub(crate) fn ended_client(&self, name: &str) -> Identity {
        self.identity(name, 2001)
    }

    fn identity(&self, name: &str, until_year: i32) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(until_year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity { chain: vec![certificate.der().clone()], key: key.serialize_der() }
    }
}

/// A folder of files that a configuration names.
pub(crate) struct Files {
    folder: TempDir,
    shown: Vec<(String, CertificateDer<'static>)>,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { folder: tempfile::tempdir().unwrap(), shown: Vec::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&mut self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes `NAME.pem` and `NAME.key`, for these host names.
    pub(crate) fn certificate(&mut self, name: &str, by: &Authority, kind: Kind, hosts: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let params = CertificateParams::new(hosts).unwrap();
        let key = match kind {
            Kind::Ecdsa => KeyPair::generate().unwrap(),
            Kind::Rsa => KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap(),
        };
        let certificate = params.signed_by(&key, &by.issuer).unwrap();
        self.write(&format!("{name}.pem"), certificate.pem().as_bytes());
        self.write(&format!("{name}.key"), key.serialize_pem().as_bytes());
        self.shown.push((name.to_owned(), certificate.der().clone()));
    }

    /// The name under which a certificate was written.
    pub(crate) fn name_of(&self, certificate: &CertificateDer<'_>) -> String {
        let found = self.shown.iter().find(|(_, shown)| shown == certificate);
        found.expect("one of ours is shown").0.clone()
    }
}
