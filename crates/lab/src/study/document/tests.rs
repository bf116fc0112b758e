//! Goal: terminal, Markdown and page have the same conclusions, and text from the input is escaped.
//! Method: the published run, and invented variants with repeats and hostile names.

use expect_test::expect_file;
use serde_json::{Value, json as value};

use super::*;
use crate::report::Colour;
use crate::report::markdown::escape;
use crate::report::page::tests::read;
use crate::study::tests::{faults_of, published, repeated, study};
use crate::study::{report, write};

#[test]
fn the_three_formats_have_the_same_conclusions() {
    let result = study(&published(), &[]);
    let (text, markdown, page) =
        (report(&result).text(Colour::Plain), report(&result).markdown(), report(&result).html());
    assert!(text.starts_with("CANNOT TELL  page cache\n"), "{text}");
    for conclusion in &result.conclusions {
        let sentence = &conclusion.text;
        let words: Vec<&str> = sentence.split_whitespace().collect();
        let output: Vec<&str> = text.split_whitespace().collect();
        assert!(output.windows(words.len()).any(|part| part == words), "{sentence}");
        assert!(markdown.contains(&escape(sentence)), "{sentence}");
        assert!(page.contains(sentence), "{sentence}");
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
fn repeats_are_reported_and_names_are_escaped() {
    let result = study(&repeated("<b>x</b>", "a|b`c"), &[]);
    let page = report(&result).html();
    assert!(!page.contains("<b>x</b>"));
    read(&page);
    assert!(report(&result).markdown().contains("a\\|b\\`c"));
    assert!(report(&result).text(Colour::Plain).contains("(4 runs)"));
    assert!(page.contains("FASTER"), "the verdict stands at its top");
}

#[test]
fn the_folder_has_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let variants = published();
    let result = study(&variants, &[]);
    let paths = write(folder.path(), &result, &variants).unwrap();
    let names: Vec<String> =
        paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["study.json", "samples.csv", "report.md", "report.html"]);
    let json = std::fs::read(&paths[0]).unwrap();
    let output: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(faults_of(&output), Vec::<String>::new());
    let read_result: StudyResult = serde_json::from_value(output).unwrap();
    assert_eq!(read_result, result);
    let table = std::fs::read_to_string(&paths[1]).unwrap();
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
fn a_tiny_study_has_a_report() {
    let mut variants = repeated("a", "b");
    for variant in &mut variants {
        variant.runs.truncate(1);
        variant.runs[0].samples.truncate(1);
    }
    let result = study(&variants, &[]);
    read(&report(&result).html());
    assert!(report(&result).text(Colour::Plain).contains("cannot tell"));
}

/// Removes a field of an object.
fn remove_field(value: &mut Value, field: &str) {
    value.as_object_mut().unwrap().remove(field).unwrap();
}

#[test]
fn the_published_schema_is_up_to_date_and_rejects_other_values() {
    // `cargo xtask generate` refreshes the published schema.
    expect_file!["../../../../../docs/study.schema.json"]
        .assert_eq(&lab_model::results::schema::closed::<StudyResult>());

    let valid = serde_json::to_value(study(&published(), &[500_000])).unwrap();
    let assert_rejected = |location: &str, plant: fn(&mut Value)| {
        let mut invalid = valid.clone();
        plant(&mut invalid);
        assert_ne!(invalid, valid, "nothing is planted at {location}");
        let faults = faults_of(&invalid);
        let is_reported = faults.iter().any(|fault| fault.starts_with(location));
        assert!(is_reported, "{location}: {faults:#?}");
    };
    // A missing field. The second one may be null, but must not be missing.
    assert_rejected(": ", |result| remove_field(result, "variants"));
    assert_rejected(": ", |result| remove_field(result, "question"));
    assert_rejected("/variants/0/runs/0: ", |result| {
        remove_field(&mut result["variants"][0]["runs"][0], "tip")
    });
    assert_rejected("/against/0/times/0/comparison", |result| {
        remove_field(&mut result["against"][0]["times"][0]["comparison"], "verdict");
    });
    // A wrong type.
    assert_rejected("/bin: ", |result| result["bin"] = value!("100000"));
    assert_rejected("/bin: ", |result| result["bin"] = value!(-1));
    assert_rejected("/variants/1/runs/0/height: ", |result| {
        result["variants"][1]["runs"][0]["height"] = value!(1.5)
    });
    assert_rejected("/variants/0/rates/0", |result| {
        result["variants"][0]["rates"][0] = value!("fast")
    });
    assert_rejected("/variants/0/runs/0/points/0", |result| {
        result["variants"][0]["runs"][0]["points"][0] = value!([1])
    });
    assert_rejected("/heights: ", |result| result["heights"] = Value::Null);
    // An unknown word.
    assert_rejected("/schema: ", |result| result["schema"] = value!("weir.study/2"));
    assert_rejected("/source", |result| result["source"] = value!("rumour"));
    assert_rejected("/conclusions/0/word", |result| {
        result["conclusions"][0]["word"] = value!("maybe")
    });
    // An unknown field.
    assert_rejected(": ", |result| result["more"] = value!(1));
    assert_rejected("/variants/0: ", |result| result["variants"][0]["more"] = Value::Null);
    assert_rejected("/variants/0/runs/0/bins/3: ", |result| {
        result["variants"][0]["runs"][0]["bins"][3]["more"] = value!(1)
    });
}
