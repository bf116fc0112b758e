//! Goal: `--out` never replaces a result unless the user asks for it. Method: temporary folders.

use clap::Parser;

use super::{EarlierResult, OutFolder};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    out: OutFolder,
}

fn parse(args: &[&str]) -> Result<OutFolder, String> {
    let line = Line::try_parse_from([&["weir"], args].concat());
    line.map(|line| line.out).map_err(|error| error.to_string())
}

#[test]
fn an_earlier_result_is_replaced_only_with_force() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("deep/er");
    let name = folder.to_str().unwrap();
    let out = parse(&["--out", name]).unwrap();
    let files = ["result.json", "report.html", "report.md"];
    out.create(&files).unwrap();
    assert!(folder.is_dir());
    // Other files are no obstacle.
    std::fs::write(folder.join("notes.txt"), "").unwrap();
    out.create(&files).unwrap();
    std::fs::write(folder.join("result.json"), "").unwrap();
    std::fs::write(folder.join("report.md"), "").unwrap();
    let error = out.create(&files).unwrap_err();
    assert!(error.is::<EarlierResult>());
    assert_eq!(
        error.to_string(),
        format!(
            "{name} already has result.json, report.md: choose another folder, or replace them \
             with --force"
        )
    );
    parse(&["--out", name, "--force"]).unwrap().create(&files).unwrap();
}

#[test]
fn urls_are_refused_with_the_way_to_copy() {
    for (url, copy) in [
        ("s3://bucket/x", "aws s3 cp --recursive DIR s3://bucket/x"),
        ("gs://bucket/x", "gcloud storage cp --recursive DIR gs://bucket/x"),
        ("https://host/x", "rclone, for example"),
    ] {
        let message = parse(&["--out", url]).unwrap_err();
        assert!(message.contains("weir writes to local folders only"), "{message}");
        assert!(message.contains(copy), "{message}");
    }
    assert!(parse(&["--out", "s3:/bucket"]).is_ok(), "a folder may have a colon in its name");
    assert!(parse(&["--force"]).is_err(), "nothing is replaced without --out");
}
