//! The value type of a table of named numbers. Formulas use these numbers as variables.

use serde_json::{Value as Json, json};

use super::{AnyString, Scalar, ValueType};
use crate::formula::FUNCTIONS;
use crate::report::Location;
use crate::syntax::{Item, Member, Tree};
use crate::table::Reader;

/// Maximum number of variables of a file.
const VARIABLES_MAX: usize = 100;

/// Maximum number of bytes of a variable's name.
const NAME_BYTES_MAX: usize = 64;

/// Numbers by name, for the formulas of the keys that are declared after this one. The formula of a
/// variable may use the variables above it.
pub struct Variables;

/// A variable of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// The name of the variable.
    pub name: String,
    /// The value, which an override may have replaced.
    pub value: f64,
    /// The position of the value in the file.
    pub location: Location,
}

impl ValueType for Variables {
    type Value = Vec<Variable>;
    const EMPTY: &'static str = "{}";

    fn noun() -> String {
        "a table of variables".to_owned()
    }

    fn allowed() -> String {
        "a table of numbers and formulas".to_owned()
    }

    fn schema() -> Json {
        json!({
            "type": "object",
            "maxProperties": VARIABLES_MAX,
            "propertyNames": { "pattern": "^[A-Za-z][A-Za-z0-9_]*$", "maxLength": NAME_BYTES_MAX },
            "additionalProperties": { "type": ["number", "string"] },
        })
    }

    fn placeholder() -> Vec<Variable> {
        Vec::new()
    }

    fn mask(text: &str) -> Option<String> {
        <AnyString as Scalar>::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value> {
        let Tree::Table(members) = &item.tree else {
            return reader.wrong_type::<Variables>(item, location);
        };
        let mut variables = Vec::with_capacity(members.len());
        for member in members {
            let mut location = location.of_member(member);
            if variables.len() == VARIABLES_MAX {
                let allowed = format!("at most {VARIABLES_MAX}");
                reader.report().error_without_value(&location, "too many variables", allowed);
                break;
            }
            if !is_variable_name(&member.key) {
                let functions = FUNCTIONS.join(", ");
                let allowed = format!("a letter, then letters, digits and _; not {functions}");
                reader.report().error_without_value(
                    &location,
                    "not a name for a variable",
                    allowed,
                );
                continue;
            }
            location.span = Some(member.item.span.clone());
            // An unreadable variable still gets a value. So formulas that use the variable report
            // no second error.
            let value = read_number(member, reader).unwrap_or_else(|message| {
                let allowed = "a number, or a formula of the variables above";
                reader.report().error(&location, message, allowed);
                1.0
            });
            let value = reader.context.set_variable(&member.key, value);
            variables.push(Variable { name: member.key.clone(), value, location });
        }
        Some(variables)
    }
}

/// Reads a number, or evaluates a formula in a string.
fn read_number(member: &Member, reader: &Reader<'_, '_>) -> Result<f64, String> {
    let number = match &member.item.tree {
        Tree::Integer(digits) | Tree::Float(digits) => digits.parse().unwrap_or(f64::NAN),
        Tree::String(text) => {
            let text = reader.expand(text)?;
            reader.context.evaluate(&text).unwrap_or_else(|| Err("not a number".to_owned()))?
        }
        _ => return Err("not a number".to_owned()),
    };
    if number.is_finite() { Ok(number) } else { Err("not a finite number".to_owned()) }
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() <= NAME_BYTES_MAX
        && !FUNCTIONS.contains(&name)
}
