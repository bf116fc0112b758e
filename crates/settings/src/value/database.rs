//! The address of a database: a file, or a URL of PostgreSQL that prints without its secrets.
//!
//! Nothing here opens a database or knows the parameters of a URL; whoever connects reads those.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::MASK;

#[cfg(test)]
mod tests;

/// What a URL of a database begins with.
const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// A file, or a database of PostgreSQL. Printing it shows no secrets.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// The name of a file.
    File(PathBuf),
    /// The URL of a database. **Secret**: it may hold the password.
    Url(Box<str>),
}

impl Database {
    /// Reads the name of a file, or a URL.
    ///
    /// # Errors
    /// What is wrong with it, in words that hold no part of it.
    pub fn parse(text: &str) -> Result<Database, &'static str> {
        match text.split_once("://") {
            Some((scheme, rest)) if SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) => {
                if is_url(rest) {
                    Ok(Database::Url(text.into()))
                } else {
                    Err("not a url")
                }
            }
            Some(_) => Err("no such scheme"),
            None if text.is_empty() => Err("empty"),
            // It would be shown with all that stands in it.
            None if text.contains(':') && text.contains('@') => Err("a url without its scheme"),
            None => Ok(Database::File(PathBuf::from(text))),
        }
    }

    /// The same with the name of a file taken from a folder.
    #[must_use]
    pub fn within(self, folder: &Path) -> Database {
        match self {
            Database::File(path) => Database::File(folder.join(path)),
            url @ Database::Url(_) => url,
        }
    }
}

/// Whether what stands behind the scheme is, as far as it is shown, what it seems to be: hosts with
/// ports, and the name of a database.
fn is_url(rest: &str) -> bool {
    let base = rest.split('?').next().unwrap_or_default();
    let place = base.rsplit_once('@').map_or(base, |(_, place)| place);
    let (hosts, name) = place.split_once('/').unwrap_or((place, ""));
    let is_host = |host: &str| {
        let port = host.rsplit_once(']').map_or(host, |(_, port)| port).split_once(':');
        port.is_none_or(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.%".contains(&byte);
    !rest.is_empty() && hosts.split(',').all(is_host) && name.bytes().all(plain)
}

impl fmt::Display for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = match self {
            Database::File(path) => return path.display().fmt(formatter),
            Database::Url(url) => url,
        };
        // Hosts and the name of the database; who asks, and every parameter, may be secret.
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (base, query) = rest.split_once('?').map_or((rest, ""), |(base, _)| (base, "?***"));
        let (user, place) = base.rsplit_once('@').map_or(("", base), |(_, place)| ("***@", place));
        write!(formatter, "{scheme}://{user}{place}{query}")
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

crate::text! {
    /// The name of a file, or the URL of a database.
    pub DatabaseAddress: Database = Database::parse, "a file name or a url",
        "name of a file, from the folder of this one, or postgres://user@host[:port]/database",
        "chain.db", masked masked;
}

/// Any text that may be such an address, without its secrets.
fn masked(text: &str) -> Option<String> {
    let address = Database::parse(text).map(|database| database.to_string());
    Some(format!("\"{}\"", address.unwrap_or_else(|_| MASK.to_owned())))
}
