//! Goal: plans are read, and problems reported, exactly as expected. Method: each plan file has a
//! file with the expected output beside it, which `UPDATE_EXPECT=1` rewrites. The numbers of the
//! shipped studies are compared with the numbers of the published reports. Every secret in the
//! files contains the word `sekrit`, which no output may contain.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use settings::{Table, TableDoc};

use super::planned::Planned;
use super::*;

/// Returns the plan files in a folder of `tests/plan`.
fn cases(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan").join(folder);
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let is_toml = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "toml");
    let mut files: Vec<_> = files.filter(is_toml).collect();
    files.sort();
    assert!(files.len() >= 2, "too few cases in {}", folder.display());
    files
}

/// Reads a plan file. Its text can refer to the environment variables `TOKEN` and `EMPTY`.
fn read_file(file: &Path) -> Result<Plan, Diagnostics> {
    let text = std::fs::read_to_string(file).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let variable = |name: &str| match name {
        "TOKEN" => Some("sekrit-of-the-environment".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    let folder = file.parent().unwrap().to_owned();
    let environment =
        Environment { folder, variable: &variable, overrides: &[], can_read_files: true };
    read_in(&environment, &text, name)
}

/// Compares `printed` with the file of the expected output beside `file`.
fn check_expected(file: &Path, printed: &str) {
    assert!(!printed.contains("sekrit"), "{} spills a secret:\n{printed}", file.display());
    let folder = format!("{}/", file.parent().unwrap().display());
    let printed = printed.replace(&folder, "");
    expect_test::expect_file![file.with_extension("expected")].assert_eq(&printed);
}

#[test]
fn invalid_plans_report_all_problems() {
    for file in cases("invalid") {
        let problems = read_file(&file).expect_err("a faulty plan passed");
        assert!(!format!("{problems:?}").contains("sekrit"), "{} spills a secret", file.display());
        check_expected(&file, &problems.to_string());
    }
}

#[test]
fn valid_plans_are_summarized() {
    for file in cases("valid") {
        let plan = read_file(&file).unwrap_or_else(|problems| panic!("{problems}"));
        let warnings: Vec<_> =
            plan.warnings.iter().map(|text| format!("warning: {text}\n")).collect();
        let summary_text =
            format!("{}\n{}\n{}", summary::summarize(&plan), warnings.concat(), plan.text);
        check_expected(&file, &summary_text);
    }
}

#[test]
fn a_text_without_secrets_is_stored_unchanged() {
    for file in cases("valid") {
        let plan = read_file(&file).unwrap();
        if plan.text.contains("***") || plan.text.contains("${env:TOKEN}") {
            continue;
        }
        let original = std::fs::read_to_string(&file).unwrap();
        assert_eq!(plan.text, original, "{}", file.display());
    }
}

/// Returns every table of a plan, with the prefix of its keys.
fn tables() -> Vec<(String, TableDoc)> {
    fn add(prefix: &str, table: TableDoc, tables: &mut Vec<(String, TableDoc)>) {
        for key in &table.keys {
            if let Some(nested) = key.table.clone() {
                add(&format!("{prefix}{}.", key.name), nested, tables);
            }
        }
        tables.push((prefix.to_owned(), table));
    }
    let mut tables = Vec::new();
    add("", PlanFile::doc(), &mut tables);
    tables.extend(params::generators().map(|(name, table)| (format!("{name}."), table)));
    tables
}

#[test]
fn every_default_is_valid_and_every_key_has_a_doc() {
    // A default that cannot be read panics.
    let file = PlanFile::defaults("");
    assert_eq!(file.target.url.to_string(), "http://127.0.0.1:8545");
    let text = "[[scenario]]\nbatch = {}\nstages = [{}]\n[mix.m]\nstep = [{ calls = [{ params = [\
                {draw='block'},{draw='logs'},{draw='block-hash'},{draw='transaction-hash'},\
                {draw='address'},{draw='bytes'},{draw='one-of'}] }] }]\n[thresholds]\nlatency = {}\n";
    let problems = read(text, "t", &[]).unwrap_err();
    assert!(problems.list.iter().all(|problem| problem.message == "must be set"), "{problems}");
    for (prefix, table) in tables() {
        for key in &table.keys {
            assert!(key.doc.ends_with('.'), "{prefix}{}", key.name);
        }
    }
}

#[test]
fn one_file_sets_every_key() {
    let file = cases("valid").into_iter().find(|file| file.ends_with("everything.toml")).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    // The file uses k6's name of the key `abort`.
    let page = text.replace("abort_on_fail", "abort");
    for (prefix, table) in tables() {
        for key in &table.keys {
            let is_set = page.contains(&format!("{} = ", key.name))
                || page.contains(&format!("[{}", key.name))
                || page.contains(&format!(".{}]", key.name));
            assert!(is_set, "everything.toml does not set {prefix}{}", key.name);
        }
    }
}

#[test]
fn the_schema_accepts_every_plan_and_rejects_misspelt_keys() {
    let schema: serde_json::Value = serde_json::from_str(&reference::schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    let studies = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
    let list = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let studies = [list(&studies), list(&studies.join("bench"))].concat();
    let studies = studies.into_iter().filter(|path| path.is_file());
    let mut texts: Vec<_> = studies.chain(cases("valid")).map(std::fs::read_to_string).collect();
    texts.push(Ok(reference::EXAMPLE.to_owned()));
    let is_load_study = |text: &str| {
        text.lines().next().is_some_and(|line| line.ends_with("docs/load-study-file.schema.json"))
    };
    let texts: Vec<_> = texts
        .into_iter()
        .map(Result::unwrap)
        .filter(|text| is_plan(text) && !is_load_study(text))
        .collect();
    assert!(texts.len() >= 11, "{} plans", texts.len());
    for text in &texts {
        let error = validator.validate(&json(text)).err().map(|error| error.to_string());
        assert_eq!(error, None, "{text}");
    }
    for (name, mix) in shipped::MIXES {
        let mut plan = json("[[scenario]]\nmix = 'm'\nstages = [{ duration = '1s', rate = 1 }]");
        plan["mix"] = serde_json::json!({ "m": json(mix) });
        let error = validator.validate(&plan).err().map(|error| error.to_string());
        assert_eq!(error, None, "{name}");
    }
    let least = "[[scenario]]\nmix = 'a'\nworkers_max = 'n * 2'\n";
    let wrong = [
        "stages = [{ duration = '1s', raet = 10 }]",
        "stages = [{ duration = '1', rate = 10 }]",
        "stages = [{ duration = '1s', rate = -1 }]",
        "stages = [{ duration = '1s', rate = true }]",
        "stages = [{ duration = '1s' }]\n[thresholds]\nfailed = { treshold = 'rate<1' }",
        "stages = [{ duration = '1s' }]\n[mix.a]\ncalls = [{ methd = 'x' }]",
    ];
    assert!(validator.is_valid(&json(&format!("{least}stages = [{{ duration = '1s' }}]"))));
    for text in wrong {
        assert!(!validator.is_valid(&json(&format!("{least}{text}"))), "{text}");
    }
}

/// Returns the keys with problems in a plan with these mixes and thresholds.
fn problem_keys(mixes_and_thresholds: &str) -> Vec<String> {
    let text = format!(
        "[[scenario]]\nname = 'load'\nmix = 'm'\nworkers_max = 1\n\
         stages = [{{ name = 's', duration = '9s', rate = 1 }}]\n{mixes_and_thresholds}"
    );
    let problems = read(&text, "t", &[]).unwrap_err();
    problems.list.into_iter().map(|problem| problem.key).collect()
}

#[test]
fn unknown_names_are_reported_beside_other_problems() {
    let thresholds = "[thresholds]\n\"failed{method:eth_callMany}\" = 'rate<0.1'\n\
                      \"latency{method:eth_call}\" = 'rate<1'\n\"latency{stage:t}\" = 'p(9)<1'\n";
    let call_many = "thresholds.failed{method:eth_callMany}";
    let call = "thresholds.latency{method:eth_call}";
    let stage = "thresholds.latency{stage:t}";
    let right = "[mix.m]\ncalls = [{ method = 'eth_call' }]\n";
    assert_eq!(problem_keys(&format!("{right}{thresholds}")), [call_many, call, stage]);
    // A call with a problem still names its method.
    let params = "[mix.m]\ncalls = [{ method = 'eth_call', params = 3 }]\n";
    let refused_params = problem_keys(&format!("{params}{thresholds}"));
    assert_eq!(refused_params, ["mix.m.calls.params", call_many, call, stage]);
    // A misspelt key may have named the unknown method.
    let misspelt = "[mix.m]\ncalls = [{ method = 'eth_call' }, { methd = 'eth_callMany' }]\n";
    let refused_misspelt = problem_keys(&format!("{misspelt}{thresholds}"));
    assert_eq!(refused_misspelt, ["mix.m.calls.method", "mix.m.calls.methd", call, stage]);
    let no_calls = "[mix.m]\ncals = [{ method = 'eth_call' }]\n";
    assert_eq!(problem_keys(&format!("{no_calls}{thresholds}")), ["mix.m.cals", stage]);
}

#[test]
fn the_example_of_the_page_is_valid() {
    let plan = read(reference::EXAMPLE, "example.toml", &[]).unwrap();
    assert_eq!(plan.stages().count(), 8);
    let page = reference::markdown();
    assert!(page.contains(reference::EXAMPLE));
}

#[test]
fn a_stored_text_has_the_overridden_variables() {
    let overrides = [("load_percent".to_owned(), 2.5)];
    let plan = read(reference::EXAMPLE, "t", &overrides).unwrap();
    assert!(plan.text.contains("load_percent = 2.5\n"), "{}", plan.text);
    let again = read(&plan.text, "t", &[]).unwrap();
    assert_eq!(format!("{again:?}"), format!("{plan:?}"));
    let large = [("load_percent".to_owned(), 1e300)];
    let text = "[variables]\nload_percent = \"1 + 1\" # x\nother = 3\n";
    let text = format!(
        "{text}{}",
        "[[scenario]]\nmix = \"ethereum\"\nworkers_max = 1\nstages = [{ duration = \"9s\", rate = \"load_percent / load_percent\" }]"
    );
    let plan = read(&text, "t", &large).unwrap();
    assert!(plan.text.starts_with("[variables]\nload_percent = 1e300 # x\nother = 3\n"));
    assert!(read(&plan.text, "t", &[]).is_ok());
}

/// Reads a shipped study with these values of its variables.
fn study(name: &str, variables: &[(&str, f64)]) -> Plan {
    let file = format!("{}/../../studies/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&file).unwrap();
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    read(&text, &file, &variables).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn the_somnia_study_has_the_schedule_and_shares_of_its_report() {
    // The table of the report: load percent, mean rate of the schedule, and peak rate of the spike.
    let machines = [
        (11.0, 12_509.0, 26_400.0),
        (10.0, 11_372.0, 24_000.0),
        (18.0, 20_470.0, 43_200.0),
        (21.0, 23_881.0, 50_400.0),
    ];
    for (load_percent, mean, peak) in machines {
        let plan = study("somnia", &[("load_percent", load_percent)]);
        assert_eq!(plan.duration(), Duration::from_secs(860));
        let Planned::Exactly(requests) = plan.requests() else { panic!("an open plan is known") };
        assert!((requests / 860.0 - mean).abs() < 0.7, "{}", requests / 860.0);
        assert_eq!(plan.peak(), Some(peak));
    }
    let plan = study("somnia", &[("load_percent", 11.0)]);
    assert_eq!(plan.iterations(), Planned::Exactly(5_379_000.0));
    let shares = plan.shares().unwrap();
    let share = |name: &str| {
        let index = plan.methods.iter().position(|method| **method == *name).unwrap();
        shares[index] * 100.0
    };
    let expected = [
        ("eth_blockNumber", 60.87),
        ("eth_getBalance", 19.02),
        ("eth_getBlockByNumber", 10.87),
        ("eth_chainId", 4.35),
        ("net_version", 3.80),
        ("eth_getLogs", 1.087),
    ];
    for (name, percent) in expected {
        assert!((share(name) - percent).abs() < 0.005, "{name}: {}", share(name));
    }
    let workers: Vec<_> = plan
        .scenarios
        .iter()
        .map(|scenario| (scenario.workers_max, scenario.grace.as_secs()))
        .collect();
    assert_eq!(workers, [(2200, 30), (8800, 30), (13_200, 30)]);
}

#[test]
fn the_somnia_study_gets_warnings_about_the_mistakes_of_its_report() {
    let plan = study("somnia", &[("load_percent", 11.0)]);
    let warned =
        |needle: &str| plan.warnings.iter().any(|warning| warning.to_string().contains(needle));
    assert!(
        warned("eth_getLogs is 1.087 % of calls: all of them can fail"),
        "{:#?}",
        plan.warnings
    );
    assert!(warned("it is not the capacity of the target"), "{:#?}", plan.warnings);
    assert!(!warned("eth_getBalance"), "{:#?}", plan.warnings);
    assert!(summary::summarize(&plan).contains("weights add up to 92"));
}

#[test]
fn the_rpcstest_study_gets_a_warning_about_its_pauses() {
    let plan = study("rpcstest", &[]);
    assert_eq!(plan.scenarios[0].pause, Duration::from_millis(100));
    assert_eq!(plan.scenarios[0].workers_max, 100);
    assert!(plan.shares().unwrap().iter().all(|share| (share - 0.25).abs() < 1e-12));
    let paced = plan
        .warnings
        .iter()
        .any(|warning| warning.to_string().contains("at most 1000 iterations/s"));
    assert!(paced, "{:#?}", plan.warnings);
}

#[test]
fn variables_select_the_connection_mode() {
    // The number of requests per connection (0 is no limit), 1 to resume TLS sessions, and the
    // expected settings of the plan.
    let modes = [
        (1.0, 1.0, Reuse::Never, true),
        (0.0, 1.0, Reuse::Always, true),
        (1.0, 0.0, Reuse::Never, false),
        (100.0, 1.0, Reuse::Requests(100), true),
    ];
    for (requests, resume, reuse, resumed) in modes {
        let set = [("requests_per_connection", requests), ("resume", resume)];
        let plan = study("connection-modes", &set);
        assert_eq!((plan.connections.reuse, plan.connections.tls.resume), (reuse, resumed));
        assert_eq!(plan.scenarios[0].workers_max, 60);
        assert_eq!(plan.duration(), Duration::from_secs(200));
    }
}

#[test]
fn the_harmony_study_gets_a_warning_about_few_requests() {
    let weak = study("harmony-plan", &[]);
    assert_eq!(weak.scenarios.len(), 15);
    assert_eq!(weak.iterations(), Planned::AtMost(750.0));
    let is_weak =
        |scenario: &Scenario| scenario.iterations_max == Some(50) && scenario.workers_max == 15;
    assert!(weak.scenarios.iter().all(is_weak));
    let few_samples = |plan: &Plan| {
        plan.warnings.iter().filter(|warning| matches!(warning, Warning::FewSamples(_))).count()
    };
    assert_eq!(few_samples(&weak), 15, "{:#?}", weak.warnings);
    let enough = study("harmony-plan", &[("requests", 20_000.0), ("seconds", 120.0)]);
    assert_eq!(few_samples(&enough), 0, "{:#?}", enough.warnings);
    assert_eq!(enough.scenarios[14].start, Duration::from_secs(1_680));
}

#[test]
fn plans_are_distinguished_from_gateway_configurations() {
    assert!(is_plan("[target]\nurl = 1"));
    assert!(is_plan("[[scenario]]\n"));
    assert!(
        is_plan("[mix.own]\n[thresholds]\n"),
        "the missing scenarios are a problem of the plan"
    );
    assert!(is_plan("[[scenario]]\nbroken = ="));
    assert!(!is_plan("[[upstream]]\nurl = \"http://h\""));
    assert!(!is_plan(""));
    assert!(!is_plan("\u{0}[["));
}

#[test]
fn each_form_of_a_stage_has_the_expected_levels() {
    let text = r#"
        [[scenario]]
        workers_max = 10
        mix = "ethereum"
        stages = [
          { duration = "1s", rate = 10 },
          { duration = "1s", to = 30 },
          { name = "up", duration = "3s", to = 90, steps = 3 },
          { duration = "1s", spike = 500 },
          { duration = "1s" },
          { duration = "0s", to = 5 },
          { duration = "1s", from = 1, to = 2 },
        ]
    "#;
    let plan = read(text, "t", &[]).unwrap();
    let levels: Vec<_> =
        plan.stages().map(|(_, stage)| (&*stage.name, stage.from, stage.to)).collect();
    let expected = [
        ("stage-1", 10.0, 10.0),
        ("stage-2", 10.0, 30.0),
        ("up-1", 50.0, 50.0),
        ("up-2", 70.0, 70.0),
        ("up-3", 90.0, 90.0),
        ("stage-4", 500.0, 500.0),
        ("stage-5", 90.0, 90.0),
        ("stage-6", 90.0, 5.0),
        ("stage-7", 1.0, 2.0),
    ];
    assert_eq!(levels, expected);
    assert!(plan.stages().enumerate().all(|(index, (_, stage))| stage.index == index));
    assert_eq!(plan.duration(), Duration::from_secs(8));
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,400}") {
        let _ = read(&text, "t", &[]);
    }

    /// Random sequences of valid lines reach deeper code than random text.
    #[test]
    fn no_shuffled_plan_panics(lines in proptest::collection::vec(plan_line(), 0..30)) {
        let text = lines.join("\n");
        if let Ok(plan) = read(&text, "t", &[("x".to_owned(), 3.0)]) {
            prop_assert!(plan.stages().count() * plan.methods.len() * crate::record::Class::ALL.len() < 65_536);
            summary::summarize(&plan);
        }
        is_plan(&text);
    }

    #[test]
    fn no_changed_study_panics(offset in 0usize..4000, to in "\\PC{0,6}", length in 0usize..40) {
        let mut text = reference::EXAMPLE.to_owned();
        let floor = |index: usize| {
            let mut indexes = (0..=index.min(text.len())).rev();
            indexes.find(|index| text.is_char_boundary(*index)).unwrap()
        };
        let offset = offset % text.len();
        let (start, end) = (floor(offset), floor(offset + length));
        text.replace_range(start..end, &to);
        if let Err(problems) = read(&text, "t", &[]) {
            prop_assert!(!problems.to_string().is_empty());
        }
    }
}

/// Generates a line that a plan can contain, valid or not.
fn plan_line() -> impl Strategy<Value = String> {
    const HEADINGS: [&str; 16] = [
        "[target]",
        "[connections]",
        "[run]",
        "[variables]",
        "[[scenario]]",
        "[[scenario.stages]]",
        "[mix.a]",
        "[[mix.a.step]]",
        "[[mix.a.calls]]",
        "[thresholds]",
        "[validity]",
        "[reference]",
        "[watch]",
        "[capacity]",
        "[mix]",
        "[[target]]",
    ];
    const KEYS: [&str; 34] = [
        "url",
        "timeout",
        "headers",
        "http",
        "reuse",
        "ciphers",
        "tls_version",
        "seed",
        "threads",
        "warmup",
        "x",
        "name",
        "start",
        "model",
        "stages",
        "mix",
        "workers_max",
        "delayed",
        "pause",
        "batch",
        "iterations",
        "duration",
        "rate",
        "workers",
        "to",
        "steps",
        "spike",
        "step",
        "calls",
        "weights_sum",
        "method",
        "params",
        "weight",
        "latency",
    ];
    const VALUES: [&str; 31] = [
        "1",
        "0",
        "-1",
        "1e300",
        "nan",
        "\"x * 2\"",
        "\"\"",
        "\"10s\"",
        "\"1ms\"",
        "\"a\"",
        "\"b\"",
        "\"open\"",
        "\"closed\"",
        "\"drop\"",
        "\"eth_call\"",
        "\"p(99)<3\"",
        "[\"p(99)<3\"]",
        "[{ threshold = \"max<1\", window = \"1s\" }]",
        "[{ duration = \"5s\", rate = 4 }]",
        "[{ duration = \"5s\", workers = 4 }, { duration = \"1s\", to = 9, steps = 3 }]",
        "[{ method = \"eth_call\", weight = 2 }]",
        "[{ block = \"latest-3\" }, { draw = \"logs\", blocks = 2 }]",
        "[{ draw = \"one-of\", values = [1, {}] }]",
        "{ size = 3 }",
        "true",
        "[]",
        "{}",
        "1979-05-27",
        "\"http://u:p@h:1/k?x\"",
        "\"${env:A:-b}\"",
        "\"${x\"",
    ];
    prop_oneof![
        proptest::sample::select(&HEADINGS[..]).prop_map(str::to_owned),
        (proptest::sample::select(&KEYS[..]), proptest::sample::select(&VALUES[..]))
            .prop_map(|(key, value)| format!("{key} = {value}")),
    ]
}
