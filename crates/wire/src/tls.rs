//! TLS clients by rustls: root certificates, configurations, and the words of their errors.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme, WantsVerifier,
};

/// Returns the root certificates that browsers trust, which are compiled into the program.
pub fn public_roots() -> RootCertStore {
    RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }
}

/// Reads the certificates of a PEM file, at least one.
///
/// # Errors
/// A description of the error in the file.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let describe_error = |error: PemError| match error {
        PemError::Io(error) => format!("cannot read the file: {error}"),
        error => format!("not a file of pem certificates: {error}"),
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(describe_error)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(describe_error)?;
    if certificates.is_empty() {
        return Err("the file contains no certificate".to_owned());
    }
    Ok(certificates)
}

/// Adds trusted certificates.
///
/// # Errors
/// If a certificate is malformed.
pub fn add_roots(
    roots: &mut RootCertStore,
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<(), String> {
    for certificate in certificates {
        roots.add(certificate).map_err(|error| format!("not a certificate: {error}"))?;
    }
    Ok(())
}

/// Returns a store that trusts only these certificates.
///
/// # Errors
/// If a certificate is malformed.
pub fn build_roots(
    certificates: impl IntoIterator<Item = CertificateDer<'static>>,
) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    add_roots(&mut roots, certificates)?;
    Ok(roots)
}

/// Builds a client that trusts only the certificates of the PEM file `ca`. If `ca` is `None`, the
/// client trusts the public roots.
///
/// # Errors
/// A description of the error in the file.
pub fn build_verifying_client(ca: Option<&Path>) -> Result<ClientConfig, String> {
    build_client(match ca {
        None => public_roots(),
        Some(path) => build_roots(read_certificates(path)?)?,
    })
}

/// Builds a client that trusts these certificates.
///
/// # Errors
/// If TLS cannot be set up at all.
pub fn build_client(roots: RootCertStore) -> Result<ClientConfig, String> {
    Ok(start_client()?.with_root_certificates(roots).with_no_client_auth())
}

/// Builds a client that accepts any certificate.
///
/// # Errors
/// If TLS cannot be set up at all.
pub fn build_trusting_client() -> Result<ClientConfig, String> {
    Ok(accept_any_certificate(start_client()?))
}

/// Returns a builder with the default ciphers and versions of TLS.
fn start_client() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up tls: {error}"))
}

/// Completes a configuration that accepts any certificate. By the handshake's signature it still
/// checks that the server has the certificate's key.
pub fn accept_any_certificate(builder: ConfigBuilder<ClientConfig, WantsVerifier>) -> ClientConfig {
    let verifier = Arc::new(AnyCertificate { provider: Arc::clone(builder.crypto_provider()) });
    builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth()
}

#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Describes why a handshake failed.
pub fn describe_error(error: &rustls::Error) -> String {
    use CertificateError as Fault;
    let fault = match error {
        rustls::Error::InvalidCertificate(fault) => fault,
        rustls::Error::InvalidMessage(_) => {
            return "the server does not speak TLS; is it an http:// address?".to_owned();
        }
        error => return error.to_string(),
    };
    let fault_text = match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => "has expired".to_owned(),
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        Fault::NotValidForName | Fault::NotValidForNameContext { .. } => {
            format!("is for another host name: {fault}")
        }
        Fault::UnknownIssuer => "comes from an untrusted authority".to_owned(),
        Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "is that of an authority (CA:TRUE), which a server must not use".to_owned()
        }
        fault => format!("was rejected: {fault}"),
    };
    format!("the server's certificate {fault_text}")
}
