//! Notices of reached capacity thresholds, and their delivery.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use stores::notices::Notice;
use utoipa::ToSchema;

use super::entity_store::{ENTITY_PROVENANCE, EntityProvenance, find_usage};
use crate::answer::format_ms;
use crate::http::boards::parse_id;
use crate::http::params::{PageQuery, Path};
use crate::http::problem::{Problem, ProblemShape};
use crate::http::{Api, csv, cursor};

/// A notice that a capacity threshold was reached. There is one for each threshold and capacity.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct NoticeResponse {
    /// The id, which increases with each notice.
    id: i64,
    application_id: i64,
    /// 80, 90 or 100.
    threshold_percent: i64,
    /// Number of connected athletes at that time.
    connected_athletes: i64,
    /// The capacity at that time.
    athlete_capacity: i64,
    /// When the threshold was reached, in UTC.
    at: String,
    /// When the notice was written to the log, in UTC; null before that.
    logged_at: Option<String>,
    /// When the webhook accepted the notice, in UTC; null before that, or without a webhook.
    delivered_at: Option<String>,
    /// When delivery to the webhook was abandoned, in UTC.
    failed_at: Option<String>,
    /// Number of attempts to deliver to the webhook.
    tries: i64,
    /// The error of the last attempt.
    error: Option<String>,
}

/// A page of notices.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct NoticesResponse {
    /// Newest first.
    notices: Vec<NoticeResponse>,
    /// The cursor of the next page; null on the last one.
    cursor: Option<String>,
    provenance: EntityProvenance,
}

impl From<Notice> for NoticeResponse {
    fn from(notice: Notice) -> Self {
        Self {
            id: notice.id,
            application_id: notice.application_id,
            threshold_percent: notice.threshold,
            connected_athletes: notice.connected,
            athlete_capacity: notice.athlete_capacity,
            at: format_ms(notice.created_at_ms),
            logged_at: notice.topic_at_ms.map(format_ms),
            delivered_at: notice.webhook_at_ms.map(format_ms),
            failed_at: notice.failed_at_ms.map(format_ms),
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
        (status = 200, description = "Notices, newest first", body = NoticesResponse)
    )
)]
pub(crate) async fn list_capacity_notices(
    State(api): State<Arc<Api>>,
    uri: Uri,
) -> Result<Response, Problem> {
    list_page(&api, &uri, None).await
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
        (status = 200, description = "Notices, newest first", body = NoticesResponse),
        (status = 404, description = "Unknown application", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn list_application_notices(
    State(api): State<Arc<Api>>,
    Path(application): Path<String>,
    uri: Uri,
) -> Result<Response, Problem> {
    let application = parse_id("id", &application)?;
    list_page(&api, &uri, Some(application)).await
}

async fn list_page(
    api: &Arc<Api>,
    uri: &Uri,
    application_id: Option<i64>,
) -> Result<Response, Problem> {
    let (_, query) = PageQuery::parse(uri, &[])?;
    let fingerprint = cursor::compute_fingerprint(&format!("notices of {application_id:?}"));
    let before_id = query.decode_start(fingerprint, cursor::decode)?;
    let limit = query.limit;
    let entities = &api.ports.entities;
    let mut notices = entities
        .notices(application_id, before_id, limit + 1)
        .await?;
    if let (Some(application_id), true) = (application_id, notices.is_empty()) {
        find_usage(api, application_id).await?;
    }
    let encode_cursor = |last: &Notice| cursor::encode(fingerprint, &last.id);
    let next_cursor = cursor::truncate_page(&mut notices, limit, encode_cursor);
    let page = NoticesResponse {
        notices: notices.into_iter().map(NoticeResponse::from).collect(),
        cursor: next_cursor.clone(),
        provenance: ENTITY_PROVENANCE,
    };
    Ok(query.respond(uri, next_cursor.as_deref(), page, |page| {
        let header = "id,application_id,threshold_percent,connected_athletes,athlete_capacity,at,logged_at,delivered_at,failed_at,tries,error";
        csv::write_objects(header, page.notices, None)
    }))
}
