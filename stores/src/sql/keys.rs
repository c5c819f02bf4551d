//! Statements for API keys and the audit log of administrators.

use schemas::access::Scopes;

use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, decode_error};
use crate::keys::{AdminAction, ApiKey, ApiKeyRecord, KeyDigest, RotateOutcome};

pub(crate) const READING: &str = "reading keys";
pub(crate) const CHANGING: &str = "changing keys";
pub(crate) const ACTIONS: &str = "reading the audit log of administrators";

pub(super) const SELECT_KEYS: &str = "SELECT id, name, scopes, digest, made_at_ms, made_by,
        expires_at_ms, revoked_at_ms, revoked_by, replaced_by, used_at_ms
    FROM api_keys";

impl FromSqlRow for ApiKeyRecord {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let id: String = row.get("id")?;
        let digest = KeyDigest::parse(&row.get::<String>("digest")?);
        let digest =
            digest.ok_or_else(|| decode_error(format!("key {id} has an invalid digest")))?;
        let scopes = row.get::<String>("scopes")?.parse::<Scopes>();
        let scopes = scopes
            .map_err(|error| decode_error(format!("key {id} has invalid scopes: {error}")))?;
        Ok(Self {
            digest,
            key: ApiKey {
                id,
                name: row.get("name")?,
                scopes,
                created_at_ms: row.get("made_at_ms")?,
                created_by: row.get("made_by")?,
                expires_at_ms: row.get("expires_at_ms")?,
                revoked_at_ms: row.get("revoked_at_ms")?,
                revoked_by: row.get("revoked_by")?,
                replaced_by: row.get("replaced_by")?,
                used_at_ms: row.get("used_at_ms")?,
            },
        })
    }
}

impl FromSqlRow for AdminAction {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        Ok(Self {
            number: row.get("number")?,
            at_ms: row.get("at_ms")?,
            actor: row.get("actor")?,
            action: row.get("action")?,
            target: row.get("target")?,
            detail: row.get("detail")?,
        })
    }
}

pub(crate) async fn fetch_key(
    connection: &mut SqlConnection<'_>,
    id: &str,
) -> Sql<Option<ApiKeyRecord>> {
    let statement = format!("{SELECT_KEYS} WHERE id = ?");
    connection
        .fetch_optional(&statement, &[Value::Text(id)])
        .await
}

/// Adds a key and an audit record. Call it, like the other changes, within a write transaction.
pub(crate) async fn add(connection: &mut SqlConnection<'_>, new_key: &ApiKeyRecord) -> Sql<()> {
    let key = &new_key.key;
    // An earlier attempt may have committed without receiving the response.
    let stored = fetch_key(connection, &key.id).await?;
    match stored {
        Some(stored) if stored.digest == new_key.digest => return Ok(()),
        // A `Decode` error, so that the call is not retried.
        Some(_) => {
            return Err(sqlx::Error::Decode(
                format!("a key with the id {} exists already", key.id).into(),
            ));
        }
        None => {}
    }
    insert(connection, new_key).await?;
    let scopes = key.scopes.to_string();
    let action = build_action(key.created_at_ms, &key.created_by, "keys.create", &key.id);
    let detail = Some(format!("{}: {scopes}", key.name));
    record(connection, &AdminAction { detail, ..action }).await
}

async fn insert(connection: &mut SqlConnection<'_>, new_key: &ApiKeyRecord) -> Sql<()> {
    let key = &new_key.key;
    let statement = "INSERT INTO api_keys
            (id, name, scopes, digest, made_at_ms, made_by, expires_at_ms)
        VALUES (?, ?, ?, ?, ?, ?, ?)";
    let (scopes, digest) = (key.scopes.to_string(), new_key.digest.to_text());
    let values = [
        Value::Text(&key.id),
        Value::Text(&key.name),
        Value::Text(&scopes),
        Value::Text(&digest),
        Value::Int(key.created_at_ms),
        Value::Text(&key.created_by),
        Value::IntOrNull(key.expires_at_ms),
    ];
    connection.execute(statement, &values).await?;
    Ok(())
}

fn build_action(at_ms: i64, actor: &str, action: &str, target: &str) -> AdminAction {
    AdminAction {
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
    by: &ApiKeyRecord,
) -> Sql<RotateOutcome> {
    let now_ms = by.key.created_at_ms;
    // One statement checks and replaces, so of two concurrent rotations one finds the key already
    // replaced.
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
    let is_done = connection.execute(statement, &values).await? > 0;
    let Some(stored) = fetch_key(connection, id).await? else {
        return Ok(RotateOutcome::Unknown);
    };
    if !is_done {
        // An earlier attempt may have committed without receiving the response.
        let is_ours = stored.key.replaced_by.as_deref() == Some(by.key.id.as_str());
        return Ok(match is_ours {
            true => RotateOutcome::Done(stored.key),
            false => RotateOutcome::Inactive(stored.key),
        });
    }
    insert(connection, by).await?;
    let action = build_action(now_ms, &by.key.created_by, "keys.rotate", id);
    let detail = Some(format!("replaced by {}", by.key.id));
    record(connection, &AdminAction { detail, ..action }).await?;
    Ok(RotateOutcome::Done(stored.key))
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
    if connection.execute(statement, &values).await? > 0 {
        record(connection, &build_action(now_ms, by, "keys.revoke", id)).await?;
    }
    Ok(fetch_key(connection, id).await?.map(|record| record.key))
}

pub(crate) async fn record_use(
    connection: &mut SqlConnection<'_>,
    id: &str,
    at_ms: i64,
) -> Sql<()> {
    let statement = "UPDATE api_keys SET used_at_ms = ?
        WHERE id = ? AND (used_at_ms IS NULL OR used_at_ms < ?)";
    let values = [Value::Int(at_ms), Value::Text(id), Value::Int(at_ms)];
    connection.execute(statement, &values).await?;
    Ok(())
}

/// Records an action under a unique id, in a transaction of its own. Retries do not repeat the
/// record.
pub(crate) async fn record_once(
    connection: &mut SqlConnection<'_>,
    id: &str,
    action: &AdminAction,
) -> Sql<()> {
    // An earlier attempt may have committed without receiving the response.
    let statement = "SELECT number FROM admin_actions WHERE id = ?";
    let number: Option<i64> = connection
        .fetch_optional(statement, &[Value::Text(id)])
        .await?;
    if number.is_some() {
        return Ok(());
    }
    insert_action(connection, Some(id), action).await
}

/// Records an action in the transaction that performs it. A retry finds the action done, so the
/// record needs no id.
async fn record(connection: &mut SqlConnection<'_>, action: &AdminAction) -> Sql<()> {
    insert_action(connection, None, action).await
}

async fn insert_action(
    connection: &mut SqlConnection<'_>,
    id: Option<&str>,
    action: &AdminAction,
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
    connection.execute(statement, &values).await?;
    Ok(())
}
