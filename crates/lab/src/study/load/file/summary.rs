//! Describes a study of load runs for `weir check` and `--dry-run`.

use std::time::Duration;

use lab_model::results::compare::Metric;

use super::LoadStudy;
use crate::distinct;
use crate::study::load::wording;
use crate::wording::number::{plural, span};

/// Maximum number of rounds that a summary lists. If the variants have more different orders than
/// this, the summary lists every order once.
const LISTED_MAX: usize = 12;

impl LoadStudy {
    /// Returns a summary of the study for `weir check` and `--dry-run`, in several lines.
    pub fn summary(&self) -> String {
        let file = &self.file;
        let mut text = String::new();
        let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<11}{value}\n"));
        for (index, variant) in self.variants.iter().enumerate() {
            let servers: Vec<&str> =
                variant.servers.iter().map(|server| server.name.as_str()).collect();
            let target = variant.masked_target();
            let target = target.unwrap_or_else(|| "the plan's target".to_owned());
            let name = if index == 0 { "variants" } else { "" };
            let description = match variant.control_of {
                Some(_) => "the A/A control".to_owned(),
                None if servers.is_empty() => target,
                None => format!("{target}, starts {}", servers.join(", ")),
            };
            line(name, &format!("{}: {description}", variant.name));
        }
        let label = if self.cases.is_empty() { "plans" } else { "cases" };
        line(label, &self.plans.join(", "));
        for (index, text) in self.describe_ratio_limits().iter().enumerate() {
            line(if index == 0 { "ratio_max" } else { "" }, text);
        }
        self.cases_left_out.iter().for_each(|case| line("left out", case));
        line("one round", &self.describe_round());
        line("rounds", &self.describe_rounds());
        let (shortest, longest) = self.time();
        let times = match shortest == longest {
            true => span(shortest.as_secs_f64()),
            false => {
                format!("{} to {}", span(shortest.as_secs_f64()), span(longest.as_secs_f64()))
            }
        };
        line("time", &format!("{times}, and the start of servers"));
        let restart = *file.restart;
        if self.variants.iter().any(|variant| !variant.servers.is_empty()) {
            line("restarts", restart.as_str());
        }
        text
    }

    /// Describes the largest ratios of each variant, one line for each metric.
    fn describe_ratio_limits(&self) -> Vec<String> {
        let limits = &self.ratio_limits;
        let pairs = distinct(limits.iter().map(|limit| (limit.variant, limit.metric)));
        let describe = |(variant, metric): (usize, Metric)| {
            let of_pair =
                || limits.iter().filter(|limit| (limit.variant, limit.metric) == (variant, metric));
            let values = distinct(of_pair().map(|limit| limit.max.to_string()));
            let values = match values.as_slice() {
                [value] => value.clone(),
                _ => {
                    let values =
                        of_pair().map(|limit| format!("{} {}", self.plans[limit.plan], limit.max));
                    values.collect::<Vec<_>>().join(", ")
                }
            };
            format!("{}: {}: {values}", self.variants[variant].name, wording::name_ratio(metric))
        };
        pairs.into_iter().map(describe).collect()
    }

    /// Describes the number of runs in a round and their time.
    fn describe_round(&self) -> String {
        let runs = self.variants.len() * self.plans.len();
        let time = span(self.round_time().as_secs_f64().ceil());
        format!("{}, {time}", plural(runs as u64, "run"))
    }

    /// Describes the number and order of the rounds, and the end of the study.
    fn describe_rounds(&self) -> String {
        let file = &self.file;
        let warm_up = match *file.warm_up_rounds {
            0 => String::new(),
            count => format!("{} for warm-up, then ", plural(count as u64, "round")),
        };
        // The text of a metric is its name, a comma and the unit.
        let metric = file.precision_of.metric().as_str().split(',').next().unwrap_or_default();
        format!(
            "{warm_up}{} to {}, {}, until the intervals of {} are ±{} % or {} have passed",
            *file.rounds_min,
            *file.rounds_max,
            file.order.as_str(),
            metric,
            (*file.precision * 1000.0).round() / 10.0,
            span(file.time_max.as_secs_f64()),
        )
    }

    /// Returns the shortest and the longest planned time of the study.
    pub fn time(&self) -> (Duration, Duration) {
        let round_time = self.round_time();
        let time_of = |rounds: usize| {
            let rounds = u32::try_from(rounds + *self.file.warm_up_rounds).unwrap_or(u32::MAX);
            round_time.saturating_mul(rounds)
        };
        // The first round runs even if it exceeds the time limit.
        let limit = (*self.file.time_max).max(time_of(1));
        let longest = time_of(*self.file.rounds_max).min(limit);
        (time_of(*self.file.rounds_min).min(longest), longest)
    }

    /// Returns the order of the runs, one line for each round.
    pub fn describe_order(&self) -> String {
        let names = |round: usize| -> String {
            let order = self.order(round).into_iter();
            order.map(|variant| self.variants[variant].name.clone()).collect::<Vec<_>>().join(", ")
        };
        let mut text = String::new();
        if *self.file.warm_up_rounds > 0 {
            text.push_str(&format!("  warm-up    {}\n", names(0)));
        }
        // The orders repeat after this number of rounds.
        let block = self.limits().block;
        let listed = (*self.file.rounds_max).min(block.max(LISTED_MAX));
        for round in 0..listed {
            text.push_str(&format!("  round {:<5}{}\n", round + 1, names(round)));
        }
        if listed < *self.file.rounds_max {
            text.push_str(&format!("  …          the same {block} orders again\n"));
        }
        text
    }
}
