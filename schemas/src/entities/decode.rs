//! JSON lines to entities, strictly: a line is taken whole or not at all, and then with the reason.
//!
//! What a line says is first read as it stands (`raw`), then each value is checked.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::raw::{RawApplication, RawAthlete, RawAuthorization, RawEffort};
use super::{Application, Athlete, Authorization, Effort, Entity, Gender};
use crate::line::{self, Text};
use crate::source::Source;
use crate::time::Zone;

/// The longest name of an athlete or an application, and the longest owner, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// The longest effort, in seconds: the largest whole number that every JSON reader, and a score that
/// is a double, holds exactly. Ids need no such bound: no store keeps them as doubles.
pub(super) const ELAPSED_TIME_S_MAX: i64 = (1 << 53) - 1;
/// The largest weight of an athlete.
pub(super) const WEIGHT_KG_MAX: f64 = 1000.0;
/// The largest capacity of an application: the largest whole number that every JSON reader holds
/// exactly.
pub(super) const CAPACITY_MAX: i64 = (1 << 53) - 1;

const ZONE_DEFAULT: &str = "UTC";
const CAPACITY_DEFAULT: i64 = 1;

/// The row that a line of a source of entities says.
///
/// # Errors
/// The reason for which the line is not taken: field, fault and what is expected.
pub fn parse(source: Source, bytes: &[u8]) -> Result<Entity, String> {
    parsed(source, bytes).map_err(line::clip)
}

/// The time zone of an IANA name, by the rules for the parameter `tz` of requests.
pub(super) fn zone(name: &str) -> Result<TimeZone, String> {
    Zone::parse(name)
        .map(Zone::into_inner)
        .map_err(|_| format!("tz: {name:?} is not an IANA time zone such as \"Europe/Berlin\""))
}

/// The date on the local calendar at that time, in microseconds since the Unix epoch, as a number:
/// 20130506.
pub(super) fn local_day(at_us: i64, zone: &TimeZone) -> Result<i64, String> {
    let beyond = || format!("started_at: {at_us} µs since 1970 is outside the years 1 to 9999");
    let at = Timestamp::from_microsecond(at_us).map_err(|_| beyond())?;
    let date = zone.to_datetime(at).date();
    if date.year() < 1 {
        return Err(beyond());
    }
    Ok(i64::from(date.year()) * 10_000 + i64::from(date.month()) * 100 + i64::from(date.day()))
}

fn parsed(source: Source, bytes: &[u8]) -> Result<Entity, String> {
    const BY_ID: &str = r#"one row a line is expected, as {"id": …}"#;
    const BY_CLUB: &str = r#"one row a line is expected, as {"club_id": …}"#;
    const BY_FOLLOWER: &str = r#"one row a line is expected, as {"follower_id": …}"#;
    Ok(match source {
        Source::Plays => {
            return Err("plays are events, not rows: they belong into the log".to_owned());
        }
        Source::Efforts => Entity::Effort(effort(&line::object(bytes, BY_ID)?)?),
        Source::Athletes => Entity::Athlete(athlete(line::object(bytes, BY_ID)?)?),
        Source::Clubs => Entity::Membership(line::object(bytes, BY_CLUB)?),
        Source::Follows => Entity::Follow(line::object(bytes, BY_FOLLOWER)?),
        Source::Authorizations => {
            Entity::Authorization(authorization(&line::object(bytes, BY_ID)?)?)
        }
        Source::Applications => Entity::Application(application(line::object(bytes, BY_ID)?)?),
    })
}

fn effort(raw: &RawEffort<'_>) -> Result<Effort, String> {
    if !(1..=ELAPSED_TIME_S_MAX).contains(&raw.elapsed_time) {
        return Err(format!(
            "elapsed_time: {} is not a number of seconds from 1 to {ELAPSED_TIME_S_MAX}, the largest that a score holds exactly",
            raw.elapsed_time
        ));
    }
    // Every zone has a local day at every instant that is taken: the calendar ends much later.
    let started_at_us = line::instant_us("started_at", &raw.started_at.0)?;
    let tz = match &raw.tz {
        Some(Text(name)) => as_listed(&zone(name)?),
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

/// The zone's name as the database writes it: names are taken in any case, but other readers of a
/// stored name may be stricter.
fn as_listed(zone: &TimeZone) -> String {
    zone.iana_name().unwrap_or(ZONE_DEFAULT).to_owned()
}

fn athlete(raw: RawAthlete<'_>) -> Result<Athlete, String> {
    let name = raw.name.map(name).transpose()?;
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

fn authorization(raw: &RawAuthorization<'_>) -> Result<Authorization, String> {
    let created_at_us = line::instant_us("created_at", &raw.created_at.0)?;
    let revoked_at_us = raw
        .revoked_at
        .as_ref()
        // Whatever its time: "for ever" is written as a year far away.
        .map(|text| line::instant_us_within("revoked_at", &text.0))
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

fn application(raw: RawApplication<'_>) -> Result<Application, String> {
    let name = name(raw.name)?;
    let is_owner = match &raw.owner {
        Value::String(_) => true,
        Value::Number(number) => number.is_i64() || number.is_u64(),
        _ => false,
    };
    if !is_owner {
        return Err(format!(
            "owner: {} is neither a text nor a whole number of 64 bits",
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

fn name(text: Text<'_>) -> Result<String, String> {
    check_name("name", &text.0)?;
    Ok(text.0.into_owned())
}

fn check_name(field: &str, text: &str) -> Result<(), String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "{field}: has {} bytes; at most {NAME_BYTES_MAX} are taken",
            text.len()
        ));
    }
    line::check_text(field, text)
}

#[cfg(test)]
#[path = "day_tests.rs"]
mod day_tests;
#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
