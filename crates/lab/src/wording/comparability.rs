//! Writes the mismatches between two runs, and the two sides of a difference between responses. A
//! mismatch is a fact, such as the seed or the CPU, that differs. A side is what one of the two
//! responses has at the pointer of the difference.

use std::fmt::{Display, Formatter, Result};

use lab_model::results::compare::{Mismatch, Weight};

use crate::analysis::comparability::{Fact, FactMismatch, Value};
use crate::analysis::json_compare::Side;

/// Converts a mismatch for the report. `variant` is the name of the second run's variant.
pub(crate) fn report_mismatch(mismatch: &FactMismatch, variant: &str) -> Mismatch {
    let FactMismatch { fact, a, b, weight } = mismatch;
    Mismatch {
        what: fact.to_string(),
        a: a.to_string(),
        b: b.to_string(),
        variant: variant.to_owned(),
        weight: *weight,
        why: explain(fact, *weight).to_owned(),
    }
}

/// Explains the effect of a mismatch on a comparison.
fn explain(fact: &Fact, weight: Weight) -> &'static str {
    match fact {
        Fact::Tool => "tools start the clock of a call at different points",
        Fact::Family => "the methods differ",
        Fact::Chain => "the data differs, so the work does too",
        Fact::Schedule | Fact::Load => "the planned loads differ",
        Fact::Connections => "only one of them includes the cost of new connections",
        Fact::Share(_) => "the mix of methods differs; compare single methods instead of the total",
        Fact::Setting(_) if weight == Weight::Note => "does not change the requests",
        Fact::Setting(_) | Fact::MoreSettings => "the requests may differ",
        Fact::PlanText => "the settings are equal",
        Fact::Seed => "the calls are of the same kinds, but not the same",
        Fact::Threads | Fact::CpuLimit => "the generator had other resources",
        Fact::Head => "parameters are drawn from blocks below the head",
        Fact::Scheme => "only one of them includes the cost of TLS or of another transport",
        Fact::Client => "may be the subject of the comparison",
        Fact::Host | Fact::Cpu | Fact::Cores | Fact::Memory => {
            "the generator's machine differs: compare only figures per core and per request"
        }
        Fact::Governor => "the CPU frequency may have changed during a run",
        Fact::TargetLocal => {
            "a target on the generator's machine shares its CPU and needs no network"
        }
        Fact::Kernel | Fact::Congestion => "it may explain a difference",
    }
}

impl Display for Fact {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Fact::Share(method) => return write!(f, "share of {method}"),
            Fact::Setting(key) => return write!(f, "plan: {key}"),
            Fact::Tool => "tool",
            Fact::Family => "chain family",
            Fact::Chain => "chain",
            Fact::Schedule => "schedule",
            Fact::Load => "load",
            Fact::Connections => "connections",
            Fact::MoreSettings => "plan",
            Fact::PlanText => "plan text",
            Fact::Seed => "seed",
            Fact::Threads => "generator threads",
            Fact::Head => "head",
            Fact::Scheme => "target: scheme",
            Fact::Client => "client",
            Fact::Host => "machine: host",
            Fact::Cpu => "machine: CPU",
            Fact::Cores => "machine: cores",
            Fact::Governor => "machine: governor",
            Fact::CpuLimit => "machine: CPU limit",
            Fact::TargetLocal => "machine: target",
            Fact::Kernel => "machine: kernel",
            Fact::Congestion => "machine: congestion control",
            Fact::Memory => "machine: memory",
        })
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::NotSet => f.write_str("not set"),
            Value::Absent => f.write_str("none"),
            Value::Share(share) => write!(f, "{:.1} % of all calls", share * 100.0),
            Value::Settings(count) => write!(f, "{count} further settings"),
            Value::Differ => f.write_str("differ"),
            Value::TargetLocal(true) => f.write_str("on the generator's machine"),
            Value::TargetLocal(false) => f.write_str("on another machine"),
            Value::Gibibytes(memory) => write!(f, "{memory:.0} GiB"),
        }
    }
}

/// Maximum number of bytes of a JSON value that are printed. A longer value is cut.
const SHOWN_BYTES: usize = 120;

/// Maximum number of values of a repeated member that are printed.
const REPEATS_SHOWN: usize = 3;

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Side::Json(text) if text.len() <= SHOWN_BYTES => f.write_str(text),
            Side::Json(text) => {
                let end = text.floor_char_boundary(SHOWN_BYTES);
                write!(f, "{}… ({} bytes)", &text[..end], text.len())
            }
            Side::Nothing => f.write_str("nothing"),
            Side::Repeated(values) => {
                for (index, value) in values.iter().take(REPEATS_SHOWN).enumerate() {
                    f.write_str(if index > 0 { " and again " } else { "" })?;
                    Side::Json(value.clone()).fmt(f)?;
                }
                Ok(())
            }
            Side::NoMatch => f.write_str("nothing like it"),
            Side::Elements(count) => write!(f, "{count} elements"),
        }
    }
}
