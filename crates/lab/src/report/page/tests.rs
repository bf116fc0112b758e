//! Goal: the page is complete and self-contained, and text from the input never becomes markup.
//! Method: pages of invented runs are read by an XML reader that knows HTML's empty elements.

use std::collections::BTreeSet;

use lab_model::record::Totals;
use lab_model::results::Outcome;
use quick_xml::events::Event;

use super::*;
use crate::report::Report;
use crate::report::example::{Example, failing, hostile, long, passing};
use crate::wording::number::count;

fn page_of(example: &Example) -> String {
    Report::run(&example.result, &example.totals, &example.methods).html()
}

/// Elements that HTML does not close.
const EMPTY: [&str; 5] = ["meta", "br", "hr", "img", "link"];

/// The content of an HTML page: the names of elements, the ids, and the targets of links.
#[derive(Default)]
pub(crate) struct PageContent {
    pub(crate) elements: BTreeSet<String>,
    pub(crate) ids: BTreeSet<String>,
    pub(crate) links: Vec<String>,
}

/// Reads a page. Panics if its elements are not closed in order, or if an id occurs twice.
pub(crate) fn read(page: &str) -> PageContent {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap();
    let mut reader = quick_xml::Reader::from_str(body);
    reader.config_mut().check_end_names = false;
    let (mut open, mut read) = (Vec::new(), PageContent::default());
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                let name = tag.name().as_ref().to_owned();
                for attribute in tag.html_attributes() {
                    let attribute = attribute.unwrap();
                    let value = attribute.value.to_string();
                    match attribute.key.as_ref() {
                        "id" => assert!(read.ids.insert(value.clone()), "{value} twice"),
                        "href" | "src" => read.links.push(value),
                        _ => {}
                    }
                }
                if !EMPTY.contains(&name.as_str()) {
                    open.push(name.clone());
                }
                read.elements.insert(name);
            }
            Event::End(tag) => {
                let name = tag.name().as_ref().to_owned();
                assert_eq!(open.pop().as_deref(), Some(name.as_str()), "wrong end");
            }
            Event::Empty(tag) => {
                let name = tag.name().as_ref().to_owned();
                read.elements.insert(name);
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    read
}

#[test]
fn pages_are_well_formed_and_self_contained() {
    for example in [failing(), passing(), long(), hostile()] {
        let page = page_of(&example);
        let read = read(&page);
        assert!(read.ids.len() > 20, "{:?}", read.ids);
        for link in &read.links {
            let id = link.strip_prefix('#');
            assert!(id.is_some_and(|id| read.ids.contains(id)), "{link} leads nowhere");
        }
        for element in ["script", "img", "link", "iframe", "object", "image", "use"] {
            assert!(!read.elements.contains(element), "{element}");
        }
        for word in ["url(", "@import", "xlink", "javascript:"] {
            assert!(!page.contains(word), "{word}");
        }
        // A placeholder colour would be wrong in dark mode.
        assert!(!page.contains("\"#0102"), "a colour was not themed");
    }
}

#[test]
fn the_reader_of_these_tests_finds_faults() {
    for broken in ["<!DOCTYPE html><p><b></p></b>", "<!DOCTYPE html><p>"] {
        assert!(std::panic::catch_unwind(|| read(broken)).is_err(), "{broken}");
    }
}

#[test]
fn the_page_has_all_facts_of_the_result() {
    let mut example = failing();
    example.result.partial = true;
    let page = page_of(&example);
    let result = &example.result;
    for row in &result.methods {
        assert!(page.contains(&row.method), "{}", row.method);
        assert!(page.contains(&count(row.calls)), "{}", row.calls);
        for class in &row.classes {
            assert!(page.contains(&count(class.calls)), "{} {}", row.method, class.calls);
        }
    }
    let facts = [
        "FAIL",
        "Partial result.",
        "-32000",
        "geth",
        "psi_io_some",
        "83.7 %",
        ">2:22<",
        "The target's disk was saturated",
        "--seed 42",
        &result.plan.hash,
        &result.fingerprint.cpu,
    ];
    for fact in facts {
        assert!(page.contains(fact), "{fact}");
    }
    for stage in &result.stages {
        assert!(page.contains(&format!("{}/{}", stage.scenario, stage.stage)));
    }
    for reason in result.verdict.reasons.iter().chain(&result.warnings) {
        assert!(page.contains(&reason.replace('<', "&lt;")), "{reason}");
    }
}

#[test]
fn foreign_text_is_escaped() {
    let example = hostile();
    let page = page_of(&example);
    let read = read(&page);
    assert!(!read.elements.contains("script"), "a name became an element");
    assert!(!page.contains("<script"));
    assert!(page.contains("&lt;script&gt;alert("), "it is shown as text");
    assert!(page.contains("&lt;/pre&gt;"), "the plan cannot end its frame");
}

#[test]
fn every_term_is_explained() {
    let page = page_of(&failing());
    let terms = page.matches("class=\"term\"").count();
    assert!(terms > 15, "{terms}");
    for entry in words::entries() {
        assert!(entry.summary().len() > 40, "{} is explained", entry.name);
        assert!(page.contains(&format!("id=\"word-{}\"", entry.id())), "{}", entry.name);
    }
    // A term without a glossary entry would be written without a link, so each needs an entry.
    let sources = [
        include_str!("../assessment.rs"),
        include_str!("../assessment/results.rs"),
        include_str!("../assessment/setup.rs"),
        include_str!("../capacity.rs"),
        include_str!("../compare.rs"),
        include_str!("../parts.rs"),
        include_str!("../run.rs"),
        include_str!("../run/calls.rs"),
        include_str!("../run/health.rs"),
        include_str!("../run/hosts.rs"),
        include_str!("../run/over_time.rs"),
        include_str!("../../study/document.rs"),
    ];
    let mut used = 0;
    for source in sources {
        let called = source.split("term(\"").skip(1).map(|part| part.split('"').next());
        let marked = source.split("](").skip(1).map(|part| part.split(')').next());
        for name in called.chain(marked).flatten() {
            assert!(words::find_entry(name).is_some(), "{name} is not in docs/measuring.md");
            used += 1;
        }
    }
    assert!(used > 15, "{used}");
}

#[test]
fn a_run_of_hours_makes_a_page_of_the_same_size() {
    let (short, long) = (page_of(&failing()).len(), page_of(&long()).len());
    assert!(long < short * 2, "{short} and {long} bytes");
}

#[test]
fn a_run_that_ended_before_its_first_second_has_a_page() {
    let mut example = passing();
    let result = &mut example.result;
    result.series.clear();
    result.host.clear();
    result.methods.clear();
    result.stages.clear();
    result.thresholds.clear();
    result.duration = 0.0;
    result.partial = true;
    result.verdict.outcome = Outcome::Measured;
    let totals = Totals::new(0);
    let page = Report::run(result, &totals, &[]).html();
    read(&page);
    assert!(page.contains("the plan has no thresholds"));
}

#[test]
fn strange_numbers_draw_without_a_panic() {
    let mut example = passing();
    let result = &mut example.result;
    for (index, second) in result.series.iter_mut().enumerate() {
        let strange = [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300][index % 5];
        second.scheduling_delay_p99_ms = strange;
        second.generator_busy = strange;
        for method in &mut second.methods {
            (method.p50_ms, method.p99_ms) = (strange, -strange);
        }
    }
    for sample in &mut result.host {
        sample.values.iter_mut().for_each(|(_, value)| *value *= f64::NAN);
    }
    result.stages[1].to = f64::NAN;
    result.thresholds[0].broken_at = Some(f64::INFINITY);
    read(&page_of(&example));
}

#[test]
fn the_methods_follow_the_verdict_and_small_charts_are_folded() {
    let mut example = passing();
    example.result.verdict.outcome = Outcome::Measured;
    let page = page_of(&example);
    assert!(page.contains("class=\"verdict measured\""), "no thresholds, no colour");
    let offset = |id: &str| page.find(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("{id}"));
    assert!(offset("methods") < offset("thresholds") && offset("thresholds") < offset("load"));
    assert_eq!(page.matches("id=\"methods\"").count(), 1);
    assert_eq!(page.matches("href=\"#methods\"").count(), 1, "once in the navigation");

    let mut visible = String::new();
    for (index, part) in page.split("<details").enumerate() {
        let part = if index == 0 { part } else { part.split_once("</details>").unwrap().1 };
        visible.push_str(part);
    }
    let (charts, visible_charts) = (page.matches("<svg").count(), visible.matches("<svg").count());
    assert!(visible_charts <= 6 && visible_charts < charts, "{visible_charts} of {charts}");
}
