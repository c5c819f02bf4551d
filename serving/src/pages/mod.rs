//! Pages for people: written here, whole without any script, and livelier with one. Every number on them is an answer of
//! the API to who looks at them, and says where it comes from.

mod api;
mod applications;
mod ask;
mod assets;
mod athletes;
mod boards;
mod chart;
mod docs;
mod live;
mod overview;
mod parts;
mod pipeline;
mod plays;
mod query;
mod shown;
pub(crate) mod sign_in;

use std::sync::Arc;

use axum::extract::{FromRef, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use self::ask::{Asker, Trouble};
use self::parts::{Here, KINDS, ProblemPage, rendered};
use self::plays::Of;
use self::query::Query;
use crate::http::{Api, Caller, Problem, body, time_out};

/// The largest form, in bytes.
const FORM_BYTES_MAX: u64 = 16 * 1024;

/// What pages work with.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// The API, which is asked.
    api: Router,
    pub(crate) state: Arc<Api>,
}

impl FromRef<Pages> for Arc<Api> {
    fn from_ref(pages: &Pages) -> Self {
        Self::clone(&pages.state)
    }
}

/// The routes of pages; what they show they ask of `api`.
pub(crate) fn routes(api: Router, state: &Arc<Api>) -> Router {
    let pages = Pages {
        api,
        state: Arc::clone(state),
    };
    Router::new()
        .route("/", get(overview))
        .route("/find", get(find))
        .route("/owners/{owner_id}", get(owner))
        .route("/tracks/{track_id}", get(track))
        .route("/segments/{segment_id}", get(segment))
        .route("/athletes/{athlete_id}", get(athlete))
        .route("/applications", get(applications))
        .route("/applications/{id}", get(application))
        .route("/pipeline", get(pipeline))
        .route("/pipeline/runs/{source}/{epoch}", get(run))
        .route("/pipeline/dead-letters", get(dead_letters))
        .route("/pipeline/reconciliations", get(reconciliations))
        .route("/signin", get(sign_in::show).post(sign_in::sign_in))
        .route("/signout", post(sign_in::sign_out))
        .route("/assets/{name}", get(assets::asset))
        .route("/docs", get(docs::page))
        .route("/docs/{name}", get(docs::file))
        .layer(from_fn_with_state(Arc::clone(state), time_out))
        // Writes are not dropped for being slow.
        .route("/pipeline/dead-letters", post(replay_letters))
        .route("/pipeline/reconciliations", post(approve))
        // It is told as long as somebody looks.
        .route("/live", get(live::follow))
        .with_state(pages)
}

/// Who looks at a page, and how it is reached.
struct Looking {
    asker: Asker,
    here: Here,
}

impl Looking {
    fn new(pages: &Pages, caller: Caller, headers: &HeaderMap) -> Self {
        Self {
            asker: Asker::new(pages.api.clone(), Arc::clone(&pages.state), caller),
            here: Here::of(headers),
        }
    }
}

/// The page that says that what a path names is no number; nothing if it is one.
fn not_numbered(looking: &Looking, what: &str, id: &str) -> Option<Response> {
    if crate::http::integer(id).is_some() {
        return None;
    }
    let trouble = Trouble {
        status: 404,
        title: "There is nothing here".to_owned(),
        detail: format!("{what} have numbers, and {id:?} is none"),
        request_id: String::new(),
    };
    Some(ProblemPage::response(&looking.asker.caller, trouble))
}

async fn overview(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    let page = overview::page(&looking.asker, &looking.here).await;
    rendered(StatusCode::OK, &page)
}

async fn find(Extension(caller): Extension<Caller>, RawQuery(query): RawQuery) -> Response {
    let query = Query::of(query.as_deref());
    let what = query.get("what").unwrap_or("owner");
    let id = query.get("id").and_then(crate::http::integer);
    match (KINDS.iter().any(|(kind, _)| *kind == what), id) {
        (true, Some(id)) => Redirect::to(&format!("/{what}s/{id}")).into_response(),
        _ => {
            let trouble = Trouble {
                status: 400,
                title: "This can't be looked for".to_owned(),
                detail: "Choose what to look for, and write its number.".to_owned(),
                request_id: String::new(),
            };
            ProblemPage::response(&caller, trouble)
        }
    }
}

async fn plays_of(
    looking: Looking,
    (of, what): (Of, &str),
    id: &str,
    query: Option<String>,
) -> Response {
    if let Some(response) = not_numbered(&looking, what, id) {
        return response;
    }
    let query = Query::of(query.as_deref());
    let page = plays::page(&looking.asker, &looking.here, (of, id), &query).await;
    rendered(StatusCode::OK, &page)
}

async fn owner(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    plays_of(looking, (Of::Owner, "owners"), &id, query).await
}

async fn track(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    plays_of(looking, (Of::Track, "tracks"), &id, query).await
}

async fn segment(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    if let Some(response) = not_numbered(&looking, "segments", &id) {
        return response;
    }
    let query = Query::of(query.as_deref());
    let page = boards::page(&looking.asker, &looking.here, &id, &query).await;
    rendered(StatusCode::OK, &page)
}

async fn athlete(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    if let Some(response) = not_numbered(&looking, "athletes", &id) {
        return response;
    }
    let query = Query::of(query.as_deref());
    let page = athletes::page(&looking.asker, &looking.here, &id, &query).await;
    rendered(StatusCode::OK, &page)
}

async fn applications(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    let query = Query::of(query.as_deref());
    let page = applications::list(&looking.asker, &looking.here, &query).await;
    rendered(StatusCode::OK, &page)
}

async fn application(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    if let Some(response) = not_numbered(&looking, "applications", &id) {
        return response;
    }
    let page = applications::page(&looking.asker, &looking.here, &id).await;
    rendered(StatusCode::OK, &page)
}

async fn pipeline(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    let page = pipeline::page(&looking.asker, &looking.here).await;
    rendered(StatusCode::OK, &page)
}

async fn run(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path((source, epoch)): Path<(String, String)>,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    if let Some(response) = not_numbered(&looking, "runs", &epoch) {
        return response;
    }
    let of = (source.as_str(), epoch.as_str());
    let page = pipeline::run(&looking.asker, &looking.here, of).await;
    rendered(StatusCode::OK, &page)
}

async fn dead_letters(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    let query = Query::of(query.as_deref());
    let page = pipeline::dead_letters(&looking.asker, &looking.here, &query, None).await;
    rendered(StatusCode::OK, &page)
}

/// Tries letters again, and shows what became of them above the page.
async fn replay_letters(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let looking = Looking::new(&pages, caller, request.headers());
    let form = match form(&pages, request).await {
        Ok(form) => form,
        Err(problem) => return problem.into_response(),
    };
    let done = pipeline::replayed(&looking.asker, &form).await;
    let status = done.as_ref().err().map_or(StatusCode::OK, Trouble::status);
    // All are shown again, not only those that were asked for.
    let all = Query::of(None);
    let page = pipeline::dead_letters(&looking.asker, &looking.here, &all, Some(done)).await;
    rendered(status, &page)
}

async fn reconciliations(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let looking = Looking::new(&pages, caller, &headers);
    let query = Query::of(query.as_deref());
    let page = pipeline::reconciliations(&looking.asker, &looking.here, &query, None).await;
    rendered(StatusCode::OK, &page)
}

/// Approves what a comparison found, and shows what that means above the page.
async fn approve(
    State(pages): State<Pages>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let looking = Looking::new(&pages, caller, request.headers());
    let form = match form(&pages, request).await {
        Ok(form) => form,
        Err(problem) => return problem.into_response(),
    };
    let done = pipeline::approved(&looking.asker, &form).await;
    let status = done.as_ref().err().map_or(StatusCode::OK, Trouble::status);
    let all = Query::of(None);
    let page = pipeline::reconciliations(&looking.asker, &looking.here, &all, Some(done)).await;
    rendered(status, &page)
}

/// The fields of a form.
async fn form(pages: &Pages, request: Request) -> Result<Query, Problem> {
    let form = body::text_up_to(&pages.state, request, FORM_BYTES_MAX).await?;
    Ok(Query::of(Some(&String::from_utf8_lossy(&form))))
}

#[cfg(test)]
mod tests;
