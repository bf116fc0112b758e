//! What a running gateway is asked for: by signals, and by a configuration file that changed.

use std::future::pending;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::stop::StopSignals;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a running gateway is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// SIGINT or SIGTERM: end.
    Stop,
    /// SIGHUP, or the file changed: read the configuration anew.
    Reload,
    /// SIGUSR2: hand over to a new process of the program on disk.
    Upgrade,
}

/// Hears wishes from its making on.
pub(super) struct Wishes {
    stop: StopSignals,
    reload: Signal,
    upgrade: Signal,
    file: Option<Follower>,
}

impl Wishes {
    /// Must be called on a tokio runtime. `file` is looked at where that is wanted.
    pub(super) fn new(file: Option<&Path>) -> Result<Wishes> {
        Ok(Wishes {
            stop: StopSignals::new()?,
            reload: signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?,
            upgrade: signal(SignalKind::user_defined2()).context("cannot watch for SIGUSR2")?,
            file: file.map(Follower::of),
        })
    }

    /// Waits for the next wish. `follow` says whether a changed file is one.
    pub(super) async fn next(&mut self, follow: bool) -> Wish {
        let Wishes { stop, reload, upgrade, file } = self;
        let changed = async {
            match file {
                Some(file) if follow => file.changed().await,
                _ => pending().await,
            }
        };
        tokio::select! {
            // What ends it comes first.
            biased;
            () = stop.next() => Wish::Stop,
            _ = upgrade.recv() => Wish::Upgrade,
            _ = reload.recv() => Wish::Reload,
            () = changed => Wish::Reload,
        }
    }

    /// The file is read now: only what changes from here on is news.
    pub(super) fn file_is_read(&mut self) {
        if let Some(file) = &mut self.file {
            file.pace = Pace { taken: stamp(&file.path), seen: None };
        }
    }
}

/// Looks at a file by name, so that one that is renamed over it, as editors and deployments do, is
/// seen as a change.
struct Follower {
    path: PathBuf,
    pace: Pace,
}

impl Follower {
    fn of(path: &Path) -> Follower {
        Follower { path: path.to_owned(), pace: Pace { taken: stamp(path), seen: None } }
    }

    async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.pace.is_due(stamp(&self.path)) {
                return;
            }
        }
    }
}

/// What tells two states of a file apart without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: Option<SystemTime>,
}

/// The state of a file; none while there is none.
fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let modified = found.modified().ok();
    Some(Stamp { device: found.dev(), inode: found.ino(), bytes: found.len(), modified })
}

/// When a file that changes is read: once it is the same in two looks, so that one that is still
/// being written is not.
#[derive(Debug, Clone, Copy)]
struct Pace {
    taken: Option<Stamp>,
    seen: Option<Stamp>,
}

impl Pace {
    fn is_due(&mut self, now: Option<Stamp>) -> bool {
        let rests = now.is_some() && now == self.seen;
        self.seen = now;
        // A file that is missing may be about to be replaced; there is nothing to read anyway.
        if !rests || now == self.taken {
            return false;
        }
        self.taken = now;
        true
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a file is read once for each change, when it is at rest, and not while it is missing.

    use super::{Pace, Stamp, stamp};

    fn state(inode: u64, bytes: u64) -> Option<Stamp> {
        Some(Stamp { device: 1, inode, bytes, modified: None })
    }

    #[test]
    fn it_is_read_once_per_change_and_only_at_rest() {
        let mut pace = Pace { taken: state(1, 10), seen: None };
        let looks = [
            (state(1, 10), false),
            (state(1, 10), false),
            // Written little by little.
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
            // Changed and changed back between two looks at rest.
            (state(3, 12), false),
            (state(2, 12), false),
            (state(2, 12), false),
        ];
        for (at, (look, due)) in looks.into_iter().enumerate() {
            assert_eq!(pace.is_due(look), due, "look {at}");
        }
    }

    #[test]
    fn a_renamed_file_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        assert_eq!(stamp(&path), None);
        std::fs::write(&path, "one").unwrap();
        let before = stamp(&path);
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(stamp(&path), before);
    }
}
