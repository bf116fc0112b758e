//! Goal: each whole file yields the expected configuration or diagnostics. Method: the output is
//! compared with the golden file beside the input (`UPDATE_EXPECT=1` rewrites the golden files).
//! Every secret in the inputs contains `sekrit`, and no output may contain it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use settings::{KeyDoc, TableDoc};

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

fn read(file: &Path, text: &str) -> Result<Config, Diagnostics> {
    let name = file.file_name().unwrap().to_str().unwrap();
    Config::from_text(name, text, file.parent().unwrap(), &environment)
}

fn check_expected(file: &Path, printed: &str) {
    assert!(!printed.contains("sekrit"), "{} spills a secret:\n{printed}", file.display());
    let expected = file.with_extension("expected");
    expect_test::expect_file![expected].assert_eq(printed);
}

/// Prints the fields of a configuration. Paths are relative to the file's folder, so the output is
/// the same on every machine.
fn print_config(file: &Path, config: Config) -> String {
    let relative = |path: &PathBuf| path.strip_prefix(file.parent().unwrap()).unwrap().to_owned();
    let files = config.files.iter().map(relative).collect();
    let config = Config { warnings: Diagnostics::default(), files, ..config };
    let printed = format!("{config:#?}");
    let fields = printed.lines().filter_map(|line| line.strip_prefix("    "));
    fields.collect::<Vec<_>>().join("\n")
}

/// The path of a field of the configuration.
const ROOT: &str = "{";

/// Splits the lines of several values into the lines of each. The lines inside a value are indented
/// deeper than `indent`.
fn split_values<'l, 't>(
    lines: &'l [&'t str],
    indent: usize,
) -> impl Iterator<Item = &'l [&'t str]> {
    lines.chunk_by(move |_, next| next[indent..].starts_with([' ', '}', ']', ')']))
}

/// The printed values of default configurations, each with its path: the first lines of the values
/// that hold it.
#[derive(Default)]
struct Defaults(HashSet<(String, String)>);

impl Defaults {
    fn add(&mut self, path: &str, lines: &[&str], indent: usize) {
        for value in split_values(lines, indent) {
            self.0.insert((path.to_owned(), value.join("\n")));
            if let [first, inside @ .., _] = value {
                self.add(&format!("{path}{first}"), inside, indent + 4);
            }
        }
    }

    /// Appends the lines of the values that differ from the defaults. All elements of a list are
    /// printed, but only those of their fields that differ.
    fn print_others(&self, path: &str, lines: &[&str], indent: usize, out: &mut String) {
        for value in split_values(lines, indent) {
            if path.ends_with('{') && self.0.contains(&(path.to_owned(), value.join("\n"))) {
                continue;
            }
            out.push_str(&format!("{}\n", value[0]));
            if let [first, inside @ .., last] = value {
                self.print_others(&format!("{path}{first}"), inside, indent + 4, out);
                out.push_str(&format!("{last}\n"));
            }
        }
    }
}

#[test]
fn valid_files() {
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        read(file, &text).unwrap_or_else(|errors| panic!("{errors}"))
    };
    let files = cases("valid");
    let mut defaults = Defaults::default();
    let least = files.iter().find(|file| file.ends_with("least.toml")).unwrap();
    for file in [least, &least.with_file_name("../one-of-each.toml")] {
        let printed = print_config(file, read(file));
        defaults.add(ROOT, &printed.lines().collect::<Vec<_>>(), 0);
    }
    for file in &files {
        let config = read(file);
        let mut out = format!("{}\n", config.warnings);
        let printed = print_config(file, config);
        defaults.print_others(ROOT, &printed.lines().collect::<Vec<_>>(), 0, &mut out);
        check_expected(file, &out);
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

/// Returns the documentation of every table, with the table's name in the file.
fn tables() -> Vec<(&'static str, TableDoc)> {
    let root = GatewayFile::doc();
    root.keys.into_iter().map(|key| (key.name, key.table.expect("a table"))).collect()
}

#[test]
fn every_default_and_example_can_be_read() {
    let file = GatewayFile::defaults("");
    assert_eq!(file, GatewayFile::defaults(""));
    ChainTable::defaults("chain.a");
    UpstreamTable::defaults("upstream");
    ProviderTable::defaults("provider");
    GroupTable::defaults("group");
    CertificateTable::defaults("certificate");
    ZoneTable::defaults("zone.a");
    LimitTable::defaults("limit");
    KeyTable::defaults("key");
    JwtTable::defaults("jwt");
    RuleTable::defaults("rule");
    for (name, table) in tables() {
        let names: BTreeSet<_> = table.keys.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), table.keys.len(), "a key stands twice in {name}");
        for KeyDoc { name: key, doc, .. } in &table.keys {
            assert!(doc.ends_with('.'), "{name}.{key}: {doc}");
        }
    }
}

/// Sets every key to its default, as the reference prints it.
#[test]
fn every_default_can_be_written() {
    let file = cases("valid").into_iter().find(|file| file.ends_with("everything.toml")).unwrap();
    let mut file: toml::Table = std::fs::read_to_string(file).unwrap().parse().unwrap();
    for (name, doc) in tables() {
        let tables: Vec<&mut toml::Table> = match &mut file[name] {
            toml::Value::Table(named) if doc.heading.contains("NAME") => {
                named.iter_mut().filter_map(|(_, table)| table.as_table_mut()).collect()
            }
            toml::Value::Table(once) => vec![once],
            listed => {
                listed.as_array_mut().unwrap().iter_mut().filter_map(|t| t.as_table_mut()).collect()
            }
        };
        for table in tables {
            for key in doc.keys.iter().filter(|key| key.default.is_value()) {
                let line = format!("{} = {}", key.name, key.default_text);
                table.extend(line.parse::<toml::Table>().unwrap());
            }
        }
    }
    let context = ReadContext::new(Path::new(""), &environment);
    let text = file.to_string();
    let (_, report) = settings::read::<GatewayFile>(&text, "defaults", &context);
    assert!(!report.has_errors(), "{}", report.finish());
}

/// Damages files at every position, in several ways. Reading must not panic or print a secret, even
/// if a misplaced quote changes the meaning of the lines around it.
#[test]
fn damaged_files_neither_panic_nor_print_secrets() {
    let damages = ["\"", "'", "\n", "[", "=", "#", "x", ""];
    let mut faulty = 0;
    for file in cases("valid").into_iter().chain(cases("invalid")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let positions = text.char_indices().map(|(start, letter)| start..start + letter.len_utf8());
        for (i, position) in positions.enumerate() {
            let damage = damages[i % damages.len()];
            let damaged = format!("{}{damage}{}", &text[..position.start], &text[position.end..]);
            let printed = match read(&file, &damaged) {
                Ok(config) => format!("{config:?}{}", config.warnings),
                Err(faults) => {
                    faulty += 1;
                    faults.to_string()
                }
            };
            let is_leaked = printed.contains("sekrit");
            assert!(!is_leaked, "{} at {position:?} with {damage:?}:\n{printed}", file.display());
        }
    }
    assert!(faulty > 1000, "only {faulty} damages were noticed");
}

/// A value from the environment is masked even if it is as short as an ordinary word of a path.
#[test]
fn values_from_the_environment_are_masked_in_paths() {
    let environment = |name: &str| match name {
        "KEY" => Some("test2".to_owned()),
        "HOST" => Some("node-3".to_owned()),
        "URL" => Some("http://node-3/rpc".to_owned()),
        _ => None,
    };
    for (written, shown) in [
        ("https://h.example/v2/${KEY}/rpc?k=${KEY}", "https://h.example/v2/***/rpc?***"),
        ("https://h.example/v2/${KEY:-eth}", "https://h.example/v2/***"),
        ("http://${HOST}:8545/rpc", "http://node-3:8545/rpc"),
        ("${URL}", "http://node-3/rpc"),
        ("https://h.example/v2/test2", "https://h.example/v2/test2"),
        ("ipc:/run/${HOST}/geth.ipc", "ipc:/run/node-3/geth.ipc"),
    ] {
        let text = format!("[[upstream]]\nurl = \"{written}\"\n");
        let config = Config::from_text("f", &text, Path::new("/"), &environment).unwrap();
        assert_eq!(config.upstreams[0].url.to_string(), shown, "{written}");
    }
}

#[test]
fn upstreams_make_a_configuration() {
    let upstreams =
        ["http://127.0.0.1:8545", "https://h/sekrit0123456789", "http://127.0.0.1:8545"];
    let upstreams = upstreams.map(str::to_owned);
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = Config::from_upstreams(&upstreams, Some(listen), Some(2), true).unwrap();
    assert_eq!((config.server.listen, config.server.threads), (Some(listen), 2));
    assert!(!config.cache.enabled && !config.cache.coalesce);
    let names: Vec<_> = config.upstreams.iter().map(|upstream| &*upstream.name).collect();
    assert_eq!(names, ["127.0.0.1:8545", "h:443", "127.0.0.1:8545:2"]);
    assert_eq!(config.chains[0].upstreams, [0, 1, 2]);
    assert_eq!(config.groups[0].upstreams, [0, 1, 2]);
    assert!(!format!("{config:?}").contains("sekrit"));
}

#[test]
fn all_upstream_errors_are_reported() {
    let none = Config::from_upstreams(&[], None, None, false).unwrap_err();
    let upstreams = ["localhost:8545", "ftp://h", "ws://ok"].map(str::to_owned);
    let two = Config::from_upstreams(&upstreams, None, None, false).unwrap_err();
    expect_test::expect![[r#"
        --upstream: at least one upstream url is required
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path
        --
        --upstream 1 = localhost:8545: a url begins with http://, https://, ws://, wss:// or ipc:
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path

        --upstream 2 = ftp://h: the scheme is none of http, https, ws, wss and ipc
             allowed: http[s]://host[:port][/path], ws[s]://… or ipc:/path
    "#]]
    .assert_eq(&format!("{none}--\n{two}"));
}

#[test]
fn an_unreadable_file_is_one_error() {
    let faults = Config::from_file(Path::new("/nowhere/gateway.toml")).unwrap_err();
    expect_test::expect![[r#"
        /nowhere/gateway.toml: cannot read the file: No such file or directory (os error 2)
             allowed: a readable file in utf-8
    "#]]
    .assert_eq(&faults.to_string());
}

#[test]
fn reference_and_schema_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = render_reference();
    for (name, table) in tables() {
        let heading = format!("## `{}`", table.heading);
        let part = text.split(&heading).nth(1).expect("a table is missing from the reference");
        for key in &table.keys {
            assert!(
                part.contains(&format!("| `{}` |", key.name)),
                "{name}.{} is missing",
                key.name
            );
        }
    }
    expect_test::expect_file![docs.join("config.md")].assert_eq(&text);
    expect_test::expect_file![docs.join("gateway.schema.json")].assert_eq(&render_schema());
}

/// Returns the examples by name, with their texts.
fn examples() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|end| end == "toml"));
    let read = |file: PathBuf| (file.clone(), std::fs::read_to_string(file).unwrap());
    let examples: Vec<_> = files.map(read).collect();
    assert!(examples.len() >= 5, "only {} examples", examples.len());
    examples
}

#[test]
fn examples_are_clean() {
    for (file, text) in examples() {
        // Examples use variables that only their users set.
        let environment = |_: &str| Some("0123456789".to_owned());
        let folder = file.parent().unwrap();
        let config = Config::from_text("example", &text, folder, &environment);
        let config = config.unwrap_or_else(|faults| panic!("{}:\n{faults}", file.display()));
        let warnings = &config.warnings;
        assert!(warnings.is_empty(), "{}:\n{warnings}", file.display());
    }
}

/// Checks the examples as an editor does, by the published schema at the address in the example.
#[test]
fn the_schema_accepts_every_example_and_no_misspelt_key() {
    let schema: serde_json::Value = serde_json::from_str(&render_schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let error = |text: &str| {
        let json = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        validator.validate(&json).err().map(|error| error.to_string())
    };
    for (file, text) in examples() {
        assert_eq!(error(&text), None, "{}", file.display());
        let named = text.lines().next().unwrap().strip_prefix("#:schema ").expect("a schema");
        assert!(file.parent().unwrap().join(named).is_file(), "{}: {named}", file.display());
    }
    for file in cases("valid") {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(error(&text), None, "{}", file.display());
    }
    let upstream = "[[upstream]]\nurl = 'http://127.0.0.1:1'\n";
    for wrong in ["wieght = 3", "weight = 1001", "weight = 'x'", "backup = 1", "ping_interval = 5"]
    {
        assert!(error(&format!("{upstream}{wrong}")).is_some(), "{wrong}");
    }
    assert!(error("[sever]\n").is_some());
    assert!(error("[call]\nbalance = 'random'\n").is_some());
    assert_eq!(
        error(&format!("{upstream}weight = '${{WEIGHT}}'")),
        None,
        "a variable fits anywhere"
    );
}

const UPSTREAMS: &str = r#"
[[upstream]]
name = "a"
url = "http://127.0.0.1:1"
[[upstream]]
name = "b"
url = "https://user:sekrit1@b.example/v3/sekrit2sekrit2sekrit2sekrit2?key=sekrit3"
headers = { x-api-key = "sekrit4" }
"#;

fn check_changes(before: &str, after: &str, expected: &expect_test::Expect) {
    let config = |text: &str| {
        let environment = |name: &str| Some(format!("sekrit-of-{name}"));
        Config::from_text("test", text, Path::new("/"), &environment)
            .unwrap_or_else(|errors| panic!("{errors}"))
    };
    let changes = config(before).changes_to(&config(after));
    let text = changes.iter().map(Change::to_string).collect::<Vec<_>>().join("\n");
    assert!(!text.contains("sekrit"), "{text}");
    expected.assert_eq(&text);
}

#[test]
fn the_same_in_another_order_is_no_change() {
    let other = r#"
        [call]
        deadline = "30s"
        [[upstream]]
        name = "b"
        headers = { x-api-key = "sekrit4" }
        url = "https://user:sekrit1@b.example/v3/sekrit2sekrit2sekrit2sekrit2?key=sekrit3"
        [[upstream]]
        url = "http://127.0.0.1:1"
        name = "a"
    "#;
    check_changes(UPSTREAMS, other, &expect_test::expect![[""]]);
}

#[test]
fn each_changed_key_is_listed_with_its_former_value() {
    let after = r#"
        [server]
        listen = "0.0.0.0:8645"
        [call]
        deadline = "15s"
        [[upstream]]
        name = "a"
        url = "http://127.0.0.1:2"
        weight = 3
        [[upstream]]
        name = "c"
        url = "http://${HOST:-c}:1"
        [[group]]
        name = "logs"
        chain = "ethereum"
        methods = ["eth_getLogs"]
        [[group]]
        name = "rest"
        methods = ["*"]
        [log]
        level = "debug"
    "#;
    check_changes(
        UPSTREAMS,
        after,
        &expect_test::expect![[r#"
        ~ server.listen = "127.0.0.1:8645" (default) -> "0.0.0.0:8645"   (only after a restart)
        ~ upstream.a.url = "http://127.0.0.1:1" -> "http://127.0.0.1:2"
        ~ upstream.a.weight = 1 (default) -> 3
        - upstream.b.url = "https://***@b.example/v3/***?***"
        - upstream.b.headers = { x-api-key = *** }
        + upstream.c.url = "***"
        + group.ethereum.logs.chain = "ethereum"
        + group.ethereum.logs.methods = ["eth_getLogs"]
        + group.rest.methods = ["*"]
        ~ call.deadline = "30s" (default) -> "15s"
        ~ log.level = "info" (default) -> "debug"   (only after a restart)"#]],
    );
}

#[test]
fn a_changed_secret_is_listed_and_masked() {
    let after = UPSTREAMS.replace("sekrit4", "sekrit5").replace("sekrit3", "sekrit6");
    check_changes(
        UPSTREAMS,
        &after,
        &expect_test::expect![[r#"
        ~ upstream.b.url = "https://***@b.example/v3/***?***": the part that is masked has changed
        ~ upstream.b.headers = { x-api-key = *** }: the part that is masked has changed"#]],
    );
}

#[test]
fn changes_to_the_keys_file_are_listed_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let config = |keys: &str| {
        std::fs::write(folder.path().join("keys.toml"), keys).unwrap();
        let text = format!("{UPSTREAMS}[access]\nkeys_file = \"keys.toml\"\n");
        Config::from_text("test", &text, folder.path(), &|_| None)
            .unwrap_or_else(|errors| panic!("{errors}"))
    };
    let before = config("[[key]]\nname = 'a'\nsecret = 'sekrit-sekrit-sekrit-a'\n");
    let after = config(
        "[[key]]\nname = 'a'\nsecret = 'sekrit-sekrit-sekrit-b'\nrate = '5r/s'\n[[key]]\nname = 'b'\nsecret = 'sekrit-sekrit-sekrit-c'\n",
    );
    let changes = before.changes_to(&after);
    let text = changes.iter().map(Change::to_string).collect::<Vec<_>>().join("\n");
    assert!(!text.contains("sekrit"), "{text}");
    expect_test::expect![[r#"
        ~ key.a.secret = ***: the part that is masked has changed
        + key.a.rate = '5r/s'
        + key.b.secret = ***"#]]
    .assert_eq(&text);
}
