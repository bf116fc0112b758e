//! The glossary of the HTML page. It is read from `docs/measuring.md`, so the two pages agree.

/// The documentation page that contains the glossary.
const DOCUMENTATION: &str = include_str!("../../../../docs/measuring.md");
/// Heading of the glossary. Its entries have headings of level three.
const GLOSSARY_HEADING: &str = "\n## The numbers in a report\n";

/// An entry of the glossary.
#[derive(Clone, Copy, Debug)]
pub(super) struct GlossaryEntry {
    /// Heading of the entry.
    pub(super) name: &'static str,
    /// Markdown below the heading.
    text: &'static str,
}

impl GlossaryEntry {
    /// Returns the heading as an anchor: in lower case, with hyphens.
    pub(super) fn id(self) -> String {
        let lower_case = self.name.to_lowercase();
        let allowed = lower_case.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        allowed.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    /// Returns the first paragraph as plain text.
    pub(super) fn summary(self) -> String {
        self.paragraphs().next().unwrap_or_default().replace('`', "")
    }

    /// Returns the paragraphs. They contain no markup except code spans.
    pub(super) fn paragraphs(self) -> impl Iterator<Item = &'static str> {
        self.text.split("\n\n").map(str::trim).filter(|text| !text.is_empty())
    }
}

/// Returns all entries, in the order of the documentation page.
pub(super) fn entries() -> impl Iterator<Item = GlossaryEntry> {
    let from_glossary = DOCUMENTATION.split_once(GLOSSARY_HEADING).map_or("", |(_, after)| after);
    let glossary =
        from_glossary.split_once("\n## ").map_or(from_glossary, |(glossary, _)| glossary);
    let entries = glossary.split("\n### ").skip(1);
    entries.map(|entry| {
        let (name, text) = entry.split_once('\n').unwrap_or((entry, ""));
        GlossaryEntry { name: name.trim(), text }
    })
}

/// Returns the entry with this heading.
pub(super) fn find_entry(name: &str) -> Option<GlossaryEntry> {
    entries().find(|entry| entry.name == name)
}
