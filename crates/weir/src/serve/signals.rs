//! Operator requests to a running gateway: signals, and changed configuration files.

use std::future::pending;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::stop::StopSignals;

/// Interval of polls of the files' metadata.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A request of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperatorRequest {
    /// SIGINT or SIGTERM: shut down.
    Stop,
    /// SIGHUP or a changed file: reload the configuration.
    Reload,
    /// SIGUSR2: hand over to a new process of the program on disk.
    Upgrade,
}

/// Receives operator requests. A signal that arrives between two calls of
/// [`OperatorRequests::next`] is not lost.
pub(super) struct OperatorRequests {
    stop: StopSignals,
    reload: Signal,
    upgrade: Signal,
    /// `None` if the gateway has no configuration file.
    files: Option<FileWatch>,
}

impl OperatorRequests {
    /// Installs the signal handlers. If `config_file` is set, starts to watch it; the files that
    /// the configuration names are added by [`OperatorRequests::watch_files`]. Must be called on a
    /// tokio runtime.
    pub(super) fn new(config_file: Option<&Path>) -> Result<OperatorRequests> {
        Ok(OperatorRequests {
            stop: StopSignals::new()?,
            reload: signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?,
            upgrade: signal(SignalKind::user_defined2()).context("cannot watch for SIGUSR2")?,
            files: config_file.map(FileWatch::new),
        })
    }

    /// Waits for the next request. If `reload_on_change` is true, a changed file requests a reload.
    pub(super) async fn next(&mut self, reload_on_change: bool) -> OperatorRequest {
        let OperatorRequests { stop, reload, upgrade, files } = self;
        let file_change = async {
            match files {
                Some(files) if reload_on_change => files.wait_for_change().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            // A shutdown takes precedence.
            biased;
            () = stop.next() => OperatorRequest::Stop,
            _ = upgrade.recv() => OperatorRequest::Upgrade,
            _ = reload.recv() => OperatorRequest::Reload,
            () = file_change => OperatorRequest::Reload,
        }
    }

    /// Records the current state of the files, just before the caller reads them. Only later
    /// changes request a reload.
    pub(super) fn record_file_states(&mut self) {
        if let Some(files) = &mut self.files {
            for (path, file) in &mut files.watched {
                *file = WatchedFile::with_current_state(path);
            }
        }
    }

    /// Sets the files to watch in addition to the configuration file. `paths` are the files that
    /// the configuration names. A file that was watched before keeps its state, so an earlier
    /// change still requests a reload.
    pub(super) fn watch_files(&mut self, paths: &[PathBuf]) {
        if let Some(files) = &mut self.files {
            files.watch_files(paths);
        }
    }
}

/// Polls files by path. So it also detects that an editor or a deployment has replaced a file by
/// renaming another file.
struct FileWatch {
    /// The configuration file comes first.
    watched: Vec<(PathBuf, WatchedFile)>,
}

impl FileWatch {
    fn new(config_file: &Path) -> FileWatch {
        let file = WatchedFile::with_current_state(config_file);
        FileWatch { watched: vec![(config_file.to_owned(), file)] }
    }

    fn watch_files(&mut self, paths: &[PathBuf]) {
        let mut old_files = self.watched.split_off(1);
        for path in paths {
            let index = old_files.iter().position(|(old_path, _)| old_path == path);
            let old_file = index.map(|index| old_files.swap_remove(index));
            self.watched.push(
                old_file.unwrap_or_else(|| (path.clone(), WatchedFile::with_current_state(path))),
            );
        }
    }

    /// Polls the files until a change of one of them is due, as [`WatchedFile`] defines it.
    async fn wait_for_change(&mut self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.poll() {
                return;
            }
        }
    }

    /// Polls all files once, and returns true if a change of any of them is due. Every file is
    /// polled, so that files that change together cause one reload.
    fn poll(&mut self) -> bool {
        let polls = self.watched.iter_mut().map(|(path, file)| file.poll(read_stamp(path)));
        polls.fold(false, |any_due, due| any_due | due)
    }
}

/// Metadata that distinguishes two states of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// Reads the metadata of a file. Returns `None` if the file is missing or its metadata cannot be
/// read.
fn read_stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    let modified = metadata.modified().ok();
    Some(Stamp { device: metadata.dev(), inode: metadata.ino(), bytes: metadata.len(), modified })
}

/// Debounces the changes of one file. A change is due once two successive polls return the same
/// state, and this state differs from the loaded one. So a file is not read while it is still being
/// written.
#[derive(Debug, Clone, Copy)]
struct WatchedFile {
    /// State of the file when the configuration was last read, or at the last due change.
    loaded: Option<Stamp>,
    /// State at the last poll.
    polled: Option<Stamp>,
}

impl WatchedFile {
    /// Creates a watched file whose current state counts as loaded.
    fn with_current_state(path: &Path) -> WatchedFile {
        WatchedFile { loaded: read_stamp(path), polled: None }
    }

    /// Records a poll, and returns true if a change is due.
    fn poll(&mut self, current: Option<Stamp>) -> bool {
        let is_stable = current.is_some() && current == self.polled;
        self.polled = current;
        // A missing file is never due, because a new version may be about to replace it.
        if !is_stable || current == self.loaded {
            return false;
        }
        self.loaded = current;
        true
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each change is due once, when the file is stable, and never while it is missing.

    use super::{FileWatch, Stamp, WatchedFile, read_stamp};

    fn state(inode: u64, bytes: u64) -> Option<Stamp> {
        Some(Stamp { device: 1, inode, bytes, modified: None })
    }

    #[test]
    fn a_change_is_due_once_and_only_when_stable() {
        let mut file = WatchedFile { loaded: state(1, 10), polled: None };
        let polls = [
            (state(1, 10), false),
            (state(1, 10), false),
            // The file is written in small steps.
            (state(1, 2), false),
            (state(1, 5), false),
            (state(1, 12), false),
            (state(1, 12), true),
            (state(1, 12), false),
            // The file is replaced by another one of the same size, and is missing in between.
            (None, false),
            (None, false),
            (state(2, 12), false),
            (state(2, 12), true),
            (state(2, 12), false),
            // The file changes, and changes back before a stable poll.
            (state(3, 12), false),
            (state(2, 12), false),
            (state(2, 12), false),
        ];
        for (index, (polled, due)) in polls.into_iter().enumerate() {
            assert_eq!(file.poll(polled), due, "poll {index}");
        }
    }

    #[test]
    fn a_file_renamed_over_another_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        assert_eq!(read_stamp(&path), None);
        std::fs::write(&path, "one").unwrap();
        let old_stamp = read_stamp(&path);
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(read_stamp(&path), old_stamp);
    }

    #[test]
    fn named_files_are_watched_with_the_configuration_file() {
        let folder = tempfile::tempdir().unwrap();
        let [config, key, certificate] =
            ["config", "key", "certificate"].map(|name| folder.path().join(name));
        for path in [&config, &key, &certificate] {
            std::fs::write(path, "one").unwrap();
        }
        let mut watch = FileWatch::new(&config);
        watch.watch_files(&[key.clone(), certificate.clone()]);
        let mut polls = |times: usize| (0..times).map(|_| watch.poll()).collect::<Vec<_>>();
        assert_eq!(polls(3), [false; 3]);
        // A renewal that writes two files is due once.
        std::fs::write(&key, "longer").unwrap();
        std::fs::write(&certificate, "longer").unwrap();
        assert_eq!(polls(4), [false, true, false, false]);
        // A file that is no longer named is not polled. A file that is still named keeps its state.
        std::fs::write(&key, "and longer").unwrap();
        std::fs::write(&certificate, "and longer").unwrap();
        watch.watch_files(std::slice::from_ref(&key));
        let polls = (0..3).map(|_| watch.poll()).collect::<Vec<_>>();
        assert_eq!(polls, [false, true, false]);
        assert_eq!(watch.watched.len(), 2);
    }
}
