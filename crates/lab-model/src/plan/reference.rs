//! Prints the reference page `docs/plan.md` and the schema `docs/plan.schema.json` from the
//! declared keys of plans (`plan/tables.rs`).

use std::fmt::Write;

use settings::{DefaultDoc, KeyDoc};

use super::params::generators;
use super::tables::PlanFile;
use crate::metrics::Metric;

/// Returns the text of `docs/plan.md`.
pub fn markdown() -> String {
    let mut text = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    text.push_str(&settings::reference::markdown::<PlanFile>());
    write_metrics(&mut text);
    write_generators(&mut text);
    text
}

/// Returns the text of `docs/plan.schema.json`.
pub fn schema() -> String {
    let schema = settings::schema::document::<PlanFile>("plan.schema.json", "Weir load plan");
    format!("{:#}\n", settings::schema::with_formulas(schema))
}

/// Writes the table of metrics that thresholds can use.
fn write_metrics(text: &mut String) {
    text.push_str(THRESHOLDS);
    text.push_str("| metric | k6's name | aggregations | meaning |\n");
    text.push_str("| --- | --- | --- | --- |\n");
    for metric in Metric::ALL {
        let k6 = metric.k6().map_or_else(String::new, |name| format!("`{name}` "));
        let (name, aggregations) = (metric.as_str(), metric.kind().aggregations());
        let _ = writeln!(text, "| `{name}` | {k6}| {aggregations} | {} |", metric.meaning());
    }
    let _ = write!(text, "\n{NO_DATA}");
}

/// Writes the table of generators of parameters.
fn write_generators(text: &mut String) {
    text.push_str(GENERATORS);
    text.push_str("| generator | value | keys |\n| --- | --- | --- |\n");
    for (name, table) in generators() {
        // The first key is the generator's name.
        let keys: Vec<_> = table.keys.iter().skip(1).map(describe_key).collect();
        let _ = writeln!(text, "| `{name}` | {} | {} |", table.doc, keys.join(" "));
    }
}

/// Describes a key of a generator.
fn describe_key(key: &KeyDoc) -> String {
    let default = match key.default {
        DefaultDoc::Required => String::new(),
        DefaultDoc::Described(words) => format!(" ({words})"),
        DefaultDoc::Is(_) | DefaultDoc::Empty => format!(" (`{}`)", key.default_text),
    };
    format!("`{}`{default}: {}", key.name, key.doc)
}

/// The example on the page. A test reads it, so that it stays valid.
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
    "<!-- Printed by `cargo xtask generate` from crates/lab-model/src/plan/tables.rs. Do not edit. -->\n\n",
    "`weir load plan.toml` reads one TOML file; `weir check plan.toml` validates it and prints \
     what it will do: iterations, requests, the schedule's mean and peak, each method's true share \
     of all calls. A key that is not listed here is an error, and a plan with an error never runs. \
     All errors are reported at once, each with its position and the allowed values. Editors \
     complete the keys with [plan.schema.json](plan.schema.json). `studies/` has plans to start \
     from.\n\n",
    "Likely mistakes are reported as warnings: a threshold over all calls that does not break even \
     if all calls of one method fail, a percentile of too few samples, workers that run out before \
     a threshold breaks, a pause that bounds the rate.\n\n",
    "A number can be written as a text with a formula, `\"30000 * load_percent / 100\"`: numbers, \
     variables, `+ - * /`, parentheses, `floor`, `ceil`, `round`, `min`, `max`. In other texts \
     `${formula}` stands for its value, as in `\"${2 * minutes}m\"`, `${env:NAME}` and \
     `${env:NAME:-default}` for a variable of the environment, `${file:PATH}` for the content of a \
     file, and `$${` for `${`. Nothing is replaced in `params` and `bodies`.\n\n",
);

const THRESHOLDS: &str = "
## Metrics of thresholds

```toml
[thresholds]
failed = \"rate<0.01\"
\"latency{method:eth_call,stage:steady}\" = [\"p(95)<300\", \"p(99)<700\"]
\"latency{method:eth_getLogs}\" = [{ threshold = \"p(99)<700\", window = \"10s\", sustained = \"20s\" }]
```

A key is a metric, optionally with the tags `method`, `stage` and `scenario`. Metrics of iterations \
have no `method`, and `iteration_time` and metrics of transactions have no tags. An expression is an \
aggregation, an operator (`<`, `<=`, `>`, `>=`, `==`, `!=`) and a number; times are in milliseconds.

";

const NO_DATA: &str = "\
Unlike in k6, a threshold without data is broken unless `no_data = \"pass\"`.
";

const GENERATORS: &str = "
## Generators of parameters

In `params` a table with the key `draw` is a generator; every other table is an object, whose parts \
may be generators. `{ json = '…' }` is literal JSON. `params` may also be a JSON text with the same \
generators: `params = '[{\"draw\":\"address\"},\"latest\"]'`. The values depend on the run's seed and \
on the chain at the start of the run.

";
