//! The entity store: one implementation for SQLite, PostgreSQL, MySQL and MariaDB.
//!
//! Shared code compares versions, applies rows and fills the outbox. The modules `postgres`,
//! `mysql` and `sqlite` contain the differences of the dialects: tables, bulk writes, reading
//! groups, dumps. On a server, locks are acquired in one order, and calls have deadlines and are
//! retried; in a file, writers exclude each other.
//!
//! **Changes by apps.** On a server, triggers put every change by an app's own SQL into the outbox.
//! A change through this store enters the outbox once for each touched group. Triggers always
//! maintain the counters of connected athletes.
//!
//! **Views instead of tables.** On a server, an app may replace the tables by views of its own,
//! with the same names and columns. They are only read: `apply` rejects rows of such a kind. See
//! `docs/canonical.md`.

mod admin;
mod api_key_store;
mod application_store;
mod apply;
#[cfg(feature = "sql")]
mod check;
#[cfg(feature = "sql")]
mod column_kind;
mod connect;
mod connection;
#[cfg(feature = "sql")]
mod counters;
mod database;
mod decide;
mod decode;
mod deleted_athletes;
#[cfg(feature = "sql")]
mod dump;
#[cfg(feature = "sql")]
mod dump_parts;
mod entity_store;
mod erase;
mod erasure_filter;
#[cfg(feature = "sql")]
mod error_class;
#[cfg(feature = "sql")]
mod errors;
mod expiry;
mod keys;
#[cfg(feature = "sql")]
mod migration;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
mod notices;
mod outbox;
mod outbox_row;
mod pooled_connection;
#[cfg(feature = "postgres")]
mod postgres;
mod recounts;
mod rows;
#[cfg(feature = "sql")]
mod server;
mod sqlite;
mod tables;
mod task_stream;
mod user_query;
mod versions;
#[cfg(feature = "sql")]
mod view_columns;
mod write;

pub use api_key_store::ApiKeyStore;
pub use entity_store::EntityStore;

pub use crate::options::{SqlOptions, SqlServer, SqlTls};
