//! Goal: the order of runs is balanced, the study ends at its limits, and a drift is found. Method:
//! all orders of up to eight variants, states around each limit, and made-up series.

use super::*;

#[test]
fn abba_reverses_every_second_round() {
    let sequence = |round| order(RunOrder::Abba, 3, round);
    assert_eq!(
        (sequence(0), sequence(1), sequence(2)),
        (vec![0, 1, 2], vec![2, 1, 0], vec![0, 1, 2])
    );
}

#[test]
fn a_latin_square_balances_positions_and_predecessors() {
    for variants in 1..=8_usize {
        let rounds = rounds_per_balanced_order(RunOrder::LatinSquare, variants);
        let mut positions = vec![vec![0; variants]; variants];
        let mut pairs = vec![vec![0; variants]; variants];
        for round in 0..rounds {
            let sequence = order(RunOrder::LatinSquare, variants, round);
            let mut sorted = sequence.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..variants).collect::<Vec<_>>(), "each variant runs once");
            for (position, variant) in sequence.iter().enumerate() {
                positions[*variant][position] += 1;
            }
            for pair in sequence.windows(2) {
                pairs[pair[0]][pair[1]] += 1;
            }
        }
        let each = rounds / variants;
        assert!(positions.iter().flatten().all(|count| *count == each), "{positions:?}");
        for (first, row) in pairs.iter().enumerate() {
            for (second, count) in row.iter().enumerate() {
                let expected = if first == second { 0 } else { each };
                assert_eq!(*count, expected, "{variants} variants: {second} after {first}");
            }
        }
    }
}

#[test]
fn each_limit_ends_the_study_and_only_when_it_is_reached() {
    let limits =
        Limits { rounds_min: 4, rounds_max: 10, time_max: Duration::from_secs(1_000), block: 2 };
    let start = StudyProgress { next_round: Duration::from_secs(100), ..StudyProgress::default() };
    let at = |rounds| StudyProgress { rounds, usable: rounds, ..start };
    let precise = |rounds| StudyProgress { precise: true, ..at(rounds) };
    let check = |progress, expected| assert_eq!(end(progress, limits), expected, "{progress:?}");
    check(start, None);
    check(StudyProgress { elapsed: Duration::from_secs(5_000), ..start }, None);
    check(at(9), None);
    check(at(10), Some(EndReason::RoundsMax));
    check(precise(3), None);
    check(precise(4), Some(EndReason::Precision));
    check(precise(5), None);
    check(StudyProgress { usable: 3, ..precise(6) }, None);
    check(StudyProgress { elapsed: Duration::from_secs(900), ..at(2) }, None);
    check(StudyProgress { elapsed: Duration::from_secs(901), ..at(2) }, Some(EndReason::TimeMax));
    check(StudyProgress { failed_rounds: 2, ..at(3) }, None);
    check(StudyProgress { failed_rounds: 3, ..at(3) }, Some(EndReason::Faults));
}

#[test]
fn a_drift_is_distinguished_from_noise() {
    let drift = |values: &[f64]| drift(DriftSubject::Machine, None, values.to_vec());
    let rising = drift(&[1.0, 1.02, 1.04, 1.06, 1.08, 1.1]).unwrap();
    assert!(is_trend(rising.p), "{rising:?}");
    assert!(
        (rising.change - (1.09 / 1.01 - 1.0)).abs() < 1e-9 && (rising.spread - 0.1).abs() < 1e-9
    );
    let noise = drift(&[1.0, 1.04, 1.01, 1.05, 0.99, 1.02]).unwrap();
    assert!(!is_trend(noise.p), "{noise:?}");
    assert!(drift(&[1.0]).is_none() && drift(&[0.0, 1.0]).is_none());
}
