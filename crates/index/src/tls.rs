//! How to speak TLS, to nodes and to a database.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};

/// A client that trusts these.
///
/// # Errors
/// If the cryptography has none of the protocol's versions.
pub(crate) fn trusting(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}
