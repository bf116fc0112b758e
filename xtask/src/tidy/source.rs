//! Checks Rust source line by line, without a parser. Lines that a check misjudges are too rare to
//! justify a parser.

use super::Finding;
use super::tree::Tree;

/// Finds source files without a module doc in the first line.
pub(crate) fn find_missing_docs(tree: &Tree) -> Vec<Finding> {
    let has_module_doc = |text: &str| {
        let first = text.lines().next().unwrap_or_default();
        first.strip_prefix("//! ").is_some_and(|rest| !rest.trim().is_empty())
    };
    let undocumented = tree.texts(".rs").filter(|(_, text)| !has_module_doc(text));
    let message = "the first line must be a //! doc that says what this file is";
    undocumented.map(|(path, _)| Finding::new(path, 1, "module doc", message)).collect()
}

/// Names that pure code must not use, each with the reason or the alternative. Pure code makes
/// decisions without side effects; [`PURE`] lists its folders and files. The messages of findings
/// call pure code a rule.
const IMPURE: &[(&str, &str)] = &[
    ("std::net", "a rule knows no socket"),
    ("tokio", "a rule never waits"),
    ("Instant", "take `now` as a Duration argument"),
    ("SystemTime", "take `now` as a Duration argument"),
    ("std::fs", "a rule reads no file"),
    ("std::thread", "a rule starts nothing"),
    ("rand::", "take randomness as an argument"),
];

/// Finds names in pure code that stand for sockets, tasks, clocks, files or randomness. Tests of
/// pure code may use these names.
pub(crate) fn find_side_effects_in_pure_code(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs").filter(|(path, _)| is_pure_code(path) && !is_test(path)) {
        for (number, code) in code_lines(text) {
            for (name, instead) in IMPURE {
                if contains_word(code, name) {
                    let message = format!("{name} in a rule; {instead}");
                    findings.push(Finding::new(path, number, "pure rules", message));
                }
            }
        }
    }
    findings
}

/// Names of the folders and files with pure code.
const PURE: &[&str] = &["policy", "analysis", "planner", "schedule", "aggregate"];

fn is_pure_code(path: &str) -> bool {
    let is_in_folder =
        |name: &&str| path.contains(&format!("/{name}/")) || path.ends_with(&format!("/{name}.rs"));
    path.starts_with("crates/") && PURE.iter().any(is_in_folder)
}

/// Finds sentences in the lab's analysis. The analysis returns enums and numbers, and `wording/`
/// turns them into sentences.
pub(crate) fn find_sentences_in_analysis(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_in_folder = |path: &str| path.starts_with("crates/lab/src/analysis/") && !is_test(path);
    for (path, text) in tree.texts(".rs").filter(|(path, _)| is_in_folder(path)) {
        for (number, code) in code_lines(text) {
            // Panic messages and reasons of attributes are for developers.
            let for_developers = code.contains("expect(") || code.contains("reason = ");
            if !for_developers && find_string_literals(code).iter().any(|text| is_sentence(text)) {
                let message = "a sentence in analysis; return a value and write it in wording/";
                findings.push(Finding::new(path, number, "no sentences", message));
            }
        }
    }
    findings
}

/// Returns the texts of the string literals of a line. The last literal may continue on the next
/// line.
fn find_string_literals(code: &str) -> Vec<String> {
    let plain = code.replace("'\"'", "").replace("\\\"", "");
    plain.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_sentence(text: &str) -> bool {
    let words = text.split(' ').filter(|word| word.chars().any(char::is_alphabetic));
    words.count() > 1
}

/// Finds error responses that the gateway builds outside `downstream/answer.rs`. A call of
/// `write_error` builds one.
pub(crate) fn find_misplaced_error_responses(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(".rs") {
        let elsewhere =
            path.starts_with("crates/gateway/src/") && !path.contains("/downstream/answer");
        if elsewhere && !is_test(path) {
            let lines = code_lines(text).filter(|(_, code)| contains_word(code, "write_error"));
            let message =
                "only downstream/answer.rs builds error responses; return a failure to it";
            findings.extend(
                lines.map(|(number, _)| Finding::new(path, number, "one error table", message)),
            );
        }
    }
    findings
}

/// Prefix of the comment that justifies a sleep, on the line of the call or on the line before.
const SLEEPS: &str = "// Sleeps: ";

/// Finds sleeps in tests without a justification (see [`SLEEPS`]): they make tests slow or flaky.
pub(crate) fn find_unexplained_sleeps(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_support = |path: &str| path.starts_with("crates/test-support/");
    for (path, text) in tree.texts(".rs").filter(|(path, _)| is_test(path) || is_support(path)) {
        // `pause` sleeps in tests of whole crates. Unit tests may test another function of this
        // name.
        let checks_pause = is_support(path) || path.split('/').nth(2) == Some("tests");
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let sleeps = calls_function(code, "sleep")
                || calls_function(code, "park_timeout")
                || (checks_pause && calls_function(code, "pause"));
            let previous = index.checked_sub(1).map_or("", |index| lines[index].trim_start());
            let has_reason = [*line, previous].iter().any(|line| {
                let reason = line.split_once(SLEEPS).map(|(_, reason)| reason);
                reason.is_some_and(|reason| !reason.trim().is_empty())
            });
            if sleeps && !has_reason {
                let message = format!(
                    "a test must not sleep; wait for what it needs, use virtual time, or say why behind `{SLEEPS}`"
                );
                findings.push(Finding::new(path, index + 1, "sleep in tests", message));
            }
        }
    }
    findings
}

/// Returns true if the code calls a function of this name; declarations do not count.
fn calls_function(code: &str, function: &str) -> bool {
    code.match_indices(&format!("{function}(")).any(|(index, _)| {
        let before = &code[..index];
        !before.ends_with(|c: char| c.is_alphanumeric() || c == '_') && !before.ends_with("fn ")
    })
}

/// Markers of open work. The literals are split, so this file contains no marker.
const OPEN_WORK: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Finds open work without the number of its issue, such as `(#12)`.
pub(crate) fn find_unnumbered_open_work(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ending in [".rs", ".toml", ".lua", ".conf", ".sh", ".yml"] {
        for (path, text) in tree.texts(ending).filter(|(path, _)| !path.starts_with("testdata/")) {
            for (index, line) in text.lines().enumerate() {
                for word in OPEN_WORK.iter().filter(|word| contains_word(line, word)) {
                    let numbered = line.split("(#").nth(1).is_some_and(|rest| {
                        rest.chars().next().is_some_and(|first| first.is_ascii_digit())
                    });
                    if !numbered {
                        let message = format!("{word} without an issue number such as (#12)");
                        findings.push(Finding::new(path, index + 1, "open work", message));
                    }
                }
            }
        }
    }
    findings
}

/// Returns true if this is a file of tests.
pub(crate) fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Returns the lines without comments, numbered from 1.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.split("//").next().unwrap_or_default()))
}

/// Returns true if `name` occurs in `line` as a whole word.
fn contains_word(line: &str, name: &str) -> bool {
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(index, _)| {
        let previous = line[..index].chars().next_back();
        let next = line[index + name.len()..].chars().next();
        // A name such as `rand::` may be followed by any character.
        let any_next = name.ends_with(':');
        !previous.is_some_and(is_word_char) && (any_next || !next.is_some_and(is_word_char))
    })
}

#[cfg(test)]
mod tests;
