//! Keys, token issuers, networks and methods: who may call what.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::super::access::{Access, Claims, Issuer, Key, KeyPlaces, Proof, VerifyKey};
use super::super::expand::World;
use super::super::fault::Report;
use super::super::field::{ACCESS, JWT, KEY, TLS};
use super::super::file::{self, Entry, Written};
use super::super::kind::Value;
use super::super::{Chain, jwt};
use super::{not_found, refuse, refuse_element};
use crate::front::caller::sha256;
use crate::rules::access::{AddressRules, Grant, MethodRules, MethodSet, Networks, Policy};
use crate::rules::limit::CALL;
use crate::tls::client;

/// Largest file of keys: some ten thousand of them.
const KEYS_FILE_BYTES_MAX: u64 = 16 << 20;

/// Who may call what.
pub(super) fn check(
    written: &Written,
    world: &World<'_>,
    chains: &[Chain],
    report: &mut Report<'_>,
) -> Access {
    let access = written.once(&ACCESS);
    let mut known = Known::default();
    let mut keys: Vec<Key> = Vec::new();
    for entry in written.all(&KEY) {
        keys.extend(known.key(entry, chains, keys.len(), report));
    }
    if let Some(file) = access.chosen("keys_file") {
        keys_of_file(&access, &file.text(), world, chains, &mut known, &mut keys, report);
    }
    let mut issuers: Vec<Issuer> = Vec::new();
    for entry in written.all(&JWT) {
        let index = keys.len() + issuers.len();
        issuers.extend(known.issuer(entry, index, world.folder, report));
    }
    let by_certificate = keys.iter().any(|key| matches!(key.proof, Proof::Certificate(_)));
    if by_certificate && written.once(&TLS).chosen("client_ca").is_none() {
        let message = "there is no authority whose certificates are taken";
        let spot = written.all(&KEY).find(|entry| entry.set("certificate").is_some());
        let (spot, key) = spot.map_or((&access, "keys_file"), |entry| (entry, "certificate"));
        refuse(report, spot, key, message, "`client_ca` under [tls]");
    }
    let any = !keys.is_empty() || !issuers.is_empty();
    let required = access.chosen("required").map_or(any, Value::switch);
    if required && !any && !report.has_faults() {
        let message = "a key is required and there is none";
        refuse(report, &access, "required", message, "a [[key]], a keys_file or a [[jwt]]");
    }
    Access {
        required,
        places: places(&access),
        clients: AddressRules {
            allow: networks(&access, "clients_allow"),
            deny: networks(&access, "clients_deny"),
        },
        policy: Policy {
            transactions: access.value("transactions").switch(),
            node_methods: methods(&access, "node_methods"),
            methods: method_rules(&access),
        },
        keys,
        issuers,
    }
}

/// The lists `methods_allow` and `methods_deny` of a table.
pub(super) fn method_rules(entry: &Entry) -> MethodRules {
    MethodRules { allow: methods(entry, "methods_allow"), deny: methods(entry, "methods_deny") }
}

/// A list of methods of a table.
pub(super) fn methods(entry: &Entry, key: &str) -> MethodSet {
    MethodSet::new(entry.value(key).texts().iter().map(String::as_str))
}

fn networks(entry: &Entry, key: &str) -> Networks {
    let texts = entry.value(key).texts();
    Networks(texts.iter().filter_map(|text| super::super::kind::network(text).ok()).collect())
}

fn places(access: &Entry) -> KeyPlaces {
    let chosen = access.chosen("key_places").map(Value::texts);
    let has = |place: &str| chosen.as_ref().is_none_or(|list| list.iter().any(|p| p == place));
    let header = access.value("key_header").text();
    KeyPlaces {
        header: has("header").then(|| header.into_boxed_str()),
        bearer: has("bearer"),
        path: has("path"),
        query: has("query"),
    }
}

fn keys_of_file(
    access: &Entry,
    name: &str,
    world: &World<'_>,
    chains: &[Chain],
    known: &mut Known,
    keys: &mut Vec<Key>,
    report: &mut Report<'_>,
) {
    let place = world.folder.join(name);
    let read = || -> Result<String, String> {
        let size = std::fs::metadata(&place).map_err(|error| error.to_string())?.len();
        if size > KEYS_FILE_BYTES_MAX {
            return Err(format!("{size} bytes, at most {KEYS_FILE_BYTES_MAX} are allowed"));
        }
        std::fs::read_to_string(&place).map_err(|error| error.to_string())
    };
    let text = match read() {
        Ok(text) => text,
        Err(why) => {
            let message = format!("cannot be read: {why}");
            return refuse(report, access, "keys_file", &message, "a file of [[key]] tables");
        }
    };
    let mut inner = Report::of_file(name, &text);
    if let Some(written) = file::read(&text, world, &mut inner) {
        for entry in &written.entries {
            if !entry.is_of(&KEY) {
                let allowed = Some("[[key]]".to_owned());
                let message = "only keys may stand in a file of keys";
                inner.fault(entry.span.as_ref(), entry.heading(), None, message, allowed);
                continue;
            }
            keys.extend(known.key(entry, chains, keys.len(), &mut inner));
        }
    }
    report.absorb(inner.finish());
}

/// Names and hashes that were seen already.
#[derive(Default)]
struct Known {
    names: HashMap<String, ()>,
    hashes: HashMap<[u8; 32], String>,
    certificates: HashMap<Box<str>, String>,
}

impl Known {
    fn key(
        &mut self,
        entry: &Entry,
        chains: &[Chain],
        index: usize,
        report: &mut Report<'_>,
    ) -> Option<Key> {
        let name = self.name(entry, report)?;
        let (key, proof) = proof(entry, report)?;
        let other = match &proof {
            Proof::Hash(hash) => self.hashes.insert(*hash, name.clone()),
            Proof::Certificate(shown) => self.certificates.insert(shown.clone(), name.clone()),
        };
        if let Some(other) = other {
            refuse(report, entry, key, &format!("key {other} is the same"), "each key once");
        }
        let grant = Grant {
            name: name.into(),
            index,
            tier: entry.chosen("tier").map(|tier| tier.text().into()),
            methods: method_rules(entry),
            node_methods: methods(entry, "node_methods"),
            transactions: entry.chosen("transactions").map(Value::switch),
            chains: chain_list(entry, chains, report),
            clients: networks(entry, "clients"),
            expires: entry.chosen("expires").map(Value::count),
            rate: entry.chosen("rate").map(|rate| rate.rate()),
            burst: entry.chosen("burst").map(|burst| burst.count() * CALL),
            quota: entry.chosen("quota").map(Value::count),
        };
        Some(Key { proof, grant: Arc::new(grant) })
    }

    fn name(&mut self, entry: &Entry, report: &mut Report<'_>) -> Option<String> {
        let name = entry.chosen("name")?.text();
        if self.names.insert(name.clone(), ()).is_some() {
            let message = "another key or issuer has this name";
            refuse(report, entry, "name", message, "each name once");
        }
        Some(name)
    }

    fn issuer(
        &mut self,
        entry: &Entry,
        index: usize,
        folder: &Path,
        report: &mut Report<'_>,
    ) -> Option<Issuer> {
        let name = self.name(entry, report)?;
        let keys = verify_keys(entry, folder, report)?;
        let text = |key| entry.chosen(key).map(|text| text.text().into_boxed_str());
        Some(Issuer {
            name: name.into(),
            index,
            keys,
            issuer: text("issuer"),
            audience: entry.value("audience").texts().into_iter().map(Into::into).collect(),
            leeway: entry.value("leeway").duration(),
            tier: entry.chosen("tier").map(|tier| tier.text().into()),
            claims: Claims {
                methods: entry.value("methods_claim").text().into(),
                chains: entry.value("chains_claim").text().into(),
                tier: entry.value("tier_claim").text().into(),
            },
        })
    }
}

/// What the holder of a key shows, and the key that says so.
fn proof(entry: &Entry, report: &mut Report<'_>) -> Option<(&'static str, Proof)> {
    const PROOFS: [&str; 3] = ["hash", "secret", "certificate"];
    let set: Vec<&'static str> =
        PROOFS.into_iter().filter(|key| entry.set(key).is_some()).collect();
    let [key] = set[..] else {
        if !entry.has_unread(&PROOFS) {
            let message = "exactly one of hash, secret and certificate must be set";
            let key = set.last().copied().unwrap_or("hash");
            refuse(report, entry, key, message, "what `weir key` prints");
        }
        return None;
    };
    let text = entry.chosen(key)?.text();
    let proof = match key {
        "hash" => Proof::Hash(super::super::kind::hash(&text).ok()?),
        "secret" => Proof::Hash(sha256(text.as_bytes())),
        _ => match client::shown(&text) {
            Some(shown) => Proof::Certificate(shown.into()),
            None => {
                refuse(report, entry, key, "no name of a certificate", client::SHOWN_FORMS);
                return None;
            }
        },
    };
    Some((key, proof))
}

fn verify_keys(entry: &Entry, folder: &Path, report: &mut Report<'_>) -> Option<Vec<VerifyKey>> {
    const SOURCES: [&str; 3] = ["secret", "public_key", "jwks"];
    let set: Vec<&str> = SOURCES.into_iter().filter(|key| entry.set(key).is_some()).collect();
    let [key] = set[..] else {
        if entry.has_unread(&SOURCES) {
            return None;
        }
        let message = "exactly one of secret, public_key and jwks must be set";
        refuse(report, entry, set.last().unwrap_or(&"jwks"), message, "one source of keys");
        return None;
    };
    let text = entry.chosen(key)?.text();
    let keys = match key {
        "secret" => Ok(vec![jwt::of_secret(&text)]),
        "public_key" => jwt::of_pem(&folder.join(&text)).map(|key| vec![key]),
        _ => jwt::of_set(&folder.join(&text)),
    };
    keys.map_err(|why| refuse(report, entry, key, &why, "a file of public keys")).ok()
}

fn chain_list(entry: &Entry, chains: &[Chain], report: &mut Report<'_>) -> Option<Box<[usize]>> {
    let names = entry.chosen("chains")?.texts();
    let known: Vec<&str> = chains.iter().map(|chain| &*chain.name).collect();
    let mut list = Vec::with_capacity(names.len());
    for (at, name) in names.iter().enumerate() {
        match known.iter().position(|known| known == name) {
            Some(chain) => list.push(chain),
            None => {
                let (message, allowed) = not_found("chain", name, &known);
                refuse_element(report, entry, "chains", at, &message, &allowed);
            }
        }
    }
    Some(list.into())
}
