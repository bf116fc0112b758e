//! Every `cargo xtask` command in a `sh` block of a page exists. The test of weir's examples
//! (`crates/weir/tests/lab/examples.rs`) checks all other commands of pages, but only this tool can
//! parse its own.

use std::fs;
use std::path::PathBuf;

use clap::Parser;

use crate::{Arguments, shell};

/// Lists the pages.
fn list_pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/results"].map(|folder| shell::root().join(folder));
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Returns the lines of the `sh` blocks that run this tool, from `xtask` on, without comments.
fn find_commands(page: &str) -> Vec<&str> {
    let mut is_shell = false;
    let lines = page.lines().filter(|line| {
        if line.trim().starts_with("```") {
            is_shell = line.trim() == "```sh";
        }
        is_shell
    });
    let commands = lines.filter_map(|line| line.find("cargo xtask").map(|at| &line[at + 6..]));
    commands.map(|command| command.find(" #").map_or(command, |at| &command[..at])).collect()
}

fn parse(command: &str) -> Result<Arguments, clap::Error> {
    Arguments::try_parse_from(command.split_whitespace())
}

#[test]
fn commands_of_this_tool_in_pages_exist() {
    let mut checked = 0;
    for page in list_pages() {
        let text = fs::read_to_string(&page).unwrap();
        for command in find_commands(&text) {
            let error = parse(command).err().map(|error| error.to_string());
            assert_eq!(error, None, "{}: {command}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} commands");
}

#[test]
fn commands_that_do_not_exist_are_caught() {
    let page = "cargo xtask a\n```sh\nCI=1 cargo xtask chekc  # comment\ncargo xtask check --quick\n```\ncargo xtask b";
    let commands = find_commands(page);
    assert_eq!(commands, ["xtask chekc ", "xtask check --quick"]);
    assert!(commands.iter().all(|command| parse(command).is_err()));
    assert!(parse("xtask bench gateway --case hit --seconds 2").is_ok());
}
