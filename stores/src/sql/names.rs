//! Statements for names of athletes, applications, owners, tracks and segments.

use std::collections::BTreeMap;

use super::connection::{Sql, SqlConnection, Value};
use super::rows::{Conflict, TableRows};
use super::write::write;
use crate::names::NamedKind;
use crate::{Error, Result};

pub(crate) const READING: &str = "reading names";
pub(crate) const CHANGING: &str = "changing names";
/// The table of names of objects that have no table of their own.
pub(crate) const TABLE: &str = "names";

/// Upper limit of the names of a statement.
const NAMES_PER_STATEMENT: usize = 500;

/// Fails for kinds whose names are part of their rows.
pub(crate) fn check_settable(kind: NamedKind) -> Result<()> {
    if kind.has_separate_names() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "cannot set the name of an {kind}, because it is part of its row; ingest {kind}s with their names"
    )))
}

/// Chooses the table of a kind of names, with a condition on its rows and the values of the
/// condition.
fn choose_rows(kind: NamedKind) -> (&'static str, Vec<Value<'static>>) {
    match kind {
        NamedKind::Athlete => ("athletes WHERE NOT is_deleted", Vec::new()),
        NamedKind::Application => ("applications WHERE name IS NOT NULL", Vec::new()),
        NamedKind::Owner | NamedKind::Track | NamedKind::Segment => {
            ("names WHERE kind = ?", vec![Value::Text(kind.name())])
        }
    }
}

pub(crate) async fn fetch_names(
    connection: &mut SqlConnection<'_>,
    kind: NamedKind,
    ids: &[i64],
) -> Sql<Vec<(i64, String)>> {
    let mut names: BTreeMap<i64, String> = BTreeMap::new();
    for ids in ids.chunks(NAMES_PER_STATEMENT) {
        let (rows, mut values) = choose_rows(kind);
        values.push(Value::Ints(ids));
        let statement =
            format!("SELECT CAST(id AS SIGNED), name FROM {rows} AND id IN ? AND name IS NOT NULL");
        names.extend(
            connection
                .fetch_all::<(i64, String)>(&statement, &values)
                .await?,
        );
    }
    Ok(names.into_iter().collect())
}

/// Finds names that contain a text.
pub(crate) async fn find_names(
    connection: &mut SqlConnection<'_>,
    kind: NamedKind,
    text: &str,
    limit: usize,
) -> Sql<Vec<(i64, String)>> {
    // No stored name contains U+0000, and PostgreSQL rejects it in parameters.
    if text.contains('\0') {
        return Ok(Vec::new());
    }
    let escaped = ["!", "%", "_"]
        .iter()
        .fold(text.to_owned(), |text, wildcard| {
            text.replace(wildcard, &format!("!{wildcard}"))
        });
    let (contains, starts_with) = (format!("%{escaped}%"), format!("{escaped}%"));
    let (rows, mut values) = choose_rows(kind);
    values.extend([Value::Text(&contains), Value::Text(&starts_with)]);
    values.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
    // The database lowers both sides, so both follow the same rules. GROUP BY removes the
    // duplicates that a view may have.
    let statement = format!(
        "SELECT CAST(id AS SIGNED), name FROM {rows} AND LOWER(name) LIKE LOWER(?) ESCAPE '!' \
         GROUP BY id, name \
         ORDER BY CASE WHEN LOWER(name) LIKE LOWER(?) ESCAPE '!' THEN 0 ELSE 1 END, name, id LIMIT ?"
    );
    connection.fetch_all(&statement, &values).await
}

/// Sets or removes names. Call it within a write transaction.
pub(crate) async fn set_names(
    connection: &mut SqlConnection<'_>,
    kind: NamedKind,
    names: &[(i64, Option<String>)],
) -> Sql<()> {
    // Sorted, so that concurrent calls lock rows in one order and do not deadlock.
    let names: BTreeMap<i64, Option<&str>> = names
        .iter()
        .map(|(id, name)| (*id, name.as_deref()))
        .collect();
    let names: Vec<(i64, Option<&str>)> = names.into_iter().collect();
    let kind_name = Value::Text(kind.name());
    for names in names.chunks(NAMES_PER_STATEMENT) {
        let ids: Vec<i64> = names.iter().map(|(id, _)| *id).collect();
        let statement = "DELETE FROM names WHERE kind = ? AND id IN ?";
        connection
            .execute(statement, &[kind_name, Value::Ints(&ids)])
            .await?;
        let new_names = names.iter().filter_map(|(id, name)| Some((*id, (*name)?)));
        let new_names: Vec<(i64, &str)> = new_names.collect();
        let rows = TableRows::entity_names(kind.name(), &new_names);
        write(connection, &rows, Conflict::Fail).await?;
    }
    Ok(())
}
