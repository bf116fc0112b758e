//! Goal: the screen has the required data at every size, and nothing overflows. Method: ratatui's
//! test backend, whose cells are compared as text.

use std::sync::Arc;

use expect_test::{Expect, expect};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::live::scene::Scene;
use crate::live::state::TimePeriod;

fn state(scene: &Scene, colour: bool) -> State {
    let mut state = State::new(Arc::clone(&scene.plan), colour);
    for _ in 0..12 {
        state.update(&scene.progress());
    }
    state
}

/// Draws the screen and returns its text, one line per row.
fn screen_text(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for row in buffer.content().chunks(usize::from(width)) {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn check(state: &State, width: u16, height: u16, expected: Expect) {
    expected.assert_eq(&screen_text(state, width, height));
}

#[test]
fn a_usual_terminal() {
    check(
        &state(&Scene::new(), true),
        80,
        24,
        expect![[r#"
            nightly  http://node:8545/***  Geth/v1.16.9                         0:12 of 1:00
            ━━━━────────────────────  climb at 500 to 2,000/s, 0:48 left
            planned 1,000/s  started 998/s  requests 997/s  results 980/s  in flight 12
            1,000│⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉
                 │
                 │
                 │
                 │
                 │
                 │
                 │
            0    │
                 └──────────────────────────────────────────────────────────────────────────
              0:00                                                                      0:12
            ms, last second         calls  per s  failed     429    p50    p95    p99    max
            all                    12,000    997  0.58 %  0.25 %      –      –      –    960
            eth_blockNumber         9,000    700       0       0  0.550   1.10   2.20   4.40
            eth_getLogs             3,000    297  2.33 %  1.00 %    120    240    480    960
            rpc_error 50  (-32000: 49, -32005: 1)  limited 30  timeout 20
            generator  delivered 99.83 %  late p99 31.9 µs  busy 34.0 %  dropped 20
            generator  cpu_user 0.71  psi_cpu_some 0.12
            BROKEN  latency{method:eth_getLogs} p(99)<300  is 480.25  since 9 s
                    latency{method:eth_call} p(99)<300  is no data
            q stop   t toggle times: last second or whole run
        "#]],
    );
}

#[test]
fn a_wide_terminal_shows_both_periods() {
    check(
        &state(&Scene::new(), true),
        120,
        30,
        expect![[r#"
            nightly  http://node:8545/***  Geth/v1.16.9                                                                 0:12 of 1:00
            ━━━━────────────────────  climb at 500 to 2,000/s, 0:48 left
            planned 1,000/s  started 998/s  requests 997/s  results 980/s  in flight 12
            1,000│⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
                 │
            0    │
                 └──────────────────────────────────────────────────────────────────────────────────────────────────────────────────
              0:00                                                                                                              0:12
            ms, last second | whole run         calls  per s  failed     429    p50    p95    p99    max    p50    p95    p99    max
            all                                12,000    997  0.58 %  0.25 %      –      –      –    960   2.05   43.2   43.9  5,478
            eth_blockNumber                     9,000    700       0       0  0.550   1.10   2.20   4.40   1.09   2.18   2.20   2.20
            eth_getLogs                         3,000    297  2.33 %  1.00 %    120    240    480    960   42.0   43.8   44.0  5,478
            rpc_error 50  (-32000: 49, -32005: 1)  limited 30  timeout 20
            generator  delivered 99.83 %  late p99 31.9 µs  busy 34.0 %  dropped 20
            generator  cpu_user 0.71  psi_cpu_some 0.12
            BROKEN  latency{method:eth_getLogs} p(99)<300  is 480.25  since 9 s
                    latency{method:eth_call} p(99)<300  is no data
            q stop   t toggle times: last second or whole run
        "#]],
    );
}

#[test]
fn before_the_first_second() {
    let state = State::new(Arc::clone(&Scene::new().plan), true);
    check(
        &state,
        80,
        24,
        expect![[r#"
            nightly  http://node:8545/***                                       0:00 of 1:00
            ────────────────────────  steady at 500/s, 0:10 left
            planned 0/s  started 0/s  requests 0/s  results 0/s  in flight 0
















            ms, last second                 calls  per s  failed    p50    p95    p99    max

            no call failed
            generator    late p99 0 ms  busy 0 %
            q stop   t toggle times: last second or whole run
        "#]],
    );
}

#[test]
fn the_other_period() {
    let mut state = state(&Scene::new(), true);
    state.table_period = TimePeriod::WholeRun;
    let text = screen_text(&state, 80, 24);
    assert!(text.contains("ms, whole run"), "{text}");
}

#[test]
fn methods_that_do_not_fit_are_counted() {
    let mut state = state(&Scene::new(), true);
    let row = state.rows[1].clone();
    state.rows.extend(std::iter::repeat_n(row, 40));
    let text = screen_text(&state, 80, 24);
    let shown_copies = text.matches("eth_blockNumber").count();
    // Of the 43 rows, the totals, the other method and some of the copies are shown.
    let hidden = 1 + 2 + 40 - shown_copies - 2;
    assert!(text.contains(&format!("and {hidden} more")), "{text}");
}

#[test]
fn drawing_panics_at_no_size() {
    let state = state(&Scene::new(), true);
    for width in [1, 2, 20, 39, 40, 41, 79, 80, 200] {
        for height in [1, 2, 5, 9, 10, 11, 19, 20, 24, 60] {
            screen_text(&state, width, height);
        }
    }
}

#[test]
fn without_colours_no_cell_is_coloured() {
    let coloured_cells = |colour| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let state = state(&Scene::new(), colour);
        terminal.draw(|frame| draw(frame, &state)).unwrap();
        let buffer = terminal.backend().buffer();
        buffer.content().iter().filter(|cell| cell.fg != ratatui::style::Color::Reset).count()
    };
    assert!(coloured_cells(true) > 50);
    assert_eq!(coloured_cells(false), 0);
}

#[test]
fn every_colour_is_readable_on_a_light_background() {
    for style in [QUIET, STRONG, GOOD, DOUBTFUL, BAD] {
        let colour = style.fg.unwrap_or(Color::Reset);
        let pale = [Color::Yellow, Color::White, Color::Gray, Color::LightYellow, Color::LightCyan];
        assert!(!pale.contains(&colour), "{style:?} is {colour}");
    }
}
