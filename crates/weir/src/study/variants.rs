//! Parses variants on the command line: `NAME=FILE,FILE`, `FILE`, `NAME=URL`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lab::analysis::sync::VariantRuns;
use lab::study::poll::Node;
use lab::study::read::{Form, read_run};

/// Maximum number of runs of one variant.
const RUNS_MAX: usize = 64;

/// Reads variants from files, each with its format. The outer error is a file that cannot be read;
/// the inner one describes an error in the arguments.
pub(super) fn read_variants(
    arguments: &[String],
    forms: &[Form],
) -> Result<Result<Vec<VariantRuns>, String>> {
    let mut named: Vec<(String, Vec<PathBuf>)> = Vec::new();
    for text in arguments {
        let (name, list) = split_name(text);
        let paths: Vec<PathBuf> =
            list.split(',').filter(|path| !path.is_empty()).map(PathBuf::from).collect();
        if paths.is_empty() || paths.len() > RUNS_MAX {
            return Ok(Err(format!(
                "{text:?} names {} files; allowed: NAME=FILE or NAME=FILE,FILE… with 1 to {RUNS_MAX}",
                paths.len()
            )));
        }
        let name = name.map_or_else(|| variant_name(&paths[0]), str::to_owned);
        named.push((name, paths));
    }
    make_names_unique(&mut named);
    let read = |((name, paths), form): ((String, Vec<PathBuf>), &Form)| -> Result<VariantRuns> {
        let runs: Result<Vec<_>, _> = paths.iter().map(|path| read_run(path, *form)).collect();
        Ok(VariantRuns { name, runs: runs? })
    };
    named.into_iter().zip(forms).map(read).collect::<Result<_>>().map(Ok)
}

/// Parses nodes given as `NAME=URL` or `URL`.
///
/// # Errors
/// Describes the first error.
pub(super) fn parse_nodes(arguments: &[String]) -> Result<Vec<Node>, String> {
    let node = |text: &String| {
        let (name, url) = split_name(text);
        // A URL may contain a key, even in its host.
        let host = || {
            let shown = settings::url::mask_url(url);
            let rest = shown.split_once("://").map_or(&*shown, |(_, rest)| rest);
            let host = rest.split(['/', '?']).next().unwrap_or(rest);
            host.rsplit('@').next().unwrap_or(host).to_owned()
        };
        match url.starts_with("http://") || url.starts_with("https://") {
            true => Ok(Node { name: name.map_or_else(host, str::to_owned), url: url.to_owned() }),
            // The message does not repeat the URL, which may contain a key.
            false => {
                Err("a node is given as NAME=URL, and a URL begins with http:// or https://"
                    .to_owned())
            }
        }
    };
    arguments.iter().map(node).collect()
}

/// Splits `NAME=REST`. An equals sign after a slash is part of a path or URL.
pub(crate) fn split_name(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, rest)) if !name.is_empty() && !name.contains('/') => (Some(name), rest),
        _ => (None, text),
    }
}

/// Default name of a variant: the file name without its extension.
pub(crate) fn variant_name(path: &Path) -> String {
    path.file_stem()
        .map_or_else(|| "variant".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Adds the folder to the names of files that have the same name.
fn make_names_unique(named: &mut [(String, Vec<PathBuf>)]) {
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    for (name, paths) in named.iter_mut() {
        if names.iter().filter(|other| *other == name).count() > 1 {
            let folder = paths[0].parent().and_then(Path::file_name);
            if let Some(folder) = folder {
                *name = format!("{}/{name}", folder.to_string_lossy());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the name of a variant contains no secret.

    use super::*;

    #[test]
    fn a_name_from_a_url_holds_no_key() {
        let arguments = [
            "https://user:secret@a.example",
            "https://b.example?apikey=secret",
            "https://0123456789abcdefsecret.c.example/v2",
            "http://127.0.0.1:8545",
            "mine=https://d.example/secret",
        ];
        let nodes = parse_nodes(&arguments.map(str::to_owned)).unwrap();
        let names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(names, ["a.example", "b.example", "***.c.example", "127.0.0.1:8545", "mine"]);
    }
}
