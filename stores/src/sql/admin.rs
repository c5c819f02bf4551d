//! Statements that administer applications.
//!
//! Each decision locks the counter of the application first, and then reads the state on which it
//! depends.

use schemas::entities::Application;

use super::connect::lock_counters;
use super::connection::{FromSqlRow, Sql, SqlConnection, SqlRow, Value, decode_error, sort_unique};
use super::notices;
use crate::admin::{
    ApplicationChange, ApplicationUsage, AuditContext, AuditEntry, AuditedChange, CapacityRequest,
    CapacityRequestOutcome, DecisionOutcome, RequestDecision, RequestState,
};

const CAPACITY: &str = "capacity";
const ENFORCEMENT: &str = "enforcement";
const OWNER: &str = "owner";

/// Selects applications `p` with their usage.
pub(super) const SELECT_USAGES: &str = "SELECT CAST(p.id AS SIGNED) AS id, p.name, p.owner,
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
            owner: parse_owner(&row.get::<String>("owner")?)?,
            athlete_capacity: row.get("athlete_capacity")?,
            version: row.get("version")?,
        })
    }
}

impl FromSqlRow for ApplicationUsage {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        Ok(Self {
            application: Application::from_row(row)?,
            is_enforced: row.get::<i64>("is_enforced")? != 0,
            connected: row.get("connected")?,
        })
    }
}

async fn fetch_usage(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<ApplicationUsage>> {
    let statement = format!("{SELECT_USAGES} WHERE p.id = ?");
    connection
        .fetch_optional(&statement, &[Value::Int(id)])
        .await
}

/// Locks the counter of an application until the commit, and reads its usage. Returns `None` if the
/// application does not exist.
async fn lock_usage(connection: &mut SqlConnection<'_>, id: i64) -> Sql<Option<ApplicationUsage>> {
    // Checked first, because locking would create a counter.
    if fetch_usage(connection, id).await?.is_none() {
        return Ok(None);
    }
    lock_counters(connection, std::iter::once(id)).await?;
    fetch_usage(connection, id).await
}

/// Changes an application. Call it within a write transaction. `token` is unique to the call: a
/// retry after a lost response finds the audit record with this token.
pub(crate) async fn change(
    connection: &mut SqlConnection<'_>,
    id: i64,
    change: ApplicationChange,
    by: &AuditContext,
    now_ms: i64,
    token: &str,
) -> Sql<Option<ApplicationUsage>> {
    let Some(usage) = lock_usage(connection, id).await? else {
        return Ok(None);
    };
    let statement = "SELECT id FROM application_audit
                     WHERE application_id = ? AND call_token = ? LIMIT 1";
    let values = [Value::Int(id), Value::Text(token)];
    // An earlier attempt of this call committed.
    let committed: Option<i64> = connection.fetch_optional(statement, &values).await?;
    if committed.is_some() {
        return Ok(Some(usage));
    }
    let cause = Cause {
        by,
        request_id: None,
        token: Some(token),
    };
    apply_change(connection, &usage, change, &cause, now_ms).await?;
    fetch_usage(connection, id).await
}

/// The reason for a change of an application.
struct Cause<'a> {
    by: &'a AuditContext,
    /// The request that the change grants.
    request_id: Option<i64>,
    /// The token of the call.
    token: Option<&'a str>,
}

/// Applies a change where it differs from the present state, and adds audit records.
async fn apply_change(
    connection: &mut SqlConnection<'_>,
    usage: &ApplicationUsage,
    change: ApplicationChange,
    cause: &Cause<'_>,
    now_ms: i64,
) -> Sql<()> {
    let id = usage.application.id;
    let before = usage.application.athlete_capacity;
    if let Some(after) = change.athlete_capacity.filter(|after| *after != before) {
        let statement = "UPDATE applications SET athlete_capacity = ? WHERE id = ?";
        connection
            .execute(statement, &[Value::Int(after), Value::Int(id)])
            .await?;
        let audited = AuditedChange::Capacity { before, after };
        add_audit_record(connection, id, audited, cause, now_ms).await?;
        notices::reset_thresholds(connection, id, now_ms).await?;
    }
    let before = usage.is_enforced;
    if let Some(after) = change.is_enforced.filter(|after| *after != before) {
        let statement = match after {
            true => "DELETE FROM unlimited WHERE application_id = ?",
            false => "INSERT INTO unlimited (application_id) VALUES (?)",
        };
        connection.execute(statement, &[Value::Int(id)]).await?;
        let audited = AuditedChange::Enforcement { before, after };
        add_audit_record(connection, id, audited, cause, now_ms).await?;
    }
    Ok(())
}

async fn add_audit_record(
    connection: &mut SqlConnection<'_>,
    application: i64,
    change: AuditedChange,
    cause: &Cause<'_>,
    now_ms: i64,
) -> Sql<()> {
    let mut owners = None;
    let (action, before, after) = match change {
        AuditedChange::Capacity { before, after } => (CAPACITY, before, after),
        AuditedChange::Enforcement { before, after } => {
            (ENFORCEMENT, i64::from(before), i64::from(after))
        }
        AuditedChange::Owner { before, after } => {
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
    connection.execute(statement, &values).await?;
    Ok(())
}

/// The fields of a stored application whose changes are audited.
#[derive(Debug)]
pub(crate) struct StoredApplication {
    id: i64,
    /// JSON.
    owner: String,
    athlete_capacity: i64,
}

impl FromSqlRow for StoredApplication {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (id, owner, athlete_capacity): (i64, String, i64) = FromSqlRow::from_row(row)?;
        Ok(Self {
            id,
            owner,
            athlete_capacity,
        })
    }
}

/// Reads applications, ascending. `ids` fit into one statement.
pub(crate) async fn fetch_stored_applications(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<Vec<StoredApplication>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let statement = "SELECT CAST(id AS SIGNED), owner, CAST(athlete_capacity AS SIGNED)
                     FROM applications WHERE id IN ? ORDER BY id";
    connection.fetch_all(statement, &[Value::Ints(ids)]).await
}

/// Adds audit records of changes that ingested rows made to applications. `before` is the earlier
/// result of [`fetch_stored_applications`].
pub(crate) async fn record_changes(
    connection: &mut SqlConnection<'_>,
    before: &[StoredApplication],
    actor: &str,
    now_ms: i64,
) -> Sql<()> {
    let ids: Vec<i64> = before.iter().map(|application| application.id).collect();
    let by = AuditContext {
        actor: actor.to_owned(),
        reason: None,
    };
    let cause = Cause {
        by: &by,
        request_id: None,
        token: None,
    };
    let after = fetch_stored_applications(connection, &ids).await?;
    for (before, after) in before.iter().zip(after) {
        let id = before.id;
        let owners = (parse_owner(&before.owner)?, parse_owner(&after.owner)?);
        if owners.0 != owners.1 {
            let change = AuditedChange::Owner {
                before: owners.0,
                after: owners.1,
            };
            add_audit_record(connection, id, change, &cause, now_ms).await?;
        }
        if before.athlete_capacity != after.athlete_capacity {
            let change = AuditedChange::Capacity {
                before: before.athlete_capacity,
                after: after.athlete_capacity,
            };
            add_audit_record(connection, id, change, &cause, now_ms).await?;
            notices::reset_thresholds(connection, id, now_ms).await?;
        }
    }
    Ok(())
}

fn parse_owner(json: &str) -> Sql<serde_json::Value> {
    serde_json::from_str(json).map_err(decode_error)
}

impl FromSqlRow for AuditEntry {
    fn from_row(row: &SqlRow<'_>) -> Sql<Self> {
        let (before, after) = (row.get("value_before")?, row.get("value_after")?);
        let owner_in = |column: &str| {
            let json: Option<String> = row.get(column)?;
            parse_owner(json.as_deref().unwrap_or("null"))
        };
        let action: String = row.get("action")?;
        let changed = match action.as_str() {
            CAPACITY => AuditedChange::Capacity { before, after },
            ENFORCEMENT => AuditedChange::Enforcement {
                before: before != 0,
                after: after != 0,
            },
            OWNER => AuditedChange::Owner {
                before: owner_in("owner_before")?,
                after: owner_in("owner_after")?,
            },
            other => {
                return Err(decode_error(format!(
                    "unknown action {other:?} in the audit log"
                )));
            }
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

pub(super) const SELECT_REQUESTS: &str = "SELECT id, application_id, athlete_capacity, asked_by,
        reason, asked_at_ms, state, decided_by, answer, decided_at_ms, granted_capacity
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
            requested_by: AuditContext {
                actor: row.get("asked_by")?,
                reason: row.get("reason")?,
            },
            requested_at_ms: row.get("asked_at_ms")?,
            state: RequestState::from_name(&state)
                .ok_or_else(|| decode_error(format!("unknown state {state:?} of a request")))?,
            decided_by: decided_by.map(|actor| AuditContext {
                actor,
                reason: answer,
            }),
            decided_at_ms: row.get("decided_at_ms")?,
            granted_capacity: row.get("granted_capacity")?,
        })
    }
}

/// Adds a request for a higher capacity. Call it within a write transaction. `token` is unique to
/// the call: a retry after a lost response finds the request with this token.
pub(crate) async fn request_capacity(
    connection: &mut SqlConnection<'_>,
    id: i64,
    athlete_capacity: i64,
    by: &AuditContext,
    now_ms: i64,
    token: &str,
) -> Sql<CapacityRequestOutcome> {
    let Some(usage) = lock_usage(connection, id).await? else {
        return Ok(CapacityRequestOutcome::UnknownApplication);
    };
    // An earlier attempt of this call added the request. Its present state does not matter.
    let statement = format!("{SELECT_REQUESTS} WHERE application_id = ? AND request_token = ?");
    let values = [Value::Int(id), Value::Text(token)];
    if let Some(request) = connection.fetch_optional(&statement, &values).await? {
        return Ok(CapacityRequestOutcome::Created(request));
    }
    if athlete_capacity <= usage.application.athlete_capacity {
        return Ok(CapacityRequestOutcome::AlreadySufficient {
            athlete_capacity: usage.application.athlete_capacity,
        });
    }
    if let Some(request) = fetch_open_request(connection, id).await? {
        return Ok(CapacityRequestOutcome::AlreadyOpen(request));
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
    connection.execute(statement, &values).await?;
    let created = fetch_open_request(connection, id).await?;
    created
        .map(CapacityRequestOutcome::Created)
        .ok_or(sqlx::Error::RowNotFound)
}

/// The open request of an application.
async fn fetch_open_request(
    connection: &mut SqlConnection<'_>,
    id: i64,
) -> Sql<Option<CapacityRequest>> {
    let statement =
        format!("{SELECT_REQUESTS} WHERE application_id = ? AND state = ? ORDER BY id DESC");
    let values = [Value::Int(id), Value::Text(RequestState::Open.name())];
    connection.fetch_optional(&statement, &values).await
}

async fn fetch_request(
    connection: &mut SqlConnection<'_>,
    id: i64,
) -> Sql<Option<CapacityRequest>> {
    let statement = format!("{SELECT_REQUESTS} WHERE id = ?");
    connection
        .fetch_optional(&statement, &[Value::Int(id)])
        .await
}

/// Decides a request. Call it within a write transaction. `token` is unique to the call: a retry
/// after a lost response finds the decision with this token.
pub(crate) async fn decide(
    connection: &mut SqlConnection<'_>,
    request_id: i64,
    decision: RequestDecision,
    by: &AuditContext,
    now_ms: i64,
    token: &str,
) -> Sql<DecisionOutcome> {
    let Some(request) = fetch_request(connection, request_id).await? else {
        return Ok(DecisionOutcome::Unknown);
    };
    let id = request.application_id;
    let Some(usage) = lock_usage(connection, id).await? else {
        return Ok(DecisionOutcome::Unknown);
    };
    // Another call may have decided before the counter was locked.
    let Some(request) = fetch_request(connection, request_id).await? else {
        return Ok(DecisionOutcome::Unknown);
    };
    if request.state != RequestState::Open {
        let statement = "SELECT id FROM capacity_requests WHERE id = ? AND decision_token = ?";
        let values = [Value::Int(request_id), Value::Text(token)];
        let committed: Option<i64> = connection.fetch_optional(statement, &values).await?;
        return Ok(match committed {
            Some(_) => DecisionOutcome::Done { request, usage },
            None => DecisionOutcome::AlreadyDecided(request),
        });
    }
    let athlete_capacity = usage.application.athlete_capacity;
    let (state, granted) = match decision {
        RequestDecision::Refuse => (RequestState::Refused, None),
        RequestDecision::Grant(Some(granted)) if granted < athlete_capacity => {
            return Ok(DecisionOutcome::WouldLower { athlete_capacity });
        }
        RequestDecision::Grant(granted) => {
            let granted = granted.unwrap_or(request.athlete_capacity);
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
    connection.execute(statement, &values).await?;
    let change = ApplicationChange {
        athlete_capacity: granted,
        is_enforced: None,
    };
    let cause = Cause {
        by,
        request_id: Some(request_id),
        token: None,
    };
    apply_change(connection, &usage, change, &cause, now_ms).await?;
    match (
        fetch_request(connection, request_id).await?,
        fetch_usage(connection, id).await?,
    ) {
        (Some(request), Some(usage)) => Ok(DecisionOutcome::Done { request, usage }),
        _ => Ok(DecisionOutcome::Unknown),
    }
}

/// Returns the applications with connected athletes, ascending. `ids` fit into one statement.
async fn fetch_connected_applications(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
) -> Sql<Vec<i64>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let statement = "SELECT application_id FROM connected
                     WHERE application_id IN ? AND athletes > 0 ORDER BY application_id";
    connection.fetch_all(statement, &[Value::Ints(ids)]).await
}

/// Writes notices of new applications whose athletes connected earlier, when the capacities were
/// unknown.
pub(crate) async fn write_notices_of_new(
    connection: &mut SqlConnection<'_>,
    ids: &[i64],
    now_ms: i64,
) -> Sql<()> {
    for id in fetch_connected_applications(connection, ids).await? {
        notices::reset_thresholds(connection, id, now_ms).await?;
    }
    Ok(())
}

/// The ids of rows that are not stored, ascending.
pub(crate) fn find_new_ids(stored: &[StoredApplication], rows: &[&Application]) -> Vec<i64> {
    let is_new = |row: &&&Application| {
        let stored = stored.binary_search_by_key(&row.id, |application| application.id);
        stored.is_err()
    };
    sort_unique(rows.iter().filter(is_new).map(|row| row.id))
}
