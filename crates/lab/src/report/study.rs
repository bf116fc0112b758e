//! A study of syncs for terminal, Markdown and folder. Its page is `html/study.rs`.
//!
//! Told from a [`StudyResult`] alone; what follows from it is decided in `analysis/sync/conclude.rs`.

use std::path::{Path, PathBuf};

use super::folder::{make, put_file};
use super::json::json;
use super::markdown::{escaped, push_list};
use super::number::{clock, count, percent, plural, short, span};
use super::text::{Paint, hanging, painted, plain, push_more, wrapped};
use super::{Colour, ReportFault, html};
use crate::analysis::calendar::rfc3339;
use crate::analysis::sync::ArmCourses;
use crate::analysis::sync::conclude::{change, main_row};
use crate::results::Word;
use crate::results::study::{Align, Source, StudyResult, TimeRow};

#[cfg(test)]
mod tests;

/// Rows of a table in the terminal.
const ROWS: usize = 24;
/// Warnings in the terminal.
const WARNINGS: usize = 6;

/// A table of cells with its head.
pub(super) struct Table {
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// See [`super::write_study`].
pub(super) fn write(
    dir: &Path,
    result: &StudyResult,
    arms: &[ArmCourses],
) -> Result<Vec<PathBuf>, ReportFault> {
    make(dir)?;
    Ok(vec![
        put_file(dir, "study.json", &json("study.json", result)?)?,
        put_file(dir, "samples.csv", &samples(arms)?)?,
        put_file(dir, "report.md", markdown(result).as_bytes())?,
        put_file(dir, "report.html", html::study::page(result).as_bytes())?,
    ])
}

/// Every sample of every run.
fn samples(arms: &[ArmCourses]) -> Result<Vec<u8>, ReportFault> {
    let form =
        |error: csv::Error| ReportFault::Form { file: "samples.csv", reason: error.to_string() };
    let mut table = csv::Writer::from_writer(Vec::new());
    let head = [
        "arm", "run", "elapsed", "time", "height", "used", "hit", "miss", "spill", "memory",
        "disk", "peers", "cpu",
    ];
    table.write_record(head).map_err(form)?;
    let whole = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    for arm in arms {
        for run in &arm.runs {
            for sample in &run.samples {
                let accesses = sample.accesses;
                table
                    .write_record([
                        arm.name.clone(),
                        run.label.clone(),
                        format!("{:.3}", sample.at - run.origin),
                        rfc3339(sample.at),
                        sample.height.to_string(),
                        whole(sample.used),
                        whole(accesses.map(|all| all.hit)),
                        whole(accesses.map(|all| all.miss)),
                        whole(accesses.map(|all| all.spill)),
                        whole(sample.memory),
                        whole(sample.disk),
                        whole(sample.peers),
                        sample.cpu.map_or_else(String::new, |cpu| format!("{cpu:.3}")),
                    ])
                    .map_err(form)?;
            }
        }
    }
    let full = |error: csv::IntoInnerError<_>| ReportFault::Form {
        file: "samples.csv",
        reason: error.to_string(),
    };
    table.into_inner().map_err(full)
}

/// The verdict in a word: that of the only other arm, or of all of them if they agree.
pub(super) fn verdict(result: &StudyResult) -> Word {
    let mut words = result.conclusions.iter().filter_map(|one| one.word);
    let first = words.next().unwrap_or(Word::CannotTell);
    if words.all(|word| word == first) { first } else { Word::CannotTell }
}

/// How the study was made, in one line.
pub(super) fn how(result: &StudyResult) -> String {
    let arms: Vec<String> = result
        .arms
        .iter()
        .map(|arm| format!("{} ({})", arm.name, plural(arm.runs.len() as u64, "run")))
        .collect();
    let from = match result.source {
        Source::Logs => "from logs",
        Source::Tables => "from tables",
        Source::Samples => "from samples",
        Source::Nodes => "from running nodes",
        Source::Runs => "run here",
    };
    let align = match result.align {
        Align::Clock => "compared by the clock",
        Align::Start => "compared by the time since each began",
    };
    let mut parts = vec![arms.join(", "), from.to_owned(), align.to_owned()];
    parts.extend(result.design.clone());
    parts.push(format!("bins of {} blocks", count(result.bin)));
    if result.stalls_subtracted {
        parts.push("stalls taken off".to_owned());
    }
    parts.join(" · ")
}

/// Times to heights: of each arm, then what each further one differs by.
pub(super) fn times(result: &StudyResult) -> Table {
    let mut heads = vec!["height".to_owned()];
    heads.extend(result.arms.iter().map(|arm| arm.name.clone()));
    for against in &result.against {
        let name = &against.other;
        heads.extend([
            format!("{name} later by"),
            "change".into(),
            "95 % interval".into(),
            "so".into(),
        ]);
    }
    let several = result.arms.iter().any(|arm| arm.runs.len() > 1);
    let row = |(place, height): (usize, &u64)| {
        let mut cells = vec![count(*height)];
        for arm in &result.arms {
            let known: Vec<f64> = arm
                .runs
                .iter()
                .filter_map(|run| run.times.get(place))
                .filter_map(|time| {
                    let stalled = if result.stalls_subtracted { time.stalled } else { 0.0 };
                    time.elapsed.map(|elapsed| elapsed - stalled)
                })
                .collect();
            cells.push(arm_time(&known, several));
        }
        for against in &result.against {
            match against.times.get(place) {
                Some(row) => cells.extend(difference(row)),
                None => cells.extend(std::iter::repeat_n(String::from("–"), 4)),
            }
        }
        cells
    };
    Table { heads, rows: result.heights.iter().enumerate().map(row).collect() }
}

/// A median, with the spread between runs.
fn arm_time(known: &[f64], several: bool) -> String {
    let Some(middle) = crate::analysis::statistics::median(known) else {
        return String::from("–");
    };
    let sorted = crate::analysis::statistics::sorted(known);
    match sorted.as_slice() {
        [least, .., most] if several => {
            format!("{} ({} to {})", time(middle), time(*least), time(*most))
        }
        _ => time(middle),
    }
}

/// A time on a clock; short ones in seconds.
pub(super) fn time(seconds: f64) -> String {
    if seconds.abs() < 60.0 { format!("{seconds:.1} s") } else { clock(seconds) }
}

pub(super) fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "−" } else { "+" };
    format!("{sign}{}", time(seconds.abs()))
}

fn difference(row: &TimeRow) -> [String; 4] {
    let none = || String::from("–");
    let Some(judged) = &row.judged else { return [none(), none(), none(), "not reached".into()] };
    let interval = judged
        .interval
        .map_or_else(none, |(low, high)| format!("{} to {}", change(low), change(high)));
    let word = if row.above_tip { "above the tip" } else { word(judged.verdict) };
    [signed(judged.b - judged.a), change(judged.change), interval, word.into()]
}

/// A verdict about times, in a word.
pub(super) fn word(word: Word) -> &'static str {
    match word {
        Word::Better => "faster",
        Word::Worse => "slower",
        Word::Same => "same",
        Word::Negligible => "negligible",
        Word::CannotTell => "cannot tell",
    }
}

/// Rates, hit ratios and work by height, of each arm.
pub(super) fn bins(result: &StudyResult) -> Table {
    let counters = result.arms.iter().any(|arm| arm.hit_ratios.iter().any(Option::is_some));
    let mut heads = vec!["from".to_owned()];
    heads.extend(result.arms.iter().map(|arm| format!("{} blocks/s", arm.name)));
    if counters {
        heads.extend(result.arms.iter().map(|arm| format!("{} hits", arm.name)));
        heads.extend(result.arms.iter().map(|arm| format!("{} pages/block", arm.name)));
    }
    let bins = result.arms.iter().map(|arm| arm.rates.len()).max().unwrap_or(0);
    let shown = |value: Option<&Option<f64>>, write: fn(f64) -> String| {
        value.copied().flatten().map_or_else(|| String::from("–"), write)
    };
    let row = |place: usize| {
        let mut cells = vec![count(place as u64 * result.bin)];
        cells.extend(result.arms.iter().map(|arm| shown(arm.rates.get(place), short)));
        if counters {
            cells.extend(result.arms.iter().map(|arm| shown(arm.hit_ratios.get(place), percent)));
            cells
                .extend(result.arms.iter().map(|arm| shown(arm.pages_per_block.get(place), short)));
        }
        cells
    };
    Table { heads, rows: (0..bins).map(row).collect() }
}

/// What each run came to.
pub(super) fn runs(result: &StudyResult) -> Table {
    let heads =
        ["arm", "run", "began", "took", "height", "samples", "cache full", "hits", "memory", "CPU"];
    let mut rows = Vec::new();
    for arm in &result.arms {
        for run in &arm.runs {
            let none = || String::from("–");
            let full = run.cache_full.map_or_else(none, |full| {
                format!("{} (height {})", time(full.elapsed), count(full.height))
            });
            rows.push(vec![
                arm.name.clone(),
                run.label.clone(),
                run.first.clone(),
                time(run.elapsed),
                count(run.height),
                format!("{} every {} s", count(run.samples as u64), short(run.period)),
                full,
                run.hit_ratio.map_or_else(none, percent),
                run.memory_max.map_or_else(none, |bytes| super::number::bytes(bytes as f64)),
                run.cpu.map_or_else(none, |cpu| span(cpu.round())),
            ]);
        }
    }
    Table { heads: heads.map(String::from).to_vec(), rows }
}

/// See [`super::study_text`].
pub(super) fn text(result: &StudyResult, colour: Colour) -> String {
    let (name, paint) = match verdict(result) {
        Word::CannotTell => ("CANNOT TELL", Paint::Doubt),
        Word::Same => ("SAME", Paint::Good),
        Word::Negligible => ("NEGLIGIBLE", Paint::Good),
        Word::Better => ("FASTER", Paint::Good),
        Word::Worse => ("SLOWER", Paint::Bad),
    };
    let part = if result.partial { "  PARTIAL: ended before its plan" } else { "" };
    let mut lines =
        vec![format!("{}  {}{part}", painted(name, paint, colour), plain(&result.name))];
    lines.extend(wrapped(&how(result)));
    for arm in &result.arms {
        for left_out in &arm.left_out {
            lines.extend(wrapped(&format!("left out: {}, {left_out}", arm.name)));
        }
    }
    lines.push(String::new());
    push_table(&mut lines, &times(result));
    lines.push(String::new());
    push_table(&mut lines, &bins(result));
    lines.push(String::new());
    for one in &result.conclusions {
        lines.extend(hanging(&format!("{:<9}", one.about.as_str()), &one.text));
    }
    for warning in result.warnings.iter().take(WARNINGS) {
        lines.extend(wrapped(&format!("warning: {warning}")));
    }
    push_more(&mut lines, result.warnings.len(), WARNINGS, "warning");
    lines.join("\n") + "\n"
}

fn push_table(lines: &mut Vec<String>, table: &Table) {
    let widths: Vec<usize> = (0..table.heads.len())
        .map(|column| {
            let cells = table.rows.iter().filter_map(|row| row.get(column));
            let lengths = cells.chain(table.heads.get(column)).map(|cell| cell.chars().count());
            lengths.max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let padded =
            cells.iter().zip(&widths).map(|(cell, width)| format!("{:>width$}", plain(cell)));
        padded.collect::<Vec<_>>().join("  ")
    };
    lines.push(line(&table.heads));
    lines.extend(table.rows.iter().take(ROWS).map(|row| line(row)));
    push_more(lines, table.rows.len(), ROWS, "row");
}

/// See [`super::study_markdown`].
pub(super) fn markdown(result: &StudyResult) -> String {
    let mut text = format!("## Study: {}\n\n", escaped(&result.name));
    if let Some(question) = &result.question {
        text += &format!("{}\n\n", escaped(question));
    }
    if result.partial {
        text += "> **Partial result**: the study was ended before its plan.\n\n";
    }
    text += &format!("{}\n\n### What follows\n\n", escaped(&how(result)));
    for one in &result.conclusions {
        let arm = one.arm.as_ref().map_or_else(String::new, |arm| format!(" ({})", escaped(arm)));
        text += &format!("- **{}**{arm}: {}\n", one.about.as_str(), escaped(&one.text));
    }
    let left_out: Vec<String> = result
        .arms
        .iter()
        .flat_map(|arm| arm.left_out.iter().map(|one| format!("{}, {one}", arm.name)))
        .collect();
    push_list(&mut text, "Left out", &left_out);
    push_table_md(&mut text, "Times to heights", &times(result));
    push_table_md(&mut text, "By height", &bins(result));
    push_table_md(&mut text, "Runs", &runs(result));
    push_list(&mut text, "Warnings", &result.warnings);
    text += &format!(
        "\nweir {}, {}; every sample is in samples.csv, everything else in study.json. Rules: docs/studies.md.\n",
        result.weir, result.schema
    );
    text
}

fn push_table_md(text: &mut String, title: &str, table: &Table) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escaped(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    *text += &format!("\n### {title}\n\n{}", line(&table.heads));
    *text += &format!("|{}\n", " --: |".repeat(table.heads.len()));
    table.rows.iter().for_each(|row| *text += &line(row));
}

/// The time that is judged, of the first comparison: what a page shows large.
pub(super) fn main(result: &StudyResult) -> Option<&TimeRow> {
    main_row(result, result.against.first()?)
}
