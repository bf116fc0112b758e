//! The glossary of the HTML page. It is read from `docs/measuring.md`, so both have the same text.

/// The documentation page that contains the glossary.
const PAGE: &str = include_str!("../../../../docs/measuring.md");
/// Heading of the glossary; its entries have headings of level three.
const PART: &str = "\n## The numbers in a report\n";

/// An entry of the glossary.
#[derive(Clone, Copy, Debug)]
pub(super) struct GlossaryEntry {
    /// Its heading.
    pub(super) name: &'static str,
    text: &'static str,
}

impl GlossaryEntry {
    /// Its heading as an anchor: in lower case, with hyphens.
    pub(super) fn id(self) -> String {
        let lower = self.name.to_lowercase();
        let plain = lower.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        plain.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    /// Its first paragraph as plain text.
    pub(super) fn plain(self) -> String {
        self.paragraphs().next().unwrap_or_default().replace('`', "")
    }

    /// Its paragraphs, in which only code spans are marked up.
    pub(super) fn paragraphs(self) -> impl Iterator<Item = &'static str> {
        self.text.split("\n\n").map(str::trim).filter(|text| !text.is_empty())
    }
}

/// All entries, in the order of the page.
pub(super) fn all() -> impl Iterator<Item = GlossaryEntry> {
    let glossary = PAGE.split_once(PART).map_or("", |(_, rest)| rest);
    let glossary = glossary.split_once("\n## ").map_or(glossary, |(glossary, _)| glossary);
    let entries = glossary.split("\n### ").skip(1);
    entries.map(|entry| {
        let (name, text) = entry.split_once('\n').unwrap_or((entry, ""));
        GlossaryEntry { name: name.trim(), text }
    })
}

/// The entry with this heading.
pub(super) fn find(name: &str) -> Option<GlossaryEntry> {
    all().find(|word| word.name == name)
}
