//! Thresholds: the grammar is `plan/threshold/parse.rs`; here is how they stand in a plan.

use std::time::Duration;

use super::super::fault::Report;
use super::super::field::THRESHOLD;
use super::super::file::{Entry, Member, Node, Tree, Written, read_entry};
use super::super::formula::{Variables, replaced};
use super::super::kind::Value;
use crate::metrics::Selector;
use crate::plan::threshold::parse::{Names, Refused, StageName};
use crate::plan::threshold::{Threshold, parse};

/// Thresholds of one plan; each is judged every second.
const THRESHOLDS_MAX: usize = 1000;

/// All thresholds.
pub(super) fn check(
    written: &Written,
    methods: &[Box<str>],
    stages: &[StageName],
    report: &mut Report<'_>,
) -> Vec<Threshold> {
    let names = Names { methods, stages };
    let mut thresholds = Vec::new();
    // A name that a faulty scenario or mix would have brought is no fault of the threshold.
    let trusted = !report.has_faults();
    for member in &written.thresholds {
        match parse::selector(&member.key, names) {
            Ok(selector) => {
                let mut reading = Reading {
                    member,
                    selector: &selector,
                    variables: &written.variables,
                    report: &mut *report,
                };
                thresholds.extend(reading.all());
            }
            Err(refused) if trusted => {
                let key = format!("thresholds.{}", member.key);
                let Refused { message, allowed } = refused;
                report.fault(Some(&member.span), key, None, message, Some(allowed));
            }
            Err(_) => {}
        }
    }
    if thresholds.len() > THRESHOLDS_MAX {
        let span = written.thresholds.first().map(|member| &member.span);
        let allowed = Some(format!("at most {THRESHOLDS_MAX}"));
        report.fault(span, "thresholds", None, "too many thresholds", allowed);
    }
    thresholds
}

struct Reading<'a, 'r, 't> {
    member: &'a Member,
    selector: &'a Selector,
    variables: &'a Variables,
    report: &'r mut Report<'t>,
}

impl Reading<'_, '_, '_> {
    fn all(&mut self) -> Vec<Threshold> {
        match &self.member.node.tree {
            Tree::List(list) => {
                if list.is_empty() {
                    self.refuse(&self.member.node, "holds no threshold");
                }
                list.iter().filter_map(|node| self.one(node)).collect()
            }
            _ => self.one(&self.member.node).into_iter().collect(),
        }
    }

    fn one(&mut self, node: &Node) -> Option<Threshold> {
        match &node.tree {
            Tree::Text(text) => self.threshold(node, text, &Entry::absent(&THRESHOLD)),
            Tree::Table(_) => {
                let path = format!("thresholds.{}", self.member.key);
                let faults = self.report.count();
                let entry = read_entry(self.report, self.variables, &THRESHOLD, &path, node)?;
                let text = entry.chosen("threshold")?.text();
                let read = self.threshold(node, &text, &entry);
                read.filter(|_| self.report.count() == faults)
            }
            _ => {
                self.refuse(node, "neither a text nor a table");
                None
            }
        }
    }

    fn threshold(&mut self, node: &Node, text: &str, entry: &Entry) -> Option<Threshold> {
        let node = match entry.set("threshold") {
            Some(set) => &Node { span: set.span.clone(), tree: Tree::Bool(true) },
            None => node,
        };
        let text = match replaced(text, self.variables) {
            Ok(text) => text,
            Err(message) => {
                self.refuse(node, &message);
                return None;
            }
        };
        match parse::expression(&text, self.selector.metric) {
            Ok((aggregation, operator, limit)) => Some(Threshold {
                selector: self.selector.clone(),
                aggregation,
                operator,
                limit,
                window: entry.chosen("window").map(Value::duration),
                sustained: entry.value("sustained").duration(),
                abort: entry.value("abort").switch(),
                abort_delay: self.abort_delay(entry),
                no_data_fails: entry.value("no_data").choice() == "fail",
                text: format!("{} {}", self.member.key.trim(), text.trim()),
            }),
            Err(Refused { message, allowed }) => {
                let shown = Some(format!("\"{}\"", text.chars().take(60).collect::<String>()));
                let key = format!("thresholds.{}", self.member.key);
                self.report.fault(Some(&node.span), key, shown, message, Some(allowed));
                None
            }
        }
    }

    fn abort_delay(&mut self, entry: &Entry) -> Duration {
        if let Some(set) = entry.set("abort_delay").filter(|_| !entry.value("abort").switch()) {
            let key = entry.key("abort_delay");
            let message = "a threshold that ends no run delays nothing";
            let allowed = Some("together with abort = true".to_owned());
            self.report.fault(Some(&set.span), key, Some(set.shown.clone()), message, allowed);
        }
        entry.value("abort_delay").duration()
    }

    fn refuse(&mut self, node: &Node, message: &str) {
        let allowed = "an expression such as \"p(99)<300\", a table with it, or a list of these";
        let key = format!("thresholds.{}", self.member.key);
        self.report.fault(Some(&node.span), key, None, message, Some(allowed.to_owned()));
    }
}
