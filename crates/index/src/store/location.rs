//! The location of an index: a file, or a schema in a PostgreSQL database.
//!
//! The crate `settings` parses the text of a location, which is a path or a URL. The URL of a
//! server may contain a password, which is never printed.

use std::error::Error;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use settings::value::{Database, DatabaseUrl};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

#[cfg(test)]
mod tests;

/// The schema of an index if its URL has no parameter `schema`.
const DEFAULT_SCHEMA: &str = "weir";

/// The location of an index.
#[derive(Debug, Clone, PartialEq)]
pub enum Location {
    /// A SQLite file.
    File(PathBuf),
    /// A schema in a PostgreSQL database.
    Server(Box<Server>),
}

impl<P: Into<PathBuf>> From<P> for Location {
    fn from(path: P) -> Location {
        Location::File(path.into())
    }
}

impl From<&Location> for Location {
    fn from(location: &Location) -> Location {
        location.clone()
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Location, String> {
        Location::new(&Database::parse(text)?)
    }
}

impl Location {
    /// Creates a location from a parsed path or URL.
    ///
    /// # Errors
    /// Fails if a parameter of the URL has an invalid value, or if the file of root certificates
    /// cannot be read. The message contains no value of the URL except the path of that file.
    pub fn new(database: &Database) -> Result<Location, String> {
        Ok(match database {
            Database::File(path) => Location::File(path.clone()),
            Database::Url(url) => Location::Server(Box::new(Server::new(url)?)),
        })
    }

    /// Returns true if the URL holds a password.
    pub fn has_password(&self) -> bool {
        matches!(self, Location::Server(server) if server.client.get_password().is_some())
    }

    /// Adds the password of the environment variable `PGPASSWORD` if the URL of a server has none.
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

/// A schema in a PostgreSQL database, and how to connect to it. Its printed form holds no secret.
#[derive(Clone)]
pub struct Server {
    /// The configuration of the client: hosts, user, password and timeouts.
    pub(super) client: Config,
    /// The TLS configuration; `None` for a connection without TLS.
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    pub(super) schema: String,
    /// The URL without its secrets.
    printed: String,
}

impl PartialEq for Server {
    fn eq(&self, other: &Server) -> bool {
        (&self.client, &self.schema) == (&other.client, &other.schema)
    }
}

impl Server {
    fn new(url: &DatabaseUrl) -> Result<Server, String> {
        // The source of the parser's error names the parameter and repeats no other text of the
        // URL.
        let mut client: Config =
            url.client_url.parse().map_err(|error: tokio_postgres::Error| {
                error.source().map_or_else(|| error.to_string(), |source| source.to_string())
            })?;
        if client.get_application_name().is_none() {
            client.application_name("weir");
        }
        let roots_path = url.root_certificates.as_deref();
        let uses_tls = url.tls.unwrap_or_else(|| !is_local(&client) || roots_path.is_some());
        let tls = uses_tls.then(|| tls_config(roots_path)).transpose()?;
        client.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        let schema = url.schema.as_deref().unwrap_or(DEFAULT_SCHEMA).to_owned();
        Ok(Server { client, tls, schema, printed: url.to_string() })
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

/// Returns true if all hosts are on this machine, so no other machine can read the traffic.
fn is_local(client: &Config) -> bool {
    client.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            let address = name.parse::<std::net::IpAddr>();
            name == "localhost" || address.is_ok_and(|address| address.is_loopback())
        }
    })
}

/// Returns a TLS configuration that trusts the certificates of a file, or the certificates that
/// browsers trust.
fn tls_config(roots_path: Option<&Path>) -> Result<Arc<rustls::ClientConfig>, String> {
    let describe_error = |reason| match roots_path {
        Some(path) => format!("sslrootcert {}: {reason}", path.display()),
        None => reason,
    };
    wire::tls::build_verifying_client(roots_path).map(Arc::new).map_err(describe_error)
}
