//! Rows as JSON lines encode them: names, types and required fields.
//!
//! Unknown fields are ignored. `null` for an optional field equals its absence.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::line::Text;

#[derive(Deserialize)]
pub(super) struct RawEffort<'a> {
    pub(super) id: i64,
    pub(super) segment_id: i64,
    pub(super) athlete_id: i64,
    pub(super) activity_id: i64,
    pub(super) elapsed_time: i64,
    #[serde(borrow)]
    pub(super) started_at: Text<'a>,
    #[serde(borrow)]
    pub(super) tz: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) visibility: Option<Text<'a>>,
    pub(super) deleted: Option<bool>,
    pub(super) version: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct RawAthlete<'a> {
    pub(super) id: i64,
    #[serde(borrow)]
    pub(super) name: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) gender: Option<Text<'a>>,
    pub(super) birth_year: Option<i64>,
    pub(super) weight_kg: Option<f64>,
    #[serde(borrow)]
    pub(super) country: Option<Text<'a>>,
    pub(super) disqualified: Option<bool>,
    pub(super) deleted: Option<bool>,
    pub(super) version: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct RawAuthorization<'a> {
    pub(super) id: i64,
    pub(super) application_id: i64,
    pub(super) athlete_id: i64,
    #[serde(borrow)]
    pub(super) created_at: Text<'a>,
    #[serde(borrow)]
    pub(super) revoked_at: Option<Text<'a>>,
    pub(super) version: Option<i64>,
}

#[derive(Deserialize)]
pub(super) struct RawApplication<'a> {
    pub(super) id: i64,
    #[serde(borrow)]
    pub(super) name: Text<'a>,
    pub(super) owner: Value,
    pub(super) athlete_capacity: Option<i64>,
    pub(super) version: Option<i64>,
}

/// Deserializes an optional field. `null` is its default.
pub(super) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
