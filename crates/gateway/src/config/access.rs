//! `[access]`, `[[key]]` and `[[jwt]]`: which clients may call which methods.
//!
//! An API *key* is a secret that a client sends. A *grant* holds the rights of a key. An *issuer*
//! signs tokens, which a client can send instead of a key. `policy/access.rs` decides whether a
//! call is allowed.
//!
//! `config.rs` explains the syntax of `settings::table!`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settings::diff::Keys;
use settings::value::{Bool, Duration as Period, File, Integer, List, Listed, Secret};
use settings::{Location, ReadContext, Report};

use super::chain::{self, Chain};
use super::jwt::{self, VerifyKey};
use super::validate::{TEXT_BYTES_MAX, find_name, require_one};
use super::values::{
    CallRate, HOUR_MS, HeaderKey, KeyHash, Methods, Name, Network, NonEmptyString, Timestamp,
};
use crate::config::tls::client;
use crate::policy::access::{AddressRules, Grant, MethodRules, Policy};
use crate::policy::client::Networks;
use crate::policy::limit::CALL;

settings::choice! {
    /// A place in a request that may hold a key.
    pub enum KeyPlace {
        /// The header of `key_header`.
        "header" => Header,
        /// The token after `authorization: Bearer`.
        "bearer" => Bearer,
        /// A segment of the path.
        "path" => Path,
        /// A parameter of the query.
        "query" => Query,
    }
}

settings::table! {
    /// Access control: which clients may call, and which methods are served. `docs/access.md`
    /// explains how the tables work together.
    pub struct AccessTable {
        /// If true, a request without a key or token is rejected with 401.
        required: Bool = described "true if there is a key or an issuer of tokens";
        /// A file with further `[[key]]` tables and nothing else.
        keys_file: File = described "none";
        /// Places where the gateway looks for an API key: the header `key_header`; `authorization:
        /// Bearer`; the last or the first segment of the path, which is then removed from the path;
        /// the parameter `key` of the query.
        key_places: List<KeyPlace> = described "all four" => vec![
            KeyPlace::Header,
            KeyPlace::Bearer,
            KeyPlace::Path,
            KeyPlace::Query,
        ];
        /// The header that holds a key.
        key_header: HeaderKey = "x-api-key";
        /// Networks whose clients may call; an empty list allows all. Other clients get 403.
        clients_allow: NetworkList = empty;
        /// Networks whose clients may not call. This list takes precedence over every allow list.
        clients_deny: NetworkList = empty;
        /// Methods that are served on all chains; an empty list allows all.
        methods_allow: Methods = empty;
        /// Methods that are served on no chain. This list takes precedence over every allow list.
        methods_deny: Methods = empty;
        /// Some methods administer the node or use private keys that it holds: `admin_*`,
        /// `personal_*`, `miner_*`, `engine_*`, `debug_set*`, `eth_sign*`, `eth_sendTransaction`
        /// and others. This list names those that are served. All others of this kind are rejected.
        node_methods: Methods = empty;
        /// If true, signed transactions are accepted (`eth_sendRawTransaction` and similar
        /// methods).
        transactions: Bool = "true";
    }
}

settings::table! {
    /// An API key; `weir key` creates one. The gateway stores only the hash of the key. It never
    /// logs the key or sends it to an upstream.
    pub struct KeyTable by name {
        /// Name of the key's holder in metrics and logs.
        name: Name = required;
        /// SHA-256 of the key. Keys are random and long, so a slow hash would add no security.
        hash: KeyHash = described "from `secret`";
        /// The key itself, instead of its hash: `${VAR}` or `${file:PATH}`.
        secret: Secret<16> = described "none";
        /// Instead of a key: a name in the client's verified certificate (see `client_ca` under
        /// `[tls]`). The forms are `cn:NAME`, `dns:NAME`, `uri:URI`, `email:ADDRESS`, `ip:ADDRESS`
        /// or the whole `subject:`. A key in the request takes precedence over the certificate.
        certificate: NonEmptyString = described "none";
        /// Tier of the key's calls: a name such as `gold`, to which `[[rule]]` and `[overload]`
        /// refer.
        tier: Name = described "none";
        /// Chains that the key may use. Calls to other chains get 403.
        chains: List<Name> = described "all chains";
        /// Methods that the key may call; an empty list allows all.
        methods_allow: Methods = empty;
        /// Methods that the key may not call. This list takes precedence over every allow list.
        methods_deny: Methods = empty;
        /// Methods that administer the node and that the key may call nevertheless.
        node_methods: Methods = empty;
        /// If true, the key may send signed transactions.
        transactions: Bool = described "as in `[access]`";
        /// Networks from which the key may be used; an empty list allows all.
        clients: NetworkList = empty;
        /// Time at which the key expires.
        expires: Timestamp = described "never";
        /// Rate of the key's calls. It replaces the rate of every zone that counts by API key, that
        /// is, whose `key` lists `key`.
        rate: CallRate = described "that of the zone";
        /// Number of calls above the rate that are accepted. It replaces the burst of every limit
        /// whose zone counts by API key.
        burst: Integer<0, 4_000_000> = described "that of the limit";
        /// Number of units that the key may use in a calendar month (UTC); see `[quota]`. Further
        /// calls get 429 with the time until the month ends.
        quota: Integer<0, { 1 << 52 }> = described "none";
    }
}

settings::table! {
    /// An issuer of JSON web tokens. A client sends its token as `authorization: Bearer`. The type
    /// of the issuer's key determines the allowed algorithms: HS256/384/512 for a secret,
    /// RS256/384/512 for RSA, and ES256 or ES384 for an elliptic key, by its curve. A token must
    /// have the claim `exp`. `exp` and `nbf` are enforced.
    pub struct JwtTable by name {
        /// Name of the issuer in metrics and logs.
        name: Name = required;
        /// The shared secret: `${VAR}` or `${file:PATH}`.
        secret: Secret<32> = described "none";
        /// File with a public key, RSA or elliptic, in PEM form.
        public_key: File = described "none";
        /// File with a set of JSON web keys.
        jwks: File = described "none";
        /// Required value of the claim `iss`.
        issuer: NonEmptyString = described "not checked";
        /// Accepted values of the claim `aud`. An empty list accepts every value.
        audience: List<NonEmptyString> = empty;
        /// Largest difference between the issuer's clock and ours.
        leeway: Period<0, HOUR_MS> = "30s";
        /// Tier of calls whose token names no tier.
        tier: Name = described "none";
        /// Name of the claim that lists the methods that a token allows. A token without this claim
        /// allows all methods.
        methods_claim: NonEmptyString = "methods";
        /// Name of the claim that lists the chains that a token allows. A token without this claim
        /// allows all chains.
        chains_claim: NonEmptyString = "chains";
        /// Name of the claim that holds the tier of the token's calls.
        tier_claim: NonEmptyString = "tier";
    }
}

settings::table! {
    /// A file of API keys.
    pub struct KeysFile {
        /// The keys.
        key: Listed<KeyTable> = empty;
    }
}

type NetworkList = List<Network, Networks>;

/// Access control.
#[derive(Clone, Debug)]
pub struct Access {
    /// True if a request without a key or token is rejected.
    pub required: bool,
    /// Places where the gateway looks for a key.
    pub places: KeyPlaces,
    /// The header that holds a key. CORS allows web pages to send it.
    pub key_header: Box<str>,
    /// Networks from which requests are accepted.
    pub clients: AddressRules,
    /// Methods that are served to all callers, with or without a key.
    pub policy: Policy,
    /// The keys, in the order of [`Grant::index`].
    pub keys: Vec<Key>,
    /// Issuers of tokens, in the order of [`Issuer::index`]. Their indexes follow the indexes of
    /// the keys.
    pub issuers: Vec<Issuer>,
}

impl Access {
    /// Returns true if requests are authenticated: a key is required, or keys, issuers or address
    /// rules are configured.
    pub fn is_on(&self) -> bool {
        self.required
            || !self.keys.is_empty()
            || !self.issuers.is_empty()
            || !self.clients.is_open()
    }

    /// Returns the names under which calls are counted, in the order of [`Grant::index`].
    pub fn counted_names(&self) -> impl Iterator<Item = &str> {
        let keys = self.keys.iter().map(|key| &*key.grant.name);
        keys.chain(self.issuers.iter().map(|issuer| &*issuer.name))
    }
}

/// Places where the gateway looks for a key, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlaces {
    /// Lower-case name of the header that may hold a key; `None` if no header may.
    pub header: Option<Box<str>>,
    /// True if `authorization: Bearer KEY` is accepted.
    pub bearer: bool,
    /// True if the first or last segment of the path may be a key.
    pub path: bool,
    /// True if the parameter `key` of the query may hold a key.
    pub query: bool,
}

/// An API key.
#[derive(Clone)]
pub struct Key {
    /// Proof that authenticates the holder.
    pub proof: Proof,
    /// Rights of the holder.
    pub grant: Arc<Grant>,
}

/// Proof that authenticates the holder of a key.
#[derive(Clone)]
pub enum Proof {
    /// A key with this SHA-256.
    Hash([u8; 32]),
    /// A verified certificate with this name, prefixed with its type: `dns:ci.example`.
    Certificate(Box<str>),
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Key").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// An accepted issuer of tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Name in metrics and logs.
    pub name: Arc<str>,
    /// Index of the counters for the issuer's tokens. This index follows the indexes of all keys.
    pub index: usize,
    /// The keys that verify the issuer's signatures.
    pub keys: Vec<VerifyKey>,
    /// Required value of the claim `iss`; `None` accepts every value.
    pub issuer: Option<Box<str>>,
    /// Accepted values of the claim `aud`. An empty list accepts every value.
    pub audience: Vec<Box<str>>,
    /// Largest difference between the clocks of issuer and gateway.
    pub leeway: Duration,
    /// The tier of tokens that do not name a tier; `None` for no tier.
    pub tier: Option<Arc<str>>,
    /// Names of the claims with methods, chains and tier.
    pub claims: Claims,
}

/// Names of claims.
#[derive(Clone, Debug)]
pub struct Claims {
    /// The claim with a list of method patterns, or with patterns separated by spaces.
    pub methods: Box<str>,
    /// The claim with a list of chain names, or with names separated by spaces.
    pub chains: Box<str>,
    /// The claim with the tier.
    pub tier: Box<str>,
}

/// Returns the SHA-256 of a key or token.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The tables of access control.
pub(super) struct AccessTables<'a> {
    pub(super) access: &'a AccessTable,
    pub(super) keys: &'a [KeyTable],
    pub(super) issuers: &'a [JwtTable],
    /// True if client certificates can be verified (`client_ca`).
    pub(super) has_client_ca: bool,
}

/// Validates access control. Also returns the settings in `keys_file`, which a reload compares with
/// the settings in the next configuration.
pub(super) fn check(
    tables: &AccessTables<'_>,
    context: &ReadContext<'_>,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> (Access, Keys) {
    let access = tables.access;
    let mut known_keys = KnownKeys::default();
    let mut keys: Vec<Key> = Vec::new();
    for table in tables.keys {
        keys.extend(known_keys.check_key(table, chains, keys.len(), report));
    }
    let mut file_settings = Keys::default();
    if let Some(file) = access.keys_file.as_ref() {
        file_settings =
            read_keys_file(access, file, context, chains, &mut known_keys, &mut keys, report);
    }
    let mut issuers: Vec<Issuer> = Vec::new();
    for table in tables.issuers {
        let index = keys.len() + issuers.len();
        issuers.extend(known_keys.check_issuer(table, index, context.folder, report));
    }
    let has_certificate_keys = keys.iter().any(|key| matches!(key.proof, Proof::Certificate(_)));
    if has_certificate_keys && !tables.has_client_ca {
        let message = "client certificates cannot be verified without client_ca";
        let allowed = "`client_ca` under [tls]";
        match tables.keys.iter().find(|table| table.certificate.is_set()) {
            Some(table) => report.error(&table.certificate, message, allowed),
            None => report.error(&access.keys_file, message, allowed),
        }
    }
    let has_credentials = !keys.is_empty() || !issuers.is_empty();
    let required = access.required.unwrap_or(has_credentials);
    if required && !has_credentials && !report.has_errors() {
        let message = "a key is required, but none is configured";
        report.error(&access.required, message, "a [[key]], a keys_file or a [[jwt]]");
    }
    let access = Access {
        required,
        places: list_key_places(access),
        key_header: (*access.key_header).clone(),
        clients: AddressRules {
            allow: (*access.clients_allow).clone(),
            deny: (*access.clients_deny).clone(),
        },
        policy: Policy {
            transactions: *access.transactions,
            node_methods: (*access.node_methods).clone(),
            methods: MethodRules {
                allow: (*access.methods_allow).clone(),
                deny: (*access.methods_deny).clone(),
            },
        },
        keys,
        issuers,
    };
    (access, file_settings)
}

/// Returns the places that `key_places` lists.
fn list_key_places(access: &AccessTable) -> KeyPlaces {
    let is_listed = |place| access.key_places.contains(&place);
    KeyPlaces {
        header: is_listed(KeyPlace::Header).then(|| (*access.key_header).clone()),
        bearer: is_listed(KeyPlace::Bearer),
        path: is_listed(KeyPlace::Path),
        query: is_listed(KeyPlace::Query),
    }
}

/// Reads `keys_file` and adds its keys to `keys`. Returns the settings in the file.
fn read_keys_file(
    access: &AccessTable,
    name: &str,
    context: &ReadContext<'_>,
    chains: &[Chain],
    known_keys: &mut KnownKeys,
    keys: &mut Vec<Key>,
    report: &mut Report<'_>,
) -> Keys {
    let path = context.folder.join(name);
    let text = match settings::read_text_file(&path, TEXT_BYTES_MAX as u64) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("cannot be read: {error}");
            report.error(&access.keys_file, message, "a file of [[key]] tables");
            return Keys::default();
        }
    };
    let (file, mut file_report) = settings::read::<KeysFile>(&text, name, context);
    for table in file.iter().flat_map(|file| file.key.iter()) {
        keys.extend(known_keys.check_key(table, chains, keys.len(), &mut file_report));
    }
    report.absorb(file_report.finish());
    file.as_ref().map(Keys::of).unwrap_or_default()
}

/// Names and proofs of the keys that are already validated, to find duplicates.
#[derive(Default)]
struct KnownKeys {
    /// Names of keys and issuers.
    names: HashSet<Box<str>>,
    /// Name of the key by hash.
    hashes: HashMap<[u8; 32], Box<str>>,
    /// Name of the key by certificate name.
    certificates: HashMap<Box<str>, Box<str>>,
}

impl KnownKeys {
    /// Validates a key. `index` becomes [`Grant::index`]. Returns `None` if the name or the proof
    /// is invalid.
    fn check_key(
        &mut self,
        table: &KeyTable,
        chains: &[Chain],
        index: usize,
        report: &mut Report<'_>,
    ) -> Option<Key> {
        let name = self.check_name(&table.name, report)?;
        let (position, proof) = check_proof(table, report)?;
        let duplicate = match &proof {
            Proof::Hash(hash) => self.hashes.insert(*hash, name.clone()),
            Proof::Certificate(subject) => self.certificates.insert(subject.clone(), name.clone()),
        };
        if let Some(duplicate) = duplicate {
            report.error(position, format!("key {duplicate} is the same"), "each key once");
        }
        let grant = Grant {
            name: name.into(),
            index,
            tier: table.tier.as_deref().map(Arc::from),
            is_token: false,
            methods: MethodRules {
                allow: (*table.methods_allow).clone(),
                deny: (*table.methods_deny).clone(),
            },
            node_methods: (*table.node_methods).clone(),
            transactions: *table.transactions,
            chains: find_chains(table, chains, report),
            clients: (*table.clients).clone(),
            expires: *table.expires,
            rate: *table.rate,
            // A grant stores the burst in thousandths of a call.
            burst: table.burst.map(|burst| burst * CALL),
            quota: *table.quota,
        };
        Some(Key { proof, grant: Arc::new(grant) })
    }

    /// Returns the name of a key or issuer; `None` if it is invalid. Reports a name that is not
    /// unique.
    fn check_name(
        &mut self,
        key: &settings::Key<Box<str>>,
        report: &mut Report<'_>,
    ) -> Option<Box<str>> {
        let name = key.valid_value()?;
        if !self.names.insert(name.clone()) {
            report.error(key, "another key or issuer has this name", "each name once");
        }
        Some(name.clone())
    }

    /// Validates an issuer. `index` becomes [`Issuer::index`]. Returns `None` if the name or the
    /// verification keys are invalid.
    fn check_issuer(
        &mut self,
        table: &JwtTable,
        index: usize,
        folder: &Path,
        report: &mut Report<'_>,
    ) -> Option<Issuer> {
        let name = self.check_name(&table.name, report)?;
        let keys = read_verify_keys(table, folder, report)?;
        Some(Issuer {
            name: name.into(),
            index,
            keys,
            issuer: (*table.issuer).clone(),
            audience: (*table.audience).clone(),
            leeway: *table.leeway,
            tier: table.tier.as_deref().map(Arc::from),
            claims: Claims {
                methods: (*table.methods_claim).clone(),
                chains: (*table.chains_claim).clone(),
                tier: (*table.tier_claim).clone(),
            },
        })
    }
}

/// Returns the proof that authenticates the holder of a key, and the location of the proof in the
/// file. Returns `None` after an error.
fn check_proof<'a>(table: &'a KeyTable, report: &mut Report<'_>) -> Option<(&'a Location, Proof)> {
    let KeyTable { hash, secret, certificate, .. } = table;
    let message = "exactly one of hash, secret and certificate must be set";
    let locations = [&hash.location, &secret.location, &certificate.location];
    let position = require_one(locations, message, "what `weir key` prints", report)?;
    let proof = if let Some(hash) = **hash {
        Proof::Hash(hash)
    } else if let Some(secret) = &**secret {
        Proof::Hash(sha256(secret.as_bytes()))
    } else {
        let Some(name) = client::normalize_name(certificate.as_deref()?) else {
            report.error(certificate, "not a certificate name", client::NAME_FORMS);
            return None;
        };
        Proof::Certificate(name.into())
    };
    Some((position, proof))
}

/// Reads the keys that verify the signatures of an issuer; `None` after an error.
fn read_verify_keys(
    table: &JwtTable,
    folder: &Path,
    report: &mut Report<'_>,
) -> Option<Vec<VerifyKey>> {
    let JwtTable { secret, public_key, jwks, .. } = table;
    let message = "exactly one of secret, public_key and jwks must be set";
    let locations = [&jwks.location, &secret.location, &public_key.location];
    let position = require_one(locations, message, "one source of keys", report)?;
    let keys = if let Some(secret) = &**secret {
        Ok(vec![jwt::build_secret_key(secret)])
    } else if let Some(file) = &**public_key {
        jwt::read_pem(&folder.join(file)).map(|key| vec![key])
    } else {
        jwt::read_key_set(&folder.join(jwks.as_ref()?))
    };
    keys.map_err(|error| report.error(position, error, "a file of public keys")).ok()
}

/// Returns the indexes of the chains that a key may use; `None` for all chains.
fn find_chains(
    table: &KeyTable,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Option<Box<[usize]>> {
    let names = table.chains.as_ref()?;
    let chain_names = chain::list_names(chains);
    let mut find_chain = |index, name: &str| {
        find_name(&chain_names, name, "chain", &table.chains.element_location(index), report)
    };
    let chains = names.iter().enumerate().filter_map(|(index, name)| find_chain(index, name));
    Some(chains.collect())
}
