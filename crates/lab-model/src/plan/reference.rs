//! `docs/plan.md`, printed from the table of keys so that it cannot differ from what is read.

use std::fmt::Write;

use super::field::{
    BATCH, CALL, DRAWS, Default, Field, Form, PLAN, SECTIONS, STAGE, STEP, Section, THRESHOLD,
};
use super::kind::Kind;
use crate::metrics::Metric;

/// The text of `docs/plan.md`.
pub fn markdown() -> String {
    let mut text = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    table(&mut text, "Keys of the file itself", &PLAN);
    for section in SECTIONS {
        let heading = format!("`{}`", section.heading());
        match section.form {
            Form::Free if section.name == "thresholds" => {
                let _ = write!(text, "\n## {heading}\n\n{}\n\n{THRESHOLDS}", section.doc);
                metrics(&mut text);
                table(&mut text, "A threshold as a table", &THRESHOLD);
            }
            Form::Free => {
                let _ = write!(text, "\n## {heading}\n\n{}\n\n{VARIABLES}", section.doc);
            }
            _ => table(&mut text, &heading, section),
        }
        match section.name {
            "scenario" => {
                table(&mut text, "A stage", &STAGE);
                table(&mut text, "A batch", &BATCH);
            }
            "mix" => {
                table(&mut text, "A step", &STEP);
                table(&mut text, "A call", &CALL);
                generators(&mut text);
            }
            _ => {}
        }
    }
    text
}

fn table(text: &mut String, heading: &str, section: &Section) {
    let level = if section.form == Form::Inline { "###" } else { "##" };
    let _ = write!(text, "\n{level} {heading}\n\n{}\n\n", section.doc);
    text.push_str("| key | default | allowed | what it does |\n| --- | --- | --- | --- |\n");
    for field in section.fields {
        let (default, doc) = (default_text(field), escaped(field.doc));
        let allowed = escaped(&field.kind.to_string());
        let _ = writeln!(text, "| `{}` | {default} | {allowed} | {doc} |", field.key);
    }
}

fn metrics(text: &mut String) {
    text.push_str("\n| metric | k6's name | aggregations | what it is |\n");
    text.push_str("| --- | --- | --- | --- |\n");
    for metric in Metric::ALL {
        let k6 = metric.k6().map_or_else(String::new, |name| format!("`{name}` "));
        let (name, aggregations) = (metric.as_str(), metric.kind().aggregations());
        let _ = writeln!(text, "| `{name}` | {k6}| {aggregations} | {} |", metric.meaning());
    }
    let _ = write!(text, "\n{NO_DATA}");
}

fn generators(text: &mut String) {
    text.push_str(GENERATORS);
    text.push_str("| generator | what it draws | keys |\n| --- | --- | --- |\n");
    for section in DRAWS {
        let own = section.fields.iter().skip(1);
        let keys: Vec<_> = own
            .map(|field| {
                let default = match field.default {
                    Default::Required => String::new(),
                    _ => format!(" ({})", default_text(field)),
                };
                format!("`{}`{default}: {}", field.key, field.doc)
            })
            .collect();
        let keys = escaped(&keys.join(" "));
        let _ = writeln!(text, "| `{}` | {} | {keys} |", section.name, escaped(section.doc));
    }
}

/// The example of the page, which a test reads.
pub(super) const EXAMPLE: &str = r#"[target]
url = "http://127.0.0.1:8545"
timeout = "5s"

[variables]
load_percent = 10

[[scenario]]
name = "load"
mix = "wallet"
workers_max = 500
stages = [
  { name = "warm", duration = "30s", rate = "20 * load_percent" },
  { name = "climb", duration = "2m", to = "100 * load_percent" },
  { name = "stairs", duration = "2m", to = "200 * load_percent", steps = 4 },
  { name = "spike", duration = "10s", spike = "400 * load_percent" },
  { name = "after", duration = "1m" },
]

[[mix.wallet.step]]
calls = [{ method = "eth_blockNumber" }]

[[mix.wallet.step]]
weights_sum = 100
calls = [
  { method = "eth_getBalance", params = [{ draw = "address" }, "latest"], weight = 60 },
  { method = "eth_getBlockByNumber", params = [{ block = "latest-10" }, false], weight = 38 },
  { method = "eth_getLogs", params = [{ draw = "logs", blocks = 10 }], weight = 2 },
]

[thresholds]
failed = "rate<0.01"
"failed{method:eth_getLogs}" = "rate<0.01"
latency = ["p(95)<300", "p(99)<700"]
"latency{stage:stairs}" = { threshold = "p(99)<500", window = "10s", sustained = "20s" }
"latency{method:eth_getLogs}" = [{ threshold = "p(90)<2000", abort = true, abort_delay = "30s" }]
"#;

const HEAD: &str = concat!(
    "# Plans\n\n",
    "<!-- Printed by `cargo xtask generate` from crates/lab-model/src/plan/field.rs. Do not edit. -->\n\n",
    "`weir load plan.toml` reads one TOML file; `weir check plan.toml` says whether it is right, and \
     what it will do: iterations, requests, the schedule's mean and peak, each method's true share \
     of all calls. A key that is not listed here is a fault, and a faulty plan never runs. All \
     faults are told at once, each with its place and what is allowed. Plans to start from are in \
     `studies/`.\n\n",
    "What is allowed but looks like a mistake is told as a warning: an objective over all calls \
     that one method could fail wholly without breaking, a percentile of too few samples, workers \
     that run out before an objective breaks, a pause that bounds the rate.\n\n",
);

const VARIABLES: &str = "\
A number may be written as a text with a formula, `\"30000 * load_percent / 100\"`: numbers, \
variables, `+ - * /`, parentheses, `floor`, `ceil`, `round`, `min`, `max`. In other texts \
`${formula}` stands for its value, as in `\"${2 * minutes}m\"`.
";

const THRESHOLDS: &str = "\
```toml
[thresholds]
failed = \"rate<0.01\"
\"latency{method:eth_call,stage:steady}\" = [\"p(95)<300\", \"p(99)<700\"]
\"latency{method:eth_getLogs}\" = [{ threshold = \"p(99)<700\", window = \"10s\", sustained = \"20s\" }]
```

A key is a metric, perhaps with the tags `method`, `stage` and `scenario`; its value is one \
threshold or a list. An expression is aggregation, operator (`<`, `<=`, `>`, `>=`, `==`, `!=`) and \
number; times are in milliseconds.
";

const NO_DATA: &str = "\
Unlike in k6, no data at all is a failure unless `no_data = \"pass\"`.
";

const GENERATORS: &str = "
### Generators of parameters

In `params` a table with the key `draw` is a generator; every other table is an object, whose parts \
may be generators. `{ json = '…' }` is JSON as it stands. A text in place of the whole list is JSON in \
which the same generators may stand: `params = '[{\"draw\":\"address\"},\"latest\"]'`. What is drawn comes from the run's seed and from the chain as it was when the run began.

";

fn default_text(field: &Field) -> String {
    match (field.default, field.kind) {
        (
            Default::Is(text),
            Kind::Switch
            | Kind::Count { .. }
            | Kind::Number { .. }
            | Kind::Span { .. }
            | Kind::Tree,
        ) => format!("`{text}`"),
        (Default::Is(text), _) => format!("`\"{text}\"`"),
        (Default::Empty, Kind::Headers) => "none".to_owned(),
        (Default::Empty, _) => "`[]`".to_owned(),
        (Default::Follows(words), _) => words.to_owned(),
        (Default::Required, _) => "must be set".to_owned(),
    }
}

/// A text for a table's cell.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
