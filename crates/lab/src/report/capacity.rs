//! The document of a capacity search: the capacity, the probes by rate, and the first broken limit.
//!
//! A probe is a short run at one rate. It passes if it keeps all thresholds. The capacity lies at
//! the boundary: between the highest rate that passed and the lowest rate that failed. A baseline
//! is a probe at a low rate, and a soak is a long probe at the highest rate that passed. The
//! binding limit is the threshold that broke first at the lowest rate that failed.
//!
//! `report/document.rs` explains the functions and macros that build sections.

use std::cmp::Ordering;

use lab_model::results::capacity::{
    Answer, Binding, Boundary, CapacityResult, EndReason, Kind, ProbeOutcome, ProbeRow,
};

use super::chart::axis::{Axis, Scale, log};
use super::chart::{Chart, Ink, Shape, curve};
use super::document::{
    Block, Column, Document, List, Row, Section, Span, Text, code, table, text, tone,
};
use super::parts::{self, fact, or_dash};
use crate::wording::number::{bare_ms, clock, percent, plural, rate, short, span};

#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod tests;

/// Maximum number of probes on the terminal. These are the probes nearest to the boundary.
const PROBES_MAX: usize = 20;
/// Maximum number of warnings on the terminal.
const WARNINGS_MAX: usize = 3;
/// Width of a chart in pixels.
const WIDE: i32 = 1000;

/// Builds the document of a capacity search.
pub(super) fn document(result: &CapacityResult) -> Document {
    let (plan, target, finding) = (&result.plan, &result.target, result.bottleneck.as_ref());
    let warnings = || parts::warnings(&result.warnings, WARNINGS_MAX);
    let origin = || {
        let origin = (&*result.weir, &*result.schema, &*result.started);
        Some(parts::origin(origin, plan, target, &result.fingerprint))
    };
    let summary = [
        Some(head(result)),
        Some(facts(result)),
        parts::evidence(finding),
        Some(probes(result)),
        warnings(),
        Some(settings(result)),
        origin(),
    ];
    let page = [
        Some(page_head(result)),
        curves(result),
        broken_limit(result),
        finding.map(parts::bottleneck),
        costs(result),
        warnings(),
        Some(probes(result)),
        scaling(result),
        Some(settings(result)),
        origin(),
        Some(parts::repeat(plan, target, "capacity")),
    ];
    let intro = format!("{} · {} · {}", target.url, result.started, span(result.duration));
    Document {
        command: "weir capacity",
        title: plan.name.clone(),
        window: format!("capacity: {}", plan.name),
        heading: format!("Capacity {}: {}", answer(result), plan.name),
        intro: vec![intro.into()],
        summary: summary.into_iter().flatten().collect(),
        page: page.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// Returns the capacity as a heading: `1,200 to 1,250/s`, `at least 1,200/s`, `below 50/s`, or
/// `unknown`. If many calls had no result at the highest rate that passed, the heading begins with
/// the results: `300 results/s (sent: at least 2,000/s)`.
pub(super) fn answer(result: &CapacityResult) -> String {
    let sent = sent_rates(&result.answer);
    match unsuccessful_pass(result) {
        Some(probe) => format!("{} results/s (sent: {sent})", short(probe.goodput)),
        None => sent,
    }
}

/// Returns the last probe at the highest rate that passed, if many of its calls had no result.
fn unsuccessful_pass(result: &CapacityResult) -> Option<&ProbeRow> {
    let rate = result.answer.highest_pass?;
    let passed = |probe: &&ProbeRow| probe.rate == rate && probe.outcome == ProbeOutcome::Pass;
    result.probes.iter().rfind(passed).filter(|probe| probe.has_few_results())
}

/// Returns the rates between which the capacity is.
fn sent_rates(answer: &Answer) -> String {
    match (answer.highest_pass, answer.lowest_fail) {
        (Some(pass), Some(fail)) if !answer.at_least => {
            format!("{} to {}", short(pass), rate(fail))
        }
        (Some(pass), _) => format!("at least {}", rate(pass)),
        (None, Some(fail)) => format!("below {}", rate(fail)),
        (None, None) => String::from("unknown"),
    }
}

/// Returns the reason why a search ended, as the end of the sentence "ended because …".
fn describe_end(answer: &Answer) -> &'static str {
    match answer.end {
        EndReason::Converged => "the boundary is known with the requested precision",
        EndReason::RateMax => "the highest allowed rate passed",
        EndReason::ClientLimited => "the generator was the limit before the target",
        EndReason::Invalid if answer.highest_pass.is_none() => "the numbers are invalid",
        EndReason::Invalid => "above the highest pass the numbers are invalid",
        EndReason::NothingPassed => "even the lowest rate failed",
        EndReason::ProbesMax => "the limit of probes was reached",
        EndReason::Stopped => "it was stopped, or the target became unreachable",
    }
}

/// Describes the shape of the boundary between rates that pass and rates that fail. `None` if the
/// shape is unknown.
pub(super) fn describe_boundary(boundary: Boundary) -> Option<&'static str> {
    match boundary {
        Boundary::Cliff => Some("cliff: it comes without warning"),
        Boundary::Gradual => Some("gradual: the values approach the thresholds step by step"),
        Boundary::Unknown => None,
    }
}

/// Describes the binding limit, which is the limit that broke first, in one sentence.
pub(super) fn describe_binding(binding: &Binding) -> String {
    let method =
        binding.method.as_ref().map_or_else(String::new, |method| format!(" for {method}"));
    let values = match (binding.observed, binding.limit) {
        (Some(observed), Some(limit)) => {
            format!(": {} where {} is allowed", short(observed), short(limit))
        }
        (Some(observed), None) => format!(": {}", short(observed)),
        (None, _) => String::new(),
    };
    format!("{}{method} at {}{values}", binding.threshold, rate(binding.rate))
}

/// Returns reasons to doubt the capacity.
fn doubts(result: &CapacityResult) -> Vec<String> {
    let answer = &result.answer;
    let not_monotone = (!answer.monotone).then_some(
        "a rate passed above one that failed: the boundary is not sharp, or the target changed",
    );
    let soak_broke =
        (answer.soak_held == Some(false)).then_some("the soak at the highest pass did not hold");
    let descriptions = not_monotone.into_iter().chain(soak_broke).map(str::to_owned);
    descriptions.chain(answer.degraded.clone()).collect()
}

/// Returns the capacity with its reasons.
fn verdict(
    result: &CapacityResult,
    word: String,
    summary: String,
    reasons: impl IntoIterator<Item = String>,
) -> Section {
    let class = match result.answer.end {
        EndReason::Converged | EndReason::RateMax => "pass",
        EndReason::NothingPassed => "fail",
        EndReason::ClientLimited => "client",
        EndReason::Invalid | EndReason::ProbesMax | EndReason::Stopped => "invalid",
    };
    let (subject, reasons) = (result.plan.name.clone(), List::of(reasons));
    Section::default()
        .add(result.partial.then_some(Block::Partial("the search ended before its result")))
        .add(Block::Verdict { class, word, subject, summary, reasons })
}

/// Returns the capacity, the reason for the end of the search, and the doubts.
fn head(result: &CapacityResult) -> Section {
    let end = format!("ended because {}", describe_end(&result.answer));
    let reasons = [result.answer.sentence.clone(), end].into_iter().chain(doubts(result));
    verdict(result, format!("CAPACITY {}", answer(result)), String::new(), reasons)
}

/// Returns the capacity, the doubts, the most important values, and the reason for the end of the
/// search, for the page.
fn page_head(result: &CapacityResult) -> Section {
    let boundary = describe_boundary(result.answer.boundary);
    let shape = boundary.map(|shape| format!(" [Boundary](boundary) {shape}.")).unwrap_or_default();
    let note = format!("Ended because {}.{shape}", describe_end(&result.answer));
    verdict(result, answer(result), result.answer.sentence.clone(), doubts(result))
        .add(Block::Tiles(tiles(result)))
        .add(Block::Note(Text::marked(&note)))
}

/// Returns the facts of the summary, which stand between the capacity and the probes.
fn facts(result: &CapacityResult) -> Section {
    let costs = result.costs.iter();
    let costs = costs.map(|cost| format!("{} {} ms", cost.process, short(cost.cpu_ms_per_request)));
    let costs: Vec<String> = costs.collect();
    let probes = plural(result.probes.len() as u64, "probe");
    let facts = [
        result.binding.as_ref().map(|binding| fact("binding", describe_binding(binding))),
        describe_boundary(result.answer.boundary).map(|shape| fact("boundary", shape)),
        result.bottleneck.as_ref().map(|finding| fact("bottleneck", &finding.sentence)),
        (!costs.is_empty()).then(|| fact("CPU/request", costs.join(", "))),
        Some(fact("target", code(&result.target.url))),
        Some(fact("search", format!("{probes} in {}", span(result.duration)))),
    ];
    Section::new("", "Summary").add(Block::Facts(facts.into_iter().flatten().collect()))
}

/// Returns the most important values for the page.
fn tiles(result: &CapacityResult) -> Vec<(&'static str, String, Text)> {
    let answer = &result.answer;
    let (soak, class) = match answer.soak_held {
        None => ("not made", ""),
        Some(true) => ("held", ""),
        Some(false) => ("broke", "bad"),
    };
    let precision = answer.highest_pass.zip(answer.lowest_fail).filter(|(pass, _)| *pass > 0.0);
    let precision = precision.map(|(pass, fail)| (fail - pass) / pass);
    [
        ("", or_dash(answer.highest_pass, rate), "[highest pass](capacity)"),
        ("", or_dash(answer.lowest_fail, rate), "[lowest fail](capacity)"),
        ("", or_dash(precision, percent), "distance, relative to the pass"),
        (class, soak.to_owned(), "[soak](soak)"),
        ("", result.probes.len().to_string(), "[probes](probe)"),
    ]
    .map(|(class, value, description)| (class, value, Text::marked(description)))
    .to_vec()
}

/// Returns all probes except the baselines.
fn probes_without_baselines(result: &CapacityResult) -> impl Iterator<Item = &ProbeRow> {
    result.probes.iter().filter(|probe| probe.kind != Kind::Baseline)
}

/// Draws latency, failures and achieved rate by planned rate. `None` if all probes are baselines.
/// Heights are in pixels, and the widths of curves in tenths of a pixel.
pub(super) fn curves(result: &CapacityResult) -> Option<Section> {
    let max_rate = probes_without_baselines(result).map(|probe| probe.rate).reduce(f64::max)?;
    let x = Axis::up_to(max_rate.max(0.0), Scale::Number);
    let figure = |title: &str, height, y: Axis, shapes: Vec<Shape>, legend: [(Ink, &str); 2]| {
        let chart = Chart::new(title, (WIDE, height), (x.clone(), y), shapes);
        Block::Figure(chart, legend.map(|(ink, text)| (ink, text.to_owned())).to_vec())
    };
    let values = |value_of: fn(&ProbeRow) -> f64| probes_without_baselines(result).map(value_of);
    let dots = |value_of: fn(&ProbeRow) -> f64| {
        probes_without_baselines(result).map(move |probe| dot(probe, value_of(probe)))
    };
    let (p50_ink, p99_ink) = (Ink::Series(2), Ink::Series(0));

    let lowest_p50 = values(|probe| probe.latency.p50_ms).filter(|ms| *ms > 0.0).reduce(f64::min);
    let highest_p99 = values(|probe| probe.latency.p99_ms).fold(0.0, f64::max);
    let mut shapes = band(result);
    shapes.push(medians(result, |probe| log(probe.latency.p50_ms), p50_ink, 16));
    shapes.push(medians(result, |probe| log(probe.latency.p99_ms), p99_ink, 18));
    shapes.extend(dots(|probe| log(probe.latency.p99_ms)));
    let y = Axis::log_ms(lowest_p50.unwrap_or(0.1), highest_p99);
    let legend = [(p99_ink, "p99"), (p50_ink, "p50")];
    let latency_figure = figure("Latency, all outcomes", 320, y, shapes, legend);

    let highest_share =
        values(|probe| probe.failed_share.max(probe.limited_share)).fold(0.001, f64::max);
    let failed_ink = Ink::Series(5);
    let mut shapes = band(result);
    shapes.push(medians(result, |probe| probe.limited_share, Ink::Limited, 15));
    shapes.push(medians(result, |probe| probe.failed_share, failed_ink, 16));
    shapes.extend(dots(|probe| probe.failed_share));
    let legend = [(failed_ink, "failed"), (Ink::Limited, "limited (429)")];
    let y = Axis::up_to(highest_share, Scale::Share);
    let shares_figure = figure("Failed and limited calls", 180, y, shapes, legend);

    let ended_ink = Ink::Series(0);
    let mut shapes = band(result);
    shapes.push(curve(vec![(0.0, 0.0), (x.to, x.to)], Ink::Plan, 14));
    shapes.push(medians(result, |probe| probe.rate_ended, ended_ink, 16));
    shapes.extend(dots(|probe| probe.rate_ended));
    let legend = [(Ink::Plan, "as planned"), (ended_ink, "ended")];
    let rates_figure = figure("Iterations ended per second", 220, x.clone(), shapes, legend);

    let outcome_key = |(ink, text): (Ink, &str)| {
        let class = ink.class();
        format!("<span class=\"key\"><i class=\"dot k-{class}\"></i>{text}\u{2003}</span>")
    };
    let outcomes = [(Ink::Good, "passed"), (Ink::Bad, "failed"), (Ink::Plan, "counts as neither")];
    let outcome_legend: String = outcomes.into_iter().map(outcome_key).collect();
    let note = Block::Note("First axis: planned iterations per second.".into());
    let section = Section::new("curves", "By rate").nav("Curves").intro(
        "Each point is a [probe](probe); curves connect the medians of each rate. The band between \
         the highest pass and the lowest fail contains the [capacity](capacity).",
    );
    Some(section.add(Block::Note(Span::Drawing(outcome_legend).into())).add(Block::Card(vec![
        latency_figure,
        shares_figure,
        rates_figure,
        note,
    ])))
}

/// Draws the band between the highest pass and the lowest fail, if both are known.
fn band(result: &CapacityResult) -> Vec<Shape> {
    let bounds = result.answer.highest_pass.zip(result.answer.lowest_fail);
    let opacity = 0.28;
    bounds.map(|x| Shape::Band(x, Ink::Limited, opacity)).into_iter().collect()
}

/// Draws a probe as a dot in the colour of its outcome. The dot of a soak is larger.
fn dot(probe: &ProbeRow, y: f64) -> Shape {
    let (ink, filled) = match probe.outcome {
        ProbeOutcome::Pass => (Ink::Good, true),
        ProbeOutcome::Fail => (Ink::Bad, false),
        ProbeOutcome::ClientLimited | ProbeOutcome::Invalid => (Ink::Plan, false),
    };
    let radius = if probe.kind == Kind::Soak { 6 } else { 4 };
    Shape::Dot { at: (probe.rate, y), ink, radius, filled }
}

/// Returns a curve with one point per rate: the median of the probes at that rate. `width` is in
/// tenths of a pixel.
fn medians(result: &CapacityResult, value_of: fn(&ProbeRow) -> f64, ink: Ink, width: u32) -> Shape {
    let mut rates: Vec<f64> = probes_without_baselines(result).map(|probe| probe.rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let points = rates.iter().filter_map(|rate| {
        let at_rate =
            probes_without_baselines(result).filter(|probe| (probe.rate - rate).abs() < 1e-9);
        let mut values: Vec<f64> = at_rate.map(value_of).collect();
        values.sort_by(f64::total_cmp);
        Some((*rate, *values.get(values.len() / 2)?))
    });
    curve(points.collect(), ink, width)
}

/// Returns the limit that broke first, or `None` if no limit broke.
fn broken_limit(result: &CapacityResult) -> Option<Section> {
    let limit_broken = result.binding.as_ref()?;
    let probe_note = format!("Observed in probe {}.", limit_broken.probe + 1);
    let limit = Block::Paragraph(format!("{}.", describe_binding(limit_broken)).into());
    let section = Section::new("binding", "First broken limit").nav("Broken limit");
    Some(section.add(Block::Card(vec![limit, Block::Note(probe_note.into())])))
}

/// Returns the CPU time per request of each process, or `None` if it is unknown.
fn costs(result: &CapacityResult) -> Option<Section> {
    let table = table!(&result.costs, |cost|
        Column::text("process") => &cost.process,
        Column::number("[CPU ms per request](CPU per request)") => short(cost.cpu_ms_per_request),
        Column::number("probe") => (cost.probe + 1).to_string(),
    );
    let section = Section::new("costs", "CPU cost of a request");
    let section = section.intro("At the highest rate that passed.").add(Block::Table(table));
    (!result.costs.is_empty()).then_some(section)
}

/// Returns the table of probes. The reasons for a probe's outcome are sub-rows, whose first column
/// is empty. The terminal has only the probes nearest to the boundary, by rate.
fn probes(result: &CapacityResult) -> Section {
    let probes = &result.probes;
    let class_of = |outcome| match outcome {
        ProbeOutcome::Pass => "kept",
        ProbeOutcome::Fail => "broken",
        ProbeOutcome::ClientLimited | ProbeOutcome::Invalid => "limited",
    };
    let format_margin = |margin: f64| format!("{:.0} %", margin * 100.0);
    let table = table!(probes.iter().enumerate(), |(index, probe)|
        Column::number("#") => number(index, probe),
        Column::number("at") => clock(probe.at),
        Column::number("rate/s") => short(probe.rate),
        Column::text("probe") => probe.kind.as_str(),
        Column::text("outcome") => tone(class_of(probe.outcome), probe.outcome.as_str()),
        Column::number("ended/s") => short(probe.rate_ended),
        Column::number("results/s") => short(probe.goodput),
        Column::number("failed") => percent(probe.failed_share),
        Column::number("429") => percent(probe.limited_share),
        Column::number("p50 ms") => bare_ms(probe.latency.p50_ms),
        Column::number("p95 ms") => bare_ms(probe.latency.p95_ms),
        Column::number("p99 ms") => bare_ms(probe.latency.p99_ms),
        Column::number("margin") => or_dash(probe.margin, format_margin),
        Column::number("started") => percent(probe.delivered_share),
        Column::number("late p99 ms") => bare_ms(probe.scheduling_delay_p99_ms),
    );
    let table = table.with_sub_rows("even", |index| {
        let reasons = probes[index].reasons.iter();
        let empty_columns = 1;
        reasons.map(|reason| Row::across(empty_columns, reason)).collect()
    });
    let boundary = result.answer.highest_pass.or(result.answer.lowest_fail).unwrap_or(0.0);
    let distance = |index: &usize| (probes[*index].rate - boundary).abs();
    let mut nearest: Vec<usize> = (0..probes.len()).collect();
    nearest.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.truncate(PROBES_MAX);
    let order = |index: &usize| (probes[*index].rate, probes[*index].at);
    nearest.sort_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(Ordering::Equal));
    // A probe is the first row of its group.
    let first_row = |index: usize| {
        index + probes[..index].iter().map(|probe| probe.reasons.len()).sum::<usize>()
    };
    let rows = nearest.into_iter().map(first_row).collect();
    Section::new("probes", "Probes")
        .nav("Probes")
        .intro("In order of time. [Margin](margin): distance to the nearest limit.")
        .add(Block::Table(table.excerpt(rows, probes.len(), "probe")))
}

/// Returns the probe's number, with a link to the page of its run if the run was saved. Only a
/// plain folder name becomes a link, because the result file may come from an untrusted source.
fn number(index: usize, probe: &ProbeRow) -> Text {
    let is_plain_name = |name: &&str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !name.starts_with('.')
    };
    let text = (index + 1).to_string();
    match probe.folder.as_deref().filter(is_plain_name) {
        Some(folder) => Span::Link(text, format!("{folder}/report.html")).into(),
        None => text.into(),
    }
}

/// Returns the parameters of the scaling law (Universal Scalability Law) that was fitted to the
/// probes. `lambda` is the rate with one iteration in flight, `sigma` the share of serial work, and
/// `kappa` the cost of coordination between two iterations. `None` if the law was not fitted.
fn scaling(result: &CapacityResult) -> Option<Section> {
    let fit = result.scaling.as_ref()?;
    let peak = fit.peak_in_flight.zip(fit.peak_rate);
    let peak =
        peak.map(|(in_flight, peak)| format!("{} with {} in flight", rate(peak), short(in_flight)));
    let facts = [
        ("Concurrency 1", rate(fit.lambda)),
        ("Contention", percent(fit.sigma)),
        ("Coherency", percent(fit.kappa)),
        ("Peak", peak.unwrap_or_else(|| "none".to_owned())),
        ("Variance explained", percent(fit.r_squared)),
    ];
    let facts = Block::Facts(facts.map(|(name, value)| (name.into(), value.into())).to_vec());
    let probes = plural(fit.points as u64, "probe");
    let intro =
        format!("[Scaling law](scaling) fitted to {probes}; it does not affect the result.");
    Some(Section::new("scaling", "Scaling").intro(&intro).add(facts))
}

/// Returns code spans, separated by commas.
fn codes(texts: &[String]) -> Text {
    let mut spans = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        spans.extend((index > 0).then(|| Span::Plain(", ".to_owned())));
        spans.push(Span::Code(text.clone()));
    }
    Text(spans)
}

/// Returns the settings of the search.
fn settings(result: &CapacityResult) -> Section {
    let settings = &result.settings;
    let (start, max) = (rate(settings.rate_start), rate(settings.rate_max));
    let (precision, baseline) = (percent(settings.precision), rate(settings.rate_baseline));
    let (probe, warmup, drain) =
        (span(settings.probe), span(settings.probe_warmup), span(settings.drain));
    let reason = result.thresholds_by_default.as_ref().map(|reason| format!(" ({reason})"));
    let thresholds = text![codes(&result.thresholds), reason.unwrap_or_default()];
    let soak = if settings.soak > 0.0 { span(settings.soak) } else { "none".to_owned() };
    let rates = format!("from {start} to at most {max}, with a precision of {precision}");
    let probe = format!(
        "{probe} with {warmup} of warm-up, {} at each side of the boundary, {drain} to drain before \
         each",
        settings.repeats
    );
    let facts = vec![
        ("Thresholds".into(), thresholds),
        ("Rates".into(), rates.into()),
        ("Probe".into(), probe.into()),
        ("Baseline".into(), format!("at {baseline}").into()),
        ("Soak".into(), soak.into()),
    ];
    Section::new("search", "Search settings").detail().add(Block::Facts(facts))
}
