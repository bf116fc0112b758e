//! Who a client's certificate says that it is.
//!
//! Whether the certificate may be believed was settled in the handshake; what is allowed to whom is
//! for the rules of access.

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::asn1::{PrintableStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Names taken from one certificate; it was verified, but whoever issued it may be generous.
const NAMES_MAX: usize = 64;

/// The verified certificate of a client, as far as rules may ask about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    /// The whole subject as in RFC 4514: `CN=ci,O=Example`.
    pub(crate) subject: String,
    /// The subject's common name; empty if it has none.
    pub(crate) common_name: String,
    /// Alternative names with their kind: `dns:`, `uri:`, `email:` or `ip:` before each.
    pub(crate) names: Vec<String>,
}

impl ClientCertificate {
    /// Reads what rustls has verified. A certificate that cannot be read says nothing: rules that
    /// ask for a name then do not find it.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> ClientCertificate {
        let Ok(certificate) = Certificate::from_der(certificate) else {
            return ClientCertificate::default();
        };
        let facts = &certificate.tbs_certificate;
        let names = match facts.get::<SubjectAltName>() {
            Ok(Some((_, names))) => names.0.iter().filter_map(name).take(NAMES_MAX).collect(),
            _ => Vec::new(),
        };
        let subject = facts.subject.to_string();
        ClientCertificate { subject, common_name: common_name(&facts.subject), names }
    }
}

fn common_name(subject: &x509_cert::name::Name) -> String {
    let mut parts = subject.0.iter().flat_map(|set| set.0.iter());
    let Some(part) = parts.find(|part| part.oid == CN) else { return String::new() };
    let text = part.value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let plain = || part.value.decode_as::<PrintableStringRef<'_>>().map(|text| text.to_string());
    text.or_else(|_| plain()).unwrap_or_default()
}

fn name(name: &GeneralName) -> Option<String> {
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
    //! Goal: what a certificate says is read as it is, and nonsense says nothing.

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
        let read = ClientCertificate::read(certificate.der());
        assert_eq!(read.common_name, "ci runner");
        assert!(read.subject.contains("CN=ci runner"), "{}", read.subject);
        assert!(read.subject.contains(r"O=Example\, Ltd"), "{}", read.subject);
        let names = ["dns:ci.example", "uri:spiffe://example/ci", "ip:10.0.0.1"];
        assert_eq!(read.names[..3], names);
        assert_eq!(read.names[3], "email:ci@example.org");
    }

    #[test]
    fn nonsense_says_nothing() {
        for bytes in [&b""[..], b"x", &[0x30, 0x82, 0xff, 0xff]] {
            let read = ClientCertificate::read(&CertificateDer::from(bytes));
            assert_eq!(read, ClientCertificate::default());
        }
    }
}
