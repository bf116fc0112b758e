//! Closed sets: enums whose values have a name in configuration, metrics or status.

/// Declares an enum. `Value = "name"` declares a value and its name. `ALL` lists the values in
/// order. `index` returns the position of a value in `ALL`, for use as an index in arrays. `as_str`
/// returns the name.
macro_rules! closed_set {
    ($(#[$meta:meta])* $vis:vis enum $Type:ident {
        $($(#[$value_meta:meta])* $Value:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $vis enum $Type { $($(#[$value_meta])* $Value,)+ }

        impl $Type {
            /// All values, in the order of their indices.
            $vis const ALL: [$Type; [$($name),+].len()] = [$($Type::$Value),+];

            /// Returns the index of the value in tables.
            $vis fn index(self) -> usize {
                self as usize
            }

            /// Returns the name of the value.
            $vis fn as_str(self) -> &'static str {
                match self { $($Type::$Value => $name,)+ }
            }
        }
    };
}

pub(crate) use closed_set;
