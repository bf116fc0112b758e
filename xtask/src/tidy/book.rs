//! Checks that docs/SUMMARY.md lists every page of docs/ once. `paths.rs` checks its links.

use super::Finding;
use super::tree::Tree;

const SUMMARY: &str = "docs/SUMMARY.md";

/// Finds pages that the summary lacks or lists twice.
pub(crate) fn find_unlisted_pages(tree: &Tree) -> Vec<Finding> {
    let summary = tree.text(SUMMARY).unwrap_or_default();
    let pages = tree.texts(".md").filter_map(|(path, _)| path.strip_prefix("docs/"));
    pages
        .filter(|page| *page != "SUMMARY.md")
        .filter_map(|page| {
            let times = summary.matches(&format!("]({page})")).count();
            let message = format!("{SUMMARY} lists this page {times} times, not once");
            (times != 1).then(|| Finding::new(&format!("docs/{page}"), 1, "site", message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::find_unlisted_pages;

    #[test]
    fn pages_that_the_summary_lacks_or_repeats_are_found() {
        let tree = Tree::from_texts(&[
            ("docs/SUMMARY.md", "- [A](a.md)\n- [B](b.md)\n- [B](b.md)\n"),
            ("docs/a.md", "# A"),
            ("docs/b.md", "# B"),
            ("docs/decisions/0001-c.md", "# C"),
            ("README.md", "# not of the site"),
        ]);
        let unlisted: Vec<_> =
            find_unlisted_pages(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(unlisted, ["docs/b.md", "docs/decisions/0001-c.md"]);
    }
}
