//! Reads the keys that verify tokens: a PEM file, a JSON web key set, or a shared secret.
//!
//! The type of a key determines the allowed algorithms. A token cannot choose another algorithm
//! (RFC 8725, section 3.1).

use std::fmt;
use std::path::Path;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

/// The algorithms that a shared secret allows.
const HMAC_ALGORITHMS: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
/// The algorithms that an RSA key allows.
const RSA_ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::RS384, Algorithm::RS512];

/// Maximum bytes of a key file. A set of a hundred keys has some 100 kB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of keys of one set. The limit bounds the cost of a token, because its
/// verification may try every key.
const KEYS_MAX: usize = 64;

/// A verification key, with the algorithms that its type allows. A token cannot choose others.
#[derive(Clone)]
pub struct VerifyKey {
    /// Id of the key in a key set; `None` without an id.
    pub id: Option<Box<str>>,
    /// Allowed algorithms, all for one type of key; at least one.
    pub algorithms: Vec<Algorithm>,
    /// The key.
    pub key: DecodingKey,
}

impl fmt::Debug for VerifyKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("VerifyKey");
        debug.field("id", &self.id).field("algorithms", &self.algorithms).finish_non_exhaustive()
    }
}

/// Builds the verification key for a shared secret.
pub(super) fn build_secret_key(secret: &str) -> VerifyKey {
    let key = DecodingKey::from_secret(secret.as_bytes());
    VerifyKey { id: None, algorithms: HMAC_ALGORITHMS.to_vec(), key }
}

/// Reads the public key in a PEM file: RSA, or elliptic on P-256 or P-384.
///
/// # Errors
///
/// A description of the error, without any content of the file.
pub(super) fn read_pem(file: &Path) -> Result<VerifyKey, String> {
    let text = read_text(file)?;
    if text.contains("PRIVATE KEY") {
        return Err("contains a private key; the gateway needs only the public one".to_owned());
    }
    if let Ok(key) = DecodingKey::from_rsa_pem(text.as_bytes()) {
        return Ok(VerifyKey { id: None, algorithms: RSA_ALGORITHMS.to_vec(), key });
    }
    let key = DecodingKey::from_ec_pem(text.as_bytes())
        .map_err(|_| "contains no RSA or elliptic public key in PEM form".to_owned())?;
    // The length of an uncompressed point identifies the curve (SEC 1, section 2.3.3).
    let algorithm = match key.as_bytes().len() {
        65 => Algorithm::ES256,
        97 => Algorithm::ES384,
        _ => return Err("contains a key on another curve than P-256 and P-384".to_owned()),
    };
    Ok(VerifyKey { id: None, algorithms: vec![algorithm], key })
}

/// Reads the keys of a JSON web key set (RFC 7517) that verify signatures and have a supported
/// type.
///
/// # Errors
///
/// A description of the error, without any content of the file.
pub(super) fn read_key_set(file: &Path) -> Result<Vec<VerifyKey>, String> {
    let text = read_text(file)?;
    let set: JwkSet =
        serde_json::from_str(&text).map_err(|_| "contains no JSON web key set".to_owned())?;
    if set.keys.len() > KEYS_MAX {
        return Err(format!("contains {} keys, at most {KEYS_MAX} are allowed", set.keys.len()));
    }
    let keys: Vec<VerifyKey> = set.keys.iter().filter_map(read_jwk).collect();
    if keys.is_empty() {
        return Err("contains no key for HS, RS or ES signatures".to_owned());
    }
    Ok(keys)
}

/// Reads one key of a set; `None` if the key does not verify signatures or is not supported.
fn read_jwk(jwk: &Jwk) -> Option<VerifyKey> {
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let supported: &[Algorithm] = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => &RSA_ALGORITHMS,
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => &[Algorithm::ES256],
            EllipticCurve::P384 => &[Algorithm::ES384],
            _ => return None,
        },
        AlgorithmParameters::OctetKey(_) => &HMAC_ALGORITHMS,
        AlgorithmParameters::OctetKeyPair(_) => return None,
    };
    // A key in a set can state its algorithm (`alg`). The library has another type for stated
    // algorithms, so the names are compared.
    let stated = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
    let is_allowed = |algorithm: &Algorithm| {
        stated.as_ref().is_none_or(|stated| format!("{algorithm:?}") == *stated)
    };
    let algorithms: Vec<Algorithm> = supported.iter().copied().filter(is_allowed).collect();
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let id = jwk.common.key_id.as_deref().map(Box::from);
    (!algorithms.is_empty()).then_some(VerifyKey { id, algorithms, key })
}

fn read_text(file: &Path) -> Result<String, String> {
    settings::read_text_file(file, FILE_BYTES_MAX)
        .map_err(|error| format!("cannot be read: {error}"))
}
