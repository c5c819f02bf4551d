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

use axum::Router;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

use self::ask::{ApiClient, ApiError};
use self::done::Done;
use self::parts::ProblemPage;
pub(crate) use self::parts::rendered;
use self::query::Query;
pub(crate) use self::shown::number;
use crate::http::Need::{Following, Free, Nothing, Page};
use crate::http::{Api, Caller, Need, Needs, Path, Problem, body, time_out};

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
    let with = |router: Router<Pages>, (path, _, _, route): Route| router.route(path, route);
    let timed = timed().into_iter().fold(Router::new(), with);
    let timed = timed.layer(from_fn_with_state(Arc::clone(state), time_out));
    let all = untimed().into_iter().fold(timed, with);
    all.with_state(pages)
}

/// Notes what each page needs.
pub(crate) fn add_needs(needs: &mut Needs) {
    for (path, method, need, _) in timed().into_iter().chain(untimed()) {
        needs.add(path, method, need);
    }
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

/// A page: its path, the method, what it needs, and how it is answered.
type Route = (&'static str, Method, Need, MethodRouter<Pages>);

const GET: Method = Method::GET;
const POST: Method = Method::POST;

/// What is answered within the time that a request may take.
fn timed() -> Vec<Route> {
    vec![
        ("/", GET, Page, get(overview::page)),
        ("/find", GET, Page, get(found::find)),
        ("/owners/{owner_id}", GET, Page, get(plays::owner)),
        ("/tracks/{track_id}", GET, Page, get(plays::track)),
        ("/segments/{segment_id}", GET, Page, get(boards::page)),
        ("/athletes/{athlete_id}", GET, Page, get(athletes::page)),
        ("/applications", GET, Page, get(applications::list)),
        ("/applications/{id}", GET, Page, get(applications::page)),
        ("/pipeline", GET, Page, get(pipeline::page)),
        (
            "/pipeline/runs/{source}/{epoch}",
            GET,
            Page,
            get(pipeline::run),
        ),
        (pipeline::LETTERS_PAGE, GET, Page, get(dead_letters)),
        (
            pipeline::RECONCILIATIONS_PAGE,
            GET,
            Page,
            get(reconciliations),
        ),
        ("/signin", GET, Nothing, get(sign_in::show)),
        ("/signin", POST, Nothing, post(sign_in::sign_in)),
        ("/signout", POST, Nothing, post(sign_in::sign_out)),
        ("/assets/{name}", GET, Free, get(assets::asset)),
        ("/docs", GET, Nothing, get(docs::page)),
        ("/docs/{name}", GET, Nothing, get(docs::file)),
    ]
}

/// What takes as long as it takes.
fn untimed() -> Vec<Route> {
    vec![
        // Writes are not dropped for being slow.
        (pipeline::LETTERS_PAGE, POST, Page, post(replay_letters)),
        (pipeline::RECONCILIATIONS_PAGE, POST, Page, post(approve)),
        // It is told as long as somebody looks.
        ("/live", GET, Following, get(live::follow)),
    ]
}

/// The paths of all pages.
#[cfg(test)]
pub(crate) fn paths() -> Vec<&'static str> {
    let all = timed().into_iter().chain(untimed());
    all.map(|(path, ..)| path).collect()
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

/// The number in the path of a page.
struct Number(String);

impl FromRequestParts<Pages> for Number {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Response> {
        let Path(id) = Path::<String>::from_request_parts(parts, pages)
            .await
            .map_err(Problem::into_response)?;
        if crate::http::integer(&id).is_some() {
            return Ok(Self(id));
        }
        let Ok(client) = ApiClient::from_request_parts(parts, pages).await;
        let what = parts.uri.path().split('/').nth(1);
        Err(no_number(&client, what.unwrap_or_default(), &id))
    }
}

/// The page that says that an address has no number where it needs one.
fn no_number(client: &ApiClient, what: &str, id: &str) -> Response {
    let detail = format!("{what} have numbers, and {id:?} is none");
    ProblemPage::response(&client.caller, ApiError::own(404, NOTHING, detail))
}

async fn dead_letters(client: ApiClient, done: Done, query: Query) -> Response {
    done.told(pipeline::dead_letters(&client, query, done.answer()).await)
}

/// Tries letters again, and leads to all of them, where it is told what became of these.
async fn replay_letters(
    State(pages): State<Pages>,
    client: ApiClient,
    done: Done,
    Form(form): Form,
) -> Response {
    match pipeline::replayed(&client, &form).await {
        Ok(text) => done.lead(pipeline::LETTERS_PAGE, &text, pages.now_s()),
        // What did nothing says at once why.
        refused => pipeline::dead_letters(&client, Query::default(), Some(refused)).await,
    }
}

async fn reconciliations(client: ApiClient, done: Done, query: Query) -> Response {
    done.told(pipeline::reconciliations(&client, query, done.answer()).await)
}

/// Approves what a comparison found, and leads to all of them, where it is told what that means.
async fn approve(
    State(pages): State<Pages>,
    client: ApiClient,
    done: Done,
    Form(form): Form,
) -> Response {
    match pipeline::approved(&client, &form).await {
        Ok(text) => done.lead(pipeline::RECONCILIATIONS_PAGE, &text, pages.now_s()),
        refused => pipeline::reconciliations(&client, Query::default(), Some(refused)).await,
    }
}

#[cfg(test)]
mod tests;
