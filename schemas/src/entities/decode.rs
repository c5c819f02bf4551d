//! Decodes JSON lines to entities. A line is accepted as a whole, or rejected with a reason.
//!
//! A line is first deserialized (`raw`), then each value is validated.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::raw::{RawApplication, RawAthlete, RawAuthorization, RawEffort};
use super::{Application, Athlete, Authorization, Effort, Entity, Gender};
use crate::line::{self, Text};
use crate::source::Source;
use crate::time::Zone;

/// The maximum length of a name of an athlete or application, and of an owner.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// The longest duration of an effort: the largest integer that every JSON reader represents
/// exactly, and also a score of type double. Ids need no such bound, because no store has them as
/// doubles.
pub(super) const ELAPSED_TIME_S_MAX: i64 = (1 << 53) - 1;
/// The maximum weight of an athlete.
pub(super) const WEIGHT_KG_MAX: f64 = 1000.0;
/// The maximum capacity of an application: the largest integer that every JSON reader represents
/// exactly.
pub(super) const CAPACITY_MAX: i64 = (1 << 53) - 1;

const ZONE_DEFAULT: &str = "UTC";
const CAPACITY_DEFAULT: i64 = 1;

/// Parses a line of an entity source.
///
/// # Errors
/// The reason for the rejection: field, fault and expectation.
pub fn parse(source: Source, bytes: &[u8]) -> Result<Entity, String> {
    parse_unclipped(source, bytes).map_err(line::clip_reason)
}

/// Looks up a time zone by its IANA name, with the rules of the request parameter `tz`.
pub(super) fn parse_zone(name: &str) -> Result<TimeZone, String> {
    Zone::parse(name)
        .map(Zone::into_inner)
        .map_err(|_| format!("tz: {name:?} is not an IANA time zone such as \"Europe/Berlin\""))
}

/// Returns the local date of an instant as a number, such as 20130506.
pub(super) fn local_day(at_us: i64, zone: &TimeZone) -> Result<i64, String> {
    let out_of_range =
        || format!("started_at: {at_us} µs since 1970 is outside the years 1 to 9999");
    let instant = Timestamp::from_microsecond(at_us).map_err(|_| out_of_range())?;
    let date = zone.to_datetime(instant).date();
    if date.year() < 1 {
        return Err(out_of_range());
    }
    Ok(i64::from(date.year()) * 10_000 + i64::from(date.month()) * 100 + i64::from(date.day()))
}

fn parse_unclipped(source: Source, bytes: &[u8]) -> Result<Entity, String> {
    const BY_ID: &str = r#"write one row a line, such as {"id": …}"#;
    const BY_CLUB: &str = r#"write one row a line, such as {"club_id": …}"#;
    const BY_FOLLOWER: &str = r#"write one row a line, such as {"follower_id": …}"#;
    Ok(match source {
        Source::Plays => {
            return Err("plays are events, not rows; ingest them as the source plays".to_owned());
        }
        Source::Efforts => Entity::Effort(validate_effort(&line::parse_object(bytes, BY_ID)?)?),
        Source::Athletes => Entity::Athlete(validate_athlete(line::parse_object(bytes, BY_ID)?)?),
        Source::Clubs => Entity::Membership(line::parse_object(bytes, BY_CLUB)?),
        Source::Follows => Entity::Follow(line::parse_object(bytes, BY_FOLLOWER)?),
        Source::Authorizations => {
            Entity::Authorization(validate_authorization(&line::parse_object(bytes, BY_ID)?)?)
        }
        Source::Applications => {
            Entity::Application(validate_application(line::parse_object(bytes, BY_ID)?)?)
        }
    })
}

fn validate_effort(raw: &RawEffort<'_>) -> Result<Effort, String> {
    if !(1..=ELAPSED_TIME_S_MAX).contains(&raw.elapsed_time) {
        return Err(format!(
            "elapsed_time: {} is not a number of seconds from 1 to {ELAPSED_TIME_S_MAX}, the largest that a score holds exactly",
            raw.elapsed_time
        ));
    }
    // Every time zone has a local day at each accepted instant: the calendar ends much later.
    let started_at_us = line::parse_instant_us("started_at", &raw.started_at.0)?;
    let tz = match &raw.tz {
        Some(Text(name)) => canonical_name(&parse_zone(name)?),
        None => ZONE_DEFAULT.to_owned(),
    };
    let is_hidden = match raw.visibility.as_ref().map(|text| &*text.0) {
        None | Some("everyone") => false,
        Some("only_me") => true,
        Some(other) => {
            return Err(format!(
                "visibility: {other:?} is neither \"everyone\" nor \"only_me\""
            ));
        }
    };
    Ok(Effort {
        id: raw.id,
        segment_id: raw.segment_id,
        athlete_id: raw.athlete_id,
        activity_id: raw.activity_id,
        elapsed_time_s: raw.elapsed_time,
        started_at_us,
        tz,
        is_hidden,
        is_deleted: raw.deleted.unwrap_or_default(),
        version: raw.version.unwrap_or_default(),
    })
}

/// Returns the zone's name as the database spells it. Lines may use any case, but other readers of
/// the stored rows may be stricter.
fn canonical_name(zone: &TimeZone) -> String {
    zone.iana_name().unwrap_or(ZONE_DEFAULT).to_owned()
}

fn validate_athlete(raw: RawAthlete<'_>) -> Result<Athlete, String> {
    let name = raw.name.map(validate_name).transpose()?;
    let gender = match raw.gender.as_ref().map(|text| &*text.0) {
        None => None,
        Some("F") => Some(Gender::F),
        Some("M") => Some(Gender::M),
        Some("X") => Some(Gender::X),
        Some(other) => {
            return Err(format!(
                "gender: {other:?} is none of \"F\", \"M\" and \"X\""
            ));
        }
    };
    if let Some(year) = raw.birth_year
        && !(1..=9999).contains(&year)
    {
        return Err(format!("birth_year: {year} is not a year from 1 to 9999"));
    }
    if let Some(weight_kg) = raw.weight_kg
        && !(weight_kg > 0.0 && weight_kg <= WEIGHT_KG_MAX)
    {
        return Err(format!(
            "weight_kg: {weight_kg:?} is not more than 0 and at most {WEIGHT_KG_MAX}"
        ));
    }
    let country = raw.country.map(|text| text.0.into_owned());
    if let Some(country) = &country {
        line::check_country(country)?;
    }
    Ok(Athlete {
        id: raw.id,
        name,
        gender,
        birth_year: raw.birth_year,
        weight_kg: raw.weight_kg,
        country,
        is_disqualified: raw.disqualified.unwrap_or_default(),
        is_deleted: raw.deleted.unwrap_or_default(),
        version: raw.version.unwrap_or_default(),
    })
}

fn validate_authorization(raw: &RawAuthorization<'_>) -> Result<Authorization, String> {
    let created_at_us = line::parse_instant_us("created_at", &raw.created_at.0)?;
    let revoked_at_us = raw
        .revoked_at
        .as_ref()
        // Any time counts as revoked. Some writers use a year in the far future.
        .map(|text| line::parse_instant_us_clamped("revoked_at", &text.0))
        .transpose()?;
    Ok(Authorization {
        id: raw.id,
        application_id: raw.application_id,
        athlete_id: raw.athlete_id,
        created_at_us,
        revoked_at_us,
        version: raw.version.unwrap_or_default(),
    })
}

fn validate_application(raw: RawApplication<'_>) -> Result<Application, String> {
    let name = validate_name(raw.name)?;
    let is_owner = match &raw.owner {
        Value::String(_) => true,
        Value::Number(number) => number.is_i64() || number.is_u64(),
        _ => false,
    };
    if !is_owner {
        return Err(format!(
            "owner must be a string or a 64-bit integer; got {}",
            raw.owner
        ));
    }
    if let Some(owner) = raw.owner.as_str() {
        check_name("owner", owner)?;
    }
    let athlete_capacity = raw.athlete_capacity.unwrap_or(CAPACITY_DEFAULT);
    if !(0..=CAPACITY_MAX).contains(&athlete_capacity) {
        return Err(format!(
            "athlete_capacity: {athlete_capacity} is not from 0 to {CAPACITY_MAX}"
        ));
    }
    Ok(Application {
        id: raw.id,
        name,
        owner: raw.owner,
        athlete_capacity,
        version: raw.version.unwrap_or_default(),
    })
}

fn validate_name(text: Text<'_>) -> Result<String, String> {
    check_name("name", &text.0)?;
    Ok(text.0.into_owned())
}

fn check_name(field: &str, text: &str) -> Result<(), String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "{field}: has {} bytes; at most {NAME_BYTES_MAX} are accepted",
            text.len()
        ));
    }
    line::check_no_nul(field, text)
}

#[cfg(test)]
#[path = "day_tests.rs"]
mod day_tests;
#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
