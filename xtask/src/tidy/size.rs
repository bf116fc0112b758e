//! Finds blobs (large files), empty fixture folders and recorded data without a source. Long files
//! and functions yield notes, which do not fail the check.

use super::Finding;
use super::source::is_test;
use super::tree::Tree;

/// Size of the largest allowed file, in bytes. A larger file would slow down every clone for ever.
const BLOB_BYTES_MAX: u64 = 200_000;
/// Folder of recorded public data. Its files may be larger, because tests need the data unchanged.
const BLOBS_ALLOWED: &str = "testdata/";
/// Lengths above which a file or function yields a note (docs/style.md, rules 4 and 6).
const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 70;

/// Finds files above [`BLOB_BYTES_MAX`].
pub(crate) fn find_large_files(tree: &Tree) -> Vec<Finding> {
    let large = tree.files().iter().filter(|(path, content)| {
        content.bytes > BLOB_BYTES_MAX && !path.starts_with(BLOBS_ALLOWED)
    });
    large
        .map(|(path, content)| {
            let message = format!("{} bytes, at most {BLOB_BYTES_MAX} are allowed", content.bytes);
            Finding::new(path, 1, "blobs", message)
        })
        .collect()
}

/// Finds empty fixture folders. A test that walks such a folder checks nothing.
pub(crate) fn find_empty_folders(tree: &Tree) -> Vec<Finding> {
    let message = "a fixture folder with no file in it; fill or delete it";
    let empty = tree.empty_folders().iter();
    empty.map(|folder| Finding::new(folder, 1, "fixtures", message)).collect()
}

/// Finds folders of recorded data without data, source, version or licence.
pub(crate) fn find_data_without_source(tree: &Tree) -> Vec<Finding> {
    let data_folder =
        |path: &String| Some(path.strip_prefix("testdata/")?.split_once('/')?.0.to_owned());
    let mut folders: Vec<String> = tree.files().keys().filter_map(data_folder).collect();
    folders.dedup();
    let mut findings = Vec::new();
    for folder in folders {
        let readme = format!("testdata/{folder}/README.md");
        let text = tree.text(&readme).unwrap_or_default().to_lowercase();
        for (words, missing) in [
            (["source", "http", "generated"].as_slice(), "a source"),
            (&["commit", "version", "date"], "a commit, version or date"),
            (&["licence", "license"], "a licence"),
        ] {
            if !words.iter().any(|word| text.contains(word)) {
                let message = format!("does not name {missing} of the data in this folder");
                findings.push(Finding::new(&readme, 1, "fixtures", message));
            }
        }
        let prefix = format!("testdata/{folder}/");
        if tree.files().keys().filter(|path| path.starts_with(&prefix)).count() < 2 {
            findings.push(Finding::new(
                &readme,
                1,
                "fixtures",
                "the folder has no data besides this page",
            ));
        }
    }
    findings
}

/// Lists long files and functions, without tests.
pub(crate) fn list_notes(tree: &Tree) -> Vec<String> {
    let mut notes = Vec::new();
    for (path, text) in tree.texts(".rs").filter(|(path, _)| !is_test(path)) {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            notes
                .push(format!("{path} has {lines} lines ({FILE_LINES} is a reason to look again)"));
        }
        for (line, length) in find_long_functions(text) {
            notes.push(format!("{path}:{line}: a function of {length} lines"));
        }
    }
    notes
}

/// Returns the first line and the length of each function longer than [`FUNCTION_LINES`]. A
/// function ends at a closing brace with the indent of the `fn`, as rustfmt writes it.
fn find_long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let is_function = ["fn ", "pub fn ", "pub(crate) fn ", "async fn ", "pub async fn "]
            .iter()
            .any(|words| code.starts_with(words));
        let one_line = code.ends_with('}') || code.ends_with(';');
        if is_function && !one_line {
            let closes = |line: &&str| line.len() == indent + 1 && line.ends_with('}');
            let length = lines[start..].iter().position(closes).map_or(0, |end| end + 1);
            if length > FUNCTION_LINES {
                functions.push((start + 1, length));
            }
        }
    }
    functions
}

#[cfg(test)]
mod tests;
