//! The shipped Containerfile is parsed, and instructions that this tool cannot build are rejected.

use super::parse;

const MINIMAL: &str = "FROM rust AS build\nRUN anything\nFROM scratch\n\
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
    parse(MINIMAL).unwrap();
    for (from, to) in [
        ("USER 65532:65532\n", ""),
        ("USER 65532:65532\n", "USER 65532:65532\nRUN anything\n"),
        ("FROM scratch", "FROM debian"),
        ("--from=build ", ""),
        ("[\"/usr/bin/weir\"]", "/usr/bin/weir"),
    ] {
        let text = MINIMAL.replace(from, to);
        assert!(text != MINIMAL && parse(&text).is_err(), "{text}");
    }
}
