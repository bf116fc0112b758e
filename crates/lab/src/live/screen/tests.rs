//! Goal: keys do what they say, and the terminal is as it was after every kind of end: a stop, a
//! panic, an end in order. Method: this test program again, under `script` (of Debian's bsdutils),
//! which gives it a terminal of its own; `stty` tells in which state that is left.

use std::io::{Read, Write};
use std::process::{self, Stdio};
use std::time::Instant;

use super::*;
use crate::live::scene::Scene;

/// Set where a test is to use the terminal that it runs in.
const INSIDE: &str = "WEIR_TEST_IN_TERMINAL";
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// Runs a test of this file in a terminal, sends keys once the screen is drawn, and gives all that
/// was shown.
fn in_terminal(test: &str, keys: &[u8]) -> String {
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
    let (mut shown, mut part, mut sent) = (Vec::new(), [0; 4096], false);
    loop {
        let bytes = stdout.read(&mut part).unwrap();
        if bytes == 0 {
            break;
        }
        shown.extend_from_slice(&part[..bytes]);
        // The picture with figures, which follows the first one.
        let text = String::from_utf8_lossy(&shown);
        if !sent && ["q stop", "eth_getLogs"].iter().all(|words| text.contains(words)) {
            stdin.write_all(keys).unwrap();
            sent = true;
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

/// What came after the screen, if the terminal is usable again.
fn assert_given_back(shown: &str) -> &str {
    assert_eq!(shown.matches(ENTERED).count(), 1, "{shown:?}");
    assert_eq!(shown.matches(LEFT).count(), 1, "{shown:?}");
    let after = shown.split(LEFT).nth(1).unwrap();
    assert!(after.contains("\x1b[?25h"), "the cursor is hidden: {after:?}");
    let settings: Vec<_> = after.split_whitespace().collect();
    for setting in ["icanon", "echo", "isig"] {
        assert!(settings.contains(&setting), "{setting} is off: {after}");
    }
    after
}

fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// A screen with something on it.
fn shown() -> (Screen, Arc<Stop>) {
    let (scene, stop) = (Scene::new(), Arc::new(Stop::new()));
    let screen = Screen::start(&scene.plan, &stop).unwrap();
    screen.update(&scene.progress());
    (screen, stop)
}

#[test]
fn inside_until_stopped() {
    if inside() {
        let (screen, stop) = shown();
        let begin = Instant::now();
        while !stop.is_requested() {
            assert!(begin.elapsed() < PATIENCE, "no key came");
            // Sleeps: keys come by a terminal, not by anything that could wake this thread.
            std::thread::park_timeout(Duration::from_millis(10));
        }
        screen.finish();
        println!("it was stopped");
    }
}

#[test]
fn inside_a_panic_of_another_thread() {
    if inside() {
        let (_screen, _stop) = shown();
        // Sleeps: the picture must be there before it is taken away.
        std::thread::park_timeout(Duration::from_millis(300));
        let other = std::thread::spawn(|| panic!("on purpose"));
        assert!(other.join().is_err());
        // Sleeps: what a broken screen would still write has time to come.
        std::thread::park_timeout(Duration::from_millis(300));
    }
}

#[test]
fn inside_to_the_end() {
    if inside() {
        let (screen, _stop) = shown();
        // Sleeps: the picture must be there before it is taken away.
        std::thread::park_timeout(Duration::from_millis(300));
        screen.finish();
        println!("it ended");
    }
}

#[test]
fn q_and_ctrl_c_stop_and_give_the_terminal_back() {
    // The first keys ask for nothing, or for the other times.
    for keys in [&b"xTt q"[..], b"\x03"] {
        let shown = in_terminal("inside_until_stopped", keys);
        assert!(shown.contains("eth_getLogs"), "{shown:?}");
        let after = assert_given_back(&shown);
        assert!(after.contains("it was stopped"), "{after:?}");
        assert!(after.contains("the results so far are saved"), "{after:?}");
    }
}

#[test]
fn t_shows_the_other_times() {
    let shown = in_terminal("inside_until_stopped", b"t\x1b[Aq");
    // Once in the line that explains the keys, once above the table.
    assert_eq!(shown.matches("whole run").count(), 2, "{shown:?}");
}

#[test]
fn a_panic_leaves_a_terminal_on_which_it_can_be_read() {
    let shown = in_terminal("inside_a_panic_of_another_thread", b"");
    assert!(assert_given_back(&shown).contains("on purpose"), "{shown:?}");
}

#[test]
fn an_end_in_order_gives_the_terminal_back() {
    let shown = in_terminal("inside_to_the_end", b"");
    assert!(assert_given_back(&shown).contains("it ended"), "{shown:?}");
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
