//! `weir chains`: prints what is known of public chains.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use settings::not_found_message;
use settings::value::format_duration;
use wire::chain_profile::{self, ChainProfile, ChainTrait};

use crate::exit_code::EXIT_FAULTY;

/// List the chains that need no further key in a configuration
///
/// `[chain.base]` alone sets the id, the block time and the family of Base. With a name or an id,
/// prints what is known of this chain, and the lines of a configuration that the name stands for.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir chains
  weir chains base
  weir chains 42161

Exit codes: 0 printed; 2 no such chain is known.")]
pub(crate) struct Chains {
    /// Name or id of a chain
    chain: Option<String>,
}

impl Chains {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Some(wanted) = self.chain else {
            print!("{}", format_table());
            return Ok(ExitCode::SUCCESS);
        };
        let by_id = wanted.parse().ok().and_then(chain_profile::find_by_id);
        match by_id.or_else(|| chain_profile::find_by_name(&wanted)) {
            Some(profile) => {
                print!("{}", format_chain(profile));
                Ok(ExitCode::SUCCESS)
            }
            None => {
                let names = chain_profile::list().iter().flat_map(names_of).collect::<Vec<_>>();
                let (message, _all_names) = not_found_message("chain", &wanted, &names);
                eprintln!("weir chains: {message}; weir chains lists all");
                Ok(ExitCode::from(EXIT_FAULTY))
            }
        }
    }
}

fn names_of(profile: &ChainProfile) -> impl Iterator<Item = &str> {
    [&profile.name].into_iter().chain(&profile.aliases).map(String::as_str)
}

fn format_id(profile: &ChainProfile) -> String {
    profile.id.map_or_else(String::new, |id| id.to_string())
}

fn format_block_time(profile: &ChainProfile) -> String {
    profile.block_time().map_or_else(String::new, format_duration)
}

/// Returns what else is to be said of a chain, such as `test network, OP stack`.
fn format_notes(profile: &ChainProfile) -> String {
    let testnet = profile.testnet.then_some("test network");
    let traits = profile.traits.iter().copied().map(ChainTrait::describe);
    testnet.into_iter().chain(traits).collect::<Vec<_>>().join(", ")
}

/// Returns the table of all chains for the terminal.
fn format_table() -> String {
    let profiles = chain_profile::list();
    let mut table = format!("{:<28}{:>12}  {:<10}{:<8}notes\n", "name", "id", "family", "block");
    for profile in profiles {
        let line = format!(
            "{:<28}{:>12}  {:<10}{:<8}{}",
            profile.name,
            format_id(profile),
            profile.family.as_str(),
            format_block_time(profile),
            format_notes(profile),
        );
        table.push_str(line.trim_end());
        table.push('\n');
    }
    let _ = writeln!(table, "\n{} chains; weir chains NAME shows one", profiles.len());
    table
}

/// Returns what is known of one chain.
fn format_chain(profile: &ChainProfile) -> String {
    let mut text = format!("{}\n", profile.title);
    if !profile.aliases.is_empty() {
        let _ = writeln!(text, "also       {}", profile.aliases.join(", "));
    }
    let notes = format_notes(profile);
    if !notes.is_empty() {
        let _ = writeln!(text, "notes      {notes}");
    }
    let _ = writeln!(text, "\n[chain.{}] stands for:\n\n[chain.{0}]", profile.name);
    let _ = writeln!(text, "family = \"{}\"", profile.family.as_str());
    if let Some(id) = profile.id {
        let _ = writeln!(text, "id = {id}");
    }
    match profile.block_time() {
        Some(_) => {
            let _ = writeln!(text, "block_time = \"{}\"", format_block_time(profile));
        }
        None => text.push_str("# The time between blocks is not known: set block_time.\n"),
    }
    text
}

/// Returns the text of `docs/chains.md`.
pub(crate) fn render_page() -> String {
    let mut page = String::from(
        "# Chains\n\n<!-- Printed by `cargo xtask generate` from crates/wire/chains.toml. Do not \
         edit. -->\n\n`[chain.base]` needs no further key: the name sets the id, the block time and \
         the family. A chain with another name takes them from its `id`. Keys in the file win. \
         `weir chains NAME` prints the lines that a name stands for.\n\nAn upstream with another \
         chain id than that of the name is not used. Where the block time is empty it is not known, \
         and `block_time` should be set. Chains that are not listed work too: set `id` and \
         `block_time`.\n\n| name | chain | id | family | block time | notes |\n\
         | --- | --- | --: | --- | --- | --- |\n",
    );
    for profile in chain_profile::list() {
        let names: Vec<String> = names_of(profile).map(|name| format!("`{name}`")).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} |",
            names.join(", "),
            profile.title,
            format_id(profile),
            profile.family.as_str(),
            format_block_time(profile),
            format_notes(profile),
        );
    }
    page
}

#[cfg(test)]
mod tests {
    //! Goal: the lines that a name stands for are a valid configuration of the same chain. Method:
    //! the printed lines of every chain, with an upstream after them.

    use std::path::Path;

    use gateway::config::Config;

    use super::*;

    fn read(chain: &str) -> gateway::config::chain::Chain {
        let text = format!("{chain}\n[[upstream]]\nurl = \"http://127.0.0.1:1\"\n");
        let config = Config::from_text("chain", &text, Path::new(""), &|_| None);
        config.unwrap_or_else(|errors| panic!("{errors}")).chains.remove(0)
    }

    #[test]
    fn a_name_stands_for_the_printed_lines() {
        for profile in chain_profile::list() {
            let printed = format_chain(profile);
            let (_, lines) = printed.split_once("stands for:\n\n").unwrap();
            let written = read(lines);
            let named = read(&format!("[chain.{}]", profile.name));
            assert_eq!(format!("{written:?}"), format!("{named:?}"));
            assert_eq!(named.id, profile.id);
        }
    }

    #[test]
    fn defaults_follow_the_time_between_blocks() {
        let depths = |chain| {
            let chain = read(chain);
            (chain.finality_depth, chain.lag_max)
        };
        assert_eq!(depths("[chain.ethereum]"), (64, 2));
        assert_eq!(depths("[chain.base]"), (384, 2));
        assert_eq!(depths("[chain.somnia]"), (7680, 10));
        assert_eq!(depths("[chain.x]\nid = 8453"), (384, 2));
        assert_eq!(depths("[chain.base]\nfinality_depth = 5\nlag_max = 1"), (5, 1));
        assert_eq!(depths("[chain.harmony]"), (2, 2));
        assert_eq!(depths("[chain.bitcoin]"), (6, 2));
    }
}
