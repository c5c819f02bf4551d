//! Time zones by IANA name, and local days.
//!
//! All lookups of names and conversions of local times happen here. Only the built-in database is
//! used, not the machine's zone or zone files, so that every machine gives the same answer.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use super::bucket::UnixSeconds;

/// A time zone of the built-in IANA database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// The reason why a zone or a local time is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// No zone has that name.
    #[error(
        "tz={0:?} is not a time zone: write an IANA name such as Europe/Berlin, not an offset such as \
         +02:00, or omit tz for UTC"
    )]
    Unknown(String),
    /// The time is outside the calendar.
    #[error("{0} is outside the years 0001 to 9999: choose a time within them")]
    OutOfRange(String),
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl Zone {
    /// Looks up an IANA name, ignoring case. Former names (links) are accepted.
    ///
    /// # Errors
    ///
    /// [`ZoneError::Unknown`] if the name is not in the database, such as an offset, `local` or an
    /// empty text.
    pub fn parse(name: &str) -> Result<Self, ZoneError> {
        match TimeZoneDatabase::bundled().get(name) {
            Ok(zone) if !zone.is_unknown() => Ok(Self(zone)),
            _ => Err(ZoneError::Unknown(name.to_owned())),
        }
    }

    /// Returns the name as the database spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// Returns the zone of the time library.
    #[must_use]
    pub(crate) fn into_inner(self) -> TimeZone {
        self.0
    }

    /// Returns the local date and time of an instant.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn local_time(&self, seconds: UnixSeconds) -> Result<DateTime, ZoneError> {
        let local = self.0.to_datetime(to_timestamp(seconds)?);
        if local.year() < 1 {
            return Err(ZoneError::OutOfRange(super::format_instant_seconds(
                seconds,
            )));
        }
        Ok(local)
    }

    /// Returns the first instant of a local day.
    ///
    /// This is midnight, the first one if it occurs twice. If clocks skip midnight, it is the
    /// instant of the change. If clocks skip the whole day, it is the first instant of the next
    /// day, so the skipped day is empty.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn day_start(&self, date: Date) -> Result<UnixSeconds, ZoneError> {
        self.first_instant_at(date.to_datetime(jiff::civil::Time::midnight()))
    }

    /// Returns the local day of an instant: the last day that has begun by then.
    ///
    /// This is the date on the local calendar with one exception. If clocks are set back over
    /// midnight, the new day continues although the calendar shows the previous date again.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn local_date(&self, seconds: UnixSeconds) -> Result<Date, ZoneError> {
        let mut date = self.local_time(seconds)?.date();
        while let Ok(tomorrow) = date.tomorrow()
            && self.day_start(tomorrow).is_ok_and(|start| start <= seconds)
        {
            date = tomorrow;
        }
        Ok(date)
    }

    /// Returns the first instant at which the local clock shows that time, or a later one if the
    /// clock skips it. The result is monotonic in the local time.
    pub(super) fn first_instant_at(&self, local: DateTime) -> Result<UnixSeconds, ZoneError> {
        let out_of_range = || ZoneError::OutOfRange(format!("{local} in {}", self.name()));
        if !(1..=9999).contains(&local.year()) {
            return Err(out_of_range());
        }
        let ambiguous = self.0.to_ambiguous_timestamp(local);
        let is_skipped = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().map_err(|_| out_of_range())?;
        if !is_skipped {
            return Ok(earlier.as_second());
        }
        // In a gap, jiff's `earlier` is before the change of the clock by less than the gap.
        self.0
            .following(earlier)
            .map(|change| change.timestamp())
            .find(|change| self.0.to_datetime(*change) >= local)
            .map(Timestamp::as_second)
            .ok_or_else(out_of_range)
    }

    /// Returns the offset of the local clock from UTC at the instant, in seconds.
    pub(super) fn offset_seconds(&self, seconds: UnixSeconds) -> Result<UnixSeconds, ZoneError> {
        Ok(self.0.to_offset(to_timestamp(seconds)?).seconds().into())
    }

    /// Iterates over the clock changes after the instant, in order: time and new offset.
    pub(super) fn changes_after(
        &self,
        seconds: UnixSeconds,
    ) -> Result<impl Iterator<Item = (UnixSeconds, UnixSeconds)>, ZoneError> {
        let changes = self.0.following(to_timestamp(seconds)?);
        Ok(changes.map(|change| {
            (
                change.timestamp().as_second(),
                UnixSeconds::from(change.offset().seconds()),
            )
        }))
    }

    /// Iterates over the clock changes at or before the instant, latest first.
    pub(super) fn changes_until(
        &self,
        seconds: UnixSeconds,
    ) -> Result<impl Iterator<Item = UnixSeconds>, ZoneError> {
        let changes = self.0.preceding(to_timestamp(seconds.saturating_add(1))?);
        Ok(changes.map(|change| change.timestamp().as_second()))
    }
}

fn to_timestamp(seconds: UnixSeconds) -> Result<Timestamp, ZoneError> {
    Timestamp::from_second(seconds)
        .map_err(|_| ZoneError::OutOfRange(super::format_instant_seconds(seconds)))
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
