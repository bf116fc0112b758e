//! `[tls]` and `[[certificate]]`: TLS with clients.
//!
//! The validation of the configuration reads the files of certificates and keys. So a bad file is a
//! configuration error, and not a failure of the first handshake.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::SupportedCipherSuite;
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use settings::value::{Bool, Duration as Period, File, Integer, List};
use settings::{Key, Report};

use super::values::{Cipher, DAY_MS, HOUR_MS, HostPattern, SECOND_MS};
use crate::config::tls::certificate::{self, Certificate, CertificateFault};
use crate::config::tls::sni::Certificates;
use crate::config::tls::tickets::TicketKey;
use crate::config::tls::{
    self, ClientAuth, ResumptionSettings, ServerSettings, TicketKeySource, ciphers,
};

settings::choice! {
    /// TLS versions.
    pub enum TlsVersion {
        /// TLS 1.2.
        "1.2" => Tls12,
        /// TLS 1.3.
        "1.3" => Tls13,
    }
}

settings::choice! {
    /// Whether clients must send a certificate.
    pub ClientAuthName for ClientAuth {
        "off" => Off,
        "optional" => Optional,
        "required" => Required,
    }
}

settings::table! {
    /// TLS settings for clients; used if `server.listen_tls` is set.
    pub struct TlsTable {
        /// Accepted TLS versions.
        versions: List<TlsVersion> =
            described "`[\"1.2\", \"1.3\"]`" => vec![TlsVersion::Tls12, TlsVersion::Tls13];
        /// Cipher suites, the most preferred first. Names of suites of TLS 1.3 begin with `TLS_`.
        /// Each accepted version needs at least one suite.
        ciphers: List<Cipher> = described "all of them, in the client's order" => Vec::new();
        /// If true, clients may resume a session by a ticket. In TLS 1.3 this is the only
        /// resumption that needs no memory in the gateway.
        tickets: Bool = "true";
        /// Files of 48 or 80 random bytes, as nginx's `ssl_session_ticket_key`. The first file
        /// encrypts tickets, and all files decrypt them. So replicas with the same files resume
        /// each other's sessions, and keys can be rotated. Without files each process generates its
        /// own keys and rotates them every 6 hours.
        ticket_key_files: List<File> = empty;
        /// Maximum number of sessions in memory, of about 300 bytes each, for clients that resume
        /// by session id. 0 turns this session cache off.
        sessions_max: Integer<0, 10_000_000, usize> = "20000";
        /// Maximum time for which a session can be resumed, by a ticket of `ticket_key_files` or by
        /// id.
        session_age_max: Period<SECOND_MS, { 7 * DAY_MS }> = "1h";
        /// Maximum time for a handshake.
        handshake_timeout: Period<1, HOUR_MS> = "10s";
        /// File of PEM certificates of the authorities that sign client certificates.
        client_ca: File = described "none";
        /// Whether clients are asked for a certificate. `off` asks for none. `optional` also serves
        /// clients without a certificate, and `required` rejects them. A certificate that a client
        /// sends is always verified.
        client_auth: ClientAuthName = described "`required` if `client_ca` is set, else `off`";
    }
}

settings::table! {
    /// A certificate that the gateway sends to clients. The first one is the default for clients
    /// without SNI or with an unknown name. If several certificates have the same name, the gateway
    /// sends the first whose key type the client can verify.
    pub struct CertificateTable by chain_file {
        /// File of PEM certificates: the gateway's own first, then the intermediate ones.
        chain_file: File = required;
        /// File of the certificate's private key in PEM: PKCS #8, PKCS #1 or SEC 1, without a
        /// password.
        key_file: File = required;
        /// Host names for which the certificate is used.
        names: List<HostPattern> = described "the names in the certificate";
    }
}

/// When a certificate of the gateway expires.
#[derive(Clone, Debug)]
pub(crate) struct CertificateExpiry {
    /// Value of `chain_file` in the configuration.
    pub(crate) chain_file: String,
    /// Time of expiry.
    pub(crate) expires: SystemTime,
}

/// The TLS listener and its settings.
#[derive(Clone)]
pub struct ListenTls {
    /// Address of the listener.
    pub address: SocketAddr,
    /// Certificates, versions, ciphers and sessions. All threads share them.
    pub server: Arc<rustls::ServerConfig>,
    /// Maximum time for a handshake.
    pub handshake_timeout: Duration,
    /// Whether clients must send a certificate.
    pub client_auth: ClientAuth,
    /// Names of each certificate, in the order of the file.
    pub names: Vec<Vec<String>>,
    /// True if one of the certificates has expired.
    pub has_expired: bool,
    /// The expiry of each `chain_file`.
    pub(crate) expiries: Vec<CertificateExpiry>,
    /// Settings that must be unchanged for sessions to resume after a reload.
    pub(crate) resumption: ResumptionSettings,
}

impl ListenTls {
    /// Takes over the stored sessions and the generated ticket keys of the former configuration, so
    /// that clients can resume their sessions after a reload. Takes over nothing if the settings in
    /// `resumption` differ.
    #[must_use]
    pub fn with_sessions_of(self, former: &ListenTls) -> ListenTls {
        if self.resumption != former.resumption {
            return self;
        }
        let mut server = (*self.server).clone();
        server.session_storage = Arc::clone(&former.server.session_storage);
        if self.resumption.ticket_keys == TicketKeySource::PerProcess {
            server.ticketer = Arc::clone(&former.server.ticketer);
        }
        ListenTls { server: Arc::new(server), ..self }
    }
}

impl fmt::Debug for ListenTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suites = &self.server.crypto_provider().cipher_suites;
        let suites: Vec<_> = suites.iter().map(SupportedCipherSuite::suite).collect();
        formatter
            .debug_struct("ListenTls")
            .field("address", &self.address)
            .field("handshake_timeout", &self.handshake_timeout)
            .field("client_auth", &self.client_auth)
            .field("names", &self.names)
            .field("suites", &suites)
            .field("tickets", &self.server.ticketer)
            .finish_non_exhaustive()
    }
}

/// Validates the TLS listener; `None` if `listen_tls` is off or there is an error.
pub(super) fn check(
    table: &TlsTable,
    certificate_tables: &[CertificateTable],
    listen_tls: &Key<Option<SocketAddr>>,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<ListenTls> {
    // The files are read even if TLS is off, so that their errors are reported early.
    let named_certificates = read_certificates(certificate_tables, folder, report);
    let versions = read_versions(table, report);
    let tickets = read_ticket_keys(table, folder, report);
    let (client_auth, client_roots) = read_client_auth(table, folder, report);
    let Some(address) = **listen_tls else {
        let message = "has no effect, because server.listen_tls is off";
        let advice = "server.listen_tls with an address";
        match certificate_tables.first() {
            Some(unused) => report.warn(unused, message, advice),
            None if table.location.table.is_some() => report.warn(table, message, advice),
            None => {}
        }
        return None;
    };
    if certificate_tables.is_empty() {
        let message = "there is no certificate";
        report.error(listen_tls, message, "at least one [[certificate]]");
    }
    if report.has_errors() {
        return None;
    }
    let mut certificates = Certificates::default();
    let mut names = Vec::with_capacity(named_certificates.len());
    let has_expired = named_certificates.iter().any(|(_, certificate)| certificate.has_expired());
    let mut expiries: Vec<CertificateExpiry> = Vec::with_capacity(named_certificates.len());
    for (chain_file, certificate) in named_certificates {
        // Two tables may name the same file, with different host names.
        if !expiries.iter().any(|expiry| expiry.chain_file == chain_file) {
            expiries.push(CertificateExpiry { chain_file, expires: certificate.expires });
        }
        certificates.add(certificate.key, &certificate.names);
        names.push(certificate.names);
    }
    let settings = ServerSettings {
        versions,
        ciphers: (*table.ciphers).clone(),
        certificates,
        tickets,
        sessions_max: *table.sessions_max,
        session_age_max: *table.session_age_max,
        client_auth,
        client_roots,
    };
    let resumption = settings.resumption();
    match tls::build_server_config(settings) {
        Ok(server) => Some(ListenTls {
            address,
            server,
            handshake_timeout: *table.handshake_timeout,
            client_auth,
            names,
            has_expired,
            expiries,
            resumption,
        }),
        Err(message) => {
            report.error(listen_tls, message, "consistent settings");
            None
        }
    }
}

/// Reads all certificates. Each returned certificate comes with its `chain_file`.
fn read_certificates(
    tables: &[CertificateTable],
    folder: &Path,
    report: &mut Report<'_>,
) -> Vec<(String, Certificate)> {
    let mut certificates = Vec::new();
    for table in tables {
        let to_path = |key: &Key<String>| key.valid_value().map(|name| folder.join(name));
        let files = (to_path(&table.chain_file), to_path(&table.key_file));
        let (Some(chain_file), Some(key_file)) = files else { continue };
        let mut certificate = match certificate::read(&chain_file, &key_file) {
            Ok(certificate) => certificate,
            Err(CertificateFault::Chain(message)) => {
                report.error(&table.chain_file, message, "a file of pem certificates");
                continue;
            }
            Err(CertificateFault::Key(message)) => {
                report.error(&table.key_file, message, "the certificate's key in pem");
                continue;
            }
        };
        if certificate.has_expired() {
            let message = "the certificate has expired: clients will reject it";
            report.warn(&table.chain_file, message, "a valid certificate");
        }
        if let Some(names) = &*table.names {
            certificate.names.clone_from(names);
        }
        certificates.push((table.chain_file.to_string(), certificate));
    }
    certificates
}

/// Returns the TLS versions and checks that each has a cipher suite.
fn read_versions(
    table: &TlsTable,
    report: &mut Report<'_>,
) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let suites = table.ciphers.valid_value().filter(|suites| !suites.is_empty());
    let mut versions = Vec::new();
    for (version, supported, is_13) in
        [(TlsVersion::Tls12, &TLS12, false), (TlsVersion::Tls13, &TLS13, true)]
    {
        if !table.versions.contains(&version) {
            continue;
        }
        versions.push(supported);
        let has_no_suite = |suites: &Vec<SupportedCipherSuite>| {
            !suites.iter().any(|suite| ciphers::is_tls13(suite) == is_13)
        };
        if suites.is_some_and(has_no_suite) {
            let name = TlsVersion::name_of(version);
            let message = format!("no cipher for tls {name}");
            let allowed = format!("a cipher of tls {name}, or tls.versions without it");
            report.error(&table.ciphers, message, allowed);
        }
    }
    if versions.is_empty() {
        report.error(&table.versions, "no tls version is enabled", "\"1.2\", \"1.3\" or both");
    }
    versions
}

/// Reads the ticket keys. Returns `None` if tickets are off, and an empty list if each process
/// generates its own keys.
fn read_ticket_keys(
    table: &TlsTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<Vec<TicketKey>> {
    let mut keys = Vec::with_capacity(table.ticket_key_files.len());
    for (index, name) in table.ticket_key_files.iter().enumerate() {
        match TicketKey::read(&folder.join(name)) {
            Ok(key) => keys.push(key),
            Err(message) => {
                let allowed = "a file of 48 or 80 random bytes";
                report.error(&table.ticket_key_files.element_location(index), message, allowed);
            }
        }
    }
    table.tickets.then_some(keys)
}

/// Returns how clients must authenticate, and the authorities that sign their certificates.
fn read_client_auth(
    table: &TlsTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> (ClientAuth, Vec<CertificateDer<'static>>) {
    let file = table.client_ca.as_ref().map(|name| folder.join(name));
    let default_auth = if file.is_some() { ClientAuth::Required } else { ClientAuth::Off };
    let auth = table.client_auth.unwrap_or(default_auth);
    let Some(file) = file else {
        if auth != ClientAuth::Off {
            let message = "client certificates cannot be verified without client_ca";
            report.error(&table.client_auth, message, "client_ca with a file, or \"off\"");
        }
        return (auth, Vec::new());
    };
    let roots = wire::tls::read_certificates(&file).unwrap_or_else(|message| {
        report.error(&table.client_ca, message, "a file of pem certificates");
        Vec::new()
    });
    (auth, roots)
}
