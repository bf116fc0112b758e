//! `docs/config.md`, printed from the table of keys so that it cannot differ from what is read.

use std::fmt::Write;

use super::field::{Default, Field, Form, SECTIONS};
use super::file;
use super::kind::Kind;

/// The text of `docs/config.md`.
pub fn markdown() -> String {
    let mut text = String::from(HEAD);
    for section in SECTIONS {
        let _ = write!(text, "\n## `{}`\n\n{}\n\n", section.heading(), section.doc);
        text.push_str("| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n");
        for field in section.fields {
            let default = default_text(field);
            let allowed = escaped(&field.allowed());
            let doc = escaped(field.doc);
            let _ = writeln!(text, "| `{}` | {default} | {allowed} | {doc} |", field.key);
        }
        if section.form == Form::Listed {
            let _ = write!(text, "\nMay stand any number of times: `{}`.\n", section.heading());
        }
    }
    text
}

const HEAD: &str = "\
# Configuration

<!-- Printed by `cargo xtask generate` from crates/gateway/src/config/field.rs. Do not edit. -->

`weir serve gateway.toml` reads one TOML file; `weir check gateway.toml` says whether it is right.
A key that is not listed here is a fault, and a faulty file never starts. All faults are told at
once, each with its place and what is allowed.

The least that works:

```toml
[[node]]
url = \"http://127.0.0.1:8545\"
```

- Durations are texts with a unit: `\"250ms\"`, `\"10s\"`, `\"5m\"`, `\"1h\"`, `\"1d\"`.
- Sizes are texts with a unit, `\"64MiB\"` or `\"25MB\"`, or a number of bytes.
- `${VAR}` in a text stands for a variable of the environment, `${VAR:-default}` gives it a
  default, and `${file:PATH}` stands for the content of a file without its last line end. `$${`
  stands for `${`. Relative names begin at the folder of the configuration file.
- URLs of nodes and values of headers are secrets: no log, page, metric or message shows them.
- `--listen`, `--admin`, `--threads` and `--no-cache` of `weir serve` go before the file.
- A running gateway takes a changed file by `weir reload`; `docs/operating.md` says what that keeps.

More files to start from are in `examples/`.
";

fn default_text(field: &Field) -> String {
    match (field.default, field.kind) {
        (Default::Empty, Kind::Headers) => "none".to_owned(),
        (Default::Follows(_) | Default::Required, _) => file::default_text(field),
        _ => format!("`{}`", file::default_text(field)),
    }
}

/// A text for a table's cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
