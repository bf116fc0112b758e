//! Builds the TLS clients for upstreams, Redis and the collector of spans.
//!
//! The validation of the configuration builds the clients. So a bad certificate file is a
//! configuration error, and not a failure of the first call.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use super::tls;

/// Builds a client that trusts only the certificates of the PEM file `ca`. If `ca` is `None`, the
/// client trusts the built-in roots.
///
/// # Errors
///
/// A description of the error in the file.
pub(super) fn build_verifying_client(ca: Option<&Path>) -> Result<ClientConfig, String> {
    let roots = match ca {
        None => webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect(),
        Some(path) => tls::build_root_store(tls::read_certificates(path)?)?,
    };
    Ok(start_client()?.with_root_certificates(roots).with_no_client_auth())
}

/// Builds a client that accepts any certificate, for `tls_verify = false`.
///
/// # Errors
///
/// If TLS cannot be set up at all.
pub(super) fn build_trusting_client() -> Result<ClientConfig, String> {
    let verifier = Arc::new(AnyCertificate { provider: aws_lc_rs::default_provider() });
    let builder = start_client()?.dangerous().with_custom_certificate_verifier(verifier);
    Ok(builder.with_no_client_auth())
}

/// Returns a builder with the crypto library and the default TLS versions.
fn start_client() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, String> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot set up tls: {error}"))
}

/// Accepts any certificate, but checks by the handshake's signature that the server has the
/// certificate's key.
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
