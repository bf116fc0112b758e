//! Goal: each rule warns about the mistake that it is for. Method: a plan with the mistake, and a
//! similar plan without it.

use crate::plan;

/// Returns the warnings about a plan.
fn warnings_of(text: &str) -> Vec<String> {
    let plan = plan::read(text, "t", &[]).unwrap_or_else(|problems| panic!("{problems}"));
    plan.warnings.iter().map(ToString::to_string).collect()
}

/// Returns the warnings about a plan with these thresholds, in which `eth_getLogs` has `weight` of
/// a total weight of 1000.
fn with_logs(weight: u32, thresholds: &str) -> Vec<String> {
    warnings_of(&format!(
        "[[scenario]]\nmix = \"m\"\nworkers_max = 10000\n\
         stages = [{{ duration = \"10m\", rate = 1000 }}]\n\
         [mix.m]\ncalls = [{{ method = \"eth_blockNumber\", weight = {} }}, \
         {{ method = \"eth_getLogs\", weight = {weight} }}]\n[thresholds]\n{thresholds}\n",
        1000 - weight
    ))
}

/// Returns the warning that contains this text.
fn find<'a>(warnings: &'a [String], needle: &str) -> Option<&'a str> {
    warnings.iter().map(String::as_str).find(|text| text.contains(needle))
}

#[test]
fn a_method_below_the_tolerated_share_can_fail_completely() {
    let warnings = with_logs(9, "failed = \"rate<0.01\"");
    let expected = "eth_getLogs is 0.900 % of calls: all of them can fail without breaking \
                    \"failed rate<0.01\"; add failed{method:eth_getLogs}";
    assert_eq!(warnings, [expected]);
}

#[test]
fn a_method_just_above_the_tolerated_share_can_fail_for_the_rest_of_the_run() {
    let warnings = with_logs(11, "failed = \"rate<0.01\"");
    assert!(find(&warnings, "for the rest of the run").is_some(), "{warnings:?}");
    assert!(find(&warnings, "needs 90.909 % of them to fail").is_some(), "{warnings:?}");
    // A threshold with windows detects a late failure, because the failure fills whole windows.
    let windowed = "failed = { threshold = \"rate<0.01\", window = \"10s\" }";
    assert_eq!(with_logs(11, windowed), Vec::<String>::new());
    assert!(find(&with_logs(9, windowed), "all of them can fail").is_some());
}

#[test]
fn larger_methods_and_those_with_a_threshold_are_not_reported() {
    assert_eq!(with_logs(16, "failed = \"rate<0.01\""), Vec::<String>::new());
    let own_threshold = "failed = \"rate<0.01\"\n\"failed{method:eth_getLogs}\" = \"rate<0.01\"";
    assert_eq!(with_logs(9, own_threshold), Vec::<String>::new());
    // A threshold without tolerance hides no method.
    assert_eq!(with_logs(9, "failed = \"rate<=0\""), Vec::<String>::new());
}

#[test]
fn a_percentile_ignores_a_method_in_its_tail() {
    let warnings = with_logs(40, "latency = [\"p(95)<300\"]");
    assert!(
        find(&warnings, "eth_getLogs is 4.000 % of calls: \"latency p(95)<300\" cannot break")
            .is_some(),
        "{warnings:?}"
    );
    // The strictest percentile decides.
    assert_eq!(with_logs(40, "latency = [\"p(95)<300\", \"p(99)<700\"]"), Vec::<String>::new());
    let own_threshold = "latency = \"p(95)<300\"\n\"latency{method:eth_getLogs}\" = \"p(95)<300\"";
    assert_eq!(with_logs(40, own_threshold), Vec::<String>::new());
}

#[test]
fn shares_that_depend_on_the_target_are_bounded_by_the_largest() {
    let text = r#"
        [[scenario]]
        name = "a"
        model = "closed"
        mix = "a"
        stages = [{ duration = "10s", workers = 3 }]
        [[scenario]]
        name = "b"
        model = "closed"
        mix = "b"
        stages = [{ duration = "10s", workers = 3 }]
        [mix.a]
        calls = [{ method = "eth_call", weight = 999 }, { method = "eth_getLogs", weight = 1 }]
        [mix.b]
        calls = [{ method = "eth_call" }]
        [thresholds]
        failed = "rate<0.01"
    "#;
    let warnings = warnings_of(text);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(find(&warnings, "eth_getLogs is 0.100 %").is_some());
}

/// Returns the warnings about a plan with one scenario that only reads. `keys` are further keys of
/// the scenario, and `tables` are further tables of the plan.
fn scenario(keys: &str, tables: &str) -> Vec<String> {
    warnings_of(&format!(
        "[[scenario]]\nname = \"s\"\nmix = \"m\"\n{keys}\n\
         [mix.m]\ncalls = [{{ method = \"eth_blockNumber\" }}]\n{tables}\n"
    ))
}

const THRESHOLDS: &str = "[thresholds]\nfailed = \"rate<0.01\"\n";

#[test]
fn percentiles_need_samples() {
    let keys = "workers_max = 1000\nstages = [{ duration = \"10s\", rate = 99 }]";
    let warnings = scenario(keys, "[thresholds]\nlatency = \"p(99)<300\"");
    assert!(find(&warnings, "at most 990 samples, 9 of them").is_some(), "{warnings:?}");
    assert!(find(&warnings, "use at least 10000 samples").is_some(), "{warnings:?}");
    let enough = "workers_max = 1000\nstages = [{ duration = \"100s\", rate = 101 }]";
    assert_eq!(scenario(enough, "[thresholds]\nlatency = \"p(99)<300\""), Vec::<String>::new());
    let window = "[thresholds]\nlatency = { threshold = \"p(99)<300\", window = \"10s\" }";
    assert!(find(&scenario(enough, window), "about 1010 samples in each window").is_some());
    // A median needs fewer samples.
    assert_eq!(scenario(keys, "[thresholds]\nlatency = \"med<300\""), Vec::<String>::new());
    let closed =
        "model = \"closed\"\niterations = 50\nstages = [{ duration = \"1h\", workers = 3 }]";
    let warnings = scenario(closed, "[thresholds]\nlatency = \"p(95)<300\"");
    assert!(find(&warnings, "at most 50 samples, 2 of them").is_some(), "{warnings:?}");
}

#[test]
fn workers_must_last_until_the_threshold_breaks() {
    let keys = "workers_max = 100\nstages = [{ duration = \"10m\", rate = 1000 }]";
    let warnings = scenario(keys, "[thresholds]\nlatency = \"p(99)<300\"");
    let warning = find(&warnings, "100 workers sustain 1000 iterations/s only if").unwrap();
    assert!(warning.contains("0.100 s in the mean"), "{warning}");
    assert!(warning.contains("if all iterations time out, they sustain 10.000/s"), "{warning}");
    assert_eq!(scenario(keys, "[thresholds]\nlatency = \"p(99)<100\""), Vec::<String>::new());
}

#[test]
fn pauses_bound_the_rate() {
    let keys =
        "model = \"closed\"\npause = \"100ms\"\nstages = [{ duration = \"10m\", workers = 100 }]";
    let warnings = scenario(keys, THRESHOLDS);
    assert!(find(&warnings, "start at most 1000 iterations/s").is_some(), "{warnings:?}");
    let unpaced = "model = \"closed\"\nstages = [{ duration = \"10m\", workers = 100 }]";
    assert_eq!(scenario(unpaced, THRESHOLDS), Vec::<String>::new());
}

#[test]
fn means_of_schedules_short_stages_and_short_graces_are_reported() {
    let ramp = "workers_max = 1000\nstages = [{ duration = \"10m\", to = 1000 }]";
    let warnings = scenario(ramp, THRESHOLDS);
    assert!(
        find(&warnings, "the mean of 500 requests/s follows from the schedule").is_some(),
        "{warnings:?}"
    );
    let short = "workers_max = 1000\nstages = [{ name = \"x\", duration = \"4s\", rate = 9 }]";
    assert!(
        find(
            &scenario(short, THRESHOLDS),
            "these stages are shorter than 5 s and too short for statistics of their own: x"
        )
        .is_some()
    );
    let grace = "grace = \"9s\"\nworkers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert!(find(&scenario(grace, THRESHOLDS), "is shorter than the timeout").is_some());
    let right = "grace = \"10s\"\nworkers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert_eq!(scenario(right, THRESHOLDS), Vec::<String>::new());
}

#[test]
fn writes_and_unknown_methods_are_reported() {
    let text = |method: &str| {
        format!(
            "[target]\nfamily = \"ethereum\"\n[[scenario]]\nmix = \"m\"\nworkers_max = 9\n\
             stages = [{{ duration = \"1m\", rate = 9 }}]\n\
             [mix.m]\ncalls = [{{ method = \"{method}\" }}]\n{THRESHOLDS}"
        )
    };
    let warnings = warnings_of(&text("eth_sendRawTransaction"));
    assert!(
        find(&warnings, "these methods write to the target: eth_sendRawTransaction").is_some(),
        "{warnings:?}"
    );
    assert!(
        find(
            &warnings_of(&text("eth_cal")),
            "unknown methods for ethereum: eth_cal (did you mean eth_call?)"
        )
        .is_some()
    );
    assert!(
        find(&warnings_of(&text("getblock")), "unknown methods for ethereum: getblock").is_some()
    );
    assert_eq!(warnings_of(&text("eth_call")), Vec::<String>::new());
}

#[test]
fn a_plan_without_thresholds_is_only_measured() {
    let keys = "workers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert!(find(&scenario(keys, ""), "no threshold is set").is_some());
    assert_eq!(scenario(keys, THRESHOLDS), Vec::<String>::new());
}

#[test]
fn many_small_methods_share_a_warning() {
    let text = "[[scenario]]\nmix = \"ethspam\"\nworkers_max = 10000\n\
                stages = [{ duration = \"10m\", rate = 1000 }]\n\
                [thresholds]\nfailed = \"rate<0.01\"\n";
    let warnings = warnings_of(text);
    let warning = find(&warnings, "all calls of any of these methods can fail").unwrap();
    assert!(
        warning.contains("eth_estimateGas (0.901 %), eth_getBlockByHash (0.761 %)"),
        "{warning}"
    );
    assert!(warning.contains(" and 3 more; add failed{method:…}"), "{warning}");
    assert!(find(&warnings, "these methods write to the target").is_some(), "{warnings:?}");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}
