//! The entity store: one implementation for SQLite, PostgreSQL, MySQL and MariaDB.
//!
//! Shared code decides what becomes of rows and fills the outbox. The modules `postgres`, `mysql` and `sqlite` hold what a dialect
//! does in its own way: tables, writing many rows, reading groups, dumps. On a server, locks are taken in one order, and calls
//! have deadlines and are repeated; in a file, writers exclude each other.
//!
//! **Changes by applications.** On a server, triggers put every change that an application makes by its own SQL into the outbox.
//! A change through this store enters it once for each touched group. Counters of connected athletes are always kept by triggers.
//!
//! **Views instead of tables.** On a server, an application may replace our tables by views of its own, with the same names and
//! columns. They are only read: `apply` refuses rows of that kind. See `docs/canonical.md`.

mod admin;
mod aged;
mod api_key_store;
mod application_store;
mod apply;
mod away;
#[cfg(feature = "sql")]
mod check;
mod connect;
mod connection;
#[cfg(feature = "sql")]
mod counters;
mod database;
mod decide;
mod decode;
#[cfg(feature = "sql")]
mod dump;
mod entity_store;
mod erase;
mod erasure_filter;
#[cfg(feature = "sql")]
mod fault;
mod keys;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
mod notices;
mod outbox;
#[cfg(feature = "postgres")]
mod postgres;
mod recounts;
mod rows;
#[cfg(feature = "sql")]
mod server;
mod sqlite;
mod task_stream;
mod user_query;
mod versions;
#[cfg(feature = "sql")]
mod view_columns;

#[cfg(feature = "sql")]
use database::Purpose;
#[cfg(feature = "sql")]
use fault::Meaning;

/// A migration: the name of its file, and the statements.
#[cfg(feature = "sql")]
type Migration = (&'static str, &'static str);

/// The migrations of a dialect, by the names of files in its folder.
#[cfg(feature = "sql")]
macro_rules! migrations {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("migrations/", $name, ".sql")))),+]
    };
}

#[cfg(feature = "sql")]
use migrations;

pub use api_key_store::ApiKeyStore;
pub use entity_store::EntityStore;

pub use crate::options::{SqlOptions, SqlServer, SqlTls};
