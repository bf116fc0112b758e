//! Goal: terminal, Markdown and page say the same of a study, and what comes from outside stays text.
//! Method: the published run, and made-up arms with repeats and wicked names.

use super::*;
use crate::report::html::tests::read;
use crate::study::tests::{published, repeated, study};

#[test]
fn the_three_forms_say_the_same() {
    let result = study(&published(), &[]);
    let (text, markdown, page) =
        (text(&result, Colour::Plain), markdown(&result), html::study::page(&result));
    assert!(text.starts_with("CANNOT TELL  page cache\n"), "{text}");
    for one in &result.conclusions {
        let words: Vec<&str> = one.text.split_whitespace().collect();
        let told: Vec<&str> = text.split_whitespace().collect();
        assert!(told.windows(words.len()).any(|part| part == words), "{}", one.text);
        assert!(markdown.contains(&escaped(&one.text)), "{}", one.text);
        assert!(page.contains(&one.text), "{}", one.text);
    }
    assert!(text.lines().all(|line| line.chars().count() <= 200));
    let read = read(&page);
    assert!(read.elements.contains("svg"));
    for link in &read.links {
        let id = link.strip_prefix('#').unwrap_or_else(|| panic!("{link} leads out of the page"));
        assert!(read.ids.contains(id), "{link} leads nowhere");
    }
    assert_eq!(page.matches("<svg").count(), 5);
}

#[test]
fn repeats_are_thin_lines_and_names_are_only_text() {
    let result = study(&repeated("<b>x</b>", "a|b`c"), &[]);
    let page = html::study::page(&result);
    assert!(!page.contains("<b>x</b>"));
    read(&page);
    assert!(markdown(&result).contains("a\\|b\\`c"));
    assert!(text(&result, Colour::Plain).contains("(4 runs)"));
    assert!(page.contains("FASTER"), "the verdict stands at its top");
}

#[test]
fn the_folder_holds_everything() {
    let folder = tempfile::tempdir().unwrap();
    let arms = published();
    let result = study(&arms, &[]);
    let written = write(folder.path(), &result, &arms).unwrap();
    let names: Vec<String> = written
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["study.json", "samples.csv", "report.md", "report.html"]);
    let json = std::fs::read(&written[0]).unwrap();
    let back: StudyResult = serde_json::from_slice(&json).unwrap();
    assert_eq!(back, result);
    let table = std::fs::read_to_string(&written[1]).unwrap();
    assert_eq!(table.lines().count(), 1 + 1286 + 1104);
    assert!(
        table
            .lines()
            .nth(3)
            .unwrap()
            .starts_with("5MB,cache_5mb.csv,120.000,2021-12-13T23:22:52.000Z,3837,")
    );
}

#[test]
fn an_empty_or_tiny_study_draws_nothing_wrong() {
    let mut arms = repeated("a", "b");
    for arm in &mut arms {
        arm.runs.truncate(1);
        arm.runs[0].samples.truncate(1);
    }
    let result = study(&arms, &[]);
    read(&html::study::page(&result));
    assert!(text(&result, Colour::Plain).contains("cannot tell"));
}
