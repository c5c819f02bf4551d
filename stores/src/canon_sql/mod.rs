//! The canonical store on PostgreSQL, or on MySQL or MariaDB.
//!
//! What both do alike is here, written once: what becomes of rows, in which order locks are taken,
//! what is told, deadlines and retries. What they say differently (how many rows are written by one
//! statement, how groups are found, how a dump is streamed, migrations) is in `crate::postgres`
//! and `crate::mysql`.
//!
//! **Who tells of a change.** Triggers of the schema put every change that an app makes by its own
//! SQL into the outbox, so that it is told of as ours are. A change that goes through this store is
//! told of by the store itself: each group once a call, however many rows of it changed. Counters of
//! connected athletes are kept by triggers always.
//!
//! **Views instead of tables.** An app that has these rows already may put views of the same names
//! and columns in the place of our tables, which are then read; writing is the app's, and
//! `apply` refuses rows of that kind. See the page on the canonical store.

pub(crate) mod admin;
pub(crate) mod aged;
#[cfg(feature = "sql")]
mod apply;
pub(crate) mod asked;
#[cfg(feature = "sql")]
pub(crate) mod away;
#[cfg(feature = "sql")]
mod check;
#[cfg(feature = "sql")]
pub(crate) mod columns;
#[cfg(feature = "sql")]
pub(crate) mod connect;
#[cfg(feature = "sql")]
pub(crate) mod connection;
#[cfg(feature = "sql")]
mod counters;
pub(crate) mod decide;
#[cfg(feature = "sql")]
pub(crate) mod decode;
#[cfg(feature = "sql")]
pub(crate) mod dump;
pub(crate) mod erase;
#[cfg(feature = "sql")]
mod fault;
pub(crate) mod keys;
pub(crate) mod names;
pub(crate) mod notices;
#[cfg(feature = "sql")]
pub(crate) mod outbox;
pub(crate) mod recounts;
#[cfg(feature = "sql")]
pub(crate) mod server;
#[cfg(feature = "sql")]
mod server_query;
pub(crate) mod session;
#[cfg(feature = "sql")]
pub(crate) mod sheet;
#[cfg(feature = "sql")]
mod store;
#[cfg(feature = "sql")]
mod versions;

#[cfg(feature = "sql")]
pub(crate) use fault::Meaning;
#[cfg(feature = "sql")]
pub(crate) use server::Purpose;
#[cfg(feature = "sql")]
pub use store::SqlCanon;

pub use crate::options::{SqlOptions, SqlServer, SqlTls};
