//! Pages for people: written here, whole without any script, and livelier with one. Every number on them is an answer of
//! the API to who looks at them, and says where it comes from.

mod api;
mod applications;
mod ask;
mod assets;
mod athletes;
mod boards;
mod chart;
pub(crate) mod cookie;
mod differences;
mod docs;
mod done;
mod found;
mod live;
mod overview;
mod parts;
mod pipeline;
mod plays;
mod query;
pub(crate) mod seal;
mod shown;
pub(crate) mod sign_in;

use std::convert::Infallible;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get, post};

use self::ask::{Answer, ApiClient, ApiError};
use self::done::Done;
pub(crate) use self::parts::rendered;
use self::parts::{About, ProblemPage};
use self::plays::Of;
use self::query::Query;
pub(crate) use self::shown::number;
use crate::http::{Api, Caller, Path, Problem, body, time_out};

/// The largest form, in bytes.
const FORM_BYTES_MAX: u64 = 16 * 1024;

/// The title where an address leads to no page.
const NOTHING: &str = "There is nothing here";

/// What pages work with.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// The API, which is asked.
    api: Router,
    pub(crate) state: Arc<Api>,
}

impl Pages {
    fn now_s(&self) -> i64 {
        self.state.ports.clock.now_ms() / 1_000
    }
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
    let with = |router: Router<Pages>, (path, route): (&str, _)| router.route(path, route);
    let timed = timed().into_iter().fold(Router::new(), with);
    let timed = timed.layer(from_fn_with_state(Arc::clone(state), time_out));
    let all = untimed().into_iter().fold(timed, with);
    all.with_state(pages)
}

/// The page that says why there is no other.
pub(crate) fn refused(
    caller: Option<&Caller>,
    problem: &Problem,
    request_id: Option<&str>,
) -> Response {
    // Whom nobody knows may be anybody.
    let stranger = Caller::stranger();
    ProblemPage::of(caller.unwrap_or(&stranger), problem, request_id)
}

/// What is answered within the time that a request may take.
fn timed() -> Vec<(&'static str, MethodRouter<Pages>)> {
    vec![
        ("/", get(overview)),
        ("/find", get(find)),
        ("/owners/{owner_id}", get(owner)),
        ("/tracks/{track_id}", get(track)),
        ("/segments/{segment_id}", get(segment)),
        ("/athletes/{athlete_id}", get(athlete)),
        ("/applications", get(applications)),
        ("/applications/{id}", get(application)),
        ("/pipeline", get(pipeline)),
        ("/pipeline/runs/{source}/{epoch}", get(run)),
        (pipeline::LETTERS_PAGE, get(dead_letters)),
        (pipeline::RECONCILIATIONS_PAGE, get(reconciliations)),
        ("/signin", get(sign_in::show).post(sign_in::sign_in)),
        ("/signout", post(sign_in::sign_out)),
        ("/assets/{name}", get(assets::asset)),
        ("/docs", get(docs::page)),
        ("/docs/{name}", get(docs::file)),
    ]
}

/// What takes as long as it takes.
fn untimed() -> Vec<(&'static str, MethodRouter<Pages>)> {
    vec![
        // Writes are not dropped for being slow.
        (pipeline::LETTERS_PAGE, post(replay_letters)),
        (pipeline::RECONCILIATIONS_PAGE, post(approve)),
        // It is told as long as somebody looks.
        ("/live", get(live::follow)),
    ]
}

/// The paths of all pages.
#[cfg(test)]
pub(crate) fn paths() -> Vec<&'static str> {
    let all = timed().into_iter().chain(untimed());
    all.map(|(path, _)| path).collect()
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(parts.uri.query()))
    }
}

/// The fields of a form.
struct Form(Query);

impl FromRequest<Pages> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, pages: &Pages) -> Result<Self, Problem> {
        let form = body::text_up_to(&pages.state, request, FORM_BYTES_MAX).await?;
        Ok(Self(Query::of(Some(&String::from_utf8_lossy(&form)))))
    }
}

/// Answers with the page of a number in the path; 404 if it is none.
async fn numbered<P: About>(
    client: &ApiClient,
    (what, id): (&str, &str),
    page: impl Future<Output = P>,
) -> Response {
    if crate::http::integer(id).is_some() {
        return page.await.response();
    }
    let detail = format!("{what} have numbers, and {id:?} is none");
    ProblemPage::response(&client.caller, ApiError::own(404, NOTHING, detail))
}

async fn overview(client: ApiClient) -> Response {
    // Who reads of some owners alone sees nothing of all.
    let owner = client.caller.only_owner();
    if let Some(owner) = owner.filter(|owner| crate::http::integer(owner).is_some()) {
        return Redirect::to(&Of::Owner.page(owner)).into_response();
    }
    if !client.caller.may_read_all() {
        return found::own(&client, &Query::of(None)).await;
    }
    overview::page(&client).await.response()
}

async fn find(client: ApiClient, query: Query) -> Response {
    found::find(&client, &query).await
}

async fn owner(client: ApiClient, Path(id): Path<String>, query: Query) -> Response {
    let page = plays::page(&client, (Of::Owner, &id), &query);
    numbered(&client, ("owners", &id), page).await
}

async fn track(client: ApiClient, Path(id): Path<String>, query: Query) -> Response {
    let page = plays::page(&client, (Of::Track, &id), &query);
    numbered(&client, ("tracks", &id), page).await
}

async fn segment(client: ApiClient, Path(id): Path<String>, query: Query) -> Response {
    let page = boards::page(&client, &id, &query);
    numbered(&client, ("segments", &id), page).await
}

async fn athlete(client: ApiClient, Path(id): Path<String>, query: Query) -> Response {
    let page = athletes::page(&client, &id, &query);
    numbered(&client, ("athletes", &id), page).await
}

async fn applications(client: ApiClient, query: Query) -> Response {
    let is_of_one = query.get("owner").is_some() || client.caller.only_owner().is_some();
    if !client.caller.may_read_all() && !is_of_one {
        return found::own(&client, &query).await;
    }
    applications::list(&client, &query).await.response()
}

async fn application(client: ApiClient, Path(id): Path<String>, query: Query) -> Response {
    let page = applications::page(&client, &id, &query);
    numbered(&client, ("applications", &id), page).await
}

async fn pipeline(client: ApiClient) -> Response {
    pipeline::page(&client).await.response()
}

async fn run(client: ApiClient, Path((source, epoch)): Path<(String, String)>) -> Response {
    let page = pipeline::run(&client, (&source, &epoch));
    numbered(&client, ("runs", &epoch), page).await
}

async fn dead_letters(client: ApiClient, done: Done, query: Query) -> Response {
    let page = pipeline::dead_letters(&client, &query, done.answer()).await;
    done.told(page.response())
}

/// Leads to the page that tells what a form did; where it did nothing, that page says at once why.
async fn led<P: Template>(
    did: Answer<String>,
    lead: impl FnOnce(&str) -> Response,
    page: impl AsyncFnOnce(Query, Option<Answer<String>>) -> P,
) -> Response {
    match did {
        Ok(text) => lead(&text),
        Err(error) => {
            let status = error.status();
            let page = page(Query::of(None), Some(Err(error))).await;
            rendered(status, &page)
        }
    }
}

/// Tries letters again, and leads to all of them, where it is told what became of these.
async fn replay_letters(
    State(pages): State<Pages>,
    client: ApiClient,
    done: Done,
    Form(form): Form,
) -> Response {
    let did = pipeline::replayed(&client, &form).await;
    let lead = |text: &str| done.lead(pipeline::LETTERS_PAGE, text, pages.now_s());
    let page = async |all: Query, told| pipeline::dead_letters(&client, &all, told).await;
    led(did, lead, page).await
}

async fn reconciliations(client: ApiClient, done: Done, query: Query) -> Response {
    let page = pipeline::reconciliations(&client, &query, done.answer()).await;
    done.told(page.response())
}

/// Approves what a comparison found, and leads to all of them, where it is told what that means.
async fn approve(
    State(pages): State<Pages>,
    client: ApiClient,
    done: Done,
    Form(form): Form,
) -> Response {
    let did = pipeline::approved(&client, &form).await;
    let lead = |text: &str| done.lead(pipeline::RECONCILIATIONS_PAGE, text, pages.now_s());
    let page = async |all: Query, told| pipeline::reconciliations(&client, &all, told).await;
    led(did, lead, page).await
}

#[cfg(test)]
mod tests;
