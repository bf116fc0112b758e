//! Finds the example commands in help texts, documentation pages, studies and configurations.

use std::path::{Path, PathBuf};

/// Headings of help texts below which each line is a command.
const HEADINGS: &[&str] = &["Examples:", "Start here:", "Then:", "With an admin port:"];

/// Folder of the pages with recorded results.
pub(crate) const RESULTS: &str = "docs/results";

/// An example command and the name of the text that contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Example {
    pub(crate) text: String,
    pub(crate) command: String,
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Finds the commands of every help text, page, study and configuration.
pub(crate) fn find_all() -> Vec<Example> {
    let mut examples = find_in_help_texts();
    let folders = ["", "docs", RESULTS].map(|folder| root().join(folder));
    for page in folders.iter().flat_map(|folder| files(folder, "md")) {
        if page.file_name().is_some_and(|name| name != "cli.md") {
            let text = std::fs::read_to_string(&page).unwrap();
            examples.extend(to_examples(&page, split_commands(&shell_blocks(&text))));
        }
    }
    for folder in ["studies", "studies/bench", "examples"] {
        for file in files(&root().join(folder), "toml") {
            let text = std::fs::read_to_string(&file).unwrap();
            examples.extend(to_examples(&file, split_commands(&commands_in_comments(&text))));
        }
    }
    examples
}

fn to_examples(file: &Path, commands: Vec<String>) -> impl Iterator<Item = Example> {
    let text = file.strip_prefix(root()).unwrap().display().to_string();
    commands.into_iter().map(move |command| Example { text: text.clone(), command })
}

/// The files of a folder with this ending, in order.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    files.sort();
    files
}

/// The examples of all help texts. Another test holds that the page has the texts that the program
/// prints.
fn find_in_help_texts() -> Vec<Example> {
    let page = std::fs::read_to_string(root().join("docs/cli.md")).unwrap();
    let mut examples = Vec::new();
    for help in page.split("\n## `").skip(1) {
        let (name, text) = help.split_once('`').unwrap();
        let commands = split_commands(&example_lines(text));
        let expected = text.lines().filter(|line| line.starts_with("  weir ")).count();
        let weir_commands = commands.iter().filter(|command| command.starts_with("weir ")).count();
        assert!(weir_commands >= expected, "{name}: an unknown heading precedes a command");
        let text = format!("{name} --help");
        examples
            .extend(commands.into_iter().map(|command| Example { text: text.clone(), command }));
    }
    examples
}

/// The lines below the headings of examples.
fn example_lines(text: &str) -> String {
    let mut is_inside = false;
    let mut lines = String::new();
    for line in text.lines() {
        if HEADINGS.contains(&line) {
            is_inside = true;
        } else if !line.starts_with("  ") {
            is_inside = false;
        } else if is_inside {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// The lines of a page's blocks of shell commands.
fn shell_blocks(text: &str) -> String {
    let mut is_inside = false;
    let mut lines = String::new();
    for line in text.lines() {
        if line.trim().starts_with("```") {
            is_inside = line.trim() == "```sh";
        } else if is_inside {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    lines
}

/// The lines in a file's leading comments that run weir, possibly after environment variables.
fn commands_in_comments(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines().map_while(|line| line.strip_prefix('#')) {
        let program = line.split_whitespace().find(|word| !word.contains('='));
        if line.starts_with("   ") && matches!(program, Some("weir" | "taskset")) {
            lines.push_str(line.trim());
            lines.push('\n');
        }
    }
    lines
}

/// Splits lines into commands: joins continued lines and removes comments. A line that opens a
/// here-document forms one command with all lines up to `EOF`.
fn split_commands(lines: &str) -> Vec<String> {
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
