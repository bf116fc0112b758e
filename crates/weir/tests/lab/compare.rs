//! Goal: `weir compare` ends with the exit codes that its help states, and its forms of output
//! say the same. Method: the real binary on published reports of other tools.

use std::path::Path;
use std::process::{Command, Stdio};

const TWO_SERVERS: &str = "dell_g55587__eth_getBalance_2023-12-24-15-39-39_perf.csv";

/// Runs `weir compare`. Returns its exit code, standard output and standard error.
fn weir(arguments: &[&str]) -> (i32, String, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/erigon-perf");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("compare").args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn two_servers_of_one_report() {
    let (code, text, complaints) = weir(&[TWO_SERVERS]);
    assert_eq!((code, complaints.as_str()), (0, ""));
    assert!(text.contains(", eth_getBalance at 50/s, repetition 1: cold"), "{text}");
    let (_, rows) = text.split_once("\neth_getBalance at 1000/s\n").expect(&text);
    assert!(rows.lines().next().unwrap().ends_with("  runs"), "{text}");

    let (code, page, _) = weir(&[TWO_SERVERS, "--markdown"]);
    assert_eq!(code, 0);
    assert!(page.starts_with("## Comparison: "), "{page}");

    let (code, page, _) = weir(&[TWO_SERVERS, "--html"]);
    assert_eq!(code, 0);
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"), "{page}");
    assert!(page.contains("eth_getBalance at 1000/s"), "{page}");

    let (code, json, _) = weir(&[TWO_SERVERS, "--json", "--fail-if-worse"]);
    assert_eq!(code, 3, "silk is slower at one request a second");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "weir.compare/1");
    assert_eq!(json["variants"].as_array().unwrap().len(), 2);
    let verdicts: Vec<&str> = json["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["verdict"].as_str().unwrap())
        .collect();
    assert!(verdicts.contains(&"better") && verdicts.contains(&"worse"), "{verdicts:?}");
}

/// `NAME=FILE,FILE` names a variant with several results, as for `weir study sync`.
#[test]
fn a_variant_is_named_and_has_several_results() {
    let one = "asustek_w680__eth_getBlockByNumber_2023-10-26-10-48-43_rpcdaemon_perf.csv";
    let [two, named] = [format!("{one},{one}"), format!("new={one},{one}")];
    let (_, json, complaints) = weir(&[&two, &named, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect(&complaints);
    let names = json["variants"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variant| variant["name"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), [one.trim_end_matches(".csv"), "new"]);
}

#[test]
fn faulty_arguments_end_with_two() {
    let (code, _, complaints) = weir(&[]);
    assert_eq!(code, 2);
    assert!(complaints.contains("at least two variants; none was given"), "{complaints}");
    let one = "asustek_w680__eth_getBlockByNumber_2023-10-26-10-48-43_rpcdaemon_perf.csv";
    let (code, _, complaints) = weir(&[one]);
    assert_eq!(code, 2);
    assert!(complaints.contains("only \"asustek"), "{complaints}");
    let (code, _, complaints) = weir(&["a="]);
    assert_eq!(code, 2);
    assert!(complaints.contains("not of the form [NAME=]RESULT"), "{complaints}");
    let (code, _, complaints) = weir(&["gone.json", "gone2.json"]);
    assert_eq!(code, 1);
    assert!(complaints.contains("cannot read gone.json"), "{complaints}");
    let (code, _, complaints) = weir(&["README.md", "README.md"]);
    assert_eq!(code, 1);
    assert!(complaints.contains("neither JSON nor a CSV"), "{complaints}");
}
