//! The actors of changes by ingested lines. No user may have such a name.

/// The actor of changes by ingested lines of applications. With a key, it is `ingest, NAME (key
/// ID)`.
pub const INGEST: &str = "ingest";

/// The actor of changes by lines that were sent with a key.
#[must_use]
pub fn ingest_actor(key: &str) -> String {
    format!("{INGEST}, {key}")
}

/// Returns whether a name is reserved for changes by ingested lines.
#[must_use]
pub fn is_reserved_actor(actor: &str) -> bool {
    let rest = actor.trim().strip_prefix(INGEST);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(','))
}
