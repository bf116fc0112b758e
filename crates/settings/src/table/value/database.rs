//! The address of a database: the name of a file, or the URL of a PostgreSQL database.
//!
//! The gateway's configuration and the commands of the index share this parser. The crate `index`
//! opens the database.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use crate::{MASK, url};

#[cfg(test)]
mod tests;

/// The accepted schemes of a URL.
const SCHEMES: [&str; 2] = ["postgres", "postgresql"];
/// Maximum number of bytes of an identifier. PostgreSQL truncates longer identifiers.
const IDENTIFIER_BYTES_MAX: usize = 63;
/// The parameters that the PostgreSQL client reads
/// (<https://docs.rs/tokio-postgres/latest/tokio_postgres/config/struct.Config.html>).
const CLIENT_PARAMETERS: [&str; 15] = [
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "application_name",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "options",
    "target_session_attrs",
];
/// The parameters that are printed, because they identify the database.
const PRINTED_PARAMETERS: [&str; 5] = ["host", "hostaddr", "port", "dbname", "schema"];

/// A file, or a PostgreSQL database. The printed form holds no secret.
#[derive(Clone, PartialEq, Eq)]
pub enum Database {
    /// The name of a file.
    File(PathBuf),
    /// A PostgreSQL database.
    Url(Box<DatabaseUrl>),
}

/// The URL of a PostgreSQL database. The printed form has hosts, ports, database and schema, and
/// [`MASK`] in place of the user part and of all other parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    /// The URL for a PostgreSQL client, without the parameters that only this program reads.
    /// **Secret**: it may hold the password.
    pub client_url: String,
    /// True if the connection uses TLS; `None` if the URL has no `sslmode`.
    pub tls: Option<bool>,
    /// The file of the certificates to trust, `sslrootcert`.
    pub root_certificates: Option<PathBuf>,
    /// The PostgreSQL schema. Its name is safe to use in SQL without quotes.
    pub schema: Option<String>,
    printed: String,
}

impl Database {
    /// The forms of an address, for errors.
    pub const ALLOWED: &str = "name of a file, or postgres://USER@HOST[:PORT]/DATABASE";

    /// Parses the name of a file, or a URL.
    ///
    /// A text without a scheme is the name of a file, and names of files are printed. So such a
    /// text is rejected if it may contain a password. A text that begins with `./` is always the
    /// name of a file.
    ///
    /// # Errors
    /// Returns a message about the invalid part and its allowed values. The message repeats no part
    /// of the text, because the text may contain a password.
    pub fn parse(text: &str) -> Result<Database, String> {
        match text.split_once("://") {
            Some((scheme, after_scheme))
                if SCHEMES.contains(&scheme.to_ascii_lowercase().as_str()) =>
            {
                Ok(Database::Url(Box::new(DatabaseUrl::parse(after_scheme)?)))
            }
            Some(_) => Err("the scheme is neither postgres:// nor postgresql://".to_owned()),
            None if text.is_empty() => Err("the name of a file is empty".to_owned()),
            None if may_hold_password(text) => Err("a url without its scheme, postgres://; \
                                                    the name of a file with : and @, or with \
                                                    password=, begins with ./"
                .to_owned()),
            None => Ok(Database::File(PathBuf::from(text))),
        }
    }

    /// Resolves the name of a file relative to this folder. Returns a URL unchanged.
    #[must_use]
    pub fn within(self, folder: &Path) -> Database {
        match self {
            Database::File(path) => Database::File(folder.join(path)),
            url @ Database::Url(_) => url,
        }
    }
}

/// Returns true if a text without a scheme looks like a URL with a user part, or like the
/// `name=value` form of other PostgreSQL clients.
fn may_hold_password(text: &str) -> bool {
    let is_url = text.contains(':') && text.contains('@');
    !text.starts_with("./") && (is_url || text.to_ascii_lowercase().contains("password="))
}

impl DatabaseUrl {
    /// Parses the part of a URL after `postgres://`.
    fn parse(after_scheme: &str) -> Result<DatabaseUrl, String> {
        let (base, query) = after_scheme.split_once('?').unwrap_or((after_scheme, ""));
        let (user, host_and_name) = match base.split_once('@') {
            Some((user, host_and_name)) => (Some(user), host_and_name),
            None => (None, base),
        };
        // The PostgreSQL client treats everything before the first @ as the user part, even in a
        // query.
        if host_and_name.contains('@')
            || query.contains('@')
            || user.is_some_and(|user| user.contains('/'))
        {
            return Err(
                "a reserved character: in the user, the password and the parameters, @ is \
                        written %40, / is %2F and ? is %3F"
                    .to_owned(),
            );
        }
        let (hosts, database_name) = host_and_name.split_once('/').unwrap_or((host_and_name, ""));
        if !hosts.is_empty() {
            hosts.split(',').try_for_each(check_host)?;
        }
        if !database_name.bytes().all(is_plain) {
            return Err("a character in the name of the database that is none of a-z, A-Z, 0-9, \
                        _, - and ., and is not written as %XX"
                .to_owned());
        }
        let has_host =
            list_parameters(query).any(|(name, value)| name == "host" && !value.is_empty());
        if hosts.is_empty() && !has_host {
            return Err("the url has no host; a local socket is ?host=/run/postgresql".to_owned());
        }
        let mut url = DatabaseUrl {
            client_url: format!("postgres://{base}"),
            tls: None,
            root_certificates: None,
            schema: None,
            printed: format!("postgres://{}{host_and_name}", user.map_or("", |_| "***@")),
        };
        url.add_parameters(query)?;
        Ok(url)
    }

    /// Parses the parameters of a URL, and adds them to the client's URL and to the printed form.
    /// In the printed form, one [`MASK`] replaces all parameters that are not printed.
    fn add_parameters(&mut self, query: &str) -> Result<(), String> {
        let (mut client_parameters, mut printed_parameters) = (Vec::new(), Vec::new());
        for (name, value) in list_parameters(query) {
            match name {
                "sslmode" => self.tls = Some(parse_sslmode(value)?),
                "sslrootcert" => self.root_certificates = Some(percent_decode(value)?.into()),
                "schema" => self.schema = Some(parse_schema_name(value)?),
                name if CLIENT_PARAMETERS.contains(&name) => {
                    client_parameters.push(format!("{name}={value}"));
                }
                _ => {
                    return Err(format!(
                        "a parameter that is not known; known are schema, sslmode, sslrootcert, {}",
                        CLIENT_PARAMETERS.join(", ")
                    ));
                }
            }
            let is_printed = |byte| is_plain(byte) || b"/,:[]".contains(&byte);
            if PRINTED_PARAMETERS.contains(&name) && value.bytes().all(is_printed) {
                printed_parameters.push(format!("{name}={value}"));
            }
        }
        if list_parameters(query).count() > printed_parameters.len() {
            printed_parameters.push(MASK.to_owned());
        }
        for (url, parameters) in
            [(&mut self.client_url, client_parameters), (&mut self.printed, printed_parameters)]
        {
            if !parameters.is_empty() {
                *url += &format!("?{}", parameters.join("&"));
            }
        }
        Ok(())
    }
}

/// Returns the names and values of the parameters of a URL.
fn list_parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Checks a host with its port, which may be missing.
fn check_host(host: &str) -> Result<(), String> {
    let (is_valid_host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, port)) => (address.parse::<Ipv6Addr>().is_ok(), port),
        None => {
            let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
            (!name.is_empty() && name.bytes().all(is_plain), port)
        }
    };
    if !is_valid_host {
        return Err("a host is neither a name nor an address".to_owned());
    }
    let number = port.strip_prefix(':').and_then(|port| port.parse::<u16>().ok());
    if port.is_empty() || number.is_some_and(|number| number > 0) {
        return Ok(());
    }
    Err("the port is not one of 1 to 65535".to_owned())
}

/// Returns true for a character of a name, and for `%`, which begins an escape.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.%".contains(&byte)
}

/// Parses the value of `sslmode`.
fn parse_sslmode(mode: &str) -> Result<bool, String> {
    match mode {
        "disable" => Ok(false),
        "require" | "verify-full" => Ok(true),
        _ => Err("sslmode is none of disable, require and verify-full; certificates are always \
                  verified"
            .to_owned()),
    }
}

/// Checks the name of a schema, which is used in SQL without quotes.
fn parse_schema_name(text: &str) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let has_allowed_characters = text.len() <= IDENTIFIER_BYTES_MAX && text.bytes().all(is_allowed);
    let begins_with_letter = text.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if has_allowed_characters && begins_with_letter && !text.starts_with("pg_") {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a schema is 1 to {IDENTIFIER_BYTES_MAX} of a-z, 0-9 and _, begins with no digit and not with pg_"
    ))
}

/// Returns a text with its `%XX` escapes replaced.
fn percent_decode(text: &str) -> Result<String, String> {
    let bytes = url::percent_decode(text);
    let bytes = bytes.ok_or("a % that is not followed by two hexadecimal digits")?;
    String::from_utf8(bytes).map_err(|_| "a value that is not UTF-8".to_owned())
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.printed)
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.printed)
    }
}

impl fmt::Display for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Database::File(path) => path.display().fmt(formatter),
            Database::Url(url) => url.fmt(formatter),
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

crate::string_scalar! {
    /// The name of a file, or the URL of a database.
    pub DatabaseAddress: Database = Database::parse, "a file name or a url",
        "name of a file, from the folder of this one, or postgres://user@host[:port]/database",
        "chain.db", mask mask_address;
}

/// Returns a text that may be an address, with its secrets masked and in quotes.
fn mask_address(text: &str) -> Option<String> {
    let address = Database::parse(text).map(|database| database.to_string());
    Some(format!("\"{}\"", address.unwrap_or_else(|_| MASK.to_owned())))
}
