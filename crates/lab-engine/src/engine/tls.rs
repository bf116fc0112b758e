//! Converts the TLS settings of a plan for rustls. `crates/lab-engine/src/engine/connection.rs`
//! runs the handshakes.

use std::path::Path;
use std::sync::Arc;

use lab_model::plan::{HttpVersion, Target, Tls, TlsVersion};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{CipherSuite, ClientConfig, RootCertStore, SupportedCipherSuite, version};

use super::EngineFault;
use super::connection::Peer;

/// Maximum number of sessions that rustls stores for resumption. All of them belong to the one
/// server name of the target.
const SESSIONS_MAX: usize = 256;

/// Returns the server name and the TLS settings of a target. [`Peer`] has neither if the target
/// does not use TLS.
///
/// # Errors
/// Fails if a name, file or cipher of the plan cannot be used.
pub(crate) fn build_peer(
    target: &Target,
    tls: &Tls,
    http: HttpVersion,
) -> Result<Peer, EngineFault> {
    if !target.url.tls() {
        return Ok(Peer { tls: None });
    }
    let host = target.url.host();
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| EngineFault::ServerName { host: host.to_owned() })?;
    Ok(Peer { tls: Some((name, Arc::new(build_config(tls, http)?))) })
}

fn build_config(settings: &Tls, http: HttpVersion) -> Result<ClientConfig, EngineFault> {
    let provider = Arc::new(build_provider(settings)?);
    let versions = match settings.version {
        None => vec![&version::TLS13, &version::TLS12],
        Some(TlsVersion::Tls12) => vec![&version::TLS12],
        Some(TlsVersion::Tls13) => vec![&version::TLS13],
    };
    let builder =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions)?;
    let mut config = if settings.insecure {
        wire::tls::accept_any_certificate(builder)
    } else {
        let anchors = read_anchors(settings.ca.as_deref())?;
        builder.with_root_certificates(anchors).with_no_client_auth()
    };
    config.alpn_protocols = match http {
        HttpVersion::Http1 => vec![b"http/1.1".to_vec()],
        HttpVersion::Http2 => vec![b"h2".to_vec()],
    };
    config.resumption = if settings.resume {
        Resumption::in_memory_sessions(SESSIONS_MAX)
    } else {
        Resumption::disabled()
    };
    Ok(config)
}

/// Returns the public root certificates and those in the plan's file.
fn read_anchors(file: Option<&Path>) -> Result<RootCertStore, EngineFault> {
    let mut anchors = wire::tls::public_roots();
    if let Some(path) = file {
        wire::tls::read_certificates(path)
            .and_then(|certificates| wire::tls::add_roots(&mut anchors, certificates))
            .map_err(|reason| EngineFault::Anchors { path: path.to_owned(), reason })?;
    }
    Ok(anchors)
}

/// Returns the cryptography of aws-lc-rs. If the plan names cipher suites, only these are included.
fn build_provider(settings: &Tls) -> Result<CryptoProvider, EngineFault> {
    let mut provider = aws_lc_rs::default_provider();
    if settings.ciphers.is_empty() {
        return Ok(provider);
    }
    let has_version = |suite: &&SupportedCipherSuite| match settings.version {
        None => true,
        Some(TlsVersion::Tls12) => suite.tls13().is_none(),
        Some(TlsVersion::Tls13) => suite.tls13().is_some(),
    };
    let supported: Vec<SupportedCipherSuite> =
        aws_lc_rs::ALL_CIPHER_SUITES.iter().filter(has_version).copied().collect();
    let mut suites = Vec::new();
    for name in &settings.ciphers {
        let suite = supported.iter().find(|suite| {
            let iana = iana_name(suite.suite());
            name.eq_ignore_ascii_case(&iana) || name.eq_ignore_ascii_case(&openssl_name(&iana))
        });
        let names = || supported.iter().map(|suite| iana_name(suite.suite())).collect::<Vec<_>>();
        suites.push(*suite.ok_or_else(|| EngineFault::Cipher {
            name: name.clone(),
            allowed: names().join(", "),
        })?);
    }
    provider.cipher_suites = suites;
    Ok(provider)
}

/// Returns the IANA name of a cipher suite. rustls writes `TLS13_` in the names of TLS 1.3, where
/// the IANA name has `TLS_`.
fn iana_name(suite: CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

/// Returns the OpenSSL name of a cipher suite
/// (<https://docs.openssl.org/master/man1/openssl-ciphers/>). For TLS 1.3 both names are the same.
fn openssl_name(iana: &str) -> String {
    let Some((exchange, cipher)) = iana.trim_start_matches("TLS_").split_once("_WITH_") else {
        return iana.to_owned();
    };
    let cipher =
        cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305");
    format!("{exchange}-{cipher}").replace('_', "-")
}

#[cfg(test)]
mod tests;
