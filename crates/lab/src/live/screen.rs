//! The terminal: taken, drawn on, given back. What is drawn is in `draw.rs`.
//!
//! A thread of its own owns it, reads keys and draws when there is something new, so that a slow
//! terminal never slows a run. It is drawn on standard error: standard output is for the result.
//! Once an end is asked for, by a key or otherwise, the terminal is given back at once: from then on
//! Ctrl-C is a signal again, for whoever does not want to wait for an end in order.

use std::io::{self, Stderr, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use lab_model::plan::Plan;
use parking_lot::Mutex;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

use super::draw::draw;
use super::state::{Span, State};
use crate::run::{Progress, Stop};

#[cfg(test)]
mod tests;

/// Longest time from a new state to its picture, and from a key to what it does.
const LOOK: Duration = Duration::from_millis(100);

/// A screen that is shown until it is finished or dropped.
#[derive(Debug)]
pub struct Screen {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Held while a second is taken in and while a picture is drawn, both within milliseconds.
    state: Mutex<State>,
    /// There is something new to draw.
    fresh: AtomicBool,
    over: AtomicBool,
    stop: Arc<Stop>,
}

/// Whether the terminal is ours; the panic hook asks.
static TAKEN: AtomicBool = AtomicBool::new(false);

impl Screen {
    /// Takes the terminal. The keys `q` and Ctrl-C ask `stop`. Colours are left out if the
    /// environment says `NO_COLOR` (<https://no-color.org>).
    ///
    /// # Errors
    /// If standard error is no terminal that can be drawn on; then nothing was changed.
    pub fn start(plan: &Arc<Plan>, stop: &Arc<Stop>) -> io::Result<Screen> {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(Arc::clone(plan), colour)),
            fresh: AtomicBool::new(true),
            over: AtomicBool::new(false),
            stop: Arc::clone(stop),
        });
        let taken = Taken::take()?;
        let mut terminal = Terminal::new(CrosstermBackend::new(io::stderr()))?;
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            let stopped = seen.show(&mut terminal);
            // Here, or where this thread panics: whenever it ends, the terminal is given back.
            drop(taken);
            if stopped {
                // Nobody may be there to read it.
                let _ = writeln!(io::stderr(), "ending; what was measured so far is kept");
            }
        })?;
        Ok(Screen { shared, thread: Some(thread) })
    }

    /// Shows what is known at the end of a second.
    pub fn see(&self, progress: &Progress<'_>) {
        self.shared.state.lock().take(progress);
        self.shared.fresh.store(true, Ordering::Release);
    }

    /// Gives the terminal back as it was.
    pub fn finish(self) {
        drop(self);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been told by the hook, and the terminal is back.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Until the run is over or stopped; whether a key stopped it.
    fn show(&self, terminal: &mut Terminal<CrosstermBackend<Stderr>>) -> bool {
        while !self.over.load(Ordering::Acquire) && !self.stop.asked() {
            if self.fresh.swap(false, Ordering::AcqRel) {
                let state = self.state.lock();
                // A terminal that is gone ends the picture, not the run.
                if terminal.draw(|frame| draw(frame, &state)).is_err() {
                    return false;
                }
            }
            match event::poll(LOOK) {
                Ok(false) => {}
                Ok(true) => match event::read() {
                    Ok(event) if self.heed(&event) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                },
                Err(_) => return false,
            }
        }
        false
    }

    /// Does what an event asks for; whether that was to stop.
    fn heed(&self, event: &Event) -> bool {
        match event {
            Event::Resize(..) => {}
            Event::Key(key) if key.kind == KeyEventKind::Press => match wish(*key) {
                Some(Wish::Stop) => {
                    self.stop.ask();
                    return true;
                }
                Some(Wish::OtherTimes) => {
                    let mut state = self.state.lock();
                    state.over = match state.over {
                        Span::LastSecond => Span::WholeRun,
                        Span::WholeRun => Span::LastSecond,
                    };
                }
                None => return false,
            },
            _ => return false,
        }
        self.fresh.store(true, Ordering::Release);
        false
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Stop,
    OtherTimes,
}

fn wish(key: KeyEvent) -> Option<Wish> {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => Some(Wish::Stop),
        KeyCode::Char('q') | KeyCode::Esc if !control => Some(Wish::Stop),
        KeyCode::Char('t') if !control => Some(Wish::OtherTimes),
        _ => None,
    }
}

/// The terminal while it is ours: without echo, on its second page.
struct Taken;

impl Taken {
    fn take() -> io::Result<Taken> {
        give_back_before_panics();
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::Release);
        let taken = Taken;
        // Not by ratatui, which would ask the terminal where its cursor is: not all of them answer.
        execute!(io::stderr(), EnterAlternateScreen, Clear(ClearType::All))?;
        Ok(taken)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        give_back();
    }
}

/// Once, whoever asks.
fn give_back() {
    if TAKEN.swap(false, Ordering::AcqRel) {
        // There is nobody left to tell if the terminal is gone.
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    }
}

/// What a panic says must be readable, and whatever thread it is on, the terminal must be usable
/// after it.
fn give_back_before_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            next(panic);
        }));
    });
}
