//! Which index a subcommand works on.

use std::ffi::OsStr;

use anyhow::{Result, anyhow, ensure};
use clap::builder::{TypedValueParser, ValueParserFactory};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command};
use index::reader::Reader;
use index::store::{Location, Settings};

/// The index that a subcommand works on.
#[derive(Args)]
pub(super) struct Database {
    /// The file of the index, or postgres://USER@HOST:PORT/DATABASE
    #[arg(long, value_name = "FILE|URL")]
    db: Named,

    /// Memory for pages of the file, such as 64MiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    page_cache: Option<u64>,

    /// How much of the file to map into memory instead of reading it [default: 0, none]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    mmap: Option<u64>,
}

impl Database {
    /// Where it is.
    pub(super) fn at(&self) -> &Location {
        &self.db.0
    }

    /// How it is worked on.
    pub(super) fn settings(&self) -> Result<Settings> {
        let usual = Settings::default();
        if matches!(self.at(), Location::Server(_)) {
            for (given, name) in [(self.page_cache, "page-cache"), (self.mmap, "mmap")] {
                ensure!(given.is_none(), "--{name} is for files: a server has settings of its own");
            }
        }
        Ok(Settings {
            page_cache: self.page_cache.unwrap_or(usual.page_cache),
            mmap: self.mmap.unwrap_or(usual.mmap),
            ..usual
        })
    }

    /// Opens an index that holds something.
    pub(super) fn reader(&self) -> Result<Reader> {
        let reader = Reader::open(self.at(), self.settings()?)?;
        reader.ok_or_else(|| anyhow!("{}: nothing was synced yet", self.at()))
    }
}

/// An index as it is named in arguments.
#[derive(Clone)]
struct Named(Location);

impl ValueParserFactory for Named {
    type Parser = NamedParser;

    fn value_parser() -> NamedParser {
        NamedParser
    }
}

/// Reads a file name or a URL. The usual parser would print the value that it refuses, password and
/// all.
#[derive(Clone)]
struct NamedParser;

impl TypedValueParser for NamedParser {
    type Value = Named;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Named, clap::Error> {
        let refused = |why: &str| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("--db: {why}\n")).with_cmd(command)
        };
        let location = match value.to_str() {
            Some(text) => text.parse::<Location>().map_err(|why| refused(&why))?,
            None => Location::File(value.into()),
        };
        if location.has_password() {
            return Err(refused(
                "every process of the machine may read a command line: leave the password out of \
                 it, and set PGPASSWORD",
            ));
        }
        Ok(Named(location.with_password_of_environment()))
    }
}

/// Reads a size such as 64MiB, 2GiB or 4096.
fn size(text: &str) -> Result<u64, String> {
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
