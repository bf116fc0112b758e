//! Goal: each shipped mix is valid, and its weights are those of its source. Method: reads all
//! shipped mixes.

use super::*;
use crate::plan::requests::Methods;
use crate::plan::validate::mixes::read_mix;
use crate::plan::{Mix, Step};

fn mix(name: &str) -> (Mix, Methods) {
    let mut methods = Methods::default();
    let mix = read_mix(name, name, text(name).unwrap(), &mut methods);
    (mix.unwrap_or_else(|problems| panic!("{problems}")), methods)
}

/// Returns the sum of weights and the number of calls of each step.
fn sums(mix: &Mix) -> Vec<(f64, usize)> {
    let sum = |step: &Step| match step {
        Step::Choose(calls) => (calls.iter().map(|call| call.weight).sum(), calls.len()),
        Step::Replay(_) | Step::Transactions(_) => panic!("a shipped mix replays nothing"),
    };
    mix.steps.iter().map(sum).collect()
}

#[test]
fn every_mix_is_valid_and_has_a_description() {
    for (name, text) in MIXES {
        let (mix, methods) = mix(name);
        assert_eq!(mix.name, name);
        assert!(!methods.names.is_empty(), "{name}");
        assert!(text.starts_with("about = "), "{name} has no description");
    }
}

#[test]
fn weights_are_those_that_were_published() {
    let expected = [
        ("somnia", vec![(1.0, 1), (92.0, 6)]),
        ("ethspam", vec![(4995.0, 20)]),
        ("chainbench-eth", vec![(499.0, 10)]),
    ];
    for (name, expected) in expected {
        assert_eq!(sums(&mix(name).0), expected, "{name}");
    }
    let (sum, _) = sums(&mix("json-bench").0)[0];
    assert!((sum - 100.7).abs() < 1e-9, "{sum}");
}

#[test]
fn default_mixes_only_read_and_have_known_methods() {
    for name in Family::ALL {
        let (_, methods) = mix(default_mix(name));
        for method in &methods.names {
            let row = wire::method::methods_of(name).method(method);
            let row = row.unwrap_or_else(|| panic!("{method} is not of {}", name.as_str()));
            assert!(!row.write && !row.sticky, "{method}");
        }
    }
}
