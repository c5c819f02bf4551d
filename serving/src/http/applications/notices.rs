//! Which thresholds of capacities were reached, and who was told.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use stores::notices::Notice;
use utoipa::ToSchema;

use super::{CANONICAL, Canonical, usage_of};
use crate::answer::shown_ms;
use crate::http::boards::id;
use crate::http::params::{PageQuery, Path};
use crate::http::problem::{Problem, ProblemShape};
use crate::http::{Api, csv, cursor};

/// That so much of a capacity came in use: told once for each threshold and capacity.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct NoticeShown {
    /// Its number, which rises.
    id: i64,
    application_id: i64,
    /// 80, 90 or 100.
    threshold_percent: i64,
    /// The athletes who were connected.
    connected_athletes: i64,
    /// The capacity then.
    athlete_capacity: i64,
    /// When it was reached, in UTC.
    at: String,
    /// Since when it is in the log, in UTC; null while it waits.
    logged_at: Option<String>,
    /// When the webhook took it, in UTC; null while it waits, or where there is none.
    delivered_at: Option<String>,
    /// When delivery to the webhook was given up, in UTC.
    failed_at: Option<String>,
    /// How often delivery to the webhook was tried.
    tries: i64,
    /// Why the last try failed.
    error: Option<String>,
}

/// A page of notices.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct NoticesShown {
    /// Newest first.
    notices: Vec<NoticeShown>,
    /// Where the next page begins; null on the last one.
    cursor: Option<String>,
    provenance: Canonical,
}

impl From<Notice> for NoticeShown {
    fn from(notice: Notice) -> Self {
        Self {
            id: notice.id,
            application_id: notice.application_id,
            threshold_percent: notice.threshold,
            connected_athletes: notice.connected,
            athlete_capacity: notice.athlete_capacity,
            at: shown_ms(notice.made_at_ms),
            logged_at: notice.topic_at_ms.map(shown_ms),
            delivered_at: notice.webhook_at_ms.map(shown_ms),
            failed_at: notice.failed_at_ms.map(shown_ms),
            tries: notice.tries,
            error: notice.last_error,
        }
    }
}

/// Notices of all applications.
#[utoipa::path(
    get,
    path = "/api/v1/capacity-notices",
    tag = "applications",
    params(
        PageQuery
    ),
    responses(
        (status = 200, description = "Notices, newest first", body = NoticesShown)
    )
)]
pub(crate) async fn all(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response, Problem> {
    listed(&api, &uri, None).await
}

/// Notices of an application.
#[utoipa::path(
    get,
    path = "/api/v1/applications/{id}/capacity-notices",
    tag = "applications",
    params(
        ("id" = i64, Path, description = "The application"),
        PageQuery
    ),
    responses(
        (status = 200, description = "Notices, newest first", body = NoticesShown),
        (status = 404, description = "No such application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn of_application(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let application = id("id", &application)?;
    listed(&api, &uri, Some(application)).await
}

async fn listed(
    api: &Arc<Api>,
    uri: &Uri,
    application_id: Option<i64>,
) -> Result<Response, Problem> {
    let (_, query) = PageQuery::read(uri, &[])?;
    let fingerprint = cursor::fingerprint(&format!("notices of {application_id:?}"));
    let before = query.start(fingerprint, cursor::last)?;
    let limit = query.limit;
    let canon = &api.ports.canon;
    let mut found = canon.notices(application_id, before, limit + 1).await?;
    if let (Some(application), true) = (application_id, found.is_empty()) {
        usage_of(api, application).await?;
    }
    let after = |last: &Notice| cursor::after(fingerprint, &last.id);
    let next = cursor::page(&mut found, limit, after);
    let page = NoticesShown {
        notices: found.into_iter().map(NoticeShown::from).collect(),
        cursor: next.clone(),
        provenance: CANONICAL,
    };
    Ok(query.answer(uri, next.as_deref(), page, |page| {
        let header = "id,application_id,threshold_percent,connected_athletes,athlete_capacity,at,logged_at,delivered_at,failed_at,tries,error";
        csv::objects(header, page.notices, None)
    }))
}
