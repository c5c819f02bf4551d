//! A migration of a server's schema: its file name and its statements.

/// A migration: its file name and its statements.
pub(crate) type Migration = (&'static str, &'static str);

/// Includes the migrations of a dialect by their file names.
macro_rules! migrations {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("migrations/", $name, ".sql")))),+]
    };
}

pub(crate) use migrations;
