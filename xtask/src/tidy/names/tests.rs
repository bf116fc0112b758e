//! Banned words in names of files and folders are found. A longer word that contains a banned one
//! passes.

use super::super::tree::Tree;
use super::find_banned_file_names;

#[test]
fn banned_names_are_caught() {
    let caught = |path| find_banned_file_names(&Tree::from_texts(&[(path, "")])).len();
    assert_eq!(caught("crates/wire/src/helper.rs"), 1);
    assert_eq!(caught("crates/gateway/src/http_utils.rs"), 1);
    assert_eq!(caught("crates/gateway/src/common/limit.rs"), 1);
    assert_eq!(caught("crates/gateway/src/upstream/mod.rs"), 1);
    assert_eq!(caught("crates/gateway/src/scores.rs"), 0);
    assert_eq!(caught("crates/gateway/src/information.rs"), 0);
}
