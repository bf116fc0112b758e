//! Writes and checks copies of files that must also exist in a second folder.

use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Originals and their copies. Helm reads only files in the folder of the chart.
const COPIES: &[(&str, &str)] =
    &[("deploy/prometheus/weir.rules.yml", "deploy/helm/weir/files/weir.rules.yml")];

/// Copies each original that exists.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub(super) fn write(root: &Path) -> Result<()> {
    for (original, copy) in COPIES {
        let Some(text) = read_if_exists(&root.join(original))? else { continue };
        let copy = root.join(copy);
        let folder = copy.parent().expect("a copy has a folder");
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        std::fs::write(&copy, text).with_context(|| format!("cannot write {}", copy.display()))?;
    }
    Ok(())
}

/// Compares each original with its copy.
///
/// # Errors
/// Fails if they differ, or only one of them exists.
pub(super) fn check(root: &Path) -> Result<()> {
    for (original, copy) in COPIES {
        let is_equal = read_if_exists(&root.join(original))? == read_if_exists(&root.join(copy))?;
        ensure!(is_equal, "{copy} differs from {original}; run cargo xtask generate");
    }
    Ok(())
}

fn read_if_exists(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a stale copy is found, and writing updates it.

    use super::*;

    #[test]
    fn a_stale_copy_is_found_and_updated() {
        let folder = tempfile::tempdir().unwrap();
        let (root, (original, copy)) = (folder.path(), COPIES[0]);
        std::fs::create_dir_all(root.join(original).parent().unwrap()).unwrap();
        check(root).unwrap();
        write(root).unwrap();
        assert!(!root.join(copy).exists(), "without an original there is no copy");
        for text in ["groups: []\n", "groups: [1]\n"] {
            std::fs::write(root.join(original), text).unwrap();
            let error = check(root).unwrap_err().to_string();
            assert!(error.contains(copy), "{error}");
            write(root).unwrap();
            check(root).unwrap();
        }
    }
}
