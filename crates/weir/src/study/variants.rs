//! Parses variants on the command line: `NAME=FILE,FILE`, `FILE`, `NAME=URL`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use lab::analysis::sync::VariantRuns;
use lab::study::poll::Node;
use lab::study::read::{FileFormat, read_run};

use crate::variant::{split_name, variant_name};

/// Maximum number of runs of one variant.
const RUNS_MAX: usize = 64;

/// Reads variants from files. `formats` has the format of each argument. The outer error reports an
/// unreadable file; the inner error describes a wrong argument.
pub(super) fn read_variants(
    arguments: &[String],
    formats: &[FileFormat],
) -> Result<Result<Vec<VariantRuns>, String>> {
    let mut named_paths: Vec<(String, Vec<PathBuf>)> = Vec::new();
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
        named_paths.push((name, paths));
    }
    make_names_unique(&mut named_paths);
    let read_variant =
        |((name, paths), format): ((String, Vec<PathBuf>), &FileFormat)| -> Result<VariantRuns> {
            let runs: Result<Vec<_>, _> =
                paths.iter().map(|path| read_run(path, *format)).collect();
            Ok(VariantRuns { name, runs: runs? })
        };
    named_paths.into_iter().zip(formats).map(read_variant).collect::<Result<_>>().map(Ok)
}

/// Parses nodes given as `NAME=URL` or `URL`.
///
/// # Errors
/// Describes the first error.
pub(super) fn parse_nodes(arguments: &[String]) -> Result<Vec<Node>, String> {
    let parse_node = |text: &String| {
        let (name, url) = split_name(text);
        // The default name is the masked host, because even a host may contain a key.
        let host = || {
            let masked_url = settings::url::mask_url(url);
            let after_scheme = masked_url.split_once("://").map_or(&*masked_url, |parts| parts.1);
            let authority = after_scheme.split(['/', '?']).next().unwrap_or(after_scheme);
            authority.rsplit('@').next().unwrap_or(authority).to_owned()
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
    arguments.iter().map(parse_node).collect()
}

/// Puts the folder's name in front of each name that two or more variants have.
fn make_names_unique(named_paths: &mut [(String, Vec<PathBuf>)]) {
    let names: Vec<String> = named_paths.iter().map(|(name, _)| name.clone()).collect();
    for (name, paths) in named_paths.iter_mut() {
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
