//! Renders `docs/demo.svg`, a picture of the demo's table for the documentation.
//!
//! The numbers come from one recorded run. The rows come from the report's code, so that `cargo
//! xtask generate` draws a new picture when the table changes.

use std::fmt::Write as _;

use super::paint::Paint;
use super::report::{LatencyByKind, LatencyByPath, Quantiles, Report};

#[cfg(test)]
mod tests;

const FONT_PX: usize = 13;
/// Width of a character. `textLength` enforces it, so that columns align in any font.
const CHAR_PX: usize = 8;
const LINE_PX: usize = 19;
const MARGIN_PX: usize = 20;

/// Renders the picture as SVG.
pub(crate) fn svg() -> String {
    let table = recorded_report().table(Paint::coloured());
    let lines: Vec<Vec<Piece>> = table.trim_matches('\n').lines().map(split_pieces).collect();
    let ends = lines.iter().flatten().map(|piece| piece.column + piece.text.chars().count());
    let width = ends.max().unwrap_or_default() * CHAR_PX + 2 * MARGIN_PX;
    let height = lines.len() * LINE_PX + 2 * MARGIN_PX;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"ui-monospace, monospace\" \
         font-size=\"{FONT_PX}\" role=\"img\">\n\
         <!-- Printed by `cargo xtask generate`. Do not edit. -->\n\
         <title>The table that weir demo prints</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        for piece in line {
            let (x, y) = (MARGIN_PX + piece.column * CHAR_PX, MARGIN_PX + row * LINE_PX + FONT_PX);
            let length = piece.text.chars().count() * CHAR_PX;
            let text = piece.text.replace('&', "&amp;").replace('<', "&lt;");
            let style = piece.style;
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" textLength=\"{length}\" {style}>{text}</text>"
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Text of one colour that contains no two consecutive spaces.
#[derive(Debug, PartialEq)]
struct Piece<'a> {
    /// Number of characters before the piece on its line.
    column: usize,
    /// SVG attributes.
    style: &'static str,
    text: &'a str,
}

/// Splits a line with terminal colour codes into pieces.
fn split_pieces(line: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut column = 0;
    for (index, section) in line.split("\x1b[").enumerate() {
        // Every section except the first begins with a colour code.
        let coloured = section.split_once('m').filter(|_| index > 0);
        let (code, text) = coloured.unwrap_or(("0", section));
        for padded in text.split_inclusive("  ") {
            let text = padded.trim();
            let indent = padded.chars().count() - padded.trim_start().chars().count();
            if !text.is_empty() {
                pieces.push(Piece { column: column + indent, style: svg_attributes(code), text });
            }
            column += padded.chars().count();
        }
    }
    pieces
}

/// Returns the SVG attributes of a colour code of `Paint`.
fn svg_attributes(code: &str) -> &'static str {
    match code {
        "1" => "fill=\"#ffffff\" font-weight=\"bold\"",
        "2" => "fill=\"#8b919c\"",
        "31" => "fill=\"#ff6b6b\"",
        "32" => "fill=\"#5ad67d\"",
        "33" => "fill=\"#e5c07b\"",
        _ => "fill=\"#d7dae0\"",
    }
}

/// Returns the recorded result of `weir demo` on 2026-11-25: a development build on a virtual
/// machine with two cores, Linux 6.18.
fn recorded_report() -> Report {
    let quantiles =
        |calls, p50, p99, max| Quantiles { calls, p50: Some(p50), p99: Some(p99), max: Some(max) };
    Report {
        requests: 30_000,
        client_errors: 0,
        wrong_answers: 0,
        compared: 30_000,
        not_compared: 0,
        unanswered: 0,
        hit_ratio: Some(0.8523),
        hits: 25_569,
        misses: 4_396,
        joined: 35,
        retried: 34,
        hedged: 30,
        hedges_won: 22,
        ejected: 1,
        readmitted: 1,
        heads: 19,
        reorgs: 2,
        reorg_depth_max: 3,
        seconds: 20.013,
        rate: 1_500,
        seed: 1,
        interrupted: false,
        latency_ms: LatencyByPath {
            gateway: LatencyByKind {
                head: quantiles(15_000, 0.179, 5.511, 21.039),
                history: quantiles(15_000, 0.216, 8.455, 205.311),
            },
            direct: LatencyByKind {
                head: quantiles(500, 4.307, 9.639, 14.815),
                history: quantiles(500, 4.403, 9.767, 27.935),
            },
        },
        late_p99_ms: Some(0.356),
        direct_errors: 0,
        nodes: Vec::new(),
        timeline: Vec::new(),
        faults: Vec::new(),
    }
}
