//! Enums whose variants have names: one for JSON, and one for labels in metrics, tables and folder
//! names.

/// Declares an enum of named variants, with the constant `ALL` and the method `as_str`.
///
/// A variant is declared as `Variant = "json" | "label"`. The first text is the name in JSON, and
/// `as_str` returns the second text. If there is only one text, it is used for both.
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
    // Expands to the label: the second text, or the first one if there is no second.
    (@label $json:literal) => { $json };
    (@label $json:literal $label:literal) => { $label };
}
pub(crate) use named;
