//! The commands that texts tell their readers to run.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Headings of help texts below which each line is a command.
const HEADINGS: &[&str] = &["Examples:", "Start here:", "Then:", "With an admin port:"];

/// A command and the text that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) text: String,
    pub(crate) command: String,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every command of every help text, page, study and configuration.
pub(crate) fn all() -> Vec<Found> {
    let mut found = in_helps();
    for page in files(&root(), "md").into_iter().chain(files(&root().join("docs"), "md")) {
        if page.file_name().is_some_and(|name| name != "cli.md") {
            let text = std::fs::read_to_string(&page).unwrap();
            found.extend(named(&page, commands(&in_blocks(&text))));
        }
    }
    for folder in ["studies", "examples"] {
        for file in files(&root().join(folder), "toml") {
            let text = std::fs::read_to_string(&file).unwrap();
            found.extend(named(&file, commands(&in_comments(&text))));
        }
    }
    found
}

fn named(file: &Path, commands: Vec<String>) -> impl Iterator<Item = Found> {
    let text = file.strip_prefix(root()).unwrap().display().to_string();
    commands.into_iter().map(move |command| Found { text: text.clone(), command })
}

/// The files of a folder with this ending, in order.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    files.sort();
    files
}

/// The examples of all help texts, as the program prints them.
fn in_helps() -> Vec<Found> {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let printed = command.args(["generate-docs", "--dir"]).arg(folder.path()).output().unwrap();
    assert!(printed.status.success());
    let page = std::fs::read_to_string(folder.path().join("cli.md")).unwrap();
    let mut found = Vec::new();
    for help in page.split("\n## `").skip(1) {
        let (name, text) = help.split_once('`').unwrap();
        let commands = commands(&in_help(text));
        let all = text.lines().filter(|line| line.starts_with("  weir ")).count();
        let ours = commands.iter().filter(|command| command.starts_with("weir ")).count();
        assert!(ours >= all, "{name}: a command stands below a heading that is not known");
        let text = format!("{name} --help");
        found.extend(commands.into_iter().map(|command| Found { text: text.clone(), command }));
    }
    found
}

/// The lines below the headings of examples.
fn in_help(text: &str) -> String {
    let mut inside = false;
    let mut lines = String::new();
    for line in text.lines() {
        if HEADINGS.contains(&line) {
            inside = true;
        } else if !line.starts_with("  ") {
            inside = false;
        } else if inside {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// The lines of a page's blocks of shell commands.
fn in_blocks(text: &str) -> String {
    let mut inside = false;
    let mut lines = String::new();
    for line in text.lines() {
        if line.trim().starts_with("```") {
            inside = line.trim() == "```sh";
        } else if inside {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// The lines of a file's first comments that begin with a command of ours.
fn in_comments(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().map_while(|line| line.strip_prefix('#')) {
        let first = line.split_whitespace().find(|word| !word.contains('='));
        if line.starts_with("   ") && first == Some("weir") {
            lines.push_str(line.trim());
            lines.push('\n');
        }
    }
    lines
}

/// One command a line: continued lines joined, comments taken off. A line that opens a
/// here-document is one command with all lines up to `EOF`.
fn commands(lines: &str) -> Vec<String> {
    let joined = lines.replace("\\\n", " ");
    let mut lines = joined.lines();
    let mut commands = Vec::new();
    while let Some(line) = lines.next() {
        if line.ends_with("<<'EOF'") {
            let inside: Vec<_> = lines.by_ref().take_while(|line| *line != "EOF").collect();
            commands.push(format!("{line}\n{}\nEOF", inside.join("\n")));
            continue;
        }
        let line = line.find(" #").map_or(line, |at| &line[..at]);
        commands.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    commands.retain(|line| !line.is_empty() && !line.starts_with('#'));
    commands
}
