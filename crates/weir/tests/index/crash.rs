//! Goal: a sync that is killed at any instant loses no block and stores no block twice. Method: a
//! sync follows a simulated node with frequent reorgs, and is killed with SIGKILL again and again:
//! at random instants, and in a third of the cases while it removes the blocks that a reorg
//! dropped. In the end the file is verified and compared with the file of an undisturbed sync.
//!
//! The test kills 25 times; `WEIR_KILLS=200 cargo test -p weir --test index crash::` kills 200
//! times.

#[test]
fn a_killed_sync_loses_nothing_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [killed, fresh] =
        ["killed.db", "fresh.db"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    crate::kills::check(&killed, &fresh, 25);
}
