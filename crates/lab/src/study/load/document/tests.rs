//! Goal: each format of the report of a load study has the table, the verdicts and the drift, and
//! text from the input is escaped. Method: invented runs, compared with goldens.

use expect_test::expect_file;
use tempfile::TempDir;

use crate::report::Colour;
use crate::study::load::report as report_of;
use crate::study::load::tests::{analysed, runs, study};

#[test]
fn the_formats_of_a_study() {
    let folder = TempDir::new().unwrap();
    let study = study(&folder, "");
    let mut result = analysed(&study, &runs(&study, 8, [1.0, 1.3, 0.5, 1.0], 1));
    result.plans[1].left_out = vec!["round 3: slow: <b>refused</b>".to_owned()];
    let report = report_of(&result);
    expect_file!["goldens/report.txt"].assert_eq(&report.text(Colour::Plain));
    expect_file!["goldens/report.md"].assert_eq(&report.markdown());
    let html = report.html();
    for part in [
        "id=\"methods-0\"",
        "id=\"methods-1\"",
        "id=\"drift\"",
        "A/A control: direct-control",
        "Which &lt;gateway&gt; is faster?",
        "&lt;b&gt;refused&lt;/b&gt;",
    ] {
        assert!(html.contains(part), "{part} is not in the page");
    }
    assert!(!html.contains("<b>refused") && !html.contains("<script"));
}
