//! HTML pages, rendered by the server and usable without the script. All data comes from the API
//! with the permissions of the caller, and each number shows its provenance.

mod api;
mod api_error;
mod applications;
mod assets;
mod athletes;
mod boards;
mod chart;
mod client;
mod components;
mod cookie;
mod differences;
mod docs;
mod extractors;
mod flash;
mod formatting;
mod live;
mod overview;
mod pipeline;
mod plays;
mod query;
mod search;
pub(crate) mod sign_in;
pub(crate) mod signer;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};

use self::client::ApiClient;
pub(crate) use self::components::{PageContext, PageResponse, render, render_problem};
use self::extractors::Form;
use self::flash::FlashMessage;
pub(crate) use self::formatting::format_number;
use self::query::Query;
use self::state::Pages;
use crate::http::RequiredScope::{AlwaysOpen, LiveUpdates, Public, ViewPage};
use crate::http::{Api, RequiredScope, RouteScopes, apply_timeout};

/// Routes of the pages, which query the API through `router`.
pub(crate) fn routes(router: Router, api: &Arc<Api>) -> Router {
    let pages = Pages {
        router,
        api: Arc::clone(api),
    };
    let add_route = |router: Router<Pages>, (path, _, _, route): Route| router.route(path, route);
    let timed = timed_routes().into_iter().fold(Router::new(), add_route);
    let timed = timed.layer(from_fn_with_state(Arc::clone(api), apply_timeout));
    let routes = untimed_routes().into_iter().fold(timed, add_route);
    routes.with_state(pages)
}

/// Adds the required scope of each page.
pub(crate) fn add_scopes(scopes: &mut RouteScopes) {
    for (path, method, scope, _) in timed_routes().into_iter().chain(untimed_routes()) {
        scopes.add(path, method, scope);
    }
}

/// A route: path, method, required scope, and handler.
type Route = (&'static str, Method, RequiredScope, MethodRouter<Pages>);

const GET: Method = Method::GET;
const POST: Method = Method::POST;

/// Routes with a request timeout.
fn timed_routes() -> Vec<Route> {
    vec![
        ("/", GET, ViewPage, get(overview::page)),
        ("/find", GET, ViewPage, get(search::find)),
        ("/owners/{owner_id}", GET, ViewPage, get(plays::owner)),
        ("/tracks/{track_id}", GET, ViewPage, get(plays::track)),
        ("/segments/{segment_id}", GET, ViewPage, get(boards::page)),
        ("/athletes/{athlete_id}", GET, ViewPage, get(athletes::page)),
        ("/applications", GET, ViewPage, get(applications::list)),
        ("/applications/{id}", GET, ViewPage, get(applications::page)),
        ("/pipeline", GET, ViewPage, get(pipeline::page)),
        (
            "/pipeline/runs/{source}/{epoch}",
            GET,
            ViewPage,
            get(pipeline::run),
        ),
        (
            pipeline::DEAD_LETTERS_PAGE,
            GET,
            ViewPage,
            get(dead_letters),
        ),
        (
            pipeline::RECONCILIATIONS_PAGE,
            GET,
            ViewPage,
            get(reconciliations),
        ),
        ("/signin", GET, Public, get(sign_in::show)),
        ("/signin", POST, Public, post(sign_in::sign_in)),
        ("/signout", POST, Public, post(sign_in::sign_out)),
        ("/assets/{name}", GET, AlwaysOpen, get(assets::asset)),
        ("/docs", GET, Public, get(docs::page)),
        ("/docs/{name}", GET, Public, get(docs::file)),
    ]
}

/// Routes without a request timeout.
fn untimed_routes() -> Vec<Route> {
    vec![
        // A slow write must not be aborted.
        (
            pipeline::DEAD_LETTERS_PAGE,
            POST,
            ViewPage,
            post(replay_dead_letters),
        ),
        (
            pipeline::RECONCILIATIONS_PAGE,
            POST,
            ViewPage,
            post(approve),
        ),
        // Streams events as long as the page is open.
        ("/live", GET, LiveUpdates, get(live::follow)),
    ]
}

/// Paths of all pages.
#[cfg(test)]
pub(crate) fn paths() -> Vec<&'static str> {
    let all = timed_routes().into_iter().chain(untimed_routes());
    all.map(|(path, ..)| path).collect()
}

async fn dead_letters(client: ApiClient, flash: FlashMessage, query: Query) -> Response {
    flash.clear_from(pipeline::dead_letters(&client, query, flash.outcome()).await)
}

/// Reprocesses dead letters, and redirects to their page, which shows the result.
async fn replay_dead_letters(
    State(pages): State<Pages>,
    client: ApiClient,
    flash: FlashMessage,
    Form(form): Form,
) -> Response {
    match pipeline::replay_dead_letters(&client, &form).await {
        Ok(text) => flash.redirect(pipeline::DEAD_LETTERS_PAGE, &text, pages.now_s()),
        // A failed request is shown at once, without a redirect.
        failed => pipeline::dead_letters(&client, Query::default(), Some(failed)).await,
    }
}

async fn reconciliations(client: ApiClient, flash: FlashMessage, query: Query) -> Response {
    flash.clear_from(pipeline::reconciliations(&client, query, flash.outcome()).await)
}

/// Approves the result of a reconciliation, and redirects to the page that shows the outcome.
async fn approve(
    State(pages): State<Pages>,
    client: ApiClient,
    flash: FlashMessage,
    Form(form): Form,
) -> Response {
    match pipeline::approve_reconciliation(&client, &form).await {
        Ok(text) => flash.redirect(pipeline::RECONCILIATIONS_PAGE, &text, pages.now_s()),
        failed => pipeline::reconciliations(&client, Query::default(), Some(failed)).await,
    }
}
