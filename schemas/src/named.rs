//! A macro for enums whose variants have names.

/// Defines an enum with the constant `ALL`, the method `name`, and `Display`. The part `else` adds
/// `FromStr`: it names the error type and its variant for an unknown name.
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $name:literal,)+
        }
        $(else $error:ty, $unknown:path;)?
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$variant_attribute])* $variant,)+
        }

        impl $type {
            /// All variants in display order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name that JSON uses.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        $(impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(name: &str) -> Result<Self, $error> {
                let mut all = Self::ALL.into_iter();
                all.find(|variant| variant.name() == name)
                    .ok_or_else(|| $unknown(name.to_owned()))
            }
        })?
    };
}
