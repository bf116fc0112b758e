//! The files of the repository, read once. These are the files that git tracks or would add.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Maximum size of a file that is read as text, in bytes. All files of this repository are far
/// smaller.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// A file's size and, unless it is binary or large, its text.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) bytes: u64,
    /// `None` for a binary or large file.
    pub(crate) text: Option<String>,
}

/// The files of the repository. Paths are relative to the root, with `/` between segments.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, Content>,
    /// Folders of test data on disk that contain no file of the repository.
    empty_folders: Vec<String>,
}

impl Tree {
    /// Reads the repository at `root`.
    ///
    /// # Errors
    /// Fails if git cannot list it or lists nothing.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let out = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .context("cannot run git")?;
        ensure!(out.status.success(), "git: {}", String::from_utf8_lossy(&out.stderr).trim());
        let listed = String::from_utf8(out.stdout).context("a path is not UTF-8")?;
        let mut tree = Self::default();
        for path in listed.split('\0').filter(|path| !path.is_empty()) {
            let full = root.join(path);
            // A file that was deleted but not yet committed is still listed.
            let Ok(meta) = fs::symlink_metadata(&full) else { continue };
            let is_small_file = meta.is_file() && meta.len() <= TEXT_BYTES_MAX;
            let text = is_small_file.then(|| fs::read(&full).ok()).flatten();
            let text = text.and_then(|bytes| String::from_utf8(bytes).ok());
            tree.files.insert(path.to_owned(), Content { bytes: meta.len(), text });
        }
        ensure!(!tree.files.is_empty(), "git lists no file in {}", root.display());
        for folder in list_fixture_roots(root)? {
            tree.find_empty_folders(root, &folder)?;
        }
        Ok(tree)
    }

    /// Builds a tree from paths and texts, for tests.
    #[cfg(test)]
    pub(crate) fn from_texts(files: &[(&str, &str)]) -> Self {
        let content =
            |text: &str| Content { bytes: text.len() as u64, text: Some(text.to_owned()) };
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), content(text)));
        Self { files: files.collect(), empty_folders: Vec::new() }
    }

    /// Adds an empty folder.
    #[cfg(test)]
    pub(crate) fn with_empty_folder(mut self, folder: &str) -> Self {
        self.empty_folders.push(folder.to_owned());
        self
    }

    /// Returns every file.
    pub(crate) fn files(&self) -> &BTreeMap<String, Content> {
        &self.files
    }

    /// Returns every text file whose path has this ending.
    pub(crate) fn texts<'a>(
        &'a self,
        ending: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.files
            .iter()
            .filter(move |(path, _)| path.ends_with(ending))
            .filter_map(|(path, content)| Some((path.as_str(), content.text.as_deref()?)))
    }

    /// Returns the text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.text.as_deref()
    }

    /// Returns the empty folders of test data.
    pub(crate) fn empty_folders(&self) -> &[String] {
        &self.empty_folders
    }

    /// Adds the folders below `folder` that contain no file of the repository.
    fn find_empty_folders(&mut self, root: &Path, folder: &str) -> Result<()> {
        for entry in fs::read_dir(root.join(folder)).with_context(|| format!("no {folder}"))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
                let inside = format!("{path}/");
                if !self.files.keys().any(|file| file.starts_with(&inside)) {
                    self.empty_folders.push(path.clone());
                }
                self.find_empty_folders(root, &path)?;
            }
        }
        Ok(())
    }
}

/// Returns `folder/path` without `.` and `..`.
pub(crate) fn join(folder: &str, path: &str) -> String {
    let mut segments = Vec::new();
    for part in folder.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    segments.join("/")
}

/// Returns the outermost folders of test data.
fn list_fixture_roots(root: &Path) -> Result<Vec<String>> {
    let mut roots = Vec::new();
    if root.join("testdata").is_dir() {
        roots.push("testdata".to_owned());
    }
    for entry in fs::read_dir(root.join("crates")).context("no crates folder")? {
        let path = format!("crates/{}/tests", entry?.file_name().to_string_lossy());
        if root.join(&path).is_dir() {
            roots.push(path);
        }
    }
    Ok(roots)
}
