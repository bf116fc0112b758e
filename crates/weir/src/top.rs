//! `weir top`: a live view of a running gateway in the terminal.
//!
//! A thread reads `/status` at the admin address each second. `status.rs` parses a status.
//! `view.rs` computes a *view* from two statuses: the values of the interval between them, with
//! rates. `draw.rs` lays out a view as lines. This file has the command, the keys and the terminal.

use std::io::{self, IsTerminal as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use lab::live::full_screen::FullScreen;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::control::{DEFAULT_ADMIN, read_status, read_status_of_gateway};
use crate::terminal::no_color;

mod draw;
mod status;
mod view;

#[cfg(test)]
mod tests;

use draw::Screen;
use status::Status;
use view::View;

/// Interval at which the status is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time until a key takes effect.
const KEY_POLL: Duration = Duration::from_millis(100);
/// Width of the lines of `--once`. All columns fit.
const PRINT_WIDTH: u16 = 160;

/// Show the upstreams, rates and cache of a running gateway, live
///
/// Reads the status at the admin address each second. Rates cover the last second, and latencies
/// the time since the start of the gateway. If the output is not a terminal, prints the values of
/// one second and ends. Keys: q ends, s changes the order of upstreams, the arrows scroll.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  weir top
  weir top --admin 127.0.0.1:9646
  weir top --once

Exit codes: 0 done; 1 no gateway was found; 2 faulty arguments.")]
pub(crate) struct Top {
    /// Admin address of the gateway
    #[arg(long, value_name = "IP:PORT", default_value = DEFAULT_ADMIN)]
    admin: SocketAddr,

    /// Print the values of one second and end
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let first_status = parse(read_status_of_gateway(self.admin)?)?;
        let is_terminal =
            io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal();
        if self.once || !is_terminal {
            self.print_once(&first_status)?;
        } else {
            self.show_live(first_status)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints the values of one second.
    fn print_once(&self, first_status: &Status) -> Result<()> {
        std::thread::park_timeout(INTERVAL);
        let second_status = parse(read_status_of_gateway(self.admin)?)?;
        let screen = Screen::new(self.admin, View::new(&second_status, Some(first_status)));
        let text: String =
            screen.text(PRINT_WIDTH).iter().map(|line| format!("{line}\n")).collect();
        print!("{text}");
        Ok(())
    }

    /// Shows the values until the user quits.
    fn show_live(&self, first_status: Status) -> Result<()> {
        let readings = start_reader(self.admin)?;
        let colour = !no_color();
        let mut screen = Screen::new(self.admin, View::new(&first_status, None));
        let (mut last_status, mut last_read) = (first_status, Instant::now());
        let _full_screen = FullScreen::enter().context("the terminal is not suitable")?;
        let mut terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        loop {
            for reading in readings.try_iter() {
                match reading {
                    Ok(status) => {
                        screen.update(View::new(&status, Some(&last_status)));
                        (last_status, last_read) = (status, Instant::now());
                    }
                    Err(error) => screen.report_error(&format!("{error:#}"), last_read.elapsed()),
                }
            }
            terminal.draw(|frame| screen.draw(frame, colour))?;
            if event::poll(KEY_POLL)? && handle_event(&event::read()?, &mut screen) {
                return Ok(());
            }
        }
    }
}

/// Starts a thread that reads the status each second. The thread ends when the receiver is dropped.
fn start_reader(admin: SocketAddr) -> Result<Receiver<Result<Status>>> {
    let (sender, readings) = sync_channel(1);
    let read = move || {
        let mut read_start = Instant::now();
        loop {
            while let Some(remaining) = INTERVAL.checked_sub(read_start.elapsed()) {
                std::thread::park_timeout(remaining);
            }
            read_start = Instant::now();
            if sender.send(read_status(admin).and_then(parse)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("status".to_owned()).spawn(read)?;
    Ok(readings)
}

fn parse(status: serde_json::Value) -> Result<Status> {
    serde_json::from_value(status).context("the status is of another version of weir")
}

/// Handles an event. Returns true if the user quits.
fn handle_event(event: &Event, screen: &mut Screen) -> bool {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Press => match command_of_key(*key) {
            Some(Command::Quit) => return true,
            Some(Command::Sort) => screen.sort_by_next(),
            Some(Command::Scroll(lines)) => screen.scroll(lines),
            None => {}
        },
        _ => {}
    }
    false
}

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Sort,
    /// Scroll down by this many lines; up if it is negative.
    Scroll(i16),
}

fn command_of_key(key: KeyEvent) -> Option<Command> {
    let has_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if has_control => Some(Command::Quit),
        _ if has_control => None,
        KeyCode::Char('q') | KeyCode::Esc => Some(Command::Quit),
        KeyCode::Char('s') => Some(Command::Sort),
        KeyCode::Down | KeyCode::Char('j') => Some(Command::Scroll(1)),
        KeyCode::Up | KeyCode::Char('k') => Some(Command::Scroll(-1)),
        KeyCode::PageDown => Some(Command::Scroll(10)),
        KeyCode::PageUp => Some(Command::Scroll(-10)),
        _ => None,
    }
}
