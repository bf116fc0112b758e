//! Goal: the report of several results has every section, each of its links leads to an anchor, and
//! names from the input are escaped. Method: invented results, read by the reader of
//! `page/tests.rs`.

use std::collections::BTreeSet;

use expect_test::expect_file;
use lab_model::results::{Cause, Confidence};

use crate::analysis::assessment::Basis;
use crate::assessment::tests::{
    assessed, run_on, runs_on, search_on, with_bottleneck, with_failing_method,
};
use crate::assessment::{Assessed, Input, Results, SystemResult, assess_results};
use crate::report::example::hostile;
use crate::report::page::tests::read;
use crate::report::{Colour, Report};

/// Two machines: one with a failing method, a bottleneck and a capacity, and a faster one.
fn two_machines() -> Assessed {
    let failing = with_bottleneck(with_failing_method("bench-1"), Cause::Cpu, Confidence::Medium);
    let runs = [vec![failing], runs_on("bench-1", 1.0), runs_on("bench-2", 0.5)].concat();
    assessed(runs, vec![search_on("bench-1", 1.0), search_on("bench-2", 1.5)])
}

/// Anchors and links of Markdown.
fn anchors_and_links(markdown: &str) -> (BTreeSet<String>, Vec<String>) {
    let anchors = markdown.split("<a id=\"").skip(1).filter_map(|part| part.split('"').next());
    let links = markdown.split("](#").skip(1).filter_map(|part| part.split(')').next());
    (anchors.map(str::to_owned).collect(), links.map(str::to_owned).collect())
}

#[test]
fn every_link_of_the_page_and_of_markdown_leads_to_an_anchor() {
    for assessed in [
        two_machines(),
        assessed(vec![run_on("bench-1", 1.0)], Vec::new()),
        assessed(Vec::new(), vec![search_on("bench-1", 1.0)]),
    ] {
        let report = Report::assessment(&assessed);
        let page = read(&report.html());
        for link in &page.links {
            let id = link.strip_prefix('#').unwrap_or_else(|| panic!("{link} leads elsewhere"));
            assert!(page.ids.contains(id), "{link} leads nowhere");
        }
        let (anchors, links) = anchors_and_links(&report.markdown());
        assert!(links.len() > 2, "{links:?}");
        for link in &links {
            assert!(anchors.contains(link), "#{link} leads nowhere: {anchors:?}");
        }
        for index in 0..assessed.assessment.findings.len() {
            let id = format!("finding-{}", index + 1);
            assert!(page.ids.contains(&id) && anchors.contains(&id), "{id}");
        }
    }
}

#[test]
fn every_recommendation_links_to_its_finding() {
    let assessed = two_machines();
    let recommendations = &assessed.assessment.recommendations;
    assert!(recommendations.len() > 4, "{recommendations:?}");
    let page = Report::assessment(&assessed).html();
    let (_, section) = page.split_once("<h2 id=\"recommendations\">").unwrap();
    let (section, _) = section.split_once("<h2").unwrap();
    assert_eq!(section.matches("<li>").count(), recommendations.len());
    for recommendation in recommendations {
        let Basis::Finding(finding) = recommendation.basis else { panic!("{recommendation:?}") };
        let link = format!("href=\"#finding-{}\"", finding + 1);
        assert!(section.contains(&link), "{link}: {section}");
    }
}

#[test]
fn the_sections_are_in_order() {
    let report = Report::assessment(&two_machines());
    let (page, markdown) = (report.html(), report.markdown());
    let headings = [
        "Scope",
        "Set-up and fingerprints",
        "Method",
        "Results per method",
        "Bottleneck",
        "Comparison",
        "Findings",
        "What may be concluded",
        "What may not be concluded",
        "Recommendations",
        "Risks",
        "Next steps",
    ];
    let positions = |text: &str, format: &dyn Fn(&str) -> String| -> Vec<usize> {
        let position = |heading: &&str| {
            text.find(&format(heading)).unwrap_or_else(|| panic!("{heading} is missing"))
        };
        headings.iter().map(position).collect()
    };
    assert!(positions(&page, &|heading| format!(">{heading}</h2>")).is_sorted());
    assert!(positions(&markdown, &|heading| format!("\n### {heading}\n")).is_sorted());
    assert!(page.matches("<svg").count() > 5, "charts of capacities, probes and latencies");
    expect_file!["goldens/two-machines.markdown"].assert_eq(&markdown);
    expect_file!["goldens/two-machines.txt"].assert_eq(&report.text(Colour::Plain));
}

#[test]
fn a_difference_without_enough_evidence_is_not_called_better() {
    let near = assessed([runs_on("bench-1", 1.0), runs_on("bench-2", 1.01)].concat(), Vec::new());
    let page = Report::assessment(&near).html();
    assert!(!page.contains(">better<") && !page.contains(">worse<"));
    assert!(page.contains("None: no finding supports one."));
    let far = assessed([runs_on("bench-1", 1.0), runs_on("bench-2", 0.5)].concat(), Vec::new());
    let page = Report::assessment(&far).html();
    assert!(page.contains(">better<") && page.contains("Choose bench-2"));
}

#[test]
fn names_from_the_input_are_escaped() {
    let evil = hostile().result;
    let input = |label: &str| Input {
        system: Some("<script>x</script>|`".to_owned()),
        label: label.to_owned(),
        result: SystemResult::Run(evil.clone()),
    };
    let inputs = vec![input("<b>a</b>"), input("a|b`c")];
    let assessed = assess_results(Results { inputs, ..Results::default() }, &mut || 7);
    let report = Report::assessment(&assessed);
    let page = report.html();
    let read = read(&page);
    assert!(!read.elements.contains("script") && !page.contains("<b>a</b>"));
    let markdown = report.markdown();
    assert!(markdown.contains("a\\|b'c"), "{markdown}");
    assert!(markdown.starts_with("## Report: &lt;script\\>"), "{markdown}");
    let lines = report.text(Colour::Plain);
    assert!(lines.lines().all(|line| line.chars().count() <= 200));
}
