//! Goal: the view is complete at every size, its rates are right, and a restart or an unreachable
//! gateway is shown. Method: two statuses in the form of `/status`, and ratatui's test backend.

use std::time::Duration;

use expect_test::{Expect, expect};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::draw::Screen;
use super::status::Status;
use super::view::View;
use super::{Command, command_of_key, handle_event, parse};

/// Returns a status. All counters grow by `seconds`.
fn status(seconds: u64) -> Value {
    let upstream = |name: &str, state: &str, attempts: u64, failed: u64| {
        json!({
            "name": name, "state": state, "state_ends_seconds": null, "cordon": null,
            "head": 22_431_084_u64, "lag": 0, "in_flight": 3, "attempts": attempts,
            "failed": failed, "rate_limited": 0, "latency_p50_ms": 1.25, "latency_p99_ms": 18.5,
        })
    };
    let mut fast = upstream("node-fast", "healthy", 900 * seconds, 0);
    fast["latency_p99_ms"] = 7.5.into();
    let mut slow = upstream("node-slow", "healthy", 100 * seconds, 2 * seconds);
    slow["lag"] = 1.into();
    slow["cordon"] = json!({"reason": "upgrade to v1.16", "ends_seconds": 1740.0});
    let mut dead = upstream("node-dead.example:8545", "ejected", 5000, 40);
    dead["state_ends_seconds"] = 12.3.into();
    (dead["head"], dead["lag"]) = (Value::Null, Value::Null);
    json!({
        "version": "0.1.0",
        "uptime_seconds": 93_780.0 + seconds as f64,
        "process": {"id": 7, "start_ticks": 99, "control_socket": "weir-1"},
        "config": {"generation": 3},
        "chains": [{
            "name": "main", "head": {"number": 22_431_085_u64, "hash": "0x00"},
            "head_age_seconds": 3.4,
            "upstreams": [fast, slow, dead],
            "groups": [{
                "name": "default", "balance": "least_loaded", "candidates": ["node-fast"],
                "in_flight": 6, "in_flight_limit": 64, "queued": 1, "shed": 5 * seconds,
            }],
        }, {
            "name": "side", "head": null, "head_age_seconds": null, "upstreams": [],
            "groups": [{
                "name": "archive", "balance": "weighted", "candidates": [], "in_flight": 0,
                "in_flight_limit": null, "queued": 0, "shed": 0,
            }],
        }],
        "cache": {
            "enabled": true, "hits": 1000 + 3000 * seconds, "misses": 1000 * seconds,
            "coalesced": 0,
        },
        "memory": {
            "bytes_max": 1_000_000_000, "purposes": [{"bytes": 1_500_000}, {"bytes": 500_000}],
        },
        "totals": {
            "connections_open": 1200, "calls": 5000 * seconds, "errors": 3 * seconds,
            "failed": 0, "retries": seconds, "in_flight": 6, "waiting": 2,
            "refused": [{"status": 429, "requests": 4 * seconds}, {"status": 503, "requests": 9}],
        },
    })
}

fn status_after(seconds: u64) -> Status {
    parse(status(seconds)).unwrap()
}

fn screen() -> Screen {
    Screen::new(
        "127.0.0.1:8646".parse().unwrap(),
        View::new(&status_after(12), Some(&status_after(10))),
    )
}

/// Draws the screen and returns its rows as text.
fn draw_text(screen: &mut Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, true)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width)).map(|row| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    rows.collect()
}

fn check(screen: &mut Screen, width: u16, height: u16, expected: Expect) {
    expected.assert_eq(&draw_text(screen, width, height));
}

fn press(screen: &mut Screen, code: KeyCode) -> bool {
    handle_event(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)), screen)
}

#[test]
fn a_wide_terminal() {
    check(
        &mut screen(),
        120,
        18,
        expect![[r#"
        weir 0.1.0  127.0.0.1:8646  up 26 h 3 min  configuration 3
        calls 5,000/s  errors 3.00/s  failed 0/s  refused 4.00/s  retries 1.00/s  cache hits 75.0 %  in flight 6  waiting 2
        connections 1,200  memory 2.00 MB of 1.00 GB

        chain main  head 22,431,085  3 s old
        upstream                state                  calls/s  failed/s  p50 ms  p99 ms  in flight        head  lag
        node-fast               healthy                    900         0    1.25    7.50          3  22,431,084    0
        node-slow               cordoned 29m, healthy      100      2.00    1.25    18.5          3  22,431,084    1
        node-dead.example:8545  ejected 12s                  0         0    1.25    18.5          3           –    –
        node-slow: upgrade to v1.16
        group default, least_loaded: node-fast  in flight 6 of 64  queued 1  shed 5.00/s

        chain side  no head
        upstream  state  calls/s  failed/s  p50 ms  p99 ms  in flight  head  lag
        group archive, weighted: no upstream  in flight 0  queued 0  shed 0/s


        q quit   s sort: configuration
    "#]],
    );
}

#[test]
fn a_usual_terminal() {
    check(
        &mut screen(),
        80,
        18,
        expect![[r#"
        weir 0.1.0  127.0.0.1:8646  up 26 h 3 min  configuration 3
        calls 5,000/s  errors 3.00/s  failed 0/s  refused 4.00/s  retries 1.00/s
        cache hits 75.0 %  in flight 6  waiting 2  connections 1,200
        memory 2.00 MB of 1.00 GB

        chain main  head 22,431,085  3 s old
        upstream                state                  calls/s  failed/s  p99 ms  lag
        node-fast               healthy                    900         0    7.50    0
        node-slow               cordoned 29m, healthy      100      2.00    18.5    1
        node-dead.example:8545  ejected 12s                  0         0    18.5    –
        node-slow: upgrade to v1.16
        group default, least_loaded: node-fast  in flight 6 of 64  queued 1  shed 5.00/s

        chain side  no head
        upstream  state  calls/s  failed/s  p50 ms  p99 ms  in flight  head  lag
        group archive, weighted: no upstream  in flight 0  queued 0  shed 0/s

        q quit   s sort: configuration
    "#]],
    );
}

#[test]
fn a_narrow_and_low_terminal_shows_the_state_and_scrolls() {
    let mut screen = screen();
    check(
        &mut screen,
        44,
        12,
        expect![[r#"
        weir 0.1.0  127.0.0.1:8646  up 26 h 3 min  c
        calls 5,000/s  errors 3.00/s  failed 0/s
        refused 4.00/s  retries 1.00/s
        cache hits 75.0 %  in flight 6  waiting 2
        connections 1,200  memory 2.00 MB of 1.00 GB

        chain main  head 22,431,085  3 s old
        upstream                state
        node-fast               healthy
        node-slow               cordoned 29m, health
        node-dead.example:8545  ejected 12s
        q quit   s sort: configuration   ↑↓ 8 more
    "#]],
    );
    for _ in 0..100 {
        assert!(!press(&mut screen, KeyCode::Down));
    }
    check(
        &mut screen,
        44,
        12,
        expect![[r#"
        weir 0.1.0  127.0.0.1:8646  up 26 h 3 min  c
        calls 5,000/s  errors 3.00/s  failed 0/s
        refused 4.00/s  retries 1.00/s
        cache hits 75.0 %  in flight 6  waiting 2
        connections 1,200  memory 2.00 MB of 1.00 GB
        in flight 6 of 64  queued 1  shed 5.00/s

        chain side  no head
        upstream  state  calls/s  failed/s  lag
        group archive, weighted: no upstream
        in flight 0  queued 0  shed 0/s
        q quit   s sort: configuration   ↑↓ 0 more
    "#]],
    );
    press(&mut screen, KeyCode::Up);
    assert!(draw_text(&mut screen, 44, 12).contains("↑↓ 1 more"));
    for (width, height) in [(1, 1), (5, 2), (20, 3), (300, 1)] {
        draw_text(&mut screen, width, height);
    }
}

#[test]
fn a_key_sorts_the_upstreams() {
    let mut screen = screen();
    let mut order = || {
        let text = draw_text(&mut screen, 120, 18);
        press(&mut screen, KeyCode::Char('s'));
        let names = text.lines().filter(|line| line.starts_with("node-") && !line.contains(": "));
        let names = names.map(|line| line[5..9].to_owned()).collect::<Vec<_>>().join(" ");
        let key = text.lines().last().unwrap().split_once("sort: ").unwrap().1.to_owned();
        format!("{key}: {names}")
    };
    assert_eq!(order(), "configuration: fast slow dead");
    assert_eq!(order(), "calls/s: fast slow dead");
    assert_eq!(order(), "failed/s: slow fast dead");
    assert_eq!(order(), "p99: slow dead fast");
    assert_eq!(order(), "lag: slow fast dead");
    assert_eq!(order(), "configuration: fast slow dead");
}

#[test]
fn rates_are_of_the_interval_and_unknown_after_a_restart() {
    let (first, second) = (status_after(10), status_after(12));
    let view = View::new(&second, Some(&first));
    let upstreams = &view.chains[0].upstreams;
    assert_eq!(view.calls_rate, Some(5000.0));
    assert_eq!(view.refused_rate, Some(4.0));
    assert_eq!(view.hit_share, Some(0.75));
    assert_eq!(upstreams[0].attempts_rate, Some(900.0));
    assert_eq!(upstreams[1].failed_rate, Some(2.0));
    assert_eq!(view.chains[0].groups[0].shed_rate, Some(5.0));

    let mut restarted = status(1);
    restarted["process"]["start_ticks"] = 100.into();
    let restarted = parse(restarted).unwrap();
    let view = View::new(&restarted, Some(&second));
    assert_eq!((view.calls_rate, view.chains[0].upstreams[0].attempts_rate), (None, None));
    // The cache of the new process has its own counters.
    assert_eq!(view.hit_share, Some(4000.0 / 5000.0));
    let mut screen = screen();
    screen.update(view);
    let text = draw_text(&mut screen, 80, 18);
    assert!(text.contains("the gateway was restarted") && text.contains("calls –"), "{text}");
    // A status of the same age has no rates, and neither has an upstream that a reload has added.
    assert_eq!(View::new(&second, Some(&second)).calls_rate, None);
    let mut added = status(12);
    added["chains"][0]["upstreams"][0]["name"] = "new".into();
    let view = View::new(&parse(added).unwrap(), Some(&first));
    let rates: Vec<bool> =
        view.chains[0].upstreams.iter().map(|upstream| upstream.attempts_rate.is_some()).collect();
    assert_eq!(rates, [false, true, true]);
}

#[test]
fn an_unreachable_gateway_is_reported_until_it_responds_again() {
    let mut screen = screen();
    screen.report_error("connection \u{1b}[2Jrefused", Duration::from_secs(12));
    let text = draw_text(&mut screen, 80, 18);
    assert!(text.contains("no status for 12 s: connection ?[2Jrefused"), "{text}");
    assert!(text.contains("node-fast"), "the last values stay: {text}");
    screen.update(View::new(&status_after(14), Some(&status_after(12))));
    assert!(!draw_text(&mut screen, 80, 18).contains("no status"));
}

#[test]
fn keys_quit() {
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert!(press(&mut screen(), code));
    }
    let control = |letter| KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
    assert_eq!(command_of_key(control('c')), Some(Command::Quit));
    assert_eq!(command_of_key(control('s')), None);
    assert!(!press(&mut screen(), KeyCode::Char('x')));
}
