//! What two runs or two responses do not have in common, in words.

use std::fmt::{Display, Formatter, Result};

use lab_model::results::compare::{Mismatch as Reported, Weight};

use crate::analysis::equal::Side;
use crate::analysis::sameness::{Fact, Mismatch, Part, Value};

/// A mismatch as it is reported. `arm` is the name of the second run's arm.
pub(crate) fn mismatch(found: &Mismatch, arm: &str) -> Reported {
    let Mismatch { what, a, b, weight } = found;
    Reported {
        what: what.to_string(),
        a: a.to_string(),
        b: b.to_string(),
        arm: arm.to_owned(),
        weight: *weight,
        why: why(what, *weight).to_owned(),
    }
}

fn why(what: &Fact, weight: Weight) -> &'static str {
    match what {
        Fact::Tool => "tools begin their clocks at different points of a call",
        Fact::Family => "other methods",
        Fact::Chain => "other data, so other work",
        Fact::Schedule | Fact::Load => "not the same load was asked for",
        Fact::Connections => "a connection's price is in the one and not in the other",
        Fact::Share(_) => "all methods together are not the same work; each method alone may be",
        Fact::Setting(_) if weight == Weight::Note => "does not change what is sent",
        Fact::Setting(_) | Fact::MoreSettings => "what is sent may differ",
        Fact::PlanText => "its settings are equal",
        Fact::Seed => "not the same calls in the same order; of the same kinds, though",
        Fact::Threads | Fact::Machine(Part::CpuLimit) => "the generator had other means",
        Fact::Head => "parameters are drawn from blocks below the head",
        Fact::Client => "what is compared, perhaps",
        Fact::Machine(Part::Host | Part::Cpu | Part::Cores | Part::Memory) => {
            "another machine measured: only the figures per core and per request are fair"
        }
        Fact::Machine(Part::Governor) => "the clock of the CPU may have changed meanwhile",
        Fact::Machine(Part::Target) => {
            "with the target on the generator's machine both share it, and no network lies between"
        }
        Fact::Machine(Part::Kernel | Part::Congestion) => "a difference may come from it",
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
            Fact::PlanText => "plan's text",
            Fact::Seed => "seed",
            Fact::Threads => "generator threads",
            Fact::Head => "head",
            Fact::Client => "client",
            Fact::Machine(Part::Host) => "machine: host",
            Fact::Machine(Part::Cpu) => "machine: CPU",
            Fact::Machine(Part::Cores) => "machine: cores",
            Fact::Machine(Part::Governor) => "machine: governor",
            Fact::Machine(Part::CpuLimit) => "machine: CPU limit",
            Fact::Machine(Part::Target) => "machine: target",
            Fact::Machine(Part::Kernel) => "machine: kernel",
            Fact::Machine(Part::Congestion) => "machine: congestion control",
            Fact::Machine(Part::Memory) => "machine: memory",
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
            Value::TargetLocal(true) => f.write_str("on it"),
            Value::TargetLocal(false) => f.write_str("elsewhere"),
            Value::Gibibytes(memory) => write!(f, "{memory:.0} GiB"),
        }
    }
}

/// Bytes of a value that are shown.
const SHOWN_BYTES: usize = 120;

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Side::Json(text) if text.len() <= SHOWN_BYTES => f.write_str(text),
            Side::Json(text) => {
                let end = text.floor_char_boundary(SHOWN_BYTES);
                write!(f, "{}… ({} bytes)", &text[..end], text.len())
            }
            Side::Nothing => f.write_str("nothing"),
            Side::NothingLike => f.write_str("nothing like it"),
            Side::Elements(count) => write!(f, "{count} elements"),
        }
    }
}
