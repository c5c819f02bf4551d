//! Live state in Redis 7 or newer, Redis Cluster, or Valkey.
//!
//! All keys of a partition state begin with the same hash tag, `{NAMESPACE:SOURCE:PARTITION}`
//! (without a namespace `{SOURCE:PARTITION}`). So they are on one node, and one script changes them
//! in one step:
//!
//! | key | type | contents |
//! |---|---|---|
//! | `{…}:slot` | string | the *record*: the partition state and the list of its containers |
//! | `{…}:CONTAINER` | sorted set | the groups of a container, all with the same score, so in byte order |
//! | `{…}:CONTAINER:GROUP` | hash | aggregate: row and count; board: member and entry |
//! | `{…}:SHARED:GROUP` | string | packed rows of several aggregate views, see `packed.rs` |
//! | `{…}:CHUNKS:GROUP` | hash | chunks of packed rows by number, see `live_chunks.rs` |
//! | `{…}:boards` | hash | the *register*: the cached boards ([`crate::board_cache`]) with their ids |
//! | `{…}:boards:used` | sorted set | when each cached board was last read |
//! | `{…}:b:ID:z`, `:h`, `:m` | sorted set, hashes | rows of a cached board by rank and by member, and totals |
//!
//! A *container* holds the deltas or entries of one generation, epoch and view. Its name is
//! `dGENERATION.NUMBER` for deltas, `s…` for entries, `c…` for chunks and `p…` for shared strings.
//! The record lists readable and garbage containers, so the list changes in the same step as the
//! partition state.
//!
//! A shared container has one string per group for all aggregate views with the same group columns.
//! A full string becomes chunks of each view. Increments that are too large to be packed are in
//! hashes by row. Scripts derive the keys from the record: a reader cannot know them before it has
//! read the record, and both must be from the same moment.
//!
//! `docs/internals/live-state.md` lists the rights that a user needs and the requirements on the
//! server.

mod board_rows;
mod boards;
mod check;
mod connection;
mod errors;
mod info;
mod live;
mod live_chunks;
mod live_groups;
mod live_outbox;
mod live_read;
mod live_scan;
mod live_write;
mod nodes;
mod packed;
mod pairs;
mod record;
mod record_change;
mod script;

pub use live::RedisLive;

pub use crate::options::RedisOptions;
