//! Goal: the state changes exactly when the rules say so, lag compares heads of the same turn, and
//! memory does not grow. Method: calls at invented times.

use super::*;

const RULES: Rules = Rules { calls_in_a_row: 2, lag_max: 10 };

fn state(names: &[&str]) -> ProbeState {
    let mut state = ProbeState::new(names.iter().map(|name| (*name).to_owned()), RULES);
    for index in 0..names.len() {
        let chain_id = Some("0x1".to_owned());
        state.targets[index].facts = Some(TargetFacts { chain_id, ..TargetFacts::default() });
    }
    state
}

fn call(class: Class, turn: u64, head: Option<u64>) -> FinishedCall<'static> {
    let latency = Duration::from_millis(3);
    FinishedCall { method: "eth_blockNumber", class, latency, turn, head, reason: "it broke" }
}

fn record(state: &mut ProbeState, index: usize, turn: u64, class: Class) -> Vec<Change> {
    let now = Duration::from_secs(turn);
    state.record(index, &call(class, turn, None), now);
    state.take_events().into_iter().map(|event| event.change).collect()
}

#[test]
fn a_target_fails_and_recovers_after_calls_in_a_row() {
    let mut state = state(&["a"]);
    assert!(matches!(record(&mut state, 0, 0, Class::Ok)[..], [Change::Up(_)]));
    for (turn, class) in [
        (1, Class::Timeout),
        (2, Class::Ok),
        (3, Class::Connect),
        // A rate-limited call neither fails nor succeeds.
        (4, Class::Limited),
    ] {
        assert_eq!(record(&mut state, 0, turn, class), [], "turn {turn}");
    }
    let failed = Change::Failed { reason: "it broke".to_owned(), calls: 2 };
    assert_eq!(record(&mut state, 0, 5, Class::Connect), [failed]);
    assert_eq!((state.targets[0].status, state.targets[0].outages), (Status::Failed, 1));
    for (turn, class) in [(6, Class::Connect), (7, Class::Ok), (8, Class::RpcError), (9, Class::Ok)]
    {
        assert_eq!(record(&mut state, 0, turn, class), [], "turn {turn}");
    }
    // The first failed call ended at 3 s and took 3 ms, so it began at 2.997 s. The target has
    // recovered at 10 s.
    let recovered = Change::Recovered { after: Duration::from_millis(7_003) };
    assert_eq!(record(&mut state, 0, 10, Class::Ok), [recovered]);
    let target = &state.targets[0];
    assert_eq!(target.calls[&("eth_blockNumber".to_owned(), Class::Ok)], 5);
    assert_eq!(target.calls[&("eth_blockNumber".to_owned(), Class::Connect)], 3);
    assert_eq!(target.latencies["eth_blockNumber"].len(), 5, "only of calls with a result");
}

#[test]
fn a_target_that_cannot_be_identified_fails_once() {
    let mut state = ProbeState::new(["a".to_owned()], RULES);
    for second in 0..3 {
        state.fail_to_identify(0, "nothing listens", Duration::from_secs(second));
    }
    let failed = Change::Failed { reason: "nothing listens".to_owned(), calls: 0 };
    assert_eq!(state.take_events(), [Event { target: 0, change: failed }]);
}

#[test]
fn lag_compares_heads_of_the_same_turn() {
    let mut state = state(&["a", "b"]);
    let head = |state: &mut ProbeState, index, turn, head| {
        state.record(index, &call(Class::Ok, turn, Some(head)), Duration::from_secs(turn));
    };
    head(&mut state, 0, 0, 100);
    assert_eq!((state.lag(0), state.lag(1)), (Some(0), None));
    head(&mut state, 1, 0, 97);
    assert_eq!((state.lag(0), state.lag(1)), (Some(0), Some(3)));
    // A fast chain: the first target has already responded in the next turn.
    head(&mut state, 0, 2, 150);
    assert_eq!((state.lag(0), state.lag(1)), (Some(0), Some(3)));
    head(&mut state, 1, 2, 147);
    assert_eq!(state.lag(1), Some(3));
    // The second target does not respond any more, so its lag grows.
    head(&mut state, 0, 4, 200);
    head(&mut state, 0, 6, 250);
    assert_eq!(state.lag(1), Some(53));
    state.targets[1].facts.as_mut().unwrap().chain_id = Some("0x2".to_owned());
    assert_eq!(state.lag(1), Some(0), "another chain");
}

#[test]
fn lag_is_reported_above_the_limit_and_ends_well_below_it() {
    let mut state = state(&["a", "b"]);
    let mut turn = 0;
    let mut changes = |behind: u64| {
        turn += 2;
        let now = Duration::from_secs(turn);
        state.record(0, &call(Class::Ok, turn, Some(1_000 + turn)), now);
        state.record(1, &call(Class::Ok, turn, Some(1_000 + turn - behind)), now);
        state.tick(now);
        let events = state.take_events().into_iter();
        let changes = events.map(|event| event.change);
        changes.filter(|change| !matches!(change, Change::Up(_))).collect::<Vec<_>>()
    };
    assert_eq!(changes(10), []);
    assert_eq!(changes(11), [Change::Lags { blocks: 11 }]);
    assert_eq!(changes(30), []);
    assert_eq!(changes(6), []);
    assert_eq!(changes(5), [Change::CaughtUp]);
}

#[test]
fn the_age_of_a_head_restarts_when_the_head_changes() {
    let mut state = state(&["a"]);
    let seconds = Duration::from_secs;
    assert_eq!(state.targets[0].head_age(seconds(9)), None);
    for (turn, head, age) in [(1, 7, 2), (3, 7, 4), (5, 8, 2)] {
        state.record(0, &call(Class::Ok, turn, Some(head)), seconds(turn));
        assert_eq!(state.targets[0].head_age(seconds(turn + 2)), Some(seconds(age)));
    }
}

#[test]
fn memory_depends_on_methods_and_classes_and_not_on_calls() {
    let mut state = state(&["a"]);
    for turn in 0..100_000 {
        let class = if turn % 3 == 0 { Class::Timeout } else { Class::Ok };
        state.record(0, &call(class, turn, Some(turn)), Duration::from_secs(turn));
        state.tick(Duration::from_secs(turn));
        state.take_events();
    }
    let target = &state.targets[0];
    assert_eq!((target.calls.len(), target.latencies.len(), target.heads.len()), (2, 1, HEADS_MAX));
}
