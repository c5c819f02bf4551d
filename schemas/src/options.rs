//! A macro for structs of settings with defaults.

/// Defines a struct of settings. Each field is followed by its default. Unknown settings are
/// refused.
#[macro_export]
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $type:ident {
            $($(#[$field_attribute:meta])* pub $field:ident: $field_type:ty = $default:expr,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $type {
            $($(#[$field_attribute])* pub $field: $field_type,)+
        }

        impl Default for $type {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
}
