//! Plays before validation: names, types and required fields.
//!
//! Unknown fields are ignored. `null` for an optional field equals its absence.

use serde::{Deserialize, Deserializer};

use crate::line::Text;

#[derive(Deserialize)]
pub(super) struct RawPlay<'a> {
    #[serde(borrow)]
    pub(super) event_id: Text<'a>,
    pub(super) track_id: i64,
    pub(super) owner_id: i64,
    #[serde(default)]
    pub(super) listener_id: Option<i64>,
    #[serde(borrow, default)]
    pub(super) country: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) referrer: Option<Text<'a>>,
    #[serde(default)]
    pub(super) app_id: Option<i64>,
    #[serde(borrow)]
    pub(super) kind: Text<'a>,
    #[serde(borrow, deserialize_with = "deserialize_time")]
    pub(super) at: RawTime<'a>,
    #[serde(default)]
    pub(super) amount: Option<i64>,
}

/// The time of a play.
pub(super) enum RawTime<'a> {
    /// An RFC 3339 instant, the only form in JSON lines.
    Text(Text<'a>),
    /// Microseconds since the Unix epoch.
    Micros(i64),
}

fn deserialize_time<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<RawTime<'a>, D::Error> {
    Text::deserialize(deserializer).map(RawTime::Text)
}
