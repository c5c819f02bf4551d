//! Names: statements that every database understands.

use std::collections::BTreeMap;

use super::connection::{Sql, SqlConnection, Value};
use super::rows::{Conflict, Rows, write};
use crate::names::Named;
use crate::{Error, Result};

pub(crate) const READING: &str = "reading names";
pub(crate) const CHANGING: &str = "changing names";
/// The table of names that are given.
pub(crate) const TABLE: &str = "names";

/// Ids of a statement.
const AT_ONCE: usize = 500;

/// Refuses names that are not given by themselves.
pub(crate) fn given(of: Named) -> Result<()> {
    if of.is_given() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the name of an {of} stands in its row: ingest {of}s with it"
    )))
}

/// The table and the first condition for names of a kind, with the condition's values.
fn rows_of(of: Named) -> (&'static str, Vec<Value<'static>>) {
    match of {
        Named::Athlete => ("athletes WHERE NOT is_deleted", Vec::new()),
        Named::Application => ("applications WHERE name IS NOT NULL", Vec::new()),
        Named::Owner | Named::Track | Named::Segment => {
            ("names WHERE kind = ?", vec![Value::Text(of.name())])
        }
    }
}

pub(crate) async fn names(
    connection: &mut SqlConnection<'_>,
    of: Named,
    ids: &[i64],
) -> Sql<Vec<(i64, String)>> {
    let mut found: BTreeMap<i64, String> = BTreeMap::new();
    for ids in ids.chunks(AT_ONCE) {
        let (rows, mut values) = rows_of(of);
        values.push(Value::Ints(ids));
        let statement =
            format!("SELECT CAST(id AS SIGNED), name FROM {rows} AND id IN ? AND name IS NOT NULL");
        found.extend(
            connection
                .rows::<(i64, String)>(&statement, &values)
                .await?,
        );
    }
    Ok(found.into_iter().collect())
}

/// Finds names that have a text in them.
pub(crate) async fn find(
    connection: &mut SqlConnection<'_>,
    of: Named,
    text: &str,
    limit: usize,
) -> Sql<Vec<(i64, String)>> {
    // No database has a name with it, and PostgreSQL takes no text.
    if text.contains('\0') {
        return Ok(Vec::new());
    }
    let plain = ["!", "%", "_"].iter().fold(text.to_owned(), |text, sign| {
        text.replace(sign, &format!("!{sign}"))
    });
    let (within, first) = (format!("%{plain}%"), format!("{plain}%"));
    let (rows, mut values) = rows_of(of);
    values.extend([Value::Text(&within), Value::Text(&first)]);
    values.push(Value::Int(i64::try_from(limit).unwrap_or(i64::MAX)));
    // What makes letters small does so on both sides. A view may have a row twice.
    let statement = format!(
        "SELECT CAST(id AS SIGNED), name FROM {rows} AND LOWER(name) LIKE LOWER(?) ESCAPE '!' \
         GROUP BY id, name \
         ORDER BY CASE WHEN LOWER(name) LIKE LOWER(?) ESCAPE '!' THEN 0 ELSE 1 END, name, id LIMIT ?"
    );
    connection.rows(&statement, &values).await
}

/// Gives names; call it within a transaction that writes.
pub(crate) async fn set(
    connection: &mut SqlConnection<'_>,
    of: Named,
    names: &[(i64, Option<String>)],
) -> Sql<()> {
    // In one order, so that of two who give names neither waits for the other without end.
    let names: BTreeMap<i64, Option<&str>> = names
        .iter()
        .map(|(id, name)| (*id, name.as_deref()))
        .collect();
    let names: Vec<(i64, Option<&str>)> = names.into_iter().collect();
    let kind = Value::Text(of.name());
    for names in names.chunks(AT_ONCE) {
        let ids: Vec<i64> = names.iter().map(|(id, _)| *id).collect();
        let statement = "DELETE FROM names WHERE kind = ? AND id IN ?";
        connection
            .run(statement, &[kind, Value::Ints(&ids)])
            .await?;
        let given = names.iter().filter_map(|(id, name)| Some((*id, (*name)?)));
        let given: Vec<(i64, &str)> = given.collect();
        let rows = Rows::names_of(of.name(), &given);
        write(connection, &rows, Conflict::Fail).await?;
    }
    Ok(())
}
