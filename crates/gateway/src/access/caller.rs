//! Who calls: the client's address, and the key or token that it gave.
//!
//! The [`Caller`] found here goes with each call: limits, rules, logs and metrics depend on it. A
//! key is hashed while the head is read, and never stored. Looking it up by its hash reveals
//! nothing about how near a guess was. Without a key, the client's certificate can stand for one.
//! `policy/access.rs` decides what a grant allows; `token.rs` verifies tokens.

use crate::config::access::sha256;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::access::token::Tokens;
use crate::config::Config;
use crate::config::access::{KeyPlaces, Proof};
use crate::config::tls::client::ClientCertificate;
use crate::policy::access::{Denial, Grant, may_use};
use crate::policy::direct::caller_hash;

#[cfg(test)]
mod tests;

/// Shortest key that is looked for in a path: what is shorter is a name.
pub(crate) const KEY_BYTES_MIN: usize = 16;

/// The parameter of the query that holds a key.
const QUERY_NAME: &str = "key";

/// Who calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) address: IpAddr,
    /// What its key or token grants; none without one.
    pub(crate) grant: Option<Arc<Grant>>,
}

impl Caller {
    /// Whoever calls from an address, without a key.
    pub(crate) fn at(address: IpAddr) -> Caller {
        Caller { address, grant: None }
    }

    /// The name of its key.
    pub(crate) fn key(&self) -> Option<&str> {
        self.grant.as_ref().map(|grant| &*grant.name)
    }

    /// The tier of its key.
    pub(crate) fn tier(&self) -> Option<&str> {
        self.grant.as_ref().and_then(|grant| grant.tier.as_deref())
    }

    /// A hash of its address.
    pub(crate) fn address_hash(&self) -> u64 {
        caller_hash(None, self.address)
    }

    /// A hash of its key, or else of its address.
    pub(crate) fn hash(&self) -> u64 {
        caller_hash(self.key(), self.address)
    }
}

/// What later steps want of a head beyond what HTTP needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Lower-case name of the header that some group balances by.
    pub(crate) hash_header: Option<String>,
    /// The headers that keys of request limits are made of.
    pub(crate) limits: Vec<http::HeaderName>,
    /// Whether more than that is wanted.
    pub(crate) extra: Option<WantedExtra>,
}

/// What access control, rules and the access log want of a head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WantedExtra {
    places: Option<KeyPlaces>,
    tokens: bool,
    /// Lower case.
    kept_headers: Vec<Box<str>>,
}

impl Wanted {
    /// What a configuration needs.
    pub(crate) fn of(
        config: &Config,
        hash_header: Option<String>,
        limits: Vec<http::HeaderName>,
    ) -> Wanted {
        let keys = config.access.is_on();
        let any = keys || !config.rules.is_empty() || config.access_log.is_some();
        let extra = any.then(|| WantedExtra {
            places: keys.then(|| config.access.places.clone()),
            tokens: !config.access.issuers.is_empty(),
            kept_headers: config.kept_headers.clone(),
        });
        Wanted { hash_header, limits, extra }
    }
}

/// The value of a header that keys of request limits are made of, if a request has it; names of
/// clients and addresses fit without an allocation.
pub(crate) type KeyHeader = Option<SmallVec<[u8; 24]>>;

/// Values of headers by their place among those that are kept; mostly there is one or none.
pub(crate) type KeptHeaders = SmallVec<[KeyHeader; 1]>;

/// What a head says beyond what HTTP needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    /// Without its port.
    pub(crate) host: Box<str>,
    /// By place among those that are kept.
    pub(crate) headers: Box<[Option<Box<[u8]>>]>,
    credential: Found,
    query: Option<Credential>,
}

/// The keys of a head's headers.
#[derive(Debug, Default, PartialEq, Eq)]
enum Found {
    #[default]
    None,
    One(Credential),
    /// Which one counts is anybody's guess.
    Several,
}

/// A key or token that was given, as its hash.
#[derive(PartialEq, Eq)]
struct Credential {
    hash: [u8; 32],
    /// The token itself, where tokens are taken and it looks like one: its signature has to be
    /// seen.
    token: Option<Box<str>>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential")
    }
}

impl Extra {
    /// Nothing yet.
    pub(crate) fn new(wanted: &WantedExtra) -> Extra {
        Extra { headers: vec![None; wanted.kept_headers.len()].into(), ..Extra::default() }
    }

    /// Takes in a header.
    pub(crate) fn note(&mut self, name: &str, value: &[u8], wanted: &WantedExtra) {
        if let Some(places) = &wanted.places {
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
            if places.bearer && is("authorization") {
                if let Some(token) = bearer(value) {
                    self.give(Credential::new(token, wanted.tokens));
                }
            } else if places.header.as_deref().is_some_and(is) {
                self.give(Credential::new(value.trim_ascii(), false));
            }
        }
        for (kept, slot) in wanted.kept_headers.iter().zip(&mut self.headers) {
            if slot.is_none() && name.eq_ignore_ascii_case(kept) {
                *slot = Some(value.into());
            }
        }
    }

    fn give(&mut self, given: Credential) {
        self.credential = match &self.credential {
            Found::None => Found::One(given),
            Found::One(known) if known.hash == given.hash => return,
            Found::One(_) | Found::Several => Found::Several,
        };
    }

    /// Takes in the host and the target of the request.
    pub(crate) fn note_target(&mut self, host: &str, target: &str, wanted: &WantedExtra) {
        // A port follows the last colon, but not one within the brackets of an address.
        let name = host.rfind(':').filter(|at| !host[*at..].contains(']'));
        self.host = host[..name.unwrap_or(host.len())].into();
        let in_query = wanted.places.as_ref().is_some_and(|places| places.query);
        let Some((_, query)) = target.split_once('?').filter(|_| in_query) else { return };
        let named = |pair: &str| -> Option<Credential> {
            let (name, value) = pair.split_once('=')?;
            let key = (name == QUERY_NAME && !value.is_empty()).then_some(value)?;
            Some(Credential::new(key.as_bytes(), false))
        };
        self.query = query.split('#').next().unwrap_or("").split('&').find_map(named);
    }
}

impl Credential {
    fn new(given: &[u8], tokens: bool) -> Credential {
        let is_token = tokens && given.iter().filter(|byte| **byte == b'.').count() == 2;
        let token = is_token.then(|| std::str::from_utf8(given).ok()).flatten();
        Credential { hash: sha256(given), token: token.map(Box::from) }
    }
}

/// What follows `Bearer` (RFC 6750, section 2.1).
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.trim_ascii().split_at_checked(6)?;
    let given = rest.trim_ascii();
    let is = scheme.eq_ignore_ascii_case(b"bearer") && rest.starts_with(b" ") && !given.is_empty();
    is.then_some(given)
}

/// What decides who may send requests; one for all threads.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Place of each key, by its hash.
    keys: HashMap<[u8; 32], usize, RandomState>,
    /// And of those for which certificates stand, by the name in them.
    certificates: HashMap<Box<str>, usize, RandomState>,
}

impl Gate {
    /// None where everybody may and nobody is known.
    pub(crate) fn of(config: &Config) -> Option<Gate> {
        let access = &config.access;
        let mut gate = Gate { keys: HashMap::default(), certificates: HashMap::default() };
        for (place, key) in access.keys.iter().enumerate() {
            match &key.proof {
                Proof::Hash(hash) => _ = gate.keys.insert(*hash, place),
                Proof::Certificate(name) => _ = gate.certificates.insert(name.clone(), place),
            }
        }
        access.is_on().then_some(gate)
    }

    /// The place of the key that a certificate stands for: of several, the first.
    fn shown(&self, certificate: Option<&ClientCertificate>) -> Option<usize> {
        if self.certificates.is_empty() {
            return None;
        }
        let names = certificate?.names.iter();
        names.filter_map(|name| self.certificates.get(name.as_str()).copied()).min()
    }
}

/// What a request presents of its sender.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Presented<'a> {
    pub(crate) client: IpAddr,
    /// The path of its target.
    pub(crate) path: &'a str,
    pub(crate) extra: Option<&'a Extra>,
    /// False for requests that only ask whether the gateway is there, and for those that a browser
    /// sends by itself: they carry no key.
    pub(crate) needs_key: bool,
    pub(crate) certificate: Option<&'a ClientCertificate>,
}

/// A request that may be served.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    pub(crate) caller: Caller,
    /// The path without the key.
    pub(crate) path: &'a str,
}

/// Who sends a request, and whether it is served at all.
///
/// # Errors
/// Why not.
pub(crate) fn admit<'a>(
    config: &Config,
    gate: &Gate,
    tokens: Option<&RefCell<Tokens>>,
    presented: &Presented<'a>,
) -> Result<Admitted<'a>, Denial> {
    let (access, client) = (&config.access, presented.client);
    if !access.clients.admit(client) {
        return Err(Denial::Address);
    }
    let (given, path) = given(gate, presented.path, presented.extra, &access.places)?;
    if !presented.needs_key {
        return Ok(Admitted { caller: Caller::at(client), path });
    }
    let place = match &given {
        Some(given) => gate.keys.get(&given.hash()).copied(),
        None => gate.shown(presented.certificate),
    };
    let grant = match (place, given) {
        (Some(place), _) => Arc::clone(&access.keys[place].grant),
        (None, Some(given)) => verified(config, tokens, &given)?,
        (None, None) if access.required => return Err(Denial::NoKey),
        (None, None) => return Ok(Admitted { caller: Caller::at(client), path }),
    };
    may_use(&grant, client, unix_seconds)?;
    Ok(Admitted { caller: Caller { address: client, grant: Some(grant) }, path })
}

/// What was given as a key.
enum Given<'a> {
    InHead(&'a Credential),
    InPath([u8; 32]),
}

impl Given<'_> {
    fn hash(&self) -> [u8; 32] {
        match self {
            Given::InHead(credential) => credential.hash,
            Given::InPath(hash) => *hash,
        }
    }
}

/// The key of a request, from the first place that has one, and the path without it.
fn given<'a>(
    gate: &Gate,
    whole: &'a str,
    extra: Option<&'a Extra>,
    places: &KeyPlaces,
) -> Result<(Option<Given<'a>>, &'a str), Denial> {
    // A path that holds a key is taken for what it is without it, wherever the key that counts is.
    let in_path = if places.path { key_in_path(gate, whole) } else { None };
    let path = in_path.as_ref().map_or(whole, |(_, path)| path);
    let credential = match extra.map(|extra| &extra.credential) {
        Some(Found::Several) => return Err(Denial::TwoKeys),
        Some(Found::One(credential)) => Some(Given::InHead(credential)),
        Some(Found::None) | None => None,
    };
    let given = credential
        .or(in_path.as_ref().map(|(hash, _)| Given::InPath(*hash)))
        .or(extra.and_then(|extra| extra.query.as_ref()).map(Given::InHead));
    Ok((given, path))
}

/// The key in the last or the first segment of a path, and the path without it. Only a key that is
/// known is one: anything else may be the name of a chain.
fn key_in_path<'a>(gate: &Gate, path: &'a str) -> Option<([u8; 32], &'a str)> {
    let path = path.trim_end_matches('/');
    let (before, last) = path.rsplit_once('/')?;
    let first = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let first = first.map(|(first, rest)| (first, &path[path.len() - rest.len() - 1..]));
    let last = (last, if before.is_empty() { "/" } else { before });
    [Some(last), first].into_iter().flatten().find_map(|(segment, rest)| {
        let hash = (segment.len() >= KEY_BYTES_MIN).then(|| sha256(segment.as_bytes()))?;
        gate.keys.contains_key(&hash).then_some((hash, rest))
    })
}

/// What a token grants, from memory where it was seen before.
fn verified(
    config: &Config,
    tokens: Option<&RefCell<Tokens>>,
    given: &Given<'_>,
) -> Result<Arc<Grant>, Denial> {
    let Given::InHead(Credential { hash, token: Some(token) }) = given else {
        return Err(Denial::BadKey);
    };
    let Some(tokens) = tokens else { return Err(Denial::BadKey) };
    tokens.borrow_mut().grant(hash, token, config)
}

/// What each thread remembers of tokens; none where no tokens are taken.
pub(crate) fn tokens(config: &Config) -> Option<Tokens> {
    (!config.access.issuers.is_empty()).then(Tokens::new)
}

/// The wall clock: what keys and tokens end by.
fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
