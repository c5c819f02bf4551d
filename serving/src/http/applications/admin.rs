//! Changes of an application's capacity, and the history of changes.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::admin::{
    self, AuditContext, AuditEntry, AuditedChange, INGEST, TEXT_BYTES_MAX, is_reserved_actor,
};
use utoipa::ToSchema;

use super::entity_store::{
    ENTITY_PROVENANCE, EntityProvenance, find_usage, map_write_error, unknown_application,
};
use super::response::{ApplicationResponse, build_application_response};
use crate::answer::format_ms;
use crate::http::boards::parse_id;
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Problem, ProblemKind, ProblemShape};
use crate::http::{Api, Caller, body, csv, cursor, with_timeout};

/// The largest capacity: the largest integer that every JSON reader represents exactly.
const CAPACITY_MAX: i64 = 9_007_199_254_740_991;
/// The default actor.
const DEFAULT_ACTOR: &str = "http";

/// The body of a change. At least one of the first two fields is required.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApplicationChangeBody {
    /// The new capacity, from 0. Connected athletes stay connected.
    athlete_capacity: Option<i64>,
    /// True to enforce the capacity.
    enforced: Option<bool>,
    /// The reason in the record of the change, at most 1,024 bytes.
    reason: Option<String>,
    /// The actor in the record of the change, at most 1,024 bytes; default "http".
    by: Option<String>,
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Setting {
    /// The capacity.
    Capacity(i64),
    /// True if the capacity is enforced.
    Enforced(bool),
    /// The owner. A numeric owner is an integer.
    #[schema(value_type = String)]
    Owner(Value),
}

/// The record of a change.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct AuditEntryResponse {
    /// The id, which increases with each change.
    id: i64,
    /// Time of the change, in UTC.
    at: String,
    /// The actor of the request. "ingest" for an ingested line, or "ingest, NAME (key ID)" with a
    /// key.
    by: String,
    /// capacity, enforced or owner.
    changed: &'static str,
    before: Setting,
    after: Setting,
    /// The reason, if any.
    reason: Option<String>,
    /// The capacity request that the change granted.
    request_id: Option<i64>,
}

/// The changes of an application.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Audit)]
pub(crate) struct AuditPage {
    application_id: i64,
    /// Newest first.
    entries: Vec<AuditEntryResponse>,
    /// The cursor of the next page; null on the last one.
    cursor: Option<String>,
    provenance: EntityProvenance,
}

/// Sets the capacity of an application and its enforcement.
///
/// The change is recorded. An ingested line of the application also sets its capacity.
#[utoipa::path(
    patch,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = ApplicationChangeBody,
    responses(
        (status = 200, description = "The changed application", body = ApplicationResponse),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "Applications are managed in another database: change the application there", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn change_application(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<ApplicationResponse>, Problem> {
    Params::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let body: ApplicationChangeBody =
        body::parse_object(&api, request, "{\"athlete_capacity\": 100}").await?;
    if body.athlete_capacity.is_none() && body.enforced.is_none() {
        let detail = "the body changes nothing: send athlete_capacity, enforced or both";
        return Err(ProblemKind::BadBody.with_detail(detail));
    }
    if let Some(capacity) = body.athlete_capacity {
        check_capacity("athlete_capacity", capacity)?;
    }
    let reason = TextField {
        name: "reason",
        text: body.reason,
    };
    let audit = build_audit_context(&caller, body.by, reason)?;
    let entities = &api.ports.entities;
    // The response is read before the change, so a failure to read it changes nothing.
    let read = async {
        let mut usage = find_usage(&api, application_id).await?;
        // The class of the new capacity decides how the athletes are counted.
        let capacity = usage.application.athlete_capacity;
        usage.application.athlete_capacity = body.athlete_capacity.unwrap_or(capacity);
        build_application_response(&api, usage).await
    };
    let response = with_timeout(&api, read).await??;
    let change = admin::ApplicationChange {
        athlete_capacity: body.athlete_capacity,
        is_enforced: body.enforced,
    };
    let now_ms = api.ports.clock.now_ms();
    let changed = entities
        .change_application(application_id, change, &audit, now_ms)
        .await;
    let changed = changed.map_err(map_write_error)?;
    let changed = changed.ok_or_else(|| unknown_application(application_id))?;
    Ok(Json(response.with_usage(changed)))
}

/// The changes of an application, with actor, time and reason.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/audit",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Changes, newest first", body = AuditPage),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_changes(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (_, query) = PageQuery::parse(&uri, &[])?;
    let application_id = parse_id("id", &application)?;
    let fingerprint = cursor::compute_fingerprint(&format!("audit of {application_id}"));
    let before_id = query.decode_start(fingerprint, cursor::decode)?;
    let limit = query.limit;
    let entities = &api.ports.entities;
    let mut entries = entities
        .audit_entries(application_id, before_id, limit + 1)
        .await?;
    if entries.is_empty() {
        find_usage(&api, application_id).await?;
    }
    let encode_cursor = |last: &AuditEntry| cursor::encode(fingerprint, &last.id);
    let next_cursor = cursor::truncate_page(&mut entries, limit, encode_cursor);
    let page = AuditPage {
        application_id,
        entries: entries
            .into_iter()
            .map(AuditEntryResponse::from_entry)
            .collect(),
        cursor: next_cursor.clone(),
        provenance: ENTITY_PROVENANCE,
    };
    Ok(query.respond(&uri, next_cursor.as_deref(), page, |page| {
        let header = "id,at,by,changed,before,after,reason,request_id";
        csv::write_objects(header, page.entries, None)
    }))
}

impl AuditEntryResponse {
    fn from_entry(entry: AuditEntry) -> Self {
        let (changed, before, after) = match entry.changed {
            AuditedChange::Capacity { before, after } => {
                let (before, after) = (Setting::Capacity(before), Setting::Capacity(after));
                ("capacity", before, after)
            }
            AuditedChange::Enforcement { before, after } => {
                let (before, after) = (Setting::Enforced(before), Setting::Enforced(after));
                ("enforced", before, after)
            }
            AuditedChange::Owner { before, after } => {
                ("owner", Setting::Owner(before), Setting::Owner(after))
            }
        };
        Self {
            id: entry.id,
            at: format_ms(entry.at_ms),
            by: entry.actor,
            changed,
            before,
            after,
            reason: entry.reason,
            request_id: entry.request_id,
        }
    }
}

pub(super) fn check_capacity(name: &str, capacity: i64) -> Result<(), Problem> {
    if (0..=CAPACITY_MAX).contains(&capacity) {
        return Ok(());
    }
    let detail = format!("{name}: {capacity} is not a number from 0 to {CAPACITY_MAX}");
    Err(ProblemKind::BadBody.with_detail(detail))
}

/// A text field of a body, with its name for messages.
pub(super) struct TextField {
    pub(super) name: &'static str,
    pub(super) text: Option<String>,
}

/// Builds the actor and reason of a record. Adds the caller's key to the actor.
pub(super) fn build_audit_context(
    caller: &Caller,
    actor: Option<String>,
    reason: TextField,
) -> Result<AuditContext, Problem> {
    for (name, text) in [("by", &actor), (reason.name, &reason.text)] {
        let Some(text) = text else { continue };
        if text.len() > TEXT_BYTES_MAX {
            let detail = format!(
                "{name}: the text has {} bytes; send at most {TEXT_BYTES_MAX}",
                text.len()
            );
            return Err(ProblemKind::BadBody.with_detail(detail));
        }
        if text.contains('\0') {
            let detail = format!("{name}: the text contains U+0000; remove it");
            return Err(ProblemKind::BadBody.with_detail(detail));
        }
    }
    if actor.as_deref().is_some_and(is_reserved_actor) {
        let detail = format!("by: {INGEST:?} is reserved for ingested lines; send another name");
        return Err(ProblemKind::BadBody.with_detail(detail));
    }
    let actor = actor.filter(|actor| !actor.trim().is_empty());
    let actor = match (actor, caller.actor()) {
        (Some(actor), Some(key)) => {
            let bytes_left = TEXT_BYTES_MAX.saturating_sub(key.len() + 2);
            let end = actor.floor_char_boundary(bytes_left);
            format!("{}, {key}", actor.get(..end).unwrap_or_default())
        }
        (Some(actor), None) => actor,
        (None, Some(key)) => key,
        (None, None) => DEFAULT_ACTOR.to_owned(),
    };
    Ok(AuditContext {
        actor,
        reason: reason.text,
    })
}
