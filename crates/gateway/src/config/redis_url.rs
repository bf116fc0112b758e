//! The URL of a Redis. The type never prints the secrets in the URL.
//!
//! The URL states the addresses and the topology: a single server, sentinels or a cluster. The
//! query can contain further addresses as `node=`. `cache/redis/` opens the connections.

use std::fmt;

use fred::types::config::{Config, ServerConfig};

use settings::{MASK, url};

#[cfg(test)]
mod tests;

/// Accepted schemes.
const SCHEMES: [&str; 6] =
    ["redis", "rediss", "redis-sentinel", "rediss-sentinel", "redis-cluster", "rediss-cluster"];

/// The validated URL of a Redis. Printing it reveals no secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The settings of the client library, which contain the password.
    client: Config,
    /// True for TLS.
    tls: bool,
    /// The URL with its secrets masked.
    masked_url: Box<str>,
}

impl RedisUrl {
    /// Validates a URL.
    ///
    /// # Errors
    ///
    /// A description of the error, without any part of the URL.
    pub fn parse(text: &str) -> Result<RedisUrl, &'static str> {
        let Some((scheme, after_scheme)) = text.split_once("://") else {
            return Err("a url of a redis begins with redis://");
        };
        let scheme = scheme.to_ascii_lowercase();
        if !SCHEMES.contains(&scheme.as_str()) {
            return Err("no such scheme");
        }
        if text.contains('#') {
            return Err("a redis url must not have a fragment (#)");
        }
        let uri: http::Uri =
            format!("{scheme}://{after_scheme}").parse().map_err(|_| "not a url")?;
        let authority = uri.authority().ok_or("the url has no host")?.as_str();
        let (has_user, address) = match authority.rsplit_once('@') {
            Some((_, address)) => (true, address),
            None => (false, authority),
        };
        if address.is_empty() || address.starts_with(':') {
            return Err("the url has no host");
        }
        if scheme.ends_with("-sentinel") && !after_scheme.contains("sentinelServiceName=") {
            return Err("a sentinel url needs the service name: ?sentinelServiceName=NAME");
        }
        // The gateway sets up TLS itself, so the client library gets a scheme without TLS. With a
        // TLS scheme, the library would read the certificates of the host.
        let plain_scheme = scheme.replacen("rediss", "redis", 1);
        let client = Config::from_url(&format!("{plain_scheme}://{after_scheme}"));
        let client = client.map_err(|_| "not a url")?;
        let masked_url = url::format_masked(&uri, address, has_user).into();
        Ok(RedisUrl { client, tls: scheme.starts_with("rediss"), masked_url })
    }

    /// Returns true for TLS.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// Returns true for a cluster. In a cluster the keys of one command must be on one node.
    pub fn is_cluster(&self) -> bool {
        matches!(self.client.server, ServerConfig::Clustered { .. })
    }

    /// Returns the host names and addresses in the URL.
    pub(super) fn hosts(&self) -> Vec<String> {
        self.client.server.hosts().into_iter().map(|server| server.host.to_string()).collect()
    }

    /// Returns the settings of the client library. **Secret**: they contain the password.
    pub(crate) fn client(&self) -> Config {
        self.client.clone()
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.masked_url)
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.masked_url)
    }
}

/// Returns a quoted text in which the secrets of a URL are masked. A text that is no valid URL is
/// masked completely.
pub(super) fn mask_url(text: &str) -> Option<String> {
    let masked_url = RedisUrl::parse(text).map_or_else(|_| MASK.to_owned(), |url| url.to_string());
    Some(format!("\"{masked_url}\""))
}
