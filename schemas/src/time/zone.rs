//! Time zones by their IANA names, and what a local day is.
//!
//! It owns the one place where names are looked up and where local times become instants. It must
//! not know the machine's own zone or time zone files: only the database that is built in counts,
//! so that every machine gives the same answer.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

use super::bucket::Seconds;

/// A time zone of the built-in IANA database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

/// Why a zone, or a local time in it, could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// No zone has that name.
    #[error(
        "tz={0:?} is not a time zone: write an IANA name such as Europe/Berlin (an offset such \
         as +02:00 is none), or leave tz out for UTC"
    )]
    Unknown(String),
    /// The calendar ends before that time.
    #[error("{0} is outside the years 0001 to 9999: choose a time within them")]
    OutOfRange(String),
}

impl Default for Zone {
    fn default() -> Self {
        Self(TimeZone::UTC)
    }
}

impl Zone {
    /// The zone of that IANA name, whatever the case of its letters. Old names of zones (links) are
    /// names too.
    ///
    /// # Errors
    ///
    /// [`ZoneError::Unknown`] for everything that is not in the database: offsets, `local`, nothing.
    pub fn parse(name: &str) -> Result<Self, ZoneError> {
        match TimeZoneDatabase::bundled().get(name) {
            Ok(zone) if !zone.is_unknown() => Ok(Self(zone)),
            _ => Err(ZoneError::Unknown(name.to_owned())),
        }
    }

    /// The name as the database writes it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The zone itself, for what reads the calendar only.
    #[must_use]
    pub(crate) fn into_inner(self) -> TimeZone {
        self.0
    }

    /// What the local calendar and clock show at the instant.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn local(&self, seconds: Seconds) -> Result<DateTime, ZoneError> {
        let local = self.0.to_datetime(instant(seconds)?);
        if local.year() < 1 {
            return Err(ZoneError::OutOfRange(super::shown(seconds)));
        }
        Ok(local)
    }

    /// The first instant of a local day: midnight, or where the clocks skip midnight the instant
    /// at which they do. Of a day that the clocks skip altogether it is that of the next day: such
    /// a day is empty. Where midnight comes twice it is the first one.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn first_instant(&self, date: Date) -> Result<Seconds, ZoneError> {
        self.first_at(date.to_datetime(jiff::civil::Time::midnight()))
    }

    /// The local day that the instant belongs to: the last one that has begun by then.
    ///
    /// That is the date on the local calendar, but for clocks that were put back over midnight: a
    /// day that has begun goes on, although the calendar shows the one before for a while.
    ///
    /// # Errors
    ///
    /// [`ZoneError::OutOfRange`] outside the years 0001 to 9999.
    pub fn date_of(&self, seconds: Seconds) -> Result<Date, ZoneError> {
        let mut date = self.local(seconds)?.date();
        while let Ok(tomorrow) = date.tomorrow()
            && self
                .first_instant(tomorrow)
                .is_ok_and(|begin| begin <= seconds)
        {
            date = tomorrow;
        }
        Ok(date)
    }

    /// The first instant at which the local clock shows that time or, where it skips it, a later
    /// one. Later local times never give earlier instants.
    pub(super) fn first_at(&self, local: DateTime) -> Result<Seconds, ZoneError> {
        let beyond = || ZoneError::OutOfRange(format!("{local} in {}", self.name()));
        if !(1..=9999).contains(&local.year()) {
            return Err(beyond());
        }
        let ambiguous = self.0.to_ambiguous_timestamp(local);
        let skipped = matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. });
        let earlier = ambiguous.earlier().map_err(|_| beyond())?;
        if !skipped {
            return Ok(earlier.as_second());
        }
        // In a gap jiff's `earlier` lies before the change of the clocks by less than the gap.
        self.0
            .following(earlier)
            .map(|change| change.timestamp())
            .find(|change| self.0.to_datetime(*change) >= local)
            .map(Timestamp::as_second)
            .ok_or_else(beyond)
    }

    /// How far the local clock is ahead of UTC at the instant, in seconds.
    pub(super) fn offset_seconds(&self, seconds: Seconds) -> Result<Seconds, ZoneError> {
        Ok(self.0.to_offset(instant(seconds)?).seconds().into())
    }

    /// The changes of the clocks after the instant, in order: when, and the offset from then on.
    pub(super) fn changes_after(
        &self,
        seconds: Seconds,
    ) -> Result<impl Iterator<Item = (Seconds, Seconds)>, ZoneError> {
        let changes = self.0.following(instant(seconds)?);
        Ok(changes.map(|change| {
            (
                change.timestamp().as_second(),
                Seconds::from(change.offset().seconds()),
            )
        }))
    }

    /// The changes of the clocks at or before the instant, latest first.
    pub(super) fn changes_until(
        &self,
        seconds: Seconds,
    ) -> Result<impl Iterator<Item = Seconds>, ZoneError> {
        let changes = self.0.preceding(instant(seconds.saturating_add(1))?);
        Ok(changes.map(|change| change.timestamp().as_second()))
    }
}

fn instant(seconds: Seconds) -> Result<Timestamp, ZoneError> {
    Timestamp::from_second(seconds).map_err(|_| ZoneError::OutOfRange(super::shown(seconds)))
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
