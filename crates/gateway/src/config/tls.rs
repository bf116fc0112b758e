//! Builds the settings of the TLS server that clients connect to.
//!
//! The validation of the configuration builds these settings. So a bad file is a configuration
//! error, and not a failure of the first handshake. `downstream/tls.rs` does the handshake, and
//! `wire::tls` builds the TLS clients. The modules in reading order:
//!
//! | module | what |
//! |---|---|
//! | `certificate` | the gateway's certificates and their keys |
//! | `sni` | selects the certificate for a connection |
//! | `ciphers` | the names of cipher suites |
//! | `tickets`, `sessions` | resumption of sessions |
//! | `client` | client certificates |

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

pub(crate) mod certificate;
pub(crate) mod ciphers;
pub(crate) mod client;
pub(crate) mod sessions;
pub(crate) mod sni;
pub(crate) mod tickets;

use sessions::Sessions;
use sni::Certificates;
use tickets::{TicketKey, Tickets};

/// Whether clients must send a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// No certificate is requested.
    Off,
    /// Clients are asked for a certificate, but are also served without one. A certificate that a
    /// client sends must be valid.
    Optional,
    /// Clients without a certificate are rejected.
    Required,
}

/// Settings of a [`ServerConfig`].
pub(crate) struct ServerSettings {
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    /// Cipher suites, the most preferred first. An empty list allows all suites, in the client's
    /// order of preference.
    pub(crate) ciphers: Vec<SupportedCipherSuite>,
    pub(crate) certificates: Certificates,
    /// Keys of session tickets. `None` turns tickets off. If the list is empty, the process
    /// generates and rotates its own keys.
    pub(crate) tickets: Option<Vec<TicketKey>>,
    /// Maximum number of sessions that the gateway stores; 0 turns session storage off.
    pub(crate) sessions_max: usize,
    /// Maximum age of stored sessions, and of tickets under keys from files.
    pub(crate) session_age_max: Duration,
    pub(crate) client_auth: ClientAuth,
    /// Authorities that sign client certificates.
    pub(crate) client_roots: Vec<CertificateDer<'static>>,
}

/// Source of the ticket keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKeySource {
    /// There are no tickets.
    Off,
    /// Each process generates its own keys.
    PerProcess,
    /// The keys are read from files.
    FromFiles,
}

/// The settings that must be equal before and after a reload for sessions to resume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResumptionSettings {
    /// Hash of the rules for verifying clients.
    client_auth_hash: [u8; 32],
    pub(crate) ticket_keys: TicketKeySource,
    sessions_max: usize,
    session_age_max: Duration,
}

impl ServerSettings {
    /// Returns the settings that must be equal before and after a reload for sessions to resume.
    pub(crate) fn resumption(&self) -> ResumptionSettings {
        ResumptionSettings {
            client_auth_hash: hash_client_auth(self.client_auth, &self.client_roots),
            ticket_keys: match &self.tickets {
                None => TicketKeySource::Off,
                Some(keys) if keys.is_empty() => TicketKeySource::PerProcess,
                Some(_) => TicketKeySource::FromFiles,
            },
            sessions_max: self.sessions_max,
            session_age_max: self.session_age_max,
        }
    }
}

/// Builds the configuration of rustls for serving clients.
///
/// # Errors
///
/// If the settings contradict each other. `config/listen_tls.rs` has already reported most
/// contradictions.
pub(crate) fn build_server_config(settings: ServerSettings) -> Result<Arc<ServerConfig>, String> {
    let mut crypto = provider::default_provider();
    let has_ciphers = !settings.ciphers.is_empty();
    if has_ciphers {
        crypto.cipher_suites = settings.ciphers;
    }
    let crypto = Arc::new(crypto);
    let client_auth_hash = hash_client_auth(settings.client_auth, &settings.client_roots);
    let verifier = build_client_verifier(&crypto, settings.client_auth, settings.client_roots)?;
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
            server.ticketer =
                Arc::new(Tickets::new(keys, &client_auth_hash, settings.session_age_max));
        }
    }
    Ok(Arc::new(server))
}

/// Returns a hash of the rules for verifying clients. Resumption does not verify the client's
/// certificate again. So a session may resume only while the rules of its first handshake apply.
fn hash_client_auth(auth: ClientAuth, roots: &[CertificateDer<'_>]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(&[auth as u8]);
    for root in roots {
        context.update(&(root.len() as u64).to_be_bytes());
        context.update(root);
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Builds the verifier of client certificates.
fn build_client_verifier(
    crypto: &Arc<rustls::crypto::CryptoProvider>,
    auth: ClientAuth,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    if auth == ClientAuth::Off {
        return Ok(WebPkiClientVerifier::no_client_auth());
    }
    let roots = Arc::new(wire::tls::build_roots(certificates)?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(crypto));
    if auth == ClientAuth::Optional {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| error.to_string())
}
