//! `weir logs`: summarizes access logs of the gateway or of nginx.
//!
//! Modules: `format` (line formats), `read` (parsing of a line), `sums` (counting), `report`
//! (printing). Memory use does not depend on the size of the files.

use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;

use crate::exit_code::EXIT_FAULTY;

mod format;
#[cfg(test)]
mod fuzz;
mod read;
mod report;
mod sums;

use format::Format;
use read::{LINE_BYTES_MAX, LineFault, LineParser};
use sums::Sums;

/// Summarize access logs
///
/// Prints requests per second by status, counts and percentiles per method, errors, and the busiest
/// clients. Reads the gateway's logs, as JSON or in your own format, and nginx's. Unreadable lines
/// are counted, and the first ones are printed.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir logs access.log
  weir logs access.log.2.gz access.log.1 access.log --by minute
  weir logs --format combined /var/log/nginx/access.log
  tail -n 100000 access.log | weir logs - --since 2026-11-21T22:00:00Z
  weir logs access.log --json | jq .methods

Exit codes: 0 summarized; 1 a file cannot be read, or no line could be parsed; 2 faulty arguments.")]
pub(crate) struct Logs {
    /// Log files, gzip or plain; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Format of the lines: json, combined, or a format text with variables
    #[arg(long, default_value = "json")]
    format: String,

    /// Interval of the rows: one per second or per minute
    #[arg(long, value_enum, default_value_t = Interval::Second)]
    by: Interval,

    /// Skip lines before this time, such as 2026-11-21T22:00:00Z
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,

    /// Skip lines at or after this time
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,

    /// Maximum number of rows of each table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Interval {
    Second,
    Minute,
}

/// Maximum number of unreadable lines that are printed. All unreadable lines are counted.
const FAULTS_SHOWN_MAX: usize = 5;

/// An unreadable line.
pub(crate) struct FaultyLine {
    file: String,
    number: u64,
    fault: LineFault,
}

impl Logs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let format = match Format::parse(&self.format) {
            Ok(format) => format,
            Err(fault) => return Ok(argument_error(&format!("--format: {fault}"))),
        };
        let parser = match LineParser::new(&format) {
            Ok(parser) => parser,
            Err(fault) => return Ok(argument_error(&format!("--format: {fault}"))),
        };
        let step_seconds = if self.by == Interval::Minute { 60 } else { 1 };
        let mut sums = Sums::new(step_seconds);
        let mut faulty_lines = Vec::new();
        for file in &self.files {
            let name = file.display().to_string();
            self.read_file(file, &name, &parser, &mut sums, &mut faulty_lines)
                .with_context(|| format!("cannot read {name}"))?;
        }
        if self.json {
            println!("{}", report::to_json(&sums, self.top));
        } else {
            print!("{}", report::to_tables(&sums, self.top));
        }
        for line in &faulty_lines {
            eprintln!("{}:{}: {}", line.file, line.number, line.fault);
        }
        if sums.lines == 0 && sums.faulty_lines > 0 {
            let hint = "no line could be parsed; set their format with --format";
            eprintln!("weir logs: {hint}");
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Adds all lines of a file to `sums`, and the first unreadable lines to `faulty_lines`.
    fn read_file(
        &self,
        file: &Path,
        name: &str,
        parser: &LineParser,
        sums: &mut Sums,
        faulty_lines: &mut Vec<FaultyLine>,
    ) -> io::Result<()> {
        let mut input = open_log(file)?;
        let unix_seconds =
            |time: Option<Timestamp>| time.map(|time| time.as_microsecond() as f64 / 1e6);
        let (since, until) = (unix_seconds(self.since), unix_seconds(self.until));
        let mut line = Vec::new();
        let mut number = 0;
        while read_line(&mut input, &mut line)? {
            number += 1;
            let text = line_as_text(&line);
            match text.and_then(|text| parser.parse(text)) {
                Ok(parsed) => {
                    let in_range = since.is_none_or(|since| parsed.seconds >= since)
                        && until.is_none_or(|until| parsed.seconds < until);
                    if in_range {
                        sums.add(&parsed);
                    }
                }
                Err(_) if line.is_empty() => {}
                Err(fault) => {
                    sums.faulty_lines += 1;
                    if faulty_lines.len() < FAULTS_SHOWN_MAX {
                        faulty_lines.push(FaultyLine { file: name.to_owned(), number, fault });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns a line as text. Checks the length first, because [`read_line`] may truncate a long line
/// within a character.
fn line_as_text(line: &[u8]) -> Result<&str, LineFault> {
    if line.len() > LINE_BYTES_MAX {
        return Err(LineFault::Length);
    }
    std::str::from_utf8(line).map_err(|_| LineFault::Shape)
}

fn argument_error(message: &str) -> ExitCode {
    eprintln!("weir logs: {message}");
    ExitCode::from(EXIT_FAULTY)
}

/// Opens a log file, or standard input for `-`. Decompresses gzip.
fn open_log(file: &Path) -> io::Result<Box<dyn BufRead>> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let raw: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(std::fs::File::open(file)?),
    };
    let mut raw = BufReader::with_capacity(1 << 17, raw);
    // The first bytes identify gzip, because standard input has no file name.
    if raw.fill_buf()?.starts_with(&GZIP) {
        return Ok(Box::new(BufReader::new(MultiGzDecoder::new(raw))));
    }
    Ok(Box::new(raw))
}

/// Reads a line without its line end. Returns false at the end of the input. A line that is too
/// long is truncated to one byte above the limit.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut has_line = false;
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok(has_line);
        }
        has_line = true;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let text = &chunk[..end.unwrap_or(chunk.len())];
        let capacity = (LINE_BYTES_MAX + 1).saturating_sub(line.len());
        line.extend_from_slice(&text[..text.len().min(capacity)]);
        let consumed = end.map_or(chunk.len(), |end| end + 1);
        input.consume(consumed);
        if end.is_some() {
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_truncated_within_a_character_is_too_long() {
        let text = format!("{{\"client\":\"{}\"}}\n", "ü".repeat(LINE_BYTES_MAX));
        for start in 0..2 {
            let (mut input, mut line) = (&text.as_bytes()[start..], Vec::new());
            assert!(read_line(&mut input, &mut line).unwrap());
            assert_eq!(line_as_text(&line), Err(LineFault::Length));
        }
        assert_eq!(line_as_text(b"\xff"), Err(LineFault::Shape));
    }
}
