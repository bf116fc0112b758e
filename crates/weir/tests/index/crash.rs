//! Goal: a sync that is killed at any instant loses nothing and writes nothing twice. Method: a
//! simulated node whose chain is reorganised all the time; the program follows it and is killed
//! with SIGKILL over and over, at random instants and, a third of the times, while it rewinds; in
//! the end the file is looked through whole and compared with one that was synced in one go.
//!
//! 25 kills here; `WEIR_KILLS=200 cargo test -p weir --test index crash::` for more.

#[test]
fn a_killed_sync_loses_nothing_and_repeats_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let [killed, fresh] =
        ["killed.db", "fresh.db"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    crate::kills::check(&killed, &fresh, 25);
}
