//! Verifies the signature and the claims of JSON web tokens (RFC 7519). The result is a *grant*,
//! which holds the rights of the token.
//!
//! Each thread caches the tokens that it has verified, so it verifies a signature only once. The
//! configured key determines the allowed algorithms (`config/jwt.rs`). The token cannot choose
//! them.

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde_json::{Map, Value};

use crate::config::Config;
use crate::config::access::Issuer;
use crate::config::chain::Chain;
use crate::config::jwt::VerifyKey;
use crate::policy::access::{Denial, Grant, MethodRules, MethodSet};

#[cfg(test)]
mod tests;

/// Maximum number of tokens in the cache of one thread. Each token takes about half a kilobyte.
const CACHED_TOKENS_MAX: usize = 4096;
/// Maximum number of characters of the claim `sub` (the subject) that become part of a caller's
/// name.
const SUBJECT_CHARS_MAX: usize = 64;
/// Maximum number of methods, and of chains, in a token. A limit is needed because each call is
/// compared with all of them.
const LIST_ITEMS_MAX: usize = 256;

/// The token cache of one thread.
pub(crate) struct Tokens {
    /// The grants of verified tokens, by the SHA-256 of the token.
    verified: quick_cache::unsync::Cache<[u8; 32], Arc<Grant>>,
}

impl Tokens {
    /// Creates an empty cache; `None` if no issuers of tokens are configured.
    pub(crate) fn new(config: &Config) -> Option<Tokens> {
        let verified = quick_cache::unsync::Cache::new(CACHED_TOKENS_MAX);
        (!config.access.issuers.is_empty()).then_some(Tokens { verified })
    }

    /// Returns the grant of a token, from the cache or after verification. A cached grant may have
    /// expired, so the calling function must check the expiry.
    ///
    /// # Errors
    /// [`Denial::Expired`] or [`Denial::BadKey`].
    pub(crate) fn find_grant(
        &mut self,
        hash: &[u8; 32],
        token: &str,
        config: &Config,
    ) -> Result<Arc<Grant>, Denial> {
        if let Some(grant) = self.verified.get(hash) {
            return Ok(Arc::clone(grant));
        }
        let grant = Arc::new(verify(token, &config.access.issuers, &config.chains)?);
        self.verified.insert(*hash, Arc::clone(&grant));
        Ok(grant)
    }
}

/// Verifies a token and returns its grant.
///
/// # Errors
/// [`Denial::Expired`] if the token has expired and is valid otherwise. [`Denial::BadKey`] for
/// every other invalid token.
pub(crate) fn verify(token: &str, issuers: &[Issuer], chains: &[Chain]) -> Result<Grant, Denial> {
    let header = decode_header(token).map_err(|_| Denial::BadKey)?;
    let mut denial = Denial::BadKey;
    for issuer in issuers {
        let may_verify = |key: &&VerifyKey| {
            // If the token or the key lacks an id, the ids are not compared.
            let ids = header.kid.as_deref().zip(key.id.as_deref());
            key.algorithms.contains(&header.alg)
                && ids.is_none_or(|(token_id, key_id)| token_id == key_id)
        };
        for key in issuer.keys.iter().filter(may_verify) {
            match decode::<Map<String, Value>>(token, &key.key, &build_validation(issuer, key)) {
                Ok(token_data) => return build_grant(issuer, &token_data.claims, chains),
                Err(error) if *error.kind() == ErrorKind::ExpiredSignature => {
                    denial = Denial::Expired;
                }
                Err(_) => {}
            }
        }
    }
    Err(denial)
}

/// Returns the checks that the JWT library applies to a token of an issuer.
fn build_validation(issuer: &Issuer, key: &VerifyKey) -> Validation {
    let mut validation = Validation::new(key.algorithms[0]);
    validation.algorithms.clone_from(&key.algorithms);
    validation.leeway = issuer.leeway.as_secs();
    validation.validate_nbf = true;
    let mut required_claims = vec!["exp"];
    if let Some(name) = &issuer.issuer {
        validation.set_issuer(&[name]);
        required_claims.push("iss");
    }
    if issuer.audience.is_empty() {
        validation.validate_aud = false;
    } else {
        validation.set_audience(&issuer.audience);
        required_claims.push("aud");
    }
    validation.set_required_spec_claims(&required_claims);
    validation
}

/// Builds the grant of a token from its claims. Returns [`Denial::BadKey`] if a claim has another
/// type than expected.
fn build_grant(
    issuer: &Issuer,
    claims: &Map<String, Value>,
    chains: &[Chain],
) -> Result<Grant, Denial> {
    // The library accepts a list of issuers, of which one must match. RFC 7519 (4.1.1) allows one.
    if claims.get("iss").is_some_and(|issuer| !issuer.is_string()) {
        return Err(Denial::BadKey);
    }
    let text_claim = |name: &str| claims.get(name).and_then(Value::as_str);
    let name = match text_claim("sub") {
        Some(subject) => {
            let subject: String = subject.chars().take(SUBJECT_CHARS_MAX).collect();
            format!("{}:{subject}", issuer.name).into()
        }
        None => Arc::clone(&issuer.name),
    };
    let expires = claims.get("exp").and_then(Value::as_f64).ok_or(Denial::BadKey)?;
    let list_claim = |name: &str| claims.get(name).map(parse_list).transpose();
    let methods = list_claim(&issuer.claims.methods)?;
    let allowed_chains = list_claim(&issuer.claims.chains)?.map(|names| {
        let is_listed = |chain: &Chain| names.contains(&&*chain.name);
        let indices = chains.iter().enumerate().filter(|(_, chain)| is_listed(chain));
        indices.map(|(index, _)| index).collect()
    });
    // An empty list in the token allows nothing, and a missing list allows everything. But an empty
    // `MethodSet` would allow everything, so an empty list becomes a pattern that matches no
    // method.
    let allow = match &methods {
        Some(names) if names.is_empty() => MethodSet::new([""]),
        Some(names) => MethodSet::new(names.iter().copied()),
        None => MethodSet::default(),
    };
    Ok(Grant {
        name,
        index: issuer.index,
        tier: text_claim(&issuer.claims.tier).map(Arc::from).or_else(|| issuer.tier.clone()),
        is_token: true,
        methods: MethodRules { allow, deny: MethodSet::default() },
        chains: allowed_chains,
        expires: Some((expires as u64).saturating_add(issuer.leeway.as_secs())),
        ..Grant::default()
    })
}

/// Parses a list of strings, or one string separated by spaces. Returns [`Denial::BadKey`] for
/// other values, and for more than [`LIST_ITEMS_MAX`] strings.
fn parse_list(value: &Value) -> Result<Vec<&str>, Denial> {
    let texts: Option<Vec<&str>> = match value {
        Value::String(text) => Some(text.split_whitespace().collect()),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        _ => None,
    };
    texts.filter(|texts| texts.len() <= LIST_ITEMS_MAX).ok_or(Denial::BadKey)
}
