//! API keys: statements that every database understands.

use schemas::access::Scopes;

use super::admin::bounded;
use super::connection::{Sql, SqlConnection, Value, undecodable};
use crate::keys::{Action, ApiKey, KeptKey, KeyDigest, Rotated};

pub(crate) const READING: &str = "reading keys";
pub(crate) const CHANGING: &str = "changing keys";
pub(crate) const ACTIONS: &str = "reading what administrators did";

const KEYS: &str = "SELECT id, name, scopes, digest, made_at_ms, made_by, expires_at_ms,
        revoked_at_ms, revoked_by, replaced_by, used_at_ms
    FROM api_keys";

type KeyRow = (
    String,
    String,
    String,
    String,
    i64,
    String,
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<i64>,
);

fn kept(row: KeyRow) -> Sql<KeptKey> {
    let (id, name, scopes, digest, made_at_ms, made_by, expires_at_ms, ..) = &row;
    let digest = KeyDigest::of_text(digest);
    let digest = digest.ok_or_else(|| undecodable(format!("the digest of the key {id}")))?;
    let scopes = scopes.parse::<Scopes>();
    let scopes = scopes.map_err(|error| undecodable(format!("the key {id}: {error}")))?;
    Ok(KeptKey {
        digest,
        key: ApiKey {
            id: id.clone(),
            name: name.clone(),
            scopes,
            made_at_ms: *made_at_ms,
            made_by: made_by.clone(),
            expires_at_ms: *expires_at_ms,
            revoked_at_ms: row.7,
            revoked_by: row.8,
            replaced_by: row.9,
            used_at_ms: row.10,
        },
    })
}

pub(crate) async fn any(connection: &mut SqlConnection<'_>) -> Sql<bool> {
    let found: Vec<(i64,)> = connection
        .rows("SELECT number FROM api_keys ORDER BY number LIMIT 1", &[])
        .await?;
    Ok(!found.is_empty())
}

pub(crate) async fn key(connection: &mut SqlConnection<'_>, id: &str) -> Sql<Option<KeptKey>> {
    let statement = format!("{KEYS} WHERE id = ?");
    let rows: Vec<KeyRow> = connection.rows(&statement, &[Value::Text(id)]).await?;
    rows.into_iter().next().map(kept).transpose()
}

pub(crate) async fn keys(
    connection: &mut SqlConnection<'_>,
    before: Option<&str>,
    limit: usize,
) -> Sql<Vec<ApiKey>> {
    let limit = Value::Int(bounded(limit));
    let rows: Vec<KeyRow> = match before {
        None => {
            let statement = format!("{KEYS} ORDER BY number DESC LIMIT ?");
            connection.rows(&statement, &[limit]).await?
        }
        Some(before) => {
            let statement = format!(
                "{KEYS} WHERE number < (SELECT number FROM api_keys WHERE id = ?)
                 ORDER BY number DESC LIMIT ?"
            );
            connection
                .rows(&statement, &[Value::Text(before), limit])
                .await?
        }
    };
    rows.into_iter().map(|row| Ok(kept(row)?.key)).collect()
}

/// Adds a key and records it; call it within a transaction that writes, as all that change something.
pub(crate) async fn add(connection: &mut SqlConnection<'_>, kept: &KeptKey) -> Sql<()> {
    let key = &kept.key;
    // A try before this one may have done it, and not have heard so.
    let found = self::key(connection, &key.id).await?;
    match found {
        Some(found) if found.digest == kept.digest => return Ok(()),
        // No waiting makes room for it.
        Some(_) => {
            return Err(sqlx::Error::Decode(
                format!("there is a key {} already", key.id).into(),
            ));
        }
        None => {}
    }
    insert(connection, kept).await?;
    let scopes = key.scopes.to_string();
    let action = action(key.made_at_ms, &key.made_by, "keys.create", &key.id);
    let detail = Some(format!("{}: {scopes}", key.name));
    record(connection, &Action { detail, ..action }).await
}

async fn insert(connection: &mut SqlConnection<'_>, kept: &KeptKey) -> Sql<()> {
    let key = &kept.key;
    let statement = "INSERT INTO api_keys
            (id, name, scopes, digest, made_at_ms, made_by, expires_at_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?)";
    let (scopes, digest) = (key.scopes.to_string(), kept.digest.text());
    let values = [
        Value::Text(&key.id),
        Value::Text(&key.name),
        Value::Text(&scopes),
        Value::Text(&digest),
        Value::Int(key.made_at_ms),
        Value::Text(&key.made_by),
        Value::IntOrNull(key.expires_at_ms),
    ];
    connection.run(statement, &values).await?;
    Ok(())
}

fn action(at_ms: i64, actor: &str, action: &str, target: &str) -> Action {
    Action {
        number: 0,
        at_ms,
        actor: actor.to_owned(),
        action: action.to_owned(),
        target: target.to_owned(),
        detail: None,
    }
}

pub(crate) async fn rotate(
    connection: &mut SqlConnection<'_>,
    id: &str,
    until_ms: i64,
    by: &KeptKey,
) -> Sql<Rotated> {
    let now_ms = by.key.made_at_ms;
    // One statement decides: of two that rotate a key at the same moment one finds it replaced.
    let statement = "UPDATE api_keys SET replaced_by = ?,
            expires_at_ms = CASE WHEN expires_at_ms IS NULL OR expires_at_ms > ? THEN ? ELSE expires_at_ms END
        WHERE id = ? AND revoked_at_ms IS NULL AND replaced_by IS NULL
            AND (expires_at_ms IS NULL OR expires_at_ms > ?)";
    let values = [
        Value::Text(&by.key.id),
        Value::Int(until_ms),
        Value::Int(until_ms),
        Value::Text(id),
        Value::Int(now_ms),
    ];
    let is_done = connection.run(statement, &values).await? > 0;
    let Some(found) = key(connection, id).await? else {
        return Ok(Rotated::Unknown);
    };
    if !is_done {
        // A try before this one may have done it, and not have heard so.
        let is_ours = found.key.replaced_by.as_deref() == Some(by.key.id.as_str());
        return Ok(match is_ours {
            true => Rotated::Done(found.key),
            false => Rotated::Over(found.key),
        });
    }
    insert(connection, by).await?;
    let action = action(now_ms, &by.key.made_by, "keys.rotate", id);
    let detail = Some(format!("replaced by {}", by.key.id));
    record(connection, &Action { detail, ..action }).await?;
    Ok(Rotated::Done(found.key))
}

pub(crate) async fn revoke(
    connection: &mut SqlConnection<'_>,
    id: &str,
    by: &str,
    now_ms: i64,
) -> Sql<Option<ApiKey>> {
    let statement = "UPDATE api_keys SET revoked_at_ms = ?, revoked_by = ?
        WHERE id = ? AND revoked_at_ms IS NULL";
    let values = [Value::Int(now_ms), Value::Text(by), Value::Text(id)];
    if connection.run(statement, &values).await? > 0 {
        record(connection, &action(now_ms, by, "keys.revoke", id)).await?;
    }
    Ok(key(connection, id).await?.map(|kept| kept.key))
}

pub(crate) async fn used(connection: &mut SqlConnection<'_>, id: &str, at_ms: i64) -> Sql<()> {
    let statement = "UPDATE api_keys SET used_at_ms = ?
        WHERE id = ? AND (used_at_ms IS NULL OR used_at_ms < ?)";
    let values = [Value::Int(at_ms), Value::Text(id), Value::Int(at_ms)];
    connection.run(statement, &values).await?;
    Ok(())
}

/// Records an action by itself, under an id that no other has: it is there once, however often this is tried.
pub(crate) async fn record_once(
    connection: &mut SqlConnection<'_>,
    id: &str,
    action: &Action,
) -> Sql<()> {
    // A try before this one may have done it, and not have heard so.
    let statement = "SELECT number FROM admin_actions WHERE id = ?";
    let found: Vec<(i64,)> = connection.rows(statement, &[Value::Text(id)]).await?;
    if !found.is_empty() {
        return Ok(());
    }
    insert_action(connection, Some(id), action).await
}

/// Records an action in the transaction that carries it out, which finds it done when it is tried again.
async fn record(connection: &mut SqlConnection<'_>, action: &Action) -> Sql<()> {
    insert_action(connection, None, action).await
}

async fn insert_action(
    connection: &mut SqlConnection<'_>,
    id: Option<&str>,
    action: &Action,
) -> Sql<()> {
    let statement = "INSERT INTO admin_actions (id, at_ms, actor, action, target, detail)
        VALUES (?, ?, ?, ?, ?, ?)";
    let values = [
        Value::TextOrNull(id),
        Value::Int(action.at_ms),
        Value::Text(&action.actor),
        Value::Text(&action.action),
        Value::Text(&action.target),
        Value::TextOrNull(action.detail.as_deref()),
    ];
    connection.run(statement, &values).await?;
    Ok(())
}

pub(crate) async fn actions(
    connection: &mut SqlConnection<'_>,
    before: Option<i64>,
    limit: usize,
) -> Sql<Vec<Action>> {
    let statement = "SELECT number, at_ms, actor, action, target, detail FROM admin_actions
        WHERE number < ? ORDER BY number DESC LIMIT ?";
    let values = [
        Value::Int(before.unwrap_or(i64::MAX)),
        Value::Int(bounded(limit)),
    ];
    type Row = (i64, i64, String, String, String, Option<String>);
    let rows: Vec<Row> = connection.rows(statement, &values).await?;
    let actions = rows.into_iter().map(|row| {
        let (number, at_ms, actor, action, target, detail) = row;
        Action {
            number,
            at_ms,
            actor,
            action,
            target,
            detail,
        }
    });
    Ok(actions.collect())
}
