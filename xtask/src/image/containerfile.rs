//! Parses the last stage of the Containerfile. The parser knows only the instructions that this
//! stage uses.

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::shell;

/// The image that the last stage describes.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) files: Vec<ImageFile>,
    /// The member `config` of the image's configuration (OCI image specification).
    pub(super) config: Value,
}

/// A file of the image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImageFile {
    /// Path in the image, without the first slash.
    pub(super) path: String,
    /// Path in the repository; `None` for the program.
    pub(super) source: Option<String>,
}

/// Parses the last stage.
///
/// # Errors
/// Fails if an instruction or its form is unknown, or a needed instruction is missing.
pub(super) fn parse(text: &str) -> Result<Image> {
    let text = text.replace("\\\n", " ");
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let start = lines.iter().rposition(|line| line.starts_with("FROM ")).context("no FROM")?;
    ensure!(lines[start] == "FROM scratch", "the last stage is not from scratch");
    let (mut files, mut config, mut labels) = (Vec::new(), Map::new(), Map::new());
    for line in &lines[start + 1..] {
        let (instruction, argument) = line.split_once(' ').with_context(|| line.to_string())?;
        let list = || {
            serde_json::from_str::<Vec<String>>(argument)
                .with_context(|| format!("{line}: not a list of strings"))
        };
        match instruction {
            "COPY" => add_files(argument, &mut files)?,
            "USER" => drop(config.insert("User".to_owned(), json!(argument))),
            "EXPOSE" => drop(config.insert("ExposedPorts".to_owned(), json!({argument: {}}))),
            "STOPSIGNAL" => drop(config.insert("StopSignal".to_owned(), json!(argument))),
            "ENTRYPOINT" => drop(config.insert("Entrypoint".to_owned(), json!(list()?))),
            "CMD" => drop(config.insert("Cmd".to_owned(), json!(list()?))),
            "LABEL" => {
                let (name, value) = argument.split_once('=').with_context(|| line.to_string())?;
                labels.insert(name.to_owned(), serde_json::from_str(value)?);
            }
            _ => bail!("{line}: unknown instruction"),
        }
    }
    ensure!(files.iter().any(|file| file.source.is_none()), "the program is not copied");
    for key in ["User", "Entrypoint"] {
        ensure!(config.contains_key(key), "the last stage sets no {key}");
    }
    config.insert("Labels".to_owned(), Value::Object(labels));
    Ok(Image { files, config: Value::Object(config) })
}

/// Adds the files of a `COPY` instruction. `COPY --from=build FILE PATH` copies the program, and
/// `COPY FOLDER/ /` copies a folder of the repository.
fn add_files(argument: &str, files: &mut Vec<ImageFile>) -> Result<()> {
    match argument.split(' ').collect::<Vec<_>>().as_slice() {
        ["--from=build", _, path] => {
            let path = path.trim_start_matches('/').to_owned();
            files.push(ImageFile { path, source: None });
            Ok(())
        }
        [folder, "/"] if folder.ends_with('/') => add_folder(folder, "", files),
        _ => bail!("COPY {argument}: unknown form"),
    }
}

/// Adds the files below `inside`, a path within `folder`. `inside` is empty or ends with a slash.
fn add_folder(folder: &str, inside: &str, files: &mut Vec<ImageFile>) -> Result<()> {
    let path = shell::root().join(folder).join(inside);
    let mut entries = fs::read_dir(&path)
        .with_context(|| format!("no {}", path.display()))?
        .collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{inside}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            add_folder(folder, &format!("{path}/"), files)?;
        } else {
            files.push(ImageFile { source: Some(format!("{folder}{path}")), path });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
