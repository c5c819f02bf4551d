//! Rows to write, as columns. Each database writes many rows by one statement.

use std::sync::Arc;

use schemas::entities::{
    Application, Athlete, Authorization, Effort, Follow, Gender, Group, Membership,
};
use schemas::source::Source;
use sqlx::{Arguments, AssertSqlSafe, Encode, Type};

use super::connection::{Dialect, Sql};

/// The possible numbers of rows of a statement, largest first. The text depends only on this
/// number, so few prepared statements write any number of rows. The largest stays below the limits
/// of 32,766 parameters on SQLite and 65,535 on MySQL.
const ROWS_PER_INSERT: [usize; 4] = [512, 64, 8, 1];

/// A column of rows to write.
#[derive(Debug)]
pub(crate) enum ColumnValues {
    Ints(Vec<Option<i64>>),
    Floats(Vec<Option<f64>>),
    Texts(Vec<Option<String>>),
    Booleans(Vec<bool>),
}

/// The handling of a row whose key is already stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The statement fails; the caller has checked that the key is not stored.
    Fail,
    /// The stored row stays.
    Keep,
    /// The row replaces the stored one, unless that has a newer version.
    Newer,
}

/// Rows to write to a table. The last column is the version, if there is one.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(crate) table: &'static str,
    /// The columns of the key; empty where the database assigns it.
    pub(crate) key: &'static [&'static str],
    /// Columns that never change for a key. They are not updated, so their indexes are not written
    /// again.
    fixed: &'static [&'static str],
    pub(crate) columns: Vec<(&'static str, ColumnValues)>,
    pub(crate) count: usize,
}

fn ints<T>(rows: &[T], value: impl Fn(&T) -> i64) -> ColumnValues {
    ColumnValues::Ints(rows.iter().map(|row| Some(value(row))).collect())
}

fn ints_or_null<T>(rows: &[T], value: impl Fn(&T) -> Option<i64>) -> ColumnValues {
    ColumnValues::Ints(rows.iter().map(value).collect())
}

fn booleans<T>(rows: &[T], value: impl Fn(&T) -> bool) -> ColumnValues {
    ColumnValues::Booleans(rows.iter().map(value).collect())
}

fn texts<T>(rows: &[T], value: impl Fn(&T) -> String) -> ColumnValues {
    ColumnValues::Texts(rows.iter().map(|row| Some(value(row))).collect())
}

fn texts_or_null<T>(rows: &[T], value: impl Fn(&T) -> Option<String>) -> ColumnValues {
    ColumnValues::Texts(rows.iter().map(value).collect())
}

impl TableRows {
    fn new(
        table: &'static str,
        key: &'static [&'static str],
        columns: Vec<(&'static str, ColumnValues)>,
        count: usize,
    ) -> Self {
        Self {
            table,
            key,
            fixed: &[],
            columns,
            count,
        }
    }

    pub(crate) fn efforts(rows: &[&Effort]) -> Self {
        let columns = vec![
            ("id", ints(rows, |row| row.id)),
            ("segment_id", ints(rows, |row| row.segment_id)),
            ("athlete_id", ints(rows, |row| row.athlete_id)),
            ("activity_id", ints(rows, |row| row.activity_id)),
            ("elapsed_time_s", ints(rows, |row| row.elapsed_time_s)),
            ("started_at_us", ints(rows, |row| row.started_at_us)),
            ("tz", texts(rows, |row| row.tz.clone())),
            ("is_hidden", booleans(rows, |row| row.is_hidden)),
            ("is_deleted", booleans(rows, |row| row.is_deleted)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self {
            fixed: &["segment_id", "athlete_id"],
            ..Self::new("efforts", &["id"], columns, rows.len())
        }
    }

    pub(crate) fn athletes(rows: &[&Athlete]) -> Self {
        let weights = rows.iter().map(|row| row.weight_kg).collect();
        let gender = |row: &&Athlete| row.gender.map(|gender: Gender| gender.letter().to_owned());
        let columns = vec![
            ("id", ints(rows, |row| row.id)),
            ("name", texts_or_null(rows, |row| row.name.clone())),
            ("gender", texts_or_null(rows, gender)),
            ("birth_year", ints_or_null(rows, |row| row.birth_year)),
            ("weight_kg", ColumnValues::Floats(weights)),
            ("country", texts_or_null(rows, |row| row.country.clone())),
            ("is_deleted", booleans(rows, |row| row.is_deleted)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self::new("athletes", &["id"], columns, rows.len())
    }

    /// Disqualified athletes.
    pub(crate) fn disqualified(rows: &[&Athlete]) -> Self {
        let columns = vec![("athlete_id", ints(rows, |row| row.id))];
        Self::new("disqualified", &["athlete_id"], columns, rows.len())
    }

    pub(crate) fn memberships(rows: &[&Membership]) -> Self {
        let columns = vec![
            ("club_id", ints(rows, |row| row.club_id)),
            ("athlete_id", ints(rows, |row| row.athlete_id)),
            ("is_deleted", booleans(rows, |row| row.is_deleted)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self::new("clubs", &["club_id", "athlete_id"], columns, rows.len())
    }

    pub(crate) fn follows(rows: &[&Follow]) -> Self {
        let columns = vec![
            ("follower_id", ints(rows, |row| row.follower_id)),
            ("followed_id", ints(rows, |row| row.followed_id)),
            ("is_deleted", booleans(rows, |row| row.is_deleted)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self::new(
            "follows",
            &["follower_id", "followed_id"],
            columns,
            rows.len(),
        )
    }

    pub(crate) fn authorizations(rows: &[&Authorization]) -> Self {
        let columns = vec![
            ("id", ints(rows, |row| row.id)),
            ("application_id", ints(rows, |row| row.application_id)),
            ("athlete_id", ints(rows, |row| row.athlete_id)),
            ("created_at_us", ints(rows, |row| row.created_at_us)),
            ("revoked_at_us", ints_or_null(rows, |row| row.revoked_at_us)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self {
            fixed: &["application_id", "athlete_id"],
            ..Self::new("authorizations", &["id"], columns, rows.len())
        }
    }

    pub(crate) fn applications(rows: &[&Application]) -> Self {
        let columns = vec![
            ("id", ints(rows, |row| row.id)),
            ("name", texts(rows, |row| row.name.clone())),
            ("owner", texts(rows, |row| row.owner.to_string())),
            ("athlete_capacity", ints(rows, |row| row.athlete_capacity)),
            ("version", ints(rows, |row| row.version)),
        ];
        Self::new("applications", &["id"], columns, rows.len())
    }

    /// New counters of applications.
    pub(crate) fn counters(applications: &[i64]) -> Self {
        let columns = vec![
            ("application_id", ints(applications, |id| *id)),
            ("athletes", ints(applications, |_| 0)),
        ];
        Self::new(
            "connected",
            &["application_id"],
            columns,
            applications.len(),
        )
    }

    /// Pairs of applications and deleted athletes, without authorizations.
    pub(crate) fn deleted_pairs(pairs: &[Group]) -> Self {
        let columns = vec![
            ("application_id", ints(pairs, |pair| pair.key)),
            ("athlete_id", ints(pairs, |pair| pair.member)),
            ("live", ints(pairs, |_| 0)),
            ("is_away", booleans(pairs, |_| true)),
        ];
        let key = &["application_id", "athlete_id"];
        Self::new("connections", key, columns, pairs.len())
    }

    /// Segments of athletes, for the additional table on SQLite.
    pub(crate) fn new_segments(groups: &[Group]) -> Self {
        let columns = vec![
            ("athlete_id", ints(groups, |group| group.member)),
            ("segment_id", ints(groups, |group| group.key)),
        ];
        Self::new("new_athlete_segments", &[], columns, groups.len())
    }

    /// Names of one kind.
    pub(crate) fn entity_names(kind: &str, names: &[(i64, &str)]) -> Self {
        let columns = vec![
            ("kind", texts(names, |_| kind.to_owned())),
            ("id", ints(names, |(id, _)| *id)),
            ("name", texts(names, |(_, name)| (*name).to_owned())),
        ];
        Self::new("names", &["kind", "id"], columns, names.len())
    }

    /// Notifications for the outbox.
    pub(crate) fn notifications(groups: &[(Source, Group)], now_ms: i64) -> Self {
        let columns = vec![
            (
                "source",
                texts(groups, |(source, _)| source.name().to_owned()),
            ),
            ("group_key", ints(groups, |(_, group)| group.key)),
            ("member", ints(groups, |(_, group)| group.member)),
            ("made_at_ms", ints(groups, |_| now_ms)),
        ];
        Self::new("outbox", &[], columns, groups.len())
    }

    /// Adds a column.
    pub(crate) fn with_column(mut self, name: &'static str, column: ColumnValues) -> Self {
        self.columns.push((name, column));
        self
    }

    pub(crate) fn column_names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(name, _)| *name).collect()
    }

    /// Statements of MySQL or SQLite that write the rows in their order.
    pub(crate) fn insert_statements(
        &self,
        dialect: Dialect,
        conflict: Conflict,
    ) -> impl Iterator<Item = InsertStatement<'_>> {
        let (table, names) = (self.table, self.column_names().join(", "));
        let row = format!("({})", vec!["?"; self.columns.len()].join(","));
        let conflict_clause = self.conflict_clause(dialect, conflict);
        let mut from = 0;
        ROWS_PER_INSERT.into_iter().flat_map(move |size| {
            let count = (self.count - from) / size;
            let start = from;
            from += count * size;
            let statement: Arc<str> = if count == 0 {
                Arc::default()
            } else {
                let rows = vec![row.as_str(); size].join(",");
                format!("INSERT INTO {table} ({names}) VALUES {rows} {conflict_clause}").into()
            };
            (0..count).map(move |index| InsertStatement {
                rows: self,
                from: start + index * size,
                size,
                statement: Arc::clone(&statement),
            })
        })
    }

    /// The conflict clause of an `INSERT`.
    pub(crate) fn conflict_clause(&self, dialect: Dialect, conflict: Conflict) -> String {
        let names = self.column_names();
        let updated = names
            .iter()
            .filter(|name| !self.key.contains(name) && !self.fixed.contains(name));
        match (conflict, dialect) {
            (Conflict::Fail, _) => String::new(),
            (Conflict::Keep, Dialect::MySql) => {
                let key = self.key.first().unwrap_or(&"id");
                format!("ON DUPLICATE KEY UPDATE {key} = {key}")
            }
            (Conflict::Keep, _) => "ON CONFLICT DO NOTHING".to_owned(),
            (Conflict::Newer, Dialect::MySql) => {
                // The version is assigned last, so the other assignments see the stored version.
                let updated = updated.map(|name| {
                    format!("{name} = IF(VALUES(version) >= version, VALUES({name}), {name})")
                });
                format!(
                    "ON DUPLICATE KEY UPDATE {}",
                    updated.collect::<Vec<_>>().join(", ")
                )
            }
            (Conflict::Newer, _) => {
                let updated: Vec<String> = updated
                    .map(|name| format!("{name} = excluded.{name}"))
                    .collect();
                let (table, key) = (self.table, self.key.join(", "));
                format!(
                    "ON CONFLICT ({key}) DO UPDATE SET {} WHERE excluded.version >= {table}.version",
                    updated.join(", ")
                )
            }
        }
    }
}

/// A statement that inserts a range of the rows.
#[derive(Debug)]
pub(crate) struct InsertStatement<'a> {
    rows: &'a TableRows,
    from: usize,
    size: usize,
    statement: Arc<str>,
}

impl InsertStatement<'_> {
    pub(crate) fn statement(&self) -> AssertSqlSafe<Arc<str>> {
        AssertSqlSafe(Arc::clone(&self.statement))
    }

    pub(crate) fn arguments<A: Arguments + Default>(&self) -> Sql<A>
    where
        Option<i64>: for<'q> Encode<'q, A::Database> + Type<A::Database>,
        Option<f64>: for<'q> Encode<'q, A::Database> + Type<A::Database>,
        Option<bool>: for<'q> Encode<'q, A::Database> + Type<A::Database>,
        for<'q> Option<&'q str>: Encode<'q, A::Database> + Type<A::Database>,
    {
        let mut arguments = A::default();
        arguments.reserve(self.size * self.rows.columns.len(), 0);
        for row in self.from..self.from + self.size {
            for (_, column) in &self.rows.columns {
                let added = match column {
                    ColumnValues::Ints(values) => arguments.add(values.get(row).copied().flatten()),
                    ColumnValues::Floats(values) => {
                        arguments.add(values.get(row).copied().flatten())
                    }
                    ColumnValues::Texts(values) => {
                        arguments.add(values.get(row).and_then(Option::as_deref))
                    }
                    ColumnValues::Booleans(values) => arguments.add(values.get(row).copied()),
                };
                added.map_err(sqlx::Error::Encode)?;
            }
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_cover_all_rows_in_order() {
        for count in [0, 1, 7, 8, 9, 511, 512, 513, 1025] {
            let rows = TableRows::counters(&(0..count).collect::<Vec<i64>>());
            let mut next = 0;
            for insert in rows.insert_statements(Dialect::Sqlite, Conflict::Keep) {
                assert_eq!(insert.from, next);
                assert_eq!(insert.statement.matches("(?,?)").count(), insert.size);
                next += insert.size;
            }
            assert_eq!(next, rows.count);
        }
    }

    #[test]
    fn updates_exclude_fixed_columns() {
        let clause =
            |dialect| TableRows::authorizations(&[]).conflict_clause(dialect, Conflict::Newer);
        assert_eq!(
            clause(Dialect::Sqlite),
            "ON CONFLICT (id) DO UPDATE SET created_at_us = excluded.created_at_us, \
             revoked_at_us = excluded.revoked_at_us, version = excluded.version \
             WHERE excluded.version >= authorizations.version"
        );
        let on_mysql = clause(Dialect::MySql);
        assert!(!on_mysql.contains("athlete_id"), "{on_mysql}");
        assert!(
            on_mysql.ends_with("VALUES(version), version)"),
            "{on_mysql}"
        );
    }
}
