//! Goal: variants are started, watched, ended and paired as the file says; what dies is told with its
//! last words. Method: variants that are short shell scripts writing samples of their own.

use super::*;
use crate::study::file::read;

/// Writes a sample every so many seconds; ten steps to height 1,000.
const VARIANT: &str = r#"i=0; while [ $i -le 10 ]; do printf '{"time":"%s","height":%d}\n' "$(date -u +%Y-%m-%dT%H:%M:%S.%NZ | cut -c1-23)Z" $((i*100)) >> "$2"; i=$((i+1)); sleep "$1"; done"#;

fn study(order: &str, more: &str, variants: &[(&str, &str)]) -> Study {
    let mut text = format!(
        "study = 'sync'\nname = 'x'\norder = '{order}'\npause = '0s'\nsample = '100ms'\n{more}\n"
    );
    for (name, script) in variants {
        text += &format!(
            "[[variant]]\nname = '{name}'\ncommand = ['sh', '-c', '''{script}''', 'variant', '0.02', '{{samples}}']\n"
        );
    }
    read(&text, "x.toml").unwrap()
}

fn run_it(
    study: &Study,
    stop: &Stop,
) -> (Result<StudyRuns, StudyFault>, Vec<String>, tempfile::TempDir) {
    let base = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    let made = run(
        study,
        Path::new("/weir"),
        base.path(),
        stop,
        &ProcessGroups::default(),
        &mut |event| match event {
            Event::Begins { repeat, variants, .. } => {
                seen.push(format!("{repeat}: {}", variants.join(" ")))
            }
            Event::Ended { variant, height, reason, .. } => {
                seen.push(format!(
                    "{variant} {}",
                    reason.unwrap_or_else(|| height.unwrap_or(0).to_string())
                ));
            }
            Event::Second(_) => {}
        },
    );
    (made, seen, base)
}

#[test]
fn what_warms_up_counts_for_nothing() {
    let slow = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("alternate", "repeats = 1\nwarm_up = true", &[("a", VARIANT), ("b", &slow)]);
    let (made, seen, base) = run_it(&study, &Stop::new());
    assert_eq!(seen, ["0: a", "a 1000", "1: a", "a 1000", "1: b", "b 1000"]);
    let made = made.unwrap();
    assert_eq!(made.variants.iter().map(|variant| variant.runs.len()).collect::<Vec<_>>(), [1, 1]);
    assert!(!base.path().join("runs/a-0").exists());
}

#[test]
fn variants_alternate_and_the_order_turns_round() {
    let slow = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("alternate", "repeats = 2", &[("a", VARIANT), ("b", &slow)]);
    let (made, seen, base) = run_it(&study, &Stop::new());
    let made = made.unwrap();
    assert_eq!(seen, ["1: a", "a 1000", "1: b", "b 1000", "2: b", "b 1000", "2: a", "a 1000"]);
    assert_eq!(made.variants.iter().map(|variant| variant.runs.len()).collect::<Vec<_>>(), [2, 2]);
    let run = &made.variants[0].runs[0];
    assert_eq!((run.label.as_str(), run.last().height), ("repeat 1", 1_000));
    assert!(run.origin <= run.first().at, "time counts from the start of the process");
    assert!(
        run.samples.iter().any(|sample| sample.memory.is_some()),
        "the host tells what the variant does not"
    );
    assert!(base.path().join("runs/a-1/samples.jsonl").exists());
    assert!(!base.path().join("runs/a-1/scratch").exists(), "scratch folders are removed");
    assert!(!made.partial);
}

#[test]
fn variants_side_by_side_start_within_a_second() {
    let other = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let study = study("side-by-side", "repeats = 1", &[("a", VARIANT), ("b", &other)]);
    let (made, seen, _base) = run_it(&study, &Stop::new());
    let made = made.unwrap();
    assert_eq!(seen[0], "1: a b");
    let (a, b) = (&made.variants[0].runs[0], &made.variants[1].runs[0]);
    assert!((a.origin - b.origin).abs() < 1.0);
    assert!(a.first().at < b.last().at && b.first().at < a.last().at, "they ran at one time");
}

#[test]
fn a_variant_that_dies_is_reported_with_its_last_output_and_its_repeat_left_out() {
    let dies = "echo first >&2; echo the disk is full >&2; exit 7";
    let study = study("alternate", "repeats = 1", &[("a", VARIANT), ("b", dies)]);
    let (made, _, _base) = run_it(&study, &Stop::new());
    let made = made.unwrap();
    assert!(made.variants.iter().all(|variant| variant.runs.is_empty()));
    assert_eq!(
        made.left_out,
        [
            ["repeat 1: another variant of the same repeat is unusable"],
            ["repeat 1: it ended with exit status: 7: first / the disk is full"],
        ]
    );
}

#[test]
fn a_variant_without_samples_and_one_at_its_timeout() {
    let silent = study("alternate", "repeats = 1", &[("a", "true"), ("b", VARIANT)]);
    let (made, _, _base) = run_it(&silent, &Stop::new());
    let messages = made.unwrap().left_out;
    assert!(messages[0][0].starts_with("repeat 1: cannot read "), "{messages:?}");

    let endless = format!("{VARIANT}; sleep 600");
    let late =
        study("alternate", "repeats = 1\ntimeout = '1s'", &[("a", VARIANT), ("b", &endless)]);
    let (made, _, _base) = run_it(&late, &Stop::new());
    let made = made.unwrap();
    assert_eq!(made.variants[1].runs[0].notes, ["it was stopped at the timeout of 1 s"]);
}

#[test]
fn who_asks_ends_it_and_nothing_runs_on() {
    let base = tempfile::tempdir().unwrap();
    let mark = base.path().join("pid");
    let endless = format!("echo $$ > {}; {VARIANT}; sleep 600", mark.display());
    let study = study("alternate", "repeats = 1", &[("a", &endless), ("b", "true")]);
    let stop = Stop::new();
    let mut seconds = 0;
    let made = run(
        &study,
        Path::new("/weir"),
        base.path(),
        &stop,
        &ProcessGroups::default(),
        &mut |event| {
            if let Event::Second(_) = event {
                seconds += 1;
                if seconds >= 3 && mark.exists() {
                    stop.request();
                }
            }
        },
    )
    .unwrap();
    assert!(made.partial);
    assert_eq!(made.left_out[0], ["repeat 1: it was stopped by the user"]);
    let pid = std::fs::read_to_string(&mark).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "it runs on: {stat}");
}

#[test]
fn setups_are_waited_for_and_ended() {
    let more = "repeats = 1\n[[setup]]\nname = 'node'\ncommand = ['sh', '-c', 'echo no such port >&2; exit 3']\n\
                ready = '127.0.0.1:1'\n";
    let (made, _, _base) =
        run_it(&study("alternate", more, &[("a", VARIANT), ("b", "true")]), &Stop::new());
    assert_eq!(
        made.unwrap_err().to_string(),
        "setup \"node\" ended before it was ready: it ended with exit status: 3: no such port"
    );
    let more = "repeats = 1\n[[setup]]\nname = 'node'\ncommand = ['/no/such/program']\n";
    let (made, _, _base) =
        run_it(&study("alternate", more, &[("a", VARIANT), ("b", "true")]), &Stop::new());
    let messages = made.unwrap_err().to_string();
    assert!(
        messages.starts_with("setup \"node\": cannot start \"/no/such/program\": "),
        "{messages}"
    );
}

#[test]
fn a_setup_that_ends_meanwhile_is_reported() {
    let more = "repeats = 3\n[[setup]]\nname = 'node'\ncommand = ['sh', '-c', 'echo out of gas >&2; exit 3']\n";
    let other = VARIANT.replace("sleep \"$1\"", "sleep 0.03");
    let (made, seen, _base) =
        run_it(&study("alternate", more, &[("a", VARIANT), ("b", &other)]), &Stop::new());
    let made = made.unwrap();
    assert!(made.partial && seen.iter().all(|one| !one.starts_with("2:")), "{seen:?}");
    assert_eq!(
        made.left_out[0],
        ["repeat 1: setup \"node\" ended early: it ended with exit status: 3: out of gas"]
    );
}

#[test]
fn all_groups_can_be_killed_at_once() {
    let groups = ProcessGroups::default();
    let command = ["sh", "-c", "trap '' TERM; sleep 600 & wait"].map(str::to_owned);
    let mut process = process::Process::start(&command, &BTreeMap::new(), &groups).unwrap();
    groups.kill();
    let begun = Instant::now();
    while process.exit_status().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it runs on");
        std::thread::park_timeout(POLL_INTERVAL); // Sleeps: between two looks at another process.
    }
    assert!(!process.exit_status().unwrap().success());
}
