//! The TLS client for one upstream. It is built when the configuration is validated, so a bad
//! certificate file is a configuration error and does not fail the first call.
//!
//! It opens no connection; `upstream/` does.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Builds a client that trusts the built-in roots, or only the certificates of a PEM file.
///
/// # Errors
///
/// A description of the error in the file.
pub(super) fn verifying_client(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    build_verifying(ca).map(with_http1_alpn)
}

/// Builds a client as [`verifying_client`] does, for a protocol without an ALPN name.
///
/// # Errors
///
/// As [`verifying_client`].
pub(super) fn plain_client(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    build_verifying(ca).map(Arc::new)
}

fn build_verifying(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let describe_error = |error: rustls::pki_types::pem::Error| match error {
                rustls::pki_types::pem::Error::Io(error) => {
                    format!("cannot read the file: {error}")
                }
                error => format!("not a file of pem certificates: {error}"),
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(describe_error)? {
                let certificate = certificate.map_err(describe_error)?;
                roots.add(certificate).map_err(|error| format!("not a certificate: {error}"))?;
            }
            if roots.is_empty() {
                return Err("the file contains no certificate".to_owned());
            }
        }
    }
    let builder = builder()?.with_root_certificates(roots);
    Ok(builder.with_no_client_auth())
}

/// Builds a client that accepts any certificate, for `tls_verify = false`.
///
/// # Errors
///
/// If TLS cannot be set up at all.
pub(super) fn trusting_client() -> Result<Arc<ClientConfig>, String> {
    let verifier = Arc::new(AnyCertificate { provider: aws_lc_rs::default_provider() });
    let builder = builder()?.dangerous().with_custom_certificate_verifier(verifier);
    Ok(with_http1_alpn(builder.with_no_client_auth()))
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up tls: {error}"))
}

fn with_http1_alpn(mut client: ClientConfig) -> Arc<ClientConfig> {
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(client)
}

/// Accepts any certificate, but still checks that the server has its key.
#[derive(Debug)]
struct AnyCertificate {
    provider: CryptoProvider,
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
