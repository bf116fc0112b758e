//! Reads a certificate of the gateway and its key from files, and checks that they match. Also
//! reads the names and the expiry of the certificate.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use wire::tls::read_certificates;

/// A certificate of the gateway.
#[derive(Debug)]
pub(crate) struct Certificate {
    /// The certificate chain and its private key.
    pub(crate) key: Arc<CertifiedKey>,
    /// Lower-case host names for which the certificate is used. By default they are the DNS names
    /// in the certificate. A wildcard name begins with `*.`.
    pub(crate) names: Vec<String>,
    /// Time of expiry.
    pub(crate) expires: SystemTime,
}

impl Certificate {
    /// Returns true if the certificate has expired.
    pub(crate) fn has_expired(&self) -> bool {
        self.expires < SystemTime::now()
    }
}

/// The file that has an error, with a description of the error.
#[derive(Debug)]
pub(crate) enum CertificateFault {
    /// The file of certificates.
    Chain(String),
    /// The file of the private key.
    Key(String),
}

/// Reads a certificate and its key.
///
/// # Errors
///
/// A [`CertificateFault`]. Its text never contains a part of the key.
pub(crate) fn read(chain_file: &Path, key_file: &Path) -> Result<Certificate, CertificateFault> {
    let chain = read_certificates(chain_file).map_err(CertificateFault::Chain)?;
    let certificate = x509_cert::Certificate::from_der(&chain[0]);
    let certificate = certificate.map_err(|error| {
        CertificateFault::Chain(format!("the first certificate cannot be read: {error}"))
    })?;
    let names = read_dns_names(&certificate.tbs_certificate);
    let not_after = certificate.tbs_certificate.validity.not_after.to_unix_duration();
    let key = any_supported_type(&read_key(key_file)?)
        .map_err(|_| CertificateFault::Key("not a key for tls signatures".to_owned()))?;
    let certified_key = CertifiedKey::new(chain, key);
    match certified_key.keys_match() {
        // For some key types the public half is unknown, so the match cannot be checked.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            let message = "not the key of the certificate".to_owned();
            return Err(CertificateFault::Key(message));
        }
        Err(error) => {
            let message = format!("the first certificate cannot be read: {error}");
            return Err(CertificateFault::Chain(message));
        }
    }
    // If `SystemTime` cannot represent the time, the year 2106 (`u32::MAX` seconds) replaces it.
    let expires = SystemTime::UNIX_EPOCH.checked_add(not_after);
    let expires = expires.unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_secs(u32::MAX.into()));
    Ok(Certificate { key: Arc::new(certified_key), names, expires })
}

/// Reads a private key. The error never quotes the file.
fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateFault> {
    use rustls::pki_types::pem::Error;
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        CertificateFault::Key(match error {
            Error::Io(error) => format!("cannot read the file: {error}"),
            Error::NoItemsFound => "the file contains no private key without a password".to_owned(),
            // Other error texts could quote the file.
            _ => "not a file of a pem private key".to_owned(),
        })
    })
}

/// Returns the DNS names of a certificate in lower case.
fn read_dns_names(certificate: &x509_cert::TbsCertificate) -> Vec<String> {
    let Ok(Some((_, names))) = certificate.get::<SubjectAltName>() else { return Vec::new() };
    let dns = names.0.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}
