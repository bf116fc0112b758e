//! Goal: terminal, Markdown and page say the same of a study, and what comes from outside stays
//! text. Method: the published run, and made-up variants with repeats and wicked names.

use expect_test::expect_file;
use serde_json::{Value, json as value};

use super::*;
use crate::report::markdown::escape;
use crate::report::page::tests::read;
use crate::report::{Colour, Report, write_study};
use crate::study::tests::{faults_of, published, repeated, study};

#[test]
fn the_three_forms_say_the_same() {
    let result = study(&published(), &[]);
    let (text, markdown, page) = (
        Report::study(&result).text(Colour::Plain),
        Report::study(&result).markdown(),
        Report::study(&result).html(),
    );
    assert!(text.starts_with("CANNOT TELL  page cache\n"), "{text}");
    for one in &result.conclusions {
        let words: Vec<&str> = one.text.split_whitespace().collect();
        let output: Vec<&str> = text.split_whitespace().collect();
        assert!(output.windows(words.len()).any(|part| part == words), "{}", one.text);
        assert!(markdown.contains(&escape(&one.text)), "{}", one.text);
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
    let page = Report::study(&result).html();
    assert!(!page.contains("<b>x</b>"));
    read(&page);
    assert!(Report::study(&result).markdown().contains("a\\|b\\`c"));
    assert!(Report::study(&result).text(Colour::Plain).contains("(4 runs)"));
    assert!(page.contains("FASTER"), "the verdict stands at its top");
}

#[test]
fn the_folder_holds_everything() {
    let folder = tempfile::tempdir().unwrap();
    let variants = published();
    let result = study(&variants, &[]);
    let written = write_study(folder.path(), &result, &variants).unwrap();
    let names: Vec<String> = written
        .iter()
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["study.json", "samples.csv", "report.md", "report.html"]);
    let json = std::fs::read(&written[0]).unwrap();
    let output: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(faults_of(&output), Vec::<String>::new());
    let back: StudyResult = serde_json::from_value(output).unwrap();
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
    let mut variants = repeated("a", "b");
    for variant in &mut variants {
        variant.runs.truncate(1);
        variant.runs[0].samples.truncate(1);
    }
    let result = study(&variants, &[]);
    read(&Report::study(&result).html());
    assert!(Report::study(&result).text(Colour::Plain).contains("cannot tell"));
}

fn without(value: &mut Value, field: &str) {
    value.as_object_mut().unwrap().remove(field).unwrap();
}

#[test]
fn the_published_schema_is_that_of_the_types_and_refuses_anything_else() {
    // What is published is what is meant: refresh it with `cargo xtask generate`.
    expect_file!["../../../../../docs/study.schema.json"]
        .assert_eq(&lab_model::results::schema::closed::<StudyResult>());

    let right = serde_json::to_value(study(&published(), &[500_000])).unwrap();
    let refused = |place: &str, plant: fn(&mut Value)| {
        let mut wrong = right.clone();
        plant(&mut wrong);
        assert_ne!(wrong, right, "nothing is planted at {place}");
        let faults = faults_of(&wrong);
        assert!(faults.iter().any(|fault| fault.starts_with(place)), "{place}: {faults:#?}");
    };
    // A field that is missing; also one that may be null.
    refused(": ", |all| without(all, "variants"));
    refused(": ", |all| without(all, "question"));
    refused("/variants/0/runs/0: ", |all| without(&mut all["variants"][0]["runs"][0], "tip"));
    refused("/against/0/times/0/comparison", |all| {
        without(&mut all["against"][0]["times"][0]["comparison"], "verdict");
    });
    // A wrong type.
    refused("/bin: ", |all| all["bin"] = value!("100000"));
    refused("/bin: ", |all| all["bin"] = value!(-1));
    refused("/variants/1/runs/0/height: ", |all| {
        all["variants"][1]["runs"][0]["height"] = value!(1.5)
    });
    refused("/variants/0/rates/0", |all| all["variants"][0]["rates"][0] = value!("fast"));
    refused("/variants/0/runs/0/points/0", |all| {
        all["variants"][0]["runs"][0]["points"][0] = value!([1])
    });
    refused("/heights: ", |all| all["heights"] = Value::Null);
    // An unknown word.
    refused("/schema: ", |all| all["schema"] = value!("weir.study/2"));
    refused("/source", |all| all["source"] = value!("rumour"));
    refused("/conclusions/0/word", |all| all["conclusions"][0]["word"] = value!("maybe"));
    // An unknown field.
    refused(": ", |all| all["more"] = value!(1));
    refused("/variants/0: ", |all| all["variants"][0]["more"] = Value::Null);
    refused("/variants/0/runs/0/bins/3: ", |all| {
        all["variants"][0]["runs"][0]["bins"][3]["more"] = value!(1)
    });
}
