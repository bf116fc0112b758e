//! The arguments that several subcommands share: the index to open, and how to call nodes.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use index::nodes::{Endpoint, Header, parse_header};
use index::reader::Reader;
use index::store::{Location, Settings};
use settings::url::NodeUrl;
use settings::value::Database;

/// The index that a subcommand works on.
#[derive(Args)]
pub(super) struct IndexArgs {
    /// File of the index, or postgres://USER@HOST:PORT/DATABASE
    #[arg(long, value_name = "FILE|URL", value_parser = SecretParser(parse_location))]
    pub(super) db: Location,

    /// Size of SQLite's page cache [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    page_cache: Option<u64>,

    /// Bytes of the file to map into memory instead of reading them [default: 0, none]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    mmap: Option<u64>,
}

impl IndexArgs {
    /// Returns the settings for opening the index.
    pub(super) fn settings(&self) -> Result<Settings> {
        let defaults = Settings::default();
        if matches!(self.db, Location::Server(_)) {
            for (value, name) in [(self.page_cache, "page-cache"), (self.mmap, "mmap")] {
                ensure!(value.is_none(), "--{name} is for files: a server has settings of its own");
            }
        }
        Ok(Settings {
            page_cache_bytes: self.page_cache.unwrap_or(defaults.page_cache_bytes),
            mmap_bytes: self.mmap.unwrap_or(defaults.mmap_bytes),
            ..defaults
        })
    }

    /// Opens the index, and fails if it is empty.
    pub(super) fn reader(&self) -> Result<Reader> {
        let reader = Reader::open(&self.db, self.settings()?)?;
        reader.ok_or_else(|| anyhow!("{}: nothing was synced yet", self.db))
    }
}

/// How a subcommand calls nodes.
#[derive(Args)]
pub(super) struct NodeArgs {
    /// Trust the certificates in this PEM file instead of the public roots
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Add a request header for all nodes, such as 'authorization: Bearer TOKEN'; may be repeated
    #[arg(short = 'H', long, value_name = "NAME: VALUE", value_parser = SecretParser(parse_header_option))]
    header: Vec<Header>,
}

impl NodeArgs {
    /// Returns the endpoints of these nodes, with the headers and the root certificates.
    pub(super) fn endpoints(&self, nodes: &[Endpoint]) -> Result<Vec<Arc<Endpoint>>> {
        let ca_option = self.ca.as_deref().map(|path| format!("--ca {}", path.display()));
        let context = || ca_option.clone().unwrap_or_default();
        let pem = self.ca.as_deref().map(std::fs::read).transpose().with_context(context)?;
        let endpoint = |node: &Endpoint| {
            let headers = self.header.iter().cloned();
            let mut endpoint = headers
                .fold(node.clone(), |endpoint, (name, value)| endpoint.with_header(name, value));
            if let Some(pem) = &pem {
                endpoint =
                    endpoint.with_roots(pem).map_err(anyhow::Error::msg).with_context(context)?;
            }
            Ok(Arc::new(endpoint))
        };
        nodes.iter().map(endpoint).collect()
    }
}

/// Parses the value of an argument that may contain a secret. Its errors do not repeat the value,
/// unlike those of clap.
#[derive(Clone)]
pub(super) struct SecretParser<T>(fn(&OsStr) -> Result<T, String>);

/// Parses `--from`.
pub(super) const NODE: SecretParser<Endpoint> = SecretParser(parse_endpoint);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for SecretParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        (self.0)(value).map_err(|reason| {
            let name = argument.and_then(Arg::get_long).unwrap_or_default();
            let message = format!("--{name}: {reason}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

fn parse_endpoint(url: &OsStr) -> Result<Endpoint, String> {
    let url = NodeUrl::parse(&url.to_string_lossy());
    url.map(Endpoint::from).map_err(str::to_owned)
}

/// Parses `--header`.
fn parse_header_option(text: &OsStr) -> Result<Header, String> {
    parse_header(text.to_str().ok_or("the header is not UTF-8")?)
}

/// Parses `--db`.
fn parse_location(address: &OsStr) -> Result<Location, String> {
    // The lossy text serves only to distinguish a file from a URL. A file name need not be UTF-8,
    // so `Database::File` gets the original bytes.
    let database = Database::parse(&address.to_string_lossy())
        .map_err(|reason| format!("{reason} (allowed: {})", Database::ALLOWED))?;
    let database = match (database, address.to_str()) {
        (Database::File(_), _) => Database::File(address.into()),
        (url, Some(_)) => url,
        (_, None) => return Err("the url is not UTF-8".to_owned()),
    };
    let location = Location::new(&database)?;
    if location.has_password() {
        return Err("every process of the machine can read a command line: remove the password \
                    from it and set PGPASSWORD"
            .to_owned());
    }
    Ok(location.with_password_of_environment())
}

/// Parses a size such as 64MiB, 2GiB or 4096.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        _ => None,
    };
    let number = digits.trim().parse::<u64>().ok();
    factor
        .zip(number)
        .and_then(|(factor, number)| number.checked_mul(factor))
        .ok_or_else(|| "a size is a number and B, KiB, MiB or GiB, such as 64MiB".to_owned())
}
