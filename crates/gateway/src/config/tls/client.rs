//! The names in a client's certificate.
//!
//! The handshake has already verified the certificate. The access rules decide which rights a name
//! in the certificate gives.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::{PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Maximum number of alternative names that are read from one certificate. Certificates of clients
/// have few names.
const NAMES_MAX: usize = 64;

/// Forms of a name in a certificate.
pub(crate) const NAME_FORMS: &str =
    "cn:NAME, dns:NAME, uri:URI, email:ADDRESS, ip:ADDRESS or subject:CN=NAME,O=...";

/// Parses a name in the form of [`ClientCertificate::names`]; `None` if it is malformed.
pub(crate) fn normalize_name(text: &str) -> Option<String> {
    let (kind, name) = text.split_once(':')?;
    match kind {
        _ if name.is_empty() => None,
        "dns" => Some(format!("dns:{}", name.to_ascii_lowercase())),
        "ip" => name.parse::<std::net::IpAddr>().ok().map(|ip| format!("ip:{ip}")),
        "subject" | "cn" | "uri" | "email" => Some(text.to_owned()),
        _ => None,
    }
}

/// The verified certificate of a client, reduced to its names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// The whole subject as in RFC 4514: `CN=ci,O=Example`.
    pub(crate) subject: String,
    /// Names in the certificate. Each has a prefix with its type: `subject:` for the whole subject,
    /// `cn:` for the common name, and `dns:`, `uri:`, `email:` or `ip:` for an alternative name.
    pub(crate) names: Vec<String>,
}

impl ClientCertificate {
    /// Parses a certificate that rustls has verified. A certificate that cannot be parsed has no
    /// names, so rules that need a name do not match.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> ClientCertificate {
        let Ok(certificate) = Certificate::from_der(certificate) else {
            return ClientCertificate::default();
        };
        let contents = &certificate.tbs_certificate;
        let subject = contents.subject.to_string();
        let mut names = vec![format!("subject:{subject}")];
        names.extend(common_name(&contents.subject).map(|name| format!("cn:{name}")));
        if let Ok(Some((_, alternative))) = contents.get::<SubjectAltName>() {
            names.extend(alternative.0.iter().filter_map(format_name).take(NAMES_MAX));
        }
        ClientCertificate { subject, names }
    }
}

/// Returns the common name of a subject; `None` without one.
fn common_name(subject: &x509_cert::name::Name) -> Option<String> {
    let mut parts = subject.0.iter().flat_map(|set| set.0.iter());
    let part = parts.find(|part| part.oid == CN)?;
    let text = part.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let printable =
        || part.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.to_string());
    text.or_else(|_| printable()).ok().filter(|name| !name.is_empty())
}

/// Returns an alternative name with the prefix of its type; `None` for a type that is not
/// supported.
fn format_name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(format!("dns:{}", name.as_str().to_ascii_lowercase())),
        GeneralName::UniformResourceIdentifier(uri) => Some(format!("uri:{}", uri.as_str())),
        GeneralName::Rfc822Name(email) => Some(format!("email:{}", email.as_str())),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let ip = match bytes.len() {
                4 => std::net::IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
                16 => std::net::IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
                _ => return None,
            };
            Some(format!("ip:{ip}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the names of a certificate are read unchanged, and malformed bytes yield no names.

    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn subject_and_names_are_read() {
        let mut params = CertificateParams::new(vec!["Ci.Example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "ci runner");
        params.distinguished_name.push(DnType::OrganizationName, "Example, Ltd");
        let uri = "spiffe://example/ci".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
        params.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap()));
        params.subject_alt_names.push(SanType::Rfc822Name("ci@example.org".try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let parsed = ClientCertificate::read(certificate.der());
        assert!(parsed.subject.contains("CN=ci runner"), "{}", parsed.subject);
        assert!(parsed.subject.contains(r"O=Example\, Ltd"), "{}", parsed.subject);
        assert_eq!(parsed.names[0], format!("subject:{}", parsed.subject));
        let names = ["cn:ci runner", "dns:ci.example", "uri:spiffe://example/ci", "ip:10.0.0.1"];
        assert_eq!(parsed.names[1..5], names);
        assert_eq!(parsed.names[5..], ["email:ci@example.org"]);
    }

    #[test]
    fn malformed_bytes_have_no_names() {
        for bytes in [&b""[..], b"x", &[0x30, 0x82, 0xff, 0xff]] {
            let parsed = ClientCertificate::read(&CertificateDer::from(bytes));
            assert_eq!(parsed, ClientCertificate::default());
        }
    }
}
