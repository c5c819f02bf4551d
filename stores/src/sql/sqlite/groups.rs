//! Reads the rows of groups page by page, so that the size of a JSON text from SQLite is bounded.

use std::sync::Arc;

use schemas::entities::Group;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use super::rows::{JsonRows, decode};
use crate::entities::FirstGroups;
use crate::sql::connection::{Dialect, Sql};
use crate::sql::decode::GroupedSource;

/// Upper limit of the groups of a page.
const GROUPS_PER_PAGE: usize = 4096;

/// The number of rows of a page, a few megabytes of text.
const PAGE_ROWS: usize = 1 << 15;

/// Reads all rows of the first groups from one snapshot, up to `rows_max` rows but at least one
/// group.
pub(crate) async fn first_groups(
    connection: &mut SqliteConnection,
    source: GroupedSource,
    groups: &[Group],
    rows_max: usize,
) -> Sql<FirstGroups> {
    let (mut json_texts, mut groups_read, mut rows_left) = (Vec::new(), 0, rows_max);
    let mut tx = connection.begin().await?;
    while let Some((first, _)) = groups.get(groups_read..).and_then(<[Group]>::split_first) {
        let requested: Vec<Group> = (groups.iter().skip(groups_read).take(GROUPS_PER_PAGE))
            .copied()
            .collect();
        let page_max = rows_left.min(PAGE_ROWS);
        let page = read_page(&mut tx, source, &requested, page_max).await?;
        rows_left = rows_left.saturating_sub(page.rows);
        if page.groups > 0 {
            groups_read += page.groups;
            json_texts.push(page.text);
            continue;
        }
        // The first group has more rows than a page, or than the limit allows.
        if groups_read > 0
            && (page_max < PAGE_ROWS
                || !has_at_most_rows(&mut tx, source, *first, rows_left).await?)
        {
            break;
        }
        let (group_texts, group_rows) = read_group(&mut tx, source, *first).await?;
        rows_left = rows_left.saturating_sub(group_rows);
        groups_read += 1;
        json_texts.extend(group_texts);
    }
    tx.commit().await?;
    let rows = decode(source, json_texts).await?.batch;
    Ok(FirstGroups {
        rows,
        groups: groups_read,
    })
}

/// A page of complete groups.
#[derive(Debug)]
struct Page {
    text: JsonRows,
    /// The number of rows that were read.
    rows: usize,
    /// The number of complete groups.
    groups: usize,
}

/// Reads a page of complete groups with at most `rows_max` rows.
async fn read_page(
    connection: &mut SqliteConnection,
    source: GroupedSource,
    groups: &[Group],
    rows_max: usize,
) -> Sql<Page> {
    let keys: Vec<(i64, i64)> = groups
        .iter()
        .map(|group| (group.key, group.member))
        .collect();
    let keys = serde_json::to_string(&keys).map_err(|error| sqlx::Error::Encode(error.into()))?;
    // The inner query reads only the index, group by group, and stops at the limit.
    let statement = format!(
        "SELECT count(*), max(group_index), {rows} FROM (
             SELECT v.key AS group_index, e.id AS row_id FROM json_each(?1) v
             CROSS JOIN {table} e ON e.{key} = v.value ->> 0 AND e.athlete_id = v.value ->> 1
             LIMIT ?2)
         CROSS JOIN {table} e ON e.id = row_id {join}",
        rows = source.columns(Dialect::Sqlite),
        table = source.table(),
        key = source.key_column(),
        join = GroupedSource::JOIN,
    );
    let limit = rows_max.saturating_add(1);
    let (rows, last, json): (i64, Option<i64>, String) = sqlx::query_as(AssertSqlSafe(statement))
        .bind(keys)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_one(connection)
        .await?;
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    let last = last
        .and_then(|last| usize::try_from(last).ok())
        .unwrap_or(0);
    // Beyond the limit: the last group may have more rows, so it is excluded.
    let is_full = rows >= limit;
    let excluded = groups.get(last).filter(|_| is_full).copied();
    Ok(Page {
        text: JsonRows { json, excluded },
        rows,
        groups: if is_full { last } else { groups.len() },
    })
}

/// Returns whether a group has at most `rows_max` rows.
async fn has_at_most_rows(
    connection: &mut SqliteConnection,
    source: GroupedSource,
    group: Group,
    rows_max: usize,
) -> Sql<bool> {
    let statement = format!(
        "SELECT count(*) FROM (
             SELECT 1 FROM {table} WHERE {key} = ? AND athlete_id = ? LIMIT ?)",
        table = source.table(),
        key = source.key_column(),
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

/// Reads all rows of a group, and returns them with their number.
async fn read_group(
    connection: &mut SqliteConnection,
    source: GroupedSource,
    group: Group,
) -> Sql<(Vec<JsonRows>, usize)> {
    let statement: Arc<str> = format!(
        "SELECT count(*), max(row_id), {rows} FROM (
             SELECT id AS row_id FROM {table}
             WHERE {key} = ?1 AND athlete_id = ?2 AND id >= ?3 ORDER BY id LIMIT ?4)
         CROSS JOIN {table} e ON e.id = row_id {join}",
        rows = source.columns(Dialect::Sqlite),
        table = source.table(),
        key = source.key_column(),
        join = GroupedSource::JOIN,
    )
    .into();
    let limit = i64::try_from(PAGE_ROWS).unwrap_or(i64::MAX);
    let (mut texts, mut row_count, mut from) = (Vec::new(), 0, Some(i64::MIN));
    while let Some(first) = from {
        let (rows, last, json): (i64, Option<i64>, String) =
            sqlx::query_as(AssertSqlSafe(Arc::clone(&statement)))
                .bind(group.key)
                .bind(group.member)
                .bind(first)
                .bind(limit)
                .fetch_one(&mut *connection)
                .await?;
        row_count += usize::try_from(rows).unwrap_or(usize::MAX);
        let excluded = None;
        texts.push(JsonRows { json, excluded });
        from = last
            .filter(|_| rows >= limit)
            .and_then(|last| last.checked_add(1));
    }
    Ok((texts, row_count))
}
