//! The HTTP API: its routes, and the middleware around them.

mod accept;
mod access;
pub(crate) mod achievements;
mod api;
pub(crate) mod applications;
mod boards;
pub(crate) mod body;
mod csv;
mod cursor;
pub(crate) mod dead_letters;
mod etag;
mod explain;
mod explain_board;
mod health;
mod ingest;
mod layers;
mod openapi;
mod origin;
pub(crate) mod overview;
mod params;
mod permits;
mod problem;
mod problem_page;
mod ranks;
pub(crate) mod reconciliations;
mod route_docs;
pub(crate) mod runs;
mod stats;
mod timeout;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{Method, Uri, header};
use axum::middleware::{from_fn, from_fn_with_state, map_request};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use tower::util::option_layer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use access::Peer;
pub(crate) use access::caller::Caller;
pub(crate) use access::format_scope_owner;
pub(crate) use access::limits::truncate_to_network;
pub(crate) use access::table::{RequiredScope, RouteScopes};
pub(crate) use api::{ADDRESS_DIVISOR, Api};
pub(crate) use origin::{find_request_host, is_over_tls};
pub(crate) use overview::{record_metrics, record_source_read_time};
pub(crate) use params::{LIMIT_MAX, Path, parse_integer};
pub(crate) use permits::{Permit, PermitPool};
pub(crate) use problem::{Problem, ProblemKind};
pub(crate) use timeout::{apply_timeout, with_timeout};

use RequiredScope::{
    Admin, AlwaysOpen, Connect, Ingest, OptionalKey, Public, ReadAll, ReadApplication, ReadOwner,
    RequestCapacity,
};

/// Required scope of statistics. The parameter names the owner.
const OWNER_ID: RequiredScope = ReadOwner("owner_id");

/// The OpenAPI document. Paths and schemas come from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Backstitch",
        description = "Exact counts of events and leaderboards of athletes. Every response states its provenance. \
                       Errors are problem documents (RFC 9457). CSV cells that begin with =, +, - or @ are data, not formulas: import them as text."
    ),
    components(schemas(problem::ProblemShape))
)]
struct ApiDescription;

/// Builds all routes with their middleware.
pub(crate) fn router(api: &Arc<Api>) -> Router {
    let mut scopes = RouteScopes::default();
    let reads = build_tagged_reads(&mut scopes)
        .merge(build_untagged_reads(&mut scopes))
        .layer(from_fn_with_state(Arc::clone(api), apply_timeout));
    // Writes have no time limit, because a slow write must not be aborted.
    let (router, mut openapi) = OpenApiRouter::with_openapi(ApiDescription::openapi())
        .merge(reads)
        .merge(build_writes(&mut scopes))
        .split_for_parts();
    route_docs::add_security_schemes(&mut openapi);
    if let Ok(json) = openapi::complete(api, &openapi) {
        api.openapi.get_or_init(|| json.into());
    }
    let router = router.with_state(Arc::clone(api));
    crate::pages::add_scopes(&mut scopes);
    let scopes = Arc::new(scopes);
    let pages = crate::pages::routes(add_middleware(router.clone(), api, &scopes), api);
    add_middleware(router.merge(pages), api, &scopes)
}

/// Builds the reads whose responses have an entity tag.
fn build_tagged_reads(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    use applications::{admin, history, list, notices, requests};
    // Proxies may decode the slash of an id.
    let decoded_path = "/api/v1/dead-letters/{id}/{place}";
    scopes.add(decoded_path, Method::GET, ReadAll);
    let mut scoped = |scope, routes| route_docs::register_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(OWNER_ID, routes!(stats::show_total)))
        .routes(scoped(OWNER_ID, routes!(stats::show_series)))
        .routes(scoped(OWNER_ID, routes!(stats::show_breakdown)))
        .routes(scoped(OWNER_ID, routes!(stats::show_uniques)))
        .routes(scoped(OWNER_ID, routes!(stats::show_unique_series)))
        .routes(scoped(ReadAll, routes!(boards::show_board)))
        .routes(scoped(ReadAll, routes!(boards::show_athlete)))
        .routes(scoped(ReadAll, routes!(boards::show_counts)))
        .routes(scoped(
            ReadAll,
            routes!(achievements::list_athlete_achievements),
        ))
        .routes(scoped(
            ReadAll,
            routes!(achievements::list_activity_achievements),
        ))
        .routes(scoped(ReadOwner("owner"), routes!(list::list_applications)))
        .routes(scoped(ReadApplication, routes!(admin::list_changes)))
        .routes(scoped(ReadApplication, routes!(history::show_history)))
        .routes(scoped(
            ReadApplication,
            routes!(requests::list_application_capacity_requests),
        ))
        .routes(scoped(ReadAll, routes!(requests::list_capacity_requests)))
        .routes(scoped(
            ReadApplication,
            routes!(notices::list_application_notices),
        ))
        .routes(scoped(ReadAll, routes!(notices::list_capacity_notices)))
        .routes(scoped(
            ReadApplication,
            routes!(applications::show_application),
        ))
        .routes(scoped(ReadAll, routes!(runs::list_runs)))
        .routes(scoped(ReadAll, routes!(runs::show_run)))
        .routes(scoped(
            ReadAll,
            routes!(reconciliations::list_reconciliations),
        ))
        .routes(scoped(OWNER_ID, routes!(explain::explain_value)))
        .routes(scoped(ReadAll, routes!(dead_letters::list_dead_letters)))
        .routes(scoped(ReadAll, routes!(dead_letters::count_dead_letters)))
        .routes(scoped(ReadAll, routes!(dead_letters::show_dead_letter)))
        .route(decoded_path, get(dead_letters::show_dead_letter_decoded))
        .routes(scoped(ReadAll, routes!(overview::show_overview)))
        .layer(from_fn(etag::add_etag))
}

/// Builds the reads without an entity tag.
fn build_untagged_reads(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    let mut scoped = |scope, routes| route_docs::register_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(ReadAll, routes!(ranks::rank_athletes)))
        .routes(scoped(AlwaysOpen, routes!(health::livez)))
        .routes(scoped(OptionalKey, routes!(health::readyz)))
        .routes(scoped(ReadAll, routes!(health::metrics)))
        .routes(scoped(Public, routes!(openapi_json)))
        .routes(scoped(Public, routes!(problem_page::explain_problem)))
        .routes(scoped(
            Public,
            routes!(applications::limit::show_limit_page),
        ))
}

/// Builds the writes.
fn build_writes(scopes: &mut RouteScopes) -> OpenApiRouter<Arc<Api>> {
    use applications::{admin, requests};
    let mut scoped = |scope, routes| route_docs::register_scope(scopes, scope, routes);
    OpenApiRouter::new()
        .routes(scoped(Ingest, routes!(ingest::ingest)))
        .routes(scoped(Admin, routes!(dead_letters::replay_dead_letters)))
        .routes(scoped(
            Admin,
            routes!(reconciliations::approve_reconciliation),
        ))
        .routes(scoped(Admin, routes!(admin::change_application)))
        .routes(scoped(RequestCapacity, routes!(requests::request_capacity)))
        .routes(scoped(Admin, routes!(requests::decide_capacity_request)))
        .routes(scoped(Connect, routes!(applications::connect_athlete)))
        .routes(scoped(Connect, routes!(applications::disconnect_athlete)))
}

/// Adds the middleware of every route.
fn add_middleware(router: Router, api: &Arc<Api>, scopes: &Arc<RouteScopes>) -> Router {
    let access = (Arc::clone(api), Arc::clone(scopes));
    router
        .fallback(unknown_path)
        .layer(from_fn_with_state(access, access::check_access))
        .layer(from_fn_with_state(Arc::clone(api), layers::limit_requests))
        .layer(CatchPanicLayer::custom(layers::on_panic))
        .layer(from_fn(layers::finish_response))
        .layer(option_layer(layers::build_cors_layer(&api.options)))
        .layer(CompressionLayer::new().gzip(true))
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(map_request(layers::check_request_id))
}

/// The OpenAPI document of this API.
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "service",
    responses((status = 200, description = "The document", content_type = "application/json"))
)]
async fn openapi_json(State(api): State<Arc<Api>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], api.openapi())
}

/// Redirects a path with trailing slashes to the path without them.
async fn unknown_path(uri: Uri) -> Result<Redirect, Problem> {
    let path = uri.path().trim_end_matches('/');
    // A path with two slashes at its start would name another host.
    let is_local = path.starts_with('/') && !path.starts_with("//") && !path.starts_with("/\\");
    if path != uri.path() && is_local {
        let query = uri.query().map(|query| format!("?{query}"));
        let target = format!("{path}{}", query.unwrap_or_default());
        return Ok(Redirect::permanent(&target));
    }
    Err(ProblemKind::UnknownPath.with_detail(
        "no route has this path: / leads to the web pages, and /openapi.json lists the API",
    ))
}
