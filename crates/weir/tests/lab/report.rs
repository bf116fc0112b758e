//! Goal: `weir report` combines the results of real runs, and rejects files that are no results.
//! Method: the real binary against two simulated nodes, one of which is slow.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use test_support::running::Weir;

/// Runs the program. Returns its exit code, standard output and standard error.
fn weir(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Two methods at a fixed rate, with a threshold. The plan allows any scheduling delay, because
/// tests share their machine.
fn plan(url: &str) -> String {
    format!(
        "name = \"small\"\n[target]\nurl = \"{url}\"\n\
         [validity]\nscheduling_delay_p99_max = \"10m\"\nwaited_share_max = 1\n\
         [thresholds]\nfailed = \"rate<0.01\"\n\
         [[scenario]]\nname = \"main\"\nmix = \"own\"\nworkers_max = 50\n\
         stages = [{{ name = \"steady\", duration = \"3s\", rate = 100 }}]\n\
         [[mix.own.calls]]\nmethod = \"eth_blockNumber\"\n\
         [[mix.own.calls]]\nmethod = \"eth_chainId\"\n"
    )
}

/// Returns each text between `start` and `end`, such as the values of an attribute.
fn values<'a>(text: &'a str, start: &str, end: char) -> BTreeSet<&'a str> {
    text.split(start).skip(1).filter_map(|part| part.split(end).next()).collect()
}

#[test]
fn two_nodes_in_one_report() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Weir::node().start(), Weir::node().args(&["--latency", "20ms"]).start()];
    for (node, name) in nodes.iter().zip(["fast", "slow"]) {
        let file = format!("{name}.toml");
        std::fs::write(folder.path().join(&file), plan(&node.url())).unwrap();
        let load = ["load", &file, "--quiet", "--out", name];
        let (code, text, complaints) = weir(&load, folder.path());
        assert_eq!(code, 0, "{text}{complaints}");
    }
    let url = nodes[0].url();
    let search = [
        &["capacity", &url, "--threshold", "latency p(50)<10000", "--yes", "--quiet"][..],
        &["--rate-start", "20", "--rate-max", "40", "--probe", "5s", "--probe-warmup", "500ms"],
        &["--repeats", "1", "--drain", "0s", "--soak", "0s", "--out", "capacity"],
    ]
    .concat();
    let (code, text, complaints) = weir(&search, folder.path());
    // On a busy machine the search may end as invalid (4) or client-limited (5), with a result.
    assert!([0, 4, 5].contains(&code), "{code} {text}{complaints}");

    let report = ["report", "fast", "slow", "capacity", "--out", "report"];
    let (code, text, complaints) = weir(&report, folder.path());
    assert_eq!(code, 0, "{complaints}");
    assert!(complaints.contains("wrote report/report.html"), "{complaints}");
    assert!(text.contains("What may not be concluded:"), "{text}");

    let page = std::fs::read_to_string(folder.path().join("report/report.html")).unwrap();
    let markdown = std::fs::read_to_string(folder.path().join("report/report.md")).unwrap();
    let ids = values(&page, " id=\"", '"');
    let anchors = values(&markdown, "<a id=\"", '"');
    let links = values(&page, " href=\"#", '"');
    assert!(links.len() > 10, "{links:?}");
    assert!(links.is_subset(&ids), "{:?}", links.difference(&ids));
    let links = values(&markdown, "](#", ')');
    assert!(!links.is_empty() && links.is_subset(&anchors), "{:?}", links.difference(&anchors));
    for form in [&page, &markdown] {
        for fact in [
            "eth_blockNumber",
            "eth_chainId",
            "only one run of the plan small is valid",
            "capacity",
        ] {
            assert!(form.contains(fact), "{fact}: {form}");
        }
    }
    // One run per node is too few to recommend a node.
    assert!(!markdown.contains("Choose "), "{markdown}");

    let (_, printed, _) = weir(&["report", "fast", "slow", "--markdown"], folder.path());
    assert!(printed.starts_with("## Report: "), "{printed}");
    let (_, printed, _) = weir(&["report", "a=fast", "b=slow", "--html"], folder.path());
    assert!(printed.starts_with("<!DOCTYPE html>") && printed.contains("a · b"), "{printed}");
}

#[test]
fn a_file_that_is_not_a_result_is_rejected_with_the_allowed_files() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("broken.json", "{\"schema\": \"weir.run/1\",");
    write("other.json", "{\"schema\": \"weir.equal/1\"}");
    write("foreign.json", "{\"metrics\": {}}");
    write("page.html", "<p>");
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    for (path, message) in [
        ("missing", "cannot read missing: "),
        ("broken.json", "broken.json is not JSON: "),
        ("other.json", "other.json has the schema \"weir.equal/1\"; a report reads \"weir.run/1\""),
        ("foreign.json", "foreign.json is not a result of Weir, because it has no \"schema\"; "),
        ("page.html", "a result is the result.json of weir load"),
        ("empty", "empty contains no result: "),
    ] {
        let (code, _, complaints) = weir(&["report", path], folder.path());
        assert_eq!(code, 1, "{path}: {complaints}");
        assert!(complaints.contains(message), "{path}: {complaints}");
    }
    let (code, _, complaints) = weir(&["report"], folder.path());
    assert_eq!(code, 2, "{complaints}");
    let (code, _, complaints) = weir(&["report", "a="], folder.path());
    assert_eq!(code, 2);
    assert!(complaints.contains("not of the form [NAME=]RESULT"), "{complaints}");
}
