//! Live state in Redis, one or a cluster (Redis 7 or newer, and Valkey).
//!
//! All keys of a slot begin with the same hash tag, `{NAMESPACE:SOURCE:PARTITION}` (without a namespace
//! `{SOURCE:PARTITION}`), so they live on one node and one script changes them in one step:
//!
//! | key | type | holds |
//! |---|---|---|
//! | `{…}:slot` | string | the *record*: the slot, and which places there are |
//! | `{…}:PLACE` | sorted set | the groups of a place, all with the same score, so in the order of their bytes |
//! | `{…}:PLACE:GROUP` | hash | of a tally: row and count; of a board: member and state |
//! | `{…}:SHARED:GROUP` | string | of several tallies: rows and what was added to them, as it came (see `packed.rs`) |
//! | `{…}:CHUNKS:GROUP` | hash | of a tally: chunks of such rows, by a number (see `live_chunks.rs`) |
//! | `{…}:boards` | hash | the *register*: the cached boards ([`crate::board_cache`]), filled or being filled, with their ids |
//! | `{…}:boards:used` | sorted set | when each was read last |
//! | `{…}:b:ID:z`, `:h`, `:m` | sorted set, hashes | the rows of a cached board in their order and by member, and sums |
//!
//! A *place* holds the parts of one generation, epoch and view; its name is `dGENERATION.NUMBER` for
//! deltas and `sGENERATION.NUMBER` for states. Which places can be read and which are garbage stands in
//! the record, so it changes in the same step as the slot. A *shared* place, `pGENERATION.NUMBER`, holds those of all
//! tallies whose groups are of the same columns: most groups get a row or two of each with a micro-batch, and one string
//! for all of them is one call. Where a group's string is full, what it holds becomes chunks of each tally, in a place
//! `cGENERATION.NUMBER`, and a row is what all have of it. Counts that are too large to be packed are in hashes by row. Scripts find the keys of parts by themselves
//! from the record's: a reader can't know them before the record is read, and both must be of one moment.
//!
//! # Rights
//!
//! The least that a user needs, here for the namespace `blue` and on one line (without a namespace,
//! `~{*}*`):
//!
//! ```text
//! ACL SETUSER backstitch on >PASSWORD resetkeys resetchannels ~{blue:* -@all +evalsha +eval +get +mget +set +append +strlen +getrange +unlink
//!     +hlen +hget +hmget +hgetall +hset +hincrby +hscan +hdel +zadd +zcard +zrange +zrank +zrangebylex
//!     +zrem +rpush +llen +lindex +lrange +ltrim +incrby +memory|usage
//!     +info +select +asking +cluster|slots
//! ```
//!
//! `+select` only for another database than 0; `+asking` and `+cluster|slots` only on a cluster.
//!
//! # The server
//!
//! `maxmemory-policy` must be `noeviction`: another one takes away counts without a word. With
//! `appendonly yes` a restart loses nothing, or the last second (`appendfsync everysec`); without it, what
//! is lost is replayed from the log.

mod boards;
mod fault;
mod info;
mod link;
mod live;
mod live_chunks;
mod live_read;
mod live_scan;
mod live_told;
mod live_write;
mod nodes;
mod packed;
mod record;
mod script;

pub use live::RedisLive;

pub use crate::options::RedisOptions;
