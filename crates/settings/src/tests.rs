//! Goal: one declaration gives values, diagnostics, page and schema, and no secret is ever printed.
//! Method: a small file with every form of table; texts are compared whole.

use std::path::Path;
use std::time::Duration as Time;

use expect_test::{Expect, expect};

use crate::value::{Bool, Bytes, Duration, Integer, List, Listed, Map, Name, Named, Number, Once};
use crate::value::{File, NonEmptyString, Secret, Variables};
use crate::{Input, ReadContext, Report, Scalar, Table, diff, read, reference, schema};

crate::choice! {
    /// How the load is spread.
    enum Balance {
        /// One after another.
        "round-robin" => RoundRobin,
        /// The least busy upstream.
        "least-busy" => LeastBusy,
    }
}

crate::table! {
    /// Where the program listens.
    struct Server {
        /// Address and port.
        listen: NonEmptyString = "127.0.0.1:80";
        /// Threads that serve.
        threads: Integer<1, 64> = described "the number of cores";
        /// How long a stop waits.
        drain: Duration<0, 60_000> = "10s";
        /// Longest body.
        body: Bytes<1024, 1_073_741_824> = "5MiB";
        /// Answer requests.
        on: Bool = "true";
        /// Share of calls that are logged.
        share: Number<0, 1000> = "0.5";
        /// A key with the name of a Rust keyword.
        r#match: NonEmptyString = described "nothing";
    }
}

crate::table! {
    /// Limits of the program.
    struct LimitsTable => Limits {
        /// Most connections.
        connections: Integer<1, 1000, u16> = described "what the machine has" => 7;
        /// Most bytes.
        bytes: Bytes<0, 1024, usize> = "1KiB", at_start;
        /// Words.
        words: List<NonEmptyString> = "a";
    }
}

crate::table! {
    /// A chain.
    struct Chain {
        /// Its id.
        id: Integer<1, { u64::MAX }> = described "not verified";
    }
}

crate::table! {
    /// An upstream.
    struct Upstream as label {
        /// Its name.
        name: Name = required;
        /// Its secret.
        token: Secret<4> = described "none";
        /// Its methods.
        methods: List<NonEmptyString> = empty;
        /// Headers.
        headers: Map<Secret<1>> = empty;
        /// How it is chosen.
        balance: Balance = "round-robin";
        /// A certificate.
        certificate: File = described "none";
    }
}

crate::table! {
    /// All of it.
    struct Program {
        /// A title.
        title: NonEmptyString = described "none";
        /// Where the program listens.
        server: Once<Server> = empty;
        /// Chains by name.
        chain: Named<Chain> = empty;
        /// Upstreams.
        upstream: Listed<Upstream> = empty;
        /// Limits.
        limits: Once<LimitsTable> = empty;
    }
}

crate::table! {
    /// A file with formulas.
    struct Formulas {
        /// Numbers by name.
        variables: Variables = empty;
        /// Where the program listens.
        server: Once<Server> = empty;
    }
}

crate::table! {
    /// A table that holds others.
    struct Outer {
        /// Its own key.
        size: Integer<0, 9> = "0";
        /// Tables in it.
        inner: Listed<Inner> = empty;
        /// A table in it.
        once: Once<Inner> = empty;
    }
}

crate::table! {
    /// A table in another one.
    struct Inner {
        /// Its own key.
        depth: Integer<0, 9> = "0";
        /// Tables in it.
        leaf: Listed<Leaf> = empty;
    }
}

crate::table! {
    /// The innermost table.
    struct Leaf {
        /// Its own key.
        weight: Number<0, 1000> = "1";
    }
}

crate::table! {
    /// A file of nested tables.
    struct Nested {
        /// Tables with names.
        outer: Named<Outer> = empty;
        /// A secret.
        token: Secret<1> = described "none";
    }
}

fn label(upstream: &Upstream) -> String {
    upstream.name.to_string()
}

fn environment(name: &str) -> Option<String> {
    match name {
        "TOKEN" => Some("a secret of the environment".to_owned()),
        "THREADS" => Some("3".to_owned()),
        _ => None,
    }
}

/// Reads a text, and passes the program and the report to `inspect`.
fn read_with<R>(text: &str, inspect: impl FnOnce(Option<Program>, Report<'_>) -> R) -> R {
    let context = ReadContext::new(Path::new("/nowhere"), &environment);
    let (program, report) = read::<Program>(text, "x.toml", &context);
    inspect(program, report)
}

/// Returns the printed diagnostics of a text.
fn problems(text: &str) -> String {
    read_with(text, |_, report| report.finish().to_string())
}

const ALL: &str = "
title = 'All'
[server]
listen = '[::1]:80'
threads = '${THREADS}'
drain = '1m'
body = 2048
on = false
share = 1
match = 'x'
[chain.a]
id = 0x10
[chain.b]
[[upstream]]
name = 'one'
token = '${TOKEN}'
methods = ['m', 'n']
headers = { authorization = 'Bearer abc' }
balance = 'least-busy'
certificate = 'ca.pem'
[[upstream]]
name = 'two'
";

#[test]
fn every_form_is_read() {
    let context = ReadContext::new(Path::new("/folder"), &environment);
    let (program, report) = read::<Program>(ALL, "x.toml", &context);
    assert_eq!(report.finish().to_string(), "");
    let program = program.unwrap();
    let server = &program.server;
    assert_eq!(*server.threads, Some(3), "a number from a variable");
    assert_eq!((*server.drain, *server.body), (Time::from_secs(60), 2048));
    assert_eq!((*server.on, *server.share), (false, 1.0));
    assert_eq!(server.r#match.as_deref(), Some("x"));
    let chains: Vec<_> = program.chain.iter().map(|(name, chain)| (&**name, *chain.id)).collect();
    assert_eq!(chains, [("a", Some(16)), ("b", None)]);
    let upstream = &program.upstream[0];
    assert_eq!(upstream.token.as_deref(), Some("a secret of the environment"));
    assert_eq!(*upstream.methods, ["m", "n"]);
    assert_eq!(
        (&*upstream.headers["authorization"], *upstream.balance),
        ("Bearer abc", Balance::LeastBusy)
    );
    assert_eq!(Balance::name_of(*program.upstream[1].balance), "round-robin", "the default");
    assert_eq!(Balance::NAMES, ["round-robin", "least-busy"]);
    assert_eq!(context.files(), [Path::new("/folder/ca.pem")]);
}

#[test]
fn defaults_are_readable_and_positions_are_not_compared() {
    let defaults = Program::defaults("");
    assert_eq!(*defaults.server.drain, Time::from_secs(10));
    assert_eq!(*defaults.server.listen, "127.0.0.1:80");
    assert!(!defaults.server.listen.is_set());
    assert_eq!(defaults.server.listen.location.path, "server.listen");
    let same_values = read_with("\n\n[server]\ndrain = '10s'\n", |program, _| program.unwrap());
    assert_eq!(same_values, defaults, "the same values elsewhere in a file");
    assert!(same_values.server.drain.is_set());
    let other_drain = read_with("[server]\ndrain = '11s'\n", |program, _| program.unwrap());
    assert_ne!(other_drain, defaults, "a changed key cannot be overlooked");
}

#[test]
fn all_problems_at_once() {
    let text = "
titel = 'x'
threads = 3
[server]
threads = 65
drain = '10'
body = 1.5
on = 'yes'
share = '2'
listen = ''
[chain]
a = 3
[[upstream]]
token = 'abc' # the old one was abcdef
url = 'http://user:password@host'
methods = 'm'
balance = 'least-bussy'
headers = { a = 1, b = 'x' }
[upstrem]
name = 'n'
";
    expect![[r#"
        x.toml:2:1: titel: there is no such key; did you mean title?
           2 | titel = ***
             | ^^^^^
             allowed: title, server, chain, upstream, limits

        x.toml:3:1: threads: this key belongs under [server]
           3 | threads = 3
             | ^^^^^^^
             allowed: title, server, chain, upstream, limits

        x.toml:5:11: server.threads = 65: out of range
           5 | threads = 65
             |           ^^
             allowed: a whole number from 1 to 64

        x.toml:6:9: server.drain = '10': a duration has one of the units us, ms, s, m, h, d
           6 | drain = '10'
             |         ^^^^
             allowed: a duration from "0s" to "1m"

        x.toml:7:8: server.body = 1.5: a fraction does not fit here
           7 | body = 1.5
             |        ^^^
             allowed: a number of bytes from "1KiB" to "1GiB"

        x.toml:8:6: server.on = 'yes': neither true nor false
           8 | on = 'yes'
             |      ^^^^^
             allowed: true or false

        x.toml:9:9: server.share = '2': out of range
           9 | share = '2'
             |         ^^^
             allowed: a number from 0 to 1

        x.toml:10:10: server.listen = '': the text is empty
          10 | listen = ''
             |          ^^
             allowed: a text that is not empty

        x.toml:12:5: chain.a = 3: not a table
          12 | a = 3
             |     ^
             allowed: [chain.a]

        x.toml:13:1: upstream.name: must be set
          13 | [[upstream]]
             | ^^^^^^^^^^^^
             allowed: 1 to 64 letters, digits, `-`, `_`, `.` and spaces, not `.` at first

        x.toml:14:9: upstream.token = ***: the secret is too short
          14 | token = ***
             |         ^^^
             allowed: a secret of at least 4 bytes

        x.toml:15:1: upstream.url: there is no such key
          15 | url = ***
             | ^^^
             allowed: name, token, methods, headers, balance, certificate

        x.toml:16:11: upstream.methods = 'm': not a list
          16 | methods = 'm'
             |           ^^^
             allowed: a list of: a text that is not empty

        x.toml:17:11: upstream.balance = 'least-bussy': there is no such word; did you mean "least-busy"?
          17 | balance = 'least-bussy'
             |           ^^^^^^^^^^^^^
             allowed: "round-robin", "least-busy"

        x.toml:18:17: upstream.headers.a = ***: not a text
          18 | headers = { a = ***, b = *** }
             |                 ^^^
             allowed: a secret of at least 1 bytes

        x.toml:19:2: upstrem: there is no such key; did you mean upstream?
          19 | [upstrem]
             |  ^^^^^^^
             allowed: title, server, chain, upstream, limits
    "#]]
    .assert_eq(&problems(text));
}

#[test]
fn a_misplaced_value_is_printed_if_it_cannot_be_a_secret() {
    let text = "listen = 'here'\ntoken = 'abcd'\nbalance = 'a://b'\nwords = ['x', 3]\nport = 80\n";
    let output = problems(text);
    for line in
        ["listen = 'here'", "token = ***", "balance = \"***\"", "words = ['x', 3]", "port = 80"]
    {
        assert!(output.contains(&format!(" | {line}\n")), "{line}\n{output}");
    }
    let errors = problems("[[limits]]\n[upstream]\nname = 'x'\n");
    assert!(errors.contains("limits: not a table\n"), "{errors}");
    assert!(errors.contains("upstream: not a list of tables\n"), "{errors}");
}

#[test]
fn values_alone_with_computed_defaults() {
    let limits = |text: &str| read_with(text, |program, _| program.unwrap().limits.values());
    let default_limits = Limits { connections: 7, bytes: 1024, words: vec!["a".to_owned()] };
    assert_eq!(limits(""), default_limits);
    assert_eq!(
        limits("[limits]\nconnections = 1001\n"),
        default_limits,
        "unreadable is as not set"
    );
    let text = "[limits]\nconnections = 9\nbytes = '0.5 KiB'\nwords = []\n";
    assert_eq!(limits(text), Limits { connections: 9, bytes: 512, words: Vec::new() });
}

#[test]
fn differences_are_named_in_the_order_of_the_declaration() {
    let keys = |text: &str| read_with(text, |program, _| diff::Keys::of(&program.unwrap()));
    let check = |before: &str, after: &str, expected: Expect| {
        let changes = diff::list_changes(&keys(before), &keys(after));
        let lines = changes.iter().map(|change| format!("{change}\n"));
        expected.assert_eq(&lines.collect::<String>());
    };
    check(ALL, ALL, expect![[""]]);
    let first_upstream = "[[upstream]]\nname = 'one'\n";
    let second_upstream = "[[upstream]]\nname = 'two'\nmethods = ['m']\n";
    check(
        &format!("{first_upstream}{second_upstream}"),
        &format!("[server]\nlisten = '127.0.0.1:80'\n{second_upstream}{first_upstream}"),
        expect![[""]],
    );
    let before = "title = 'a'\n[chain.a]\nid = 1\n[chain.b]\nid = 1\n[[upstream]]\nname = 'one'\ntoken = 'abcd'\n";
    let after = "title = 'b'\n[limits]\nbytes = 1\nwords = []\n[chain.a]\nid = 2\n[chain.c]\n\
                 id = 1\n[[upstream]]\nname = 'one'\ntoken = 'abce'\nbalance = 'least-busy'\n";
    check(
        before,
        after,
        expect![[r#"
        ~ title = 'a' -> 'b'
        ~ chain.a.id = 1 -> 2
        - chain.b.id = 1
        + chain.c.id = 1
        ~ upstream.one.token = ***: the part that is masked has changed
        ~ upstream.one.balance = "round-robin" (default) -> 'least-busy'
        ~ limits.bytes = "1KiB" (default) -> 1   (only after a restart)
        ~ limits.words = ["a"] (default) -> []
    "#]],
    );
    check(
        after,
        "",
        expect![[r#"
        - title = 'b'
        - chain.a.id = 2
        - chain.c.id = 1
        - upstream.one.token = ***
        - upstream.one.balance = 'least-busy'
        ~ limits.bytes = 1 -> "1KiB" (default)   (only after a restart)
        ~ limits.words = [] -> ["a"] (default)
    "#]],
    );
}

#[test]
fn durations_and_sizes_print_as_they_are_read() {
    use crate::value::{format_bytes, format_duration, parse_duration};
    for (text, ms) in
        [("1ms", 1), ("250ms", 250), ("10s", 10_000), ("2m", 120_000), ("1d", 86_400_000)]
    {
        assert_eq!(parse_duration(text), Ok(Time::from_millis(ms)), "{text}");
        assert_eq!(format_duration(Time::from_millis(ms)), text);
    }
    assert_eq!(
        (format_duration(Time::ZERO), parse_duration("1.5 s")),
        ("0s".to_owned(), Ok(Time::from_millis(1500)))
    );
    for text in ["", "s", "10", "10 seconds", "-1s", "1.5.1s", "99999999999999999999d"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
    type AnySize = Bytes<0, { u64::MAX }>;
    let bytes = |text| <AnySize as Scalar>::parse(Input::String(text));
    for (text, size) in [("1B", 1), ("16KiB", 16384), ("5MiB", 5 << 20), ("2GiB", 2 << 30)] {
        assert_eq!(bytes(text), Ok(size), "{text}");
        assert_eq!(format_bytes(size), text);
    }
    assert_eq!((bytes("25MB"), bytes("64 KiB")), (Ok(25_000_000), Ok(65536)));
    for text in ["", "MiB", "5Mb", "5mib", "-1B", "99999999999GiB"] {
        assert!(bytes(text).is_err(), "{text}");
    }
    type Share = Number<0, 1000>;
    for (number, fits) in [(-0.1, false), (0.0, true), (1.0, true), (1.1, false), (f64::NAN, false)]
    {
        assert_eq!(<Share as Scalar>::parse(Input::Number(number)).is_ok(), fits, "{number}");
    }
}

#[test]
fn only_keys_of_a_text_that_is_not_toml_are_printed() {
    expect![[r#"
        x.toml:1:17: not toml: invalid basic string, expected `"`
           1 | token = ***
             |            ^
    "#]]
    .assert_eq(&problems("token = \"s3cr3t'\n"));
    // A line that begins like a table's heading may be a list that holds a secret.
    for secret in ["[https://user:s3cr3t@host/", "  [s3cr3t, 's3cr3t'", "[[S3CR3T-0123456789"] {
        let output = problems(&format!("urls = [\n{secret}\n"));
        assert!(!output.to_lowercase().contains("s3cr3t"), "{output}");
    }
    let output = problems("[server # s3cr3t\nlisten = 1\n");
    assert!(output.contains("1 | [server\n"), "{output}");
}

#[test]
fn yaml_is_one_error() {
    for text in ["server:\n  listen: 1\n  threads: [1]\n", "# a\n---\na: 1\nb: 2\n"] {
        let output = problems(text);
        assert_eq!(output.matches("x.toml:").count(), 1, "{output}");
        assert!(output.contains("this is YAML"), "{output}");
    }
    assert!(problems("\"a:\" = [\n").contains("not toml"));
}

#[test]
fn formulas_are_evaluated_if_the_file_allows_them() {
    let context = ReadContext::new(Path::new("/"), &environment).with_formulas(&[]);
    let text = "[variables]\nhalf = 0.5\ntwice = '4 * half'\n[server]\nthreads = 'twice + 0'\n\
                share = 'half'\nlisten = 'twice ${twice}'\ndrain = '${twice * 10}s'\n\
                body = '${twice}MiB'\n";
    let (program, report) = read::<Formulas>(text, "x.toml", &context);
    assert_eq!(report.finish().to_string(), "");
    let program = program.unwrap();
    let server = &program.server;
    assert_eq!((*server.threads, *server.share, &**server.listen), (Some(2), 0.5, "twice 2"));
    assert_eq!((*server.drain, *server.body), (Time::from_secs(20), 2 << 20));
    let variables: Vec<_> =
        program.variables.iter().map(|variable| (&*variable.name, variable.value)).collect();
    assert_eq!(variables, [("half", 0.5), ("twice", 2.0)]);
    let output = |text: &str| {
        let context = ReadContext::new(Path::new("/"), &environment).with_formulas(&[]);
        read::<Formulas>(text, "x.toml", &context).1.finish().to_string()
    };
    expect![[r#"
        x.toml:2:5: variables.a = 'b': b: there is no such variable
           2 | a = 'b'
             |     ^^^
             allowed: a number, or a formula of the variables above

        x.toml:3:1: variables.min: not a name for a variable
           3 | min = 1
             | ^^^
             allowed: a letter, then letters, digits and _; not floor, ceil, round, min, max

        x.toml:4:5: variables.c = inf: not a finite number
           4 | c = inf
             |     ^^^
             allowed: a number, or a formula of the variables above

        x.toml:6:11: server.threads = 'a / 2': a fraction does not fit here; the formula evaluates to 0.5
           6 | threads = 'a / 2'
             |           ^^^^^^^
             allowed: a whole number from 1 to 64, or a formula
    "#]]
    .assert_eq(&output("[variables]\na = 'b'\nmin = 1\nc = inf\n[server]\nthreads = 'a / 2'\n"));
    assert_eq!(output("[variables]\na = 0.07\n[server]\nthreads = 'a * 100'\n"), "", "rounding");
    assert!(output("variables = 3\n").contains("variables = 3: not a table of variables"));
}

#[test]
fn a_check_of_the_program_adds_to_the_report() {
    let output = read_with(ALL, |program, mut report| {
        let program = program.unwrap();
        let methods = &program.upstream[0].methods;
        report.error(&methods.element_location(1), "named twice", "each method once");
        report.warn(&program.upstream[1].location, "it is never used", "remove it");
        report.finish().to_string()
    });
    expect![[r#"
        x.toml:17:17: upstream.methods = 'n': named twice
          17 | methods = ['m', 'n']
             |                 ^^^
             allowed: each method once

        x.toml:21:1: warning: upstream: it is never used
          21 | [[upstream]]
             | ^^^^^^^^^^^^
             advice: remove it
    "#]]
    .assert_eq(&output);
}

#[test]
fn the_page_names_every_key_once() {
    let page = reference::markdown::<Program>();
    for key in ["title", "listen", "match", "id", "token", "certificate"] {
        assert_eq!(page.matches(&format!("| `{key}` |")).count(), 1, "{key}\n{page}");
    }
    assert!(page.contains("## `[chain.NAME]`") && page.contains("## `[[upstream]]`"), "{page}");
    assert!(page.contains(
        "| `threads` | the number of cores | a whole number from 1 to 64 | Threads that serve. |"
    ));
}

#[test]
fn nested_tables_have_the_headings_of_a_file() {
    let page = reference::markdown::<Nested>();
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let inner = [
        "`[[outer.NAME.inner]]` and `[outer.NAME.once]`",
        "`[[outer.NAME.inner.leaf]]` and `[[outer.NAME.once.leaf]]`",
    ];
    assert_eq!(headings, [&["the file itself", "`[outer.NAME]`"][..], &inner].concat());
    let context = ReadContext::new(Path::new("/"), &environment);
    let (_, report) = read::<Nested>("weight = 1", "x.toml", &context);
    let output = report.finish().to_string();
    assert!(output.contains("this key belongs under [[outer.NAME.inner.leaf]]"), "{output}");
}

#[test]
fn tables_around_a_faulty_table_are_faulty_too() {
    let context = ReadContext::new(Path::new("/"), &environment);
    let text = "[outer.a]\ninner = [{ depth = 1 }, { dept = 1 }]\n[outer.b]\nsize = 10\n\
                [outer.c]\nonce = { leaf = [{ weight = 2 }] }\n[outer.d]\nsize = 9\n";
    let (nested, report) = read::<Nested>(text, "x.toml", &context);
    let nested = nested.unwrap();
    let outer = |table: &(String, Outer)| {
        let inner = table.1.inner.iter().chain([&*table.1.once]);
        let inner: Vec<_> = inner.map(|inner| report.is_faulty(&inner.location)).collect();
        (table.0.clone(), report.is_faulty(&table.1.location), inner)
    };
    let expected = [
        ("a", true, vec![false, true, false]),
        ("b", true, vec![false]),
        ("c", true, vec![true]),
        ("d", false, vec![false]),
    ];
    let faulty_tables: Vec<_> = nested.outer.iter().map(outer).collect();
    assert_eq!(
        faulty_tables,
        expected.map(|(name, is_faulty, inner)| (name.to_owned(), is_faulty, inner))
    );
    assert!(report.is_faulty(&nested.location), "the file itself");
}

#[test]
fn many_problems_and_long_lines_are_printed_in_part() {
    let tables = "{ depth = 10 }, ".repeat(10_000);
    let text = format!("[outer.a]\ninner = [{tables}]\n");
    let context = ReadContext::new(Path::new("/"), &environment);
    let problems = read::<Nested>(&text, "x.toml", &context).1.finish();
    assert_eq!((problems.list.len(), problems.count()), (50, 10_000));
    assert!(problems.to_string().ends_with("\nand 9950 more\n"));
    for problem in &problems.list {
        let position = problem.position.as_ref().unwrap();
        assert!(position.text.chars().count() <= 202, "{}", position.text);
        let marked: String = position.text.chars().skip(position.marked.start).collect();
        assert!(marked.starts_with("10 }"), "{}", position.text);
        assert_eq!(position.marked.len(), 2);
    }
}

#[test]
fn values_are_listed_with_their_secrets_masked() {
    let text = "title = 'a'\n[[upstream]]\nname = 'n'\ntoken = 'abcd'\nmethods = ['m', 'x://y']\n";
    let values = |report: &Report<'_>| -> Vec<String> {
        let output = report.values();
        output.map(|(span, output)| output.unwrap_or(&text[span.clone()]).to_owned()).collect()
    };
    let output = read_with(text, |_, report| values(&report));
    assert_eq!(output, ["'a'", "'n'", "***", "'m'", "\"***\""]);
}

#[test]
fn problems_of_other_files_keep_their_file() {
    let output = read_with("titel = 3\n", |_, mut report| {
        let other = read_with("server = 3\n", |_, report| report.finish());
        report.absorb(crate::Diagnostics { file: Some("y.toml".to_owned()), ..other });
        report.finish().to_string()
    });
    expect![[r#"
        x.toml:1:1: titel: there is no such key; did you mean title?
           1 | titel = 3
             | ^^^^^
             allowed: title, server, chain, upstream, limits

        y.toml:1:10: server = 3: not a table
           1 | server = 3
             |          ^
             allowed: [server]
    "#]]
    .assert_eq(&output);
}

#[test]
fn a_variable_may_hold_one_or_zero_for_true_or_false() {
    let parse = |text| <Bool as Scalar>::parse(Input::String(text)).ok();
    assert_eq!(
        (parse("1"), parse("0"), parse("true"), parse("2")),
        (Some(true), Some(false), Some(true), None)
    );
    assert!(<Bool as Scalar>::parse(Input::Integer(1)).is_err());
}

#[test]
fn a_schema_with_formulas_takes_texts_for_numbers_only() {
    let schema = schema::with_formulas(schema::document::<Formulas>("x.json", "Formulas"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let valid = |text: &str| {
        let table: toml::Table = text.parse().unwrap();
        validator.is_valid(&serde_json::to_value(table).unwrap())
    };
    assert!(valid("[variables]\na = 1\nb = 'a * 2'\n[server]\nthreads = 'b'\nshare = 'a / 2'\n"));
    for wrong in [
        "[server]\ndrain = 'b'",
        "[server]\non = 'b'",
        "[server]\nthreads = 65",
        "[variables]\n'-' = 1",
    ] {
        assert!(!valid(wrong), "{wrong}");
    }
}

#[test]
fn the_schema_accepts_what_the_reader_accepts() {
    let schema = schema::document::<Program>("https://example.org/x.json", "Program");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let json = |text: &str| -> serde_json::Value {
        serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap()
    };
    let error = |text: &str| validator.validate(&json(text)).err().map(|error| error.to_string());
    assert_eq!(error(ALL), None);
    for wrong in [
        "titel = 'x'",
        "[server]\nthreads = 65",
        "[server]\ndrain = '10'",
        "[[upstream]]\ntoken = 'abcd'",
        "[[upstream]]\nname = 'x'\nbalance = 'none'",
        "[chain.a]\nid = 'x'",
    ] {
        assert!(error(wrong).is_some(), "{wrong}");
        assert!(!problems(wrong).is_empty(), "{wrong}");
    }
}
