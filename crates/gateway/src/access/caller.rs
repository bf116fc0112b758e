//! Authenticates a request: finds the grant of the client's key, token or certificate. A *grant*
//! holds the rights of one key or token. A *credential* is a key or token that a request presents.
//! Without a credential, the client's certificate can identify the client.
//!
//! Each call refers to the resulting [`Caller`]. Limits, rules, logs and metrics use the caller.
//! The gateway looks up a credential by its hash, so that the duration of a lookup does not reveal
//! how close a guessed key is. `policy/access.rs` decides what a grant allows, and
//! `access/token.rs` verifies tokens.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::access::token::Tokens;
use crate::config::Config;
use crate::config::access::{KeyPlaces, Proof, sha256};
use crate::config::tls::client::ClientCertificate;
use crate::io::clock::unix_seconds;
use crate::policy::access::{Denial, Grant, check_grant};
use crate::policy::routing_rules::hash_caller;

#[cfg(test)]
mod tests;

/// Minimum bytes of a key in a path. Shorter path segments are names of chains.
pub(crate) const KEY_BYTES_MIN: usize = 16;

/// Name of the query parameter that holds a key.
const QUERY_NAME: &str = "key";

/// The caller of a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Address of the client.
    pub(crate) address: IpAddr,
    /// The grant of the caller's key or token; `None` if the caller has neither.
    pub(crate) grant: Option<Arc<Grant>>,
}

impl Caller {
    pub(crate) fn without_key(address: IpAddr) -> Caller {
        Caller { address, grant: None }
    }

    /// Returns the name of the caller's key or token; `None` if the caller has neither.
    pub(crate) fn key(&self) -> Option<&str> {
        self.grant.as_ref().map(|grant| &*grant.name)
    }

    /// Returns the tier of the caller's key or token; `None` without a tier. Rules and priorities
    /// refer to tiers by name.
    pub(crate) fn tier(&self) -> Option<&str> {
        self.grant.as_ref().and_then(|grant| grant.tier.as_deref())
    }

    /// Returns a hash of the caller's address.
    pub(crate) fn address_hash(&self) -> u64 {
        hash_caller(None, self.address)
    }

    /// Returns a hash of the caller's key, or of the caller's address if there is no key.
    pub(crate) fn hash(&self) -> u64 {
        hash_caller(self.key(), self.address)
    }
}

/// The optional parts of a request's head (request line and headers) that the gateway parses
/// because the configuration needs them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadFields {
    /// Lower-case name of the header that a group hashes for load balancing; `None` without such a
    /// header.
    pub(crate) hash_header: Option<String>,
    /// The headers that are part of rate-limit keys.
    pub(crate) limit_headers: Vec<http::HeaderName>,
    /// The fields for access control, rules and the access log; `None` if all of them are off.
    pub(crate) access_fields: Option<AccessFields>,
}

/// The fields that access control, rules and the access log need.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AccessFields {
    /// The places where a request may hold a key; `None` without access control.
    key_places: Option<KeyPlaces>,
    /// True if the configuration has issuers of tokens.
    accepts_tokens: bool,
    /// Lower-case names of the headers that rules and the access log use.
    used_headers: Vec<Box<str>>,
}

impl HeadFields {
    /// Returns the fields that a configuration needs.
    pub(crate) fn new(
        config: &Config,
        hash_header: Option<String>,
        limit_headers: Vec<http::HeaderName>,
    ) -> HeadFields {
        let has_access_control = config.access.is_on();
        let needs_access_fields =
            has_access_control || !config.rules.is_empty() || config.access_log.is_some();
        let access_fields = needs_access_fields.then(|| AccessFields {
            key_places: has_access_control.then(|| config.access.places.clone()),
            accepts_tokens: !config.access.issuers.is_empty(),
            used_headers: config.used_headers.clone(),
        });
        HeadFields { hash_header, limit_headers, access_fields }
    }
}

/// The value of a header that is part of a rate-limit key; `None` if the request lacks the header.
/// A client name or an address usually fits into 24 bytes, without an allocation.
pub(crate) type HeaderValue = Option<SmallVec<[u8; 24]>>;

/// Values of the headers in [`HeadFields::limit_headers`]. Most configurations have at most one.
pub(crate) type HeaderValues = SmallVec<[HeaderValue; 1]>;

/// The values of a head's [`AccessFields`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessValues {
    /// The host without its port.
    pub(crate) host: Box<str>,
    /// Values by index in `AccessFields::used_headers`; `None` for headers that the request lacks.
    pub(crate) headers: Box<[Option<Box<[u8]>>]>,
    header_credential: HeaderCredential,
    /// The credential in the query of the URL.
    query_credential: Option<Credential>,
}

/// The credential in a head's headers.
#[derive(Debug, Default, PartialEq, Eq)]
enum HeaderCredential {
    #[default]
    None,
    One(Credential),
    /// Several different credentials, which are ambiguous.
    Several,
}

/// A key or token that a request presents. The text of a credential is stored only if the text may
/// be a token. Otherwise only the hash is stored.
#[derive(PartialEq, Eq)]
struct Credential {
    /// SHA-256 of the text.
    hash: [u8; 32],
    /// The text of a possible token, whose signature is not verified yet. `None` if the text has
    /// another format or the gateway accepts no tokens.
    token: Option<Box<str>>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

impl AccessValues {
    pub(crate) fn new(fields: &AccessFields) -> AccessValues {
        AccessValues {
            headers: vec![None; fields.used_headers.len()].into(),
            ..AccessValues::default()
        }
    }

    /// Stores the credential of a header that `fields` lists as a place of keys. Stores the value
    /// of a header that rules or the access log use.
    pub(crate) fn add_header(&mut self, name: &str, value: &[u8], fields: &AccessFields) {
        if let Some(places) = &fields.key_places {
            let is_named = |expected: &str| name.eq_ignore_ascii_case(expected);
            if places.bearer && is_named("authorization") {
                if let Some(token) = parse_bearer(value) {
                    self.add_credential(Credential::new(token, fields.accepts_tokens));
                }
            } else if places.header.as_deref().is_some_and(is_named) {
                // Only an `authorization` header may hold a token, hence `false`.
                self.add_credential(Credential::new(value.trim_ascii(), false));
            }
        }
        for (used_name, slot) in fields.used_headers.iter().zip(&mut self.headers) {
            if slot.is_none() && name.eq_ignore_ascii_case(used_name) {
                *slot = Some(value.into());
            }
        }
    }

    /// Stores a configured key with this hash, as if a header held the key.
    pub(crate) fn add_key(&mut self, hash: [u8; 32]) {
        self.add_credential(Credential { hash, token: None });
    }

    /// Stores a credential from a header. Different credentials in several headers are ambiguous.
    fn add_credential(&mut self, credential: Credential) {
        self.header_credential = match &self.header_credential {
            HeaderCredential::None => HeaderCredential::One(credential),
            HeaderCredential::One(earlier) if earlier.hash == credential.hash => return,
            HeaderCredential::One(_) | HeaderCredential::Several => HeaderCredential::Several,
        };
    }

    /// Stores the host without its port, and the credential in the query of the target.
    pub(crate) fn set_target(&mut self, host: &str, target: &str, fields: &AccessFields) {
        // The port follows the last colon, unless that colon is part of an IPv6 address in
        // brackets.
        let colon = host.rfind(':').filter(|colon| !host[*colon..].contains(']'));
        self.host = host[..colon.unwrap_or(host.len())].into();
        let accepts_query = fields.key_places.as_ref().is_some_and(|places| places.query);
        let Some((_, query)) = target.split_once('?').filter(|_| accepts_query) else { return };
        let find_credential = |pair: &str| -> Option<Credential> {
            let (name, value) = pair.split_once('=')?;
            let key = (name == QUERY_NAME && !value.is_empty()).then_some(value)?;
            let accepts_tokens = false;
            Some(Credential::new(key.as_bytes(), accepts_tokens))
        };
        let query = query.split('#').next().unwrap_or("");
        self.query_credential = query.split('&').find_map(find_credential);
    }
}

impl Credential {
    /// Creates the credential with this text. A text with two dots may be a JSON web token.
    fn new(text: &[u8], accepts_tokens: bool) -> Credential {
        let is_token = accepts_tokens && text.iter().filter(|byte| **byte == b'.').count() == 2;
        let token = is_token.then(|| std::str::from_utf8(text).ok()).flatten();
        Credential { hash: sha256(text), token: token.map(Box::from) }
    }
}

/// Returns the token after `Bearer` (RFC 6750, section 2.1); `None` for other values.
fn parse_bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, remainder) = value.trim_ascii().split_at_checked(b"bearer".len())?;
    let token = remainder.trim_ascii();
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer") && remainder.starts_with(b" ");
    (is_bearer && !token.is_empty()).then_some(token)
}

/// The keys of a configuration, by their hash or certificate. All threads share this index.
#[derive(Debug)]
pub(crate) struct KeyIndex {
    /// Maps the hash of a key to the key's index in `Access::keys`.
    keys: HashMap<[u8; 32], usize, RandomState>,
    /// Maps the name in a certificate to the index in `Access::keys` of the key that the
    /// certificate identifies.
    certificates: HashMap<Box<str>, usize, RandomState>,
}

impl KeyIndex {
    /// Creates the index of a configuration; `None` if access control is off.
    pub(crate) fn new(config: &Config) -> Option<KeyIndex> {
        let access = &config.access;
        let mut key_index = KeyIndex { keys: HashMap::default(), certificates: HashMap::default() };
        for (index, key) in access.keys.iter().enumerate() {
            match &key.proof {
                Proof::Hash(hash) => _ = key_index.keys.insert(*hash, index),
                Proof::Certificate(name) => _ = key_index.certificates.insert(name.clone(), index),
            }
        }
        access.is_on().then_some(key_index)
    }

    /// Returns the index of the key that a certificate identifies. If the certificate has the names
    /// of several keys, the lowest index wins.
    fn find_certificate_key(&self, certificate: Option<&ClientCertificate>) -> Option<usize> {
        let names = certificate?.names.iter();
        names.filter_map(|name| self.certificates.get(name.as_str()).copied()).min()
    }
}

/// The parts of a request that authentication needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestIdentity<'a> {
    /// Address of the client.
    pub(crate) client: IpAddr,
    /// The URL path, which may contain a key.
    pub(crate) path: &'a str,
    /// The values of the head's [`AccessFields`]; `None` if the configuration needs none.
    pub(crate) access_values: Option<&'a AccessValues>,
    /// True for a POST and for a WebSocket upgrade. Other requests, such as health checks and CORS
    /// preflights, need no key. A key in such a request is ignored.
    pub(crate) needs_key: bool,
    /// The verified certificate of the client; `None` without one.
    pub(crate) certificate: Option<&'a ClientCertificate>,
}

/// An authenticated request.
#[derive(Debug)]
pub(crate) struct Authenticated<'a> {
    pub(crate) caller: Caller,
    /// The path without the key.
    pub(crate) path: &'a str,
}

/// Authenticates a request.
///
/// # Errors
/// The reason why the request is denied.
pub(crate) fn authenticate<'a>(
    config: &Config,
    key_index: &KeyIndex,
    tokens: Option<&RefCell<Tokens>>,
    identity: &RequestIdentity<'a>,
) -> Result<Authenticated<'a>, Denial> {
    let (access, client) = (&config.access, identity.client);
    if !access.clients.allows(client) {
        return Err(Denial::Address);
    }
    let (key, path) = find_key(key_index, identity.path, identity.access_values, &access.places)?;
    if !identity.needs_key {
        return Ok(Authenticated { caller: Caller::without_key(client), path });
    }
    let index = match &key {
        Some(key) => key_index.keys.get(&key.hash).copied(),
        None => key_index.find_certificate_key(identity.certificate),
    };
    let grant = match (index, key) {
        (Some(index), _) => Arc::clone(&access.keys[index].grant),
        (None, Some(key)) => find_token_grant(config, tokens, &key)?,
        (None, None) if access.required => return Err(Denial::NoKey),
        (None, None) => return Ok(Authenticated { caller: Caller::without_key(client), path }),
    };
    check_grant(&grant, client, unix_seconds)?;
    Ok(Authenticated { caller: Caller { address: client, grant: Some(grant) }, path })
}

/// A reference to a [`Credential`], or the hash of a key in the path.
struct PresentedKey<'a> {
    /// SHA-256 of the text.
    hash: [u8; 32],
    /// The text of a possible token; `None` for a key.
    token: Option<&'a str>,
}

/// Returns the credential with the highest precedence, and the path without a key. A credential in
/// a header takes precedence over a key in the path, and both over a credential in the query.
/// Returns [`Denial::TwoKeys`] if the headers hold different credentials.
fn find_key<'a>(
    key_index: &KeyIndex,
    full_path: &'a str,
    access_values: Option<&'a AccessValues>,
    places: &KeyPlaces,
) -> Result<(Option<PresentedKey<'a>>, &'a str), Denial> {
    let present = |credential: &'a Credential| PresentedKey {
        hash: credential.hash,
        token: credential.token.as_deref(),
    };
    // A key in the path is removed from the returned path, even if a credential in a header takes
    // precedence.
    let in_path = if places.path { find_key_in_path(key_index, full_path) } else { None };
    let path = in_path.map_or(full_path, |(_, path)| path);
    let in_header = match access_values.map(|access_values| &access_values.header_credential) {
        Some(HeaderCredential::Several) => return Err(Denial::TwoKeys),
        Some(HeaderCredential::One(credential)) => Some(present(credential)),
        Some(HeaderCredential::None) | None => None,
    };
    let path_key = in_path.map(|(hash, _)| PresentedKey { hash, token: None });
    let in_query = access_values.and_then(|access_values| access_values.query_credential.as_ref());
    let key = in_header.or(path_key).or(in_query.map(present));
    Ok((key, path))
}

/// Finds a configured key in the last or the first segment of a path. Returns the hash of the key
/// and the path without the key; `None` if neither segment is a configured key. Other segments can
/// be names of chains.
fn find_key_in_path<'a>(key_index: &KeyIndex, path: &'a str) -> Option<([u8; 32], &'a str)> {
    let path = path.trim_end_matches('/');
    let (start, last_segment) = path.rsplit_once('/')?;
    let without_last = if start.is_empty() { "/" } else { start };
    let split_first = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    // The path without its first segment still starts with a slash.
    let first_candidate = split_first
        .map(|(segment, remainder)| (segment, &path[path.len() - remainder.len() - 1..]));
    let candidates = [Some((last_segment, without_last)), first_candidate];
    candidates.into_iter().flatten().find_map(|(segment, remaining_path)| {
        let hash = (segment.len() >= KEY_BYTES_MIN).then(|| sha256(segment.as_bytes()))?;
        key_index.keys.contains_key(&hash).then_some((hash, remaining_path))
    })
}

/// Verifies a token and returns its grant. A cached token is not verified again. Returns
/// [`Denial::BadKey`] if the credential cannot be a token.
fn find_token_grant(
    config: &Config,
    tokens: Option<&RefCell<Tokens>>,
    key: &PresentedKey<'_>,
) -> Result<Arc<Grant>, Denial> {
    let (Some(token), Some(tokens)) = (key.token, tokens) else { return Err(Denial::BadKey) };
    tokens.borrow_mut().find_grant(&key.hash, token, config)
}
