//! Operator requests to a running gateway: signals, and changed configuration files.

use std::future::pending;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::stop::StopSignals;

/// How often the files' metadata is polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A request of the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// SIGINT or SIGTERM: shut down.
    Stop,
    /// SIGHUP, or a changed file: reload the configuration.
    Reload,
    /// SIGUSR2: hand over to a new process of the program on disk.
    Upgrade,
}

/// Receives operator requests as soon as it is created.
pub(super) struct Wishes {
    stop: StopSignals,
    reload: Signal,
    upgrade: Signal,
    files: Option<FileWatch>,
}

impl Wishes {
    /// Creates the receiver. It watches `file` and the files that [`Wishes::follow`] adds. Must be
    /// called on a tokio runtime.
    pub(super) fn new(file: Option<&Path>) -> Result<Wishes> {
        Ok(Wishes {
            stop: StopSignals::new()?,
            reload: signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?,
            upgrade: signal(SignalKind::user_defined2()).context("cannot watch for SIGUSR2")?,
            files: file.map(FileWatch::of),
        })
    }

    /// Waits for the next request. If `follow` is true, a changed file requests a reload.
    pub(super) async fn next(&mut self, follow: bool) -> Wish {
        let Wishes { stop, reload, upgrade, files } = self;
        let changed = async {
            match files {
                Some(files) if follow => files.changed().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            // A shutdown takes precedence.
            biased;
            () = stop.next() => Wish::Stop,
            _ = upgrade.recv() => Wish::Upgrade,
            _ = reload.recv() => Wish::Reload,
            () = changed => Wish::Reload,
        }
    }

    /// Records that the files have just been read. Only later changes count.
    pub(super) fn files_are_read(&mut self) {
        if let Some(files) = &mut self.files {
            for (path, state) in &mut files.watched {
                *state = WatchedFile::at(path);
            }
        }
    }

    /// Sets the files that the configuration names, in addition to its own. A file that was watched
    /// before keeps its state, so that an earlier change still counts.
    pub(super) fn follow(&mut self, named: &[PathBuf]) {
        if let Some(files) = &mut self.files {
            files.follow(named);
        }
    }
}

/// Polls files by path. This also detects a file that is renamed over another, as editors and
/// deployments do.
struct FileWatch {
    /// The configuration file comes first.
    watched: Vec<(PathBuf, WatchedFile)>,
}

impl FileWatch {
    fn of(path: &Path) -> FileWatch {
        FileWatch { watched: vec![(path.to_owned(), WatchedFile::at(path))] }
    }

    fn follow(&mut self, named: &[PathBuf]) {
        let mut known = self.watched.split_off(1);
        for path in named {
            let at = known.iter().position(|(known, _)| known == path);
            let watched = at.map(|at| known.swap_remove(at));
            self.watched.push(watched.unwrap_or_else(|| (path.clone(), WatchedFile::at(path))));
        }
    }

    async fn changed(&mut self) {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.is_due() {
                return;
            }
        }
    }

    /// Returns true if any file is due. Polls all files, so that files that change together cause
    /// one reload.
    fn is_due(&mut self) -> bool {
        let polls = self.watched.iter_mut().map(|(path, state)| state.is_due(stamp(path)));
        polls.fold(false, |any, due| any | due)
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

/// Returns the state of a file, or `None` if it is missing.
fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let modified = found.modified().ok();
    Some(Stamp { device: found.dev(), inode: found.ino(), bytes: found.len(), modified })
}

/// Debounces the changes of one file. A change is due once two successive polls return the same
/// state. So a file is not read while it is still being written.
#[derive(Debug, Clone, Copy)]
struct WatchedFile {
    /// State when the file was last read.
    read: Option<Stamp>,
    /// State at the last poll.
    polled: Option<Stamp>,
}

impl WatchedFile {
    /// Returns a file that is read now.
    fn at(path: &Path) -> WatchedFile {
        WatchedFile { read: stamp(path), polled: None }
    }

    fn is_due(&mut self, now: Option<Stamp>) -> bool {
        let stable = now.is_some() && now == self.polled;
        self.polled = now;
        // A missing file is not due: it may be about to be replaced.
        if !stable || now == self.read {
            return false;
        }
        self.read = now;
        true
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each change is due once, when the file is stable, and never while it is missing.

    use super::{FileWatch, Stamp, WatchedFile, stamp};

    fn state(inode: u64, bytes: u64) -> Option<Stamp> {
        Some(Stamp { device: 1, inode, bytes, modified: None })
    }

    #[test]
    fn a_change_is_due_once_and_only_when_stable() {
        let mut file = WatchedFile { read: state(1, 10), polled: None };
        let polls = [
            (state(1, 10), false),
            (state(1, 10), false),
            // Written in small steps.
            (state(1, 2), false),
            (state(1, 5), false),
            (state(1, 12), false),
            (state(1, 12), true),
            (state(1, 12), false),
            // Replaced by one of the same size, with a gap.
            (None, false),
            (None, false),
            (state(2, 12), false),
            (state(2, 12), true),
            (state(2, 12), false),
            // Changed and changed back between two stable polls.
            (state(3, 12), false),
            (state(2, 12), false),
            (state(2, 12), false),
        ];
        for (at, (polled, due)) in polls.into_iter().enumerate() {
            assert_eq!(file.is_due(polled), due, "poll {at}");
        }
    }

    #[test]
    fn a_file_renamed_over_another_is_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        assert_eq!(stamp(&path), None);
        std::fs::write(&path, "one").unwrap();
        let before = stamp(&path);
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(stamp(&path), before);
    }

    #[test]
    fn named_files_are_watched_with_the_configuration_file() {
        let folder = tempfile::tempdir().unwrap();
        let [own, key, certificate] =
            ["own", "key", "certificate"].map(|name| folder.path().join(name));
        for path in [&own, &key, &certificate] {
            std::fs::write(path, "one").unwrap();
        }
        let mut watch = FileWatch::of(&own);
        watch.follow(&[key.clone(), certificate.clone()]);
        let mut polls = |times: usize| (0..times).map(|_| watch.is_due()).collect::<Vec<_>>();
        assert_eq!(polls(3), [false; 3]);
        // A renewal that writes two files is due once.
        std::fs::write(&key, "longer").unwrap();
        std::fs::write(&certificate, "longer").unwrap();
        assert_eq!(polls(4), [false, true, false, false]);
        // A file that is no longer named is not polled; one that is still named keeps its state.
        std::fs::write(&key, "and longer").unwrap();
        std::fs::write(&certificate, "and longer").unwrap();
        watch.follow(std::slice::from_ref(&key));
        let polls = (0..3).map(|_| watch.is_due()).collect::<Vec<_>>();
        assert_eq!(polls, [false, true, false]);
        assert_eq!(watch.watched.len(), 2);
    }
}
