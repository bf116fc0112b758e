//! Checks that every command in a page's ```sh block exists.
//!
//! The check runs none of these commands. It parses `cargo xtask` lines with the parser of this
//! tool, and compares `weir` lines with the output of `weir COMMAND --help`. Other programs must be
//! in [`OTHER_PROGRAMS`].

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::shell;

/// Other programs that a page may use.
const OTHER_PROGRAMS: &[&str] = &[
    "apt-get",
    "cat",
    "cp",
    "curl",
    "docker",
    "git",
    "go",
    "grep",
    "head",
    "install",
    "jq",
    "kill",
    "kubectl",
    "less",
    "pg_dump",
    "pg_restore",
    "psql",
    "rm",
    "sed",
    "sqlite3",
];
/// Subcommands of cargo that a page may use, besides `xtask` and `run`.
const CARGO_SUBCOMMANDS: &[&str] = &["test", "build", "clippy", "fmt", "install", "doc", "bench"];

/// A command line and its location.
#[derive(Debug, PartialEq, Eq)]
struct PageCommand {
    page: String,
    /// Line of the page, counted from 1.
    line: usize,
    words: Vec<String>,
}

/// Checks README.md, CONTRIBUTING.md, ARCHITECTURE.md, RELEASE.md, and the pages in docs/ and
/// docs/results/.
///
/// # Errors
/// Fails if a command does not exist, or no page has a command.
pub(crate) fn check() -> Result<()> {
    let mut commands = Vec::new();
    for page in list_pages()? {
        let text = fs::read_to_string(shell::root().join(&page))?;
        commands.extend(read_commands(&page, &text));
    }
    ensure!(!commands.is_empty(), "no page has a ```sh block");
    let mut helps = BTreeMap::new();
    let mut invalid = 0;
    for command in &commands {
        if let Err(error) = check_command(&command.words, &mut |name| read_help(name, &mut helps)) {
            println!("{}:{}: {error:#}", command.page, command.line);
            invalid += 1;
        }
    }
    ensure!(invalid == 0, "{invalid} of {} commands in pages do not exist", commands.len());
    println!("docs: {} commands in pages exist", commands.len());
    Ok(())
}

/// Lists the pages to check, relative to the root.
fn list_pages() -> Result<Vec<String>> {
    let mut pages: Vec<String> = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "RELEASE.md"]
        .map(str::to_owned)
        .into_iter()
        .filter(|page| shell::root().join(page).is_file())
        .collect();
    for folder in ["docs", "docs/results"] {
        let path = shell::root().join(folder);
        for entry in fs::read_dir(&path).with_context(|| format!("no {}", path.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    Ok(pages)
}

/// Reads the command lines in the ```sh blocks of a page. Joins continued lines and skips
/// here-documents.
fn read_commands(page: &str, text: &str) -> Vec<PageCommand> {
    let mut commands = Vec::new();
    let (mut in_sh_block, mut joined_line, mut first_line) = (false, String::new(), 0);
    let mut in_here_document = false;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if in_here_document {
            in_here_document = trimmed != "EOF";
            continue;
        }
        in_here_document = in_sh_block && trimmed.ends_with("<<'EOF'");
        if trimmed.starts_with("```") {
            in_sh_block = trimmed == "```sh";
            continue;
        }
        if !in_sh_block || trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        if joined_line.is_empty() {
            first_line = index + 1;
        }
        match trimmed.strip_suffix('\\') {
            Some(part) => joined_line.push_str(part),
            None => {
                joined_line.push_str(trimmed);
                for words in split_commands(&std::mem::take(&mut joined_line)) {
                    commands.push(PageCommand { page: page.to_owned(), line: first_line, words });
                }
            }
        }
    }
    commands
}

/// Splits a line into commands and their words, without quotes, comments and variable assignments.
/// `&&`, `||`, `;`, `|` and `&` end a command if spaces surround them.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    // The quote character that is open.
    let mut quote = None;
    let end_word = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
        let Some(word) = word.take() else { return };
        if ["&&", ";", "|", "&", "||"].contains(&word.as_str()) {
            commands.push(Vec::new());
        } else if let Some(command) = commands.last_mut() {
            command.push(word);
        }
    };
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => end_word(&mut word, &mut commands),
            None if c == '#' && word.is_none() => break,
            None => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut word, &mut commands);
    for command in &mut commands {
        let is_assignment = |word: &String| {
            word.split_once('=').is_some_and(|(name, _)| name == name.to_uppercase())
        };
        let assignments = command.iter().take_while(|word| is_assignment(word)).count();
        command.drain(..assignments);
    }
    commands.retain(|command| !command.is_empty());
    commands
}

/// Checks that a command exists. `help` returns the help text of a weir command, such as
/// `index sync`.
fn check_command(words: &[String], help: &mut dyn FnMut(&str) -> Result<String>) -> Result<()> {
    let line = words.join(" ");
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    match texts.as_slice() {
        ["cargo", "xtask", ..] => {
            let parsed = crate::Arguments::try_parse_from(&texts[1..]);
            parsed.map(drop).map_err(|error| {
                let message = error.to_string();
                anyhow::anyhow!("{line}: {}", message.lines().next().unwrap_or_default())
            })
        }
        ["cargo", "run", rest @ ..] => {
            let separator = rest.iter().position(|word| *word == "--");
            let separator =
                separator.with_context(|| format!("{line}: no -- before weir's arguments"))?;
            check_weir_command(&rest[separator + 1..], help)
        }
        ["cargo", second, ..] if CARGO_SUBCOMMANDS.contains(second) => Ok(()),
        [program, rest @ ..] if *program == "weir" || program.ends_with("/weir") => {
            check_weir_command(rest, help)
        }
        [".ci/run"] => Ok(()),
        [program, ..] if OTHER_PROGRAMS.contains(program) => Ok(()),
        _ => anyhow::bail!("{line}: not a command that a page may name"),
    }
}

/// Checks that weir's help lists the command, and that the command's help lists each flag.
fn check_weir_command(words: &[&str], help: &mut dyn FnMut(&str) -> Result<String>) -> Result<()> {
    let Some((name, rest)) = words.split_first() else { return Ok(()) };
    if name.starts_with('-') {
        ensure!(["--help", "--version", "-h", "-V"].contains(name), "weir has no {name}");
        return Ok(());
    }
    let mut name = (*name).to_owned();
    let (mut text, mut rest) = (help(&name)?, rest);
    while text.contains("\nCommands:\n")
        && let [subcommand, arguments @ ..] = rest
        && !subcommand.starts_with('-')
    {
        name = format!("{name} {subcommand}");
        (text, rest) = (help(&name)?, arguments);
    }
    for flag in rest.iter().filter(|word| word.starts_with("--")) {
        let flag = flag.split('=').next().unwrap_or(flag);
        let is_listed = text.split([' ', ',', '=', '\n', '[']).any(|word| word == flag);
        ensure!(is_listed, "weir {name} has no {flag}");
    }
    Ok(())
}

/// Returns the output of `weir NAME --help`, cached; `name` may have several words.
fn read_help(name: &str, cache: &mut BTreeMap<String, String>) -> Result<String> {
    if let Some(text) = cache.get(name) {
        return Ok(text.clone());
    }
    // This is the program that the tests have built. `cargo run` would build another one, with
    // other features of the dependencies.
    let weir = std::env::current_exe()?.with_file_name("weir");
    let mut command = Command::new(weir);
    let out = command.args(name.split(' ')).arg("--help").output().context("cannot run weir")?;
    ensure!(out.status.success(), "weir has no command {name}");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    cache.insert(name.to_owned(), text.clone());
    Ok(text)
}

#[cfg(test)]
mod tests;
