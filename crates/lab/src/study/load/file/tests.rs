//! Goal: a study file defines the runs, and a faulty file gets precise errors. Method: small files
//! in a temporary folder, and exact comparison of the errors.

use expect_test::{Expect, expect};
use tempfile::TempDir;

use super::*;

const PLAN: &str = "[variables]\nrate = 5\n[[scenario]]\nmix = 'x'\nmodel = 'closed'\n\
                    stages = [{ duration = '3s', workers = 'rate' }]\n\
                    [[mix.x.calls]]\nmethod = 'eth_chainId'\n";
const HEAD: &str = "study = 'load'\nname = 'x'\nplans = ['p.toml']\n";

fn folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("p.toml"), PLAN).unwrap();
    std::fs::write(folder.path().join("q.toml"), PLAN).unwrap();
    folder
}

fn study_in(folder: &TempDir, text: &str) -> Result<LoadStudy, Diagnostics> {
    read(text, &folder.path().join("s.toml").display().to_string(), &[])
}

/// Checks the errors of a study, without the folder's name.
fn faults(text: &str, expected: Expect) {
    let folder = folder();
    let printed = study_in(&folder, text).unwrap_err().to_string();
    expected.assert_eq(&printed.replace(&format!("{}/", folder.path().display()), ""));
}

const TWO: &str = "[[variant]]\nname = 'a'\ntarget = 'http://127.0.0.1:1'\n\
                   [[variant]]\nname = 'b'\ntarget = 'http://127.0.0.1:2'\n";

#[test]
fn a_study_and_its_summary() {
    let text = format!(
        "{HEAD}order = 'latin-square'\nvariables = {{ rate = 7 }}\n\
         [[server]]\nname = 'node'\ncommand = ['{{weir}}', 'node', '--listen', '127.0.0.1:{{port.node}}']\n\
         ready = '127.0.0.1:{{port.node}}'\n\
         [[variant]]\nname = 'direct'\ntarget = 'http://127.0.0.1:{{port.node}}'\n\
         [[variant]]\nname = 'nginx'\ntarget = 'http://127.0.0.1:{{port.front}}/key0123456789abcdef'\n\
         [[variant.server]]\nname = 'nginx'\ncommand = ['nginx', '-c', '{{dir}}/nginx.conf']\n\
         [variant.server.files]\n'nginx.conf' = 'http {{ server {{ listen {{port.front}}; }} }}'\n"
    );
    let folder = folder();
    let study = study_in(&folder, &text).unwrap();
    assert!(is_load_study(&text) && !is_load_study("study = 'sync'\n") && !is_load_study("x"));
    let printed = format!("study\n{}{}", study.summary(), study.describe_order());
    expect![[r#"
        study
          variants   direct: http://127.0.0.1:{port.node}
                     nginx: http://127.0.0.1:{port.front}/***, starts nginx
                     direct-control: the A/A control
          plans      p
          one round  3 runs, 18 s
          rounds     1 round for warm-up, then 6 to 40, Latin square, until the intervals of latency p50 are ±5 % or 1 h have passed
          time       2 min 6 s to 12 min 18 s, and the start of servers
          restarts   never
          warm-up    direct, nginx, direct-control
          round 1    direct, nginx, direct-control
          round 2    nginx, direct-control, direct
          round 3    direct-control, direct, nginx
          round 4    direct-control, nginx, direct
          round 5    direct, direct-control, nginx
          round 6    nginx, direct, direct-control
          round 7    direct, nginx, direct-control
          round 8    nginx, direct-control, direct
          round 9    direct-control, direct, nginx
          round 10   direct-control, nginx, direct
          round 11   direct, direct-control, nginx
          round 12   nginx, direct, direct-control
          …          the same 6 orders again
    "#]]
    .assert_eq(&printed);
    assert_eq!(study.variants[1].plans[0].scenarios[0].stages[0].to, 7.0, "the study's variable");
    let overrides = [("rate".to_owned(), 9.0)];
    let name = folder.path().join("s.toml").display().to_string();
    let again = read(&text, &name, &overrides).unwrap();
    assert_eq!(again.variants[0].plans[0].scenarios[0].stages[0].to, 9.0, "the command line's");
    assert_ne!(again.hash, study.hash, "runs of other loads do not belong together");
    let longer = text.replace("name = 'x'", "name = 'y'\nrounds_max = 50\npause = '2s'");
    assert_eq!(study_in(&folder, &longer).unwrap().hash, study.hash, "limits may change");
    assert!(!study.loads_differ());
}

#[test]
fn loads_differ_if_variants_have_other_plans_or_variables() {
    let folder = folder();
    let with = |line: &str| format!("{HEAD}{TWO}{line}\n");
    assert!(study_in(&folder, &with("variables = { rate = 6 }")).unwrap().loads_differ());
    std::fs::write(folder.path().join("q.toml"), PLAN.replace("3s", "4s")).unwrap();
    assert!(study_in(&folder, &with("plans = ['q.toml']")).unwrap().loads_differ());
    assert!(!study_in(&folder, &with("")).unwrap().loads_differ());
}

#[test]
fn faulty_files_are_refused_with_their_reasons() {
    faults(
        &format!("{HEAD}rounds = 3\n{TWO}"),
        expect![[r#"
        s.toml:4:1: rounds: there is no such key
           4 | rounds = 3
             | ^^^^^^
             allowed: study, name, question, plans, variables, order, control, warm_up_rounds, rounds_min, rounds_max, precision, precision_of, time_max, restart, pause, case, server, variant
    "#]],
    );
    faults(
        &format!("{}{TWO}", HEAD.replace("load", "laod")),
        expect![[r#"
        s.toml:1:9: study = 'laod': there is no such word; did you mean "load"?
           1 | study = 'laod'
             |         ^^^^^^
             allowed: "load"
    "#]],
    );
    faults(
        HEAD,
        expect![[r#"
            s.toml: variant: must be set
                 allowed: tables with the keys name, target, plans, variables, ratio_max, server

            s.toml: variant: there are 0 variants
                 allowed: 1 to 16 variants
        "#]],
    );
    faults(
        &format!("{HEAD}{}", TWO.replace("'b'", "'a'")),
        expect![[r#"
        s.toml:8:8: variant.name = 'a': another variant, or the A/A control, has this name
           8 | name = 'a'
             |        ^^^
             allowed: each name once
    "#]],
    );
    faults(
        &format!("{HEAD}{}", TWO.replace("'b'", "'a-control'")),
        expect![[r#"
        s.toml:8:8: variant.name = 'a-control': another variant, or the A/A control, has this name
           8 | name = 'a-control'
             |        ^^^^^^^^^^^
             allowed: each name once
    "#]],
    );
    faults(
        &format!("{HEAD}{}", TWO.replace("http://127.0.0.1:2", "127.0.0.1:2")),
        expect![[r#"
        s.toml:9:10: variant.target = "127.0.0.1:2": a url begins with http://, https://, ws:// or wss://
           9 | target = "127.0.0.1:2"
             |          ^^^^^^^^^^^^^
             allowed: http[s]://host[:port][/path] or ws[s]://…, with {port.NAME} in place of a port
    "#]],
    );
    faults(
        &format!("{HEAD}rounds_min = 9\nrounds_max = 8\n{TWO}"),
        expect![[r#"
        s.toml:5:14: rounds_max = 8: rounds_max is below rounds_min, which is 9
           5 | rounds_max = 8
             |              ^
             allowed: rounds_min at most rounds_max
    "#]],
    );
    faults(
        &format!("{HEAD}control = false\n[[variant]]\nname = 'a'\n"),
        expect![[r#"
        s.toml:5:1: variant: there is one variant, and no control to compare it with
           5 | [[variant]]
             | ^^^^^^^^^^^
             allowed: two variants, or control = true
    "#]],
    );
}

#[test]
fn faulty_plans_are_refused_with_their_reasons() {
    faults(
        &format!("{}{TWO}", HEAD.replace("p.toml", "gone.toml")),
        expect![[r#"
            s.toml:3:10: plans = 'gone.toml': cannot read the plan: No such file or directory (os error 2)
               3 | plans = ['gone.toml']
                 |          ^^^^^^^^^^^
                 allowed: name of a plan, from the folder of this file
        "#]],
    );
    faults(
        &format!("study = 'load'\nname = 'x'\n{TWO}"),
        expect![[r#"
        s.toml:3:1: variant: the variant has no plans
           3 | [[variant]]
             | ^^^^^^^^^^^
             allowed: plans here or in the study

        s.toml:6:1: variant: the variant has no plans
           6 | [[variant]]
             | ^^^^^^^^^^^
             allowed: plans here or in the study
    "#]],
    );
    faults(
        &format!("{HEAD}{TWO}plans = ['p.toml', 'q.toml']\n"),
        expect![[r#"
        s.toml:10:9: variant.plans = ['p.toml', 'q.toml']: 2 plans, but "a" has 1
          10 | plans = ['p.toml', 'q.toml']
             |         ^^^^^^^^^^^^^^^^^^^^
             allowed: 1 plans, in the same order
    "#]],
    );
    faults(
        &format!("{}{TWO}", HEAD.replace("['p.toml']", "['p.toml', './p.toml']")),
        expect![[r#"
            s.toml:3:9: plans = ['p.toml', './p.toml']: two plans have the same file name without folder and extension
               3 | plans = ['p.toml', './p.toml']
                 |         ^^^^^^^^^^^^^^^^^^^^^^
                 allowed: distinct file names
        "#]],
    );
    let folder = folder();
    std::fs::write(folder.path().join("p.toml"), PLAN.replace("closed", "shut")).unwrap();
    let problems = study_in(&folder, &format!("{HEAD}{TWO}")).unwrap_err();
    let printed = problems.to_string().replace(&format!("{}/", folder.path().display()), "");
    expect![[r#"
        p.toml:5:9: scenario.model = 'shut': there is no such word
           5 | model = 'shut'
             |         ^^^^^^
             allowed: "open", "closed"

        p.toml:6:40: scenario.stages.workers = 'rate': the scenario's model is open
           6 | stages = [{ duration = '3s', workers = 'rate' }]
             |                                        ^^^^^^
             allowed: rate
    "#]]
    .assert_eq(&printed);
}

#[test]
fn faulty_servers_are_refused_with_their_reasons() {
    let server = |lines: &str| format!("{HEAD}{TWO}[[variant.server]]\nname = 's'\n{lines}\n");
    faults(
        &server("command = []"),
        expect![[r#"
        s.toml:12:11: variant.server.command = []: the command is empty
          12 | command = []
             |           ^^
             allowed: at least one word
    "#]],
    );
    faults(
        &server("command = ['p', '{sample}']"),
        expect![[r#"
        s.toml:12:11: variant.server.command = ['p', '{sample}']: unknown placeholder {sample}
          12 | command = ['p', '{sample}']
             |           ^^^^^^^^^^^^^^^^^
             allowed: {dir}, {variant}, {weir}, {port.NAME}
    "#]],
    );
    faults(
        &server("command = ['p', '{port.a}']"),
        expect![[r#"
        s.toml:7:1: variant: the port {port.a} is used only once
           7 | [[variant]]
             | ^^^^^^^^^^^
             allowed: each port at its server and at what connects to it
    "#]],
    );
    faults(
        &server("command = ['p']\nready = 'here'"),
        expect![[r#"
        s.toml:13:9: variant.server.ready = 'here': not an address with a port
          13 | ready = 'here'
             |         ^^^^^^
             allowed: HOST:PORT, such as 127.0.0.1:{port.NAME}
    "#]],
    );
    faults(
        &server("command = ['p']\nfiles = { '../x' = '' }"),
        expect![[r#"
        s.toml:13:9: variant.server.files: "../x" is not the name of a file in {dir}
          13 | files = { '../x' = '' }
             |         ^^^^^^^^^^^^^^^
             allowed: letters, digits, `-`, `_` and `.`
    "#]],
    );
    faults(
        &server("command = ['p']\n[[variant.server]]\nname = 's'\ncommand = ['q']"),
        expect![[r#"
            s.toml:14:8: variant.server.name = 's': another server of the same variant has this name
              14 | name = 's'
                 |        ^^^
                 allowed: each name once
        "#]],
    );
    let shared = "[[server]]\nname = 's'\ncommand = ['p', '{port.a}']\n";
    faults(
        &format!("{HEAD}{shared}{TWO}"),
        expect![[r#"
        s.toml:4:1: server: the port {port.a} is used only once
           4 | [[server]]
             | ^^^^^^^^^^
             allowed: each port at its server and at what connects to it
    "#]],
    );
}

#[test]
fn a_shared_port_is_used_by_variants() {
    let shared = "[[server]]\nname = 's'\ncommand = ['p', '{port.a}']\n";
    let text = format!("{HEAD}{shared}{}", TWO.replace("127.0.0.1:1'", "127.0.0.1:{port.a}'"));
    study_in(&folder(), &text).unwrap();
}

#[test]
fn the_example_of_the_page_is_a_study() {
    let page = include_str!("../../../../../../docs/load-studies.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let folder = folder();
    std::fs::rename(folder.path().join("p.toml"), folder.path().join("plan.toml")).unwrap();
    let study = study_in(&folder, text).unwrap();
    assert_eq!(study.variants.len(), 3, "two variants and the control");
}

#[test]
fn cases_have_their_own_plans_values_and_limits() {
    let text = "study = 'load'\nname = 'x'\nplans = ['p.toml']\nvariables = { rate = 7 }\n\
         [[case]]\nname = 'one'\nvalues = { url = 'https://h:{port.a}', limit = '1' }\n\
         [[case]]\nname = 'two'\nplan = 'q.toml'\nvariables = { rate = 9 }\n\
         values = { url = 'http://h:{port.b}', limit = '2' }\ncpus = 1\n\
         [[case]]\nname = 'huge'\nvalues = { url = 'http://h', limit = '3' }\ncpus = 1000\n\
         [[variant]]\nname = 'a'\ntarget = '{case.url}/secret'\n\
         [[variant.server]]\nname = 's'\ncommand = ['s', '{case.limit}', '{port.a}', '{port.b}']\n\
         access_log = '{dir}/log'\n";
    let folder = folder();
    let study = study_in(&folder, text).unwrap();
    assert_eq!(study.plans, ["one", "two"]);
    let level =
        |study: &LoadStudy, plan: usize| study.variants[0].plans[plan].scenarios[0].stages[0].to;
    assert_eq!((level(&study, 0), level(&study, 1)), (7.0, 9.0), "the case's variables count");
    assert!(!study.cases[0].can_use_servers_of(&study.cases[1]));
    let summary = study.summary();
    for part in
        ["a: {case.url}, starts s", "cases      one, two", "left out   huge: needs 1000 CPUs"]
    {
        assert!(summary.contains(part), "{part} is not in {summary}");
    }
    assert!(!summary.contains("secret"), "{summary}");
    let name = folder.path().join("s.toml").display().to_string();
    let overridden = read(text, &name, &[("rate".to_owned(), 3.0)]).unwrap();
    assert_eq!(level(&overridden, 1), 3.0, "the command line comes first");
    assert_ne!(overridden.hash, study.hash);
    let other = study_in(&folder, &text.replace("limit = '2'", "limit = '4'")).unwrap();
    assert_ne!(other.hash, study.hash, "values define the runs");
}

#[test]
fn faulty_cases_are_refused_with_their_reasons() {
    let case = |keys: &str, target: &str| {
        format!(
            "{HEAD}[[case]]\nname = 'one'\n{keys}\n[[case]]\nname = 'two'\n\
             [[variant]]\nname = 'a'\ntarget = '{target}'\n"
        )
    };
    faults(
        &case("values = { x = '1' }", "http://h/{case.x}"),
        expect![[r#"
            s.toml:11:10: variant.target = "http://h/***": unknown placeholder {case.x}
              11 | target = "http://h/***"
                 |          ^^^^^^^^^^^^^^
                 allowed: {dir}, {variant}, {weir}, {port.NAME}, {case.NAME} of all cases
        "#]],
    );
    // A shared server runs for all cases.
    faults(
        &format!(
            "{HEAD}[[server]]\nname = 's'\ncommand = ['p', '{{case.x}}']\n\
             [[case]]\nname = 'one'\nvalues = {{ x = '1' }}\n{TWO}"
        ),
        expect![[r#"
            s.toml:6:11: server.command = ['p', '{case.x}']: unknown placeholder {case.x}
               6 | command = ['p', '{case.x}']
                 |           ^^^^^^^^^^^^^^^^^
                 allowed: {dir}, {variant}, {weir}, {port.NAME}
        "#]],
    );
    faults(
        &case("cpus = 0", "http://h"),
        expect![[r#"
            s.toml:6:8: case.cpus = 0: out of range
               6 | cpus = 0
                 |        ^
                 allowed: a number from 0.01 to 1024
        "#]],
    );
    faults(
        &case("plan = 'gone.toml'", "http://h"),
        expect![[r#"
        s.toml:6:8: case.plan = 'gone.toml': cannot read the plan: No such file or directory (os error 2)
           6 | plan = 'gone.toml'
             |        ^^^^^^^^^^^
             allowed: name of a plan, from the folder of this file
    "#]],
    );
}

#[test]
fn the_shipped_studies_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    for (name, variants, cases) in [
        ("harmony-methods", 5, 0),
        ("rate-limits", 2, 13),
        ("five-modes", 4, 15),
        ("batches", 4, 0),
        ("bench/tls", 3, 5),
        ("bench/tracing", 3, 2),
        ("bench/latency", 4, 0),
    ] {
        let file = folder.join(format!("{name}.toml"));
        let text = std::fs::read_to_string(&file).unwrap();
        let study = read(&text, &file.display().to_string(), &[]).unwrap_or_else(|problems| {
            panic!("{problems}");
        });
        assert_eq!(study.variants.len(), variants, "{name}");
        // A small machine cannot run the cases with many CPUs.
        assert_eq!(study.cases.len() + study.cases_left_out.len(), cases, "{name}");
    }
}

#[test]
fn limits_of_ratios_are_those_of_the_case_or_else_of_the_variant() {
    let folder = folder();
    let limited = TWO.replace(
        "127.0.0.1:2'\n",
        "127.0.0.1:2'\nratio_max = { goodput = 1.1, latency_p99 = 2 }\n",
    );
    let cases = "[[case]]\nname = 'one'\n[[case]]\nname = 'two'\nratio_max = { goodput = 1.5 }\n";
    let study = study_in(&folder, &format!("{HEAD}{limited}{cases}")).unwrap();
    let limits: Vec<(usize, usize, Metric, f64)> = study
        .ratio_limits
        .iter()
        .map(|limit| (limit.plan, limit.variant, limit.metric, limit.max))
        .collect();
    let expected = [
        (0, 1, Metric::LatencyP99, 2.0),
        (0, 1, Metric::Goodput, 1.1),
        (1, 1, Metric::LatencyP99, 2.0),
        (1, 1, Metric::Goodput, 1.5),
    ];
    assert_eq!(limits, expected);
    let summary = study.summary();
    for part in [
        "ratio_max  b: ratio of latency p99: 2\n",
        "b: inverse ratio of results/s: one 1.1, two 1.5\n",
    ] {
        assert!(summary.contains(part), "{part} is not in {summary}");
    }
    let without =
        study_in(&folder, &format!("{HEAD}{TWO}[[case]]\nname = 'one'\n[[case]]\nname = 'two'\n"));
    assert_eq!(study.hash, without.unwrap().hash, "limits may change between rounds");
    let plans = format!("{}{limited}", HEAD.replace("['p.toml']", "['p.toml', 'q.toml']"));
    assert_eq!(study_in(&folder, &plans).unwrap().ratio_limits.len(), 4);
}

#[test]
fn faulty_limits_of_ratios_are_refused_with_their_reasons() {
    let limit_of = |port: usize, limits: &str| {
        let line = format!("127.0.0.1:{port}'\n");
        format!("{HEAD}{}", TWO.replace(&line, &format!("{line}ratio_max = {{ {limits} }}\n")))
    };
    faults(
        &limit_of(1, "goodput = 1.1"),
        expect![[r#"
        s.toml:7:25: variant.ratio_max.goodput = 1.1: the first variant is compared with no other
           7 | ratio_max = { goodput = 1.1 }
             |                         ^^^
             allowed: a ratio of one of the variants after the first
    "#]],
    );
    faults(
        &limit_of(2, "latency_p90 = 1.1"),
        expect![[r#"
        s.toml:10:15: variant.ratio_max.latency_p90: there is no such key; did you mean latency_p50?
          10 | ratio_max = { latency_p90 = 1.1 }
             |               ^^^^^^^^^^^
             allowed: latency_p50, latency_p95, latency_p99, goodput, cpu_ms_per_request
    "#]],
    );
    faults(
        &limit_of(2, "goodput = 0"),
        expect![[r#"
        s.toml:10:25: variant.ratio_max.goodput = 0: out of range
          10 | ratio_max = { goodput = 0 }
             |                         ^
             allowed: a number from 0.001 to 1000
    "#]],
    );
    let case = "[[case]]\nname = 'one'\nratio_max = { latency_p99 = 1.5 }\n";
    faults(
        &(limit_of(2, "goodput = 1.1") + case),
        expect![[r#"
        s.toml:13:29: case.ratio_max.latency_p99 = 1.5: no variant has a ratio_max of this metric
          13 | ratio_max = { latency_p99 = 1.5 }
             |                             ^^^
             allowed: metrics in the ratio_max of a variant
    "#]],
    );
}
