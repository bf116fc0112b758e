//! The location of an index: a file, or a schema in a PostgreSQL database.
//!
//! A server's URL may hold a password. Nothing prints it.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

#[cfg(test)]
mod tests;

/// The schemes of a server's URL.
const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];
/// The schema of an index whose URL names none.
const DEFAULT_SCHEMA: &str = "weir";
/// Bytes of an identifier. PostgreSQL truncates longer ones.
const IDENTIFIER_BYTES_MAX: usize = 63;
/// The URL parameters that are passed to the client
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

/// Where an index is.
#[derive(Debug, Clone, PartialEq)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// A schema in a PostgreSQL database.
    Server(Box<Server>),
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Location {
        Location::File(path.to_owned())
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Location {
        Location::File(path.clone())
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Location {
        Location::File(path)
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Location {
        location.clone()
    }
}

impl FromStr for Location {
    type Err = String;

    /// Parses the path of a file, or a URL.
    ///
    /// # Errors
    /// Says what is invalid, without repeating the text, which may hold a password.
    fn from_str(text: &str) -> Result<Location, String> {
        let url = SCHEMES.iter().find_map(|scheme| {
            let (start, rest) = text.split_at_checked(scheme.len())?;
            start.eq_ignore_ascii_case(scheme).then_some(rest)
        });
        match url {
            Some(rest) => Ok(Location::Server(Box::new(Server::parse(rest)?))),
            None if text.contains("://") => {
                Err("a url of an index begins with postgres:// or postgresql://".to_owned())
            }
            None if text.is_empty() => Err("the name of a file is empty".to_owned()),
            None => Ok(Location::File(PathBuf::from(text))),
        }
    }
}

impl Location {
    /// Returns true if the URL holds a password.
    pub fn has_password(&self) -> bool {
        matches!(self, Location::Server(server) if server.client.get_password().is_some())
    }

    /// The same location. A server whose URL has no password gets that of the environment variable
    /// `PGPASSWORD`.
    #[must_use]
    pub fn with_password_of_environment(mut self) -> Location {
        if let Location::Server(server) = &mut self
            && server.client.get_password().is_none()
            && let Some(password) = std::env::var_os("PGPASSWORD")
        {
            server.client.password(OsStringExt::into_vec(password));
        }
        self
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::File(path) => path.display().fmt(f),
            Location::Server(server) => server.fmt(f),
        }
    }
}

/// A schema in a PostgreSQL database, and how to connect to it. Its printed form holds no password.
#[derive(Clone)]
pub struct Server {
    pub(super) client: Config,
    /// The TLS configuration; `None` for a connection in the clear.
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    pub(super) schema: String,
    /// The URL without password and parameters.
    printed: String,
}

impl PartialEq for Server {
    fn eq(&self, other: &Server) -> bool {
        (&self.client, &self.schema) == (&other.client, &other.schema)
    }
}

impl Server {
    /// Parses a URL from behind `postgres://` on.
    fn parse(rest: &str) -> Result<Server, String> {
        let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut passed = Vec::new();
        let (mut mode, mut root, mut schema) = (None, None, DEFAULT_SCHEMA.to_owned());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "sslmode" => mode = Some(value),
                "sslrootcert" => root = Some(percent_decoded(value)?),
                "schema" => schema = schema_name(value)?,
                name if CLIENT_PARAMETERS.contains(&name) => passed.push(pair),
                _ => {
                    return Err(format!(
                        "a parameter that is not known; known are schema, sslmode, sslrootcert, {}",
                        CLIENT_PARAMETERS.join(", ")
                    ));
                }
            }
        }
        let mut client: Config = format!("postgres://{base}?{}", passed.join("&"))
            .parse()
            .map_err(|_| "not a url such as postgres://USER@HOST:PORT/DATABASE".to_owned())?;
        if client.get_hosts().is_empty() {
            return Err("the url has no host; a local socket is ?host=/run/postgresql".to_owned());
        }
        if client.get_application_name().is_none() {
            client.application_name("weir");
        }
        let tls = match mode {
            Some("disable") => None,
            Some("require" | "verify-full") => Some(tls_config(root.as_deref())?),
            None if is_local(&client) && root.is_none() => None,
            None => Some(tls_config(root.as_deref())?),
            Some(_) => {
                return Err("sslmode is none of disable, require, verify-full; what is encrypted \
                            is verified always"
                    .to_owned());
            }
        };
        client.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let printed = printed(&client, &schema);
        Ok(Server { client, tls, schema, printed })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.printed)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.printed)
    }
}

/// Returns true if all hosts are on this machine, where nobody can listen in.
fn is_local(client: &Config) -> bool {
    client.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address = name.parse::<std::net::IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    })
}

/// A TLS configuration that trusts the certificates of a file, or those that browsers trust.
fn tls_config(root: Option<&str>) -> Result<Arc<rustls::ClientConfig>, String> {
    let roots = match root {
        None => crate::tls::public_roots(),
        Some(path) => {
            let failed = |why: &dyn fmt::Display| format!("sslrootcert {path}: {why}");
            let mut roots = rustls::RootCertStore::empty();
            let listed = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
            for certificate in listed {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
            if roots.is_empty() {
                return Err(failed(&"no certificate in it"));
            }
            roots
        }
    };
    crate::tls::client_config(roots).map(Arc::new).map_err(|error| error.to_string())
}

/// Checks the name of a schema, which is used in SQL without quotes.
fn schema_name(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let fits = text.len() <= IDENTIFIER_BYTES_MAX && text.bytes().all(plain);
    let begins = text.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if fits && begins && !text.starts_with("pg_") {
        return Ok(text.to_owned());
    }
    Err(format!(
        "a schema is 1 to {IDENTIFIER_BYTES_MAX} of a-z, 0-9 and _, begins with no digit and not with pg_"
    ))
}

/// A text with its `%XX` escapes replaced.
fn percent_decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(value.ok_or("a % that is followed by no two hexadecimal digits")?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "a value that is no UTF-8".to_owned())
}

/// The URL without password and parameters, except for the schema.
fn printed(client: &Config, schema: &str) -> String {
    let mut text = "postgres://".to_owned();
    if let Some(user) = client.get_user() {
        text += user;
        text += "@";
    }
    let ports = client.get_ports();
    for (at, host) in client.get_hosts().iter().enumerate() {
        let port = ports.get(at).or(ports.first());
        if at > 0 {
            text += ",";
        }
        match host {
            Host::Tcp(name) if name.contains(':') => text += &format!("[{name}]"),
            Host::Tcp(name) => text += name,
            Host::Unix(path) => text += &path.display().to_string(),
        }
        text += &port.map(|port| format!(":{port}")).unwrap_or_default();
    }
    if let Some(name) = client.get_dbname() {
        text += "/";
        text += name;
    }
    if schema != DEFAULT_SCHEMA {
        text += "?schema=";
        text += schema;
    }
    text
}
