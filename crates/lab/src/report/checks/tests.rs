//! Goal: the XML has the elements and attributes of the JUnit schemas, and every text is escaped.
//! Method: cases with hostile names, read by an XML reader.

use expect_test::expect;
use quick_xml::events::Event;

use super::*;
use crate::report::equal::tests::different;
use crate::report::example::{failing, hostile, passing};

fn checks(cases: Vec<Case>) -> Checks {
    Checks {
        name: "weir load <a> & \"b\"".to_owned(),
        class: "weir.load",
        started: Some("2026-11-25T19:00:00.250Z".to_owned()),
        seconds: 1.5,
        cases,
    }
}

/// Allowed attributes of each element, by `junit-10.xsd` of Jenkins' xunit plugin (031e285e).
const ALLOWED: &[(&str, &[&str])] = &[
    ("testsuites", &["name", "time", "tests", "failures", "errors"]),
    (
        "testsuite",
        &["name", "tests", "failures", "errors", "time", "skipped", "timestamp", "hostname"],
    ),
    ("testcase", &["name", "classname", "time"]),
    ("failure", &["message", "type"]),
    ("error", &["message", "type"]),
    ("skipped", &["message", "type"]),
    ("system-out", &[]),
];

/// An element: its name, and its attributes with their values.
type Element = (String, Vec<(String, String)>);

/// Reads JUnit XML strictly. Returns the elements with their attributes, and all texts.
fn read(xml: &str) -> (Vec<Element>, String) {
    let mut reader = quick_xml::Reader::from_str(xml);
    let (mut elements, mut text) = (Vec::new(), String::new());
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) | Event::Empty(tag) => {
                let name = tag.name().as_ref().to_owned();
                let (_, allowed) = ALLOWED.iter().find(|(element, _)| *element == name).unwrap();
                let attributes = tag.attributes().map(|attribute| {
                    let attribute = attribute.unwrap();
                    let key = attribute.key.as_ref().to_owned();
                    assert!(allowed.contains(&key.as_str()), "{name} {key}");
                    (key, attribute.value.to_string())
                });
                let attributes = attributes.collect();
                elements.push((name, attributes));
            }
            Event::Text(part) => text.push_str(&part),
            Event::GeneralRef(part) => text.push_str(&format!("&{};", &*part)),
            Event::Eof => return (elements, text),
            _ => {}
        }
    }
}

#[test]
fn each_outcome_has_its_element() {
    let xml = checks(vec![
        Case::passed("a", ""),
        Case::new("b<&>\"'", CaseOutcome::Failed("threshold", "1 < 2\nmore".to_owned())),
        Case::new("c", CaseOutcome::Error("invalid", "]]> \u{1b}[0m\0".to_owned())),
        Case::new("d", CaseOutcome::Skipped("cannot tell".to_owned())),
        Case::passed("e", "fast & good"),
    ])
    .junit();
    expect![[r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="weir load &lt;a&gt; &amp; &quot;b&quot;" tests="5" failures="1" errors="1" time="1.500">
          <testsuite name="weir load &lt;a&gt; &amp; &quot;b&quot;" tests="5" failures="1" errors="1" time="1.500" skipped="1" timestamp="2026-11-25T19:00:00">
            <testcase name="a" classname="weir.load" time="0">
            </testcase>
            <testcase name="b&lt;&amp;&gt;&quot;&apos;" classname="weir.load" time="0">
              <failure message="1 &lt; 2" type="threshold">1 &lt; 2
        more</failure>
            </testcase>
            <testcase name="c" classname="weir.load" time="0">
              <error message="]]&gt; �[0m�" type="invalid">]]&gt; �[0m�</error>
            </testcase>
            <testcase name="d" classname="weir.load" time="0">
              <skipped message="cannot tell"/>
            </testcase>
            <testcase name="e" classname="weir.load" time="0">
              <system-out>fast &amp; good</system-out>
            </testcase>
          </testsuite>
        </testsuites>
    "#]].assert_eq(&xml);
    read(&xml);
}

#[test]
fn the_cases_of_a_run_are_its_verdict_and_its_thresholds() {
    for example in [passing(), failing(), hostile()] {
        let checks = Checks::run(&example.result);
        let (elements, _) = read(&checks.junit());
        let count = |name: &str| elements.iter().filter(|(found, _)| found == name).count();
        assert_eq!(count("testcase"), 1 + example.result.thresholds.len());
        let broken = example.result.thresholds.iter().filter(|row| !row.kept).count();
        let fails = example.result.verdict.outcome == Outcome::Fail;
        assert_eq!(count("failure"), if fails { broken + 1 } else { 0 });
    }
}

#[test]
fn broken_thresholds_of_an_invalid_run_are_skipped() {
    let mut example = failing();
    example.result.verdict.outcome = Outcome::Invalid;
    let (elements, _) = read(&Checks::run(&example.result).junit());
    let count = |name: &str| elements.iter().filter(|(found, _)| found == name).count();
    assert_eq!((count("failure"), count("error")), (0, 1));
    assert!(count("skipped") > 0);
}

#[test]
fn a_search_and_a_comparison_have_their_verdicts() {
    let search = crate::report::capacity_example::found();
    let (elements, _) = read(&Checks::capacity(&search).junit());
    assert!(elements.iter().any(|(name, _)| name == "testcase"));
    let comparison = crate::report::compare::tests::compared();
    let checks = Checks::comparison(&comparison);
    read(&checks.junit());
    let is_worse = |case: &&Case| matches!(case.outcome, CaseOutcome::Failed("worse", _));
    let differences = comparison.differences.iter();
    let worse_rows = differences.filter(|row| row.verdict == ComparisonVerdict::Worse).count();
    assert_eq!(checks.cases.iter().filter(is_worse).count(), worse_rows);
}

#[test]
fn the_case_of_a_plan_has_the_differences_of_a_study() {
    let mut result = crate::study::load::tests::planted_difference();
    let checks = crate::study::load::checks(&result);
    let (elements, text) = read(&checks.junit());
    let cases = elements.iter().filter(|(name, _)| name == "testcase").count();
    assert_eq!(cases, result.plans.len());
    assert!(text.contains("slow: worse: "), "{text}");
    let has_error = |checks: &Checks, reason: &str| {
        let (elements, _) = read(&checks.junit());
        let is_reason = |(key, value): &(String, String)| key == "type" && value == reason;
        elements.iter().any(|(name, values)| name == "error" && values.iter().any(is_reason))
    };
    result.end = lab_model::results::load_study::EndReason::Interrupted;
    assert!(has_error(&crate::study::load::checks(&result), "partial"));
    result.end = lab_model::results::load_study::EndReason::Faults;
    result.plans[0].comparison.differences.clear();
    assert!(has_error(&crate::study::load::checks(&result), "no-result"));
}

#[test]
fn a_comparison_of_responses_has_a_case_for_each_method_and_difference() {
    let checks = Checks::equal(&different());
    let names: Vec<&str> = checks.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "eth_getLogs",
            "eth_call: different value /result/*/x",
            "eth_call: error message /error/message"
        ]
    );
    let (_, text) = read(&checks.junit());
    assert!(text.contains("known") || text.contains("error texts"), "{text}");
}
