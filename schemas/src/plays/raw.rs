//! A play as it stands in a line or a record: the names and the types of its fields, and which must be
//! there.
//!
//! Unknown fields are ignored, and `null` for an optional field is the same as its absence.

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
    #[serde(borrow, deserialize_with = "text")]
    pub(super) at: RawAt<'a>,
    #[serde(default)]
    pub(super) amount: Option<i64>,
}

/// When it was.
pub(super) enum RawAt<'a> {
    /// An RFC 3339 instant: all that a line can say.
    Text(Text<'a>),
    /// Microseconds since the Unix epoch.
    Micros(i64),
}

fn text<'de: 'a, 'a, D: Deserializer<'de>>(from: D) -> Result<RawAt<'a>, D::Error> {
    Text::deserialize(from).map(RawAt::Text)
}
