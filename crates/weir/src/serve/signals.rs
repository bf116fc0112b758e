//! What a running gateway is asked for: by signals, and by files of its configuration that changed.

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
    files: Option<Follower>,
}

impl Wishes {
    /// Must be called on a tokio runtime. `file` is looked at where that is wanted, and those that
    /// it names once [`Wishes::follow`] says which.
    pub(super) fn new(file: Option<&Path>) -> Result<Wishes> {
        Ok(Wishes {
            stop: StopSignals::new()?,
            reload: signal(SignalKind::hangup()).context("cannot watch for SIGHUP")?,
            upgrade: signal(SignalKind::user_defined2()).context("cannot watch for SIGUSR2")?,
            files: file.map(Follower::of),
        })
    }

    /// Waits for the next wish. `follow` says whether a changed file is one.
    pub(super) async fn next(&mut self, follow: bool) -> Wish {
        let Wishes { stop, reload, upgrade, files } = self;
        let changed = async {
            match files {
                Some(files) if follow => files.changed().await,
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

    /// The files are read now: only what changes from here on is news.
    pub(super) fn files_are_read(&mut self) {
        if let Some(files) = &mut self.files {
            for (path, pace) in &mut files.followed {
                *pace = Pace::at(path);
            }
        }
    }

    /// Which files the configuration has named, beside its own. What was followed before keeps its
    /// state, so that what changed since it was read is still news.
    pub(super) fn follow(&mut self, named: &[PathBuf]) {
        if let Some(files) = &mut self.files {
            files.follow(named);
        }
    }
}

/// Looks at files by name, so that one that is renamed over another, as editors and deployments do,
/// is seen as a change.
struct Follower {
    /// The configuration's own comes first.
    followed: Vec<(PathBuf, Pace)>,
}

impl Follower {
    fn of(path: &Path) -> Follower {
        Follower { followed: vec![(path.to_owned(), Pace::at(path))] }
    }

    fn follow(&mut self, named: &[PathBuf]) {
        let mut known = self.followed.split_off(1);
        for path in named {
            let at = known.iter().position(|(known, _)| known == path);
            let followed = at.map(|at| known.swap_remove(at));
            self.followed.push(followed.unwrap_or_else(|| (path.clone(), Pace::at(path))));
        }
    }

    async fn changed(&mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.is_due() {
                return;
            }
        }
    }

    /// Whether any of them is to be read. All are looked at, so that several that change together
    /// are read together.
    fn is_due(&mut self) -> bool {
        let looks = self.followed.iter_mut().map(|(path, pace)| pace.is_due(stamp(path)));
        looks.fold(false, |any, due| any | due)
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
    /// Of a file that is read now.
    fn at(path: &Path) -> Pace {
        Pace { taken: stamp(path), seen: None }
    }

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

    use super::{Follower, Pace, Stamp, stamp};

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

    #[test]
    fn files_that_are_named_are_followed_with_the_configurations_own() {
        let folder = tempfile::tempdir().unwrap();
        let [own, key, certificate] =
            ["own", "key", "certificate"].map(|name| folder.path().join(name));
        for path in [&own, &key, &certificate] {
            std::fs::write(path, "one").unwrap();
        }
        let mut follower = Follower::of(&own);
        follower.follow(&[key.clone(), certificate.clone()]);
        let mut looks = |times: usize| (0..times).map(|_| follower.is_due()).collect::<Vec<_>>();
        assert_eq!(looks(3), [false; 3]);
        // A renewal writes two files: one reading.
        std::fs::write(&key, "longer").unwrap();
        std::fs::write(&certificate, "longer").unwrap();
        assert_eq!(looks(4), [false, true, false, false]);
        // One that is named no more is left alone, one that stays has kept its state.
        std::fs::write(&key, "and longer").unwrap();
        std::fs::write(&certificate, "and longer").unwrap();
        follower.follow(std::slice::from_ref(&key));
        let looks = (0..3).map(|_| follower.is_due()).collect::<Vec<_>>();
        assert_eq!(looks, [false, true, false]);
        assert_eq!(follower.followed.len(), 2);
    }
}
