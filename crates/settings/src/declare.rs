//! The declaration of a table: [`table!`](crate::table!).

/// Declares a table of a configuration file.
///
/// Each key has a value type and a default. If a change of a key takes effect only at the next
/// start, its declaration ends in `, at_start`. The documentation comments become the reference
/// page and the schema. A default is one of
///
/// - a value in TOML, without quotes;
/// - `empty` for a list or table;
/// - `required`;
/// - `described "words"` if the default is not a constant, such as the number of cores. The words
///   document the default. The value is an `Option`; `None` means that the file does not set the
///   key;
/// - `described "words" => expression` if the expression computes the default.
///
/// The struct has a field [`Key`](crate::Key) for each key, with the value and its position in the
/// file. `struct Name => pub Values` also declares a struct with only the values. The method
/// `values` returns this struct, for use after the checks. `keep_at_start` of this struct keeps the
/// values that a reload must not change.
///
/// A label distinguishes the tables of a list. `struct Name by KEY` makes the value of a key the
/// label. `struct Name as FUNCTION` sets a function that returns the label.
///
/// ```
/// use settings::value::{Duration, Integer, Listed, NonEmptyString, Once};
///
/// settings::table! {
///     /// Where the program listens.
///     pub struct ServerTable => pub Server {
///         /// Address and port.
///         listen: NonEmptyString = "127.0.0.1:80", at_start;
///         /// Threads that serve.
///         threads: Integer<1, 64> = described "the number of cores";
///         /// How long a stop waits.
///         drain: Duration<0, 60_000> = "10s";
///     }
/// }
/// settings::table! {
///     /// The whole file.
///     pub struct Program {
///         /// Where the program listens.
///         server: Once<ServerTable> = empty;
///     }
/// }
///
/// let environment = |_: &str| None;
/// let context = settings::ReadContext::new(std::path::Path::new("."), &environment);
/// let text = "[server]\nthreads = 2\n";
/// let (program, report) = settings::read::<Program>(text, "x.toml", &context);
/// let server = program.unwrap().server.values();
/// assert!(!report.has_errors());
/// assert_eq!((server.threads, server.listen.as_str()), (Some(2), "127.0.0.1:80"));
/// ```
#[macro_export]
macro_rules! table {
    // With a struct of values: declares the table itself, then the values.
    (
        $(#[doc = $doc:literal])+
        $visibility:vis struct $name:ident $(by $label_key:ident)? $(as $label:path)?
            => $values_visibility:vis $values:ident { $($keys:tt)* }
    ) => {
        $crate::table! {
            $(#[doc = $doc])+
            $visibility struct $name $(by $label_key)? $(as $label)? { $($keys)* }
        }
        $crate::table! {
            @values [$(#[doc = $doc])+] $visibility $name, $values_visibility $values, $($keys)*
        }
    };
    (
        $(#[doc = $doc:literal])+
        $visibility:vis struct $name:ident $(by $label_key:ident)? $(as $label:path)? {
            $(
                $(#[doc = $key_doc:literal])+
                $key:ident : $value:ty = $default:tt $($words:literal)? $(=> $computed:expr)?
                    $(, $at_start:ident)? ;
            )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq)]
        $visibility struct $name {
            /// The name and the position of the table.
            $visibility location: $crate::Location,
            $(
                $(#[doc = $key_doc])+
                $visibility $key: $crate::Key<$crate::table!(@type $value, $default $($computed)?)>,
            )*
        }

        impl $crate::Located for $name {
            fn location(&self) -> &$crate::Location {
                &self.location
            }
        }

        impl $crate::Table for $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($key)),*];

            fn doc() -> $crate::TableDoc {
                $crate::TableDoc::new(concat!($($doc),+), vec![$(
                    $crate::KeyDoc::new::<$value>(
                        stringify!($key),
                        concat!($($key_doc),+),
                        $crate::table!(@default $default $($words)?),
                        $crate::table!(@at_start $($at_start)?),
                    ),
                )*])
            }

            fn defaults(path: &str) -> Self {
                Self {
                    location: $crate::Location { path: path.to_owned(), span: None, table: None },
                    $($key: $crate::table!(@wrap $default $($computed)?, $crate::unset_key::<$value>(
                        path,
                        stringify!($key),
                        $crate::table!(@default $default $($words)?),
                    )),)*
                }
            }

            fn read(
                reader: &mut $crate::Reader<'_, '_>,
                members: &[$crate::Member],
                location: $crate::Location,
            ) -> Self {
                Self {
                    $($key: $crate::table!(@wrap $default $($computed)?, reader.read_key::<$value>(
                        members,
                        &location,
                        stringify!($key),
                        $crate::table!(@default $default $($words)?),
                    )),)*
                    location,
                }
            }

            fn collect(&self, keys: &mut $crate::diff::Collector) {
                $($crate::table!(
                    @collect $default $($computed)?, keys, $value, stringify!($key), &self.$key,
                    $crate::table!(@default $default $($words)?),
                    $crate::table!(@at_start $($at_start)?)
                );)*
            }

            $(
                fn label(&self) -> String {
                    self.$label_key.to_string()
                }
            )?

            $(
                fn label(&self) -> String {
                    $label(self)
                }
            )?
        }
    };
    // The rules that begin with `@` are internal. This one declares the struct of values.
    (
        @values [$($doc:tt)+]
        $visibility:vis $name:ident, $values_visibility:vis $values:ident,
        $(
            $(#[doc = $key_doc:literal])+
            $key:ident : $value:ty = $default:tt $($words:literal)? $(=> $computed:expr)?
                $(, $at_start:ident)? ;
        )*
    ) => {
        $($doc)+
        #[derive(Clone, Debug, PartialEq)]
        $values_visibility struct $values {
            $(
                $(#[doc = $key_doc])+
                $values_visibility $key: $crate::table!(@type $value, $default $($computed)?),
            )*
        }

        #[allow(dead_code, unused_variables, reason = "many tables have no such key")]
        impl $values {
            /// Keeps the values of `running` for the keys that take effect only at a start.
            $values_visibility fn keep_at_start(&mut self, running: &Self) {
                $($crate::table!(@keep self.$key, running.$key $(, $at_start)?);)*
            }
        }

        impl $name {
            /// Returns only the values.
            $visibility fn values(&self) -> $values {
                $values { $($key: (*self.$key).clone(),)* }
            }
        }
    };
    // The Rust type of a key's value.
    (@type $value:ty, described) => { Option<<$value as $crate::ValueType>::Value> };
    (@type $value:ty, $default:tt $($computed:expr)?) => { <$value as $crate::ValueType>::Value };
    // The documentation of a default.
    (@default described $words:literal) => { $crate::DefaultDoc::Described($words) };
    (@default required) => { $crate::DefaultDoc::Required };
    (@default empty) => { $crate::DefaultDoc::Empty };
    (@default $text:literal) => { $crate::DefaultDoc::Is($text) };
    // Converts a key that was read to the declared type, and computes its default.
    (@wrap described, $key:expr) => { $key.optional() };
    (@wrap described $computed:expr, $key:expr) => { $key.or_else(|| $computed) };
    (@wrap $default:tt, $key:expr) => { $key };
    // Passes a key to the collector of `diff`.
    (
        @collect described, $keys:expr, $value:ty, $name:expr, $key:expr, $default:expr, $at_start:expr
    ) => { $keys.add_optional_key::<$value>($name, $key, $default, $at_start) };
    (
        @collect $kind:tt $($computed:expr)?, $keys:expr, $value:ty, $name:expr, $key:expr,
        $default:expr, $at_start:expr
    ) => { $keys.add_key::<$value>($name, $key, $default, $at_start) };
    // Keeps the value of a running program if a change takes effect only at the next start.
    (@keep $value:expr, $running:expr) => {};
    (@keep $value:expr, $running:expr, at_start) => { $value = $running.clone() };
    // True if a change takes effect only at the next start.
    (@at_start) => { false };
    (@at_start at_start) => { true };
}
