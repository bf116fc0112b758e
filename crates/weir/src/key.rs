//! `weir key`: generates an API key and its configuration lines.

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use aws_lc_rs::{digest, rand};
use clap::Args;

use crate::exit_code::EXIT_FAULTY;

/// Number of random bytes of a key: 256 bits.
const RANDOM_BYTES: usize = 32;
/// Prefix of generated keys, so that secret scanners can recognize them.
const PREFIX: &str = "weir_";
/// Maximum number of bytes of a key that are read.
const KEY_BYTES_MAX: u64 = 4096;
/// Minimum number of bytes of a key. An attacker could find a shorter key by brute force.
const KEY_BYTES_MIN: usize = 16;

/// Generate an API key and its configuration table
///
/// Prints the key, which is stored nowhere, and a `[[key]]` table with its hash. Put the table into
/// the configuration and give the key to the client.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir key alice
  weir key alice --toml >> keys.toml      # the key itself goes to standard error
  printf %s \"$KEY\" | weir key alice --stdin

Exit codes: 0 printed; 2 the name or the key is invalid.")]
pub(crate) struct Key {
    /// Name of the client in metrics and logs
    name: String,

    /// Read the key from standard input instead of generating one
    #[arg(long)]
    stdin: bool,

    /// Print only the table to standard output, and the new key to standard error
    #[arg(long)]
    toml: bool,
}

impl Key {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if !gateway::config::values::is_name(&self.name) {
            eprintln!("weir key: a name has 1 to 64 characters of a-z A-Z 0-9 _ - . :");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        let key = if self.stdin { read_key()? } else { generate_key()? };
        if key.len() < KEY_BYTES_MIN {
            eprintln!("weir key: the key is too short, at least {KEY_BYTES_MIN} bytes are needed");
            return Ok(ExitCode::from(EXIT_FAULTY));
        }
        match (self.stdin, self.toml) {
            (true, _) => {}
            (false, true) => eprintln!("{key}"),
            (false, false) => println!("{key}\n"),
        }
        let hash = hex(digest::digest(&digest::SHA256, key.as_bytes()).as_ref());
        println!("[[key]]\nname = \"{}\"\nhash = \"sha256:{hash}\"", self.name);
        Ok(ExitCode::SUCCESS)
    }
}

fn generate_key() -> Result<String> {
    let mut bytes = [0; RANDOM_BYTES];
    if rand::fill(&mut bytes).is_err() {
        bail!("the system's random number generator failed");
    }
    Ok(format!("{PREFIX}{}", hex(&bytes)))
}

fn read_key() -> Result<String> {
    let mut key = String::new();
    let mut input = std::io::stdin().take(KEY_BYTES_MAX);
    input.read_to_string(&mut key).context("cannot read a key from standard input")?;
    key.truncate(key.trim_end_matches(['\r', '\n']).len());
    Ok(key)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
