//! The amounts of generated data, which the traffic and the recount share.

/// Upper limit of events, because the recount holds them in memory.
pub const EVENTS_MAX: u64 = 3_000_000;
/// The number of owners. Ids of all kinds start at 1.
pub const OWNERS: i64 = 150;
/// The number of tracks.
pub const TRACKS: i64 = 1_500;
/// The number of segments.
pub const SEGMENTS: i64 = 12;
/// The number of athletes.
pub const ATHLETES: i64 = 300;
/// The number of clubs.
pub const CLUBS: i64 = 6;
/// The number of applications.
pub const APPLICATIONS: i64 = 12;
/// The number of memberships in clubs at the start.
pub const MEMBERSHIPS: i64 = 400;
/// The number of follows at the start.
pub const FOLLOWS: i64 = 600;
