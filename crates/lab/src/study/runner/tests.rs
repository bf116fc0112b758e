//! Goal: variants are started, sampled, stopped and paired as the file defines, and a variant that
//! fails is reported with its last output. Method: variants are short shell scripts that write
//! samples.

use super::*;
use crate::study::file::read;

/// A shell script that writes samples in ten steps to height 1,000. `$1` is the number of seconds
/// between samples, and `$2` is the file.
const VARIANT: &str = r#"i=0; while [ $i -le 10 ]; do printf '{"time":"%s","height":%d}\n' "$(date -u +%Y-%m-%dT%H:%M:%S.%NZ | cut -c1-23)Z" $((i*100)) >> "$2"; i=$((i+1)); sleep "$1"; done"#;

/// Returns a study with further lines in its file. Each variant has a name and a shell script.
fn study(order: &str, lines: &str, variants: &[(&str, &str)]) -> Study {
    let mut text = format!(
        "study = 'sync'\nname = 'x'\norder = '{order}'\npause = '0s'\nsample = '100ms'\n{lines}\n"
    );
    for (name, script) in variants {
        text += &format!(
            "[[variant]]\nname = '{name}'\ncommand = ['sh', '-c', '''{script}''', 'variant', '0.02', '{{samples}}']\n"
        );
    }
    read(&text, "x.toml").unwrap()
}

/// Runs a study. Returns its runs, its events as text, and its folder.
fn run_study(
    study: &Study,
    stop: &Stop,
) -> (Result<StudyRuns, StudyFault>, Vec<String>, tempfile::TempDir) {
    let base = tempfile::tempdir().unwrap();
    let mut events = Vec::new();
    let outcome = run(
        study,
        Path::new("/weir"),
        base.path(),
        stop,
        &ProcessGroups::default(),
        &mut |event| match event {
            Event::Begins { repeat, variants, .. } => {
                events.push(format!("{repeat}: {}", variants.join(" ")))
            }
            Event::Ended { variant, height, reason, .. } => {
                events.push(format!(
                    "{variant} {}",
                    reason.unwrap_or_else(|| height.unwrap_or(0).to_string())
                ));
            }
            Event::Progress(_) => {}
        },
    );
    (outcome, events, base)
}

#[test]
fn the_warm_up_run_is_discarded() {
    let slow = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("alternate", "repeats = 1\nwarm_up = true", &[("a", VARIANT), ("b", &slow)]);
    let (outcome, events, base) = run_study(&study, &Stop::new());
    assert_eq!(events, ["0: a", "a 1000", "1: a", "a 1000", "1: b", "b 1000"]);
    let outcome = outcome.unwrap();
    assert_eq!(
        outcome.variants.iter().map(|variant| variant.runs.len()).collect::<Vec<_>>(),
        [1, 1]
    );
    assert!(!base.path().join("runs/a-0").exists());
}

#[test]
fn variants_alternate_and_the_order_is_reversed() {
    let slow = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("alternate", "repeats = 2", &[("a", VARIANT), ("b", &slow)]);
    let (outcome, events, base) = run_study(&study, &Stop::new());
    let outcome = outcome.unwrap();
    assert_eq!(events, ["1: a", "a 1000", "1: b", "b 1000", "2: b", "b 1000", "2: a", "a 1000"]);
    assert_eq!(
        outcome.variants.iter().map(|variant| variant.runs.len()).collect::<Vec<_>>(),
        [2, 2]
    );
    let run = &outcome.variants[0].runs[0];
    assert_eq!((run.label.as_str(), run.last().height), ("repeat 1", 1_000));
    assert!(run.origin <= run.first().at, "time counts from the start of the process");
    assert!(
        run.samples.iter().any(|sample| sample.memory.is_some()),
        "the host tells what the variant does not"
    );
    assert!(base.path().join("runs/a-1/samples.jsonl").exists());
    assert!(!base.path().join("runs/a-1/scratch").exists(), "scratch folders are removed");
    assert!(!outcome.partial);
}

#[test]
fn variants_side_by_side_start_within_a_second() {
    let other = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("side-by-side", "repeats = 1", &[("a", VARIANT), ("b", &other)]);
    let (outcome, events, _base) = run_study(&study, &Stop::new());
    let outcome = outcome.unwrap();
    assert_eq!(events[0], "1: a b");
    let (a, b) = (&outcome.variants[0].runs[0], &outcome.variants[1].runs[0]);
    assert!((a.origin - b.origin).abs() < 1.0);
    assert!(a.first().at < b.last().at && b.first().at < a.last().at, "they ran at one time");
}

#[test]
fn a_variant_that_fails_is_reported_with_its_last_output_and_its_repeat_left_out() {
    let dies = "echo first >&2; echo the disk is full >&2; exit 7";
    let study = study("alternate", "repeats = 1", &[("a", VARIANT), ("b", dies)]);
    let (outcome, _, _base) = run_study(&study, &Stop::new());
    let outcome = outcome.unwrap();
    assert!(outcome.variants.iter().all(|variant| variant.runs.is_empty()));
    assert_eq!(
        outcome.exclusion_reasons,
        [
            ["repeat 1: another variant of the same repeat is unusable"],
            ["repeat 1: it ended with exit status: 7: first / the disk is full"],
        ]
    );
}

#[test]
fn a_variant_without_samples_and_one_at_its_timeout() {
    let silent = study("alternate", "repeats = 1", &[("a", "true"), ("b", VARIANT)]);
    let (outcome, _, _base) = run_study(&silent, &Stop::new());
    let messages = outcome.unwrap().exclusion_reasons;
    assert!(messages[0][0].starts_with("repeat 1: cannot read "), "{messages:?}");

    let endless = format!("{VARIANT}; sleep 600");
    let late =
        study("alternate", "repeats = 1\ntimeout = '1s'", &[("a", VARIANT), ("b", &endless)]);
    let (outcome, _, _base) = run_study(&late, &Stop::new());
    let outcome = outcome.unwrap();
    assert_eq!(outcome.variants[1].runs[0].notes, ["it was stopped at the timeout of 1 s"]);
}

#[test]
fn a_requested_stop_ends_the_study_and_its_processes() {
    let base = tempfile::tempdir().unwrap();
    let pid_file = base.path().join("pid");
    let endless = format!("echo $$ > {}; {VARIANT}; sleep 600", pid_file.display());
    let study = study("alternate", "repeats = 1", &[("a", &endless), ("b", "true")]);
    let stop = Stop::new();
    let mut progress_events = 0;
    let outcome = run(
        &study,
        Path::new("/weir"),
        base.path(),
        &stop,
        &ProcessGroups::default(),
        &mut |event| {
            if let Event::Progress(_) = event {
                progress_events += 1;
                if progress_events >= 3 && pid_file.exists() {
                    stop.request();
                }
            }
        },
    )
    .unwrap();
    assert!(outcome.partial);
    assert_eq!(outcome.exclusion_reasons[0], ["repeat 1: it was stopped by the user"]);
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "it runs on: {stat}");
}

#[test]
fn a_setup_process_that_fails_to_start_ends_the_study() {
    let lines = "repeats = 1\n[[setup]]\nname = 'node'\ncommand = ['sh', '-c', 'echo no such port >&2; exit 3']\n\
                ready = '127.0.0.1:1'\n";
    let (outcome, _, _base) =
        run_study(&study("alternate", lines, &[("a", VARIANT), ("b", "true")]), &Stop::new());
    assert_eq!(
        outcome.unwrap_err().to_string(),
        "setup \"node\" ended before it was ready: it ended with exit status: 3: no such port"
    );
    let lines = "repeats = 1\n[[setup]]\nname = 'node'\ncommand = ['/no/such/program']\n";
    let (outcome, _, _base) =
        run_study(&study("alternate", lines, &[("a", VARIANT), ("b", "true")]), &Stop::new());
    let messages = outcome.unwrap_err().to_string();
    assert!(
        messages.starts_with("setup \"node\": cannot start \"/no/such/program\": "),
        "{messages}"
    );
}

#[test]
fn a_setup_that_ends_during_the_study_is_reported() {
    let lines = "repeats = 3\n[[setup]]\nname = 'node'\ncommand = ['sh', '-c', 'echo out of gas >&2; exit 3']\n";
    let other = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let (outcome, events, _base) =
        run_study(&study("alternate", lines, &[("a", VARIANT), ("b", &other)]), &Stop::new());
    let outcome = outcome.unwrap();
    assert!(outcome.partial && events.iter().all(|event| !event.starts_with("2:")), "{events:?}");
    assert_eq!(
        outcome.exclusion_reasons[0],
        ["repeat 1: setup \"node\" ended early: it ended with exit status: 3: out of gas"]
    );
}

#[test]
fn all_groups_can_be_killed_at_once() {
    let groups = ProcessGroups::default();
    let command = ["sh", "-c", "trap '' TERM; sleep 600 & wait"].map(str::to_owned);
    let mut process = Process::start(&command, &BTreeMap::new(), &groups).unwrap();
    groups.kill();
    let started = Instant::now();
    while process.exit_status().is_none() {
        assert!(started.elapsed() < Duration::from_secs(20), "it runs on");
        // Sleeps: another process is polled.
        std::thread::park_timeout(POLL_INTERVAL);
    }
    assert!(!process.exit_status().unwrap().success());
}
