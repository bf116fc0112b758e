//! What the numbers of a report mean: read from `docs/measuring.md`, so that page and documentation
//! say the same words.

/// The page of the documentation, which is also the data.
const PAGE: &str = include_str!("../../../../docs/measuring.md");
/// The part of it that is about reports; its entries have headings of the third rank.
const PART: &str = "\n## The numbers in a report\n";

/// An entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// Its heading.
    pub(super) name: &'static str,
    text: &'static str,
}

impl Word {
    /// Its heading as an anchor: lower case, hyphens.
    pub(super) fn id(self) -> String {
        let lower = self.name.to_lowercase();
        let kept = lower.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    }

    /// Its first sentences as plain text.
    pub(super) fn plain(self) -> String {
        self.paragraphs().next().unwrap_or_default().replace('`', "")
    }

    /// Its paragraphs, in which only code spans are marked up.
    pub(super) fn paragraphs(self) -> impl Iterator<Item = &'static str> {
        self.text.split("\n\n").map(str::trim).filter(|text| !text.is_empty())
    }
}

/// All entries, in the order of the page.
pub(super) fn all() -> impl Iterator<Item = Word> {
    let part = PAGE.split_once(PART).map_or("", |(_, rest)| rest);
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let entries = part.split("\n### ").skip(1);
    entries.map(|entry| {
        let (name, text) = entry.split_once('\n').unwrap_or((entry, ""));
        Word { name: name.trim(), text }
    })
}

/// The entry with this heading.
pub(super) fn find(name: &str) -> Option<Word> {
    all().find(|word| word.name == name)
}
