//! Selects a certificate by the server name that the client sends (SNI), and by the types of keys
//! that the client can verify.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// All certificates of the gateway.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    /// Certificates in the order of the file. The first is the default.
    keys: Vec<Arc<CertifiedKey>>,
    /// Indices in `keys`, by lower-case name.
    exact: HashMap<Box<str>, Vec<usize>>,
    /// Indices in `keys`, by the part of a wildcard name after `*.`.
    wildcard: HashMap<Box<str>, Vec<usize>>,
}

impl Certificates {
    /// Adds a certificate for these names.
    pub(crate) fn add(&mut self, key: Arc<CertifiedKey>, names: &[String]) {
        let index = self.keys.len();
        self.keys.push(key);
        for name in names {
            let (map, name) = match name.strip_prefix("*.") {
                Some(parent_domain) => (&mut self.wildcard, parent_domain),
                None => (&mut self.exact, name.as_str()),
            };
            map.entry(name.to_ascii_lowercase().into()).or_default().push(index);
        }
    }

    /// Returns the indices of the certificates for a name. Wildcard names apply only if no exact
    /// name matches. A star matches one label (RFC 6125, section 6.4.3). Returns an empty slice if
    /// no name matches.
    fn find_indices(&self, name: &str) -> &[usize] {
        // DNS names ignore case. Most names are in lower case, so they are not copied.
        let lower_case;
        let name = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            lower_case = name.to_ascii_lowercase();
            &lower_case
        } else {
            name
        };
        let wildcard = || self.wildcard.get(name.split_once('.')?.1);
        self.exact.get(name).or_else(wildcard).map_or(&[], Vec::as_slice)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let indices = hello.server_name().map_or(&[][..], |name| self.find_indices(name));
        let named_keys = || indices.iter().map(|index| &self.keys[*index]);
        let can_sign =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let key = if indices.is_empty() {
            // No certificate has the name, so every certificate is a candidate.
            self.keys.iter().find(can_sign)
        } else {
            named_keys().find(can_sign)
        };
        // If the client can verify no key, the handshake fails anyway. Returning a certificate then
        // gives the failure a more precise reason.
        key.or_else(|| named_keys().next()).or_else(|| self.keys.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a name selects its own certificates, in any letter case, and a star matches one label.

    use super::*;

    fn check(name: &str, expected: &[usize]) {
        let mut certificates = Certificates::default();
        let names =
            [&["a.test", "*.a.test"][..], &["B.test"], &["x.a.test", "a.test"], &["*.deep.a.test"]];
        for names in names {
            let key = rcgen::KeyPair::generate().unwrap();
            let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
            let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            certificates.add(Arc::new(CertifiedKey::new(Vec::new(), key)), &names);
        }
        assert_eq!(certificates.find_indices(name), expected, "{name}");
    }

    #[test]
    fn names_select_certificates() {
        check("a.test", &[0, 2]);
        check("A.TEST", &[0, 2]);
        check("y.a.test", &[0]);
        check("Y.A.Test", &[0]);
        check("x.a.test", &[2]);
        check("b.test", &[1]);
        check("c.b.test", &[]);
        check("y.deep.a.test", &[3]);
        check("z.y.a.test", &[]);
        check("test", &[]);
        check("", &[]);
    }
}
