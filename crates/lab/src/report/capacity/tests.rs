//! Goal: every report format begins with the answer of a search and has its evidence. Method: an
//! invented search, also without some of its values.

use expect_test::expect;

use super::example::found;
use super::*;
use crate::report::page::tests::read;
use crate::report::{Colour, Report, write_capacity};

#[test]
fn the_terminal_text_begins_with_the_verdict() {
    expect![[r#"
        CAPACITY 1,200 to 1,250/s  somnia
          Held 1,200 iterations per second and broke at 1,250.
          ended because the boundary is known with the requested precision

        binding     latency{method:eth_getLogs} p(95)<800 for eth_getLogs at 1,250/s: 5,004 where 800 is allowed
        boundary    cliff: it comes without warning
        bottleneck  The target's disk was saturated before eth_getLogs broke its threshold.
        CPU/request geth 2.41 ms
        target      https://node.example.net/v1/ab…
        search      15 probes in 9 min 20 s

         #    at  rate/s  probe     outcome         ended/s  results/s  failed  429  p50 ms  p95 ms  p99 ms  margin   started  late p99 ms
         1  0:00     100  baseline  pass                100        100     0 %  0 %    1.10    3.30    18.0   100 %  99.980 %        0.031
         2  0:35     200  climb     pass                200        200     0 %  0 %    1.15    3.45    18.0   100 %  99.980 %        0.031
         3  1:10     400  climb     pass                400        400     0 %  0 %    1.20    3.61    18.1   100 %  99.980 %        0.031
         4  1:45     800  climb     pass                800        800     0 %  0 %    1.26    3.78    27.5    95 %  99.980 %        0.031
         6  2:55   1,200  bisect    pass              1,200      1,200     0 %  0 %    3.01    9.03     127    46 %  99.980 %        0.031
        10  5:15   1,200  repeat    pass              1,200      1,200     0 %  0 %    2.91    8.73     127    46 %  99.980 %        0.031
        12  6:25   1,200  repeat    pass              1,200      1,200     0 %  0 %    3.01    9.03     127    46 %  99.980 %        0.031
        14  7:35   1,200  soak      pass              1,200      1,200     0 %  0 %    2.96    8.88     127    46 %  99.980 %        0.031
         9  4:40   1,250  bisect    FAIL              1,229      1,243  0.56 %  0 %    3.51    10.5   5,004  -525 %  99.980 %        0.031
        11  5:50   1,250  repeat    FAIL              1,229      1,243  0.56 %  0 %    3.46    10.4   5,004  -525 %  99.980 %        0.031
        13  7:00   1,250  repeat    FAIL              1,229      1,243  0.56 %  0 %    3.41    10.2   5,004  -525 %  99.980 %        0.031
         8  4:05   1,300  bisect    FAIL              1,244      1,289  0.86 %  0 %    4.08    12.2   5,004  -525 %  99.980 %        0.031
         7  3:30   1,400  bisect    FAIL              1,274      1,376  1.68 %  0 %    5.67    17.0   5,004  -525 %  99.980 %        0.031
         5  2:20   1,600  climb     FAIL              1,334      1,528  4.49 %  0 %    11.3    34.0   5,004  -525 %  99.980 %        0.031
        15  8:10   3,200  climb     client-limited    1,814      2,803  12.4 %  0 %    81.2     244   5,004  -525 %    84.0 %        0.031
    "#]].assert_eq(&Report::capacity(&found()).text(Colour::Plain));
}

/// The thresholds allow rejected calls. The heading is what was delivered, not what was sent.
#[test]
fn a_pass_with_few_results_is_headed_by_its_results() {
    let mut result = found();
    result.probes.iter_mut().filter(|probe| probe.rate == 1_200.0).for_each(|probe| {
        (probe.goodput, probe.limited_share) = (300.0, 0.75);
    });
    let text = Report::capacity(&result).text(Colour::Plain);
    assert!(text.starts_with("CAPACITY 300 results/s (sent: 1,200 to 1,250/s)  somnia"), "{text}");
}

#[test]
fn a_long_conclusion_is_printed_in_full() {
    let mut result = found();
    result.answer.sentence = "it was so and then it was so ".repeat(20) + "and what helps is this";
    let text = Report::capacity(&result).text(Colour::Plain);
    assert!(
        text.contains("\n  it was") && text.contains("helps is this\n  ended because"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 200), "{text}");
}

#[test]
fn the_markdown_has_the_answer_and_the_probes() {
    let markdown = Report::capacity(&found()).markdown();
    assert!(markdown.starts_with("## Capacity 1,200 to 1,250/s: somnia\n"), "{markdown}");
    assert_eq!(markdown.matches("| bisect |").count(), 4);
}

#[test]
fn unknown_values_are_not_printed() {
    let mut result = found();
    result.answer.at_least = true;
    assert_eq!(answer(&result), "at least 1,200/s");
    result.answer.highest_pass = None;
    assert_eq!(answer(&result), "below 1,250/s");
    result.answer.lowest_fail = None;
    assert_eq!(answer(&result), "unknown");
}

#[test]
fn doubts_are_reported_in_every_format() {
    let mut result = found();
    result.answer.monotone = false;
    result.answer.soak_held = Some(false);
    result.answer.degraded = Some("p50 at the baseline rose from 1 to 9 ms".into());
    let reports = [
        Report::capacity(&result).text(Colour::Plain),
        Report::capacity(&result).markdown(),
        Report::capacity(&result).html(),
    ];
    for report in reports {
        for doubt in ["passed above one that failed", "did not hold", "from 1 to 9 ms"] {
            assert!(report.contains(doubt), "{doubt}: {report}");
        }
    }
}

#[test]
fn the_page_is_well_formed_and_has_every_probe() {
    let mut result = found();
    result.plan.name = "<script>alert(1)</script>".into();
    result.probes[0].folder = Some("javascript:alert(1)".into());
    result.probes[1].reasons = vec!["<b>".into()];
    let page = Report::capacity(&result).html();
    let read = read(&page);
    assert!(!read.elements.contains("script"));
    let probes = read.links.iter().filter(|link| link.ends_with("/report.html")).count();
    assert_eq!(probes, result.probes.len() - 2, "one has no folder, one no plain name");
    assert!(read.links.iter().all(|link| link.starts_with(['#', 'p'])), "{:?}", read.links);
    for fact in ["1,200 to 1,250/s", "eth_getLogs", "2.41", "cliff", "98.7 %"] {
        assert!(page.contains(fact), "{fact}");
    }
}

#[test]
fn a_search_without_probes_has_a_page() {
    let mut result = found();
    result.probes.clear();
    (result.binding, result.bottleneck, result.scaling) = (None, None, None);
    result.partial = true;
    read(&Report::capacity(&result).html());
    assert!(Report::capacity(&result).text(Colour::Plain).contains("PARTIAL"));
}

#[test]
fn the_folder_has_three_complete_files() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write_capacity(dir.path(), &found()).unwrap();
    let bytes = std::fs::read(&paths[0]).unwrap();
    let read_result: CapacityResult = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(read_result, found());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}
