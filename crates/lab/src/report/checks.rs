//! Verdicts of results as test cases, and their JUnit XML for CI servers.
//!
//! The format is the subset that Jenkins' `junit-10.xsd` and Maven Surefire's
//! `surefire-test-report.xsd` share. A case fails if the target missed a requirement. A case is an
//! error if the whole result is invalid or incomplete. A case is skipped if the result cannot
//! decide it.

use lab_model::results::capacity::{CapacityResult, EndReason};
use lab_model::results::compare::{CompareResult, Weight};
use lab_model::results::equal::{EqualResult, EqualVerdict};
use lab_model::results::run::RunResult;
use lab_model::results::{ComparisonVerdict, Outcome, ThresholdOutcome};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};

use crate::wording::checks as wording;
use crate::wording::equal::conclusion;

#[cfg(test)]
mod tests;

/// The test cases of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Checks {
    /// Name of the suite: the command and its subject.
    pub(crate) name: String,
    /// Class name of all cases, such as `weir.load`. CI servers group cases by it.
    pub(crate) class: &'static str,
    /// Start, as RFC 3339 in UTC. `None` if it is unknown.
    pub(crate) started: Option<String>,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    pub(crate) cases: Vec<Case>,
}

/// A test case: one requirement of a result, such as a threshold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) outcome: CaseOutcome,
    /// Text that is printed with the case.
    pub(crate) output: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CaseOutcome {
    Passed,
    /// The type of the failure (a fixed word), and the reason.
    Failed(&'static str, String),
    /// The type of the error (a fixed word), and the reason.
    Error(&'static str, String),
    /// Reason why the case is skipped.
    Skipped(String),
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, outcome: CaseOutcome) -> Case {
        Case { name: name.into(), outcome, output: String::new() }
    }

    /// Creates a case that passed.
    pub(crate) fn passed(name: impl Into<String>, output: impl Into<String>) -> Case {
        Case { name: name.into(), outcome: CaseOutcome::Passed, output: output.into() }
    }
}

impl Checks {
    /// Creates the cases of a result. The start is unknown, and the duration is 0.
    pub(crate) fn new(class: &'static str, name: String, cases: Vec<Case>) -> Checks {
        Checks { name, class, started: None, seconds: 0.0, cases }
    }

    /// Returns the cases of a run: its verdict, and each threshold.
    pub fn run(result: &RunResult) -> Checks {
        let outcome = result.verdict.outcome;
        let reasons = result.verdict.reasons.join("\n");
        let verdict = match outcome {
            Outcome::Pass | Outcome::Measured if result.partial => {
                CaseOutcome::Error("partial", wording::PARTIAL.to_owned())
            }
            Outcome::Pass | Outcome::Measured => CaseOutcome::Passed,
            Outcome::Fail => CaseOutcome::Failed("fail", reasons),
            Outcome::Invalid => CaseOutcome::Error("invalid", reasons),
            Outcome::ClientLimited => CaseOutcome::Error("client-limited", reasons),
        };
        let mut cases =
            vec![Case { output: outcome.as_str().to_owned(), ..Case::new("verdict", verdict) }];
        cases.extend(result.thresholds.iter().map(|threshold| case_of(threshold, outcome)));
        Checks {
            started: Some(result.started.clone()),
            seconds: result.duration,
            ..Checks::new("weir.load", format!("weir load {}", result.plan.name), cases)
        }
    }

    /// Returns the cases of a capacity search: its end, and its soak if the search made one.
    pub fn capacity(result: &CapacityResult) -> Checks {
        let answer = &result.answer;
        let sentence = answer.sentence.clone();
        let verdict = match answer.end {
            _ if result.partial => CaseOutcome::Error("partial", sentence.clone()),
            EndReason::Converged | EndReason::RateMax => CaseOutcome::Passed,
            EndReason::NothingPassed => CaseOutcome::Failed("nothing-passed", sentence.clone()),
            end => CaseOutcome::Error(end.as_str(), sentence.clone()),
        };
        let mut cases = vec![Case { output: sentence.clone(), ..Case::new("capacity", verdict) }];
        match answer.soak_held {
            Some(true) => cases.push(Case::passed("soak", "")),
            Some(false) => cases.push(Case::new("soak", CaseOutcome::Error("soak", sentence))),
            None => {}
        }
        Checks {
            started: Some(result.started.clone()),
            seconds: result.duration,
            ..Checks::new("weir.capacity", format!("weir capacity {}", result.plan.name), cases)
        }
    }

    /// Returns the cases of a comparison: one for each metric of each method and variant. Each
    /// mismatch that forbids the comparison is a further case, with an error.
    pub fn comparison(result: &CompareResult) -> Checks {
        let fatal_mismatches = result.mismatches.iter().filter(|row| row.weight == Weight::Refuse);
        let mut cases: Vec<Case> = fatal_mismatches
            .map(|row| {
                let reason = format!("{}: {} / {}", row.why, row.a, row.b);
                let name = format!("{}: comparable {}", row.variant, row.what);
                Case::new(name, CaseOutcome::Error("not-comparable", reason))
            })
            .collect();
        cases.extend(result.differences.iter().map(|row| {
            let name = format!("{}: {} {}", row.variant, row.method, row.metric.as_str());
            verdict_case(name, row.verdict, wording::describe_difference(row))
        }));
        let names: Vec<&str> = result.variants.iter().map(|row| row.name.as_str()).collect();
        Checks::new("weir.compare", format!("weir compare {}", names.join(" ")), cases)
    }

    /// Returns the cases of a comparison of responses: one for each method without differences, and
    /// one for each kind of difference. If the result cannot tell whether the servers are equal,
    /// the first case is an error.
    pub fn equal(result: &EqualResult) -> Checks {
        let mut cases = Vec::new();
        if result.verdict == EqualVerdict::CannotTell {
            cases.push(Case::new("verdict", CaseOutcome::Error("cannot-tell", conclusion(result))));
        }
        for row in &result.methods {
            // A method with differences has no case here, because each of its differences is a case
            // below.
            if row.different > 0 || row.unsteady > 0 {
                continue;
            }
            let outcome = match row.unanswered {
                0 => CaseOutcome::Passed,
                count => CaseOutcome::Error("unanswered", wording::describe_unanswered(count)),
            };
            cases.push(Case::new(&row.method, outcome));
        }
        for row in &result.differences {
            let unsteady = if row.unsteady { ", unsteady:" } else { "" };
            let class = row.class.as_str();
            let name = format!("{}: {class}{unsteady} {}", row.method, row.pointer);
            let reason = wording::describe_response(row);
            cases.push(if row.counts {
                Case::new(name.trim_end(), CaseOutcome::Failed(row.class.as_str(), reason))
            } else {
                let habit = row.habit.as_deref().unwrap_or_default();
                Case::passed(name.trim_end(), format!("{habit}\n{reason}"))
            });
        }
        let name = format!("weir equal {} {}", result.a.url, result.b.url);
        Checks {
            started: Some(result.started.clone()),
            seconds: result.duration,
            ..Checks::new("weir.equal", name, cases)
        }
    }

    /// Returns the cases as JUnit XML.
    pub fn junit(&self) -> String {
        let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
        self.write(&mut writer).expect("a vector takes every byte");
        let xml = String::from_utf8(writer.into_inner());
        xml.expect("the writer is given text") + "\n"
    }

    fn write(&self, writer: &mut Writer<Vec<u8>>) -> std::io::Result<()> {
        let count = |matches: fn(&CaseOutcome) -> bool| {
            self.cases.iter().filter(|case| matches(&case.outcome)).count().to_string()
        };
        let tests = self.cases.len().to_string();
        let failures = count(|outcome| matches!(outcome, CaseOutcome::Failed(..)));
        let errors = count(|outcome| matches!(outcome, CaseOutcome::Error(..)));
        let skipped = count(|outcome| matches!(outcome, CaseOutcome::Skipped(_)));
        let (name, seconds) = (xml_text(&self.name), format!("{:.3}", self.seconds));
        // The schemas do not allow fractions of a second or a time zone.
        let started = self
            .started
            .as_deref()
            .map(|started| started.split(['.', 'Z']).next().unwrap_or_default().to_owned());
        let totals = [
            ("name", name.as_str()),
            ("tests", &tests),
            ("failures", &failures),
            ("errors", &errors),
            ("time", &seconds),
        ];
        let suite_attributes = [("skipped", skipped.as_str())]
            .into_iter()
            .chain(started.as_deref().map(|started| ("timestamp", started)));
        writer.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
        let suites = writer.create_element("testsuites").with_attributes(totals);
        suites.write_inner_content(|writer| {
            let suite = writer
                .create_element("testsuite")
                .with_attributes(totals.into_iter().chain(suite_attributes));
            suite.write_inner_content(|writer| {
                self.cases.iter().try_for_each(|case| case.write(writer, self.class))
            })?;
            Ok(())
        })?;
        Ok(())
    }
}

impl Case {
    fn write(&self, writer: &mut Writer<Vec<u8>>, class: &str) -> std::io::Result<()> {
        let name = xml_text(&self.name);
        let element = writer.create_element("testcase").with_attributes([
            ("name", name.as_str()),
            ("classname", class),
            ("time", "0"),
        ]);
        element.write_inner_content(|writer| {
            let (tag, kind, reason) = match &self.outcome {
                CaseOutcome::Passed => ("", "", ""),
                CaseOutcome::Failed(kind, reason) => ("failure", *kind, reason.as_str()),
                CaseOutcome::Error(kind, reason) => ("error", *kind, reason.as_str()),
                CaseOutcome::Skipped(reason) => ("skipped", "", reason.as_str()),
            };
            let reason = xml_text(reason);
            let message = reason.lines().next().unwrap_or_default();
            match tag {
                "" => {}
                "skipped" => {
                    writer
                        .create_element(tag)
                        .with_attribute(("message", message))
                        .write_empty()?;
                }
                tag => {
                    let attributes = [("message", message), ("type", kind)];
                    let element = writer.create_element(tag).with_attributes(attributes);
                    element.write_text_content(BytesText::new(&reason))?;
                }
            }
            if !self.output.is_empty() {
                let output = xml_text(&self.output);
                writer.create_element("system-out").write_text_content(BytesText::new(&output))?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Returns the case of a threshold. `outcome` is the outcome of the whole run.
fn case_of(threshold: &ThresholdOutcome, outcome: Outcome) -> Case {
    let reason = wording::describe_threshold(threshold);
    let case_outcome = match (threshold.kept, outcome) {
        (true, _) => CaseOutcome::Passed,
        // The numbers of an invalid or client-limited run do not count. The case of the verdict has
        // the reasons.
        (false, Outcome::Invalid | Outcome::ClientLimited) => CaseOutcome::Skipped(reason.clone()),
        (false, _) => CaseOutcome::Failed("threshold", reason.clone()),
    };
    let output = if threshold.kept { reason } else { String::new() };
    Case { output, ..Case::new(&threshold.text, case_outcome) }
}

/// Returns the case of a difference between two variants.
fn verdict_case(name: String, verdict: ComparisonVerdict, sentence: String) -> Case {
    match verdict {
        ComparisonVerdict::Worse => Case::new(name, CaseOutcome::Failed("worse", sentence)),
        ComparisonVerdict::CannotTell => Case::new(name, CaseOutcome::Skipped(sentence)),
        ComparisonVerdict::Better | ComparisonVerdict::Same | ComparisonVerdict::Negligible => {
            Case::passed(name, sentence)
        }
    }
}

/// Replaces characters that XML 1.0 forbids by U+FFFD.
fn xml_text(text: &str) -> String {
    let is_allowed = |character: char| matches!(character, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..);
    text.chars().map(|c| if is_allowed(c) { c } else { '\u{fffd}' }).collect()
}
