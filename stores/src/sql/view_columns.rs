//! Checks the columns of an app's own views.
//!
//! The app defines the columns of views that replace tables. `check`, and opening the store, report
//! columns that do not fit before any row is read.

use std::collections::{BTreeMap, BTreeSet};

use super::column_kind::ColumnKind;
use super::connection::{Dialect, OwnedConnection, Sql, SqlConnection};
#[cfg(feature = "mysql")]
use super::mysql;
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::TableRows;

/// Lists the tables that an app may replace by views, with their columns and without rows.
fn list_replaceable_tables() -> [TableRows; 8] {
    [
        TableRows::applications(&[]),
        TableRows::athletes(&[]),
        TableRows::authorizations(&[]),
        TableRows::memberships(&[]),
        TableRows::disqualified(&[]),
        TableRows::efforts(&[]),
        TableRows::follows(&[]),
        TableRows::entity_names("", &[]),
    ]
}

/// A column of a view: table, name, displayed type, and the type that is compared.
pub(crate) type ViewColumn = (String, String, String, String);

/// The differences of the dialects that concern views.
struct Catalog {
    views: &'static str,
    columns: &'static str,
    can_represent: fn(ColumnKind, &str) -> bool,
    /// Describes the required type, and the expression that converts to it.
    describe_expected: fn(ColumnKind) -> &'static str,
}

/// Returns the tables of this schema that are views, and the problems of their columns as
/// sentences.
pub(crate) async fn check_views(
    connection: &mut SqlConnection<'_>,
) -> Sql<(BTreeSet<String>, Vec<String>)> {
    let catalog = match connection.dialect() {
        #[cfg(feature = "postgres")]
        Dialect::Postgres => Catalog {
            views: postgres::VIEWS,
            columns: postgres::COLUMNS,
            can_represent: postgres::can_represent,
            describe_expected: postgres::describe_expected,
        },
        #[cfg(feature = "mysql")]
        Dialect::MySql => Catalog {
            views: mysql::VIEWS,
            columns: mysql::COLUMNS,
            can_represent: mysql::can_represent,
            describe_expected: mysql::describe_expected,
        },
        // A file has no views.
        _ => return Ok((BTreeSet::new(), Vec::new())),
    };
    let views: Vec<String> = connection.fetch_all(catalog.views, &[]).await?;
    let views = BTreeSet::from_iter(views);
    if views.is_empty() {
        return Ok((views, Vec::new()));
    }
    let view_columns: Vec<ViewColumn> = connection.fetch_all(catalog.columns, &[]).await?;
    let types: BTreeMap<(&str, &str), (&str, &str)> = view_columns
        .iter()
        .map(|(table, column, displayed, compared)| {
            ((&**table, &**column), (&**displayed, &**compared))
        })
        .collect();
    let mut problems = Vec::new();
    for TableRows { table, columns, .. } in list_replaceable_tables() {
        if !views.contains(table) {
            continue;
        }
        for (column, values) in &columns {
            let kind = ColumnKind::from_column(column, values);
            let problem = match types.get(&(table, *column)) {
                Some((_, compared)) if (catalog.can_represent)(kind, compared) => continue,
                Some((displayed, _)) => format!("is of the type {displayed}"),
                None => "is missing".to_owned(),
            };
            let expected = (catalog.describe_expected)(kind);
            problems.push(format!(
                "the column {column} of the view {table} {problem}; it has to be {expected}"
            ));
        }
    }
    Ok((views, problems))
}

/// Finds views without an index for groups: reading a group would scan all rows.
pub(crate) async fn find_unindexed_views(
    connection: &mut OwnedConnection,
    views: &BTreeSet<String>,
) -> Sql<Vec<String>> {
    let mut problems = Vec::new();
    for (table, key) in [
        ("efforts", "segment_id"),
        ("authorizations", "application_id"),
    ] {
        if views.contains(table) && !is_indexed(connection, table, key).await? {
            problems.push(format!(
                "the view {table} has no index for {key}, so reading a group scans all rows; create an index on {key}, athlete_id and id, and select these columns in the view without a cast"
            ));
        }
    }
    let (table, key) = ("authorizations", "athlete_id");
    if problems.is_empty() && views.contains(table) && !is_indexed(connection, table, key).await? {
        problems.push(format!(
                "the view {table} has no index for {key}, so each change of an athlete scans all rows; create an index on {key}, and select it in the view without a cast"
            ));
    }
    Ok(problems)
}

async fn is_indexed(connection: &mut OwnedConnection, table: &str, key: &str) -> Sql<bool> {
    match connection {
        #[cfg(feature = "postgres")]
        OwnedConnection::Postgres(connection) => {
            postgres::dump::is_indexed(connection, table, key).await
        }
        #[cfg(feature = "mysql")]
        OwnedConnection::MySql(connection) => mysql::dump::is_indexed(connection, table, key).await,
    }
}
