//! TLS with clients: certificates, ciphers, resumption and client certificates. They are prepared
//! when the configuration is validated, so a bad file is a configuration error and does not fail
//! the first handshake.
//!
//! This file opens no connection: `downstream/tls.rs` does the handshake. `config/upstream_tls.rs`
//! is for TLS to upstreams. In reading order: `certificate` (the gateway's), `choose` (selection by
//! SNI), `ciphers`, `tickets` and `sessions` (resumption), `client` (client certificates).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

pub(crate) mod certificate;
pub(crate) mod choose;
pub(crate) mod ciphers;
pub(crate) mod client;
pub(crate) mod sessions;
pub(crate) mod tickets;

use choose::Certificates;
use sessions::Sessions;
use tickets::{TicketKey, Tickets};

/// Request for a client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is requested.
    Off,
    /// Clients are asked, and are served without a certificate too. A certificate that a client
    /// sends must be valid.
    Optional,
    /// Clients without a certificate are rejected.
    Required,
}

/// Settings of a [`ServerConfig`].
pub(crate) struct Settings {
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    /// Cipher suites, the most preferred first. Empty allows all suites in the client's order.
    pub(crate) ciphers: Vec<SupportedCipherSuite>,
    pub(crate) certificates: Certificates,
    /// `None` turns tickets off.
    pub(crate) tickets: Option<Vec<TicketKey>>,
    pub(crate) sessions_max: usize,
    pub(crate) session_age_max: Duration,
    pub(crate) client_auth: ClientAuth,
    /// Authorities of client certificates.
    pub(crate) client_roots: Vec<CertificateDer<'static>>,
}

/// Source of the ticket keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKeys {
    /// There are no tickets.
    Off,
    /// Each process generates its own keys.
    PerProcess,
    /// The keys are read from files.
    FromFiles,
}

/// Settings under which sessions begin. A session may resume after a reload only if the terms are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SessionTerms {
    /// Identifies how clients are verified.
    auth: [u8; 32],
    pub(crate) tickets: TicketKeys,
    sessions_max: usize,
    session_age_max: Duration,
}

impl Settings {
    /// Returns the session terms of these settings.
    pub(crate) fn terms(&self) -> SessionTerms {
        SessionTerms {
            auth: auth_id(self.client_auth, &self.client_roots),
            tickets: match &self.tickets {
                None => TicketKeys::Off,
                Some(keys) if keys.is_empty() => TicketKeys::PerProcess,
                Some(_) => TicketKeys::FromFiles,
            },
            sessions_max: self.sessions_max,
            session_age_max: self.session_age_max,
        }
    }
}

/// Builds the TLS server.
///
/// # Errors
///
/// If the settings contradict each other; `config/listen_tls.rs` checks that before.
pub(crate) fn server(settings: Settings) -> Result<Arc<ServerConfig>, String> {
    let mut crypto = provider::default_provider();
    let has_ciphers = !settings.ciphers.is_empty();
    if has_ciphers {
        crypto.cipher_suites = settings.ciphers;
    }
    let crypto = Arc::new(crypto);
    let auth = auth_id(settings.client_auth, &settings.client_roots);
    let verifier = verifier(&crypto, settings.client_auth, settings.client_roots)?;
    let mut server = ServerConfig::builder_with_provider(crypto)
        .with_protocol_versions(&settings.versions)
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(settings.certificates));
    server.ignore_client_order = has_ciphers;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    server.session_storage = match settings.sessions_max {
        0 => Arc::new(NoServerSessionStorage {}),
        max => Arc::new(Sessions::new(max, settings.session_age_max)),
    };
    match settings.tickets {
        None => {}
        Some(keys) if keys.is_empty() => {
            server.ticketer = provider::Ticketer::new().map_err(|error| error.to_string())?;
        }
        Some(keys) => {
            server.ticketer = Arc::new(Tickets::new(keys, &auth, settings.session_age_max));
        }
    }
    Ok(Arc::new(server))
}

/// Identifies how clients are verified. A session resumes only under the rules of its handshake,
/// because resumption does not verify the certificate again.
fn auth_id(auth: ClientAuth, roots: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(&[auth as u8]);
    for root in roots {
        context.update(&(root.len() as u64).to_be_bytes());
        context.update(root);
    }
    let mut id = [0; 32];
    id.copy_from_slice(context.finish().as_ref());
    id
}

fn verifier(
    crypto: &Arc<rustls::crypto::CryptoProvider>,
    auth: ClientAuth,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    if auth == ClientAuth::Off {
        return Ok(WebPkiClientVerifier::no_client_auth());
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| format!("not a certificate: {error}"))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(crypto));
    let builder = match auth {
        ClientAuth::Optional => builder.allow_unauthenticated(),
        _ => builder,
    };
    builder.build().map_err(|error| error.to_string())
}

/// Reads the certificates of a PEM file, at least one.
///
/// # Errors
///
/// A description of the error in the file.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let describe_error = |error: rustls::pki_types::pem::Error| match error {
        rustls::pki_types::pem::Error::Io(error) => format!("cannot read the file: {error}"),
        error => format!("not a file of pem certificates: {error}"),
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(describe_error)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(describe_error)?;
    if certificates.is_empty() {
        return Err("the file contains no certificate".to_owned());
    }
    Ok(certificates)
}
