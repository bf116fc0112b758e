//! The option `--out DIR` of all commands that write a result into a folder. It accepts only local
//! folders, and an earlier result is replaced only with `--force`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lab::report::ReportFault;

#[cfg(test)]
mod tests;

/// The folder of a result. A command replaces the help of `--out` with its own.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct OutFolder {
    /// Write the result to a folder
    #[arg(long, value_name = "DIR", value_parser = parse_folder)]
    out: Option<PathBuf>,

    /// Replace the files of an earlier result in the folder of --out
    #[arg(long, requires = "out")]
    force: bool,
}

/// The folder has an earlier result. The program then exits with the code of faulty arguments.
#[derive(Debug)]
pub(crate) struct EarlierResult(String);

impl std::fmt::Display for EarlierResult {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for EarlierResult {}

impl OutFolder {
    /// Returns the folder, or `None` if no result is written to a folder.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.out.as_deref()
    }

    /// Creates the folder, so that an error is reported before a run. `files` are the names of the
    /// files that the command will write.
    ///
    /// # Errors
    /// Fails with [`EarlierResult`] if one of the files exists and the user does not replace it.
    /// Fails if the folder cannot be created.
    pub(crate) fn create(&self, files: &[&str]) -> Result<()> {
        let Some(folder) = &self.out else { return Ok(()) };
        let present: Vec<&str> =
            files.iter().copied().filter(|name| folder.join(name).exists()).collect();
        if !self.force && !present.is_empty() {
            let message = format!(
                "{} already has {}: choose another folder, or replace them with --force",
                folder.display(),
                present.join(", ")
            );
            return Err(EarlierResult(message).into());
        }
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))
    }

    /// Writes a result to the folder, if there is one. `write` returns the paths of the files. They
    /// are printed unless `quiet` is true.
    ///
    /// # Errors
    /// Fails if `write` fails.
    pub(crate) fn write(
        &self,
        quiet: bool,
        write: impl FnOnce(&Path) -> Result<Vec<PathBuf>, ReportFault>,
    ) -> Result<()> {
        let Some(folder) = self.path() else { return Ok(()) };
        let written = write(folder)
            .with_context(|| format!("cannot write the result to {}", folder.display()))?;
        if !quiet {
            written.iter().for_each(|path| eprintln!("wrote {}", path.display()));
        }
        Ok(())
    }
}

/// Parses the name of a folder. Rejects URLs, of which only a folder named `s3:` would become.
fn parse_folder(text: &str) -> Result<PathBuf, String> {
    let Some((scheme, _)) = text.split_once("://") else { return Ok(PathBuf::from(text)) };
    let copy = match scheme {
        "s3" => format!("aws s3 cp --recursive DIR {text}"),
        "gs" => format!("gcloud storage cp --recursive DIR {text}"),
        _ => "rclone, for example".to_owned(),
    };
    Err(format!("weir writes to local folders only; write to DIR, and copy it afterwards: {copy}"))
}
