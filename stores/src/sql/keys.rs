//! API keys: statements that every database understands.

use schemas::access::Scopes;

use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, undecodable};
use crate::keys::{Action, ApiKey, KeptKey, KeyDigest, Rotated};

pub(crate) const READING: &str = "reading keys";
pub(crate) const CHANGING: &str = "changing keys";
pub(crate) const ACTIONS: &str = "reading what administrators did";

pub(super) const KEYS: &str = "SELECT id, name, scopes, digest, made_at_ms, made_by, expires_at_ms,
        revoked_at_ms, revoked_by, replaced_by, used_at_ms
    FROM api_keys";

impl FromSqlRow for KeptKey {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let id: String = row.get("id")?;
        let digest = KeyDigest::of_text(&row.get::<String>("digest")?);
        let digest = digest.ok_or_else(|| undecodable(format!("the digest of the key {id}")))?;
        let scopes = row.get::<String>("scopes")?.parse::<Scopes>();
        let scopes = scopes.map_err(|error| undecodable(format!("the key {id}: {error}")))?;
        Ok(Self {
            digest,
            key: ApiKey {
                id,
                name: row.get("name")?,
                scopes,
                made_at_ms: row.get("made_at_ms")?,
                made_by: row.get("made_by")?,
                expires_at_ms: row.get("expires_at_ms")?,
                revoked_at_ms: row.get("revoked_at_ms")?,
                revoked_by: row.get("revoked_by")?,
                replaced_by: row.get("replaced_by")?,
                used_at_ms: row.get("used_at_ms")?,
            },
        })
    }
}

impl FromSqlRow for Action {
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

pub(crate) async fn key(connection: &mut SqlConnection<'_>, id: &str) -> Sql<Option<KeptKey>> {
    let statement = format!("{KEYS} WHERE id = ?");
    connection.row(&statement, &[Value::Text(id)]).await
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
    let found: Option<i64> = connection.row(statement, &[Value::Text(id)]).await?;
    if found.is_some() {
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
