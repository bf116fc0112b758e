//! The document of a sync study: conclusions, heights, leads, rates and hit ratios.
//!
//! Each arm has one colour in all charts. Several runs of an arm are thin lines, and values over
//! all of them are thick ones. In every chart a lead above zero means that the other arm leads.
//! `wording/conclude.rs` writes the conclusions.

mod charts;

use lab_model::results::Word;
use lab_model::results::study::{About, Align, ArmRow, CacheFull, Source, StudyResult, TimeRow};

use super::document::{
    ALL, Block, Document, FILES, List, MARKDOWN, PAGE, Section, TERMINAL, Table, Text, bold, cells,
    table, text, tone,
};
use super::parts::{self, line};
use crate::analysis::statistics::{median, sorted};
use crate::analysis::sync::judge::main_row;
use crate::wording::conclude::change;
use crate::wording::number::{bytes, clock, count, percent, plural, short, span};

#[cfg(test)]
mod tests;

/// Maximum number of rows of a table on the terminal.
const ROWS: usize = 24;
/// Maximum number of warnings on the terminal.
const WARNINGS: usize = 6;

/// Builds the document of a study.
pub(super) fn document(result: &StudyResult) -> Document {
    let out = |on| parts::left_out(result.arms.iter().map(|arm| (&arm.name, &arm.left_out)), on);
    let warnings = |on| parts::warnings(&result.warnings, WARNINGS, on);
    let mut sections = vec![
        Some(head(result)),
        out(TERMINAL),
        Some(conclusions(result)),
        out(MARKDOWN),
        warnings(PAGE),
        Some(times(result)),
        Some(charts::height(result)),
    ];
    let leads = result.against.iter().enumerate();
    sections.extend(leads.map(|(place, one)| Some(charts::leads(result, place, one))));
    sections.extend([
        Some(charts::rates(result)),
        Some(bins(result)),
        Some(runs(result)),
        out(PAGE),
        Some(terminal_conclusions(result)),
        warnings(TERMINAL | MARKDOWN),
        Some(written(result)),
    ]);
    let question = result.question.as_ref().map(Text::from);
    Document {
        command: "weir study sync",
        title: result.name.clone(),
        window: format!("study: {}", result.name),
        heading: format!("Study: {}", result.name),
        lead: question.into_iter().chain([Text::from(how(result))]).collect(),
        sections: sections.into_iter().flatten().collect(),
        glossary: false,
    }
}

/// Returns the verdict about the other arms if all verdicts agree, else "cannot tell".
fn verdict(result: &StudyResult) -> Word {
    let mut words = result.conclusions.iter().filter_map(|one| one.word);
    let first = words.next().unwrap_or(Word::CannotTell);
    if words.all(|word| word == first) { first } else { Word::CannotTell }
}

/// Returns the word for a verdict about times.
fn word(word: Word) -> &'static str {
    match word {
        Word::Better => "faster",
        Word::Worse => "slower",
        other => other.as_str(),
    }
}

/// Describes arms, source and alignment in one line.
fn how(result: &StudyResult) -> String {
    let arms = result.arms.iter();
    let arms = arms.map(|arm| format!("{} ({})", arm.name, plural(arm.runs.len() as u64, "run")));
    let arms: Vec<String> = arms.collect();
    let from = match result.source {
        Source::Logs => "from logs",
        Source::Tables => "from tables",
        Source::Samples => "from samples",
        Source::Nodes => "from running nodes",
        Source::Runs => "run by this study",
    };
    let align = match result.align {
        Align::Clock => "aligned by clock",
        Align::Start => "aligned by start",
    };
    let mut parts = vec![arms.join(", "), from.to_owned(), align.to_owned()];
    parts.extend(result.design.clone());
    parts.push(format!("bins of {} blocks", count(result.bin)));
    if result.stalls_subtracted {
        parts.push("stalls subtracted".to_owned());
    }
    parts.join(" · ")
}

fn head(result: &StudyResult) -> Section {
    let judged = verdict(result);
    let class = match judged {
        Word::Better | Word::Same | Word::Negligible => "pass",
        Word::Worse => "fail",
        Word::CannotTell => "invalid",
    };
    let head = word(judged).to_uppercase();
    let of_verdict = result.conclusions.iter().filter(|one| one.about == About::Verdict);
    let reasons = of_verdict.map(|one| one.text.clone()).collect();
    let part = if result.partial { "  PARTIAL: ended before its plan" } else { "" };
    let banner = Block::Banner(class, head.clone(), format!("{}{part}", result.name));
    let partial = Block::Partial("the study ended before its plan");
    let question = result.question.as_ref();
    Section::default()
        .on(MARKDOWN, question.map(|text| Block::Paragraph(text.into())))
        .on(FILES, result.partial.then_some(partial))
        .on(PAGE, Block::Verdict(class, head, String::new(), reasons))
        .on(PAGE, tiles(result))
        .on(TERMINAL, banner)
        .on(TERMINAL | MARKDOWN, Block::Paragraph(how(result).into()))
}

fn tiles(result: &StudyResult) -> Option<Block> {
    let against = result.against.first()?;
    let row = main_row(result, against)?;
    let judged = row.judged.as_ref()?;
    let spread = judged.a_spread.into_iter().chain(judged.b_spread).reduce(f64::max);
    let height = count(row.height);
    let tiles = [
        (time(judged.a), format!("{} to {height}", against.first)),
        (time(judged.b), format!("{} to {height}", against.other)),
        (signed(judged.b - judged.a), "difference".into()),
        (change(judged.change), "change".into()),
        (spread.map_or_else(|| "unknown".into(), time), "largest spread between repeats".into()),
        (percent(judged.floor), "smallest change that matters".into()),
    ];
    Some(Block::Tiles(tiles.map(|(value, about)| ("", value, Text::from(about))).to_vec()))
}

/// Returns the conclusions. The page has the verdict at the top.
fn conclusions(result: &StudyResult) -> Section {
    let items = result.conclusions.iter().map(|one| {
        let arm = one.arm.as_ref().map_or_else(String::new, |arm| format!(" ({arm})"));
        text![bold(one.about.as_str()), format!("{arm}: {}", one.text)]
    });
    let others = result.conclusions.iter().filter(|one| one.about != About::Verdict);
    let facts = others.map(|one| {
        let arm = one.arm.as_ref().filter(|_| result.against.len() > 1);
        let arm = arm.map_or_else(String::new, |arm| format!(", {arm}"));
        (format!("{}{arm}", one.about.as_str()).into(), Text::from(&one.text))
    });
    Section::new("conclusions", "Conclusions")
        .nav("Conclusions")
        .on(MARKDOWN, Block::List(List::of(items)))
        .on(PAGE, Block::Facts(facts.collect()))
}

/// Returns the conclusions for the terminal, which prints them last.
fn terminal_conclusions(result: &StudyResult) -> Section {
    let lines = result.conclusions.iter().map(|one| line(one.about.as_str(), &one.text));
    lines.fold(Section::default(), |section, line| section.on(TERMINAL, line))
}

/// Returns the times to heights: first the times of each arm, then the differences of the other
/// arms from the first.
fn times(result: &StudyResult) -> Section {
    let mut table = Table::new(&["height"]).at_most(ROWS, "row");
    result.arms.iter().for_each(|arm| table.column(&arm.name));
    for against in &result.against {
        let later = format!("{} later by", against.other);
        [&*later, "change", "95 % interval", "verdict"].iter().for_each(|head| table.column(head));
    }
    let several = result.arms.iter().any(|arm| arm.runs.len() > 1);
    for (place, height) in result.heights.iter().enumerate() {
        let mut cells = cells![count(*height)];
        for arm in &result.arms {
            let times = arm.runs.iter().filter_map(|run| run.times.get(place));
            let times = times.filter_map(|time| {
                let stalled = if result.stalls_subtracted { time.stalled } else { 0.0 };
                time.elapsed.map(|elapsed| elapsed - stalled)
            });
            cells.push(arm_time(&times.collect::<Vec<_>>(), several).into());
        }
        for against in &result.against {
            let row = against.times.get(place).map(difference);
            cells.extend(row.unwrap_or_else(|| cells!["–", "–", "–", "–"]));
        }
        table.row(cells);
    }
    Section::new("times", "Times to heights")
        .nav("Times")
        .lead(
            "From the start of a run to its first sample at or above the height; with several runs the \
             median, the fastest and the slowest. The main result is the last height that all reached.",
        )
        .on(ALL, Block::Table(table))
}

/// Formats the median with the range over runs.
fn arm_time(known: &[f64], several: bool) -> String {
    let Some(middle) = median(known) else { return String::from("–") };
    match sorted(known).as_slice() {
        [least, .., most] if several => {
            format!("{} ({} to {})", time(middle), time(*least), time(*most))
        }
        _ => time(middle),
    }
}

/// Formats a time in clock format, or in seconds if it is below a minute.
fn time(seconds: f64) -> String {
    if seconds.abs() < 60.0 { format!("{seconds:.1} s") } else { clock(seconds) }
}

fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "+" };
    format!("{sign}{}", time(seconds.abs()))
}

fn difference(row: &TimeRow) -> Vec<Text> {
    let Some(judged) = &row.judged else { return cells!["–", "–", "–", "not reached"] };
    let interval = judged.interval.map_or_else(
        || "–".to_owned(),
        |(low, high)| format!("{} to {}", change(low), change(high)),
    );
    let paint = match judged.verdict {
        Word::Better => "kept",
        Word::Worse => "broken",
        Word::CannotTell => "weak",
        Word::Same | Word::Negligible => "",
    };
    let verdict = match row.above_tip {
        true => "above the tip".into(),
        false => tone(paint, word(judged.verdict)),
    };
    cells![signed(judged.b - judged.a), change(judged.change), interval, verdict]
}

/// Returns each arm's rates, hit ratios and page accesses by height.
fn bins(result: &StudyResult) -> Section {
    let arms = &result.arms;
    let counters = arms.iter().any(|arm| arm.hit_ratios.iter().any(Option::is_some));
    type Kind = (&'static str, fn(&ArmRow) -> &[Option<f64>], fn(f64) -> String);
    let kinds: [Kind; 3] = [
        (" blocks/s", |arm| &arm.rates, short),
        (" hits", |arm| &arm.hit_ratios, percent),
        (" pages/block", |arm| &arm.pages_per_block, short),
    ];
    let kinds = &kinds[..if counters { 3 } else { 1 }];
    let columns = || kinds.iter().flat_map(|kind| arms.iter().map(move |arm| (kind, arm)));
    let mut table = Table::new(&["from"]).at_most(ROWS, "row");
    columns().for_each(|((unit, ..), arm)| table.column(format!("{}{unit}", arm.name)));
    for place in 0..arms.iter().map(|arm| arm.rates.len()).max().unwrap_or(0) {
        let cells = columns().map(|((_, of, write), arm)| {
            let value = of(arm).get(place).copied().flatten();
            Text::from(value.map_or_else(|| "–".to_owned(), write))
        });
        let from = Text::from(count(place as u64 * result.bin));
        table.row(std::iter::once(from).chain(cells).collect());
    }
    let section = Section::new("bins", "By height, in numbers").nav("Numbers");
    section.on(ALL, Block::Table(table))
}

/// The runs of all arms.
fn runs(result: &StudyResult) -> Section {
    let none = || String::from("–");
    let full = |at: CacheFull| format!("{} (height {})", time(at.elapsed), count(at.height));
    let all = result.arms.iter().flat_map(|arm| arm.runs.iter().map(move |run| (arm, run)));
    let table = table!(all, |(arm, run)|
        "<arm" => &arm.name,
        "<run" => &run.label,
        "<started" => &run.first,
        "took" => time(run.elapsed),
        "height" => count(run.height),
        "samples" => format!("{} every {} s", count(run.samples as u64), short(run.period)),
        "cache full" => run.cache_full.map_or_else(none, full),
        "hits" => run.hit_ratio.map_or_else(none, percent),
        "memory" => run.memory_max.map_or_else(none, |most| bytes(most as f64)),
        "CPU" => run.cpu.map_or_else(none, |cpu| span(cpu.round())),
    );
    Section::new("runs", "Runs").nav("Runs").on(FILES, Block::Table(table))
}

fn written(result: &StudyResult) -> Section {
    let note = format!(
        "weir {}, {}; samples.csv has every sample, study.json everything else. Rules: docs/studies.md.",
        result.weir, result.schema
    );
    Section::default().on(FILES, Block::Note(note.into()))
}
