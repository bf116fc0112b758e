//! Goal: a token is accepted only if a configured key has signed it with an allowed algorithm, and
//! if its times and claims are valid. Method: fresh keys, tokens signed by the JWT library, and
//! complete configurations.

use std::path::Path;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// A Unix time in the far future.
const LATER: u64 = 4_000_000_000;
/// A Unix time in the past.
const BEFORE: u64 = 1_000_000_000;

fn config(folder: &Path, jwt: &str) -> Config {
    let text = format!(
        "[chain.eth]\nid = 1\n[chain.one]\nid = 2\nfamily = \"harmony\"\n\
         [[upstream]]\nurl = \"http://127.0.0.1:1\"\nchain = \"eth\"\n\
         [[upstream]]\nurl = \"http://127.0.0.1:2\"\nchain = \"one\"\n[[jwt]]\nname = \"us\"\n{jwt}\n"
    );
    Config::from_text("test", &text, folder, &|_| None).unwrap_or_else(|faults| panic!("{faults}"))
}

fn check(config: &Config, token: &str) -> Result<Grant, Denial> {
    verify(token, &config.access.issuers, &config.chains)
}

fn sign_hs256(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

/// A signing key, with its public key in PEM and as a JSON web key.
struct SigningKey {
    signing: EncodingKey,
    public: String,
    jwk: Value,
    algorithm: Algorithm,
}

fn generate_elliptic_key(algorithm: Algorithm) -> SigningKey {
    let (kind, curve) = match algorithm {
        Algorithm::ES256 => (&ECDSA_P256_SHA256_FIXED_SIGNING, "P-256"),
        _ => (&ECDSA_P384_SHA384_FIXED_SIGNING, "P-384"),
    };
    let pair = EcdsaKeyPair::generate(kind).unwrap();
    let private = pair.to_pkcs8v1().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let point = pair.public_key().as_ref();
    let (x, y) = point[1..].split_at((point.len() - 1) / 2);
    let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let jwk = json!({"kty": "EC", "crv": curve, "x": number(x), "y": number(y), "kid": "e"});
    let private = pem("PRIVATE KEY", private.as_ref());
    let signing = EncodingKey::from_ec_pem(private.as_bytes()).unwrap();
    SigningKey { signing, public: pem("PUBLIC KEY", public.as_ref()), jwk, algorithm }
}

fn rsa(algorithm: Algorithm) -> SigningKey {
    let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
    let private: aws_lc_rs::encoding::Pkcs8V1Der<'_> = pair.as_der().unwrap();
    let public: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    let number = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let modulus = number(pair.public_key().modulus().big_endian_without_leading_zero());
    let exponent = number(pair.public_key().exponent().big_endian_without_leading_zero());
    let jwk = json!({"kty": "RSA", "n": modulus, "e": exponent, "kid": "r", "use": "sig"});
    let private = pem("PRIVATE KEY", private.as_ref());
    let signing = EncodingKey::from_rsa_pem(private.as_bytes()).unwrap();
    SigningKey { signing, public: pem("PUBLIC KEY", public.as_ref()), jwk, algorithm }
}

impl SigningKey {
    fn sign(&self, id: Option<&str>) -> String {
        let header = Header { kid: id.map(str::to_owned), ..Header::new(self.algorithm) };
        encode(&header, &json!({"exp": LATER, "sub": "bob"}), &self.signing).unwrap()
    }
}

#[test]
fn each_kind_of_key_verifies_its_own_algorithms_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = [
        rsa(Algorithm::RS256),
        generate_elliptic_key(Algorithm::ES256),
        generate_elliptic_key(Algorithm::ES384),
    ];
    for pair in &pairs {
        std::fs::write(folder.path().join("public.pem"), &pair.public).unwrap();
        let config = config(folder.path(), "public_key = \"public.pem\"");
        assert_eq!(&*check(&config, &pair.sign(None)).unwrap().name, "us:bob");
        for other in pairs.iter().filter(|other| other.algorithm != pair.algorithm) {
            assert_eq!(check(&config, &other.sign(None)), Err(Denial::BadKey));
        }
        // The public key is not secret, so it must not verify as a shared secret.
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            for secret in [pair.public.as_bytes(), pair.public.trim().as_bytes()] {
                let key = EncodingKey::from_secret(secret);
                let token = encode(&Header::new(algorithm), &json!({"exp": LATER}), &key).unwrap();
                assert_eq!(check(&config, &token), Err(Denial::BadKey));
            }
        }
    }
    let config = config(folder.path(), &format!("secret = \"{SECRET}\""));
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let token = encode(&Header::new(algorithm), &json!({"exp": LATER}), &key).unwrap();
        assert_eq!(&*check(&config, &token).unwrap().name, "us");
    }
}

#[test]
fn a_token_without_a_valid_signature_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &format!("secret = \"{SECRET}\""));
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = part(json!({"exp": LATER}));
    let good = sign_hs256(&json!({"exp": LATER}));
    let cut = good.rsplit_once('.').unwrap().0;
    for token in [
        format!("{}.{claims}.", part(json!({"alg": "none"}))),
        format!("{}.{claims}.", part(json!({"alg": "HS256"}))),
        format!("{cut}."),
        format!("{cut}.AAAA"),
        "..".to_owned(),
        "a.b.c".to_owned(),
        String::new(),
    ] {
        assert_eq!(check(&config, &token), Err(Denial::BadKey), "{token}");
    }
    // The signature of one token with the claims of another.
    let signature = good.rsplit_once('.').unwrap().1;
    let head = good.split('.').next().unwrap();
    let other = part(json!({"exp": LATER, "tier": "gold"}));
    assert_eq!(check(&config, &format!("{head}.{other}.{signature}")), Err(Denial::BadKey));
}

#[test]
fn times_issuer_and_audience_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let lines = format!("secret = \"{SECRET}\"\nissuer = \"them\"\naudience = [\"rpc\", \"x\"]\n");
    let config = config(folder.path(), &lines);
    let good = json!({"exp": LATER, "iss": "them", "aud": "rpc"});
    let changed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        check(&config, &sign_hs256(&claims)).map(|_| ())
    };
    assert_eq!(changed("aud", json!(["other", "x"])), Ok(()));
    assert_eq!(changed("nbf", json!(BEFORE)), Ok(()));
    for (name, value, expected) in [
        ("exp", json!(BEFORE), Denial::Expired),
        ("exp", Value::Null, Denial::BadKey),
        ("exp", json!("soon"), Denial::BadKey),
        ("nbf", json!(LATER - 1), Denial::BadKey),
        ("iss", json!("others"), Denial::BadKey),
        ("iss", Value::Null, Denial::BadKey),
        ("iss", json!(["them"]), Denial::BadKey),
        ("iss", json!(["others", "them"]), Denial::BadKey),
        ("aud", json!("others"), Denial::BadKey),
        ("aud", Value::Null, Denial::BadKey),
    ] {
        assert_eq!(changed(name, value.clone()), Err(expected), "{name} {value}");
    }
}

#[test]
fn claims_limit_what_a_token_allows() {
    let folder = tempfile::tempdir().unwrap();
    let lines =
        format!("secret = \"{SECRET}\"\ntier = \"free\"\nmethods_claim = \"https://x/m\"\n");
    let config = config(folder.path(), &lines);
    let grant = |claims: Value| check(&config, &sign_hs256(&claims));
    let open = grant(json!({"exp": LATER})).unwrap();
    assert_eq!((open.tier.as_deref(), open.chains.as_deref()), (Some("free"), None));
    let leeway_seconds = 30;
    assert!(open.methods.is_open() && open.expires == Some(LATER + leeway_seconds));
    let all = grant(json!({
        "exp": LATER, "tier": "gold", "chains": "one other", "https://x/m": ["eth_call", "debug_*"]
    }));
    let all = all.unwrap();
    assert_eq!((all.tier.as_deref(), all.chains.as_deref()), (Some("gold"), Some(&[1][..])));
    assert!(all.methods.allows("debug_traceCall") && !all.methods.allows("eth_chainId"));
    // An empty list allows nothing.
    let none = grant(json!({"exp": LATER, "chains": [], "https://x/m": []})).unwrap();
    assert!(!none.allows_chain(0) && !none.methods.allows("eth_call"));
    for claims in [json!({"exp": LATER, "chains": 5}), json!({"exp": LATER, "chains": [5]})] {
        assert_eq!(grant(claims), Err(Denial::BadKey));
    }
    let long = json!({"exp": LATER, "sub": "é".repeat(1000)});
    let prefix_chars = "us:".len();
    assert!(grant(long).unwrap().name.chars().count() <= SUBJECT_CHARS_MAX + prefix_chars);
}

#[test]
fn the_key_id_of_a_token_selects_a_key_of_the_set() {
    let folder = tempfile::tempdir().unwrap();
    let (elliptic_key, rsa_key) = (generate_elliptic_key(Algorithm::ES256), rsa(Algorithm::RS256));
    let encryption = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB", "use": "enc"});
    let set = json!({"keys": [elliptic_key.jwk, rsa_key.jwk, encryption]});
    std::fs::write(folder.path().join("set.json"), set.to_string()).unwrap();
    let config = config(folder.path(), "jwks = \"set.json\"");
    assert_eq!(config.access.issuers[0].keys.len(), 2);
    for (token, expected) in [
        (elliptic_key.sign(Some("e")), true),
        (rsa_key.sign(Some("r")), true),
        (elliptic_key.sign(None), true),
        (elliptic_key.sign(Some("r")), false),
        (elliptic_key.sign(Some("unknown")), false),
        (generate_elliptic_key(Algorithm::ES256).sign(Some("e")), false),
    ] {
        assert_eq!(check(&config, &token).is_ok(), expected, "{token}");
    }
}

#[test]
fn a_token_is_verified_once_and_memory_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let known = config(folder.path(), &format!("secret = \"{SECRET}\""));
    let other = config(folder.path(), &format!("secret = \"{}\"", SECRET.replace('0', "z")));
    let mut tokens = Tokens::new(&known).unwrap();
    let token = sign_hs256(&json!({"exp": LATER}));
    let hash = crate::config::access::sha256(token.as_bytes());
    tokens.find_grant(&hash, &token, &known).unwrap();
    // The other configuration could not verify the token, so this is a cache hit.
    assert!(tokens.find_grant(&hash, &token, &other).is_ok());
    assert_eq!(tokens.find_grant(&[0; 32], &token, &other).unwrap_err(), Denial::BadKey);
    for number in 0..2 * CACHED_TOKENS_MAX as u64 {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        let _ = tokens.find_grant(&hash, &token, &known);
    }
    assert!(tokens.verified.len() <= CACHED_TOKENS_MAX);
}
