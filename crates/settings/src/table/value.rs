//! Value types. A value type defines the values that a key accepts, how they are read, and their
//! documentation.
//!
//! A [`Scalar`] is written as one string, number or boolean. A [`ValueType`] may also be a list or
//! a table. Every `Scalar` is a `ValueType`.

mod database;
mod scalars;
mod tables;
mod variables;

use std::fmt::Debug;

pub use serde_json::Value as Json;
use serde_json::json;

use crate::MASK;
use crate::diff::Collector;
use crate::expand::is_reference;
use crate::report::Location;
use crate::syntax::{Item, Tree};
use crate::table::{Reader, TableDoc};

pub use database::{Database, DatabaseAddress, DatabaseUrl};
pub use scalars::{
    AnyString, Bool, Bytes, Duration, File, Integer, Name, NonEmptyString, Number, Secret,
    SecretText, UnsignedInteger, format_bytes, format_duration, parse_duration,
};
pub use tables::{List, Listed, Map, Named, Once, Pair, Pairs, parse_header};
pub use variables::{Variable, Variables};

/// The type of a key's value.
pub trait ValueType {
    /// The Rust type of the value.
    type Value: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// True if the value holds tables with keys of their own.
    const IS_TABLE: bool = false;
    /// An empty value in TOML.
    const EMPTY: &'static str = "none";

    /// Returns the noun for errors about a value of another type: "a list of paths".
    fn noun() -> String;
    /// Returns the allowed values, for diagnostics and the reference page.
    fn allowed() -> String;
    /// Returns the JSON Schema of the value.
    fn schema() -> Json;
    /// Returns the value of a key that is missing or cannot be read. With it, the program can still
    /// check the rest of the file.
    fn placeholder() -> Self::Value;
    /// Reads a value and reports its errors. Returns `None` if no part of it can be read.
    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<Self::Value>;
    /// Parses the default of a declaration. The default of a table is always empty.
    ///
    /// # Errors
    /// Fails if the text is not a value of this type. A test of the declaration must detect this
    /// error.
    fn parse_default(_text: &str) -> Result<Self::Value, String> {
        Err("the default of a table is always empty".to_owned())
    }
    /// Returns the text of a default in TOML.
    fn to_toml(default: &str) -> String {
        format!("\"{default}\"")
    }
    /// Returns the value of a key that is declared with `= empty`. `path` is the key's full name.
    fn empty(_path: &str) -> Self::Value {
        Self::placeholder()
    }
    /// Masks a string for diagnostics. Returns `None` if diagnostics may print the string as
    /// written.
    fn mask(_text: &str) -> Option<String> {
        Some(MASK.to_owned())
    }
    /// Returns the declaration of the tables that the value holds, for the reference page and for
    /// errors about a key in the wrong table.
    fn table() -> Option<TableDoc> {
        None
    }
    /// Passes the keys of the tables that the value holds to the collector.
    fn collect(_value: &Self::Value, _name: &'static str, _keys: &mut Collector) {}
}

/// A scalar as it was written, with variables already replaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// A string. Environment variables are strings, so types of numbers parse strings too.
    String(&'a str),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction.
    Number(f64),
    /// `true` or `false`.
    Bool(bool),
}

/// A value type that is written as one string, number or boolean.
pub trait Scalar {
    /// The Rust type of the value.
    type Value: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// True for numbers. A string value of such a type is read as a formula if the file allows
    /// formulas.
    const IS_NUMBER: bool = false;
    /// True if the value is written without quotes.
    const IS_BARE: bool = Self::IS_NUMBER;

    /// Returns the noun for errors about a value of another type: "a duration".
    fn noun() -> String;
    /// Returns the allowed values.
    fn allowed() -> String;
    /// Returns the JSON Schema of the value.
    fn schema() -> Json;
    /// Returns the value of a key that cannot be read.
    fn placeholder() -> Self::Value;
    /// Parses a value.
    ///
    /// # Errors
    /// Returns a message that does not repeat the value, which may be a secret.
    fn parse(input: Input<'_>) -> Result<Self::Value, String>;
    /// Masks a string for diagnostics and adds quotes. Returns `None` if diagnostics may print the
    /// string as written. The default implementation masks a string that may be a URL.
    fn mask(text: &str) -> Option<String> {
        let may_be_secret = text.contains("://") || text.contains(":-");
        may_be_secret.then(|| format!("\"{MASK}\""))
    }
    /// Masks the parts of a value that are not in `written`, the string in the file. These parts
    /// come from a variable or another file, so they may be secrets.
    fn mask_replaced(value: Self::Value, _written: &str) -> Self::Value {
        value
    }
    /// Runs after the value was parsed. A type can register the files that the value names.
    fn after_parse(_text: &str, _reader: &mut Reader<'_, '_>) {}
}

impl<S: Scalar> ValueType for S {
    type Value = S::Value;

    fn noun() -> String {
        S::noun()
    }

    fn allowed() -> String {
        S::allowed()
    }

    fn schema() -> Json {
        let schema = S::schema();
        // In place of any scalar, a file may have a string with a reference such as `${NAME}`.
        json!({ "anyOf": [schema, { "type": "string", "pattern": "\\$\\{" }] })
    }

    fn placeholder() -> S::Value {
        S::placeholder()
    }

    fn parse_default(text: &str) -> Result<S::Value, String> {
        S::parse(Input::String(text))
    }

    fn to_toml(default: &str) -> String {
        if S::IS_BARE { default.to_owned() } else { format!("\"{default}\"") }
    }

    fn mask(text: &str) -> Option<String> {
        S::mask(text)
    }

    fn read(item: &Item, location: &Location, reader: &mut Reader<'_, '_>) -> Option<S::Value> {
        let parsed = match &item.tree {
            Tree::String(written) => read_string::<S>(written, reader),
            Tree::Integer(digits) => match digits.parse() {
                Ok(number) => S::parse(Input::Integer(number)),
                Err(_) => Err("out of range".to_owned()),
            },
            Tree::Float(digits) => S::parse(Input::Number(digits.parse().unwrap_or(f64::NAN))),
            Tree::Bool(boolean) => S::parse(Input::Bool(*boolean)),
            Tree::DateTime(_) | Tree::List(_) | Tree::Table(_) | Tree::Null => {
                Err(format!("not {}", S::noun()))
            }
        };
        match parsed {
            Ok(value) => Some(value),
            Err(message) => {
                let allowed = reader.allowed::<S>();
                reader.report().error(&location.with_span(&item.span), message, allowed);
                None
            }
        }
    }
}

/// Reads a string, with variables and formulas.
fn read_string<S: Scalar>(written: &str, reader: &mut Reader<'_, '_>) -> Result<S::Value, String> {
    let text = reader.expand(written)?;
    let formula_result = if S::IS_NUMBER { reader.context.evaluate(&text) } else { None };
    let value = match formula_result {
        Some(number) => parse_formula_result::<S>(number?, &text)?,
        None => S::parse(Input::String(&text))?,
    };
    S::after_parse(&text, reader);
    let is_replaced = text != written && !is_reference(written);
    Ok(if is_replaced { S::mask_replaced(value, written) } else { value })
}

/// Parses the result of a formula. The error also states the result, unless the formula is just a
/// number.
fn parse_formula_result<S: Scalar>(number: f64, formula: &str) -> Result<S::Value, String> {
    let is_formula = formula.parse::<f64>().is_err();
    S::parse(integer_if_whole(number)).map_err(|message| match is_formula {
        true => format!("{message}; the formula evaluates to {number}"),
        false => message,
    })
}

/// Converts the result of a formula. A whole number becomes an integer even if the arithmetic left
/// a rounding error.
fn integer_if_whole(number: f64) -> Input<'static> {
    /// 2^53. An `f64` holds every whole number up to it exactly.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    /// Maximum relative rounding error. It is far above the rounding errors of a formula and far
    /// below an intended fraction.
    const ROUNDING_MAX: f64 = 1e-9;
    let rounded = number.round();
    let is_whole = (number - rounded).abs() <= ROUNDING_MAX * number.abs();
    if is_whole && number.abs() <= EXACT_MAX {
        Input::Integer(rounded as i128)
    } else {
        Input::Number(number)
    }
}

/// Declares an enum with the name of each variant in a file. A second form declares the names of an
/// existing enum: `pub Balances for policy::Balance { "round-robin" => RoundRobin, }`.
///
/// ```
/// settings::choice! {
///     /// How the load is spread.
///     pub enum Balance {
///         /// One after another.
///         "round-robin" => RoundRobin,
///         /// The upstream with the fewest calls in flight.
///         "least-in-flight" => LeastInFlight,
///     }
/// }
/// use settings::{Input, Scalar};
///
/// assert_eq!(Balance::parse(Input::String("round-robin")), Ok(Balance::RoundRobin));
/// assert_eq!(Balance::name_of(Balance::LeastInFlight), "least-in-flight");
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[$attribute:meta])+
        $visibility:vis enum $name:ident {
            $( $(#[doc = $doc:literal])+ $variant_name:literal => $variant:ident, )+
        }
    ) => {
        $(#[$attribute])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $( $(#[doc = $doc])+ $variant, )+
        }

        $crate::choice! { @names $visibility $name, $name { $($variant_name => $variant,)+ } }
    };
    (
        $(#[$attribute:meta])+
        $visibility:vis $name:ident for $value:ty {
            $( $variant_name:literal => $variant:ident, )+
        }
    ) => {
        $(#[$attribute])+
        $visibility struct $name;

        $crate::choice! { @names $visibility $name, $value { $($variant_name => $variant,)+ } }
    };
    // Internal: implements `Scalar` and the names of the variants.
    (
        @names $visibility:vis $name:ident, $value:ty {
            $( $variant_name:literal => $variant:ident, )+
        }
    ) => {
        impl $name {
            /// The names, in the order of the declaration.
            $visibility const NAMES: &'static [&'static str] = &[$($variant_name),+];

            /// Returns the name of a value. A variant without a name does not compile.
            #[allow(dead_code)] // Not every choice is printed.
            $visibility fn name_of(value: $value) -> &'static str {
                match value {
                    $(<$value>::$variant => $variant_name,)+
                }
            }
        }

        impl $crate::Scalar for $name {
            type Value = $value;

            fn noun() -> String {
                "one of the words".to_owned()
            }

            fn allowed() -> String {
                $crate::value::quote_names(Self::NAMES)
            }

            fn schema() -> $crate::value::Json {
                $crate::value::names_schema(Self::NAMES)
            }

            fn placeholder() -> $value {
                [$(<$value>::$variant),+][0]
            }

            fn parse(input: $crate::Input<'_>) -> Result<$value, String> {
                match input {
                    $($crate::Input::String($variant_name) => Ok(<$value>::$variant),)+
                    $crate::Input::String(text) => {
                        Err($crate::value::unknown_name_error(text, Self::NAMES))
                    }
                    _ => Err("not a text".to_owned()),
                }
            }
        }
    };
}

/// Declares scalars that are written as a string. A declaration has, in this order, the type's
/// name, the Rust type, the parser, the noun, the allowed values, and an example. It may end in
/// `, mask FUNCTION` for [`Scalar::mask`] and `, mask_replaced FUNCTION` for
/// [`Scalar::mask_replaced`].
///
/// ```
/// fn parse_port(text: &str) -> Result<u16, &'static str> {
///     text.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or("not a port")
/// }
///
/// settings::string_scalar! {
///     /// A port after a colon.
///     pub Port: u16 = parse_port, "a port", "a colon and a port", ":80";
/// }
/// use settings::{Input, Scalar};
///
/// assert_eq!(Port::parse(Input::String(":8080")), Ok(8080));
/// assert_eq!(Port::parse(Input::String("x")), Err("not a port".to_owned()));
/// ```
#[macro_export]
macro_rules! string_scalar {
    ($(
        $(#[$attribute:meta])+
        $visibility:vis $name:ident : $value:ty = $parse:expr, $noun:literal, $allowed:expr,
            $example:literal $(, mask $mask:expr)? $(, mask_replaced $mask_replaced:expr)? ;
    )+) => {$(
        $(#[$attribute])+
        $visibility struct $name;

        impl $crate::Scalar for $name {
            type Value = $value;

            fn noun() -> String {
                $noun.to_owned()
            }

            fn allowed() -> String {
                ($allowed).to_string()
            }

            fn schema() -> $crate::value::Json {
                $crate::value::string_schema($example)
            }

            fn placeholder() -> $value {
                let example = <$name as $crate::Scalar>::parse($crate::Input::String($example));
                example.expect("a test reads every example")
            }

            fn parse(input: $crate::Input<'_>) -> Result<$value, String> {
                match input {
                    $crate::Input::String(text) => {
                        ($parse)(text).map_err(|error| error.to_string())
                    }
                    _ => Err(concat!("not ", $noun).to_owned()),
                }
            }

            $(
                fn mask(text: &str) -> Option<String> {
                    ($mask)(text)
                }
            )?

            $(
                fn mask_replaced(value: $value, written: &str) -> $value {
                    ($mask_replaced)(value, written)
                }
            )?
        }
    )+};
}

#[doc(hidden)]
pub fn string_schema(example: &str) -> Json {
    json!({ "type": "string", "examples": [example] })
}

/// Returns the names in quotes, for diagnostics.
#[doc(hidden)]
pub fn quote_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

#[doc(hidden)]
pub fn names_schema(names: &[&str]) -> Json {
    json!({ "enum": names })
}

#[doc(hidden)]
pub fn unknown_name_error(text: &str, names: &[&'static str]) -> String {
    match crate::names::find_nearest_name(text, names) {
        Some(nearest) => format!("there is no such word; did you mean \"{nearest}\"?"),
        None => "there is no such word".to_owned(),
    }
}
