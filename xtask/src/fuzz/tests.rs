//! Targets are read from the manifest.

use super::names;

#[test]
fn each_binary_is_a_target() {
    let manifest =
        "[package]\nname = \"fuzz\"\n[[bin]]\nname = \"jsonrpc\"\n[[bin]]\nname = \"logs\"\n";
    assert_eq!(names(manifest).unwrap(), ["jsonrpc", "logs"]);
    assert_eq!(names("").unwrap(), [""; 0]);
    assert!(names("[").is_err());
}
