//! Certificates for one test: authorities, server certificates on disk, and client identities.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// A certificate authority that exists for one test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// The algorithm of a private key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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

    pub(crate) fn client(&self, name: &str) -> Identity {
        self.identity(name, 4000)
    }

    /// Issues a client certificate that expired in 2001.
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
        Identity { chain: vec![certificate.der().clone()], key_pkcs8: key.serialize_der() }
    }
}

/// A temporary folder with the files that a gateway's configuration refers to.
pub(crate) struct Files {
    folder: TempDir,
    /// Each written server certificate and the name of its file.
    certificates: Vec<(String, CertificateDer<'static>)>,
}

impl Files {
    pub(crate) fn new() -> Files {
        Files { folder: tempfile::tempdir().unwrap(), certificates: Vec::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&mut self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a server certificate for these host names, issued by `by`, as `NAME.pem` and
    /// `NAME.key`.
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
        self.certificates.push((name.to_owned(), certificate.der().clone()));
    }

    /// The name under which [`Files::certificate`] wrote this certificate.
    pub(crate) fn name_of(&self, certificate: &CertificateDer<'_>) -> String {
        let found = self.certificates.iter().find(|(_, written)| written == certificate);
        found.expect("the server presents one of the written certificates").0.clone()
    }
}
