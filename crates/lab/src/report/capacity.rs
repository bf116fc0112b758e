//! A capacity search as a document: the answer, what passed and failed at which rate, what broke first.

use lab_model::results::capacity::{
    Answer, Binding, Boundary, CapacityResult, End, Judged, Kind, ProbeRow,
};

use super::chart::axis::{Axis, Scale, log};
use super::chart::{Chart, Ink, Shape, curve};
use super::document::{
    Block, Document, FILES, List, MARKDOWN, PAGE, Row, Section, Span, TERMINAL, Table, Text, bold,
    code, table, text, tone,
};
use super::parts::{self, line};
use crate::wording::number::{bare_ms, clock, percent, plural, rate, short, span};

#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod tests;

/// Probes in the terminal's table; those around the boundary are kept.
const PROBES: usize = 20;
/// Warnings in the terminal.
const WARNINGS: usize = 3;
/// Width of a chart in pixels.
const WIDE: i32 = 1000;

/// The document of a capacity search.
pub(super) fn document(result: &CapacityResult) -> Document {
    let (plan, target, finding) = (&result.plan, &result.target, result.bottleneck.as_ref());
    let text = TERMINAL | MARKDOWN;
    let version = (result.weir.as_str(), result.schema.as_str());
    let sections = [
        Some(head(result)),
        parts::sentences("Doubts", List::of(doubts(result)), text),
        Some(in_short(result)),
        curves(result),
        broke(result),
        parts::bottleneck(finding, MARKDOWN),
        parts::bottleneck(finding, PAGE),
        costs(result),
        parts::warnings(&result.warnings, WARNINGS, PAGE),
        Some(probes(result)),
        scaling(result),
        Some(settings(result)),
        parts::warnings(&result.warnings, WARNINGS, text),
        Some(origin(result)),
        Some(parts::repeat(plan, target, "capacity", version)),
    ];
    let lead = format!("{} · {} · {}", target.url, result.started, span(result.duration));
    Document {
        command: "weir capacity",
        title: plan.name.clone(),
        window: format!("capacity: {}", plan.name),
        heading: format!("Capacity {}: {}", answer(result), plan.name),
        lead: vec![lead.into()],
        sections: sections.into_iter().flatten().collect(),
        glossary: true,
    }
}

/// The answer as a heading: `1,200 to 1,250/s`, `at least 1,200/s`, `below 50/s`.
fn answer(result: &CapacityResult) -> String {
    let answer = &result.answer;
    match (answer.highest_pass, answer.lowest_fail) {
        (Some(pass), Some(fail)) if !answer.at_least => {
            format!("{} to {}", short(pass), rate(fail))
        }
        (Some(pass), _) => format!("at least {}", rate(pass)),
        (None, Some(fail)) => format!("below {}", rate(fail)),
        (None, None) => String::from("not known"),
    }
}

/// Why a search ended, in words.
fn end(answer: &Answer) -> &'static str {
    match answer.end {
        End::Converged => "the boundary is as close as was asked",
        End::RateMax => "the largest rate that was allowed passed",
        End::ClientLimited => "the generator was the limit before the target",
        End::Invalid if answer.highest_pass.is_none() => "the numbers may not be believed",
        End::Invalid => "above the highest pass the numbers may not be believed",
        End::NothingPassed => "even the lowest rate failed",
        End::ProbesMax => "the limit of probes was reached",
        End::Stopped => "it was stopped, or the target could not be reached any more",
    }
}

/// How it breaks at the boundary, in words; none if that is not known.
fn boundary(boundary: Boundary) -> Option<&'static str> {
    match boundary {
        Boundary::Cliff => Some("cliff: nothing warns before it"),
        Boundary::Gradual => Some("gradual: objectives are approached step by step"),
        Boundary::Unknown => None,
    }
}

/// What broke first, in one sentence.
fn binding(binding: &Binding) -> String {
    let method =
        binding.method.as_ref().map_or_else(String::new, |method| format!(" for {method}"));
    let seen = match (binding.observed, binding.limit) {
        (Some(observed), Some(limit)) => {
            format!(": {} where {} is allowed", short(observed), short(limit))
        }
        (Some(observed), None) => format!(": {}", short(observed)),
        (None, _) => String::new(),
    };
    format!("{}{method} at {}{seen}", binding.objective, rate(binding.rate))
}

/// Short of an answer, or with doubts about it.
fn doubts(result: &CapacityResult) -> Vec<String> {
    let answer = &result.answer;
    let monotone = (!answer.monotone).then_some(
        "a rate passed above one that failed: the boundary is not sharp, or the target changed",
    );
    let soak =
        (answer.soak_held == Some(false)).then_some("the soak at the highest pass did not hold");
    let own = monotone.into_iter().chain(soak).map(str::to_owned);
    own.chain(answer.degraded.clone()).collect()
}

fn head(result: &CapacityResult) -> Section {
    let class = match result.answer.end {
        End::Converged | End::RateMax => "pass",
        End::NothingPassed => "fail",
        End::ClientLimited => "client",
        End::Invalid | End::ProbesMax | End::Stopped => "invalid",
    };
    let part = if result.partial { "  PARTIAL: ended before its answer" } else { "" };
    let partial = Block::Partial("the search was ended before its answer");
    let (word, sentence) = (answer(result), &result.answer.sentence);
    let (head, rest) = (format!("CAPACITY {word}"), format!("{}{part}", result.plan.name));
    let ended = format!("ded because {}", end(&result.answer));
    let boundary = boundary(result.answer.boundary);
    let how = boundary.map(|how| format!(" [Boundary](boundary) {how}.")).unwrap_or_default();
    let search =
        text![format!("En{ended}. {}, on ", searched(result)), code(&result.target.url), "."];
    let of = |name: &str, what: &str| Block::Paragraph(text![bold(name), format!(": {what}.")]);
    Section::default()
        .on(FILES, result.partial.then_some(partial))
        .on(TERMINAL, Block::Banner(class, head, rest))
        .on(PAGE, Block::Verdict(class, word, sentence.clone(), doubts(result)))
        .on(PAGE, Block::Tiles(tiles(result)))
        .on(PAGE, Block::Note(Text::marked(&format!("En{ended}.{how}"))))
        .on(TERMINAL | MARKDOWN, Block::Paragraph(sentence.into()))
        .on(TERMINAL, Block::Paragraph(format!("en{ended}").into()))
        .on(MARKDOWN, Block::Paragraph(search))
        .on(MARKDOWN, result.binding.as_ref().map(|found| of("Binding", &binding(found))))
        .on(MARKDOWN, boundary.map(|how| of("Boundary", how)))
}

fn searched(result: &CapacityResult) -> String {
    format!("{} in {}", plural(result.probes.len() as u64, "probe"), span(result.duration))
}

/// What the terminal shows between the answer and the probes.
fn in_short(result: &CapacityResult) -> Section {
    let costs = result.costs.iter();
    let costs = costs.map(|cost| format!("{} {} ms", cost.process, short(cost.cpu_ms_per_request)));
    let costs: Vec<String> = costs.collect();
    let finding = result.bottleneck.as_ref();
    Section::default()
        .on(TERMINAL, result.binding.as_ref().map(|found| line("binding", binding(found))))
        .on(TERMINAL, boundary(result.answer.boundary).map(|how| line("boundary", how)))
        .on(TERMINAL, finding.map(|finding| line("bottleneck", &finding.sentence)))
        .on(TERMINAL, (!costs.is_empty()).then(|| line("CPU/request", costs.join(", "))))
        .on(TERMINAL, line("target", &result.target.url))
        .on(TERMINAL, line("search", searched(result)))
}

fn tiles(result: &CapacityResult) -> Vec<(&'static str, String, Text)> {
    let answer = &result.answer;
    let or_none = |value: Option<f64>, write: fn(f64) -> String| {
        value.map_or_else(|| String::from("–"), write)
    };
    let (soak, class) = match answer.soak_held {
        None => ("not made", ""),
        Some(true) => ("held", ""),
        Some(false) => ("broke", "bad"),
    };
    let precision = answer.highest_pass.zip(answer.lowest_fail).filter(|(pass, _)| *pass > 0.0);
    let precision = precision.map(|(pass, fail)| (fail - pass) / pass);
    [
        ("", or_none(answer.highest_pass, rate), "[highest pass](capacity)"),
        ("", or_none(answer.lowest_fail, rate), "[lowest fail](capacity)"),
        ("", or_none(precision, percent), "between them, of the pass"),
        (class, soak.to_owned(), "[soak](soak)"),
        ("", result.probes.len().to_string(), "[probes](probe)"),
    ]
    .map(|(class, value, about)| (class, value, Text::marked(about)))
    .to_vec()
}

/// Probes that are judged, and not looks at a low rate.
fn counted(result: &CapacityResult) -> impl Iterator<Item = &ProbeRow> {
    result.probes.iter().filter(|probe| probe.kind != Kind::Baseline)
}

/// Latency, failures and achieved rate against the rate that was asked for.
fn curves(result: &CapacityResult) -> Option<Section> {
    let most = counted(result).map(|probe| probe.rate).reduce(f64::max)?;
    let x = Axis::up_to(most.max(0.0), Scale::Number);
    let figure = |title: &str, tall, y: Axis, shapes: Vec<Shape>, keys: [(Ink, &str); 2]| {
        let chart = Chart::new(title, (WIDE, tall), (x.clone(), y), shapes);
        Block::Figure(chart, keys.map(|(ink, text)| (ink, text.to_owned())).to_vec())
    };
    let all = |of: fn(&ProbeRow) -> f64| counted(result).map(of);
    let dots = |of: fn(&ProbeRow) -> f64| counted(result).map(move |probe| dot(probe, of(probe)));
    let (p50, p99) = (Ink::Series(2), Ink::Series(0));

    let least = all(|probe| probe.latency.p50_ms).filter(|ms| *ms > 0.0).reduce(f64::min);
    let most = all(|probe| probe.latency.p99_ms).fold(0.0, f64::max);
    let mut latency = band(result);
    latency.push(medians(result, |probe| log(probe.latency.p50_ms), p50, 16));
    latency.push(medians(result, |probe| log(probe.latency.p99_ms), p99, 18));
    latency.extend(dots(|probe| log(probe.latency.p99_ms)));
    let y = Axis::log_ms(least.unwrap_or(0.1), most);
    let keys = [(p99, "p99"), (p50, "p50")];
    let latency = figure("Latency, all outcomes", 320, y, latency, keys);

    let most = all(|probe| probe.failed_share.max(probe.limited_share)).fold(0.001, f64::max);
    let failed = Ink::Series(5);
    let mut shares = band(result);
    shares.push(medians(result, |probe| probe.limited_share, Ink::Limited, 15));
    shares.push(medians(result, |probe| probe.failed_share, failed, 16));
    shares.extend(dots(|probe| probe.failed_share));
    let keys = [(failed, "failed"), (Ink::Limited, "limited (429)")];
    let y = Axis::up_to(most, Scale::Share);
    let shares = figure("Failed and limited calls", 180, y, shares, keys);

    let mut achieved = band(result);
    achieved.push(curve(vec![(0.0, 0.0), (x.to, x.to)], Ink::Plan, 14));
    achieved.push(medians(result, |probe| probe.rate_ended, p99, 16));
    achieved.extend(dots(|probe| probe.rate_ended));
    let keys = [(Ink::Plan, "as planned"), (p99, "ended")];
    let achieved = figure("Iterations ended per second", 220, x.clone(), achieved, keys);

    let key = |(ink, text): (Ink, &str)| {
        let class = ink.class();
        format!("<span class=\"key\"><i class=\"dot k-{class}\"></i>{text}\u{2003}</span>")
    };
    let keys = [(Ink::Good, "passed"), (Ink::Bad, "failed"), (Ink::Plan, "counts as neither")];
    let keys: String = keys.into_iter().map(key).collect();
    let note = Block::Note("First axis: planned iterations per second.".into());
    let section = Section::new("curves", "Against the rate").nav("Curves").lead(
        "Each point is a [probe](probe); curves go through the medians of their rates. The band lies \
         between the highest pass and the lowest fail: the [capacity](capacity) is in it.",
    );
    Some(
        section
            .on(PAGE, Block::Note(Span::Drawing(keys).into()))
            .on(PAGE, Block::Card(vec![latency, shares, achieved, note])),
    )
}

fn band(result: &CapacityResult) -> Vec<Shape> {
    let both = result.answer.highest_pass.zip(result.answer.lowest_fail);
    both.map(|x| Shape::Band(x, Ink::Limited, 0.28)).into_iter().collect()
}

fn dot(probe: &ProbeRow, y: f64) -> Shape {
    let (ink, filled) = match probe.judged {
        Judged::Pass => (Ink::Good, true),
        Judged::Fail => (Ink::Bad, false),
        Judged::ClientLimited | Judged::Invalid => (Ink::Plan, false),
    };
    let radius = if probe.kind == Kind::Soak { 6 } else { 4 };
    Shape::Dot { at: (probe.rate, y), ink, radius, filled }
}

/// A curve through the medians of all probes of a rate.
fn medians(result: &CapacityResult, of: fn(&ProbeRow) -> f64, ink: Ink, width: u32) -> Shape {
    let mut rates: Vec<f64> = counted(result).map(|probe| probe.rate).collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let points = rates.iter().filter_map(|rate| {
        let same = counted(result).filter(|probe| (probe.rate - rate).abs() < 1e-9);
        let mut values: Vec<f64> = same.map(of).collect();
        values.sort_by(f64::total_cmp);
        Some((*rate, *values.get(values.len() / 2)?))
    });
    curve(points.collect(), ink, width)
}

fn broke(result: &CapacityResult) -> Option<Section> {
    let found = result.binding.as_ref()?;
    let seen = format!("Seen in probe {}.", found.probe + 1);
    let what = Block::Paragraph(format!("{}.", binding(found)).into());
    let section = Section::new("binding", "What broke first").nav("What broke");
    Some(section.on(PAGE, Block::Card(vec![what, Block::Note(seen.into())])))
}

fn costs(result: &CapacityResult) -> Option<Section> {
    let table = table!(&result.costs, |cost|
        "<process" => &cost.process,
        "[CPU ms per request](CPU per request)" => short(cost.cpu_ms_per_request),
        "probe" => (cost.probe + 1).to_string(),
    );
    let section = Section::new("costs", "What a request costs");
    let section = section.lead("At the highest rate that passed.").on(PAGE, Block::Table(table));
    (!result.costs.is_empty()).then_some(section)
}

fn probes(result: &CapacityResult) -> Section {
    let near = result.answer.highest_pass.or(result.answer.lowest_fail).unwrap_or(0.0);
    let all: Vec<(usize, &ProbeRow)> = result.probes.iter().enumerate().collect();
    let mut chosen = all.clone();
    chosen.sort_by(|(_, a), (_, b)| (a.rate - near).abs().total_cmp(&(b.rate - near).abs()));
    chosen.truncate(PROBES);
    chosen.sort_by(|(_, a), (_, b)| a.rate.total_cmp(&b.rate).then(a.at.total_cmp(&b.at)));
    let mut on_terminal = probe_table(&chosen).at_most(PROBES, "probe");
    on_terminal.all = Some(all.len());
    Section::new("probes", "Probes")
        .nav("Probes")
        .lead("In the order of time. [Margin](margin): how far within the nearest limit.")
        .on(TERMINAL, Block::Table(on_terminal))
        .on(FILES, Block::Table(probe_table(&all)))
}

fn probe_table(probes: &[(usize, &ProbeRow)]) -> Table {
    let paint = |judged| match judged {
        Judged::Pass => "kept",
        Judged::Fail => "broken",
        Judged::ClientLimited | Judged::Invalid => "limited",
    };
    let margin = |margin: f64| format!("{:.0} %", margin * 100.0);
    let table = table!(probes, |(index, probe)|
        "# @p" => number(*index, probe),
        "at @mp" => clock(probe.at),
        "rate/s" => short(probe.rate),
        "<probe" => probe.kind.as_str(),
        "<judged" => tone(paint(probe.judged), probe.judged.as_str()),
        "ended/s @p" => short(probe.rate_ended),
        "results/s" => short(probe.goodput),
        "failed" => percent(probe.failed_share),
        "429 @p" => percent(probe.limited_share),
        "p50 ms" => bare_ms(probe.latency.p50_ms),
        "p95 ms" => bare_ms(probe.latency.p95_ms),
        "p99 ms" => bare_ms(probe.latency.p99_ms),
        "margin" => probe.margin.map_or_else(|| "–".to_owned(), margin),
        "begun @p" => percent(probe.delivered_share),
        "late p99 ms @p" => bare_ms(probe.lateness_p99_ms),
    );
    table.with_parts("even", |place| {
        let reasons = probes[place].1.reasons.iter();
        reasons.map(|reason| Row::across(1, reason, PAGE)).collect()
    })
}

/// The probe's number, linked to the page of its run if that was kept. The folder's name is ours,
/// but a result may come from elsewhere: only a plain name becomes a link.
fn number(index: usize, probe: &ProbeRow) -> Text {
    let plain = |name: &&str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !name.starts_with('.')
    };
    let text = (index + 1).to_string();
    match probe.folder.as_deref().filter(plain) {
        Some(folder) => Span::Link(text, format!("{folder}/report.html")).into(),
        None => text.into(),
    }
}

fn facts<const N: usize>(facts: [(&str, String); N]) -> Block {
    Block::Facts(facts.map(|(name, value)| (name.into(), value.into())).to_vec())
}

fn scaling(result: &CapacityResult) -> Option<Section> {
    let fit = result.scaling.as_ref()?;
    let peak = fit.peak_under_way.zip(fit.peak_rate);
    let peak =
        peak.map(|(under_way, peak)| format!("{} with {} under way", rate(peak), short(under_way)));
    let facts = facts([
        ("One alone", rate(fit.lambda)),
        ("Contention", percent(fit.sigma)),
        ("Coherency", percent(fit.kappa)),
        ("Peak", peak.unwrap_or_else(|| "none".to_owned())),
        ("Variance explained", percent(fit.r_squared)),
    ]);
    let probes = plural(fit.points as u64, "probe");
    let lead = format!("[A law fitted](scaling) to {probes}; it describes, and decides nothing.");
    Some(Section::new("scaling", "Scaling").lead(&lead).on(PAGE, facts))
}

/// Texts of code, separated by commas.
fn codes(texts: &[String]) -> Text {
    let mut spans = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        spans.extend((index > 0).then(|| Span::Plain(", ".to_owned())));
        spans.push(Span::Code(text.clone()));
    }
    Text(spans)
}

fn settings(result: &CapacityResult) -> Section {
    let settings = &result.settings;
    let (start, max) = (rate(settings.rate_start), rate(settings.rate_max));
    let (precision, baseline) = (percent(settings.precision), rate(settings.rate_baseline));
    let (probe, warmup, drain) =
        (span(settings.probe), span(settings.probe_warmup), span(settings.drain));
    let why = result.objectives_by_default.as_ref().map(|why| format!(" ({why})"));
    let objectives = text![codes(&result.objectives), why.unwrap_or_default()];
    let soak = if settings.soak > 0.0 { span(settings.soak) } else { "none".to_owned() };
    let rates = format!("from {start}, never above {max}, to {precision} of the highest pass");
    let probe = format!(
        "{probe}, the first {warmup} not judged, {} at each side of the boundary, {drain} to drain before \
         each",
        settings.repeats
    );
    let facts = vec![
        ("Objectives".into(), objectives),
        ("Rates".into(), rates.into()),
        ("A probe".into(), probe.into()),
        ("Baseline".into(), format!("at {baseline}").into()),
        ("Soak".into(), soak.into()),
    ];
    Section::new("search", "How it searched").on(PAGE, Block::Facts(facts))
}

fn origin(result: &CapacityResult) -> Section {
    let none = result.objectives.is_empty();
    let short = text![
        parts::plan_in_short(&result.weir, &result.started, &result.plan),
        "; objectives: ",
        if none { "none".into() } else { codes(&result.objectives) },
        ". Terms: docs/measuring.md."
    ];
    parts::origin(&result.plan, &result.target, &result.fingerprint)
        .on(MARKDOWN, Block::Paragraph(short))
}
