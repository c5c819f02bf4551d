//! Pages that explain the kinds of problems. The `type` of a problem document leads to them.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

use super::problem::{Problem, ProblemKind, ProblemShape};
use super::{Caller, Path};
use crate::pages::{PageContext, render};

#[derive(Debug, Template)]
#[template(path = "problem_kind.html")]
struct ProblemKindPage {
    context: PageContext,
    kind: ProblemKind,
}

/// A page that explains a kind of problem.
#[utoipa::path(
    get,
    path = "/problems/{kind}",
    tag = "service",
    params(("kind" = String, Path, description = "The last segment of `type` in a problem document")),
    responses(
        (status = 200, description = "The page", content_type = "text/html"),
        (status = 404, description = "Unknown kind", body = ProblemShape, content_type = "application/problem+json")
    )
)]
pub(crate) async fn explain_problem(Path(slug): Path<String>) -> Result<Response, Problem> {
    let kind = ProblemKind::from_slug(&slug).ok_or_else(|| {
        ProblemKind::UnknownPath.with_detail(format!("there is no kind of problem {slug:?}"))
    })?;
    let context = PageContext::new(kind.title(), "", &Caller::anonymous());
    Ok(render(StatusCode::OK, &ProblemKindPage { context, kind }))
}
