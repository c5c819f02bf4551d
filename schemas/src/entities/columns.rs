//! The Arrow columns that entity views read: rows of the entity store with attributes of their
//! athlete.
//!
//! Queries of groups and snapshots both build their rows here, so derived columns such as the local
//! day are computed by one function.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    ArrayBuilder, ArrayRef, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch,
    StringBuilder, TimestampMicrosecondBuilder,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;

use super::decode::local_day;
use crate::source::Source;

static EFFORTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("segment_id", DataType::Int64, false),
        Field::new("athlete_id", DataType::Int64, false),
        Field::new("activity_id", DataType::Int64, false),
        Field::new("elapsed_time", DataType::Int64, false),
        Field::new("started_at", instant_type(), false),
        Field::new("day", DataType::Int64, false),
        Field::new("is_hidden", DataType::Boolean, false),
        Field::new("is_deleted", DataType::Boolean, false),
        Field::new("gender", DataType::Utf8, true),
        Field::new("birth_year", DataType::Int64, true),
        Field::new("weight_kg", DataType::Float64, true),
        Field::new("athlete_is_deleted", DataType::Boolean, false),
        Field::new("athlete_is_disqualified", DataType::Boolean, false),
    ]))
});

static AUTHORIZATIONS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("application_id", DataType::Int64, false),
        Field::new("athlete_id", DataType::Int64, false),
        Field::new("created_at", instant_type(), false),
        Field::new("revoked_at", instant_type(), true),
        Field::new("athlete_is_deleted", DataType::Boolean, false),
    ]))
});

fn instant_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Returns the columns of a source that views read; none for other sources.
///
/// `efforts` have the columns `gender`, `birth_year`, `weight_kg`, `athlete_is_deleted` and
/// `athlete_is_disqualified` of their athlete (false for an unknown athlete). `day` is the day of
/// `started_at` in the effort's time zone, as a number: 20130506. `authorizations` have
/// `athlete_is_deleted`.
#[must_use]
pub fn schema(source: Source) -> Option<SchemaRef> {
    match source {
        Source::Efforts => Some(Arc::clone(&EFFORTS)),
        Source::Authorizations => Some(Arc::clone(&AUTHORIZATIONS)),
        _ => None,
    }
}

/// A row of `efforts` with attributes of its athlete.
#[derive(Debug, Clone, Copy)]
pub struct EffortRow<'a> {
    /// The effort's id.
    pub id: i64,
    /// Its segment.
    pub segment_id: i64,
    /// Its athlete.
    pub athlete_id: i64,
    /// Its activity.
    pub activity_id: i64,
    /// The duration in whole seconds.
    pub elapsed_time_s: i64,
    /// The start, in microseconds since the Unix epoch.
    pub started_at_us: i64,
    /// The IANA name of its time zone.
    pub tz: &'a str,
    /// True if only the athlete may see the effort.
    pub is_hidden: bool,
    /// True if the effort was deleted.
    pub is_deleted: bool,
    /// The athlete's gender.
    pub gender: Option<&'a str>,
    /// The athlete's year of birth.
    pub birth_year: Option<i64>,
    /// The athlete's weight in kg.
    pub weight_kg: Option<f64>,
    /// True if the athlete was deleted.
    pub athlete_is_deleted: bool,
    /// True if the athlete is disqualified.
    pub athlete_is_disqualified: bool,
}

/// Builds batches of `efforts`.
#[derive(Debug, Default)]
pub struct EffortBatchBuilder {
    id: Int64Builder,
    segment_id: Int64Builder,
    athlete_id: Int64Builder,
    activity_id: Int64Builder,
    elapsed_time: Int64Builder,
    started_at: TimestampMicrosecondBuilder,
    day: Int64Builder,
    is_hidden: BooleanBuilder,
    is_deleted: BooleanBuilder,
    gender: StringBuilder,
    birth_year: Int64Builder,
    weight_kg: Float64Builder,
    athlete_is_deleted: BooleanBuilder,
    athlete_is_disqualified: BooleanBuilder,
    local_days: LocalDayCache,
}

impl EffortBatchBuilder {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// Adds a row.
    ///
    /// # Errors
    /// The time zone or the time is invalid. The row is not added then.
    pub fn push(&mut self, row: &EffortRow<'_>) -> Result<(), String> {
        let day = self.local_days.compute_day(row.started_at_us, row.tz)?;
        self.id.append_value(row.id);
        self.segment_id.append_value(row.segment_id);
        self.athlete_id.append_value(row.athlete_id);
        self.activity_id.append_value(row.activity_id);
        self.elapsed_time.append_value(row.elapsed_time_s);
        self.started_at.append_value(row.started_at_us);
        self.day.append_value(day);
        self.is_hidden.append_value(row.is_hidden);
        self.is_deleted.append_value(row.is_deleted);
        self.gender.append_option(row.gender);
        self.birth_year.append_option(row.birth_year);
        self.weight_kg.append_option(row.weight_kg);
        self.athlete_is_deleted.append_value(row.athlete_is_deleted);
        self.athlete_is_disqualified
            .append_value(row.athlete_is_disqualified);
        Ok(())
    }

    /// Returns the rows with the columns of [`schema`], and clears the builder.
    ///
    /// # Errors
    /// Arrow cannot build the batch; build fewer rows at a time.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let started_at = self.started_at.finish().with_timezone("UTC");
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.id.finish()),
            Arc::new(self.segment_id.finish()),
            Arc::new(self.athlete_id.finish()),
            Arc::new(self.activity_id.finish()),
            Arc::new(self.elapsed_time.finish()),
            Arc::new(started_at),
            Arc::new(self.day.finish()),
            Arc::new(self.is_hidden.finish()),
            Arc::new(self.is_deleted.finish()),
            Arc::new(self.gender.finish()),
            Arc::new(self.birth_year.finish()),
            Arc::new(self.weight_kg.finish()),
            Arc::new(self.athlete_is_deleted.finish()),
            Arc::new(self.athlete_is_disqualified.finish()),
        ];
        RecordBatch::try_new(Arc::clone(&EFFORTS), columns)
    }
}

/// A row of `authorizations` with attributes of its athlete.
#[derive(Debug, Clone, Copy)]
pub struct AuthorizationRow {
    /// The authorization's id.
    pub id: i64,
    /// The application.
    pub application_id: i64,
    /// The athlete.
    pub athlete_id: i64,
    /// When it was granted, in microseconds since the Unix epoch.
    pub created_at_us: i64,
    /// When it was revoked, in microseconds since the Unix epoch.
    pub revoked_at_us: Option<i64>,
    /// True if the athlete was deleted.
    pub athlete_is_deleted: bool,
}

/// Builds batches of `authorizations`.
#[derive(Debug, Default)]
pub struct AuthorizationBatchBuilder {
    id: Int64Builder,
    application_id: Int64Builder,
    athlete_id: Int64Builder,
    created_at: TimestampMicrosecondBuilder,
    revoked_at: TimestampMicrosecondBuilder,
    athlete_is_deleted: BooleanBuilder,
}

impl AuthorizationBatchBuilder {
    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.id.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    /// Adds a row.
    pub fn push(&mut self, row: &AuthorizationRow) {
        self.id.append_value(row.id);
        self.application_id.append_value(row.application_id);
        self.athlete_id.append_value(row.athlete_id);
        self.created_at.append_value(row.created_at_us);
        self.revoked_at.append_option(row.revoked_at_us);
        self.athlete_is_deleted.append_value(row.athlete_is_deleted);
    }

    /// Returns the rows with the columns of [`schema`], and clears the builder.
    ///
    /// # Errors
    /// Arrow cannot build the batch; build fewer rows at a time.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.id.finish()),
            Arc::new(self.application_id.finish()),
            Arc::new(self.athlete_id.finish()),
            Arc::new(self.created_at.finish().with_timezone("UTC")),
            Arc::new(self.revoked_at.finish().with_timezone("UTC")),
            Arc::new(self.athlete_is_deleted.finish()),
        ];
        RecordBatch::try_new(Arc::clone(&AUTHORIZATIONS), columns)
    }
}

/// Computes local days. It remembers the last time zone, since adjacent rows mostly share it.
#[derive(Debug, Default)]
struct LocalDayCache {
    zone: Option<(String, jiff::tz::TimeZone)>,
}

impl LocalDayCache {
    fn compute_day(&mut self, at_us: i64, tz: &str) -> Result<i64, String> {
        if self.zone.as_ref().is_none_or(|(name, _)| name != tz) {
            self.zone = Some((tz.to_owned(), super::decode::parse_zone(tz)?));
        }
        let Some((_, zone)) = &self.zone else {
            return Err(format!("tz: {tz:?} is unknown"));
        };
        local_day(at_us, zone)
    }
}

#[cfg(test)]
#[path = "columns_tests.rs"]
mod tests;
