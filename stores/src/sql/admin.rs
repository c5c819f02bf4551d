//! Looking after applications: statements that every database understands.
//!
//! Decisions are made while the counter of the application is locked, from what is read after that.

use schemas::entities::Application;

use super::connect::lock_counters;
use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, ascending, undecodable};
use super::notices;
use crate::admin::{
    AuditEntry, By, CapacityRequest, Change, Changed, Decided, Decision, RequestState, Requested,
    Usage,
};

const CAPACITY: &str = "capacity";
const ENFORCEMENT: &str = "enforcement";
const OWNER: &str = "owner";

/// Applications with their usage; `p` is the application.
pub(super) const USAGES: &str = "SELECT CAST(p.id AS SIGNED) AS id, p.name, p.owner,
        CAST(p.athlete_capacity AS SIGNED) AS athlete_capacity, CAST(p.version AS SIGNED) AS version,
        CAST(coalesce(c.athletes, 0) AS SIGNED) AS connected,
        CAST(CASE WHEN u.application_id IS NULL THEN 1 ELSE 0 END AS SIGNED) AS is_enforced
    FROM applications p LEFT JOIN connected c ON c.application_id = p.id
    LEFT JOIN unlimited u ON u.application_id = p.id";

impl FromSqlRow for Application {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        Ok(Self {
            id: row.get("id")?,
            name: row.get("name")?,
            owner: owner(&row.get::<String>("owner")?)?,
            athlete_capacity: row.get("athlete_capacity")?,
            version: row.get("version")?,
        })
    }
}

impl FromSqlRow for Usage {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        Ok(Self {
            application: Application::from_row(row)?,
            is_enforced: row.get::<i64>("is_enforced")? != 0,
            connected: row.get("connected")?,
        })
    }
}

async fn usage_of(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<Usage>> {
    let statement = format!("{USAGES} WHERE p.id = ?");
    connection.row(&statement, &[Value::Int(id)]).await
}

/// The usage of an application whose counter is held from now on; nothing if there is none.
async fn held(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<Usage>> {
    // Nobody holds what is not there: a counter would be made.
    if usage_of(connection, id).await?.is_none() {
        return Ok(None);
    }
    lock_counters(connection, std::iter::once(id)).await?;
    usage_of(connection, id).await
}

/// Changes an application. Call it within a transaction that writes. `token` is unique to the call: a retry after a lost answer
/// finds the record of the change that carries it.
pub(crate) async fn change(
    connection: &mut SqlConnection<'_>,
    id: i64,
    change: Change,
    by: &By,
    now_ms: i64,
    token: &str,
) -> Sql<Option<Usage>> {
    let Some(before) = held(connection, id).await? else {
        return Ok(None);
    };
    let statement = "SELECT id FROM application_audit
                     WHERE application_id = ? AND call_token = ? LIMIT 1";
    let values = [Value::Int(id), Value::Text(token)];
    let own: Option<i64> = connection.row(statement, &values).await?;
    if own.is_some() {
        return Ok(Some(before));
    }
    let cause = Cause {
        by,
        request_id: None,
        token: Some(token),
    };
    put(connection, &before, change, &cause, now_ms).await?;
    usage_of(connection, id).await
}

/// Why an application changes.
struct Cause<'a> {
    by: &'a By,
    /// The request that the change grants.
    request_id: Option<i64>,
    /// The token of the call.
    token: Option<&'a str>,
}

/// Changes what is to be changed, and records it.
async fn put(
    connection: &mut SqlConnection<'_>,
    of: &Usage,
    change: Change,
    cause: &Cause<'_>,
    now_ms: i64,
) -> Sql<()> {
    let id = of.application.id;
    let before = of.application.athlete_capacity;
    if let Some(after) = change.athlete_capacity.filter(|after| *after != before) {
        let statement = "UPDATE applications SET athlete_capacity = ? WHERE id = ?";
        connection
            .run(statement, &[Value::Int(after), Value::Int(id)])
            .await?;
        let changed = Changed::Capacity { before, after };
        record(connection, id, changed, cause, now_ms).await?;
        notices::arm(connection, id, now_ms).await?;
    }
    let before = of.is_enforced;
    if let Some(after) = change.is_enforced.filter(|after| *after != before) {
        let statement = match after {
            true => "DELETE FROM unlimited WHERE application_id = ?",
            false => "INSERT INTO unlimited (application_id) VALUES (?)",
        };
        connection.run(statement, &[Value::Int(id)]).await?;
        let changed = Changed::Enforcement { before, after };
        record(connection, id, changed, cause, now_ms).await?;
    }
    Ok(())
}

async fn record(
    connection: &mut SqlConnection<'_>,
    application: i64,
    changed: Changed,
    cause: &Cause<'_>,
    now_ms: i64,
) -> Sql<()> {
    let mut owners = None;
    let (action, before, after) = match changed {
        Changed::Capacity { before, after } => (CAPACITY, before, after),
        Changed::Enforcement { before, after } => {
            (ENFORCEMENT, i64::from(before), i64::from(after))
        }
        Changed::Owner { before, after } => {
            owners = Some((before.to_string(), after.to_string()));
            (OWNER, 0, 0)
        }
    };
    let (owner_before, owner_after) = owners.unzip();
    let statement = "INSERT INTO application_audit
            (application_id, at_ms, actor, action, value_before, value_after, reason, request_id,
             owner_before, owner_after, call_token)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values = [
        Value::Int(application),
        Value::Int(now_ms),
        Value::Text(&cause.by.actor),
        Value::Text(action),
        Value::Int(before),
        Value::Int(after),
        Value::TextOrNull(cause.by.reason.as_deref()),
        Value::IntOrNull(cause.request_id),
        Value::TextOrNull(owner_before.as_deref()),
        Value::TextOrNull(owner_after.as_deref()),
        Value::TextOrNull(cause.token),
    ];
    connection.run(statement, &values).await?;
    Ok(())
}

/// Id, owner and capacity of an application.
pub(crate) type Stored = (i64, String, i64);

/// Applications that are stored, ascending; `ids` are few enough for one statement.
pub(crate) async fn stored(connection: &mut SqlConnection<'_>, ids: &[i64]) -> Sql<Vec<Stored>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let statement = "SELECT CAST(id AS SIGNED), owner, CAST(athlete_capacity AS SIGNED)
                     FROM applications WHERE id IN ? ORDER BY id";
    connection.rows(statement, &[Value::Ints(ids)]).await
}

/// Records what lines of `actor` changed of applications that were `before`, as [`stored`] gave them.
pub(crate) async fn record_lines(
    connection: &mut SqlConnection<'_>,
    before: &[Stored],
    actor: &str,
    now_ms: i64,
) -> Sql<()> {
    let ids: Vec<i64> = before.iter().map(|(id, ..)| *id).collect();
    let by = By {
        actor: actor.to_owned(),
        reason: None,
    };
    let cause = Cause {
        by: &by,
        request_id: None,
        token: None,
    };
    let after = stored(connection, &ids).await?;
    for ((id, owner_before, before), (_, owner_after, after)) in before.iter().zip(after) {
        let owners = (owner(owner_before)?, owner(&owner_after)?);
        if owners.0 != owners.1 {
            let changed = Changed::Owner {
                before: owners.0,
                after: owners.1,
            };
            record(connection, *id, changed, &cause, now_ms).await?;
        }
        if *before != after {
            let changed = Changed::Capacity {
                before: *before,
                after,
            };
            record(connection, *id, changed, &cause, now_ms).await?;
            notices::arm(connection, *id, now_ms).await?;
        }
    }
    Ok(())
}

fn owner(json: &str) -> Sql<serde_json::Value> {
    serde_json::from_str(json).map_err(undecodable)
}

impl FromSqlRow for AuditEntry {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (before, after) = (row.get("value_before")?, row.get("value_after")?);
        let owner_in = |column: &str| {
            let json: Option<String> = row.get(column)?;
            owner(json.as_deref().unwrap_or("null"))
        };
        let action: String = row.get("action")?;
        let changed = match action.as_str() {
            CAPACITY => Changed::Capacity { before, after },
            ENFORCEMENT => Changed::Enforcement {
                before: before != 0,
                after: after != 0,
            },
            OWNER => Changed::Owner {
                before: owner_in("owner_before")?,
                after: owner_in("owner_after")?,
            },
            other => return Err(undecodable(format!("{other:?} is no change that is known"))),
        };
        Ok(Self {
            id: row.get("id")?,
            application_id: row.get("application_id")?,
            at_ms: row.get("at_ms")?,
            actor: row.get("actor")?,
            changed,
            reason: row.get("reason")?,
            request_id: row.get("request_id")?,
        })
    }
}

pub(super) const REQUESTS: &str = "SELECT id, application_id, athlete_capacity, asked_by, reason,
        asked_at_ms, state, decided_by, answer, decided_at_ms, granted_capacity
    FROM capacity_requests";

impl FromSqlRow for CapacityRequest {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (decided_by, answer): (Option<String>, _) =
            (row.get("decided_by")?, row.get("answer")?);
        let state: String = row.get("state")?;
        Ok(Self {
            id: row.get("id")?,
            application_id: row.get("application_id")?,
            athlete_capacity: row.get("athlete_capacity")?,
            asked: By {
                actor: row.get("asked_by")?,
                reason: row.get("reason")?,
            },
            asked_at_ms: row.get("asked_at_ms")?,
            state: RequestState::of_name(&state)
                .ok_or_else(|| undecodable(format!("{state:?} is no state of a request")))?,
            decided: decided_by.map(|actor| By {
                actor,
                reason: answer,
            }),
            decided_at_ms: row.get("decided_at_ms")?,
            granted_capacity: row.get("granted_capacity")?,
        })
    }
}

/// Records a request for a higher capacity. Call it within a transaction that writes. `token` is unique to the call: a retry
/// after a lost answer finds the request that carries it.
pub(crate) async fn request_capacity(
    connection: &mut SqlConnection<'_>,
    (id, athlete_capacity): (i64, i64),
    by: &By,
    now_ms: i64,
    token: &str,
) -> Sql<Requested> {
    let Some(usage) = held(connection, id).await? else {
        return Ok(Requested::UnknownApplication);
    };
    // Whatever became of the request since: it is the outcome of this call.
    let statement = format!("{REQUESTS} WHERE application_id = ? AND request_token = ?");
    let values = [Value::Int(id), Value::Text(token)];
    if let Some(own) = connection.row(&statement, &values).await? {
        return Ok(Requested::New(own));
    }
    if athlete_capacity <= usage.application.athlete_capacity {
        return Ok(Requested::Enough {
            athlete_capacity: usage.application.athlete_capacity,
        });
    }
    if let Some(open) = open_of(connection, id).await? {
        return Ok(Requested::Open(open));
    }
    let statement = "INSERT INTO capacity_requests
            (application_id, athlete_capacity, asked_by, reason, asked_at_ms, state, request_token)
        VALUES (?, ?, ?, ?, ?, ?, ?)";
    let values = [
        Value::Int(id),
        Value::Int(athlete_capacity),
        Value::Text(&by.actor),
        Value::TextOrNull(by.reason.as_deref()),
        Value::Int(now_ms),
        Value::Text(RequestState::Open.name()),
        Value::Text(token),
    ];
    connection.run(statement, &values).await?;
    let made = open_of(connection, id).await?;
    made.map(Requested::New).ok_or(sqlx::Error::RowNotFound)
}

/// The open request of an application.
async fn open_of(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<CapacityRequest>> {
    let statement = format!("{REQUESTS} WHERE application_id = ? AND state = ? ORDER BY id DESC");
    let values = [Value::Int(id), Value::Text(RequestState::Open.name())];
    connection.row(&statement, &values).await
}

async fn request_of(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<CapacityRequest>> {
    let statement = format!("{REQUESTS} WHERE id = ?");
    connection.row(&statement, &[Value::Int(id)]).await
}

/// Decides a request. Call it within a transaction that writes. `token` is unique to the call: a retry after a lost answer
/// finds the decision that carries it.
pub(crate) async fn decide(
    connection: &mut SqlConnection<'_>,
    (request_id, decision): (i64, Decision),
    by: &By,
    now_ms: i64,
    token: &str,
) -> Sql<Decided> {
    let Some(found) = request_of(connection, request_id).await? else {
        return Ok(Decided::Unknown);
    };
    let id = found.application_id;
    let Some(before) = held(connection, id).await? else {
        return Ok(Decided::Unknown);
    };
    // Somebody else may have decided before the counter was held.
    let Some(found) = request_of(connection, request_id).await? else {
        return Ok(Decided::Unknown);
    };
    if found.state != RequestState::Open {
        let statement = "SELECT id FROM capacity_requests WHERE id = ? AND decision_token = ?";
        let values = [Value::Int(request_id), Value::Text(token)];
        let own: Option<i64> = connection.row(statement, &values).await?;
        return Ok(match own {
            Some(_) => Decided::Done {
                request: found,
                usage: before,
            },
            None => Decided::Already(found),
        });
    }
    let athlete_capacity = before.application.athlete_capacity;
    let (state, granted) = match decision {
        Decision::Refuse => (RequestState::Refused, None),
        Decision::Grant(Some(granted)) if granted < athlete_capacity => {
            return Ok(Decided::Lowers { athlete_capacity });
        }
        Decision::Grant(granted) => {
            let granted = granted.unwrap_or(found.athlete_capacity);
            (RequestState::Granted, Some(granted.max(athlete_capacity)))
        }
    };
    let statement = "UPDATE capacity_requests
        SET state = ?, decided_by = ?, answer = ?, decided_at_ms = ?, granted_capacity = ?,
            decision_token = ?
        WHERE id = ?";
    let values = [
        Value::Text(state.name()),
        Value::Text(&by.actor),
        Value::TextOrNull(by.reason.as_deref()),
        Value::Int(now_ms),
        Value::IntOrNull(granted),
        Value::Text(token),
        Value::Int(request_id),
    ];
    connection.run(statement, &values).await?;
    let change = Change {
        athlete_capacity: granted,
        is_enforced: None,
    };
    let cause = Cause {
        by,
        request_id: Some(request_id),
        token: None,
    };
    put(connection, &before, change, &cause, now_ms).await?;
    match (
        request_of(connection, request_id).await?,
        usage_of(connection, id).await?,
    ) {
        (Some(request), Some(usage)) => Ok(Decided::Done { request, usage }),
        _ => Ok(Decided::Unknown),
    }
}

pub(super) fn bounded(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Of applications those to which somebody is connected, ascending; `ids` are few enough for one statement.
async fn connected(connection: &mut SqlConnection<'_>, ids: &[i64]) -> Sql<Vec<i64>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let statement = "SELECT application_id FROM connected
                     WHERE application_id IN ? AND athletes > 0 ORDER BY application_id";
    connection.rows(statement, &[Value::Ints(ids)]).await
}

/// Notes what is reached of the capacities of applications that came after their athletes: nobody knew
/// them when those connected.
pub(crate) async fn note_new(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
    now_ms: i64,
) -> Sql<()> {
    for id in connected(connection, ids).await? {
        notices::arm(connection, id, now_ms).await?;
    }
    Ok(())
}

/// The applications of lines that are not stored, ascending.
pub(crate) fn new(stored: &[Stored], rows: &[&Application]) -> Vec<i64> {
    let is_new = |row: &&&Application| {
        let stored = stored.binary_search_by_key(&row.id, |(id, ..)| *id);
        stored.is_err()
    };
    ascending(rows.iter().filter(is_new).map(|row| row.id))
}
