//! Goal: keys have their documented effect, and the terminal is restored after a stop, after a
//! panic, and after a normal end. Method: the tests run this test program again under `script` (of
//! Debian's bsdutils), which gives it a terminal. `stty` then prints the state of that terminal.

use std::io::{Read, Write};
use std::process::{self, Stdio};
use std::time::Instant;

use super::*;
use crate::live::scene::Scene;

/// Environment variable that is set in the inner test program, which uses its terminal.
const INSIDE: &str = "WEIR_TEST_IN_TERMINAL";
/// Longest wait for a key. No test takes that long, even on a busy machine.
const KEY_TIMEOUT: Duration = Duration::from_secs(60);
/// Escape sequence that switches to the alternate screen.
const ENTER_SCREEN: &str = "\x1b[?1049h";
/// Escape sequence that leaves the alternate screen.
const LEAVE_SCREEN: &str = "\x1b[?1049l";

/// Runs a test of this file in a terminal, and sends keys once the screen is drawn. Returns the
/// output of the terminal.
fn run_in_terminal(test: &str, keys: &[u8]) -> String {
    let program = std::env::current_exe().unwrap();
    let line = format!(
        "stty rows 24 cols 80; '{}' --exact live::screen::tests::{test} --nocapture; stty -a",
        program.display()
    );
    let mut child = process::Command::new("script")
        .args(["-qc", &line, "/dev/null"])
        .env(INSIDE, "1")
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script is on every Debian");
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut output, mut chunk, mut are_keys_sent) = (Vec::new(), [0; 4096], false);
    loop {
        let length = stdout.read(&mut chunk).unwrap();
        if length == 0 {
            break;
        }
        output.extend_from_slice(&chunk[..length]);
        // The first drawing has no data yet. The keys are sent after the drawing with data.
        let text = String::from_utf8_lossy(&output);
        if !are_keys_sent && ["q stop", "eth_getLogs"].iter().all(|words| text.contains(words)) {
            stdin.write_all(keys).unwrap();
            are_keys_sent = true;
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&output).into_owned()
}

/// Checks that the terminal is restored. Returns the output after the screen.
fn assert_restored(shown: &str) -> &str {
    assert_eq!(shown.matches(ENTER_SCREEN).count(), 1, "{shown:?}");
    assert_eq!(shown.matches(LEAVE_SCREEN).count(), 1, "{shown:?}");
    let after = shown.split(LEAVE_SCREEN).nth(1).unwrap();
    assert!(after.contains("\x1b[?25h"), "the cursor is hidden: {after:?}");
    let settings: Vec<_> = after.split_whitespace().collect();
    for setting in ["icanon", "echo", "isig"] {
        assert!(settings.contains(&setting), "{setting} is off: {after}");
    }
    after
}

/// Returns true in the inner test program.
fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Starts a screen that shows the data of a scene.
fn start_screen() -> (Screen, Arc<Stop>) {
    let (scene, stop) = (Scene::new(), Arc::new(Stop::new()));
    let screen = Screen::start(&scene.plan, &stop).unwrap();
    screen.update(&scene.progress());
    (screen, stop)
}

#[test]
fn inside_until_stopped() {
    if is_inside() {
        let (screen, stop) = start_screen();
        let begin = Instant::now();
        while !stop.is_requested() {
            assert!(begin.elapsed() < KEY_TIMEOUT, "no key came");
            // Sleeps: a key does not wake this thread.
            std::thread::park_timeout(Duration::from_millis(10));
        }
        screen.finish();
        println!("it was stopped");
    }
}

#[test]
fn inside_a_panic_of_another_thread() {
    if is_inside() {
        let (_screen, _stop) = start_screen();
        // Sleeps: the screen must be drawn first.
        std::thread::park_timeout(Duration::from_millis(300));
        let other = std::thread::spawn(|| panic!("on purpose"));
        assert!(other.join().is_err());
        // Sleeps: a faulty screen would have time to write again.
        std::thread::park_timeout(Duration::from_millis(300));
    }
}

#[test]
fn inside_to_the_end() {
    if is_inside() {
        let (screen, _stop) = start_screen();
        // Sleeps: the screen must be drawn first.
        std::thread::park_timeout(Duration::from_millis(300));
        screen.finish();
        println!("it ended");
    }
}

#[test]
fn q_and_ctrl_c_stop_the_run_and_restore_the_terminal() {
    // The first keys have no effect, or switch to the other period.
    for keys in [&b"xTt q"[..], b"\x03"] {
        let shown = run_in_terminal("inside_until_stopped", keys);
        assert!(shown.contains("eth_getLogs"), "{shown:?}");
        let after = assert_restored(&shown);
        assert!(after.contains("it was stopped"), "{after:?}");
        assert!(after.contains("the results so far are saved"), "{after:?}");
    }
}

#[test]
fn t_shows_the_other_times() {
    let shown = run_in_terminal("inside_until_stopped", b"t\x1b[Aq");
    // The text is in the line that explains the keys, and above the table.
    assert_eq!(shown.matches("whole run").count(), 2, "{shown:?}");
}

#[test]
fn a_panic_restores_the_terminal_before_its_message() {
    let shown = run_in_terminal("inside_a_panic_of_another_thread", b"");
    assert!(assert_restored(&shown).contains("on purpose"), "{shown:?}");
}

#[test]
fn a_normal_end_restores_the_terminal() {
    let shown = run_in_terminal("inside_to_the_end", b"");
    assert!(assert_restored(&shown).contains("it ended"), "{shown:?}");
}

#[test]
fn keys_act_as_the_screen_documents() {
    let key = |code, modifiers| command_of(KeyEvent::new(code, modifiers));
    let none = KeyModifiers::NONE;
    assert_eq!(key(KeyCode::Char('q'), none), Some(Command::Stop));
    assert_eq!(key(KeyCode::Esc, none), Some(Command::Stop));
    assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Command::Stop));
    assert_eq!(key(KeyCode::Char('t'), none), Some(Command::ToggleTimes));
    assert_eq!(key(KeyCode::Char('c'), none), None);
    assert_eq!(key(KeyCode::Char('q'), KeyModifiers::CONTROL), None);
}
