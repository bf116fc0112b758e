//! Whole files in, configuration or faults out, compared to the letter with the text beside each
//! file (`UPDATE_EXPECT=1` rewrites them). Every secret in the files holds the word `sekrit`, and
//! no output may.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::field::{Default, Form, SECTIONS};
use super::*;

fn cases(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config").join(folder);
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    assert!(files.len() >= 5, "too few cases in {}", folder.display());
    files
}

fn environment(name: &str) -> Option<String> {
    let variables = HashMap::from([
        ("TOKEN", "sekrit-token-0123456789"),
        ("THREADS", "1"),
        ("EMPTY", ""),
        ("BAD_URL", "gopher://sekrit0123456789"),
    ]);
    variables.get(name).map(|value| (*value).to_owned())
}

fn read(file: &Path, text: &str) -> Result<Config, Faults> {
    let name = file.file_name().unwrap().to_str().unwrap();
    Config::from_text(name, text, file.parent().unwrap(), &environment)
}

fn check_expected(file: &Path, printed: &str) {
    assert!(!printed.contains("sekrit"), "{} spills a secret:\n{printed}", file.display());
    let expected = file.with_extension("expected");
    expect_test::expect_file![expected].assert_eq(printed);
}

#[test]
fn valid_files() {
    for file in cases("valid") {
        let text = std::fs::read_to_string(&file).unwrap();
        let config = read(&file, &text).unwrap_or_else(|faults| panic!("{faults}"));
        let warnings = config.warnings.to_string();
        let own = |path: &PathBuf| path.strip_prefix(file.parent().unwrap()).unwrap().to_owned();
        let files = config.files.iter().map(own).collect();
        let config = Config { warnings: Faults { file: None, list: Vec::new() }, files, ..config };
        check_expected(&file, &format!("{warnings}\n{config:#?}\n"));
    }
}

#[test]
fn invalid_files() {
    for file in cases("invalid") {
        let text = std::fs::read_to_string(&file).unwrap();
        let faults = read(&file, &text).expect_err("a faulty file passed");
        assert!(!format!("{faults:?}").contains("sekrit"), "{} spills a secret", file.display());
        check_expected(&file, &faults.to_string());
    }
}

#[test]
fn every_default_is_within_its_own_bounds() {
    for section in SECTIONS {
        for field in section.fields {
            let name = format!("{}.{}", section.name, field.key);
            let default = file::default_value(field);
            let expected = matches!(field.default, Default::Is(_) | Default::Empty);
            assert_eq!(default.is_some(), expected, "{name}");
            assert!(!field.doc.is_empty() && field.doc.ends_with('.'), "{name}");
        }
        let mut keys: Vec<_> = section.fields.iter().map(|field| field.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), section.fields.len(), "a key stands twice in {}", section.name);
    }
}

#[test]
fn one_file_sets_every_key() {
    let file = cases("valid").into_iter().find(|file| file.ends_with("everything.toml")).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    let table: toml::Table = text.parse().unwrap();
    for section in SECTIONS {
        let tables: Vec<_> = match (section.form, &table[section.name]) {
            (Form::Once, value) => vec![value.as_table().unwrap()],
            (Form::Named, value) => {
                value.as_table().unwrap().values().map(|v| v.as_table().unwrap()).collect()
            }
            (Form::Listed, value) => {
                value.as_array().unwrap().iter().map(|v| v.as_table().unwrap()).collect()
            }
        };
        for field in section.fields {
            let set = tables.iter().any(|table| table.contains_key(field.key));
            assert!(set, "everything.toml does not set {}.{}", section.name, field.key);
        }
    }
}

/// Damages files at every place in several ways: nothing may panic, and nothing may print a
/// secret, whatever a misplaced quote makes of the lines around it.
#[test]
fn damaged_files_neither_panic_nor_spill() {
    let damages = ["\"", "'", "\n", "[", "=", "#", "x", ""];
    let mut faulty = 0;
    for file in cases("valid").into_iter().chain(cases("invalid")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let places = text.char_indices().map(|(at, letter)| at..at + letter.len_utf8());
        for (i, place) in places.enumerate() {
            let damage = damages[i % damages.len()];
            let damaged = format!("{}{damage}{}", &text[..place.start], &text[place.end..]);
            let printed = match read(&file, &damaged) {
                Ok(config) => format!("{config:?}{}", config.warnings),
                Err(faults) => {
                    faulty += 1;
                    faults.to_string()
                }
            };
            let shown = printed.contains("sekrit");
            assert!(!shown, "{} at {place:?} with {damage:?}:\n{printed}", file.display());
        }
    }
    assert!(faulty > 1000, "only {faulty} damages were noticed");
}

#[test]
fn upstreams_make_a_configuration() {
    let upstreams =
        ["http://127.0.0.1:8545", "https://h/sekrit0123456789", "http://127.0.0.1:8545"];
    let upstreams = upstreams.map(str::to_owned);
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = Config::from_upstreams(&upstreams, Some(listen), Some(2), true).unwrap();
    assert_eq!((config.listen, config.threads), (Some(listen), 2));
    assert!(!config.cache.enabled && !config.cache.coalesce);
    let names: Vec<_> = config.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["127.0.0.1:8545", "h:443", "127.0.0.1:8545:2"]);
    assert_eq!(config.chains[0].nodes, [0, 1, 2]);
    assert_eq!(config.groups[0].nodes, [0, 1, 2]);
    assert!(!format!("{config:?}").contains("sekrit"));
}

#[test]
fn faulty_upstreams_are_all_told() {
    let none = Config::from_upstreams(&[], None, None, false).unwrap_err();
    let upstreams = ["localhost:8545", "ftp://h", "ws://ok"].map(str::to_owned);
    let two = Config::from_upstreams(&upstreams, None, None, false).unwrap_err();
    expect_test::expect![[r#"
        --upstream: at least one url of a node is needed
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path
        --
        --upstream 1 = localhost:8545: a url begins with http://, https://, ws://, wss:// or ipc:
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path

        --upstream 2 = ***: the scheme is none of http, https, ws, wss and ipc
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path
    "#]]
    .assert_eq(&format!("{none}--\n{two}"));
}

#[test]
fn unreadable_file_is_one_fault() {
    let faults = Config::from_file(Path::new("/nowhere/gateway.toml")).unwrap_err();
    expect_test::expect![[r#"
        /nowhere/gateway.toml: cannot read the file: No such file or directory (os error 2)
             allowed: a readable file in utf-8
    "#]]
    .assert_eq(&faults.to_string());
}

#[test]
fn reference_is_up_to_date_and_complete() {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md");
    let text = reference::markdown();
    for section in SECTIONS {
        let heading = format!("## `{}`", section.heading());
        let part = text.split(&heading).nth(1).expect("a section is missing from the reference");
        for field in section.fields {
            let row = format!("| `{}` |", field.key);
            assert!(part.contains(&row), "{}.{} is missing", section.name, field.key);
        }
    }
    expect_test::expect_file![written].assert_eq(&text);
}

#[test]
fn examples_are_clean() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        count += 1;
        let text = std::fs::read_to_string(&file).unwrap();
        // Examples name variables that only their reader sets.
        let environment = |_: &str| Some("0123456789".to_owned());
        let folder = file.parent().unwrap();
        let config = Config::from_text("example", &text, folder, &environment);
        let config = config.unwrap_or_else(|faults| panic!("{}:\n{faults}", file.display()));
        let warnings = &config.warnings;
        assert!(warnings.is_empty(), "{}:\n{warnings}", file.display());
    }
    assert!(count >= 3, "only {count} examples");
}
