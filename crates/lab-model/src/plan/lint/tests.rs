//! Plans in, objections out. Each rule has a plan that it must object to, and one beside it that it
//! must leave alone.

use crate::plan;

/// The objections to a plan of one open scenario with these thresholds.
fn objections(text: &str) -> Vec<String> {
    plan::read(text, "t", &[]).unwrap_or_else(|faults| panic!("{faults}")).warnings
}

/// A plan in which `eth_getLogs` has this weight of 1000, with these thresholds.
fn with_logs(weight: u32, thresholds: &str) -> Vec<String> {
    objections(&format!(
        "[[scenario]]\nmix = \"m\"\nworkers_max = 10000\n\
         stages = [{{ duration = \"10m\", rate = 1000 }}]\n\
         [mix.m]\ncalls = [{{ method = \"eth_blockNumber\", weight = {} }}, \
         {{ method = \"eth_getLogs\", weight = {weight} }}]\n[thresholds]\n{thresholds}\n",
        1000 - weight
    ))
}

fn about<'a>(found: &'a [String], needle: &str) -> Option<&'a str> {
    found.iter().map(String::as_str).find(|text| text.contains(needle))
}

#[test]
fn a_method_below_the_tolerated_share_can_fail_wholly() {
    let found = with_logs(9, "failed = \"rate<0.01\"");
    let expected = "eth_getLogs is 0.900 % of calls: all of them can fail without breaking \
                    \"failed rate<0.01\"; add failed{method:eth_getLogs}";
    assert_eq!(found, [expected]);
}

#[test]
fn a_method_just_above_it_can_fail_from_a_knee_on() {
    let found = with_logs(11, "failed = \"rate<0.01\"");
    assert!(about(&found, "for the rest of the run").is_some(), "{found:?}");
    assert!(about(&found, "needs 90.909 % of them to fail").is_some(), "{found:?}");
    // Judged by window a failure that begins late is seen: each window is all failure or none.
    let windowed = "failed = { threshold = \"rate<0.01\", window = \"10s\" }";
    assert_eq!(with_logs(11, windowed), Vec::<String>::new());
    assert!(about(&with_logs(9, windowed), "all of them can fail").is_some());
}

#[test]
fn larger_methods_and_those_with_a_threshold_are_not_reported() {
    assert_eq!(with_logs(16, "failed = \"rate<0.01\""), Vec::<String>::new());
    let own = "failed = \"rate<0.01\"\n\"failed{method:eth_getLogs}\" = \"rate<0.01\"";
    assert_eq!(with_logs(9, own), Vec::<String>::new());
    // A limit that nothing can break tolerates all, so it is not what hides the method.
    assert_eq!(with_logs(9, "failed = \"rate<=0\""), Vec::<String>::new());
}

#[test]
fn a_percentile_ignores_a_method_in_its_tail() {
    let found = with_logs(40, "latency = [\"p(95)<300\"]");
    assert!(about(&found, "eth_getLogs is 4.000 % of calls: however slow").is_some(), "{found:?}");
    // The strictest percentile decides.
    assert_eq!(with_logs(40, "latency = [\"p(95)<300\", \"p(99)<700\"]"), Vec::<String>::new());
    let own = "latency = \"p(95)<300\"\n\"latency{method:eth_getLogs}\" = \"p(95)<300\"";
    assert_eq!(with_logs(40, own), Vec::<String>::new());
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
    let found = objections(text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(about(&found, "eth_getLogs is 0.100 %").is_some());
}

/// A plan of one scenario of reads, with further keys and thresholds.
fn scenario(keys: &str, more: &str) -> Vec<String> {
    objections(&format!(
        "[[scenario]]\nname = \"s\"\nmix = \"m\"\n{keys}\n\
         [mix.m]\ncalls = [{{ method = \"eth_blockNumber\" }}]\n{more}\n"
    ))
}

const JUDGED: &str = "[thresholds]\nfailed = \"rate<0.01\"\n";

#[test]
fn percentiles_need_samples() {
    let keys = "workers_max = 1000\nstages = [{ duration = \"10s\", rate = 99 }]";
    let found = scenario(keys, "[thresholds]\nlatency = \"p(99)<300\"");
    assert!(about(&found, "at most 990 samples, 9 of them").is_some(), "{found:?}");
    assert!(about(&found, "use at least 10000 samples").is_some(), "{found:?}");
    let enough = "workers_max = 1000\nstages = [{ duration = \"100s\", rate = 101 }]";
    assert_eq!(scenario(enough, "[thresholds]\nlatency = \"p(99)<300\""), Vec::<String>::new());
    let window = "[thresholds]\nlatency = { threshold = \"p(99)<300\", window = \"10s\" }";
    assert!(about(&scenario(enough, window), "about 1010 samples in each window").is_some());
    // A median of the same few calls is none of this.
    assert_eq!(scenario(keys, "[thresholds]\nlatency = \"med<300\""), Vec::<String>::new());
    let closed =
        "model = \"closed\"\niterations = 50\nstages = [{ duration = \"1h\", workers = 3 }]";
    let found = scenario(closed, "[thresholds]\nlatency = \"p(95)<300\"");
    assert!(about(&found, "at most 50 samples, 2 of them").is_some(), "{found:?}");
}

#[test]
fn workers_must_last_until_the_threshold_breaks() {
    let keys = "workers_max = 100\nstages = [{ duration = \"10m\", rate = 1000 }]";
    let found = scenario(keys, "[thresholds]\nlatency = \"p(99)<300\"");
    let said = about(&found, "100 workers carry 1000 iterations/s only while").unwrap();
    assert!(said.contains("0.100 s in the mean"), "{said}");
    assert!(said.contains("if all time out they carry 10.000/s"), "{said}");
    assert_eq!(scenario(keys, "[thresholds]\nlatency = \"p(99)<100\""), Vec::<String>::new());
}

#[test]
fn pauses_bound_the_rate() {
    let keys =
        "model = \"closed\"\npause = \"100ms\"\nstages = [{ duration = \"10m\", workers = 100 }]";
    let found = scenario(keys, JUDGED);
    assert!(about(&found, "start at most 1000 iterations/s").is_some(), "{found:?}");
    let unpaced = "model = \"closed\"\nstages = [{ duration = \"10m\", workers = 100 }]";
    assert_eq!(scenario(unpaced, JUDGED), Vec::<String>::new());
}

#[test]
fn means_of_schedules_short_stages_and_short_graces_are_said() {
    let ramp = "workers_max = 1000\nstages = [{ duration = \"10m\", to = 1000 }]";
    let found = scenario(ramp, JUDGED);
    assert!(
        about(&found, "the mean of 500 requests/s follows from the schedule").is_some(),
        "{found:?}"
    );
    let short = "workers_max = 1000\nstages = [{ name = \"x\", duration = \"4s\", rate = 9 }]";
    assert!(
        about(
            &scenario(short, JUDGED),
            "these stages are shorter than 5 s, too short for their own statistics: x"
        )
        .is_some()
    );
    let grace = "grace = \"9s\"\nworkers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert!(about(&scenario(grace, JUDGED), "is shorter than the timeout").is_some());
    let right = "grace = \"10s\"\nworkers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert_eq!(scenario(right, JUDGED), Vec::<String>::new());
}

#[test]
fn writes_and_unknown_methods_are_said() {
    let text = |method: &str| {
        format!(
            "[target]\nfamily = \"ethereum\"\n[[scenario]]\nmix = \"m\"\nworkers_max = 9\n\
             stages = [{{ duration = \"1m\", rate = 9 }}]\n\
             [mix.m]\ncalls = [{{ method = \"{method}\" }}]\n{JUDGED}"
        )
    };
    let found = objections(&text("eth_sendRawTransaction"));
    assert!(
        about(&found, "these methods write to the target: eth_sendRawTransaction").is_some(),
        "{found:?}"
    );
    assert!(
        about(&objections(&text("eth_cal")), "unknown methods for ethereum: eth_cal").is_some()
    );
    assert!(
        about(&objections(&text("getblock")), "unknown methods for ethereum: getblock").is_some()
    );
    assert_eq!(objections(&text("eth_call")), Vec::<String>::new());
}

#[test]
fn a_plan_without_thresholds_is_only_measured() {
    let keys = "workers_max = 9\nstages = [{ duration = \"1m\", rate = 9 }]";
    assert!(about(&scenario(keys, ""), "no threshold is set").is_some());
    assert_eq!(scenario(keys, JUDGED), Vec::<String>::new());
}

#[test]
fn many_small_methods_share_a_warning() {
    let text = "[[scenario]]\nmix = \"ethspam\"\nworkers_max = 10000\n\
                stages = [{ duration = \"10m\", rate = 1000 }]\n\
                [thresholds]\nfailed = \"rate<0.01\"\n";
    let found = objections(text);
    let said = about(&found, "all calls of any of these methods can fail").unwrap();
    assert!(said.contains("eth_estimateGas (0.901 %), eth_getBlockByHash (0.761 %)"), "{said}");
    assert!(said.contains(" and 3 more; add failed{method:…}"), "{said}");
    assert!(about(&found, "these methods write to the target").is_some(), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");
}
