//! Who may call, checked: keys, token issuers, networks and methods; what is written of calls.
//!
//! What a list decides is `rules/access.rs`, what a rule decides `rules/direct.rs`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};

use crate::access_log::format::Format;
use crate::rules::access::{AddressRules, Grant, Policy};

/// Who may call.
#[derive(Clone, Debug)]
pub struct Access {
    /// Whether a request without a key or token is refused.
    pub required: bool,
    /// Where a key is looked for.
    pub places: KeyPlaces,
    /// From which networks requests are taken at all.
    pub clients: AddressRules,
    /// Which methods are served to whom; holds without any key too.
    pub policy: Policy,
    /// The keys, in the order of their grants' indexes.
    pub keys: Vec<Key>,
    /// Who signs tokens, in the order of their indexes, behind those of the keys.
    pub issuers: Vec<Issuer>,
}

impl Access {
    /// Whether requests have to be looked at for who sends them.
    pub fn is_on(&self) -> bool {
        self.required
            || !self.keys.is_empty()
            || !self.issuers.is_empty()
            || !self.clients.is_open()
    }

    /// Names under which calls are counted, by [`Grant::index`].
    pub fn counted_names(&self) -> impl Iterator<Item = &str> {
        let keys = self.keys.iter().map(|key| &*key.grant.name);
        keys.chain(self.issuers.iter().map(|issuer| &*issuer.name))
    }
}

/// Where a key is looked for, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlaces {
    /// A header of this name, lower case.
    pub header: Option<Box<str>>,
    /// `authorization: Bearer KEY`.
    pub bearer: bool,
    /// The first or last segment of the path.
    pub path: bool,
    /// The parameter `key` of the query.
    pub query: bool,
}

/// A key: only its hash is known.
#[derive(Clone)]
pub struct Key {
    /// What its holder shows.
    pub proof: Proof,
    /// What its holder may do.
    pub grant: Arc<Grant>,
}

/// What the holder of a key shows.
#[derive(Clone)]
pub enum Proof {
    /// A text with this SHA-256.
    Hash([u8; 32]),
    /// A verified certificate with this name, its kind before it: `dns:ci.example`.
    Certificate(Box<str>),
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Key").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// Who signs tokens that are taken.
#[derive(Clone)]
pub struct Issuer {
    /// How metrics and logs call it.
    pub name: Arc<str>,
    /// Where tokens of it are counted: behind all keys.
    pub index: usize,
    /// The keys that may have signed.
    pub keys: Vec<VerifyKey>,
    /// What `iss` must be.
    pub issuer: Option<Box<str>>,
    /// One of which `aud` must name; empty is not looked at.
    pub audience: Vec<Box<str>>,
    /// How far clocks may be apart.
    pub leeway: Duration,
    /// The tier of tokens that name none.
    pub tier: Option<Arc<str>>,
    /// Names of the claims that hold methods, chains and tier.
    pub claims: Claims,
}

/// Names of claims.
#[derive(Clone, Debug)]
pub struct Claims {
    /// A list of method patterns, or a text of them with spaces in between.
    pub methods: Box<str>,
    /// The same for names of chains.
    pub chains: Box<str>,
    /// A text.
    pub tier: Box<str>,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Issuer")
            .field("name", &self.name)
            .field("keys", &self.keys)
            .field("issuer", &self.issuer)
            .field("audience", &self.audience)
            .field("leeway", &self.leeway)
            .field("tier", &self.tier)
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// A key that verifies, with the algorithms that its kind allows. The token has no say in that.
#[derive(Clone)]
pub struct VerifyKey {
    /// Its id in a set of keys.
    pub id: Option<Box<str>>,
    /// All of one family.
    pub algorithms: Vec<Algorithm>,
    /// The key.
    pub key: DecodingKey,
}

impl fmt::Debug for VerifyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, algorithms) = (&self.id, &self.algorithms);
        formatter
            .debug_struct("VerifyKey")
            .field("id", id)
            .field("algorithms", algorithms)
            .finish_non_exhaustive()
    }
}

/// What is written of calls, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where lines go.
    pub to: LogTarget,
    /// What a line holds.
    pub format: Format,
    /// One line for each call in place of one for each request.
    pub per_call: bool,
    /// Share of lines that are written.
    pub sample: f64,
    /// Whether lines about errors are written whatever the share.
    pub errors_always: bool,
    /// Lines that may wait to be written, over all threads.
    pub queue_lines: usize,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, appended to, and opened anew when it was moved away.
    File(PathBuf),
}
