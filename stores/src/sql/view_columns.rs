//! Whether the columns of an app's own views can be read.
//!
//! A view stands in the place of a table of ours, so nobody but the app says what its columns are. What
//! does not fit is named before anything is read: by `check`, and when the store is opened.

use std::collections::{BTreeMap, BTreeSet};

use super::connection::{Dialect, OwnedConnection, Sql, SqlConnection};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::{Column, Rows};

/// What a column has to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A whole number of up to 64 bits.
    Number,
    /// Microseconds since 1970, as such a number.
    Micros,
    /// A number with a fraction.
    Fraction,
    Text,
    Boolean,
}

impl Kind {
    fn of(name: &str, column: &Column) -> Self {
        match column {
            Column::Ints(_) if name.ends_with("_us") => Self::Micros,
            Column::Ints(_) => Self::Number,
            Column::Floats(_) => Self::Fraction,
            Column::Texts(_) => Self::Text,
            Column::Booleans(_) => Self::Boolean,
        }
    }
}

/// The tables that an app may replace, with their columns and without rows.
fn replaceable() -> [Rows; 8] {
    [
        Rows::applications(&[]),
        Rows::athletes(&[]),
        Rows::authorizations(&[]),
        Rows::memberships(&[]),
        Rows::disqualified(&[]),
        Rows::efforts(&[]),
        Rows::follows(&[]),
        Rows::names_of("", &[]),
    ]
}

/// A column that is there: its table, its name, its type as the server calls it to people, and to us.
pub(crate) type There = (String, String, String, String);

/// What a server has of its own for views.
struct Catalog {
    views: &'static str,
    columns: &'static str,
    fits: fn(Kind, &str) -> bool,
    /// What is expected, and how a view says it.
    expected: fn(Kind) -> &'static str,
}

/// The names of this schema that are views, and what is wrong with their columns, in sentences.
pub(crate) async fn views(
    connection: &mut SqlConnection<'_>,
) -> Sql<(BTreeSet<String>, Vec<String>)> {
    let catalog = match connection.dialect() {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => Catalog {
            views: postgres::VIEWS,
            columns: postgres::COLUMNS,
            fits: postgres::fits,
            expected: postgres::expected,
        },
        #[cfg(feature = "mysql")]
        Dialect::MySql => Catalog {
            views: mysql::VIEWS,
            columns: mysql::COLUMNS,
            fits: mysql::fits,
            expected: mysql::expected,
        },
        // The tables of a file are always ours.
        _ => return Ok((BTreeSet::new(), Vec::new())),
    };
    let views: Vec<String> = connection.rows(catalog.views, &[]).await?;
    let views = BTreeSet::from_iter(views);
    if views.is_empty() {
        return Ok((views, Vec::new()));
    }
    let there: Vec<There> = connection.rows(catalog.columns, &[]).await?;
    let there: BTreeMap<(&str, &str), (&str, &str)> = there
        .iter()
        .map(|(table, column, shown, kind)| ((&**table, &**column), (&**shown, &**kind)))
        .collect();
    let mut flaws = Vec::new();
    for Rows { table, columns, .. } in replaceable() {
        if !views.contains(table) {
            continue;
        }
        for (column, values) in &columns {
            let kind = Kind::of(column, values);
            let is = match there.get(&(table, *column)) {
                Some((_, is)) if (catalog.fits)(kind, is) => continue,
                Some((shown, _)) => format!("is of the type {shown}"),
                None => "is missing".to_owned(),
            };
            let expected = (catalog.expected)(kind);
            flaws.push(format!(
                "the column {column} of the view {table} {is}; it has to be {expected}"
            ));
        }
    }
    Ok((views, flaws))
}

/// Views whose groups are not found through an index: each reading of a group would read all rows.
pub(crate) async fn slow(own: &mut OwnedConnection, views: &BTreeSet<String>) -> Sql<Vec<String>> {
    let mut flaws = Vec::new();
    for (table, key) in [
        ("efforts", "segment_id"),
        ("authorizations", "application_id"),
    ] {
        if views.contains(table) && !is_indexed(own, table, key).await? {
            flaws.push(format!(
                "the rows of the view {table} are not found by {key} through an index, so all are read for each group: make an index on {key}, athlete_id and id, and let the view give these columns as they are, without a cast"
            ));
        }
    }
    let (table, key) = ("authorizations", "athlete_id");
    if flaws.is_empty() && views.contains(table) && !is_indexed(own, table, key).await? {
        flaws.push(format!(
                "the rows of the view {table} are not found by {key} through an index, so all are read when an athlete changes: make an index on {key}, and let the view give it as it is, without a cast"
            ));
    }
    Ok(flaws)
}

async fn is_indexed(own: &mut OwnedConnection, table: &str, key: &str) -> Sql<bool> {
    match own {
        #[cfg(feature = "postgres")]
        OwnedConnection::Postgres(connection) => {
            postgres::dump::is_indexed(connection, table, key).await
        }
        #[cfg(feature = "mysql")]
        OwnedConnection::MySql(connection) => mysql::dump::is_indexed(connection, table, key).await,
    }
}
