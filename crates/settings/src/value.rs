//! Value types: what a key may be set to, how it is read, and how that is documented.
//!
//! [`Scalar`] is a value written as one text, number or truth value; [`ValueType`] is any value,
//! also a list or a table. Every `Scalar` is a `ValueType`.

mod scalars;
mod tables;

use std::fmt::Debug;

pub use serde_json::Value as Json;
use serde_json::json;

use crate::report::{At, Shown};
use crate::syntax::{Item, Tree};
use crate::table::{Reader, TableDoc};

pub use scalars::{Bool, Bytes, Count, Duration, File, Name, Number, Secret, Text, Word, duration};
pub use tables::{List, Listed, Map, Named, Once};

/// What a key may be set to.
pub trait ValueType {
    /// What the program gets.
    type Value: Clone + Debug + PartialEq;

    /// What it is, for a value of another type: "a list of paths".
    fn noun() -> String;
    /// What is allowed, for diagnostics and the reference page.
    fn allowed() -> String;
    /// Its JSON Schema.
    fn schema() -> Json;
    /// Stands for a value that cannot be read, so that the rest of the file is still checked.
    fn placeholder() -> Self::Value;
    /// Reads a value; returns `None` if it cannot be read, which is reported.
    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<Self::Value>;
    /// Reads a default as the declaration states it.
    ///
    /// # Errors
    /// If the text is no value of this type: a fault of the declaration, which a test must find.
    fn of_default(text: &str) -> Result<Self::Value, String>;
    /// The value that `= empty` declares; `path` is the key's full name.
    fn empty(_path: &str) -> Self::Value {
        Self::placeholder()
    }
    /// The tables that it holds, for the reference page and for "this key belongs under".
    fn table() -> Option<TableDoc> {
        None
    }
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
    type Value: Clone + Debug + PartialEq;
    /// True for numbers: a text may then be a formula, where the file allows formulas.
    const IS_NUMBER: bool = false;

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
    /// The value as diagnostics may show it; `None` as it is written.
    fn masked(_text: &str) -> Option<String> {
        None
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

    fn read(item: &Item, at: &At, reader: &mut Reader<'_, '_>) -> Option<S::Value> {
        let shown = match &item.tree {
            Tree::Text(text) => S::masked(text).map(|masked| format!("\"{masked}\"")),
            _ => S::masked("").map(|_| crate::MASK.to_owned()),
        };
        reader.report.show(&item.span, shown.map_or(Shown::AsWritten, Shown::Instead));
        let parsed = match &item.tree {
            Tree::Text(text) => reader.expand(text).and_then(|text| {
                let value = match reader.evaluate(&text).filter(|_| S::IS_NUMBER) {
                    Some(number) => S::parse(whole_or_not(number?)),
                    None => S::parse(Input::Text(&text)),
                };
                if value.is_ok() {
                    S::after(&text, reader);
                }
                value
            }),
            Tree::Integer(digits) => match digits.parse() {
                Ok(number) => S::parse(Input::Integer(number)),
                Err(_) => Err("out of range".to_owned()),
            },
            Tree::Float(number) => S::parse(Input::Number(*number)),
            Tree::Bool(on) => S::parse(Input::Bool(*on)),
            Tree::Time(_) | Tree::List(_) | Tree::Table(_) => Err(format!("not {}", S::noun())),
        };
        match parsed {
            Ok(value) => Some(value),
            Err(message) => {
                reader.report.error(&at.part(Some(item.span.clone())), message, S::allowed());
                None
            }
        }
    }
}

/// The number that a formula gave: whole numbers fit where only they are allowed.
fn whole_or_not(number: f64) -> Input<'static> {
    /// Up to here every whole number is exact in an `f64`.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT_MAX {
        Input::Integer(number as i128)
    } else {
        Input::Number(number)
    }
}

/// Declares an enum whose words are the values that a key may be set to.
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
/// assert_eq!(Balance::LeastInFlight.as_str(), "least-in-flight");
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

        impl $name {
            /// The words, in the order of the declaration.
            $visibility const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in a file.
            $visibility fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::Scalar for $name {
            type Value = $name;

            fn noun() -> String {
                "one of the words".to_owned()
            }

            fn allowed() -> String {
                $crate::value::quoted(Self::WORDS)
            }

            fn schema() -> $crate::value::Json {
                $crate::value::words_schema(Self::WORDS)
            }

            fn placeholder() -> $name {
                [$($name::$variant),+][0]
            }

            fn parse(input: $crate::Input<'_>) -> Result<$name, String> {
                match input {
                    $($crate::Input::Text($word) => Ok($name::$variant),)+
                    $crate::Input::Text(text) => Err($crate::value::no_such_word(text, Self::WORDS)),
                    _ => Err("not a text".to_owned()),
                }
            }
        }
    };
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
