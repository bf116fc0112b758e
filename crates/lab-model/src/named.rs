//! Enums with named variants. A name is written once, for JSON and for labels in metrics, tables
//! and folder names.

/// Declares an enum of named variants with `ALL` and `as_str`. In `Variant = "json" | "label"` the
/// first text is the name in JSON, and the second is what `as_str` returns; without it `as_str`
/// returns the name in JSON.
macro_rules! named {
    (
        $(#[$meta:meta])* pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $json:literal $(| $label:literal)?,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $name { $($(#[$doc])* #[serde(rename = $json)] $variant,)+ }

        impl $name {
            /// All variants in order.
            pub const ALL: [$name; [$($json),+].len()] = [$($name::$variant),+];

            /// Returns the variant's label.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => named!(@label $json $($label)?),)+ }
            }
        }
    };
    (@label $json:literal) => { $json };
    (@label $json:literal $label:literal) => { $label };
}
pub(crate) use named;
