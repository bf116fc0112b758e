//! Goal: a line covers the seconds since the previous line, and changes have a line of their own.
//! Method: a scene, second by second.

use std::time::Duration;

use expect_test::expect;

use super::*;
use crate::live::scene::Scene;

#[test]
fn a_line_every_five_seconds_and_one_for_each_change() {
    let mut scene = Scene::new();
    scene.thresholds.clear();
    let mut plain = PlainProgress::new(Vec::new());
    for second in 1..=13 {
        scene.elapsed = Duration::from_secs(second);
        if second == 12 {
            scene.thresholds = Scene::new().thresholds;
        }
        plain.update(&scene.progress());
    }
    let text = String::from_utf8(plain.out).unwrap();
    // Every line begins with spaces. The bar keeps them apart from the indent of the snapshot.
    let text: String = text.lines().map(|line| format!("|{line}\n")).collect();
    expect![[r#"
        |    1.0 s  stage main/steady, 0:09 left
        |    5.0 s  planned 1,000/s  started 998/s  calls 997/s  dropped 10  failed 0.40 %  429 1.30 %  worst p99 480 ms  late p99 31.0 µs
        |   10.0 s  stage main/climb, 0:50 left
        |   10.0 s  planned 1,000/s  started 998/s  calls 997/s  dropped 10  failed 0.40 %  429 1.30 %  worst p99 480 ms  late p99 31.0 µs
        |   12.0 s  BROKEN latency{method:eth_getLogs} p(99)<300 (is 480.2500)
    "#]].assert_eq(&text);
}

#[test]
fn the_last_second_is_reported_even_if_short() {
    let mut scene = Scene::new();
    let mut plain = PlainProgress::new(Vec::new());
    scene.elapsed = Duration::from_secs(60);
    plain.update(&scene.progress());
    scene.elapsed = Duration::from_secs(61);
    plain.update(&scene.progress());
    let text = String::from_utf8(plain.out).unwrap();
    assert_eq!(text.matches("planned").count(), 2, "{text}");
}

#[test]
fn a_closed_output_does_not_stop_the_run() {
    struct ClosedOutput;
    impl Write for ClosedOutput {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let scene = Scene::new();
    PlainProgress::new(ClosedOutput).update(&scene.progress());
}
