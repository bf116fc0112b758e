//! The shipped Containerfile is read, and what this tool cannot build is rejected.

use super::parse;

const LEAST: &str = "FROM rust AS build\nRUN anything\nFROM scratch\n\
    COPY --from=build /weir /usr/bin/weir\nUSER 65532:65532\nENTRYPOINT [\"/usr/bin/weir\"]\n";

#[test]
fn the_shipped_file_describes_an_image() {
    let text = include_str!("../../../../deploy/container/Containerfile");
    let image = parse(text).unwrap();
    let paths: Vec<&str> = image.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["etc/group", "etc/nsswitch.conf", "etc/passwd", "usr/bin/weir"]);
    assert_eq!(image.config["User"], "65532:65532");
    assert_eq!(image.config["Entrypoint"][0], "/usr/bin/weir");
    assert_eq!(image.config["Cmd"][0], "serve");
    assert_eq!(image.config["Labels"]["org.opencontainers.image.title"], "Weir");
    assert!(image.config.get("Env").is_none());
}

#[test]
fn unknown_instructions_and_missing_ones_are_rejected() {
    parse(LEAST).unwrap();
    for (from, to) in [
        ("USER 65532:65532\n", ""),
        ("USER 65532:65532\n", "USER 65532:65532\nRUN anything\n"),
        ("FROM scratch", "FROM debian"),
        ("--from=build ", ""),
        ("[\"/usr/bin/weir\"]", "/usr/bin/weir"),
    ] {
        let text = LEAST.replace(from, to);
        assert!(text != LEAST && parse(&text).is_err(), "{text}");
    }
}
