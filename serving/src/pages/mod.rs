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

use self::ask::{Answer, Asker, Trouble};
use self::done::Done;
use self::parts::{About, Here, ProblemPage, rendered};
use self::plays::Of;
use self::query::Query;
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

/// Who looks at a page, and how it is reached.
struct Looking {
    asker: Asker,
    here: Here,
}

impl FromRequestParts<Pages> for Looking {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, pages: &Pages) -> Result<Self, Infallible> {
        // Whom nobody has let in sees what everybody may.
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.unwrap_or_else(Caller::stranger);
        Ok(Self {
            asker: Asker::new(pages.api.clone(), Arc::clone(&pages.state), caller),
            here: Here::of(&parts.headers, &parts.uri),
        })
    }
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

/// The page that says that what a path names is no number; nothing if it is one.
fn not_numbered(looking: &Looking, what: &str, id: &str) -> Option<Response> {
    if crate::http::integer(id).is_some() {
        return None;
    }
    let detail = format!("{what} have numbers, and {id:?} is none");
    let trouble = Trouble::own(404, NOTHING, detail);
    Some(ProblemPage::response(&looking.asker.caller, trouble))
}

async fn overview(looking: Looking) -> Response {
    // Who reads of some owners alone sees nothing of all.
    let caller = &looking.asker.caller;
    let owner = caller.only_owner();
    if let Some(owner) = owner.filter(|owner| crate::http::integer(owner).is_some()) {
        return Redirect::to(&Of::Owner.page(owner)).into_response();
    }
    if !caller.may_read_all() {
        return found::own(&looking.asker, &Query::of(None)).await;
    }
    overview::page(&looking.asker, &looking.here)
        .await
        .response()
}

async fn find(looking: Looking, query: Query) -> Response {
    found::find(&looking.asker, &query).await
}

async fn plays_of(looking: Looking, (of, what): (Of, &str), id: &str, query: &Query) -> Response {
    if let Some(response) = not_numbered(&looking, what, id) {
        return response;
    }
    plays::page(&looking.asker, &looking.here, (of, id), query)
        .await
        .response()
}

async fn owner(looking: Looking, Path(id): Path<String>, query: Query) -> Response {
    plays_of(looking, (Of::Owner, "owners"), &id, &query).await
}

async fn track(looking: Looking, Path(id): Path<String>, query: Query) -> Response {
    plays_of(looking, (Of::Track, "tracks"), &id, &query).await
}

async fn segment(looking: Looking, Path(id): Path<String>, query: Query) -> Response {
    if let Some(response) = not_numbered(&looking, "segments", &id) {
        return response;
    }
    boards::page(&looking.asker, &looking.here, &id, &query)
        .await
        .response()
}

async fn athlete(looking: Looking, Path(id): Path<String>, query: Query) -> Response {
    if let Some(response) = not_numbered(&looking, "athletes", &id) {
        return response;
    }
    athletes::page(&looking.asker, &looking.here, &id, &query)
        .await
        .response()
}

async fn applications(looking: Looking, query: Query) -> Response {
    let caller = &looking.asker.caller;
    let is_of_one = query.get("owner").is_some() || caller.only_owner().is_some();
    if !caller.may_read_all() && !is_of_one {
        return found::own(&looking.asker, &query).await;
    }
    applications::list(&looking.asker, &looking.here, &query)
        .await
        .response()
}

async fn application(looking: Looking, Path(id): Path<String>, query: Query) -> Response {
    if let Some(response) = not_numbered(&looking, "applications", &id) {
        return response;
    }
    applications::page(&looking.asker, &looking.here, &id, &query)
        .await
        .response()
}

async fn pipeline(looking: Looking) -> Response {
    pipeline::page(&looking.asker, &looking.here)
        .await
        .response()
}

async fn run(looking: Looking, Path((source, epoch)): Path<(String, String)>) -> Response {
    if let Some(response) = not_numbered(&looking, "runs", &epoch) {
        return response;
    }
    let of = (source.as_str(), epoch.as_str());
    pipeline::run(&looking.asker, &looking.here, of)
        .await
        .response()
}

async fn dead_letters(looking: Looking, done: Done, query: Query) -> Response {
    let Looking { asker, here } = &looking;
    let page = pipeline::dead_letters(asker, here, &query, done.answer()).await;
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
        Err(trouble) => {
            let status = trouble.status();
            let page = page(Query::of(None), Some(Err(trouble))).await;
            rendered(status, &page)
        }
    }
}

/// Tries letters again, and leads to all of them, where it is told what became of these.
async fn replay_letters(
    State(pages): State<Pages>,
    looking: Looking,
    done: Done,
    Form(form): Form,
) -> Response {
    let Looking { asker, here } = &looking;
    let did = pipeline::replayed(asker, &form).await;
    let lead = |text: &str| done.lead(pipeline::LETTERS_PAGE, text, pages.now_s());
    let page = async |all: Query, told| pipeline::dead_letters(asker, here, &all, told).await;
    led(did, lead, page).await
}

async fn reconciliations(looking: Looking, done: Done, query: Query) -> Response {
    let Looking { asker, here } = &looking;
    let page = pipeline::reconciliations(asker, here, &query, done.answer()).await;
    done.told(page.response())
}

/// Approves what a comparison found, and leads to all of them, where it is told what that means.
async fn approve(
    State(pages): State<Pages>,
    looking: Looking,
    done: Done,
    Form(form): Form,
) -> Response {
    let Looking { asker, here } = &looking;
    let did = pipeline::approved(asker, &form).await;
    let lead = |text: &str| done.lead(pipeline::RECONCILIATIONS_PAGE, text, pages.now_s());
    let page = async |all: Query, told| pipeline::reconciliations(asker, here, &all, told).await;
    led(did, lead, page).await
}

#[cfg(test)]
mod tests;
