//! Value types: what a key may be set to, how it is read, and how that is documented.
//!
//! [`Scalar`] is a value written as one text, number or truth value; [`ValueType`] is any value,
//! also a list or a table. Every `Scalar` is a `ValueType`.

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
use crate::report::At;
use crate::syntax::{Item, Tree};
use crate::table::{Reader, TableDoc};

pub use database::{Database, DatabaseAddress, DatabaseUrl};
pub use scalars::{
    Bool, Bytes, Count, Duration, File, Name, Number, Secret, SecretText, Text, Whole, Word,
    duration, shown_bytes, shown_duration,
};
pub use tables::{As, List, Listed, Map, Named, Once, Pair, Pairs};
pub use variables::{Variable, Variables};

/// What a key may be set to.
pub trait ValueType {
    /// What the program gets.
    type Value: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// True if it holds tables with keys of their own.
    const IS_TABLE: bool = false;
    /// An empty value as it would stand in a file.
    const EMPTY: &'static str = "none";

    /// What it is, for a value of another type: "a list of paths".
    fn noun() -> String;
    /// What is allowed, for diagnostics and the reference page.
    fn allowed() -> String;
    /// Its JSON Schema.
    fn schema() -> Json;
    /// Stands for a value that is missing or cannot be read, so that the rest of the file is still
    /// checked.
    fn placeholder() -> Self::Value;
    /// Reads a value. What cannot be read is reported; `None` if nothing of it could be read.
    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value>;
    /// Reads a default as the declaration states it.
    ///
    /// # Errors
    /// If the text is no value of this type: a fault of the declaration, which a test must find.
    fn of_default(text: &str) -> Result<Self::Value, String>;
    /// A default as it would stand in a file.
    fn written(default: &str) -> String {
        format!("\"{default}\"")
    }
    /// The value that `= empty` declares; `path` is the key's full name.
    fn empty(_path: &str) -> Self::Value {
        Self::placeholder()
    }
    /// A text as diagnostics show it; `None` as it is written.
    fn masked(_text: &str) -> Option<String> {
        Some(MASK.to_owned())
    }
    /// The tables that it holds, for the reference page and for "this key belongs under".
    fn table() -> Option<TableDoc> {
        None
    }
    /// Hands the keys of the tables that it holds to the collector.
    fn collect(_value: &Self::Value, _name: &'static str, _keys: &mut Collector) {}
}

/// A scalar as it was written, with variables already replaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input<'a> {
    /// A string. A variable of the environment is text, so types of numbers read it too.
    Text(&'a str),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction.
    Number(f64),
    /// `true` or `false`.
    Bool(bool),
}

/// A value written as one text, number or truth value.
pub trait Scalar {
    /// What the program gets.
    type Value: Clone + Debug + PartialEq + Send + Sync + 'static;
    /// True for numbers: a text may then be a formula, where the file allows formulas.
    const IS_NUMBER: bool = false;
    /// True if it is written without quotes.
    const IS_BARE: bool = Self::IS_NUMBER;

    /// What it is, for a value of another type: "a duration".
    fn noun() -> String;
    /// What is allowed.
    fn allowed() -> String;
    /// Its JSON Schema.
    fn schema() -> Json;
    /// Stands for a value that cannot be read.
    fn placeholder() -> Self::Value;
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with the value, without the value itself: it may be a secret.
    fn parse(input: Input<'_>) -> Result<Self::Value, String>;
    /// A text as diagnostics show it, its quotes included; `None` as it is written. By default only
    /// what may be a URL in the wrong place is hidden.
    fn masked(text: &str) -> Option<String> {
        let may_be_secret = text.contains("://") || text.contains(":-");
        may_be_secret.then(|| format!("\"{MASK}\""))
    }
    /// Adapts a value to the text in the file, where a variable or a file replaced a part of it: that
    /// part may be a secret.
    fn replaced_in(value: Self::Value, _written: &str) -> Self::Value {
        value
    }
    /// Called with the text when it was read well, so that a type can name the files it stands for.
    fn after(_text: &str, _reader: &mut Reader<'_, '_>) {}
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
        let own = S::schema();
        // Any scalar may come from a variable or a file.
        json!({ "anyOf": [own, { "type": "string", "pattern": "\\$\\{" }] })
    }

    fn placeholder() -> S::Value {
        S::placeholder()
    }

    fn of_default(text: &str) -> Result<S::Value, String> {
        S::parse(Input::Text(text))
    }

    fn written(default: &str) -> String {
        if S::IS_BARE { default.to_owned() } else { format!("\"{default}\"") }
    }

    fn masked(text: &str) -> Option<String> {
        S::masked(text)
    }

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<S::Value> {
        let parsed = match &item.tree {
            Tree::Text(written) => reader.expand(written).and_then(|text| {
                let value = match reader.evaluate(&text).filter(|_| S::IS_NUMBER) {
                    Some(number) => of_formula::<S>(number?, &text),
                    None => S::parse(Input::Text(&text)),
                };
                if value.is_ok() {
                    S::after(&text, reader);
                }
                let is_part = text != *written && !is_reference(written);
                value.map(|value| if is_part { S::replaced_in(value, written) } else { value })
            }),
            Tree::Integer(digits) => match digits.parse() {
                Ok(number) => S::parse(Input::Integer(number)),
                Err(_) => Err("out of range".to_owned()),
            },
            Tree::Float(digits) => S::parse(Input::Number(digits.parse().unwrap_or(f64::NAN))),
            Tree::Bool(on) => S::parse(Input::Bool(*on)),
            Tree::Time(_) | Tree::List(_) | Tree::Table(_) | Tree::Null => {
                Err(format!("not {}", S::noun()))
            }
        };
        match parsed {
            Ok(value) => Some(value),
            Err(message) => {
                let allowed = reader.allowed::<S>();
                reader.report().error(&at.part(Some(item.span.clone())), message, allowed);
                None
            }
        }
    }
}

/// Reads the number that a formula gave. The message names the number where the formula hides it.
fn of_formula<S: Scalar>(number: f64, formula: &str) -> Result<S::Value, String> {
    let hidden = formula.parse::<f64>().is_err();
    S::parse(whole_or_not(number)).map_err(|message| match hidden {
        true => format!("{message}; the formula gives {number}"),
        false => message,
    })
}

/// The number that a formula gave: whole numbers fit where only they are allowed. Arithmetic leaves
/// rounding errors, which are not meant.
fn whole_or_not(number: f64) -> Input<'static> {
    /// Up to here every whole number is exact in an `f64`.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    /// Far above the rounding errors of a formula, far below what anybody means.
    const ROUNDING_MAX: f64 = 1e-9;
    let whole = number.round();
    let is_whole = (number - whole).abs() <= ROUNDING_MAX * number.abs();
    if is_whole && number.abs() <= EXACT_MAX {
        Input::Integer(whole as i128)
    } else {
        Input::Number(number)
    }
}

/// Declares an enum whose words are the values that a key may be set to, or the words of an enum that
/// is declared elsewhere: `pub Balances for policy::Balance { "round-robin" => RoundRobin, }`.
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
/// assert_eq!(Balance::parse(Input::Text("round-robin")), Ok(Balance::RoundRobin));
/// assert_eq!(Balance::word(Balance::LeastInFlight), "least-in-flight");
/// ```
#[macro_export]
macro_rules! choice {
    (
        $(#[$attribute:meta])+
        $visibility:vis enum $name:ident {
            $( $(#[doc = $doc:literal])+ $word:literal => $variant:ident, )+
        }
    ) => {
        $(#[$attribute])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $( $(#[doc = $doc])+ $variant, )+
        }

        $crate::choice! { @words $visibility $name, $name { $($word => $variant,)+ } }
    };
    (
        $(#[$attribute:meta])+
        $visibility:vis $name:ident for $value:ty { $( $word:literal => $variant:ident, )+ }
    ) => {
        $(#[$attribute])+
        $visibility struct $name;

        $crate::choice! { @words $visibility $name, $value { $($word => $variant,)+ } }
    };
    (@words $visibility:vis $name:ident, $value:ty { $( $word:literal => $variant:ident, )+ }) => {
        impl $name {
            /// The words, in the order of the declaration.
            $visibility const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word of a value. A variant without a word does not compile.
            #[allow(dead_code)] // Not every choice is printed.
            $visibility fn word(value: $value) -> &'static str {
                match value {
                    $(<$value>::$variant => $word,)+
                }
            }
        }

        impl $crate::Scalar for $name {
            type Value = $value;

            fn noun() -> String {
                "one of the words".to_owned()
            }

            fn allowed() -> String {
                $crate::value::quoted(Self::WORDS)
            }

            fn schema() -> $crate::value::Json {
                $crate::value::words_schema(Self::WORDS)
            }

            fn placeholder() -> $value {
                [$(<$value>::$variant),+][0]
            }

            fn parse(input: $crate::Input<'_>) -> Result<$value, String> {
                match input {
                    $($crate::Input::Text($word) => Ok(<$value>::$variant),)+
                    $crate::Input::Text(text) => Err($crate::value::no_such_word(text, Self::WORDS)),
                    _ => Err("not a text".to_owned()),
                }
            }
        }
    };
}

/// Declares scalars that are written as a text: the type's name, what the program gets, the function
/// that reads it, what it is, what is allowed, and an example. A last function masks its secrets.
///
/// ```
/// fn port(text: &str) -> Result<u16, &'static str> {
///     text.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or("not a port")
/// }
///
/// settings::text! {
///     /// A port behind a colon.
///     pub Port: u16 = port, "a port", "a colon and a port", ":80";
/// }
/// use settings::{Input, Scalar};
///
/// assert_eq!(Port::parse(Input::Text(":8080")), Ok(8080));
/// assert_eq!(Port::parse(Input::Text("x")), Err("not a port".to_owned()));
/// ```
#[macro_export]
macro_rules! text {
    ($(
        $(#[$attribute:meta])+
        $visibility:vis $name:ident : $value:ty = $read:expr, $noun:literal, $allowed:expr,
            $example:literal $(, masked $masked:expr)? $(, replaced $replaced:expr)? ;
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
                $crate::value::text_schema($example)
            }

            fn placeholder() -> $value {
                let example = <$name as $crate::Scalar>::parse($crate::Input::Text($example));
                example.expect("a test reads every example")
            }

            fn parse(input: $crate::Input<'_>) -> Result<$value, String> {
                match input {
                    $crate::Input::Text(text) => ($read)(text).map_err(|why| why.to_string()),
                    _ => Err(concat!("not ", $noun).to_owned()),
                }
            }

            $(
                fn masked(text: &str) -> Option<String> {
                    ($masked)(text)
                }
            )?

            $(
                fn replaced_in(value: $value, written: &str) -> $value {
                    ($replaced)(value, written)
                }
            )?
        }
    )+};
}

#[doc(hidden)]
pub fn text_schema(example: &str) -> Json {
    json!({ "type": "string", "examples": [example] })
}

/// Words as they stand in a file, for diagnostics.
#[doc(hidden)]
pub fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ")
}

#[doc(hidden)]
pub fn words_schema(words: &[&str]) -> Json {
    json!({ "enum": words })
}

#[doc(hidden)]
pub fn no_such_word(text: &str, words: &[&'static str]) -> String {
    match crate::table::nearest(text, words) {
        Some(near) => format!("there is no such word; did you mean \"{near}\"?"),
        None => "there is no such word".to_owned(),
    }
}
