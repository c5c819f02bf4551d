//! A row of the outbox, as every dialect reads it.

/// A row of the outbox: number, source, key and member.
pub(crate) type OutboxRow = (i64, String, i64, i64);
