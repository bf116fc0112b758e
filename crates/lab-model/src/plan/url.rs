//! URLs of targets: what is needed to reach them, and a form of them that shows no secret.
//!
//! Providers put their keys into the path, the query, the user part or even the host name. So what
//! is shown is only what cannot be a key. It opens no connection and looks up no name; that is
//! `target.rs`.

use base64::Engine;

#[cfg(test)]
mod tests;

/// Path segments up to this length that look like a word are shown; keys of the providers that we
/// know of begin at 20 characters (Infura 32, Alchemy 32, QuickNode 40, Ankr 64).
const SHOWN_SEGMENT_BYTES_MAX: usize = 12;

/// A word such as `v2` or `c1` may hold this many digits and still be shown.
const SHOWN_DIGITS_MAX: usize = 2;

/// Host labels from this length on are masked if they hold a digit: some providers make the key a
/// label of the host name.
const MASKED_LABEL_BYTES_MIN: usize = 16;

/// Longest URL.
const URL_BYTES_MAX: usize = 2048;

pub use settings::MASK;

/// A URL, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Whether it is `https://`.
    pub tls: bool,
    /// Name or address, lower case, an IPv6 address without brackets.
    pub host: String,
    /// Port, 80 or 443 if none is written.
    pub port: u16,
    /// Path and query; begins with a slash.
    pub path: String,
    /// Value of the `authorization` header where the URL has a user part.
    pub authorization: Option<String>,
    /// The URL without what may be secret.
    pub shown: String,
}

impl Address {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// What is wrong with it, in words that hold no part of it.
    pub fn parse(text: &str) -> Result<Address, &'static str> {
        if text.len() > URL_BYTES_MAX {
            return Err("the url is longer than 2048 bytes");
        }
        if text.contains('#') {
            return Err("the url of a node has no fragment (#)");
        }
        let Some((scheme, _)) = text.split_once("://") else {
            return Err("a url begins with http:// or https://");
        };
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            "ws" | "wss" => return Err("websockets are not spoken here"),
            _ => return Err("the scheme is neither http nor https"),
        };
        let uri: http::Uri = text.parse().map_err(|_| "not a url")?;
        let authority = uri.authority().ok_or("the url has no host")?;
        let (userinfo, place) = match authority.as_str().rsplit_once('@') {
            Some((userinfo, place)) => (Some(userinfo), place),
            None => (None, authority.as_str()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("the url has no host");
        }
        let after_brackets = place.rsplit_once(']').map_or(place, |(_, rest)| rest);
        let port = match (authority.port_u16(), tls) {
            (Some(0), _) => return Err("the port is not one of 1 to 65535"),
            (Some(port), _) => port,
            (None, _) if after_brackets.contains(':') => {
                return Err("the port is not one of 1 to 65535");
            }
            (None, true) => 443,
            (None, false) => 80,
        };
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let path = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Address {
            tls,
            host: host.to_ascii_lowercase(),
            port,
            path,
            authorization: userinfo.map(basic_authorization).transpose()?,
            shown: shown(&uri, place, userinfo.is_some()),
        })
    }
}

/// Any text that may be a URL, fit to be shown: a URL without its secrets, and `***` for what
/// cannot be read as one.
pub fn masked(text: &str) -> String {
    const OTHER_SCHEMES: [&str; 2] = ["ws", "wss"];
    if let Ok(address) = Address::parse(text) {
        return address.shown;
    }
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let Ok(address) = Address::parse(&format!("http://{rest}")) else { return MASK.to_owned() };
    // Without a scheme it may be a bare key; only what has a host's form is none.
    let host = address.host.as_str();
    let is_host = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok();
    let shown = address.shown.trim_start_matches("http://");
    match scheme {
        "" if is_host => shown.to_owned(),
        scheme if OTHER_SCHEMES.contains(&scheme) => format!("{scheme}://{shown}"),
        _ => MASK.to_owned(),
    }
}

/// A URL as it is written in a plan, without its secrets. References such as `${env:NAME}` are none,
/// and stay.
pub(super) fn masked_written(text: &str) -> String {
    const OPEN: &str = "${";
    let whole = text.strip_prefix("${env:").and_then(|text| text.strip_suffix('}'));
    if let Some((name, default)) = whole.and_then(|inside| inside.split_once(":-"))
        && !name.contains('}')
    {
        return format!("${{env:{name}:-{}}}", masked(default));
    }
    // A word that no masking touches stands for each reference while the rest is masked.
    let stand_in = |at: usize| {
        let letter = |place: u32| (b'a' + (at / 26usize.pow(place) % 26) as u8) as char;
        format!("envq{}{}", letter(0), letter(1))
    };
    let (mut plain, mut references, mut rest) = (String::new(), Vec::new(), text);
    while let Some(at) = rest.find(OPEN) {
        let Some(end) = rest[at..].find('}') else { return MASK.to_owned() };
        let reference = &rest[at..=at + end];
        if reference.contains(":-") {
            return MASK.to_owned();
        }
        plain.push_str(&rest[..at]);
        plain.push_str(&stand_in(references.len()));
        references.push(reference);
        rest = &rest[at + end + 1..];
    }
    plain.push_str(rest);
    let mut shown = masked(&plain);
    for (at, reference) in references.iter().enumerate() {
        shown = shown.replace(&stand_in(at), reference);
    }
    shown
}

fn shown(uri: &http::Uri, place: &str, user: bool) -> String {
    let mut shown = format!("{}://", uri.scheme_str().unwrap_or_default().to_ascii_lowercase());
    if user {
        shown.push_str(MASK);
        shown.push('@');
    }
    shown.push_str(&masked_host(&place.to_ascii_lowercase()));
    if uri.path() != "/" {
        for segment in uri.path().split('/').skip(1) {
            shown.push('/');
            shown.push_str(if is_plain(segment) { segment } else { MASK });
        }
    }
    if uri.query().is_some() {
        shown.push('?');
        shown.push_str(MASK);
    }
    shown
}

fn masked_host(host: &str) -> String {
    let masked_label = |label: &str| {
        label.len() >= MASKED_LABEL_BYTES_MIN && label.bytes().any(|byte| byte.is_ascii_digit())
    };
    if host.contains('[') || host.parse::<std::net::IpAddr>().is_ok() {
        return host.to_owned();
    }
    let labels = host.split('.').map(|label| if masked_label(label) { MASK } else { label });
    labels.collect::<Vec<_>>().join(".")
}

/// Whether a path segment cannot be a key: a short word such as `rpc`, `v1` or `eth-mainnet`.
fn is_plain(segment: &str) -> bool {
    segment.len() <= SHOWN_SEGMENT_BYTES_MAX
        && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && segment.bytes().filter(u8::is_ascii_digit).count() <= SHOWN_DIGITS_MAX
}

/// The header that the user part stands for (RFC 7617): percent-decoded, then base64.
fn basic_authorization(userinfo: &str) -> Result<String, &'static str> {
    let decoded = percent_decoded(userinfo).ok_or("the user part has a bad % escape")?;
    Ok(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(decoded)))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        decoded.push((high * 16 + low) as u8);
    }
    Some(decoded)
}
