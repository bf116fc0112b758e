//! Declared tables: what a declaration knows, and how a tree of values is read along it.

use std::fmt;
use std::ops::Deref;

use serde_json::Value as Json;

use crate::expand::{World, expand};
use crate::report::{At, Report};
use crate::syntax::{Item, Member, Span, Tree};
use crate::value::ValueType;

/// A table of a file, declared with [`table!`](crate::table!).
pub trait Table: Clone + fmt::Debug + PartialEq {
    /// Its keys and what they are for.
    fn doc() -> TableDoc;
    /// The table where nothing of it is written; `path` is its full name.
    fn defaults(path: &str) -> Self;
    /// Reads its keys. Use [`Reader::table`], which also finds unknown keys.
    fn read(reader: &mut Reader<'_, '_>, members: &[Member], at: At) -> Self;
}

/// The value of a key, and where it stands. Dereferences to the value. Two keys are equal if their
/// values are, wherever they come from. `Debug` and `Display` print the value.
#[derive(Clone, Default)]
pub struct Key<T> {
    value: T,
    /// Its full name and place, for [`Report::error`].
    pub at: At,
    /// Where the value comes from.
    pub origin: Origin,
    /// For a list, where each element stands.
    pub elements: Vec<Span>,
}

/// Where the value of a key comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The key is not set.
    #[default]
    Default,
    /// The key is set.
    Set,
    /// The key is set to something that cannot be read, or missing though required; this is
    /// reported, and the value is a placeholder.
    Unreadable,
}

impl<T: PartialEq> PartialEq for Key<T> {
    fn eq(&self, other: &Key<T>) -> bool {
        self.value == other.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Key<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T: fmt::Display> fmt::Display for Key<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(formatter)
    }
}

impl<T> Deref for Key<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Key<T> {
    /// Returns true if the file sets this key, readable or not.
    pub fn is_set(&self) -> bool {
        self.origin != Origin::Default
    }

    /// The place of one element of a list.
    pub fn element(&self, at: usize) -> At {
        self.at.part(self.elements.get(at).cloned())
    }

    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }
}

/// A declared table, for reference pages and schemas.
#[derive(Clone, Debug)]
pub struct TableDoc {
    /// How the table stands in a file, such as `[server]`; empty for the file's root.
    pub heading: String,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys, in the order of the declaration.
    pub keys: Vec<KeyDoc>,
    /// How a key's name becomes its heading, for nested tables.
    form: fn(&str) -> String,
}

/// A declared key.
#[derive(Clone, Debug)]
pub struct KeyDoc {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// What it may be set to, in words.
    pub allowed: String,
    /// What holds when it is not set.
    pub default: DefaultDoc,
    /// Its JSON Schema.
    pub schema: Json,
    /// The tables that it holds.
    pub table: Option<TableDoc>,
}

/// What holds when a key is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultDoc {
    /// This value, as in a file but without quotes.
    Is(&'static str),
    /// An empty list or table.
    Empty,
    /// Something that follows from elsewhere, in words.
    Follows(&'static str),
    /// It must be set.
    Required,
}

impl TableDoc {
    /// A table with these keys.
    pub fn new(doc: &'static str, keys: Vec<KeyDoc>) -> TableDoc {
        TableDoc { heading: String::new(), doc: doc.trim(), keys, form: str::to_owned }
    }

    /// The names of its keys.
    pub fn key_names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    pub(crate) fn in_form(self, form: fn(&str) -> String) -> TableDoc {
        TableDoc { form, ..self }
    }

    fn find(&self, name: &str) -> Option<&KeyDoc> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The heading of the first nested table that has a key of this name.
    fn owner_of(&self, name: &str) -> Option<&str> {
        self.keys.iter().filter_map(|key| key.table.as_ref()).find_map(|table| {
            let own = table.find(name).map(|_| &*table.heading);
            own.or_else(|| table.owner_of(name))
        })
    }
}

impl KeyDoc {
    /// A key of this value type.
    pub fn new<V: ValueType>(name: &'static str, doc: &'static str, default: DefaultDoc) -> KeyDoc {
        let name = name.trim_start_matches("r#");
        let table = V::table().map(|table| TableDoc { heading: (table.form)(name), ..table });
        let (doc, allowed) = (doc.trim(), V::allowed());
        KeyDoc { name, doc, allowed, default, schema: V::schema(), table }
    }
}

/// Reads a tree of values along declarations.
pub struct Reader<'r, 'a> {
    pub(crate) report: &'r mut Report<'a>,
    world: &'r World<'r>,
    root: &'r TableDoc,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(crate) fn new(
        report: &'r mut Report<'a>,
        world: &'r World<'r>,
        root: &'r TableDoc,
    ) -> Reader<'r, 'a> {
        Reader { report, world, root }
    }

    /// Reads a table: its keys, then what it must not have and what it lacks.
    pub fn table<T: Table>(&mut self, members: &[Member], at: At) -> T {
        let doc = T::doc();
        let table = T::read(self, members, at.clone());
        for member in members {
            if doc.find(&member.key).is_none() {
                self.unknown_key(&doc, &at, member);
            }
        }
        table
    }

    /// Reads one key of a table; `default` is what holds when it is not set. Generated code calls
    /// it for each declared key.
    pub fn key<V: ValueType>(
        &mut self,
        members: &[Member],
        table: &At,
        name: &str,
        default: DefaultDoc,
    ) -> Key<V::Value> {
        let name = name.trim_start_matches("r#");
        let Some(member) = members.iter().find(|member| member.key == name) else {
            let mut key = absent::<V>(&table.path, name, default);
            if default == DefaultDoc::Required {
                key.origin = Origin::Unreadable;
                let at = At { path: key.at.path.clone(), span: table.span.clone() };
                self.report.missing(&at, "must be set", V::allowed());
            }
            return key;
        };
        let at = At { path: joined(&table.path, name), span: Some(member.item.span.clone()) };
        let elements = match &member.item.tree {
            Tree::List(list) => list.iter().map(|item| item.span.clone()).collect(),
            _ => Vec::new(),
        };
        let (value, origin) = match V::read(&member.item, &at, self) {
            Some(value) => (value, Origin::Set),
            None => (V::placeholder(), Origin::Unreadable),
        };
        Key { value, at, origin, elements }
    }

    /// Reports a value that is of another type than the key; returns `None`.
    pub fn wrong_type<V: ValueType>(&mut self, item: &Item, at: &At) -> Option<V::Value> {
        let at = at.part(Some(item.span.clone()));
        self.report.error(&at, format!("not {}", V::noun()), V::allowed());
        None
    }

    /// The text with its variables replaced.
    pub(crate) fn expand(&self, text: &str) -> Result<String, String> {
        expand(text, self.world)
    }

    /// The value of a formula; `None` where the file allows no formulas.
    pub(crate) fn evaluate(&self, text: &str) -> Option<Result<f64, String>> {
        self.world.evaluate.map(|evaluate| evaluate(text))
    }

    /// Registers that a file is read, so that a change of it can be noticed.
    pub(crate) fn reads_file(&mut self, name: &str) {
        self.world.reads(name);
    }

    fn unknown_key(&mut self, table: &TableDoc, at: &At, member: &Member) {
        let name = member.key.as_str();
        let names = table.key_names();
        let message = match (nearest(name, &names), self.root.owner_of(name)) {
            (Some(near), _) => format!("there is no such key; did you mean {near}?"),
            (None, Some(heading)) => format!("this key belongs under {heading}"),
            (None, None) => "there is no such key".to_owned(),
        };
        let at = At { path: joined(&at.path, name), span: Some(member.span.clone()) };
        self.report.missing(&at, message, names.join(", "));
    }
}

/// A key that is not set. Generated code calls it for each declared key.
pub fn absent<V: ValueType>(path: &str, name: &str, default: DefaultDoc) -> Key<V::Value> {
    let path = joined(path, name.trim_start_matches("r#"));
    let value = match default {
        DefaultDoc::Is(text) => V::of_default(text).expect("a test reads every declared default"),
        DefaultDoc::Empty => V::empty(&path),
        DefaultDoc::Follows(_) | DefaultDoc::Required => V::placeholder(),
    };
    let at = At { path, span: None };
    Key { value, at, origin: Origin::Default, elements: Vec::new() }
}

impl<T> Key<T> {
    /// The key whose default follows from elsewhere: `None` if the file does not set it.
    pub fn optional(self) -> Key<Option<T>> {
        let Key { value, at, origin, elements } = self;
        Key { value: (origin == Origin::Set).then_some(value), at, origin, elements }
    }
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The name that was probably meant: the nearest one, if it is near enough for its length.
pub(crate) fn nearest<'n>(written: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |name: &str| strsim::osa_distance(&written.to_lowercase(), name);
    let near = names.iter().map(|name| (distance(name), *name)).min()?;
    let allowed = (near.1.len().max(written.len()) / 3).max(1);
    (near.0 <= allowed).then_some(near.1)
}

/// Declares a table of a configuration file.
///
/// Each key has a value type and a default: a text as it would stand in a file; `empty` for a list
/// or table; `follows "words"` for one that follows from elsewhere, which makes the field an
/// `Option`; or `required`. The documentation comments become the reference page and the schema.
///
/// ```
/// use settings::value::{Count, Duration, Listed, Once, Text};
///
/// settings::table! {
///     /// Where the program listens.
///     pub struct Server {
///         /// Address and port.
///         listen: Text = "127.0.0.1:80";
///         /// Threads that serve.
///         threads: Count<1, 64> = follows "the number of cores";
///         /// How long a stop waits.
///         drain: Duration<0, 60_000> = "10s";
///     }
/// }
/// settings::table! {
///     /// The whole file.
///     pub struct Program {
///         /// Where the program listens.
///         server: Once<Server> = empty;
///     }
/// }
///
/// let environment = |_: &str| None;
/// let world = settings::World::new(std::path::Path::new("."), &environment);
/// let (program, report) = settings::read::<Program>("[server]\nthreads = 2\n", "x.toml", &world);
/// let program = program.unwrap();
/// assert!(!report.has_errors());
/// assert_eq!((*program.server.threads, &**program.server.listen), (Some(2), "127.0.0.1:80"));
/// ```
#[macro_export]
macro_rules! table {
    (
        $(#[doc = $doc:literal])+
        $visibility:vis struct $name:ident {
            $(
                $(#[doc = $key_doc:literal])+
                $key:ident : $value:ty = $default:tt $($words:literal)? ;
            )*
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq)]
        $visibility struct $name {
            /// Where the table stands.
            $visibility at: $crate::At,
            $(
                $(#[doc = $key_doc])+
                $visibility $key: $crate::Key<$crate::table!(@field $value, $default)>,
            )*
        }

        impl $crate::Table for $name {
            fn doc() -> $crate::TableDoc {
                $crate::TableDoc::new(concat!($($doc),+), vec![$(
                    $crate::KeyDoc::new::<$value>(
                        stringify!($key),
                        concat!($($key_doc),+),
                        $crate::table!(@default $default $($words)?),
                    ),
                )*])
            }

            fn defaults(path: &str) -> Self {
                Self {
                    at: $crate::At { path: path.to_owned(), span: None },
                    $($key: $crate::table!(@wrap $default, $crate::absent::<$value>(
                        path,
                        stringify!($key),
                        $crate::table!(@default $default $($words)?),
                    )),)*
                }
            }

            fn read(
                reader: &mut $crate::Reader<'_, '_>,
                members: &[$crate::Member],
                at: $crate::At,
            ) -> Self {
                Self {
                    $($key: $crate::table!(@wrap $default, reader.key::<$value>(
                        members,
                        &at,
                        stringify!($key),
                        $crate::table!(@default $default $($words)?),
                    )),)*
                    at,
                }
            }
        }
    };
    (@field $value:ty, follows) => { Option<<$value as $crate::ValueType>::Value> };
    (@field $value:ty, $default:tt) => { <$value as $crate::ValueType>::Value };
    (@default follows $words:literal) => { $crate::DefaultDoc::Follows($words) };
    (@default required) => { $crate::DefaultDoc::Required };
    (@default empty) => { $crate::DefaultDoc::Empty };
    (@default $text:literal) => { $crate::DefaultDoc::Is($text) };
    (@wrap follows, $key:expr) => { $key.optional() };
    (@wrap $default:tt, $key:expr) => { $key };
}
