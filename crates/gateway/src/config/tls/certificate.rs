//! One certificate of ours with its key, read from files: whether they fit, for which names it is,
//! and until when.

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

use crate::config::tls::read_certificates;

/// A certificate that can be shown.
#[derive(Debug)]
pub(crate) struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// The DNS names in it, lower case, `*.` before those that stand for many.
    pub(crate) names: Vec<String>,
    /// When it ends.
    until: SystemTime,
}

impl Certificate {
    /// Returns true if clients refuse it because its time is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.until < SystemTime::now()
    }
}

/// Which of the two files is wrong, and why.
#[derive(Debug)]
pub(crate) enum CertificateFault {
    Chain(String),
    Key(String),
}

/// Reads a certificate and its key.
///
/// # Errors
/// A [`CertificateFault`]; its text never holds a part of the key.
pub(crate) fn read(chain_file: &Path, key_file: &Path) -> Result<Certificate, CertificateFault> {
    let chain = read_certificates(chain_file).map_err(CertificateFault::Chain)?;
    let facts = x509_cert::Certificate::from_der(&chain[0]);
    let facts = facts.map_err(|error| {
        CertificateFault::Chain(format!("the first certificate cannot be read: {error}"))
    })?;
    let names = dns_names(&facts.tbs_certificate);
    let until = facts.tbs_certificate.validity.not_after.to_unix_duration();
    let key = any_supported_type(&read_key(key_file)?)
        .map_err(|_| CertificateFault::Key("not a key that can sign for tls".to_owned()))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // A kind of key that cannot tell its public half is no fault.
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
    let until = SystemTime::UNIX_EPOCH.checked_add(until);
    let until = until.unwrap_or(SystemTime::UNIX_EPOCH + Duration::from_secs(u32::MAX.into()));
    Ok(Certificate { key: Arc::new(certified), names, until })
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateFault> {
    use rustls::pki_types::pem::Error;
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        CertificateFault::Key(match error {
            Error::Io(error) => format!("cannot read the file: {error}"),
            Error::NoItemsFound => "the file holds no private key without a password".to_owned(),
            // Further words could quote the file.
            _ => "not a file of a pem private key".to_owned(),
        })
    })
}

fn dns_names(certificate: &x509_cert::TbsCertificate) -> Vec<String> {
    let Ok(Some((_, names))) = certificate.get::<SubjectAltName>() else { return Vec::new() };
    let dns = names.0.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}
