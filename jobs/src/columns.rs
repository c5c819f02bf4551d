//! The names of the row columns that every aggregate view has.

/// The bucket column of a row.
pub const BUCKET: &str = "bucket";
/// The count column of a row.
pub const COUNT: &str = "count";
