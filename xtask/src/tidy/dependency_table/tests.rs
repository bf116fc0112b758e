//! A dependency without a reason is found. A comment on its line or above its paragraph is a
//! reason.

use super::super::tree::Tree;
use super::find_unexplained_dependencies;

#[test]
fn a_line_without_a_reason_is_caught() {
    let table = "[workspace.dependencies]\n# Sockets.\ntokio = \"1\"\nmio = \"1\"\n\nleft-pad = \"1\"\n\
                 bytes = \"1\" # slices\n[profile.dev]\nopt-level = 1\n";
    let found = find_unexplained_dependencies(&Tree::from_texts(&[("Cargo.toml", table)]));
    let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
    assert_eq!(lines, [6]);
    assert!(found[0].message.starts_with("left-pad"), "{found:?}");
}
