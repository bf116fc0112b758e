//! Pauses of a node that fails, in virtual time.

use super::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn pauses_begin_at_the_second_failure_and_double() {
    let mut rest = Rest::default();
    let mut now = ms(1_000);
    let mut pauses = Vec::new();
    for _ in 0..14 {
        rest.failed(now, now, None);
        let pause = rest.left(now).unwrap_or_default();
        pauses.push(pause.as_millis());
        now += pause;
        assert_eq!(rest.left(now), None, "it is over when it is over");
    }
    let expected = [0, 5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_000, 5_000, 5_000];
    assert_eq!(pauses, expected);
    rest.went_well();
    assert_eq!(rest, Rest::default());
}

#[test]
fn what_was_asked_at_once_fails_once() {
    let mut rest = Rest::default();
    // Sixteen were asked together, and fail one after the other.
    for at in 0..16 {
        rest.failed(ms(0), ms(50 + at), None);
    }
    assert_eq!(rest.left(ms(70)), None, "one failure is no pause");
    assert!(rest.failed(ms(70), ms(80), None), "told when it is left alone");
    assert_eq!(rest.left(ms(80)), Some(ms(5)));
    assert!(!rest.failed(ms(90), ms(95), None), "and not again");
    assert_eq!(rest.left(ms(95)), Some(ms(10)));
}

#[test]
fn what_a_node_asks_for_is_given_within_bounds() {
    let mut rest = Rest::default();
    assert!(rest.failed(ms(0), ms(10), Some(ms(700))));
    assert_eq!(rest.left(ms(10)), Some(ms(700)));
    // Another of the same moment asked for more, a third for nothing.
    rest.failed(ms(0), ms(20), Some(ms(900)));
    rest.failed(ms(0), ms(30), None);
    assert_eq!(rest.left(ms(30)), Some(ms(890)));
    rest.failed(ms(2_000), ms(2_000), Some(Duration::from_secs(3_600)));
    assert_eq!(rest.left(ms(2_000)), Some(PAUSE_MAX));
}

#[test]
fn a_node_that_fails_every_second_time_is_waited_for_a_little() {
    // Draws of a fixed generator: half of them fail, one after the other, a millisecond each.
    let mut state = 7_u64;
    let mut fails = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 63 == 1
    };
    let (mut rest, mut now, mut given) = (Rest::default(), ms(0), 0);
    while given < 1_000 {
        now += rest.left(now).unwrap_or_default();
        let begun = now;
        now += ms(1);
        match fails() {
            true => _ = rest.failed(begun, now, None),
            false => {
                rest.went_well();
                given += 1;
            }
        }
    }
    assert!(now < Duration::from_secs(40), "{now:?} for 1,000 answers");
}
