//! A comparison as text for a terminal, and as Markdown.

use std::fmt::Write;

use crate::results::compare::{CompareResult, Difference, NormalRow};

impl Difference {
    /// As in a sentence: `eth_call latency p99 (+12.3 %, 8.1 to 16.9 %)`.
    pub fn in_words(&self) -> String {
        let name = self.metric.as_str().split(',').next().unwrap_or_default();
        let interval = self.shown_interval().map(|it| format!(", {it}")).unwrap_or_default();
        format!("{} {name} ({}{interval})", self.method, self.shown_change())
    }

    fn shown(&self, value: f64) -> String {
        number(if self.metric.is_share() { value * 100.0 } else { value })
    }

    fn shown_change(&self) -> String {
        match self.many_times() {
            true => times(self.change),
            false => format!("{:+.1} {}", self.change * 100.0, self.unit()),
        }
    }

    fn shown_interval(&self) -> Option<String> {
        self.interval.map(|(low, high)| match self.many_times() {
            true => format!("{} to {}", times(low), times(high)),
            false => format!("{:+.1} to {:+.1} {}", low * 100.0, high * 100.0, self.unit()),
        })
    }

    fn unit(&self) -> &'static str {
        if self.metric.is_share() { "points" } else { "%" }
    }

    /// Whether a factor says more than a percentage, which ends at −100 %.
    fn many_times(&self) -> bool {
        let factor = self.change + 1.0;
        !self.metric.is_share() && !(1.0 / TIMES..=TIMES).contains(&factor)
    }

    /// Metric, first, other, change, interval, p, verdict.
    pub(crate) fn cells(&self) -> [String; 7] {
        [
            self.metric.as_str().to_owned(),
            self.shown(self.a),
            self.shown(self.b),
            self.shown_change(),
            self.shown_interval().unwrap_or_else(|| "–".to_owned()),
            self.p.map_or("–".to_owned(), |p| {
                if p < 0.001 { "<0.001".into() } else { format!("{p:.3}") }
            }),
            self.verdict.as_str().to_owned(),
        ]
    }
}

/// From this factor on, changes are told as factors.
const TIMES: f64 = 3.0;

/// A relative change as a factor: `×12.0`, or `÷12.0` for a twelfth.
fn times(change: f64) -> String {
    let factor = (change + 1.0).max(1e-9);
    if factor >= 1.0 {
        format!("×{}", number(factor))
    } else {
        format!("÷{}", number(1.0 / factor))
    }
}

/// Three digits that matter.
fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".to_owned()
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

const HEAD: [&str; 7] = ["", "A", "B", "change", "95 % interval", "p", "verdict"];

/// For a terminal.
pub fn text(result: &CompareResult) -> String {
    let mut out = String::new();
    for (place, arm) in result.arms.iter().enumerate() {
        let letter = letter(place);
        let runs = if arm.runs == 1 { "1 run".to_owned() } else { format!("{} runs", arm.runs) };
        let _ = writeln!(out, "{letter}  {} ({}, {runs}): {}", arm.name, arm.tool, arm.described);
        for left_out in &arm.left_out {
            let _ = writeln!(out, "   left out: {left_out}");
        }
    }
    if !result.mismatches.is_empty() {
        let _ = writeln!(out, "\nNot the same:");
    }
    for one in &result.mismatches {
        let weight = one.weight.as_str();
        let _ = writeln!(
            out,
            "  {weight:<6}  {}: {} / {} ({}): {}",
            one.what,
            shortened(&one.a),
            shortened(&one.b),
            one.arm,
            one.why
        );
    }
    for arm in result.arms.iter().skip(1) {
        let own: Vec<&Difference> =
            result.differences.iter().filter(|one| one.arm == arm.name).collect();
        if !own.is_empty() {
            let _ = writeln!(out, "\nB = {}", arm.name);
            out.push_str(&table(&own));
        }
    }
    if worth_normalising(result) {
        let _ = writeln!(out, "\n{NORMAL_CAUTION}");
        for line in normal_lines(&result.normalised) {
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    for warning in &result.warnings {
        let _ = writeln!(out, "\n! {warning}");
    }
    for sentence in &result.sentences {
        let _ = writeln!(out, "\n{sentence}");
    }
    out
}

fn letter(place: usize) -> String {
    u8::try_from(place)
        .ok()
        .filter(|place| *place < 26)
        .map_or_else(|| (place + 1).to_string(), |place| char::from(b'A' + place).to_string())
}

/// The longest value that is shown of a mismatch.
const SHOWN_MAX: usize = 60;

fn shortened(value: &str) -> String {
    match value.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

fn table(own: &[&Difference]) -> String {
    let mut out = String::new();
    let rows: Vec<[String; 7]> = own.iter().map(|one| one.cells()).collect();
    let mut widths = HEAD.map(|head| head.chars().count());
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths[0] += 2;
    let _ = writeln!(out, "{}", aligned(&HEAD.map(str::to_owned), &widths));
    let mut method = "";
    for (one, row) in own.iter().zip(rows) {
        if one.method != method {
            method = &one.method;
            let _ = writeln!(out, "{method}  [{}]", one.basis.as_str());
        }
        let [name, rest @ ..] = row;
        let [a, b, change, interval, p, verdict] = rest;
        let cells = [format!("  {name}"), a, b, change, interval, p, verdict];
        let _ = writeln!(out, "{}", aligned(&cells, &widths));
    }
    out
}

/// The first and the last column to the left, the others to the right.
fn aligned(cells: &[String; 7], widths: &[usize; 7]) -> String {
    let mut line = format!("{:<1$}", cells[0], widths[0]);
    for (cell, width) in cells.iter().zip(widths).take(6).skip(1) {
        let _ = write!(line, "  {cell:>width$}");
    }
    let _ = write!(line, "  {}", cells[6]);
    line.trim_end().to_owned()
}

const NORMAL_CAUTION: &str = "Per core and per request. Caution: machines differ in more than cores; \
this says which is worth a measurement side by side, not which is faster.";

fn worth_normalising(result: &CompareResult) -> bool {
    let mut machines: Vec<&str> =
        result.normalised.iter().map(|row| row.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    machines.len() > 1 || result.arms.len() > 2
}

const NORMAL_HEAD: [&str; 7] =
    ["arm", "cores", "results/s", "per core", "p50, ms", "p99, ms", "CPU ms/request"];

fn normal_cells(row: &NormalRow) -> [String; 7] {
    let shown = |value: Option<f64>| value.map_or("–".to_owned(), number);
    [
        row.arm.clone(),
        shown(row.cores),
        shown(row.goodput),
        shown(row.goodput_per_core),
        shown(row.p50_ms),
        shown(row.p99_ms),
        shown(row.cpu_ms_per_request),
    ]
}

fn normal_lines(rows: &[NormalRow]) -> Vec<String> {
    let cells: Vec<[String; 7]> = rows.iter().map(normal_cells).collect();
    let mut widths = NORMAL_HEAD.map(|head| head.chars().count());
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 7], machine: &str| {
        let mut line = format!("  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            let _ = write!(line, "  {cell:>width$}");
        }
        format!("{line}  {machine}")
    };
    let head = line(&NORMAL_HEAD.map(str::to_owned), "machine");
    let rest = cells.iter().zip(rows).map(|(cells, row)| line(cells, &row.machine));
    std::iter::once(head).chain(rest).collect()
}

/// For a page or a review.
pub fn markdown(result: &CompareResult) -> String {
    let mut out = String::from("# Comparison\n");
    for sentence in &result.sentences {
        let _ = writeln!(out, "\n**{}**", escaped(sentence));
    }
    out.push_str("\n| | arm | tool | runs | what |\n| --- | --- | --- | --: | --- |\n");
    for (place, arm) in result.arms.iter().enumerate() {
        let described = escaped(&arm.described);
        let (letter, name) = (letter(place), escaped(&arm.name));
        let _ = writeln!(out, "| {letter} | {name} | {} | {} | {described} |", arm.tool, arm.runs);
    }
    for arm in result.arms.iter().skip(1) {
        let own: Vec<&Difference> =
            result.differences.iter().filter(|one| one.arm == arm.name).collect();
        if own.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n## B = {}\n", escaped(&arm.name));
        out.push_str(
            "| method | metric | A | B | change | 95 % interval | p | verdict | rests on |\n\
             | --- | --- | --: | --: | --: | --: | --: | --- | --- |\n",
        );
        for one in own {
            let cells = one.cells().join(" | ");
            let (method, basis) = (escaped(&one.method), one.basis.as_str());
            let _ = writeln!(out, "| {method} | {cells} | {basis} |");
        }
    }
    if !result.mismatches.is_empty() {
        out.push_str("\n## Not the same\n\n| | what | A | other | arm | so |\n");
        out.push_str("| --- | --- | --- | --- | --- | --- |\n");
    }
    for one in &result.mismatches {
        let cells = [&one.what, &one.a, &one.b, &one.arm, &one.why].map(|cell| escaped(cell));
        let _ = writeln!(out, "| {} | {} |", one.weight.as_str(), cells.join(" | "));
    }
    if worth_normalising(result) {
        let _ = writeln!(out, "\n## Per core and per request\n\n{NORMAL_CAUTION}\n");
        let _ = writeln!(out, "| {} | machine |", NORMAL_HEAD.join(" | "));
        out.push_str("| --- | --: | --: | --: | --: | --: | --: | --- |\n");
        for row in &result.normalised {
            let cells = normal_cells(row).map(|cell| escaped(&cell)).join(" | ");
            let _ = writeln!(out, "| {cells} | {} |", escaped(&row.machine));
        }
    }
    let left_out = result.arms.iter().flat_map(|arm| {
        arm.left_out.iter().map(move |one| format!("left out of {}: {one}", arm.name))
    });
    let notes: Vec<String> = result.warnings.iter().cloned().chain(left_out).collect();
    if !notes.is_empty() {
        out.push_str("\n## To know\n\n");
    }
    for note in notes {
        let _ = writeln!(out, "- {}", escaped(&note));
    }
    out
}

/// What was read from files must not become markup.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '*' | '_' | '`' | '<' | '[' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            '\n' | '\r' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}
