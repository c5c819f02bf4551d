//! The rows of groups, a page at a time: no text that SQLite hands over grows with them.

use std::sync::Arc;

use schemas::entities::Group;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::rows::{Text, columns};
use crate::canon::FirstGroups;
use crate::sql::connection::{Dialect, Sql};
use crate::sql::decode::Grouped;

/// So many groups are looked for by one statement,
const GROUPS_AT_ONCE: usize = 4096;

/// and about so many rows are handed over by one: some megabytes of text.
const PAGE_ROWS: usize = 1 << 15;

/// All rows of the first of some groups, at most `rows_max` unless the very first has more; as of one
/// moment.
pub(crate) async fn first_groups(
    connection: &mut SqliteConnection,
    of: Grouped,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let (mut texts, mut answered, mut rows_left) = (Vec::new(), 0, rows_max);
    let mut tx = connection.begin().await?;
    while let Some((first, _)) = groups.get(answered..).and_then(<[Group]>::split_first) {
        let asked: Vec<Group> = (groups.iter().skip(answered).take(GROUPS_AT_ONCE))
            .copied()
            .collect();
        let rows = rows_left.min(PAGE_ROWS);
        let page = page(&mut tx, of, &asked, rows).await?;
        rows_left = rows_left.saturating_sub(page.rows);
        if page.groups > 0 {
            answered += page.groups;
            texts.push(page.text);
            continue;
        }
        // The group has more rows than a page, or than may still come.
        if answered > 0
            && (rows < PAGE_ROWS || !has_at_most(&mut tx, of, *first, rows_left).await?)
        {
            break;
        }
        let (whole, rows) = whole(&mut tx, of, *first).await?;
        rows_left = rows_left.saturating_sub(rows);
        answered += 1;
        texts.extend(whole);
    }
    tx.commit().await?;
    let rows = columns(of, texts).await?.batch;
    Ok(FirstGroups {
        rows,
        groups: answered,
    })
}

/// Rows of the first of some groups.
#[derive(Debug)]
struct Page {
    text: Text,
    /// How many rows were read.
    rows: usize,
    /// Of how many groups all rows are there.
    groups: usize,
}

/// A page of at most `rows_max` rows, of whole groups.
async fn page(
    connection: &mut SqliteConnection,
    of: Grouped,
    groups: &[Group],
    rows_max: usize,
) -> Sql<Page> {
    let asked: Vec<(i64, i64)> = groups
        .iter()
        .map(|group| (group.key, group.member))
        .collect();
    let asked = serde_json::to_string(&asked).map_err(|error| sqlx::Error::Encode(error.into()))?;
    // The inner query goes from group to group in their order and stops at the limit; only an index
    // is read for that.
    let statement = format!(
        "SELECT count(*), max(place), {rows} FROM (
             SELECT v.key AS place, e.id AS found FROM json_each(?1) v
             CROSS JOIN {table} e ON e.{key} = v.value ->> 0 AND e.athlete_id = v.value ->> 1
             LIMIT ?2)
         CROSS JOIN {table} e ON e.id = found {join}",
        rows = of.columns(Dialect::Sqlite),
        table = of.table(),
        key = of.key(),
        join = Grouped::JOIN,
    );
    let limit = rows_max.saturating_add(1);
    let (rows, last, json): (i64, Option<i64>, String) = sqlx::query_as(AssertSqlSafe(statement))
        .bind(asked)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_one(connection)
        .await?;
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    let last = last
        .and_then(|last| usize::try_from(last).ok())
        .unwrap_or(0);
    // One row too many: the group that it is of may have more.
    let is_full = rows >= limit;
    let without = groups.get(last).filter(|_| is_full).copied();
    Ok(Page {
        text: Text { json, without },
        rows,
        groups: if is_full { last } else { groups.len() },
    })
}

/// Whether a group has no more rows than that.
async fn has_at_most(
    connection: &mut SqliteConnection,
    of: Grouped,
    group: Group,
    rows_max: usize,
) -> Sql<bool> {
    let statement = format!(
        "SELECT count(*) FROM (
             SELECT 1 FROM {table} WHERE {key} = ? AND athlete_id = ? LIMIT ?)",
        table = of.table(),
        key = of.key(),
    );
    let limit = i64::try_from(rows_max).map_or(i64::MAX, |rows| rows.saturating_add(1));
    let rows: i64 = sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(group.key)
        .bind(group.member)
        .bind(limit)
        .fetch_one(connection)
        .await?;
    Ok(rows < limit)
}

/// All rows of one group, and how many they are.
async fn whole(
    connection: &mut SqliteConnection,
    of: Grouped,
    group: Group,
) -> Sql<(Vec<Text>, usize)> {
    let statement: Arc<str> = format!(
        "SELECT count(*), max(found), {rows} FROM (
             SELECT id AS found FROM {table}
             WHERE {key} = ?1 AND athlete_id = ?2 AND id >= ?3 ORDER BY id LIMIT ?4)
         CROSS JOIN {table} e ON e.id = found {join}",
        rows = of.columns(Dialect::Sqlite),
        table = of.table(),
        key = of.key(),
        join = Grouped::JOIN,
    )
    .into();
    let limit = i64::try_from(PAGE_ROWS).unwrap_or(i64::MAX);
    let (mut texts, mut all, mut from) = (Vec::new(), 0, Some(i64::MIN));
    while let Some(first) = from {
        let (rows, last, json): (i64, Option<i64>, String) =
            sqlx::query_as(AssertSqlSafe(Arc::clone(&statement)))
                .bind(group.key)
                .bind(group.member)
                .bind(first)
                .bind(limit)
                .fetch_one(&mut *connection)
                .await?;
        all += usize::try_from(rows).unwrap_or(usize::MAX);
        let without = None;
        texts.push(Text { json, without });
        from = last
            .filter(|_| rows >= limit)
            .and_then(|last| last.checked_add(1));
    }
    Ok((texts, all))
}
