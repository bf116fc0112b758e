//! Every former name and phrase is caught, except in the files that quote it.

use super::super::tree::Tree;
use super::{NAMES, PHRASES, find_former_words};

#[test]
fn former_words_are_caught() {
    for (word, _) in NAMES.iter().chain(PHRASES) {
        let text = format!("//! A file.\n// Here {word} stands.\n");
        let caught = |path| find_former_words(&Tree::from_texts(&[(path, &*text)]));
        let found = caught("crates/gateway/src/path.rs");
        assert_eq!(found.len(), 1, "{word}");
        assert_eq!(found[0].line, 2, "{word}");
        assert_eq!(caught("docs/config.md").len(), 1, "{word}");
        assert_eq!(caught("docs/decisions/0001-words.md"), [], "{word}");
    }
    assert_eq!(
        find_former_words(&Tree::from_texts(&[("docs/a.md", "an upstream is a node's address")])),
        []
    );
}
