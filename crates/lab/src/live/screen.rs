//! Draws a run (`draw.rs`) on the full screen (`full_screen.rs`), and handles its keys.
//!
//! A separate thread reads keys and draws, so a slow terminal never slows a run. The thread draws
//! on standard error, because standard output is for the result. When a key stops the run, the
//! thread restores the terminal at once. From then on, Ctrl-C is a signal and not a key, so the
//! user can interrupt the end of the run.

use std::io::{self, Stderr, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lab_model::plan::Plan;
use parking_lot::Mutex;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::draw::draw;
use super::full_screen::FullScreen;
use super::state::{State, TimePeriod};
use crate::run::{Progress, Stop};

#[cfg(test)]
mod tests;

/// Interval of polls for keys. A new state is drawn after at most this time.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The full screen of a run. Finishing or dropping the value restores the terminal.
#[derive(Debug)]
pub struct Screen {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The data that the screen's thread and the thread of the run share.
#[derive(Debug)]
struct Shared {
    /// Both threads hold the lock only for milliseconds: to add a second, or to draw.
    state: Mutex<State>,
    /// True if the state has changed since it was drawn.
    changed: AtomicBool,
    /// True if the run has ended.
    finished: AtomicBool,
    stop: Arc<Stop>,
}

impl Screen {
    /// Switches to the full screen. The keys `q`, Esc and Ctrl-C request `stop`. The environment
    /// variable `NO_COLOR` disables colours (<https://no-color.org>).
    ///
    /// # Errors
    /// Fails if standard error is not a suitable terminal. In that case the terminal is not
    /// changed.
    pub fn start(plan: &Arc<Plan>, stop: &Arc<Stop>) -> io::Result<Screen> {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(Arc::clone(plan), colour)),
            changed: AtomicBool::new(true),
            finished: AtomicBool::new(false),
            stop: Arc::clone(stop),
        });
        let full_screen = FullScreen::enter()?;
        let mut terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            let is_stopped_by_key = thread_shared.draw_until_over(&mut terminal);
            // This restores the terminal. If the thread panics, unwinding restores it.
            drop(full_screen);
            if is_stopped_by_key {
                // Standard error may be closed, so an error is ignored.
                let _ = writeln!(io::stderr(), "stopping; the results so far are saved");
            }
        })?;
        Ok(Screen { shared, thread: Some(thread) })
    }

    /// Updates the screen at the end of a second.
    pub fn update(&self, progress: &Progress<'_>) {
        self.shared.state.lock().update(progress);
        self.shared.changed.store(true, Ordering::Release);
    }

    /// Restores the terminal.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.shared.finished.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has printed the message and restored the
            // terminal.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Draws until the run is over or stopped. Returns true if a key stopped the run.
    fn draw_until_over(&self, terminal: &mut Terminal<CrosstermBackend<Stderr>>) -> bool {
        while !self.finished.load(Ordering::Acquire) && !self.stop.is_requested() {
            if self.changed.swap(false, Ordering::AcqRel) {
                let state = self.state.lock();
                // A closed terminal ends the screen, not the run.
                if terminal.draw(|frame| draw(frame, &state)).is_err() {
                    return false;
                }
            }
            match event::poll(POLL_INTERVAL) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) if self.handle(&event) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                },
                Err(_) => return false,
            }
        }
        false
    }

    /// Handles an event. Returns true if the event stops the run.
    fn handle(&self, event: &Event) -> bool {
        match event {
            Event::Resize(..) => {}
            Event::Key(key) if key.kind == KeyEventKind::Press => match command_of(*key) {
                Some(Command::Stop) => {
                    self.stop.request();
                    return true;
                }
                Some(Command::ToggleTimes) => {
                    let mut state = self.state.lock();
                    state.table_period = match state.table_period {
                        TimePeriod::LastSecond => TimePeriod::WholeRun,
                        TimePeriod::WholeRun => TimePeriod::LastSecond,
                    };
                }
                None => return false,
            },
            _ => return false,
        }
        self.changed.store(true, Ordering::Release);
        false
    }
}

/// A command that the user gives with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Stop,
    ToggleTimes,
}

/// Returns the command of a key, or `None` if the key has no command.
fn command_of(key: KeyEvent) -> Option<Command> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Some(Command::Stop),
        KeyCode::Char('q') | KeyCode::Esc if !control => Some(Command::Stop),
        KeyCode::Char('t') if !control => Some(Command::ToggleTimes),
        _ => None,
    }
}
