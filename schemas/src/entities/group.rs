//! Groups of rows, and the notifications that say that one of them changed.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use serde::Deserialize;

use crate::avro::{Frames, Writers};
use crate::line;
use crate::partition::partition_of;
use crate::source::Source;

/// The rows of one member under one key: an athlete's efforts on a segment, an athlete's
/// authorizations of an application. What changes is read again by the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The segment, the application.
    pub key: i64,
    /// The athlete.
    pub member: i64,
}

/// Our schemas of notifications.
const EFFORTS: &str = include_str!("../../avro/efforts.avsc");
const AUTHORIZATIONS: &str = include_str!("../../avro/authorizations.avsc");

/// Records of a log of notifications: each is JSON, or Avro as [`crate::avro`] frames it.
#[derive(Debug)]
pub struct Notifications {
    source: Source,
    frames: Frames,
}

impl Notifications {
    /// Reads those of `records` that are Avro.
    ///
    /// # Errors
    /// If `writers` says nothing about the schema of one.
    pub fn read<'a>(
        source: Source,
        records: impl IntoIterator<Item = &'a [u8]>,
        writers: &Writers,
    ) -> Result<Self, ArrowError> {
        let ours = match source {
            Source::Authorizations => AUTHORIZATIONS,
            _ => EFFORTS,
        };
        let frames = Frames::read(ours, records, writers)?;
        Ok(Self { source, frames })
    }

    /// The group that the record of that index names; `bytes` are the record.
    ///
    /// # Errors
    /// The reason for which it can't be taken.
    pub fn group(&self, index: usize, bytes: &[u8]) -> Result<Group, String> {
        match self.frames.place(index) {
            None => parse_notification(self.source, bytes),
            Some(Err(reason)) => Err(line::clip(reason.to_owned())),
            Some(Ok((batch, row))) => Ok(Group {
                key: self.id(key_column(self.source), batch, row)?,
                member: self.id("athlete_id", batch, row)?,
            }),
        }
    }

    fn id(&self, name: &str, batch: usize, row: usize) -> Result<i64, String> {
        let batch = self.frames.batches().get(batch);
        let column = batch.and_then(|batch| batch.column_by_name(name));
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        let value = column.filter(|column| column.is_valid(row));
        value
            .map(|column| column.value(row))
            .ok_or_else(|| format!("{name}: is null, but must be there"))
    }
}

#[derive(Deserialize)]
struct EffortNotification {
    segment_id: i64,
    athlete_id: i64,
}

#[derive(Deserialize)]
struct AuthorizationNotification {
    application_id: i64,
    athlete_id: i64,
}

impl Group {
    /// The notification that the group changed: a JSON object with the names of the source's
    /// columns. Its log key is [`Group::log_key`].
    #[must_use]
    pub fn notification(&self, source: Source) -> Vec<u8> {
        let (key, member) = (self.key, self.member);
        let column = key_column(source);
        format!("{{\"{column}\":{key},\"athlete_id\":{member}}}").into_bytes()
    }

    /// The log key of the group's notifications: [`Group::key`] in digits.
    #[must_use]
    pub fn log_key(&self) -> String {
        self.key.to_string()
    }

    /// The partition of the group's notifications among `partitions` of a topic.
    #[must_use]
    pub fn partition(&self, partitions: u32) -> u32 {
        partition_of(self.log_key().as_bytes(), partitions)
    }
}

/// The column of the group's key: the log key of the source's notifications.
#[must_use]
pub const fn key_column(source: Source) -> &'static str {
    match source {
        Source::Authorizations => "application_id",
        Source::Plays => "owner_id",
        _ => "segment_id",
    }
}

/// The group that a notification names.
///
/// # Errors
/// The reason for which it can't be taken.
pub fn parse_notification(source: Source, bytes: &[u8]) -> Result<Group, String> {
    let refused = |why: &str| {
        let example = Group { key: 1, member: 2 }.notification(source);
        format!(
            "not a notification of {source}: {why}; expected {}",
            String::from_utf8_lossy(&example)
        )
    };
    if bytes.is_empty() {
        return Err(refused(line::NO_VALUE));
    }
    let parsed = match source {
        Source::Authorizations => {
            serde_json::from_slice(bytes).map(|found: AuthorizationNotification| Group {
                key: found.application_id,
                member: found.athlete_id,
            })
        }
        _ => serde_json::from_slice(bytes).map(|found: EffortNotification| Group {
            key: found.segment_id,
            member: found.athlete_id,
        }),
    };
    parsed.map_err(|error| refused(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_of_avro_are_read_as_those_of_json() {
        let json = Group { key: 1, member: 2 }.notification(Source::Authorizations);
        let mut writers = Writers::default();
        writers.insert(7, Ok(AUTHORIZATIONS.into()));
        writers.insert(8, Ok(EFFORTS.into()));
        // Numbers are in zig-zag: 3 is -2, 12 is 6.
        let records: [&[u8]; 5] = [
            &json,
            &[0, 0, 0, 0, 7, 3, 12],
            &[0, 0, 0, 0, 8, 3, 12],
            &[0, 0, 0, 0, 7, 3],
            &[0, 0, 0, 0, 7, 3, 12, 0],
        ];
        let found = Notifications::read(Source::Authorizations, records, &writers);
        let found = found.expect("schemas");
        let group = |index: usize| found.group(index, records[index]);
        assert_eq!(group(0), Ok(Group { key: 1, member: 2 }));
        assert_eq!(group(1), Ok(Group { key: -2, member: 6 }));
        for (index, word) in [(2, "application_id"), (3, "schema 7"), (4, "more bytes")] {
            let reason = group(index).expect_err("a bad one");
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn notifications_come_back() {
        let group = Group {
            key: i64::MIN,
            member: i64::MAX,
        };
        for source in [Source::Efforts, Source::Authorizations] {
            let bytes = group.notification(source);
            assert_eq!(parse_notification(source, &bytes), Ok(group));
        }
        let other = group.notification(Source::Efforts);
        let reason =
            parse_notification(Source::Authorizations, &other).expect_err("another source");
        assert!(reason.contains("application_id"), "{reason}");
        let reason = parse_notification(Source::Efforts, b"").expect_err("a tombstone");
        assert!(reason.contains("the value is null"), "{reason}");
    }
}
