//! Decodes the rows that views read into columns. SQLite returns rows as JSON (`sqlite::rows`).

use arrow::array::RecordBatch;
use schemas::entities::{
    AuthorizationBatchBuilder, AuthorizationRow, EffortBatchBuilder, EffortRow,
};
use schemas::source::Source;
#[cfg(feature = "sql")]
use sqlx::Row;
#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlRow;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgRow;

use super::connection::{Dialect, Sql, decode_error};
use crate::{Error, Result};

/// A source whose rows are read by groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupedSource {
    Efforts,
    Authorizations,
}

impl GroupedSource {
    pub(crate) fn for_source(source: Source) -> Result<Self> {
        match source {
            Source::Efforts => Ok(Self::Efforts),
            Source::Authorizations => Ok(Self::Authorizations),
            _ => Err(Error::Refused(format!(
                "the source {source} has no groups of rows; use {} or {}",
                Source::Efforts,
                Source::Authorizations
            ))),
        }
    }

    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Efforts => "efforts",
            Self::Authorizations => "authorizations",
        }
    }

    /// The column of the group's key. The member is `athlete_id` in both tables.
    pub(crate) const fn key_column(self) -> &'static str {
        match self {
            Self::Efforts => "segment_id",
            Self::Authorizations => "application_id",
        }
    }

    /// The select list over the table `e` and its join: on servers the columns in the order of
    /// [`RowBuilder::push`], on SQLite one JSON text. Integers are cast here and not in a view,
    /// where a cast would hide the index.
    pub(crate) const fn columns(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Self::Efforts, Dialect::Postgres) => {
                "e.id::bigint, e.segment_id::bigint, e.athlete_id::bigint, e.activity_id::bigint,
                 e.elapsed_time_s::bigint, e.started_at_us::bigint, e.tz::text, e.is_hidden,
                 e.is_deleted, a.gender::text, a.birth_year::bigint,
                 a.weight_kg::double precision, a.is_deleted AS athlete_is_deleted,
                 EXISTS (SELECT 1 FROM disqualified d WHERE d.athlete_id = e.athlete_id)"
            }
            (Self::Efforts, Dialect::MySql) => {
                "CAST(e.id AS SIGNED), CAST(e.segment_id AS SIGNED), CAST(e.athlete_id AS SIGNED),
                 CAST(e.activity_id AS SIGNED), CAST(e.elapsed_time_s AS SIGNED),
                 CAST(e.started_at_us AS SIGNED), e.tz, e.is_hidden, e.is_deleted, a.gender,
                 CAST(a.birth_year AS SIGNED), a.weight_kg + 0e0, a.is_deleted,
                 EXISTS (SELECT 1 FROM disqualified d WHERE d.athlete_id = e.athlete_id)"
            }
            (Self::Authorizations, Dialect::Postgres) => {
                "e.id::bigint, e.application_id::bigint, e.athlete_id::bigint,
                 e.created_at_us::bigint, e.revoked_at_us::bigint,
                 a.is_deleted AS athlete_is_deleted"
            }
            (Self::Authorizations, Dialect::MySql) => {
                "CAST(e.id AS SIGNED), CAST(e.application_id AS SIGNED),
                 CAST(e.athlete_id AS SIGNED), CAST(e.created_at_us AS SIGNED),
                 CAST(e.revoked_at_us AS SIGNED), a.is_deleted"
            }
            (Self::Efforts, Dialect::Sqlite) => {
                // All rows as one JSON text (see `sqlite::rows`). Seventeen digits preserve a
                // weight exactly.
                "json_group_array(json_array(e.id, e.segment_id, e.athlete_id, e.activity_id,
                    e.elapsed_time_s, e.started_at_us, e.tz, e.is_hidden, e.is_deleted,
                    a.gender, a.birth_year,
                    iif(a.weight_kg IS NULL, NULL, printf('%!.17g', a.weight_kg)),
                    coalesce(a.is_deleted, 0),
                    EXISTS (SELECT 1 FROM disqualified d WHERE d.athlete_id = e.athlete_id)))"
            }
            (Self::Authorizations, Dialect::Sqlite) => {
                "json_group_array(json_array(e.id, e.application_id, e.athlete_id,
                    e.created_at_us, e.revoked_at_us, coalesce(a.is_deleted, 0)))"
            }
        }
    }

    /// The hint that makes MySQL use the index of groups of the table.
    pub(crate) const fn index_hint(self) -> &'static str {
        match self {
            Self::Efforts => "FORCE INDEX (efforts_by_group)",
            Self::Authorizations => "FORCE INDEX (authorizations_by_group)",
        }
    }

    /// The join to the table `e`.
    pub(crate) const JOIN: &str = "LEFT JOIN athletes a ON a.id = e.athlete_id";

    /// The number of columns in [`Self::columns`] on servers.
    pub(crate) const fn column_count(self) -> usize {
        match self {
            Self::Efforts => 14,
            Self::Authorizations => 6,
        }
    }
}

/// A row of a server that can be decoded into columns.
pub(crate) trait DecodeRow {
    fn decode_effort(&self) -> Sql<EffortRow<'_>>;
    fn decode_authorization(&self) -> Sql<AuthorizationRow>;
}

#[cfg(feature = "sql")]
macro_rules! impl_decode_row {
    ($row:ty) => {
        impl DecodeRow for $row {
            fn decode_effort(&self) -> Sql<EffortRow<'_>> {
                Ok(EffortRow {
                    id: self.try_get(0)?,
                    segment_id: self.try_get(1)?,
                    athlete_id: self.try_get(2)?,
                    activity_id: self.try_get(3)?,
                    elapsed_time_s: self.try_get(4)?,
                    started_at_us: self.try_get(5)?,
                    tz: self.try_get(6)?,
                    is_hidden: self.try_get(7)?,
                    is_deleted: self.try_get(8)?,
                    gender: self.try_get(9)?,
                    birth_year: self.try_get(10)?,
                    weight_kg: self.try_get(11)?,
                    athlete_is_deleted: self.try_get::<Option<_>, _>(12)?.unwrap_or_default(),
                    athlete_is_disqualified: self.try_get(13)?,
                })
            }

            fn decode_authorization(&self) -> Sql<AuthorizationRow> {
                Ok(AuthorizationRow {
                    id: self.try_get(0)?,
                    application_id: self.try_get(1)?,
                    athlete_id: self.try_get(2)?,
                    created_at_us: self.try_get(3)?,
                    revoked_at_us: self.try_get(4)?,
                    athlete_is_deleted: self.try_get::<Option<_>, _>(5)?.unwrap_or_default(),
                })
            }
        }
    };
}

#[cfg(feature = "postgres")]
impl_decode_row!(PgRow);
#[cfg(feature = "mysql")]
impl_decode_row!(MySqlRow);

/// Builds batches from rows.
#[derive(Debug)]
pub(crate) enum RowBuilder {
    Efforts(Box<EffortBatchBuilder>),
    Authorizations(Box<AuthorizationBatchBuilder>),
}

impl RowBuilder {
    pub(crate) fn new(source: GroupedSource) -> Self {
        match source {
            GroupedSource::Efforts => Self::Efforts(Box::default()),
            GroupedSource::Authorizations => Self::Authorizations(Box::default()),
        }
    }

    pub(crate) fn push(&mut self, row: &impl DecodeRow) -> Sql<()> {
        match self {
            Self::Efforts(columns) => {
                let row = row.decode_effort()?;
                let pushed = columns.push(&row);
                pushed.map_err(|error| decode_error(format!("effort {}: {error}", row.id)))
            }
            Self::Authorizations(columns) => {
                columns.push(&row.decode_authorization()?);
                Ok(())
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Efforts(columns) => columns.len(),
            Self::Authorizations(columns) => columns.len(),
        }
    }

    /// Returns the rows as a batch, and empties the builder.
    pub(crate) fn finish(&mut self) -> Sql<RecordBatch> {
        let batch = match self {
            Self::Efforts(columns) => columns.finish(),
            Self::Authorizations(columns) => columns.finish(),
        };
        batch.map_err(decode_error)
    }
}
