//! Switches the terminal to a full screen and restores it later. It also restores the terminal if a
//! thread panics.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// True while the terminal is in full-screen mode; the panic hook reads it.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode with the alternate screen; dropping it restores the terminal.
#[derive(Debug)]
pub struct FullScreen(());

impl FullScreen {
    /// Switches the terminal at standard error to the full screen.
    ///
    /// # Errors
    /// Fails if standard error is not a suitable terminal. In that case the terminal is not
    /// changed.
    pub fn enter() -> io::Result<FullScreen> {
        restore_before_panics();
        enable_raw_mode()?;
        ACTIVE.store(true, Ordering::Release);
        let full_screen = FullScreen(());
        // `ratatui::init` is not used, because it queries the cursor position. Some terminals do
        // not support that query.
        execute!(io::stderr(), EnterAlternateScreen, Clear(ClearType::All))?;
        Ok(full_screen)
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal, unless it is restored already.
fn restore() {
    if ACTIVE.swap(false, Ordering::AcqRel) {
        // The terminal may be closed, so errors are ignored.
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), LeaveAlternateScreen, Show);
    }
}

/// Installs a panic hook that restores the terminal before the message of a panic is printed.
fn restore_before_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            previous_hook(panic);
        }));
    });
}
