//! Changing how many athletes may connect, and what was changed.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use stores::admin::{self, AuditEntry, By, Changed, INGEST, TEXT_BYTES_MAX, is_reserved};
use utoipa::ToSchema;

use super::{
    ApplicationShown, CANONICAL, CAPACITY_MAX, Canonical, one, refused, unknown, usage_of,
};
use crate::answer::shown_ms;
use crate::http::boards::id;
use crate::http::layers::in_time;
use crate::http::params::{PageQuery, Params, Path};
use crate::http::problem::{Kind, Problem, ProblemShape};
use crate::http::{Api, Caller, body, csv, cursor};

/// Who changes something where nobody says who it is.
const SOMEBODY: &str = "http";

/// What can be changed of an application: at least one of the first two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// How many athletes may be connected at once, from 0 on. Those that are connected stay.
    athlete_capacity: Option<i64>,
    /// Whether no more athletes are let in than that.
    enforced: Option<bool>,
    /// Why, for the record: at most 1,024 bytes.
    reason: Option<String>,
    /// Who, for the record: at most 1,024 bytes; "http" if left out.
    by: Option<String>,
}

/// What can be changed, as it was set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Setting {
    /// How many athletes may be connected.
    Capacity(i64),
    /// Whether that is enforced.
    Enforced(bool),
    /// The owner; one that is a number is an integer, as a capacity is.
    #[schema(value_type = String)]
    Owner(Value),
}

/// The record of a change.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct EntryShown {
    /// Its number, which rises.
    id: i64,
    /// When, in UTC.
    at: String,
    /// Who: as it was given; "ingest" for a line that was ingested, with a key "ingest, NAME (key ID)".
    by: String,
    /// capacity, enforced or owner.
    changed: &'static str,
    before: Setting,
    after: Setting,
    /// Why, if that was said.
    reason: Option<String>,
    /// The request that was granted by it.
    request_id: Option<i64>,
}

/// What was changed of an application.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct Audit {
    application_id: i64,
    /// Newest first.
    entries: Vec<EntryShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    provenance: Canonical,
}

/// Sets how many athletes may be connected to an application and whether that is enforced, and keeps a
/// record of it. The capacity stays until it is set again or a line of the application is ingested, which says its
/// capacity too.
#[utoipa::path(
    patch,
    path = "/api/v1/applications/{id}",
    tag = "applications",
    params(("id" = i64, Path, description = "The application")),
    request_body = Change,
    responses(
        (status = 200, description = "The application as it is now", body = ApplicationShown),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json"),
        (status = 409, description = "Applications are a view of an app's own table: change it there", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(application): Path<String>,
    uri: Uri,
    request: Request,
) -> Result<Json<ApplicationShown>, Problem> {
    Params::read(&uri, &[])?;
    let application = id("id", &application)?;
    let asked: Change = body::object(&api, request, "{\"athlete_capacity\": 100}").await?;
    if asked.athlete_capacity.is_none() && asked.enforced.is_none() {
        let detail = "nothing is to be changed: send athlete_capacity, enforced or both";
        return Err(Kind::BadBody.with_detail(detail));
    }
    if let Some(capacity) = asked.athlete_capacity {
        in_range("athlete_capacity", capacity)?;
    }
    let by = by(&caller, asked.by, ("reason", asked.reason))?;
    let canon = &api.ports.canon;
    // What is answered is read before: if that fails nothing has changed.
    let read = async {
        let mut found = usage_of(&api, application).await?;
        // The capacity decides how its athletes are counted.
        let before = found.application.athlete_capacity;
        found.application.athlete_capacity = asked.athlete_capacity.unwrap_or(before);
        one(&api, found).await
    };
    let shown = in_time(&api, read).await??;
    let change = admin::Change {
        athlete_capacity: asked.athlete_capacity,
        is_enforced: asked.enforced,
    };
    let now_ms = api.ports.clock.now_ms();
    let changed = canon.change(application, change, &by, now_ms).await;
    let changed = changed.map_err(refused)?;
    let changed = changed.ok_or_else(|| unknown(application))?;
    Ok(Json(shown.now(changed)))
}

/// What was changed of an application: by whom, when and why.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/audit",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Changes, newest first", body = Audit),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn audit(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let (_, query) = PageQuery::read(&uri, &[])?;
    let application = id("id", &application)?;
    let fingerprint = cursor::fingerprint(&format!("audit of {application}"));
    let before = query.start(fingerprint, cursor::last)?;
    let limit = query.limit;
    let canon = &api.ports.canon;
    let mut found = canon.audit(application, before, limit + 1).await?;
    if found.is_empty() {
        usage_of(&api, application).await?;
    }
    let after = |last: &AuditEntry| cursor::after(fingerprint, &last.id);
    let next = cursor::page(&mut found, limit, after);
    let page = Audit {
        application_id: application,
        entries: found.into_iter().map(EntryShown::of).collect(),
        cursor: next.clone(),
        provenance: CANONICAL,
    };
    Ok(query.answer(&uri, next.as_deref(), page, |page| {
        let header = "id,at,by,changed,before,after,reason,request_id";
        csv::objects(header, page.entries, None)
    }))
}

impl EntryShown {
    fn of(entry: AuditEntry) -> Self {
        let (changed, before, after) = match entry.changed {
            Changed::Capacity { before, after } => {
                let (before, after) = (Setting::Capacity(before), Setting::Capacity(after));
                ("capacity", before, after)
            }
            Changed::Enforcement { before, after } => {
                let (before, after) = (Setting::Enforced(before), Setting::Enforced(after));
                ("enforced", before, after)
            }
            Changed::Owner { before, after } => {
                ("owner", Setting::Owner(before), Setting::Owner(after))
            }
        };
        Self {
            id: entry.id,
            at: shown_ms(entry.at_ms),
            by: entry.actor,
            changed,
            before,
            after,
            reason: entry.reason,
            request_id: entry.request_id,
        }
    }
}

pub(super) fn in_range(name: &str, capacity: i64) -> Result<(), Problem> {
    if (0..=CAPACITY_MAX).contains(&capacity) {
        return Ok(());
    }
    let detail = format!("{name}: {capacity} is not from 0 to {CAPACITY_MAX}");
    Err(Kind::BadBody.with_detail(detail))
}

/// Who does something and why, as a body says it; whose key it was is said beside it.
pub(super) fn by(
    caller: &Caller,
    actor: Option<String>,
    (why, reason): (&str, Option<String>),
) -> Result<By, Problem> {
    for (name, text) in [("by", &actor), (why, &reason)] {
        let Some(text) = text else { continue };
        if text.len() > TEXT_BYTES_MAX {
            let detail = format!(
                "{name}: {} bytes are more than the {TEXT_BYTES_MAX} that are kept",
                text.len()
            );
            return Err(Kind::BadBody.with_detail(detail));
        }
        if text.contains('\0') {
            let detail = format!("{name}: holds U+0000, which is not kept; leave it out");
            return Err(Kind::BadBody.with_detail(detail));
        }
    }
    if actor.as_deref().is_some_and(is_reserved) {
        let detail = format!("by: {INGEST:?} stands for lines that are ingested; write who it is");
        return Err(Kind::BadBody.with_detail(detail));
    }
    let actor = actor.filter(|actor| !actor.trim().is_empty());
    let actor = match (actor, caller.actor()) {
        (Some(actor), Some(key)) => {
            let room = TEXT_BYTES_MAX.saturating_sub(key.len() + 2);
            let end = actor.floor_char_boundary(room);
            format!("{}, {key}", actor.get(..end).unwrap_or_default())
        }
        (Some(actor), None) => actor,
        (None, Some(key)) => key,
        (None, None) => SOMEBODY.to_owned(),
    };
    Ok(By { actor, reason })
}
