//! Goal: the planned numbers of iterations, requests and shares are right. Method: small plans
//! whose numbers can be computed by hand.

use super::*;
use crate::plan::read;

/// Reads a plan with these scenarios. An iteration of mix `one` sends one request: `a` with the
/// weight 3, or `b` with the weight 1. An iteration of mix `two` sends two requests: `a`, then `c`.
fn plan(scenarios: &str) -> Plan {
    let mixes = "[mix.one]\ncalls = [{ method = \"a\", weight = 3 }, { method = \"b\" }]\n\
                 [mix.two]\n[[mix.two.step]]\ncalls = [{ method = \"a\" }]\n\
                 [[mix.two.step]]\ncalls = [{ method = \"c\" }]\n";
    read(&format!("{scenarios}\n{mixes}"), "t", &[]).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn the_numbers_of_an_open_scenario_are_exact() {
    let plan = plan(
        "[[scenario]]\nname = \"x\"\nmix = \"one\"\nworkers_max = 9\n\
         stages = [{ duration = \"10s\", rate = 100 }, { duration = \"10s\", to = 0 }]\n\
         [[scenario]]\nname = \"y\"\nmix = \"two\"\nworkers_max = 9\nstart = \"5s\"\n\
         stages = [{ duration = \"10s\", rate = 50 }]",
    );
    // Scenario x starts 1000 iterations in its first stage and 500 in its second stage. Scenario y
    // starts 500 iterations.
    assert_eq!(plan.iterations(), Planned::Exactly(2000.0));
    assert_eq!(plan.requests(), Planned::Exactly(2500.0));
    // From 5 s to 10 s, scenario x starts 100 iterations of one request per second. Scenario y
    // starts 50 iterations of two requests per second.
    assert_eq!(plan.peak(), Some(200.0));
    // 1500 iterations of mix `one` make 1125 calls of a and 375 of b. 500 iterations of mix `two`
    // make 500 calls of a and 500 of c.
    let shares = plan.shares().unwrap();
    let share = |name: &str| shares[plan.methods.iter().position(|m| **m == *name).unwrap()];
    assert_eq!((share("a"), share("b"), share("c")), (0.65, 0.15, 0.2));
}

#[test]
fn the_peak_of_a_ramp_is_counted() {
    let plan = plan(
        "[[scenario]]\nmix = \"one\"\nworkers_max = 9\n\
         stages = [{ duration = \"10s\", from = 10, to = 70 }, { duration = \"1s\", from = 20, to = 30 }]",
    );
    assert_eq!(plan.peak(), Some(70.0));
}

#[test]
fn pauses_and_limits_bound_the_iterations_of_a_closed_scenario() {
    let closed = |keys: &str| {
        plan(&format!(
            "[[scenario]]\nmix = \"one\"\nmodel = \"closed\"\n{keys}\n\
             stages = [{{ duration = \"10s\", workers = 5 }}]"
        ))
    };
    assert_eq!(closed("").iterations(), Planned::Unknown);
    assert_eq!(closed("").peak(), None);
    assert!(closed("").shares().is_some());
    // Each of the five workers starts one iteration at once. In 10 s it starts at most 10 more.
    assert_eq!(closed("pause = \"1s\"").iterations(), Planned::AtMost(55.0));
    assert_eq!(closed("iterations = 7").iterations(), Planned::AtMost(7.0));
    assert_eq!(closed("pause = \"1s\"\niterations = 7").iterations(), Planned::AtMost(7.0));
}

#[test]
fn shares_of_different_closed_mixes_depend_on_the_target() {
    let plan = plan(
        "[[scenario]]\nname = \"x\"\nmix = \"one\"\nmodel = \"closed\"\n\
         stages = [{ duration = \"10s\", workers = 5 }]\n\
         [[scenario]]\nname = \"y\"\nmix = \"two\"\nmodel = \"closed\"\n\
         stages = [{ duration = \"10s\", workers = 5 }]",
    );
    assert_eq!(plan.shares(), None);
    assert_eq!(plan.shares_of(|scenario| scenario.name == "x").unwrap()[..2], [0.75, 0.25]);
}

#[test]
fn shares_count_the_calls_of_batches() {
    // An iteration of mix `two` has two requests. A request has 3 calls in the mean, because half
    // of the requests are batches of 5.
    let plan = plan(
        "[[scenario]]\nname = \"x\"\nmix = \"two\"\nworkers_max = 9\n\
         batch = { probability = 0.5, size = 5 }\nstages = [{ duration = \"10s\", rate = 10 }]\n\
         [[scenario]]\nname = \"y\"\nmix = \"one\"\nworkers_max = 9\n\
         stages = [{ duration = \"10s\", rate = 40 }]",
    );
    // Scenario x makes 300 calls of a and 300 of c. Scenario y makes 300 calls of a and 100 of b.
    assert_eq!(plan.calls_per_iteration(&plan.scenarios[0]).iter().sum::<f64>(), 6.0);
    let shares = plan.shares().unwrap();
    let share = |name: &str| shares[plan.methods.iter().position(|m| **m == *name).unwrap()];
    assert_eq!((share("a"), share("b"), share("c")), (0.6, 0.1, 0.3));
}

#[test]
fn shares_count_the_calls_of_recorded_batches() {
    let text = "[[scenario]]\nmix = \"mine\"\nworkers_max = 9\n\
                stages = [{ duration = \"10s\", rate = 10 }]\n\
                [[mix.mine.step]]\ncalls = [{ method = \"a\" }]\n\
                [[mix.mine.step]]\nbodies = ['[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"b\"},\
                {\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"b\"},{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"b\"}]']\n";
    let plan = read(text, "t", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.shares().unwrap(), [0.25, 0.75]);
}
