//! TLS towards clients: certificates and keys are read, and everything is made ready to serve.

use std::net::SocketAddr;
use std::path::Path;

use rustls::SupportedCipherSuite;
use rustls::version::{TLS12, TLS13};

use super::super::ListenTls;
use super::super::fault::Report;
use super::super::field::{CERTIFICATE, TLS};
use super::super::file::{Entry, Written};
use super::{refuse, refuse_element};
use crate::tls::certificate::{self, Certificate, CertificateFault};
use crate::tls::choose::Certificates;
use crate::tls::tickets::TicketKey;
use crate::tls::{self, ClientAuth, Settings, ciphers};

/// What serves clients over TLS at `address`; `None` without one, or where something is faulty.
pub(super) fn check(
    written: &Written,
    folder: &Path,
    address: Option<SocketAddr>,
    server: &Entry,
    report: &mut Report<'_>,
) -> Option<ListenTls> {
    let entry = written.once(&TLS);
    // Files are read where they are not used too: a fault in them is no news for the day on which
    // they are.
    let read = certificates(written, folder, report);
    let (versions, suites) = spoken(&entry, report);
    let tickets = ticket_keys(&entry, folder, report);
    let (client_auth, client_roots) = client_auth(&entry, folder, report);
    let written_count = written.all(&CERTIFICATE).count();
    let Some(address) = address else {
        let unused = written.all(&CERTIFICATE).next().or(written.all(&TLS).next());
        if let Some(unused) = unused {
            let key = if written_count > 0 { "certificate" } else { "tls" };
            let message = "is not used, because server.listen_tls is off";
            report.warn(unused.span.as_ref(), key, message, "server.listen_tls with an address");
        }
        return None;
    };
    if written_count == 0 {
        let message = "there is no certificate to show";
        refuse(report, server, "listen_tls", message, "at least one [[certificate]]");
    }
    if report.has_faults() {
        return None;
    }
    let mut certificates = Certificates::default();
    let mut names = Vec::with_capacity(read.len());
    let ended = read.iter().any(|(certificate, _)| certificate.has_ended());
    for (certificate, own) in read {
        certificates.add(certificate.key, &own);
        names.push(own);
    }
    let settings = Settings {
        versions,
        ciphers: suites,
        certificates,
        tickets,
        sessions_max: entry.value("sessions_max").size(),
        session_age_max: entry.value("session_age_max").duration(),
        client_auth,
        client_roots,
    };
    let terms = settings.terms();
    match tls::server(settings) {
        Ok(server) => {
            let handshake_timeout = entry.value("handshake_timeout").duration();
            Some(ListenTls { address, server, handshake_timeout, client_auth, names, ended, terms })
        }
        Err(message) => {
            refuse(report, server, "listen_tls", &message, "settings that fit each other");
            None
        }
    }
}

/// Every certificate with the names that it is shown for.
fn certificates(
    written: &Written,
    folder: &Path,
    report: &mut Report<'_>,
) -> Vec<(Certificate, Vec<String>)> {
    let mut read = Vec::new();
    for entry in written.all(&CERTIFICATE) {
        let file = |key| entry.chosen(key).map(|name| folder.join(name.text()));
        let (Some(chain_file), Some(key_file)) = (file("chain_file"), file("key_file")) else {
            continue;
        };
        let certificate = match certificate::read(&chain_file, &key_file) {
            Ok(certificate) => certificate,
            Err(CertificateFault::Chain(message)) => {
                refuse(report, entry, "chain_file", &message, "a file of pem certificates");
                continue;
            }
            Err(CertificateFault::Key(message)) => {
                refuse(report, entry, "key_file", &message, "the certificate's key in pem");
                continue;
            }
        };
        if certificate.has_ended() {
            let span = entry.set("chain_file").and_then(|set| set.span.as_ref());
            let message = "the certificate has ended: clients will refuse it";
            report.warn(span, entry.key("chain_file"), message, "a certificate that holds now");
        }
        let names = entry.chosen("names").map(|names| names.texts());
        let names = names.unwrap_or_else(|| certificate.names.clone());
        read.push((certificate, names));
    }
    read
}

type Versions = Vec<&'static rustls::SupportedProtocolVersion>;

/// The versions and suites, each of the versions with a suite of its own.
fn spoken(entry: &Entry, report: &mut Report<'_>) -> (Versions, Vec<SupportedCipherSuite>) {
    let chosen = entry.chosen("versions").map(|versions| versions.texts());
    let chosen = chosen.unwrap_or_else(|| vec!["1.2".to_owned(), "1.3".to_owned()]);
    let has = |version: &str| chosen.iter().any(|chosen| chosen == version);
    let names = entry.chosen("ciphers").map(|ciphers| ciphers.texts()).unwrap_or_default();
    let suites: Vec<_> = names.iter().filter_map(|name| ciphers::find(name)).collect();
    let mut versions = Vec::new();
    for (name, version, of_13) in [("1.2", &TLS12, false), ("1.3", &TLS13, true)] {
        if !has(name) {
            continue;
        }
        versions.push(version);
        // What could not be read was told already.
        let read_whole = suites.len() == names.len();
        let missing = !suites.iter().any(|suite| ciphers::is_tls13(suite) == of_13);
        if !names.is_empty() && read_whole && missing {
            let message = format!("no cipher of tls {name}, which is spoken");
            let allowed = format!("a cipher of tls {name}, or tls.versions without it");
            refuse(report, entry, "ciphers", &message, &allowed);
        }
    }
    if versions.is_empty() {
        refuse(report, entry, "versions", "no version is spoken", "\"1.2\", \"1.3\" or both");
    }
    (versions, suites)
}

/// The keys of tickets, none of them where each process makes its own; `None` without tickets.
fn ticket_keys(entry: &Entry, folder: &Path, report: &mut Report<'_>) -> Option<Vec<TicketKey>> {
    let names = entry.value("ticket_key_files").texts();
    let mut keys = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        match TicketKey::read(&folder.join(name)) {
            Ok(key) => keys.push(key),
            Err(message) => {
                let allowed = "a file of 48 or 80 random bytes";
                refuse_element(report, entry, "ticket_key_files", at, &message, allowed);
            }
        }
    }
    entry.value("tickets").switch().then_some(keys)
}

fn client_auth(
    entry: &Entry,
    folder: &Path,
    report: &mut Report<'_>,
) -> (ClientAuth, Vec<rustls::pki_types::CertificateDer<'static>>) {
    let file = entry.chosen("client_ca").map(|name| folder.join(name.text()));
    let auth = match entry.chosen("client_auth").map(|auth| auth.choice()) {
        Some("optional") => ClientAuth::Optional,
        Some("required") => ClientAuth::Required,
        None if file.is_some() => ClientAuth::Required,
        _ => ClientAuth::Off,
    };
    let roots = match &file {
        None if auth != ClientAuth::Off => {
            let message = "there is nothing to verify clients' certificates with";
            refuse(report, entry, "client_auth", message, "client_ca with a file, or \"off\"");
            Vec::new()
        }
        None => Vec::new(),
        Some(file) => match tls::read_certificates(file) {
            Ok(roots) => roots,
            Err(message) => {
                refuse(report, entry, "client_ca", &message, "a file of pem certificates");
                Vec::new()
            }
        },
    };
    (auth, roots)
}
