//! Groups of rows, and the notifications of their changes.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use arrow::error::ArrowError;
use serde::Deserialize;

use crate::avro::{AvroRecords, WriterSchemas};
use crate::partition::partition_of;
use crate::source::Source;
use crate::{json_error, line};

/// The rows of one member under one key: an athlete's efforts on a segment, or an athlete's
/// authorizations of an application. After a change, the worker reads the whole group again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// A segment or an application.
    pub key: i64,
    /// The athlete.
    pub member: i64,
}

/// The Avro schemas of notifications.
const EFFORTS_SCHEMA: &str = include_str!("../../avro/efforts.avsc");
const AUTHORIZATIONS_SCHEMA: &str = include_str!("../../avro/authorizations.avsc");

/// Notifications from a log. Each is JSON, or framed Avro ([`crate::avro`]).
#[derive(Debug)]
pub struct Notifications {
    source: Source,
    frames: AvroRecords,
}

impl Notifications {
    /// Decodes those of `records` that are Avro.
    ///
    /// # Errors
    /// `writers` lacks the schema of a record.
    pub fn read<'a>(
        source: Source,
        records: impl IntoIterator<Item = &'a [u8]>,
        writers: &WriterSchemas,
    ) -> Result<Self, ArrowError> {
        let reader_schema = match source {
            Source::Authorizations => AUTHORIZATIONS_SCHEMA,
            _ => EFFORTS_SCHEMA,
        };
        let frames = AvroRecords::read(reader_schema, records, writers)?;
        Ok(Self { source, frames })
    }

    /// Returns the group that a record names. `bytes` are the record at `index`.
    ///
    /// # Errors
    /// The reason for the rejection.
    pub fn group(&self, index: usize, bytes: &[u8]) -> Result<Group, String> {
        match self.frames.location(index) {
            None => parse_notification(self.source, bytes),
            Some(Err(reason)) => Err(line::clip_reason(reason.to_owned())),
            Some(Ok((batch, row))) => Ok(Group {
                key: self.read_id(key_column(self.source), batch, row)?,
                member: self.read_id("athlete_id", batch, row)?,
            }),
        }
    }

    fn read_id(&self, name: &str, batch: usize, row: usize) -> Result<i64, String> {
        let batch = self.frames.batches().get(batch);
        let column = batch.and_then(|batch| batch.column_by_name(name));
        let column = column.and_then(|column| column.as_primitive_opt::<Int64Type>());
        let value = column.filter(|column| column.is_valid(row));
        value
            .map(|column| column.value(row))
            .ok_or_else(|| format!("{name} is required; got null"))
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
    /// Encodes the notification of a change: a JSON object with the names of the source's columns.
    /// Its log key is [`Group::log_key`].
    #[must_use]
    pub fn notification(&self, source: Source) -> Vec<u8> {
        let (key, member) = (self.key, self.member);
        let column = key_column(source);
        format!("{{\"{column}\":{key},\"athlete_id\":{member}}}").into_bytes()
    }

    /// Returns the log key of the group's notifications: [`Group::key`] in decimal digits.
    #[must_use]
    pub fn log_key(&self) -> String {
        self.key.to_string()
    }

    /// Returns the partition of the group's notifications in a topic with `partitions`.
    #[must_use]
    pub fn partition(&self, partitions: u32) -> u32 {
        partition_of(self.log_key().as_bytes(), partitions)
    }
}

/// Returns the column of the group's key, which is the log key of the source's notifications.
#[must_use]
pub const fn key_column(source: Source) -> &'static str {
    match source {
        Source::Authorizations => "application_id",
        Source::Plays => "owner_id",
        _ => "segment_id",
    }
}

/// Parses a notification.
///
/// # Errors
/// The reason for the rejection.
pub fn parse_notification(source: Source, bytes: &[u8]) -> Result<Group, String> {
    let describe = |reason: &str| {
        let example = Group { key: 1, member: 2 }.notification(source);
        format!(
            "not a notification of {source}: {reason}; expected {}",
            String::from_utf8_lossy(&example)
        )
    };
    if bytes.is_empty() {
        return Err(describe(line::NO_VALUE));
    }
    let parsed = match source {
        Source::Authorizations => {
            json_error::decode(bytes).map(|notification: AuthorizationNotification| Group {
                key: notification.application_id,
                member: notification.athlete_id,
            })
        }
        _ => json_error::decode(bytes).map(|notification: EffortNotification| Group {
            key: notification.segment_id,
            member: notification.athlete_id,
        }),
    };
    parsed.map_err(|reason| describe(&reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avro_notifications_decode_like_json_ones() {
        let json = Group { key: 1, member: 2 }.notification(Source::Authorizations);
        let mut writers = WriterSchemas::default();
        writers.insert(7, Ok(AUTHORIZATIONS_SCHEMA.into()));
        writers.insert(8, Ok(EFFORTS_SCHEMA.into()));
        // Numbers are in zig-zag: 3 is -2, 12 is 6.
        let records: [&[u8]; 5] = [
            &json,
            &[0, 0, 0, 0, 7, 3, 12],
            &[0, 0, 0, 0, 8, 3, 12],
            &[0, 0, 0, 0, 7, 3],
            &[0, 0, 0, 0, 7, 3, 12, 0],
        ];
        let notifications = Notifications::read(Source::Authorizations, records, &writers);
        let notifications = notifications.expect("schemas");
        let group = |index: usize| notifications.group(index, records[index]);
        assert_eq!(group(0), Ok(Group { key: 1, member: 2 }));
        assert_eq!(group(1), Ok(Group { key: -2, member: 6 }));
        for (index, word) in [(2, "application_id"), (3, "schema 7"), (4, "more bytes")] {
            let reason = group(index).expect_err("an invalid notification");
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn notifications_round_trip() {
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
