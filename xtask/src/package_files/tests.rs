//! Archives do not depend on the machine, and checksums match.

use std::fs;
use std::process::Command;

use super::{Effort, compress, compute_sha256, list_sizes, write_checksums, write_tar};
use crate::shell;

#[test]
fn equal_files_give_equal_archives() {
    let folder = tempfile::tempdir().unwrap();
    let archive = |name: &str| {
        let source = folder.path().join(name);
        fs::create_dir(&source).unwrap();
        for file in ["b", "a"] {
            fs::write(source.join(file), file).unwrap();
        }
        let tar = folder.path().join(format!("{name}.tar"));
        write_tar(&source, &["b", "a"], &tar).unwrap();
        fs::read(compress(&tar, Effort::Best).unwrap()).unwrap()
    };
    assert_eq!(archive("first"), archive("second"));
}

#[test]
fn checksums_are_those_of_sha256sum() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("abc"), "abc").unwrap();
    let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(compute_sha256(&folder.path().join("abc")).unwrap(), digest);
    write_checksums(folder.path(), "SUMS").unwrap();
    let check = || {
        let mut command = Command::new("sha256sum");
        shell::read_output(command.args(["--check", "SUMS"]).current_dir(folder.path()))
    };
    assert_eq!(check().unwrap(), "abc: OK");
    assert_eq!(list_sizes(folder.path()).unwrap().lines().count(), 2);
    fs::write(folder.path().join("abc"), "abd").unwrap();
    assert!(check().is_err());
}
